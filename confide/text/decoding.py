"""Decode text files, and say what is wrong with those that are not in the encoding expected.

>>> decoding_fault(b"gr\\xfcn".decode("utf-8", "surrogateescape"), "auto").says
'is not UTF-8 (byte 0xFC)'
"""

from __future__ import annotations

import codecs
import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from crtlib import files
from crtlib.arguments import argument, argument_error
from crtlib.checks import printable
from crtlib.options import OptionWouldHelp
from crtlib.text import encodings
from crtlib.text.jsonl import BadRow


def codec_of_mark(start: bytes) -> str:
    """The codec of a text that begins with these bytes: what its byte order mark says, or UTF-8."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


@contextlib.contextmanager
def open_decoded(path: Path, encoding: str, newline: str = "") -> Iterator[io.TextIOWrapper]:
    """Open a file as text, in ``encoding`` or, for "auto", as its byte order mark says, else in
    UTF-8. A byte that cannot be decoded becomes a lone surrogate, and reading goes on. ``newline``
    is that of ``open``."""
    with files.open_plain_or_gzip(path) as raw:
        start = raw.read(4)
        raw.seek(0)
        codec_name = codec_of_mark(start)
        if encoding != "auto":
            try:
                codec = codecs.lookup(encoding)
            except (LookupError, ValueError):
                codec = None
            if codec is None or not getattr(codec, "_is_text_encoding", True):  # such as base64
                says = f"{printable(encoding, quoted=True)} is not an encoding that Python knows"
                raise argument_error("encoding", says)
            codec_name = codec.name
        try:
            yield io.TextIOWrapper(raw, codec_name, errors="surrogateescape", newline=newline)
        except UnicodeError:  # idna and other codecs raise no UnicodeDecodeError
            raise OptionWouldHelp(
                f"{path.name}: is not {codec_name}; see {argument('encoding')}", "encoding"
            ) from None


def decoding_fault(text: str, encoding: str) -> BadRow | None:
    """What is wrong with a text that was decoded with "surrogateescape"; None: nothing."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        if 0x80 <= byte <= 0xFF:
            what = f"not {name_of_encoding(encoding)}"
            return BadRow(what, f"is {what} (byte 0x{byte:02X})", encoding=True)
        return BadRow("half a surrogate pair", "holds half a surrogate pair")
    return None


def name_of_encoding(encoding: str) -> str:
    """The name of the encoding in which a file is read, for messages."""
    return "UTF-8" if encoding == "auto" else encoding


def describe_encoding_remedy(path: Path, encoding: str) -> str:
    """Advice for a file that is not in the ``encoding`` in which it was read."""
    skip, other = argument("skip_bad", True), argument("encoding", "CODEC")
    if path.suffix.lower() == ".zip":
        return f"{skip} leaves out what is damaged"
    code = encodings.find_likely_code(path) if path.is_file() else None
    if code is None:
        others = "such as cp1252, cp932 or cp1251"
        return f"{other} reads it as another, {others}; {skip} leaves such rows out"
    if codecs.lookup(code).name == codecs.lookup(name_of_encoding(encoding)).name:
        return f"{skip} leaves out what is damaged"
    return f"it looks like {encodings.describe_code(code)}: {argument('encoding', code.lower())}"
