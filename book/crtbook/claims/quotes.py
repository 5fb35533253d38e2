r"""Checks that each quote is in its paper: ``python -m crtbook.claims.quotes FOLDER``.

The papers are not in this repository. Whoever has their texts compares each quote with its paper.
The result is kept in ``quotes.yml``: the hash of each text, and for each quote its own hash, the
number of the word at which it begins, its section and the figure, table or statement there, and how
many words each ellipsis leaves out.

>>> locate_quote("the ε is … small [γ]", "It is said: the $\\epsilon$ is not at all small.")
(3, [3])
>>> locate_quote("the ε is [not] small", "It is said: the $\\epsilon$ is not at all small.") is None
True
>>> locate_quote("the ε is small", "the ε is not small") is None
True
"""

import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from crtbook.claims.claim import load_claims, load_claims_file

RECORDED = Path(__file__).parent / "quotes.yml"
TEXTS = {
    "crt": "crt_naacl2022.txt",
    "crt_acl": "crt_acl_submission_wikitext2.txt",
    "report": "training_data_leakage_report.txt",
    "hush": "hush_secret_protection.txt",
}
"""The file with each paper's text."""
SYMBOLS = {r"\epsilon": "ε", r"\gamma": "γ", r"\delta": "δ", r"\pi": "π", r"\infty": "∞",
           r"\log": "log", r"\tilde": "", r"\text": "",
           r"\begin{cases}": "", r"\end{cases}": ""}  # fmt: skip
HEADING = re.compile(r"""#* *\**(?P<number>\d(\.\d)?|[A-Z](\.\d)?)\** +\**[A-Z“"]""")
"""A heading of a section or an appendix, at the start of its line."""
LABEL = re.compile(
    r"[\s*#>-]*((?:Figure|Table|Proposition|Theorem|Definition|Algorithm|Lemma) \d+)"
)
"""What a caption or a statement begins with."""
LONGEST_HEADING, LONGEST_STATEMENT = 130, 9
"""In characters, and in lines."""
FARTHEST = 40
"""The most words that an ellipsis may leave out."""


def split_words(text: str) -> list[str]:
    """The words, numbers and symbols of a text, in lower case, without footnotes; LaTeX as read."""
    for command, symbol in SYMBOLS.items():
        text = text.replace(command, symbol)
    text = re.sub("<sup>.*?</sup>|[⁰¹²³⁴-⁹]", "", text)  # footnotes
    normalised = unicodedata.normalize("NFKC", text).lower()
    return re.findall(r"[^\W_]+|[%∞]", normalised.replace("_", ""))


def locate_quote(quote: str, text: str) -> tuple[int, list[int]] | None:
    """The number of the word of ``text`` at which a quote begins, and how many words each ellipsis
    leaves out; None where the quote is not in the text. Words in brackets are ours and leave out
    none."""
    pieces = re.split(r"(…|\[[^\]]*\])", quote)
    parts, limits, limit = list[list[str]](), list[int](), 0
    for k, piece in enumerate(pieces):
        if k % 2:
            limit = max(limit, FARTHEST * (piece == "…"))
        elif part := split_words(piece):
            parts.append(part)
            limits.append(limit)
            limit = 0
    return _locate_parts(parts, split_words(text), 0, [len(split_words(text)), *limits[1:]])


def _locate_parts(
    parts: Sequence[list[str]], text: list[str], start: int, limits: Sequence[int]
) -> tuple[int, list[int]] | None:
    """Where the first part begins, at most its limit of words after ``start``, such that the others
    follow."""
    if not parts:
        return start, []
    first, *other_parts = parts
    for position in range(start, min(start + limits[0], len(text) - len(first)) + 1):
        if text[position : position + len(first)] == first:
            location_of_rest = _locate_parts(other_parts, text, position + len(first), limits[1:])
            if location_of_rest is not None:
                return position, [
                    location_of_rest[0] - position - len(first),
                    *location_of_rest[1],
                ] if other_parts else []
    return None


def find_places(text: str) -> list[tuple[str, str]]:
    """For each word of a text, its section ("5.3", "A.2" or "Abstract"), and the figure, table or
    statement in whose caption or lines it stands, or an empty string."""
    places, section, label, lines_since_label = list[tuple[str, str]](), "", "", 0
    for line in text.splitlines():
        heading = HEADING.match(line) if len(line) <= LONGEST_HEADING else None
        if heading or re.fullmatch("#* *abstract", line, re.IGNORECASE):
            section, label = heading["number"] if heading else "Abstract", ""
        lines_since_label += 1
        if labelled := LABEL.match(line):
            label, lines_since_label = labelled[1], 0
        current_label = label if lines_since_label < LONGEST_STATEMENT else ""
        places += [(section, current_label)] * len(split_words(line))
    return places


def is_place_named(where: str, section: str, label: str) -> bool:
    """Whether ``where`` names the section of a quote, or its figure, table or statement.

    >>> is_place_named("Section 5.3, Figure 4", "5.3", ""), is_place_named("Section 1", "2", "")
    (True, False)
    >>> is_place_named("Section 5", "5.3", ""), is_place_named("Figure 4", "5.3", "Figure 4")
    (False, True)
    """
    if section == "Abstract":
        return "Abstract" in where
    is_section_named = re.search(rf"(Section|Appendix) {re.escape(section)}(?![.\d])", where)
    return bool(is_section_named or (label and label in where))


def list_quotes() -> Iterator[tuple[str, str, str]]:
    """Every quote of a claim or of a headline: its name, its paper, its words."""
    for claim in load_claims():
        if claim.quote:
            yield claim.id, claim.paper, claim.quote
    for headline in load_claims_file("headlines"):
        yield f"headline of {headline['paper']}", headline["paper"], headline["quote"]


def find_misplaced_claims() -> list[str]:
    """The claims whose ``where`` does not name the place at which their quote was found."""
    recorded = load_claims_file("quotes")["quotes"]
    return [
        claim.id
        for claim in load_claims()
        if claim.quote and not is_place_named(claim.where, *recorded[claim.id]["place"])
    ]


def hash_quote(paper: str, quote: str) -> str:
    """The hash of a quote, under which ``quotes.yml`` keeps it."""
    return hashlib.sha256(f"{paper} {quote}".encode()).hexdigest()[:12]


def compare_quotes(folder: Path) -> dict[str, Any]:
    """The content of ``quotes.yml``, made from the texts in ``folder``. Raises ``ValueError`` that
    names each quote that is not there."""
    texts = {paper: (folder / name).read_text("utf-8") for paper, name in TEXTS.items()}
    locations = {name: locate_quote(quote, texts[paper]) for name, paper, quote in list_quotes()}
    if missing := [name for name, location in locations.items() if location is None]:
        raise ValueError(f"quotes that are not in their paper: {', '.join(missing)}")
    marks = {name: hash_quote(paper, quote) for name, paper, quote in list_quotes()}
    places = {paper: find_places(text) for paper, text in texts.items()}
    paper_of = {name: paper for name, paper, _ in list_quotes()}
    return {
        "texts": {p: hashlib.sha256(text.encode()).hexdigest() for p, text in texts.items()},
        "quotes": {
            name: {
                "of": marks[name],
                "word": location[0],
                "place": [*places[paper_of[name]][location[0]]],
                "left out": location[1],
            }
            for name, location in locations.items()
            if location is not None
        },
    }


def count_words_left_out(name: str) -> list[int]:
    """How many words each ellipsis of a quote leaves out, as they were counted in the paper."""
    counts: list[int] = load_claims_file("quotes")["quotes"][name]["left out"]
    return counts


if __name__ == "__main__":
    comparison = compare_quotes(Path(sys.argv[1]))
    RECORDED.write_text(
        yaml.safe_dump(comparison, default_flow_style=None, sort_keys=False), "utf-8"
    )
