"""Find the encoding of a text file, and the command that rewrites it in UTF-8.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "talk.jsonl"
>>> _ = path.write_bytes("注文はまだですか。".encode("cp932"))
>>> find_encoding(path), find_likely_code(path)
('auto', 'CP932')
>>> print(describe_recoding(path).replace(str(path.parent), "."))
it looks like Japanese (Shift-JIS): iconv -f CP932 -t UTF-8 ./talk.jsonl > ./talk.utf8.jsonl
"""

from __future__ import annotations

import codecs
import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import regex

from crtlib import files

_BLOCK_BYTES = 1 << 20
_ASCII_BYTES = bytes(range(128))
_ASCII_WORD = re.compile(rb"[A-Za-z]+")
_UTF8_CHARACTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}")
_NOT_WESTERN = re.compile(
    rb"[\x81\x8d\x8f\x90\x9d\xff]|[A-Za-z][\x80-\x8b\x8e\x93-\x96\x98\x99\x9b\x9f-\xa9\xab\xac"
    rb"\xae-\xb6\xb8\xb9\xbb-\xbf](?=[a-z])"
)
"""Bytes that are no character in cp1252, or that occur within words of no Western language. A file
with more than a few of them is in another code."""
_CHINESE = (
    "的一是不了人我在有他这這中大来來上国國个個到说說们們为為子和你地出道也时時年得就那要下以生会會自着"
    "去之过過家学學对對可里小么麼心多天而能好都然没沒于起还還发發成事只作当當想看请請问問单單号號您"
)
_KANA = "".join(map(chr, (*range(0x3041, 0x3094), *range(0x30A1, 0x30F7)))) + "ー。、"
_RUSSIAN = "оеаинтсрвл"
_WESTERN = (
    *("äöüß", "éèêëàâçîïôùûœæ", "áéíóúñü", "àèéìòù", "áâãàçéêíóôõúü", "éëïöüè", "åäö", "åæøéò"),
    "áéíóúýðþæö",
)
"""The letters beyond ASCII of German, French, Spanish, Italian, Portuguese, Dutch, Swedish and
Finnish, Norwegian and Danish, Icelandic."""
_CENTRAL_EUROPEAN = (
    *("ąćęłńóśźż", "áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "áéíóöőúüű", "ăâîşţșț", "čćđšž"),
)
"""The letters beyond ASCII of Polish, Czech, Slovak, Hungarian, Romanian, Croatian and Slovene."""
LANGUAGES_OF_CODES = {
    "CP1252": ("Western (Windows)", _WESTERN),
    "CP850": ("Western (DOS)", _WESTERN),
    "CP1250": ("Central European (Windows)", _CENTRAL_EUROPEAN),
    "ISO-8859-2": ("Central European (ISO)", _CENTRAL_EUROPEAN),
    "CP1254": ("Turkish", ("çğıöşüâîû",)),
    "CP932": ("Japanese (Shift-JIS)", (_KANA,)),
    "EUC-JP": ("Japanese (EUC)", (_KANA,)),
    "GB18030": ("Chinese (GB)", (_CHINESE,)),
    "BIG5": ("Chinese (Big5)", (_CHINESE,)),
    "CP949": ("Korean", ("이다는을를가에의한하고지도로사기리은어나자시아니인해서요습문세주",)),
    "CP1251": ("Russian (Windows)", (_RUSSIAN,)),
    "KOI8-R": ("Russian (KOI8)", (_RUSSIAN,)),
    "CP866": ("Russian (DOS)", (_RUSSIAN,)),
    "CP1253": ("Greek", ("αοιετσνηυρςάίό",)),
    "CP1255": ("Hebrew", ("יוהלאמרתבש",)),
    "CP1256": ("Arabic", ("اليمنوترةبعد",)),
    "CP874": ("Thai", ("านรอกเงมยลวดท่้ี",)),
}
"""The codes that a text may be in, as Python and iconv name them: what people call the code, and
for each of its languages the commonest characters beyond ASCII, in small letters. Of two codes that
fit equally well, the first is taken."""
LATIN_CODES = frozenset({"CP1250", "ISO-8859-2", "CP1252", "CP850", "CP1254"})
"""The codes whose languages write most letters in ASCII."""
_SIGNS = "‘“”„–—…•€£¥¢°§«»¿¡©®™´·×÷±½¼¾²³µ†ªº"
_MARKS = re.compile(rf"(?<![^\W\d_])[’{_SIGNS}]|[{_SIGNS}](?![^\W\d_])|(?<=\w)’")
"""Typographic marks, which say nothing about the language; within a word, only an apostrophe."""
_CAPITAL_WITHIN_A_WORD = regex.compile(r"(?<=\p{Ll})(?![A-Z])\p{Lu}")
"""A capital beyond ASCII within a word, which no language writes."""
MOST_ACCENTS = 1 / 2
"""The most bytes beyond ASCII for each ASCII letter in a text of a Latin language."""
LEAST_COMMON_SHARE = 0.2
"""The least share of common characters with which a text looks like one of a language: of Chinese,
a third are among those above."""
LEAST_LATIN_SHARE = 0.75
"""The same for the Latin codes, since all letters of their languages are above."""


def find_encoding(path: Path) -> str:
    """The encoding of a text file: "auto" for UTF-8 and where a byte order mark states it, UTF-16
    if most of every second byte of its first line and no other is zero, and cp1252 if that makes
    words of it.

    It is also "auto" where part of the file is UTF-8 and where nothing fits: reading then reports
    what is not UTF-8, row by row. A file that is not UTF-8 is read twice, in bounded memory.
    """
    with files.open_plain_or_gzip(path) as file:
        start = file.read(4096)
        first_line = start.split(b"\n")[0]
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "auto"
        if b"\0" in start:
            halves = [first_line[k::2].count(0) for k in (0, 1)]
            wide = max(halves) > len(first_line) / 4 and not min(halves)
            return f"utf-16-{'be' if halves[0] else 'le'}" if wide else "auto"
    if _is_written_in(path, "utf-8"):
        return "auto"
    high = letters = odd = 0
    with files.open_plain_or_gzip(path) as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            high += len(block.translate(None, _ASCII_BYTES))
            letters += sum(map(block.count, (b"a", b"e", b"i", b"n", b"o", b"r", b"s", b"t")))
            odd += sum(len(look.findall(block)) for look in (_NOT_WESTERN, _UTF8_CHARACTER))
    western = high <= letters and odd <= high / 50 and find_likely_code(path) == "CP1252"
    return "cp1252" if western else "auto"


def _is_written_in(path: Path, code: str) -> bool:
    """Whether all of a file is text in a code, found in bounded memory."""
    decoder = codecs.getincrementaldecoder(code)()
    with contextlib.suppress(UnicodeDecodeError), files.open_plain_or_gzip(path) as file:
        for block in iter(lambda: file.read(_BLOCK_BYTES), b""):
            decoder.decode(block)
        decoder.decode(b"", True)
        return True
    return False


def find_likely_code(path: Path) -> str | None:
    """The code that a file which is not UTF-8 looks like; None where nothing fits.

    It is one in which all of the file can be read and the characters are those of a language
    (:data:`LANGUAGES_OF_CODES`); UTF-16 or UTF-32 if a byte order mark or zero bytes show it; and
    UTF-8 if most of the file is, so that some bytes are damaged. It is a guess, shown to people;
    :func:`find_encoding` uses it only to confirm cp1252."""
    with files.open_plain_or_gzip(path) as file:
        start = file.read(_BLOCK_BYTES)
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if b"\0" in start:
        return {"utf-16-le": "UTF-16LE", "utf-16-be": "UTF-16BE"}.get(find_encoding(path))
    high = len(start.translate(None, _ASCII_BYTES))
    letters = sum(len(word) for word in _ASCII_WORD.findall(start))
    if 2 * sum(map(len, _UTF8_CHARACTER.findall(start))) > high:
        return "UTF-8"
    shares = {
        code: _share_of_common_characters(start, code, languages)
        for code, (_, languages) in LANGUAGES_OF_CODES.items()
        if code not in LATIN_CODES or high <= MOST_ACCENTS * letters
    }
    enough = {
        code: share
        for code, share in shares.items()
        if share >= (LEAST_LATIN_SHARE if code in LATIN_CODES else LEAST_COMMON_SHARE)
    }
    likely = max(enough, key=lambda code: enough[code], default=None)
    return likely if likely and _is_written_in(path, likely) else None


def _share_of_common_characters(start: bytes, code: str, languages: Sequence[str]) -> float:
    """The share of the characters beyond ASCII that are common ones: the mean of the share for the
    best of ``languages`` and the share for all of them, since a text may mix some. It is 0 for text
    that is not in the code, and 1 where there are only marks."""
    try:
        text = codecs.getincrementaldecoder(code)().decode(start)
    except UnicodeDecodeError:
        return 0.0
    text = _CAPITAL_WITHIN_A_WORD.sub("\N{REPLACEMENT CHARACTER}", _MARKS.sub("", text)).lower()
    beyond = Counter(c for c in text if not c.isascii())
    if not beyond:
        return 1.0
    of_one = max(sum(beyond[c] for c in set(common)) for common in languages)
    of_all = sum(beyond[c] for c in set("".join(languages)))
    return (of_one + of_all) / (2 * beyond.total())


def describe_code(code: str) -> str:
    """What people call a code."""
    return LANGUAGES_OF_CODES[code][0] if code in LANGUAGES_OF_CODES else code


def describe_recoding(path: Path) -> str:
    """What a file that is not UTF-8 looks like, and the command that rewrites it in UTF-8."""
    code = find_likely_code(path)
    stem, *ends = path.name.removesuffix(".gz").rsplit(".", 1)
    source, target = (
        shlex.quote(str(place)) for place in (path, path.with_name(".".join([stem, "utf8", *ends])))
    )
    packed = path.suffix == ".gz"
    words = ["iconv", "-f", code or "CODE", "-t UTF-8", *([] if packed else [source]), ">", target]
    if code == "UTF-8":
        words[1:1] = ["-c"]
    command = " ".join([*([f"gzip -dc {source} |"] if packed else []), *words])
    if code == "UTF-8":
        return f"most of it is, and this leaves the other bytes out: {command}"
    if code:
        return f"it looks like {describe_code(code)}: {command}"
    return f"put its encoding for CODE ('iconv -l' lists them): {command}"
