"""The text of an HTML mail, as a reader sees it, by the standard library's parser.

>>> html_to_text("<style>p {}</style><p>My&nbsp;phone: <b>030</b></p><blockquote>Hi</blockquote>")
'My phone: 030\\n> Hi'
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from crtlib.text.jsonl import BadRow

MAX_HTML_LENGTH = 4 << 20
"""The most characters in an HTML mail that is read."""
MAX_DEPTH = 400
"""The depth of nesting up to which elements are tracked."""
_UNSEEN = frozenset({"head", "script", "style", "template", "title", "noscript", "svg"})
_LINES = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tr",
        "ul",
    ]
)
"""Elements that begin and end on lines of their own."""
_CELLS = frozenset({"td", "th"})
_EMPTY = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "track",
        "wbr",
    ]
)
"""Elements that are never closed."""
_QUOTES = re.compile(r"gmail_quote(?!_attribution)|yahoo_quoted|protonmail_quote|zmail_extra", re.I)
_HIDDEN = re.compile(r"display\s*:\s*none|mso-hide\s*:\s*all", re.I)
_SPACE = re.compile(r"[ \t\r\n\f\xa0]+")


class _TextOfHTML(HTMLParser):
    """Collects lines; those in a quotation begin with ``>``. ``open`` is the stack of open
    elements, each with its effect: 1, its content is not seen; 2, it is quoted; 0, neither."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line = ""
        self.open: list[tuple[str, int]] = []
        self.unseen = self.quoted = self.kept = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":  # closes an unclosed head
            self._close_to(0)
        if tag in _LINES or tag == "br":
            self.end_line()
        elif tag in _CELLS:
            self.line += " "
        if tag in _EMPTY or len(self.open) >= MAX_DEPTH:
            return
        given = {name: value or "" for name, value in attrs}
        effect = 0
        if tag in _UNSEEN or "hidden" in given or _HIDDEN.search(given.get("style", "")):
            effect = 1
        elif tag == "blockquote" or _QUOTES.search(given.get("class", "")):
            effect = 2
        if effect or tag in _LINES or tag in _CELLS or any(name == tag for name, _ in self.open):
            self.open.append((tag, effect))
            self.unseen += effect == 1
            self.quoted += effect == 2
            self.kept += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        place = next((k for k in range(len(self.open) - 1, -1, -1) if self.open[k][0] == tag), None)
        if tag in _LINES:
            self.end_line()
        if place is not None:
            self._close_to(place)

    def _close_to(self, place: int) -> None:
        for name, effect in self.open[place:]:
            self.unseen -= effect == 1
            self.quoted -= effect == 2
            self.kept -= name == "pre"
        del self.open[place:]

    def handle_data(self, data: str) -> None:
        if self.unseen:
            return
        if not self.kept:
            self.line += _SPACE.sub(" ", data)
            return
        first, *more = data.split("\n")
        self.line += first
        for line in more:
            self.end_line()
            self.line = line

    def end_line(self) -> None:
        """Keep the line, unless it is blank."""
        text = self.line if self.kept else _SPACE.sub(" ", self.line)
        if text.strip():
            self.lines.append("> " * bool(self.quoted) + text.strip())
        self.line = ""


def _without(html: str, begin: str, end: str) -> str:
    """HTML without everything between ``begin`` and ``end``, or up to the end of the text if
    ``end`` is missing; the parser would search for a missing one again and again."""
    pieces, last = [], 0
    while (start := html.find(begin, last)) >= 0:
        pieces.append(html[last:start])
        close = html.find(end, start + len(begin))
        last = len(html) if close < 0 else close + len(end)
    return "".join([*pieces, html[last:]])


def html_to_text(html: str) -> str:
    """The visible text of an HTML mail, with a line for each block; quoted lines begin with ``>``.

    Names of images and attachments, styles, scripts and hidden elements are not text. Raises
    ``BadRow`` for more than ``MAX_HTML_LENGTH`` characters.

    >>> html_to_text("Hi <img alt='logo.png'><br>you &amp; me<div hidden>track</div>")
    'Hi\\nyou & me'
    """
    if len(html) > MAX_HTML_LENGTH:
        raise BadRow(
            "too long", f"has more than {MAX_HTML_LENGTH >> 20} million characters of HTML"
        )
    parser = _TextOfHTML()
    for begin, end in (("<!--", "-->"), ("<![", ">"), ("<!", ">"), ("<?", ">")):
        html = _without(html, begin, end)
    *tags, rest = html.split(">")
    never_closed = ("<", "&lt;")
    tags = [t.replace(*never_closed) if t.count("<") > MAX_DEPTH else t for t in tags]
    parser.feed(">".join([*tags, rest.replace(*never_closed)]))
    parser.close()
    parser.end_line()
    return "\n".join(parser.lines)
