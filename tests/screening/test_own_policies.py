"""Policies of one's own: lists, expressions, the cautious one, unions, and names of strangers."""

import copy
import subprocess
import sys
import time
import unicodedata
from importlib import metadata
from pathlib import Path

import pandas as pd
import pytest

from crtlib.screening import (
    cautious,
    expression_files,
    policy_changes,
    policy_names,
    policy_registry,
    regex_policies,
    value_lists,
)
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import redact
from crtlib.text import data_points
from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret, Turn


def flagged(policy, text, *, spoken=()):
    (spans,) = policy([Point("0", "u", text, (), spoken)])
    return [text[s.start : s.end] for s in spans]


@pytest.mark.parametrize(
    "text",
    ["".join(map(chr, range(128))), "A  b\t\nC", "", " x", "`I'm` 12-34 (5)", "\r\n\r\n"]
    + [f"I{chr(code)}{chr(code)} am {chr(code)}Ann" for code in range(128)],
)
def test_ascii_is_compared_as_any_other_text(text):
    normal, places = value_lists._normalise_with_places(text)
    other, others = value_lists._normalise_with_places(f"{text}\u00e9")
    assert (f"{normal}e", [*places, len(text)]) == (other, others)


def test_a_value_after_control_characters_is_found_whole(listed):
    """Places were counted without them once, so another part of the text was masked."""
    for text in ("I\x07\x07 am Lindner, ok", "\x00\x1b Lindner"):
        assert flagged(listed("Lindner"), text) == ["Lindner"]


@pytest.fixture
def listed(tmp_path):
    def make(*values):
        (tmp_path / "v.txt").write_text("\n".join(values), encoding="utf-8")
        return policy_names.policy_by_name(f"list:{tmp_path / 'v.txt'}")

    return make


# --------------------------------------------------------------------------- lists
@pytest.mark.parametrize(
    ("value", "text", "expected"),
    [
        ("José O’Neill", "I am jose  o'neill.", ["jose  o'neill"]),
        ("JOSE O'NEILL", "I am José O’Neill!", ["José O’Neill"]),
        ("Jose", "Jose\u0301 came", ["Jose\u0301"]),
        ("4111111111111111", "card 4111-1111 1111.1111 03/27", ["4111-1111 1111.1111"]),
        ("15550107788", "at +1 (555) 010-7788, please", ["1 (555) 010-7788"]),
        ("+1 (555) 010-7788", "at 15550107788", ["15550107788"]),
        ("Ann", "Ann's friend, Annual Ann-Marie ann", ["Ann", "Ann", "ann"]),
        ("1234", "12345 and 01234 and 1234", ["1234"]),
        ("٣٤٥٦", "number 3456", ["3456"]),
        ("zero\u00adwidth", "zerow\u200bidth", ["zerow\u200bidth"]),
        ("a–b", "an a-b here", ["a-b"]),
        ("王小明", "我叫王小明，請叫我王小明先生", ["王小明", "王小明"]),
        ("김민수", "김민수는 왔다", ["김민수"]),
        ("김민수", "\u1100\u1175\u11b7\u1106\u1175\u11ab\u1109\u116e\u1102\u1173\u11ab 왔다",
         ["\u1100\u1175\u11b7\u1106\u1175\u11ab\u1109\u116e"]),
        ("محمد علي", "محمدـ\u200f علي.", ["محمدـ\u200f علي"]),
        ("4111111111111111", "4111·1111_1111\u200e1111", ["4111·1111_1111\u200e1111"]),
        ("İpek Işık", "IPEK ISIK", ["IPEK ISIK"]),
        ("straße 5", "STRASSE 5", ["STRASSE 5"]),
        ("48213", "48213ㅋㅋ, Nº48213, \u246048213", ["48213"] * 3),
        ("4821", "4\ufe0f\u20e38\ufe0f\u20e32\ufe0f\u20e31\ufe0f\u20e3",
         ["4\ufe0f\u20e38\ufe0f\u20e32\ufe0f\u20e31\ufe0f\u20e3"]),
        ("a–b", "an a\ufe58b here", ["a\ufe58b"]),
        ("अनुराधा", "मैं अनुराधा हूँ", ["अनुराधा"]),
        ("มาลี", "ชื่อมาลีครับ", ["มาลี"]),
        ("mask", f"a {MASK} and a mask", ["mask"]),
        ("ann lee", "ann lee lee smith ann  lee", ["ann lee", "ann  lee"]),
    ],
)  # fmt: skip
def test_a_value_is_found_as_people_write_it(listed, value, text, expected):
    assert flagged(listed(value), text) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("\u0141ukasz Wa\u0142\u0119sa", "lukasz walesa"),
        ("S\u00f8ren \u00d8deg\u00e5rd", "SOREN ODEGARD"),
        ("dang van", "\u0110\u1eb7ng V\u0103n"),
        ("NL91ABNA0417164300", "NL91 ABNA 0417 1643 00"),
        ("NL91 AB NA 0417 1643 00", "nl91-abna-0417-1643-00"),
        ("SW1A 1AA", "sw1a1aa"),
        ("sw1a1aa", "SW1A 1AA"),
        ("AB-1234", "AB1234"),
        ("AB1234", "ab 12-34"),
        ("Mill Road 12", "mill-road, 12"),
        ("Ann-Marie Fox", "Ann Marie Fox"),
        ("ann marie fox", "Ann\u2010Marie  Fox"),
        ("\u5c71\u7530\u592a\u90ce", "\u5c71\u7530 \u592a\u90ce"),
        ("\u5c71\u7530 \u592a\u90ce", "\u5c71\u7530\u592a\u90ce"),
        ("\u738b\u4f1f", "\u738b\u3000\u4f1f"),
        ("\u30b8\u30e7\u30f3\u30b9\u30df\u30b9", "\u30b8\u30e7\u30f3\u30fb\u30b9\u30df\u30b9"),
        ("\u0639\u0644\u06cc \u06a9\u0631\u06cc", "\u0639\u0644\u064a \u0643\u0631\u064a"),
        *(("41" * 8, sign.join(["4141"] * 4)) for sign in (",", ":", "~", "\u30fb", " | ")),
    ],
    ids=lambda text: unicodedata.normalize("NFKD", text.replace("\u0141", "L")).encode(
        "ascii", "ignore").decode().partition(" Wa")[0].partition(" wa")[0],
)  # fmt: skip
def test_a_value_is_found_in_ordinary_spellings(listed, value, said):
    """Fault: each of them stayed legible. What is flagged is the place itself, whatever the text
    before it holds that has no place in the compared form."""
    beside = f"\u0110\a \u738b - e\u0301\u0301: ({said})."
    for text in (f"it is {said}, thanks", beside, said):
        assert flagged(listed(value), text) == [said]


def test_spaces_of_letters_and_other_words_stay_what_they_are(listed):
    """No word is put together from parts of others."""
    for value, text in (
        ("Ann Marie", "so annmarie said"), ("island", "it is land"), ("AB1234", "a cab 1234 here"),
        ("1234", "12345, 6 and 0 12345"), ("\u0639\u0644\u064a", "\u0627\u0639 \u0644\u064a\u0644"),
    ):  # fmt: skip
        assert flagged(listed(value), text) == [], value


@pytest.mark.parametrize("name", ["crm.csv", "secret.csv"])
def test_what_is_too_short_to_look_for_is_counted(tmp_path, name):
    """Fault: of a list of people, names of two Chinese signs and short names were skipped, and
    nobody was told; as secrets they were refused."""
    people, file = ["\u738b\u4f1f", "\u674e\u5a1c", "\uc774\ub098"], tmp_path / name
    if name == "secret.csv":
        file.write_text("\n".join(["secret", *people]) + "\n", encoding="utf-8")
        policy = policy_names.policy_by_name(f"list:{file}")
    else:
        rows = [*people, "Al", "\u738b", "Bo", "\uae40", ""]
        content = "".join(f"{name};{'7' * (name == 'Bo')}\n" for name in ["name;phone", *rows])
        file.write_text(content.replace("name;phone;", "name;phone"), encoding="utf-8")
        told = (
            r"crm.csv: 5 values are too short to look for and left out \(row 5, row 6, row 7, ...\)"
        )
        with pytest.warns(UserWarning, match=told) as said:
            policy = policy_names.policy_by_name(f"list:{file}")
        assert "Al" not in str(said[0].message)
    for person in people:
        assert flagged(policy, f"\u6211\u53eb{person}") == [person]


def test_of_values_that_overlap_all_is_flagged(listed):
    assert flagged(listed("Ann Lee", "Lee Smith"), "so Ann Lee Smith said") == ["Ann Lee Smith"]


def test_lists_have_kinds_and_parts_in_csv_and_parquet(tmp_path):
    table = pd.DataFrame(
        {"secret": ["Ada King Lovelace", "0017"], "kind": ["name", ""], "parts": ["yes", ""]}
    )
    table.to_csv(tmp_path / "v.csv", index=False)
    table.to_parquet(tmp_path / "v.parquet")
    for file in ("v.csv", "v.parquet"):
        policy = value_lists.list_policy(str(tmp_path / file))
        text = "lovelace had 0017, of Ada king lovelace"
        (spans,) = policy([Point("0", "u", text)])
        assert [(s.kind, text[s.start : s.end]) for s in spans] == [
            ("name", "lovelace"), ("listed", "0017"), ("name", "Ada king lovelace")
        ]  # fmt: skip
        assert not policy.learned and policy.own_words


@pytest.mark.parametrize(
    ("name", "word"), [("Nu\u0303n\u0303ez Roca", "Núñez"), ("अनुराधा शर्मा", "शर्मा")]
)
def test_the_words_of_a_name_have_their_accents_and_vowel_signs(tmp_path, name, word):
    """Fault: a name was cut at each of them, so that its pieces were too short to look for."""
    file = tmp_path / "people.csv"
    for content in (f"name;phone\n{name};\n", f"secret,parts\n{name},yes\n"):
        file.write_text(content, encoding="utf-8")
        assert flagged(policy_names.policy_by_name(f"list:{file}"), f"so {word} said") == [word]


def test_values_that_stand_in_many_turns_are_warned_of_in_one_line_by_their_rows(listed):
    policy = listed("zyzzyva", "hello")
    points = [Point(str(i), "u", "hello there") for i in range(100)]
    message = r"v.txt: 1 row occurs in more than 1 % of the turns \(row 2 in 100.0 %\); a value"
    with pytest.warns(UserWarning, match=message) as said:
        policy(points)
    assert "hello" not in str(said[0].message)
    words = [f"quux{k}" for k in range(39)]
    policy = listed("zyzzyva", *words)
    points = [Point(str(i), "u", " ".join(words[i % 2 :])) for i in range(100)]
    told = r"39 rows occur in more .* \(row 3 in 100.0 %, row 4 in 100.0 %, row 5 in 100.0 %, ...\)"
    with pytest.warns(UserWarning, match=told) as said:
        policy(points)
    assert len(said) == 1 and "quux" not in str(said[0].message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", "okay then\nab.", "v.txt, row 2: is too short to look for; 2 characters"),
        ("v.txt", "okay\n" + "a" * 10**6, "v.txt, row 2: is too long to look for; at most 100,000"),
        ("v.txt", "\n \n", "holds no value"),
        ("v.csv", "other\nAda", r"need a column secret"),
        ("v.csv", '"', r"cannot be read"),
        ("v.parquet", "Ada", r"cannot be read"),
        ("v.docx", "Ada", "must be a .txt, .csv or .parquet file"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        policy_names.policy_by_name(f"list:{tmp_path / name}")
    assert "\n" not in str(error.value) and "Ada" not in str(error.value)
    with pytest.raises(ValueError, match="no such file"):
        policy_names.policy_by_name("list:nowhere.txt")


# --------------------------------------------------------------------------- expressions
TOML = r"""
[order]
pattern = '\b\d{3}-\d{5}-\d{1,4}\b'
examples = ["123-45678-9"]
[contract]
pattern = 'contract (?:no\.? )?(?P<secret>[A-Z]{2}\d{6})'
flags = "i"
not = ["AA000000"]
"""


def test_expressions_of_a_file(tmp_path):
    (tmp_path / "ours.toml").write_text(TOML)
    policy = policy_names.policy_by_name(f"regex:{tmp_path / 'ours.toml'}")
    text = "Contract no. xy123456, contract AA000000, order 123-45678-9."
    (spans,) = policy([Point("0", "u", text)])
    assert [(s.kind, text[s.start : s.end]) for s in spans] == [
        ("contract", "xy123456"), ("order", "123-45678-9")
    ]  # fmt: skip
    assert not policy.learned and not policy_names.is_learned(policy.name)


@pytest.mark.parametrize("pattern", [r"(\w{1,30}\s?){1,20}!", "(a+)+b", r"(?:(a|aa)\1?)*c"])
def test_an_expression_that_would_take_for_ever_ends_with_its_name_and_the_turns(
    tmp_path, monkeypatch, pattern
):
    monkeypatch.setattr(expression_files, "MATCH_TIMEOUT_SECONDS", 0.2)
    (tmp_path / "ours.toml").write_text(f"[order]\npattern = '{pattern}'\n")
    policy = policy_names.policy_by_name(f"regex:{tmp_path / 'ours.toml'}")
    text = "a" * 5_000 + " - b c !"  # all that it must hold is there, else nothing is tried
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"ours.toml, \[order\] pattern: takes .* on turn 2;"):
        policy([Point("d-6", "u", "short"), Point("d-7", "u", text)])
    assert time.monotonic() - began < 5


def test_a_long_turn_has_the_time_that_a_plain_expression_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(expression_files, "MATCH_TIMEOUT_SECONDS", 0.0)
    (tmp_path / "ours.toml").write_text("[a]\npattern = '\\d+'")
    policy = expression_files.expression_file_policy(str(tmp_path / "ours.toml"))
    assert len(policy([Point("0", "u", "12345678 " * 100_000)])[0]) == 100_000


def test_letters_and_digits_are_those_of_all_scripts(tmp_path):
    (tmp_path / "ours.toml").write_text(
        "[a]\npattern = '\\b\\w+@\\w+\\b'\n[b]\npattern = '\\b\\d{2,}'"
    )
    policy = expression_files.expression_file_policy(str(tmp_path / "ours.toml"))
    assert flagged(policy, "an jörg@büro, ٣٤٥") == ["jörg@büro", "٣٤٥"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("pattern = '('", r"ours.toml, \[order\] pattern: is not a regular expression"),
        ("pattern = 'a*'", "matches the empty text"),
        ("pattern = 7", "must be a text"),
        ("pattern = 'a'\nflags = 'm'", "flags: must consist of i and x"),
        ("pattern = 'a'\ncolour = 'm'", "colour: must be one of pattern, flags, examples, not"),
        ("pattern = 'a'\nexamples = ['a', 'ab']", "examples: number 2 does not match in full"),
        ("pattern = 'a'\nnot = 'a'", "not: must be a list of texts"),
        ("pattern = 'a'\nnot = ['a']\nexamples = ['a']", "number 1 does not match"),
        ("pattern = ", "is not TOML"),
    ],
)
def test_expressions_that_do_not_fit_are_refused_in_one_line(tmp_path, table, message):
    (tmp_path / "ours.toml").write_text(f"[order]\n{table}\n")
    with pytest.raises(ValueError, match=message) as error:
        policy_names.policy_by_name(f"regex:{tmp_path / 'ours.toml'}")
    assert "\n" not in str(error.value)


# --------------------------------------------------------------------------- cautious
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, how are you?", []),
        ("I'm fine and I think it's okay. Thanks! So what", []),
        ("call Ada Lovelace at 7:30 now", ["Ada Lovelace", "7:30"]),
        ("ada@example.com or @ada or www.example.com/x",
         ["ada@example.com", "@ada", "www.example.com/x"]),
        ("see example.com.", ["example.com"]),
        ("it is the zyzzyva", ["zyzzyva"]),
        ("we don’t know the people's names", []),
        ("Yes. London is fine\nParis: Rome", ["London", "Paris", "Rome"]),
        (f"I saw {MASK} there", []),
        ("order A7B9 and x2", ["A7B9", "x2"]),
        ("Zoë", ["Zoë"]),
        ("", []),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_flagged(text, expected):
    assert flagged(cautious.cautious_policy(), text) == expected


def test_masking_one_secret_changes_no_label_beyond_its_neighbours():
    turn = Turn("USR", "call Ada at 555 1234 or mail bob@example.com", (Secret("name", 5, 8),))
    (point,) = data_points.make_points(Corpus("c", (Dialogue("d", "u", (turn,)),)), unit="turn")
    policy = cautious.cautious_policy()
    masked = redact(point, point.secrets)
    assert flagged(policy, masked.text, spoken=masked.spoken_spans) == [
        "555 1234",
        "bob@example.com",
    ]


def test_words_of_ones_own(tmp_path):
    (tmp_path / "w.txt").write_text("# ours\nzyzzyva\n")
    policy = policy_names.policy_by_name(f"cautious:{tmp_path / 'w.txt'}")
    assert flagged(policy, "zyzzyva hello") == ["hello"]
    for name, message in (
        ("cautious:nowhere", "is not a readable file"),
        (f"cautious:{tmp_path}", "no"),
    ):
        with pytest.raises(ValueError, match=message):
            policy_names.policy_by_name(name)
    assert len(cautious.common_words()) == 5_000


# --------------------------------------------------------------------------- unions and names
def test_a_union_flags_what_its_parts_flag_and_has_the_kind_of_the_first(listed):
    values = listed("Ada").name
    policy = policy_names.policy_by_name(f"{values}+regex:customersim+cautious")
    text = "USR: call Ada Lovelace now, ok zyzzyva"
    (spans,) = policy([Point("0", "u", text, (), ((5, len(text)),))])
    assert [(s.kind, text[s.start : s.end]) for s in spans] == [
        ("listed", "Ada Lovelace"), ("rare", "zyzzyva")
    ]  # fmt: skip
    assert policy.name == f"{values}+regex:customersim+cautious"


def test_a_plus_inside_a_path_is_written_as_a_code(tmp_path):
    (tmp_path / "a+b%.txt").write_text("Ada")
    name = str(tmp_path / "a+b%.txt").replace("%", "%25").replace("+", "%2B")
    assert flagged(policy_names.policy_by_name(f"list:{name}"), "so Ada") == ["Ada"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lsit:a.csv", r"policy='lsit:a.csv': must be one of .*; did you mean list:a.csv\?"),
        ("regex", "regex needs a corpus or a file; regex:customersim or regex:FILE.toml"),
        ("regex:sgd", "policy='regex:sgd': must be regex:FILE.toml, or regex: with one of custom"),
        ("regex:v.csv", "policy='regex:v.csv': must be .*; list:v.csv looks for the values of a"),
        ("list:v.toml", "no such file"),
        ("oracle:x", "policy='oracle:x': oracle takes nothing after it; must be oracle alone"),
        ("list:", "policy='list:': must name what it reads; list:FILE"),
        ("names,list:v.csv", r"must be one of .*; did you mean names\+list:v.csv\?"),
        ("Names", r"must be one of .*; did you mean names\?"),
        ("", "must be one of"),
        ("none+", "must be one of"),
        (
            "tagger:/no/such",
            "policy='tagger:/no/such': /no/such: holds no tagger.json .* is needed",
        ),
    ],
)
def test_a_name_that_is_none_is_refused_in_one_line(name, message):
    with pytest.raises(ValueError, match=message) as error:
        policy_names.policy_by_name(name)
    assert "\n" not in str(error.value)


def test_a_file_without_its_kind_and_a_file_of_another_kind_are_told_the_kind(tmp_path):
    for name in ("v.csv", "v.toml"):
        (tmp_path / name).write_text("secret\n")
    for name, message in (
        (tmp_path / "v.csv", f"did you mean list:{tmp_path}/v.csv\\?"),
        (tmp_path / "v.toml", f"did you mean regex:{tmp_path}/v.toml\\?"),
        (f"list:{tmp_path}/v.toml", f"; regex:{tmp_path}/v.toml reads expressions"),
    ):
        with pytest.raises(ValueError, match=message):
            policy_names.policy_by_name(str(name))


def test_a_conservative_policy_is_refused_by_its_own_name():
    for name, message in (("list", "must name what"), ("regex:v.csv", "must be"), ("x", "must be")):
        with pytest.raises(ValueError, match=f"^conservative='{name}': {message}"):
            policy_names.conservative_policy_by_name(name)
    assert policy_names.conservative_policy_by_name("cautious").name == "cautious"


def test_every_name_of_ours_is_made_and_none_of_a_strangers_takes_its_place(monkeypatch):
    for name, ours in policy_names.BUILTIN_MAKERS.items():
        other = policy_registry.PolicyMaker(name, ":WORD", lambda word: regex_policies.none_policy)
        monkeypatch.setitem(policy_registry.REGISTERED_MAKERS, name, other)
        assert policy_names.find_maker(name) is ours and ours.name == name
    learned = [name for name in policy_names.BUILTIN_MAKERS if policy_names.is_learned(name)]
    assert set(learned) == set(policy_names.BUILTIN_MAKERS) - {
        "oracle", "none", "everything", "whole_turns", "regex", "list", "cautious", "names",
        "screened",
    }  # fmt: skip


def test_knowing_all_names_loads_no_heavy_package():
    code = (
        "import sys; from crtlib.screening import policy_names; policy_names.available_policies(); "
        "policy_names.policy_by_name('regex:multiwoz+cautious'); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_strangers_policy_of_one_file_is_reachable_by_name(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text(
        "from crtlib.screening.policy import Policy\n"
        "from crtlib.screening.policy_registry import register_policy\n"
        "from crtlib.text.records import Secret\n"
        "@register_policy('first', ':N')\n"
        "def first(n):\n"
        "    spans = lambda ps: [[Secret('x', 0, int(n))] for p in ps]\n"
        "    return Policy(f'first:{n}', spans)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        policy_registry, "REGISTERED_MAKERS", dict(policy_registry.REGISTERED_MAKERS)
    )
    monkeypatch.setattr(policy_names, "REGISTERED_MAKERS", policy_registry.REGISTERED_MAKERS)
    with pytest.raises(ValueError, match="must be one of"):
        policy_names.policy_by_name("first:2")
    import stranger  # noqa: F401

    assert policy_names.available_policies()["first"] == ":N"
    union = policy_names.policy_by_name("first:2+none")
    assert flagged(union, "abc") == ["ab"] and union.name == "first:2+none"


def test_a_strangers_policy_that_was_taught_is_known_by_its_name(monkeypatch):
    monkeypatch.setattr(
        policy_registry, "REGISTERED_MAKERS", dict(policy_registry.REGISTERED_MAKERS)
    )
    monkeypatch.setattr(policy_names, "REGISTERED_MAKERS", policy_registry.REGISTERED_MAKERS)
    for learned in (True, False):
        policy_registry.register_policy("guest", learned=learned)(
            lambda _: regex_policies.none_policy
        )
        assert policy_names.is_learned("guest") is learned


def install_package(folder, name, code, policy):
    """A package of one file, which announces a policy by an entry point."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[crtlib.policies]\n{policy}\n")


def test_an_installed_policy_that_was_taught_is_known_before_it_was_made(tmp_path, monkeypatch):
    """Fault: the first question loaded the package, and took its policy for one that learns
    nothing, so the labels that taught it might judge it."""
    code = (
        "from crtlib.screening import regex_policies\n"
        "from crtlib.screening.policy_registry import register_policy\n"
        "@register_policy('pupil', learned=True)\n"
        "def make(argument):\n    return regex_policies.none_policy\n"
    )
    install_package(tmp_path, "pupil", code, "pupil = pupil:make")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        policy_registry, "REGISTERED_MAKERS", dict(policy_registry.REGISTERED_MAKERS)
    )
    monkeypatch.setattr(policy_names, "REGISTERED_MAKERS", policy_registry.REGISTERED_MAKERS)
    assert policy_names.is_learned("pupil") and policy_names.is_learned("pupil")


@pytest.mark.parametrize("name", ["aBC", "a\u00e4", "a\u0663", "1a", "a-b"])
def test_a_name_of_a_policy_is_lower_case_letters_digits_and_underscores(name):
    with pytest.raises(ValueError, match="must be"):
        policy_registry.register_policy(name)


def test_an_installed_package_adds_a_policy_by_an_entry_point(tmp_path, monkeypatch):
    code = (
        "from crtlib.screening import regex_policies\n"
        "def nothing(argument):\n    return regex_policies.none_policy\n"
    )
    install_package(tmp_path, "guest", code, "nothing = guest:nothing")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata.entry_points(group=policy_names.POLICY_ENTRY_POINTS)
    assert "nothing" in policy_names.available_policies()
    assert policy_names.policy_by_name("nothing") is regex_policies.none_policy
    assert not policy_names.is_learned("nothing")


def test_a_policy_goes_to_another_process_and_stays_what_it_is(listed):
    point = Point("0", "u", "USR: I am Ada Lovelace 7", (Secret("name", 10, 22),), ((5, 24),))
    for one in (
        regex_policies.corpus_regex_policy(),
        regex_policies.oracle_policy,
        regex_policies.none_policy,
        regex_policies.everything_policy,
        policy_changes.with_misses(regex_policies.corpus_regex_policy(), 0.5, 0),
        cautious.cautious_policy(),
        listed("Ada"),
        policy_changes.union_policy(
            regex_policies.corpus_regex_policy(), regex_policies.everything_policy
        ),
    ):
        again = copy.deepcopy(one)
        assert again([point]) == one([point]) and again.name == one.name


def test_a_policy_that_reads_own_words_sees_no_speaker_in_any_unit():
    turns = (Turn("USR", "hi"), Turn("SYS", "what\nnow"), Turn("", "bye"))
    corpus = Corpus("c", (Dialogue("d", "u", turns),))
    seen = []

    def flag(points):
        seen.append([p.text for p in points])
        return [[Secret("x", 0, 1)] for _ in points]

    policy = Policy("first letters", flag, own_words=True, batched=True)
    for unit in data_points.POINT_UNITS:
        points = data_points.make_points(corpus, unit)
        labels = policy(points)
        assert seen.pop() == ["hi", "what\nnow", "bye"]
        pairs = zip(points, labels, strict=True)
        assert [p.text[s.start] for p, spans in pairs for s in spans] == ["h", "w", "b"]
    (long,) = data_points.make_points(corpus, "dialogue")
    redacted = redact(long, [Secret("x", 5, 7), Secret("y", 13, 17)])
    policy([redacted])
    assert seen.pop() == [MASK, f"{MASK}\nnow", "bye"]
    short = Policy("short", lambda points: [()], own_words=True, batched=True)
    with pytest.raises(ValueError, match="policy='short': 1 answers for 3 points"):
        short(data_points.make_points(corpus, "turn"))


def test_the_expressions_of_the_library_are_files_as_anybody_writes_them():
    point = Point("0", "u", "I am Ada Lovelace, call 408-971-0888 about 123-45678-9.")
    files = sorted(Path(regex_policies.__file__).with_name("expressions").glob("*.toml"))
    assert {file.stem for file in files} == {*regex_policies._EXPRESSION_FILES.values()}
    for file in files:  # each example matches whole, or the file is refused
        assert list(policy_names.policy_by_name(f"regex:{file}")([point]))
    ours = policy_names.policy_by_name("regex:customersim")([point])
    theirs = policy_names.policy_by_name(f"regex:{files[0]}")([point])
    assert [list(spans) for spans in ours] == [list(spans) for spans in theirs]
