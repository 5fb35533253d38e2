"""Write the parameters cell of every notebook, and of its published chapter, from the section of
the profiles that it reads, and the page of all options of ``crtlib train``: ``python
book/parameters.py``. A test holds them in step."""

import json
import re
from pathlib import Path
from typing import Any

from crtbook import settings
from crtlib import recipe
from crtlib.options import options_of

ROOT = Path(__file__).resolve().parent.parent
SECTION = re.compile(r'parameters\(globals\(\), "(\w+)"\)')


def section_of(notebook: dict[str, Any]) -> str:
    """The section that a notebook reads, as its settings cell says."""
    (section,) = SECTION.findall("\n".join("".join(c["source"]) for c in notebook["cells"]))
    return section


def renew(path: Path) -> bool:
    """Write one notebook's parameters cell; whether it has changed."""
    text = path.read_text("utf-8")
    notebook = json.loads(text)
    (cell,) = (c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", []))
    cell["source"] = settings.cell(section_of(notebook)).splitlines(keepends=True)
    new = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n" * text.endswith("\n")
    if new != text:
        path.write_text(new, "utf-8")
    return new != text


def options() -> str:
    """The page of the options of a training."""
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for method in recipe.RECIPES:
        for o in options_of(recipe.recipe_of(method)):
            default = "" if o.default is None or o.name == "method" else str(o.default)
            key = (f"`{o.flag}`", o.phrase, default, o.text)
            rows.setdefault(key, []).append(method)
    lines = ["| option | value | default | | methods |", "|---|---|---|---|---|"]
    for (flag, value, default, text), names in rows.items():
        whose = "all" if len(names) == len(recipe.RECIPES) else ", ".join(f"`{n}`" for n in names)
        cells = (flag, value, default, text, whose)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return (
        "# Options of a training\n\n"
        "`crtlib train`, `crtlib.train`, the table `[train]` of `crtlib.toml` and a notebook take "
        "the same options; a method takes those that it reads, and refuses the others.\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    (ROOT / "book/options.md").write_text(options(), "utf-8")
    for folder in ("notebooks", "book/chapters"):
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            if renew(path):
                print(path.relative_to(ROOT))
