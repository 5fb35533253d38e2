"""A mail's text is read as its sender wrote it, or refused: never while it is still encoded."""

import base64

import pytest

from confide.text.mail import parse_mail, read_mail_files
from crtlib.text.jsonl import BadRow

HEAD = b"From: Ann <ann@x.org>\nMessage-ID: <1@x>\n"
SAID = "Anna Smith, PIN 4711, is who I am, thanks"
BASE64 = base64.b64encode(SAID.encode())
QUOTED = b"Anna S=\nmith, PIN =34711, is who =\nI am, thanks"


def read(headers, body):
    return parse_mail(HEAD + headers + b"\n" + body + b"\n", {})["text"]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("base64", BASE64),
        ("BASE64", b"\n".join([BASE64[:20], BASE64[20:]])),
        ("base64 (by our (old) gateway)", BASE64),
        ('"base64"', BASE64),
        ("base64;", BASE64),
        ("Quoted-Printable ", QUOTED),
        ("quoted-printable", QUOTED.replace(b"=\n", b"= \t\r\n")),
        ('"quoted-printable"', QUOTED),
        ("(x) 7BIT", SAID.encode()),
        ("", SAID.encode()),
    ],
)
def test_a_transfer_encoding_is_undone_however_it_is_written(encoding, body):
    """Fault: what Python could not undo was stored as it came in, and no search finds a secret."""
    try:
        text = read(f"Content-Transfer-Encoding: {encoding}\n".encode(), body)
    except BadRow as bad:
        text = str(bad)
    assert text == SAID


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["base64"], BASE64[: 4 * 5 + 1]),
        (["base64"], BASE64 + b"\n-- \nA list, http://x.org"),
        (["base64"], b"Anna, Anna"),
        (["base-64"], BASE64),
        (["x-uuencode"], b"begin 644 a\n#0V%T\n`\nend"),
        (["7bit", "base64"], BASE64),
    ],
)
def test_what_cannot_be_undone_is_refused(headers, body):
    lines = "".join(f"Content-Transfer-Encoding: {one}\n" for one in headers).encode()
    with pytest.raises(BadRow, match="has a text that is not in its transfer encoding") as error:
        read(lines, body)
    assert error.value.reason == "not its transfer encoding"


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("iso-8859-1", b"O\x92Neill \x84Anna\x93", "O’Neill „Anna“"),
        ("us-ascii", b"O\x92Neill", "O’Neill"),
        ("us-ascii", "Müller".encode(), "Müller"),
        ("us-ascii (Plain text)", b"Anna", "Anna"),
        ("iso-8859-15", b"M\xfcller \xa4", "Müller €"),
        ("iso-8859-9", b"\x93Ay\xfee\x94", "“Ayşe”"),
        ("gb2312", "陈镕".encode("gbk"), "陈镕"),
        ("shift_jis", "髙橋①".encode("cp932"), "髙橋①"),
        ("iso-2022-jp", "山田".encode("iso2022_jp"), "山田"),
        ("hz-gb-2312", "陈".encode("hz"), "陈"),
        ("utf-7", b"Anna +AFM-mith", "Anna Smith"),
        ("no-such", "Müller".encode(), "Müller"),
    ],
)
def test_a_charset_is_read_as_every_mail_program_reads_it(charset, body, text):
    """Fault: U+0092 is seen by nobody, so a list of names did not find this O’Neill."""
    assert read(f"Content-Type: text/plain; charset={charset}\n".encode(), body) == text


@pytest.mark.parametrize("charset", ["us-ascii", "utf-8", "iso-2022-cn", "no-such"])
def test_characters_that_are_still_escaped_are_refused(charset):
    """Their bytes are all ASCII, so every charset of this kind would take them as they are."""
    for body in ("山田".encode("iso2022_jp"), "陈明".encode("hz")):
        with pytest.raises(BadRow, match="not in its charset"):
            read(f"Content-Type: text/plain; charset={charset}\n".encode(), body)
    assert read(b"", b"\x1b[1mA\x1b(B \x1b[m~{x}") == "\x1b[1mA\x1b(B \x1b[m~{x}"


def test_a_mail_that_is_too_long_is_refused_whole(tmp_path, monkeypatch):
    """Fault: a file was cut at the limit, and the part of it that was left was read."""
    monkeypatch.setattr("crtlib.files.MAX_LINE_LENGTH", 1 << 12)
    for size, reason in ((1 << 11, None), (1 << 12, "too long")):
        (tmp_path / "a.eml").write_bytes(HEAD + b"\nAnna " + b"x" * size)
        ((_, row),) = read_mail_files([tmp_path / "a.eml"])
        assert getattr(row, "reason", None) == reason


FLOWED = b"Content-Type: text/plain; charset=utf-8; format=flowed"


@pytest.mark.parametrize(
    ("more", "body", "text"),
    [
        (b"; delsp=yes", "お客様は山田 \n太郎です", "お客様は山田太郎です"),
        (b"; DelSp=Yes (x)", "My PIN is 47 \r\n11\r\n", "My PIN is 4711"),
        (b"", "My name is Anna \nSmith \nof Ulm.\nBye", "My name is Anna Smith of Ulm.\nBye"),
        (b"", " From Ulm \n  with love", "From Ulm  with love"),
        (b"", "Yes. \n-- \nAnna \nSmith", "Yes. \n-- \nAnna Smith"),
        (b"", "On Monday Bob wrote:\n> Shall \n> we?\n>> no \nYes, \nwe do", "Yes, we do"),
    ],
)
def test_lines_that_a_program_broke_are_whole_again(more, body, text):
    """Fault: a name that stood on two lines was found by no list."""
    assert read(FLOWED + more + b"\n", body.encode()) == text
    kept = read(b"Content-Type: text/plain; charset=utf-8\n", b"a \nb")
    assert kept == "a \nb"
