"""Notebooks that read well outside the book: ``python book/plain.py`` opens JupyterLab on them.

The chapters are written in MyST for the book. Here they become notebooks for JupyterLab, VS Code or
a forge: numbers replace the book's glue, citations become (Zhao et al., 2022), boxes become
quotations with a title, solutions fold, and references become links. Code is left as it is.

JupyterLab (``make lab``) opens copies in ``_build/lab``, with the published outputs. A copy that
you have changed is kept; delete it to get the published one back.
"""

import functools
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

BOOK = Path(__file__).resolve().parent
GLUE = re.compile(r"\{glue:text\}`([^`]+)`")
ROLE = re.compile(r"\{([a-z:]+)\}`([^`]+)`")
FENCE = re.compile(
    r"(?ms)^(?P<f>`{3,}|:{3,})\{(?P<kind>[a-z:-]+)\}[ ]*(?P<arg>[^\n]*)\n"
    r"(?P<body>.*?)^(?P=f)[ \t]*$"
)
OPTION = re.compile(r"(?m)^:([\w-]+):[ ]*(.*)\n?")
TARGET = re.compile(r"(?m)^\(([\w-]+)\)=\n")
EQUATION = re.compile(r"(\$\$) \(([\w-]+)\)")
NAMES = {
    "prf:definition": "Definition",
    "prf:theorem": "Theorem",
    "prf:proposition": "Proposition",
    "prf:lemma": "Lemma",
    "prf:algorithm": "Algorithm",
    "prf:remark": "Remark",
    "exercise": "Exercise",
    "solution": "Solution",
    "warning": "Warning",
    "note": "Note",
    "admonition": "",
}
RECORD = "application/papermill.record/text/plain"


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return notebook


def load_yaml(name: str) -> Any:
    """Read a YAML file of the book."""
    return yaml.safe_load((BOOK / name).read_text("utf-8"))


def list_chapters() -> list[str]:
    """The chapters in the order of the contents."""
    parts = load_yaml("_toc.yml")["parts"]
    files = (c["file"].partition("chapters/") for part in parts for c in part["chapters"])
    return [name for before, _, name in files if name and not before]


def stored_values(cells: list[dict[str, Any]]) -> dict[str, str]:
    """The numbers that a recorded chapter stores for its text."""
    out: dict[str, str] = {}
    for cell in cells:
        for output in cell.get("outputs", []):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if name and RECORD in output.get("data", {}):
                value = output["data"][RECORD]
                value = "".join(value) if isinstance(value, list) else str(value)
                out[name] = value.strip().strip("'\"")
    return out


def parse_bibliography() -> dict[str, dict[str, str]]:
    """The fields of each entry of the bibliography."""
    text = (BOOK / "references.bib").read_text("utf-8")
    field = re.compile(r"(?ms)^\s*(\w+)\s*=\s*[{\"](.*?)[}\"],?\s*$")
    entries = re.findall(r"(?ms)^@\w+\{([^,]+),(.*?)^\}", text)
    return {key.strip(): dict(field.findall(body)) for key, body in entries}


@functools.cache
def list_citations() -> dict[str, tuple[str, str]]:
    """(authors, year) of each entry of the bibliography, in words."""
    out = {}
    for key, fields in parse_bibliography().items():
        people = [p.strip() for p in re.split(r"\s+and\s+", fields.get("author", key))]
        last = [re.sub(r"[{}]", "", p.split(",")[0] if "," in p else p.split()[-1]) for p in people]
        who = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        out[key] = (who, fields.get("year", ""))
    return out


@functools.cache
def collect_titles() -> dict[str, str]:
    """The title of each page and chapter, and of each figure, exercise, definition and theorem."""
    out = {page.stem: page.read_text("utf-8").split("\n", 1)[0][2:] for page in BOOK.glob("*.md")}
    for name in list_chapters():
        for cell in read_notebook(BOOK / "chapters" / f"{name}.ipynb")["cells"]:
            if cell["cell_type"] != "markdown":
                figure = cell["metadata"].get("mystnb", {}).get("figure", {})
                if "name" in figure:
                    out[figure["name"]] = f"figure “{first_words_of_caption(figure['caption'])}”"
                continue
            text = "".join(cell["source"])
            if text.startswith("# "):
                out.setdefault(name, text.splitlines()[0][2:])
            for match in FENCE.finditer(text):
                if label := re.search(r"(?m)^:label: (\S+)", match["body"]):
                    kind = NAMES.get(match["kind"], "")
                    out[label[1]] = f"{kind}: {match['arg']}".strip(": ")
            for target, head in re.findall(r"(?m)^\(([\w-]+)\)=\n#+ (.*)", text):
                out[target] = head
    return out


def first_words_of_caption(caption: str) -> str:
    """The beginning of a caption that is in bold."""
    match = re.match(r"\*\*(.+?)\.?\*\*", strip_links(caption))
    return match[1] if match else strip_links(caption).split(". ")[0]


def strip_links(text: str) -> str:
    """Text with its roles and links as plain words."""
    text = re.sub(r"\{(?:doc|ref|prf:ref|numref)\}`([^`<]+?)(?: <[^`]*)?`", r"\1", text)
    text = re.sub(r"\{cite:[tp]\}`[^`]*`", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", lambda m: m[1] or "see the chapter", text)


def _render_role(titles: dict[str, str], numbers: dict[str, str]) -> Callable[[re.Match], str]:
    def render(match: re.Match) -> str:
        role, text = match[1], match[2]
        if role == "glue:text":
            return numbers[text]  # a number that the run did not store is an error
        if role.startswith("cite:"):
            parts = [list_citations().get(key.strip(), (key, "")) for key in text.split(",")]
            if role == "cite:t":
                return " and ".join(f"{who} ({year})" for who, year in parts)
            return "(" + "; ".join(f"{who}, {year}" for who, year in parts) + ")"
        if role == "doc":
            name = text.rsplit("/", 1)[-1]
            if text.startswith("../"):  # a page of the book, which is not beside a notebook
                return f"*{titles.get(name, name)}*"
            return f"[{titles.get(name, name)}]({text}{'' if '/' in text else '.ipynb'})"
        if role == "eq":
            return f"equation ({text})"
        return f"*{titles.get(text, text)}*"

    return render


def _convert_box(match: re.Match) -> str:
    name, title = NAMES.get(match["kind"]), match["arg"].strip()
    body = OPTION.sub("", match["body"]).strip("\n")
    if match["kind"] == "math":
        return f"$$\n{body}\n$$"
    body = convert_boxes(body)
    if name is None:
        return body
    if name == "Solution" or "dropdown" in dict(OPTION.findall(match["body"])).get("class", ""):
        head = "Solution" if name == "Solution" else title or name
        return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"
    head = ": ".join(filter(None, (name, title)))
    quoted = "\n".join(f"> {line}".rstrip() for line in body.splitlines())
    return f"> **{head}**\n>\n{quoted}"


def convert_boxes(text: str) -> str:
    """Fenced boxes as quotations, solutions as folds; ordinary code is unchanged."""
    return FENCE.sub(_convert_box, text)


def convert_prose(text: str, titles: dict[str, str], numbers: dict[str, str]) -> str:
    """One markdown cell without any role or directive. ``titles`` are those that links and
    references name; ``numbers`` are those that the run stored, by their names."""
    text = TARGET.sub("", text)
    text = ROLE.sub(_render_role(titles, numbers), convert_boxes(text))
    text = EQUATION.sub(r"\1", text)
    empty = re.compile(r"\[\]\(((?:\.\./)?(?:chapters/)?([\w-]+)\.(?:ipynb|md))\)")
    return empty.sub(lambda m: f"[{titles.get(m[2], m[2])}]({m[1]})", text)


def convert_cells(cells: list[Any], *, complete: bool = False) -> list[Any]:
    """The cells of a chapter that has run, without any role. A number that the run did not store
    becomes "(not run)", as other parameters leave things out; in a ``complete`` run it is an error.
    """
    numbers = stored_values(cells)
    if not complete:
        used = {name for c in cells for name in GLUE.findall("".join(c["source"]))}
        numbers = dict.fromkeys(used, "(not run)") | numbers
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = convert_prose(source, collect_titles(), numbers)
        else:
            cell["outputs"] = [o for o in cell["outputs"] if is_for_people(o)]
            cell["outputs"] += write_caption_below(cell, numbers)
            if {"hide-input", "remove-cell"} & {*cell["metadata"].get("tags", [])}:
                cell["metadata"]["jupyter"] = {"source_hidden": True}
    return cells


MADE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
"""How a figure was made, noted in its drawing (``crtbook.figures.theme.render_svg``)."""


def write_caption_below(cell: dict[str, Any], numbers: dict[str, str]) -> list[dict[str, Any]]:
    """The cells that the book writes below a cell's figure: its caption, and how it was made."""
    drawings = [data for o in cell["outputs"] if "image/svg+xml" in (data := o.get("data", {}))]
    caption = cell["metadata"].get("mystnb", {}).get("figure", {}).get("caption", "")
    notes = (MADE.search("".join(data["image/svg+xml"])[:4000]) for data in drawings)
    lines = [
        convert_prose(caption, collect_titles(), numbers),
        *(f"*{note[1]}*" for note in notes if note),
    ]
    text = "\n\n".join(dict.fromkeys(filter(None, lines)))
    if not text or not cell["outputs"]:
        return []
    return [{"output_type": "display_data", "metadata": {}, "data": {"text/markdown": text}}]


def is_for_people(output: dict[str, Any]) -> bool:
    """Whether an output is for people: not a stored number, a bar, or a message of tqdm."""
    noise = output.get("name") == "stderr" and re.search(r"^\s*$|%\||Tqdm", "".join(output["text"]))
    return RECORD not in output.get("data", {}) and not noise


def convert_chapter(name: str) -> dict[str, Any]:
    """A recorded chapter as a plain notebook, at the sizes in its own parameters cell."""
    notebook = read_notebook(BOOK / "chapters" / f"{name}.ipynb")
    cells = [
        c for c in notebook["cells"] if "injected-parameters" not in c["metadata"].get("tags", [])
    ]
    return {**notebook, "cells": convert_cells(cells, complete=True)}


def write_chapters(folder: Path, names: list[str] | None = None) -> list[Path]:
    """Write the plain form of the chapters (all by default) to ``folder``."""
    every = list_chapters()
    if unknown := sorted(set(names or ()) - set(every)):
        raise ValueError(f"NB={' '.join(unknown)}: must be one of {', '.join(sorted(every))}")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names or every:
        text = json.dumps(convert_chapter(name), indent=1, ensure_ascii=False)
        paths.append(folder / f"{name}.ipynb")
        paths[-1].write_text(text + "\n", "utf-8")
    return paths


# --------------------------------------------------------------------------- JupyterLab
FOLDER = BOOK.parent / "_build" / "lab"
WRITTEN = ".written.json"


def refresh_folder(folder: Path = FOLDER) -> list[str]:
    """Write the notebooks and a page of contents. Return the names of the notebooks that were
    changed by hand, and so were left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / WRITTEN
    written = json.loads(note.read_text()) if note.is_file() else {}
    changed = []
    with tempfile.TemporaryDirectory() as fresh:
        for path in write_chapters(Path(fresh)):
            target, digest = folder / path.name, _hash_file(path)
            if target.is_file() and _hash_file(target) != written.get(path.name):
                changed.append(path.stem)
                continue
            target.write_bytes(path.read_bytes())
            written[path.name] = digest
    note.write_text(json.dumps(written))
    titles = collect_titles()
    lines = [f"1. [{titles[name]}]({name}.ipynb)" for name in list_chapters()]
    head = "# Confidential language modelling\n\nOpen a chapter, run its cells, type answers.\n\n"
    (folder / "start.md").write_text(head + "\n".join(lines) + "\n", "utf-8")
    return changed


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    for name in refresh_folder():
        print(f"{name}: you have changed it, so it is left as it is")
    python = str(Path(sys.executable).parent)
    os.environ["PATH"] = python + os.pathsep + os.environ["PATH"]
    options = ["--notebook-dir", str(FOLDER), "--LabApp.default_url=/lab/tree/start.md"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options, *sys.argv[1:]])
