"""Notice text that a program left in HTML, quoted-printable or base64: no search finds its secrets.

>>> looks_encoded("O&#39;Neill, born&nbsp;1990"), looks_encoded("My name is An=\\nna")
(True, True)
>>> looks_encoded("QW5uYSBTbWl0aCBpcyBteSBuYW1lLCBhbmQgbXkgUElOIGlzIDQ3MTE=")
True
>>> looks_encoded("2 < 3 & 4 > 1, see https://x.org/?a=b&copy=2"), looks_encoded("k=v; x = y")
(False, False)
"""

from __future__ import annotations

import base64
import contextlib
import html.entities
import re

_ENTITY = re.compile(r"&(?:#\d{2,7};|#x[0-9a-f]{2,6};|([a-z][a-z0-9]{1,31};))", re.I)
_TAG = re.compile(
    r"</(?:a|b|body|div|em|font|h[1-6]|html|i|li|p|span|strong|table|td|tr|u|ul)>"
    r"|<(?:br|p|div)(?:\s[^<>\n]{0,400})?/?>",
    re.I,
)
_QUOTED_PRINTABLE = re.compile(
    r"\w=\r?\n(?=\S)|=(?:20|3D)(?=[\s=\w])|=[CD][0-9A-F]=[89AB][0-9A-F]"
    r"|=E[0-9A-F]=[89AB][0-9A-F]=\r?\n?[89AB][0-9A-F]"
)
_BASE64_LINE = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/]{40,}(?![\w.-])")
_LEAST_READABLE = 0.9
"""The least share of what base64 holds that must be text: what else has its letters, such as a key,
holds none."""


def looks_encoded(text: str) -> bool:
    """Whether some of a message still looks like HTML, quoted-printable or base64."""
    return (
        any(not match[1] or match[1] in html.entities.html5 for match in _ENTITY.finditer(text))
        or bool(_TAG.search(text))
        or bool(_QUOTED_PRINTABLE.search(text))
        or any(_holds_text(match[0]) for match in _BASE64_LINE.finditer(text))
    )


def _holds_text(line: str) -> bool:
    """Whether a line of base64 holds text."""
    with contextlib.suppress(ValueError):
        held = base64.b64decode(line[: len(line) // 4 * 4], validate=True).decode("utf-8", "ignore")
        readable = sum(char.isprintable() or char.isspace() for char in held)
        return len(held) > len(line) / 4 and readable >= _LEAST_READABLE * len(held)
    return False
