"""The rules that ``crtlib new`` ships: of a value they mask all of it, or nothing."""

from pathlib import Path

import pytest

from crtlib.screening.expression_files import has_luhn_digit
from crtlib.screening.policy_names import policy_by_name
from crtlib.text.records import Point

RULES = Path(__file__).parents[2] / "confide/commands/project/policies/ours.toml"
POLICY = policy_by_name(f"regex:{RULES}")

FOUND = [
    *("4111 1111 1111 1111", "4111111111111111", "5555-5555-5555-4444", "3782 822463 10005"),
    *("4111 1111 1111 1112", "4111111111111112", "6304000000000000 000", "30569309025904"),
    *("(510)3041234", "408-971-0888", "+49 30 1234567", "123-45-6789", "0049 (0)30 1234567"),
    *("DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19"),
    *("FR14 2004 1010 0505 0001 3M02 606", "NO93 8601 1117 947", "BE68539007547034"),
    *("D1234567", "X12345678", "C01X00T47", "12345678Z", "MORGA657054SM9IJ"),
    *("４１５－５５５－０１３４", "415 555\u00a00134", "415‑555‑0134", "415\u0300 5550134"),
    *("four one five five zero one", "vier eins fünf", "cuatro, uno, cinco", "quatre-un-cinq"),
    *("ann@example.com", "ｖｉｃｔｉｍ．ｆｗ@example.com", "123-45678-9"),
    *("1BoatSLRHtKNngkdXEeobR76b53LETtpyT", "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy"),
    *(
        "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
        "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
    ),
]
SENTENCES = ["{}", "my number is {}.", "It is {}, thanks", "({})", "{} and no other\nso"]


def masked(text):
    """The text with an underscore for each masked character."""
    (spans,) = POLICY([Point("0", "u", text)])
    chars = list(text)
    for span in spans:
        chars[span.start : span.end] = "_" * (span.end - span.start)
    return "".join(chars)


@pytest.mark.parametrize("value", FOUND)
def test_a_value_is_masked_whole_in_any_sentence(value):
    for sentence in SENTENCES:
        before, _, after = sentence.partition("{}")
        left = masked(before + value + after)
        assert left.startswith(before.removesuffix("("))
        assert left.endswith(after), left
        inside = left[len(before) : len(before) + len(value)]
        assert not any(c.isalnum() for c in inside), left


@pytest.mark.parametrize("value", [v for v in FOUND if v[-1].isdecimal()])
@pytest.mark.parametrize("more", ["7", " 7", "-77", " 7777", " 7777 7777", "77777777777"])
def test_no_rule_stops_inside_a_longer_value(value, more):
    left = masked(f"it is {value}{more}.")[6:-1]
    digits = [c for c in left if c.isdecimal()]
    assert not digits or digits == [c for c in value + more if c.isdecimal()], left
    front = more.strip(" -") + " "
    left = masked(f"it is {front}{value}.")[6 + len(front) : -1]
    digits = [c for c in left if c.isdecimal()]
    assert not digits or digits == [c for c in value if c.isdecimal()], left


@pytest.mark.parametrize(
    "text",
    [
        "the quick brown fox jumps over one lazy dog",
        "one or two of them, please",
        "I came at 10:30 in 2026",
        "A4 paper, B12 and COVID-19",
        "one by one, two by two",
    ],
)
def test_plain_text_stays(text):
    assert masked(text) == text


def test_the_last_digit_of_a_card():
    cards = ["4012888888881881", "6011111111111117", "３７８２８２２４６３１０００５"]
    assert all(map(has_luhn_digit, cards)) and not has_luhn_digit("4012888888881882")


def test_a_list_of_people_as_a_crm_writes_it(tmp_path):
    path = tmp_path / "customers.csv"
    path.write_text(
        "Kundenname;Telefon;E-Mail;Rabatt\nAda Lovelace;030 1234567;ada@x.org;5 %\nLi;;;\n"
    )
    (spans,) = policy_by_name(f"list:{path}")([Point("0", "u", "ADA, 030-1234567, 5 %, Ada@X.org")])
    assert [(s.kind, s.start, s.end) for s in spans] == [
        ("name", 0, 3), ("phone", 5, 16), ("email", 23, 32)
    ]  # fmt: skip
    path.write_text("rebate;total\n5;6\n")
    with pytest.raises(ValueError, match="need a column secret, or those of a list of people"):
        policy_by_name(f"list:{path}")
