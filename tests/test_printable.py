"""What came from outside is one line of a message, and moves nothing beside it."""

import sys
import unicodedata

import pytest

from crtlib.checks import check_plain_name, plain_name, printable

HOSTILE = "\x1b[2K\ras it was signed, by key KEY\x1b[8m\u2028\u202e\u200b\x9b2K\n\udcff\x00\x7f"


def test_no_character_that_a_terminal_obeys_is_left():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = printable(every, len(every))
    assert {unicodedata.category(c)[0] for c in shown} == set("LMNPSZ") and shown.isprintable()
    assert "Grüße 日本 😀" in printable("Grüße 日本 😀")


@pytest.mark.parametrize(
    "value",
    [HOSTILE, [HOSTILE], {"a": HOSTILE}, 10**5000, "x" * 10**6],
    ids=["text", "list", "object", "number", "long"],
)
def test_a_value_is_one_short_line_of_utf_8(value):
    shown = printable(value)
    assert shown.isprintable() and len(shown.encode()) < 2000


@pytest.mark.parametrize(
    "name",
    [HOSTILE, "m. **Nothing can leak.** It", "harmless: nothing can leak", "a\nb", "a  b", "a ",
     " a", ".", "", "`a`", "a, b", "<b>a</b>", "a\u202eb", "a" * 65, "“a”", "a; b", "(a)", "-a"],
)  # fmt: skip
def test_a_name_in_a_sentence_says_nothing(name):
    with pytest.raises(ValueError, match=r"^name=.*must be words of letters"):
        check_plain_name("name", name)
    check_plain_name("name", plain_name(name))


@pytest.mark.parametrize("name", ["model-1.2", "org/model of May", "a_b+c=3@d", "Größe", "list:a"])
def test_a_usual_name_stays(name):
    check_plain_name("name", name)
    assert plain_name(name) == name


def test_an_error_of_a_command_is_one_line(run, tmp_path):
    code, _, err = run("account", "--odometer", f"{tmp_path}/{HOSTILE[:-2]}")
    assert code == 2 and err.rstrip("\n").isprintable() and "\\x1b[2K" in err


def test_a_panic_of_rust_code_is_one_line(run, monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(*args, **options):
        raise PanicException("byte index 3 is not a char boundary: it is inside 'Ada Lovelace'")

    monkeypatch.setattr("crtlib.models.generation.generate_text", panic)
    code, _, err = run("generate", ".", "--prompt", "hello")
    assert code == 2 and err.count("\n") == 1 and "Lovelace" not in err
