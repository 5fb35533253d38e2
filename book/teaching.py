"""Write the pages for lecturers, and the glossary, from their data: ``python book/teaching.py``.

``glossary.yml``, ``teaching/plan.yml``, ``teaching/questions.yml`` and the chapters are the source;
a test holds the pages in step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

import plain

BOOK = Path(__file__).resolve().parent

LEVELS = {"recall": "in the text", "apply": "to compute", "judge": "to judge"}
MINUTES = (("recall quiz", 5), ("talk", 20), ("shown live", 10), ("exercise in pairs", 15))
MINUTES += (("wrong answers", 8), ("homework", 2))


def data(name: str) -> Any:
    """A YAML file of the book."""
    return yaml.safe_load((BOOK / name).read_text("utf-8"))


def chapters() -> list[str]:
    """The chapters in the order of the contents."""
    parts = data("_toc.yml")["parts"]
    files = (c["file"].partition("chapters/") for part in parts for c in part["chapters"])
    return [name for before, _, name in files if name and not before]


def cells(name: str) -> list[dict[str, Any]]:
    """The cells of a published chapter."""
    return plain.read(BOOK / "chapters" / f"{name}.ipynb")["cells"]


def title(name: str) -> str:
    """The title of a chapter."""
    return "".join(cells(name)[0]["source"]).splitlines()[0].removeprefix("# ").strip()


def link(name: str) -> str:
    """A link from a page of the folder ``teaching``."""
    return f"[{title(name)}](../chapters/{name}.ipynb)"


def raised(text: str) -> str:
    """``text`` with its indices below and its exponents above: π_c, e^(−x)."""
    text = re.sub(r"_([a-z])\b", r"{sub}`\1`", text)
    return re.sub(r"\^(?:\(([^)]*)\)|(\w))", lambda m: f"{{sup}}`{m[1] or m[2]}`", text)


# --------------------------------------------------------------------------- pages
def glossary() -> str:
    """Every term with its definition and the chapter that defines it."""
    lines = ["# Glossary", "", "Each term with the chapter that defines it.", "", "```{glossary}"]
    for row in sorted(data("glossary.yml"), key=lambda row: row["term"].lower()):
        where = "the first page" if row["chapter"] == "index" else ""
        page = "index.md" if where else f"chapters/{row['chapter']}.ipynb"
        name = where or title(row["chapter"])
        lines += [row["term"], f"  {raised(row['means'])} [{name}]({page})", ""]
    return "\n".join([*lines[:-1], "```", ""])


def seconds(shown: dict[str, str], times: dict[str, dict[str, float]]) -> str:
    """The measured times of a demonstration."""
    t = times[f"{shown['notebook']}:{shown['first']}:{shown['last']}"]
    live = f"{t['live']:g} s" if t["live"] else "under 0.1 s"
    return f"{live}, and {t['before']:g} s before it"


def plan() -> str:
    """The ten hours, with minutes, demonstrations, exercises, expected mistakes and homework."""
    times = json.loads((BOOK / "teaching" / "times.json").read_text("utf-8"))
    out = [
        "# Ten hours",
        "",
        "A lecture plan. Each hour has the same minutes: "
        + ", ".join(f"{what} {n}" for what, n in MINUTES)
        + ". The quiz takes five questions of the [bank](questions.md), the talk the slides that "
        "`make slides` writes, and *shown live* the cells that are named. Their times are processor"
        " seconds of one thread at the `quick` profile, measured by `python book/live.py`; run the "
        "cells before them in the break. What to say and what to wait for is in the "
        "[notes](notes.md).",
        "",
        "| hour | title | chapters | shown live |",
        "|---|---|---|---|",
    ]
    hours = data("teaching/plan.yml")
    for k, hour in enumerate(hours, 1):
        live = "; ".join(seconds(x, times) for x in hour["live"])
        read = ", ".join(link(n) for n in hour["read"] + hour.get("also", []))
        out.append(f"| {k} | {hour['title']} | {read} | {live} |")
    for k, hour in enumerate(hours, 1):
        out += ["", f"## Hour {k}: {hour['title']}", "", "**After this hour a student can:**", ""]
        out += [f"- {x}" for x in hour["objectives"]]
        out += ["", "| minutes | what |", "|---|---|"]
        asked, home = (
            ", ".join(f"{{ref}}`{name}`" for name in hour[kind]) for kind in ("class", "home")
        )
        what = (
            f"five questions on {', '.join(map(link, hour['read']))}",
            f"slides of hour {k}",
            "; ".join(f"{x['show']} ({seconds(x, times)})" for x in hour["live"]),
            asked or "tasks of the lab",
            "; ".join(wrong for wrong, _ in hour["wrong"]),
            home or "finish the lab",
        )
        out += [f"| {n} | **{name}**: {x} |" for (name, n), x in zip(MINUTES, what, strict=True)]
    shorter = (BOOK / "teaching" / "shorter.txt").read_text("utf-8")
    return "\n".join([*out, "", shorter])


def notes() -> str:
    """What to say, to ask and to wait for in each hour, and what to do where something fails."""
    out = [
        "# Notes for the instructor",
        "",
        "For each hour one sentence to say, one question to ask, the answer to wait for, and the "
        "wrong answers that come, with what to do. If a demonstration fails, go on with its slide: "
        "the slides show the recorded output.",
    ]
    for k, hour in enumerate(data("teaching/plan.yml"), 1):
        out += ["", f"## Hour {k}: {hour['title']}", "", f"**Say:** {hour['say']}"]
        out += ["", f"**Ask:** {hour['ask']}", "", f"**Wait for:** {hour['wait']}"]
        out += ["", "| they say | you do |", "|---|---|"]
        out += [f"| {wrong} | {do} |" for wrong, do in hour["wrong"]]
    return "\n".join([*out, ""])


def questions(*, answers: bool) -> str:
    """The question bank, or its answers."""
    head = (
        ["# Answers", "", "To the [questions](questions.md), with the same numbers."]
        if answers
        else [
            "# Questions",
            "",
            "For a quiz or an exam; every answer follows from its chapter. *In the text* asks for "
            "what stands there, *to compute* for a small calculation, *to judge* for what follows "
            "and what does not. The [answers](answers.md) are on a page of their own.",
        ]
    )
    bank = data("teaching/questions.yml")
    for name in (n for n in chapters() if n in bank):
        head += ["", f"## {title(name)}", ""]
        for k, (level, question, answer) in enumerate(bank[name], 1):
            mask = (answer if answers else question).replace("<MASK>", "`<MASK>`")
            head.append(f"{k}. {mask}" if answers else f"{k}. {mask} *({LEVELS[level]})*")
    return "\n".join([*head, ""])


SUMMARY = re.compile(r"(?ms)^## Summary\n(.*?)(?=^\*\*(?:Read|What to read)|\Z)")


def summaries() -> str:
    """The summary of every chapter, with the numbers of the published edition."""
    out = ["# Summaries", "", "The summary of each chapter, to hand out."]
    for name in chapters():
        numbers = plain.glued(cells(name))
        text = "\n".join("".join(c["source"]) for c in cells(name) if c["cell_type"] == "markdown")
        if match := SUMMARY.search(text):
            body = plain.GLUE.sub(lambda m, known=numbers: known[m[1]], match[1].strip())
            body = plain.without_links(body)
            out += ["", f"## {title(name)}", "", body]
    return "\n".join([*out, ""])


def pages() -> dict[Path, str]:
    """Every page, by its path."""
    folder = BOOK / "teaching"
    return {
        BOOK / "glossary.md": glossary(),
        folder / "plan.md": plan(),
        folder / "notes.md": notes(),
        folder / "questions.md": questions(answers=False),
        folder / "answers.md": questions(answers=True),
        folder / "summaries.md": summaries(),
    }


def write() -> list[Path]:
    """Write every page; returns their paths."""
    written = pages()
    for path, text in written.items():
        path.write_text(text, "utf-8")
    return list(written)


if __name__ == "__main__":
    for path in write():
        print(path.relative_to(BOOK))
