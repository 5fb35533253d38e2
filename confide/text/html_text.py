"""The text of an HTML mail, as a reader sees it, by the standard library's parser.

>>> html_to_text("<style>p {}</style><p>My&nbsp;phone: <b>030</b></p><blockquote>Hi</blockquote>")
'My phone: 030\\n> Hi'
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

from crtlib.text.jsonl import BadRow

MAX_HTML_LENGTH = 4 << 20
"""The most characters in an HTML mail that is read."""
MAX_DEPTH = 400
"""The depth of nesting up to which elements are tracked."""
_UNSEEN = frozenset(
    ["head", "script", "style", "template", "title", "noscript", "svg", "datalist", "rp", "rt"]
)
"""Elements whose content is not read. How a word is pronounced (``rt``) stands above it, and would
tear it apart if it stood within."""
_LINES = frozenset(
    re.findall(
        r"\w+",
        """
        address article aside blockquote body caption center dd details dialog dir div
        dl dt fieldset figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 header
        hgroup hr html legend li listing main menu nav ol optgroup option p plaintext
        pre search section summary table tbody tfoot thead tr ul xmp
        """,
    )
)
"""Elements that begin and end on lines of their own, as the HTML standard displays them."""
_BOXES = frozenset(
    re.findall(
        r"\w+",
        """
        audio button canvas embed iframe img input marquee meter object progress select
        td textarea th video
        """,
    )
)
"""Elements that stand apart from the text beside them, on its line."""
_LINE, _BOX, _INLINE = "line", "box", ""
_LAYOUT_OF_DISPLAY = {
    **dict.fromkeys(["inline", "contents", "ruby", "none"], _INLINE),
    **dict.fromkeys(["table-cell", "inline-block", "inline-flex", "inline-grid"], _BOX),
    "inline-table": _BOX,
}
"""How an element stands that has this CSS property ``display``; with any other it has lines."""
_AS_BEFORE = frozenset({"inherit", "initial", "revert", "revert-layer", "unset", "var"})
"""Values of ``display`` that do not say how an element stands."""
_DISPLAY = re.compile(r"(?<![\w-])display\s*:\s*([\w-]+)", re.I)
_OUT_OF_LINE = re.compile(
    r"(?<![\w-])(?:float\s*:\s*(?:left|right|inline-)|position\s*:\s*(?:absolute|fixed))", re.I
)
_LAYS_OUT = re.compile(r"(?:inline-)?(?:flex|grid)|-webkit-(?:inline-)?box", re.I)
"""The values of ``display`` with which each child of an element is a box of its own."""
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


class _OpenElement(NamedTuple):
    """An element whose end has not been read yet."""

    tag: str
    effect: int
    """1: its content is not seen; 2: it is quoted; 0: neither."""
    layout: str
    children_are_boxes: bool


class _TextOfHTML(HTMLParser):
    """Collects lines; those in a quotation begin with ``>``. ``open`` is the stack of open
    elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.line = ""
        self.open: list[_OpenElement] = []
        self.unseen = self.quoted = self.kept = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":  # closes an unclosed head
            self._close_to(0)
        given = {name: value or "" for name, value in attrs}
        style = given.get("style", "")
        display = _DISPLAY.findall(style)[-1:]
        is_child_box = bool(self.open) and self.open[-1].children_are_boxes
        layout = _layout_of(tag, style, "".join(display).lower()) or _BOX * is_child_box
        self._set_apart(_LINE if tag == "br" else layout)
        if tag in _EMPTY or len(self.open) >= MAX_DEPTH:
            return
        effect = 0
        if tag in _UNSEEN or "hidden" in given or _HIDDEN.search(style):
            effect = 1
        elif tag == "blockquote" or _QUOTES.search(given.get("class", "")):
            effect = 2
        lays_out = bool(display and _LAYS_OUT.fullmatch(display[0]))
        nested = any(element.tag == tag or element.children_are_boxes for element in self.open)
        if effect or layout or lays_out or nested or tag in _LINES:
            self.open.append(_OpenElement(tag, effect, layout, lays_out))
            self.unseen += effect == 1
            self.quoted += effect == 2
            self.kept += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        places = range(len(self.open) - 1, -1, -1)
        place = next((k for k in places if self.open[k].tag == tag), None)
        if place is not None:
            self._close_to(place)
        elif tag in _LINES:
            self.end_line()

    def _close_to(self, place: int) -> None:
        while len(self.open) > place:
            self._set_apart(self.open[-1].layout)
            element = self.open.pop()
            self.unseen -= element.effect == 1
            self.quoted -= element.effect == 2
            self.kept -= element.tag == "pre"

    def _set_apart(self, layout: str) -> None:
        """Keep what follows apart from what was read, as the layout of an element does."""
        if layout == _LINE:
            self.end_line()
        elif layout == _BOX:
            self.line += " "

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
            quotation = "> " if self.quoted else ""
            self.lines.append(quotation + text.strip())
        self.line = ""


def _layout_of(tag: str, style: str, display: str) -> str:
    """How an element stands beside the text around it, by its name or its own style."""
    if _OUT_OF_LINE.search(style):
        return _LINE
    if display and display not in _AS_BEFORE:
        return _LAYOUT_OF_DISPLAY.get(display, _LINE)
    return _LINE if tag in _LINES else _BOX if tag in _BOXES else _INLINE


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

    A block is one by its name or by its own ``style``; a style sheet is not read.

    Names of images and attachments, styles, scripts and hidden elements are not text. Raises
    ``BadRow`` for more than ``MAX_HTML_LENGTH`` characters.

    >>> html_to_text("Hi <img alt='logo.png'><br>you &amp; me<div hidden>track</div>")
    'Hi\\nyou & me'

    Guarantee:
        Words that stand apart for a reader stay apart. Test:
        ``tests/text/test_programs.py::test_what_stands_apart_in_html_stays_apart``.
    """
    if len(html) > MAX_HTML_LENGTH:
        raise BadRow(
            "too long", f"has more than {MAX_HTML_LENGTH >> 20} million characters of HTML"
        )
    parser = _TextOfHTML()
    for begin, end in (("<!--", "-->"), ("<![", ">"), ("<!", ">"), ("<?", ">")):
        html = _without(html, begin, end)
    *tags, after_last_tag = html.split(">")
    never_closed = ("<", "&lt;")
    tags = [tag.replace(*never_closed) if tag.count("<") > MAX_DEPTH else tag for tag in tags]
    parser.feed(">".join([*tags, after_last_tag.replace(*never_closed)]))
    parser.close()
    parser.end_line()
    return "\n".join(parser.lines)
