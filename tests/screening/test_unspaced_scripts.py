"""A value is looked for in scripts that write no spaces between words, too."""

import re

import pytest

from crtlib.screening.policy import Policy
from crtlib.screening.rates import RateCounter
from crtlib.screening.regex_policies import everything_policy
from crtlib.screening.value_lists import ListedValue, ValueFinder, find_as_written
from crtlib.text.records import Point, Secret

SAID = {  # what the policy finds, the value, and where it passes the value over
    "a number": ("番号は{}です", "48213", "はい、{}番です"),
    "a short number": ("部屋は{}です", "12", "{}号室です"),
    "a name of two signs": ("我叫{}", "王明", "我是{}啊"),
    "a name": ("我叫{}", "王小明", "请找{}吧"),
    "Latin letters": ("私は{}です", "Ada", "名前は{}です"),
    "Korean": ("저는 {}입니다", "김철", "네 {}입니다"),
    "Thai": ("ผมชื่อ{}ครับ", "สมชาย", "เรียก{}ครับ"),
    "an Arabic prefix": ("اسمي {}", "محمد", "أنا و{} معا"),
    "a Hebrew prefix": ("שמי {}", "דוד", "אני ו{} יחד"),
    "letters of Hangul alone": ("번호는 {}.", "48213", "네 {}ㅋㅋ"),
    "a short number before such": ("방은 {}.", "12", "네 {}ㅎㅎ"),
    "a letter that nobody sees": ("I am {}.", "Ada", "so \u3164{}\u3164"),
    "a circled number": ("I am {}.", "Ada", "\u2460{} \u2461Bob"),
    "the sign of a number": ("DNI {}.", "12345678", "DNI N\u00ba{}"),
    "the number of a footnote": ("I am {}.", "Al", "so said {}\u00b2"),
    "a name that begins with a sign": ("I am {}.", "@jo", "to x{}"),
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_a_value_beside_a_script_without_spaces_is_found(said):
    """Each value stands once more, beside a letter, where the policy does not find it: all leave a
    trace. Fault: that place was not looked at, so "trace at most 17 of 100"."""
    found, value, passed_over = said
    text = f"{found.format(value)}\n{passed_over.format(value)}"
    before, after = (re.escape(part) for part in found.split("{}"))
    pattern = re.compile(f"(?<={before}){re.escape(value)}{after}")

    def flag(points):
        return [
            [Secret("id", m.start(), m.start() + len(value)) for m in pattern.finditer(p.text)]
            for p in points
        ]

    start = text.index(value)
    point = Point("d", "u", text, (Secret("id", start, start + len(value)),), dialogue_id="d")
    counter = RateCounter(Policy("first", flag), everything_policy, find_values_in_whole_point=True)
    (judged,) = counter.add([point])
    assert (judged.miss, judged.trace) == (True, True)


def test_a_number_of_any_script_ends_with_its_digits():
    """Fault: in an Arabic telephone number a shorter one of a list was masked, the rest left."""
    said = "رقم هاتفي ٠٥٠١٢٣٤٥٦٧"
    for number in ("١٢٣٤٥٦", "١٢", "123456"):
        assert not list(find_as_written(number, said))
    for number in ("١٢٣٤٥٦", "123456"):
        assert ValueFinder("list", [ListedValue(number, "own", 0)])(said)[0] == [], number
    assert len(list(find_as_written("٠٥٠١٢٣٤٥٦٧", said))) == 1
    assert len(ValueFinder("list", [ListedValue("0501234567", "own", 0)])(said)[0]) == 1
