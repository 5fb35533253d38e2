"""The published edition keeps its numbers: all that the outputs of its pages show, in order.

A number is shown by printed text, by a table, by the text of a figure, or by a value that the prose
quotes; of these the pin has the name. What a browser does not show (styles, scripts, coordinates of
curves) is left out. To compare pages that were run anew: ``python -m tests.pins.test_edition
FOLDER`` prints a diff by page; there times and dates differ, and nothing else may.
"""

import difflib
import html
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests import pins

CHAPTERS = Path(__file__).parents[2] / "book" / "chapters"
NUMBER = re.compile(r"(?<![\w#])(?!0x)[−-]?\d[\d,.]*(?:e[+-]?\d+)?[⁻⁰¹²³⁴-⁹]*")
HIDDEN = re.compile(r"<(style|script|defs|metadata)\b.*?</\1>|<!--.*?-->", re.DOTALL)
KINDS = ("text/html", "image/svg+xml", "text/markdown", "text/plain")
"""What a page shows of an output: the first of these that it has."""


def visible(text: str) -> str:
    """What a browser shows of HTML or SVG.

    >>> visible('<style>.a{width:3px}</style><td id="T_1">4.5<sub>6</sub></td>')
    ' 4.5 6  '
    """
    return html.unescape(re.sub(r"<[^>]*>", " ", HIDDEN.sub("", text)))


def numbers(text: str) -> list[str]:
    """The numbers of a text as they are printed.

    >>> numbers("(4.945, 8·10⁻⁵), 1,024 of 2.5e-3; −3 at 0x7f, canary_1; seed 7.")
    ['4.945', '8', '10⁻⁵', '1,024', '2.5e-3', '−3', '7']
    """
    return [found.rstrip(".,") for found in NUMBER.findall(text)]


def _outputs(page: Path) -> Iterator[tuple[str, str]]:
    """The name, where it has one, and the text of each output of a page."""
    for cell in json.loads(page.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            data: Mapping[str, Any] = output.get("data", {})
            named = output.get("metadata", {}).get("scrapbook", {})
            name, prefix = named.get("name", ""), named.get("mime_prefix", "")
            kind = next((prefix + k for k in KINDS if prefix + k in data), None)
            text = "".join(output.get("text", "") if kind is None else data[kind])
            yield name, visible(text) if kind in KINDS[:2] else text


def make(folder: Path = CHAPTERS) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {}
    for page in sorted(folder.glob("*.ipynb")):
        shown = [[name, numbers(text)] for name, text in _outputs(page)]
        out[page.stem] = [entry for entry in shown if entry[1]]
    return out


def diff(old: Mapping[str, list[Any]], new: Mapping[str, list[Any]]) -> list[str]:
    """The lines of a diff by page: a line an output, its name and its numbers."""
    lines: list[str] = []
    for page in sorted({*old, *new}):
        both = [[f"{name}: {' '.join(x)}" for name, x in p.get(page, ())] for p in (old, new)]
        lines += difflib.unified_diff(*both, f"{page} as pinned", page, n=0, lineterm="")
    return lines


def test_the_published_edition_has_the_numbers_that_it_had():
    pinned, now = pins.read("edition"), make()
    assert len(pinned) > 20 and sum(len(x) for page in now.values() for _, x in page) > 8_000
    assert not (lines := diff(pinned, now)), "\n".join(lines)


def test_a_number_that_changes_or_goes_shows():
    pinned = pins.read("edition")
    page = json.loads(json.dumps(pinned))
    name = next(name for name, shown in page["canary"] if name)
    entry = next(entry for entry in page["canary"] if entry[0] == name)
    entry[1][0] += "1"
    page["utility"].pop()
    lines = diff(pinned, page)
    assert any(line.startswith(f"+{name}: ") for line in lines)
    assert sum(line[0] in "+-" and line[:3] not in ("+++", "---") for line in lines) == 3


if __name__ == "__main__":
    print(*diff(pins.read("edition"), make(Path(sys.argv[1]))), sep="\n")
