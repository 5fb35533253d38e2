"""Strip what a mail quotes, since somebody else wrote it before.

>>> strip_quotes("Danke.\\n\\n-----Ursprüngliche Nachricht-----\\nVon: Shop\\nIhr Paket kommt.")
('Danke.', 3)
>>> looks_quoted("I agree.\\nFrom: Bob <bob@x.org>\\nwho knows"), looks_quoted("From: Berlin")
(True, False)
"""

from __future__ import annotations

import re
import tomllib
from importlib import resources

from crtlib.text.package_data import read_package_file
from crtlib.text.writing import unify_writing

_TABLE = tomllib.loads(
    read_package_file("replies.toml", resources.files("confide.text") / "templates")
)
_ANY_OF = {
    name: "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    for name, words in {**_TABLE, **_TABLE["header"]}.items()
}
"""For each part of the table, a pattern that matches any of its words, longest first."""
_WROTE = re.compile(rf"(?<!\w)(?:{_ANY_OF['wrote']})(?!\w)", re.I)
_ENDS_IN_VERB = re.compile(rf"(?<!\w)(?:{_ANY_OF['wrote']})$", re.I)
_ORIGINAL_LINE = re.compile(rf"[-_—–]{{2,}}\s?(?:{_ANY_OF['original']})\s?[-_—–]{{2,}}", re.I)
_BEGIN_LINE = re.compile(rf"(?:{_ANY_OF['begin']})\s?:?", re.I)
_HEADER_LINES = {
    part: re.compile(rf"[*_]{{0,2}}(?:{_ANY_OF[part]})[*_]{{0,2}}\s?[:：].*", re.I)
    for part in _TABLE["header"]
}
_ADDRESS = re.compile(r"[^\s<>@]{1,64}@[^\s<>@]{1,255}")
_DAY = re.compile(r"(?<!\d)(?:(?:19|20)\d\d|\d{1,2}[./-]\d{1,2}[./-]\d\d)(?!\d)")
_HOUR = re.compile(r"(?<!\d)\d{1,2}[:.h]\d\d(?!\d)")
_ENDS_IN_MAILBOX = re.compile(r"<[^<>]{1,320}@[^<>]{1,320}>\s?[:：]$")
_MARK = re.compile(r"\s{0,3}>(?!\s?[:：]\s*$)")
"""The start of a quoted line; not ">:", the end of a mailbox that a program broke across lines."""
_LINE_BREAK = re.compile("\n|\r(?!\n)|[\v\f\x85\u2028\u2029]")
"""The end of a line, in the mail of any program: a word processor breaks lines at ``\\v``."""
MAX_ANNOUNCEMENT_LENGTH = 400
"""The most characters in an announcement of a quotation, which has up to three lines."""
HEADER_LINES_LOOKED_AT = 8
"""The number of lines examined after the first line of a header."""


def strip_quotes(text: str) -> tuple[str, int]:
    """A mail's own lines, and the number of lines that are quoted.

    Lines that begin with ``>`` are left out, with the lines that announce them. So is everything
    from a line on that says that another mail begins: "Original Message" between dashes, the header
    of the other mail (who, when, to whom or about what), or who wrote what follows and when, in the
    languages of ``replies.toml``. Marks that nobody sees, as those of direction that programs write
    before a quotation in Hebrew or Arabic, do not hide a quoted line; the mail's own lines keep
    theirs.

    >>> strip_quotes("I agree.\\n\\nOn Monday, Bob wrote:\\n> Shall we?\\nAnn")
    ('I agree.\\n\\nAnn', 2)
    >>> strip_quotes("Ja.\\n\\nAm 5. Feb. 2026 um 17:58 schrieb Bob\\n<bob@x.org>:\\n\\nKommst du?")
    ('Ja.', 4)
    """
    kept_lines: list[str] = []
    own_lines = _LINE_BREAK.split(text)
    lines = [unify_writing(line) for line in own_lines]
    quoted = place = 0
    while place < len(lines):
        if _begins_another_mail(lines, place):
            quoted += len(lines) - place
            break
        if _MARK.match(lines[place]):
            quoted, place = quoted + 1, place + 1
            continue
        count = _count_announcing(lines, place)
        follows = next(filter(str.strip, lines[place + count :]), "") if count else ""
        if count and _MARK.match(follows):
            quoted, place = quoted + count, place + count
        elif count and _says_when(" ".join(lines[place : place + count])):
            quoted += len(lines) - place
            break
        else:
            kept_lines.append(own_lines[place])
            place += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept_lines)).strip(), quoted


def looks_quoted(text: str) -> bool:
    """Whether some line still looks as if another mail followed: a "From" line with an address, an
    "Original Message" line, or a line that says who wrote what follows."""
    lines = _LINE_BREAK.split(text)
    if len(lines) == 1 or not any(sign in text for sign in (":", "：", "--")):
        return False
    for line in map(str.strip, lines):
        if len(line) <= MAX_ANNOUNCEMENT_LENGTH and (
            (_HEADER_LINES["from"].match(line) and _ADDRESS.search(line))
            or _announces(line)
            or _ORIGINAL_LINE.match(line)
        ):
            return True
    return False


def _ends_announced(line: str) -> bool:
    """Whether a line ends like one that announces a quotation."""
    return line.endswith((":", "：")) or (line.startswith("--") and line.endswith("--"))


def _announces(text: str) -> bool:
    """Whether a text says who wrote what follows: by a verb, or by a date and a mailbox at its end.
    Without a colon or dashes at its end it must have everything: the day, the hour, the address,
    and the verb at its end."""
    if len(text) > MAX_ANNOUNCEMENT_LENGTH:
        return False
    if not _ends_announced(text):
        return bool(_ENDS_IN_VERB.search(text)) and _count_parts_of_when(text) == 3
    return bool(_WROTE.search(text) or (_ENDS_IN_MAILBOX.search(text) and _says_when(text)))


def _says_when(text: str) -> bool:
    """Whether a text has at least two of a day, an hour and an address, which programs write but
    people seldom do."""
    return _count_parts_of_when(text) > 1


def _count_parts_of_when(text: str) -> int:
    return sum(bool(pattern.search(text)) for pattern in (_DAY, _HOUR, _ADDRESS))


def _count_announcing(lines: list[str], place: int) -> int:
    """How many lines from here on, up to three, say who wrote what follows; 0 if none do. If there
    are several, the first must have a digit, and together they must have two of day, hour and
    address (before a quoted line an address is enough). The later lines must not announce it on
    their own, unless the first one ends in a comma."""
    texts = [line.strip() for line in lines[place : place + 3]]
    for count in range(1, 1 + len(texts)):
        if not texts[count - 1] or _MARK.match(texts[count - 1]):
            return 0
        if not _announces(" ".join(texts[:count])):
            continue
        if count == 1:
            return 1
        later_lines = " ".join(texts[1:count])
        after = lines[place + count : place + count + 2]
        before_quotation = any(map(_MARK.match, after))
        parts_needed = 1 if before_quotation and _ADDRESS.search(later_lines) else 2
        whole = _count_parts_of_when(" ".join(texts[:count])) >= parts_needed
        alone = _announces(later_lines) and _says_when(later_lines) and not texts[0].endswith(",")
        return count if re.search(r"\d", texts[0]) and whole and not alone else 0
    return 0


def _begins_another_mail(lines: list[str], place: int) -> bool:
    """Whether another mail begins at a line, judged by a dashed line or by its header.

    A header says who, when, and to whom or about what. It also needs an address, a second line of
    the last kind, or a line that says "sent"; the journey "From: Ulm, To: Bonn, Date: 3 May" has
    none of these. A header begins with who, or with when and then who.
    """
    line = lines[place].strip()
    if _ORIGINAL_LINE.fullmatch(line) or _BEGIN_LINE.fullmatch(line):
        return True
    if re.fullmatch(r"[-_—–]{3,}", line) and place + 1 < len(lines):
        place = next((k for k in range(place + 1, len(lines)) if lines[k].strip()), place)
        line = lines[place].strip()
    begins = line
    if any(_HEADER_LINES[part].match(line) for part in ("sent", "date")):
        begins = next(iter(lines[place + 1 : place + 2]), "").strip()
    if not _HEADER_LINES["from"].match(begins):
        return False
    block = [block_line.strip() for block_line in lines[place : place + 1 + HEADER_LINES_LOOKED_AT]]
    block = block[: next((k for k, block_line in enumerate(block) if not block_line), len(block))]
    sent, date, more = (
        sum(bool(_HEADER_LINES[part].match(block_line)) for block_line in block)
        for part in ("sent", "date", "more")
    )
    named = any(_ADDRESS.search(block_line) for block_line in block)
    return bool((sent or date) and more and (named or sent or more > 1))
