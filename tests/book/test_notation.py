"""A letter means one thing, or the page of notation says in which chapters it means another; and
what is said below a table speaks of its columns."""

import json
import re
from pathlib import Path

import bs4
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "book" / "notation.md").read_text(encoding="utf-8")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FORMULA = re.compile(r"\$\$?(.+?)\$\$?", re.DOTALL)
HOME = {
    "D'": {"amplification", "pitfalls", "screening"},
    "C": {"dp_from_zero", "engine"},
    "k": {"amplification"},
}
"""The chapters in which a letter means what the page says first."""


def prose(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def elsewhere(letter):
    """The chapters that the page names as giving a letter another meaning."""
    (row,) = re.findall(rf"(?m)^\| \${re.escape(letter)}\$ \|[^|]*\|([^|]*chapters/[^|]*)\|$", PAGE)
    return set(re.findall(r"chapters/(\w+)", row))


@pytest.mark.parametrize("letter", HOME)
def test_a_letter_means_what_the_page_of_notation_says(letter):
    alone = re.compile(rf"(?<![A-Za-z\\^_{{]){re.escape(letter)}(?![A-Za-z(_'])")
    used = {
        path.stem
        for path in NOTEBOOKS
        if any(alone.match(formula.strip()) for formula in FORMULA.findall(prose(path)))
    }
    assert used <= HOME[letter] | elsewhere(letter), "say in book/notation.md what it means there"
    assert elsewhere(letter) <= used | HOME[letter]


def test_no_chapter_has_a_sign_of_its_own_for_the_other_world():
    assert [p.stem for p in NOTEBOOKS if re.search(r"D\^\\circ|D''|D°", prose(p))] == []


LEGEND = re.compile(r"(?m)^The columns: .*$")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_said_below_a_table_names_its_columns(path):
    """A legend spoke of `miss_upper`, where the table above it had "missed at most"."""
    chapter = json.loads((ROOT / "book" / "chapters" / path.name).read_text(encoding="utf-8"))
    heads = set()
    for cell in chapter["cells"]:
        shown = "".join(
            "".join(out["data"]["text/html"])
            for out in cell.get("outputs", ())
            if "<table" in "".join(out.get("data", {}).get("text/html", ""))
        )
        if shown:
            table = bs4.BeautifulSoup(shown, "html.parser")
            heads = {th.get_text(strip=True) for th in table.select("th")}
        if cell["cell_type"] == "markdown":
            for legend in LEGEND.findall("".join(cell["source"])):
                named = set(re.findall(r"\*([^*]+)\*", legend))
                assert named and named <= heads, (named - heads, heads)
