"""Write the pages for lecturers, and the glossary, from their data: ``python book/teaching.py``.

The sources are ``glossary.yml``, ``teaching/plan.yml``, ``teaching/questions.yml`` and the
chapters; a test checks that the pages match them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

import plain
from plain import list_chapters, load_yaml

BOOK = Path(__file__).resolve().parent

LEVELS = {"recall": "in the text", "apply": "to compute", "judge": "to judge"}
PACE, CELL, EXERCISE, WRONG, TASK = 100, 2, 7, 2, 5
"""Words spoken in a minute, and the minutes for a cell, for an exercise in pairs, for a wrong
answer and for a task of a lab."""
ALONE = {"lab_attack": 120, "lab_defence": 180}
"""Minutes of the labs, as stated on their pages."""


def read_cells(name: str) -> list[dict[str, Any]]:
    """The cells of a published chapter."""
    return plain.read_notebook(BOOK / "chapters" / f"{name}.ipynb")["cells"]


def link_chapter(name: str) -> str:
    """A link to a chapter from a page in the folder ``teaching``."""
    return f"[{plain.collect_titles()[name]}](../chapters/{name}.ipynb)"


def raise_and_lower(text: str) -> str:
    """``text`` with its indices lowered and its exponents raised: π_c, e^(−x)."""
    text = re.sub(r"_([a-z])\b", r"{sub}`\1`", text)
    return re.sub(
        r"\^(?:\(([^)]*)\)|(\d+(?:\.\d+)?|\w))", lambda m: f"{{sup}}`{m[1] or m[2]}`", text
    )


def escape_markdown(text: str) -> str:
    """``text`` escaped so that Markdown shows it unchanged."""
    return text.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("$", r"\$")


def render_template(template: str, **values: Any) -> str:
    """A page from a template in ``templates``, with its values."""
    loader = jinja2.FileSystemLoader(BOOK / "templates")
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"raised": raise_and_lower, "plain": escape_markdown}
    return environment.get_template(f"{template}.md.j2").render(values)


# --------------------------------------------------------------------------- pages
def render_glossary() -> str:
    """Every term with its definition and the chapter that defines it."""
    rows = sorted(load_yaml("glossary.yml"), key=lambda row: row["term"].lower())
    for row in rows:
        name = row["chapter"]
        if name == "index":
            row["where"] = "[the first page](index.md)"
        elif (page := BOOK / f"{name}.md").is_file():
            heading = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
            row["where"] = f"[{heading}]({page.name})"
        else:
            row["where"] = f"[{plain.collect_titles()[name]}](chapters/{name}.ipynb)"
    return render_template("glossary", rows=rows)


NOT_TOLD = ("", "Five questions", "Exercises", "Summary", "The published runs")
FOLDED = re.compile(r"(?ms)^(`{3,})\{(?:solution|exercise|admonition\} Proof).*?^\1$")


def count_words_and_cells(
    names: Sequence[str], sections: Sequence[str] | None = None
) -> tuple[int, int]:
    """The number of words outside proofs and solutions, and of visible cells, in those chapters:
    in the named sections, or in all but the closing ones."""
    words, visible = 0, 0
    for name in names:
        head = ""
        for cell in read_cells(name):
            tags = {*cell["metadata"].get("tags", [])}
            pieces = [f"## {head}\n", "".join(cell["source"])]
            if cell["cell_type"] == "code":
                visible += is_told(head, sections) and not tags & {"hide-input", "remove-cell"}
                continue
            _, *parts = re.split(r"(?m)^## (.*)$", "".join(pieces))
            for head, text in zip(parts[::2], parts[1::2], strict=True):
                words += is_told(head, sections) * len(FOLDED.sub("", text).split())
    return words, visible


def is_told(head: str, sections: Sequence[str] | None) -> bool:
    """Whether a section is one of those named, or, if none are, not a closing one."""
    return head not in NOT_TOLD if sections is None else head in sections


QUIZ = 5
"""The number of questions in a quiz."""


def draw_quiz(number: int) -> list[list[str]]:
    """Five questions for the beginning of an hour, about the last hour before it that has any.

    The bank has the questions of a chapter in its order, so an hour that reads half of a chapter is
    asked about by half of them. A second quiz on the same hour has the questions in between.
    """
    plan = load_yaml("teaching/plan.yml")
    for again, hour in enumerate(reversed(plan[: number - 1])):
        if rows := [
            row for name in hour["read"] for row in select_questions_of_hour(name, hour, plan)
        ]:
            every = rows[again::2] if len(rows) >= 2 * QUIZ else rows
            return every[:: max(1, len(every) // QUIZ)][:QUIZ]
    return []


def select_questions_of_hour(
    name: str, hour: dict[str, Any], plan: list[dict[str, Any]]
) -> list[list[str]]:
    """The questions about the part of a chapter that an hour reads."""
    rows = load_yaml("teaching/questions.yml").get(name, [])
    hours = [its["title"] for its in plan if name in its["read"]]
    part = hours.index(hour["title"])
    return rows[part * len(rows) // len(hours) : (part + 1) * len(rows) // len(hours)]


def plan_minutes(hour: dict[str, Any], *, first: bool) -> dict[str, Any]:
    """What is done in an hour, with minutes calculated from its contents."""
    (words, _), live = (
        count_words_and_cells(hour["read"], hour.get("sections")),
        hour.get("live", []),
    )
    parts = ", ".join(hour.get("sections", [])) or "every section"
    of = ", ".join(map(link_chapter, hour["read"]))
    wrong, tasks = hour.get("wrong", []), hour.get("tasks", 0)
    in_class, home = (", ".join(f"{{ref}}`{x}`" for x in hour[kind]) for kind in ("class", "home"))
    quiz = "five questions on what came before"
    rows = [
        (5, "quiz", "none: open the first page, and let them type" if first else quiz),
        (round(words / PACE), "talk", f"{words:,} words of {of}: {parts}"),
        (CELL * len(live), "shown live", "; ".join(x["show"] for x in live)),
        (EXERCISE * len(hour["class"]), "in pairs", in_class),
        (TASK * tasks, "at the lab", f"{tasks} tasks begun"),
        (WRONG * len(wrong), "wrong answers", "; ".join(x for x, _ in wrong)),
        (2, "homework", home or "finish the lab"),
    ]
    facts = {"title": hour["title"], "objectives": hour.get("objectives")}
    return facts | {"rows": rows, "total": sum(n for n, _, task in rows if task)}


def tabulate_chapters_alone() -> list[dict[str, Any]]:
    """Every chapter with the time that it takes a person who works through it alone."""
    taught = {n for hour in load_yaml("teaching/plan.yml") for n in hour["read"]}
    rows = []
    for name in list_chapters():
        words, visible = count_words_and_cells([name])
        count = sum("".join(c["source"]).count("{exercise}") for c in read_cells(name))
        spent = ALONE.get(name) or round(words / PACE + CELL * visible + 10 * count)
        facts = {
            "link": link_chapter(name),
            "taught": name in taught,
            "words": words,
            "cells": visible,
        }
        rows.append(facts | {"exercises": count, "minutes": spent})
    return rows


def render_plan() -> str:
    """The plans of ten hours, three, and thirty, with minutes calculated from their contents."""
    ten, three = (
        [
            plan_minutes(hour, first=not k)
            for k, hour in enumerate(load_yaml(f"teaching/{name}.yml"))
        ]
        for name in ("plan", "short")
    )
    sizes = {"PACE": PACE, "CELL": CELL, "EXERCISE": EXERCISE, "WRONG": WRONG, "TASK": TASK}
    return render_template("plan", ten=ten, three=three, alone=tabulate_chapters_alone(), **sizes)


def find_section(demonstration: dict[str, Any]) -> str:
    """The section in which a demonstration begins."""
    section = "its beginning"
    for cell in read_cells(demonstration["notebook"]):
        if cell.get("id") == demonstration["first"]:
            return section
        if cell["cell_type"] == "markdown":
            section = ([section, *re.findall(r"(?m)^## (.*)$", "".join(cell["source"]))])[-1]
    raise KeyError(f"{demonstration['notebook']} has no cell {demonstration['first']}")


def render_notes() -> str:
    """What to say, ask, show and wait for in each hour, and what to do when something fails."""
    return render_template(
        "notes",
        plan=load_yaml("teaching/plan.yml"),
        titles=plain.collect_titles(),
        section_of=find_section,
    )


def render_questions(*, answers: bool) -> str:
    """The question bank, or its answers."""
    bank = load_yaml("teaching/questions.yml")
    of = [(plain.collect_titles()[name], bank[name]) for name in list_chapters() if name in bank]
    return render_template("questions", answers=answers, chapters=of, LEVELS=LEVELS)


def render_pages() -> dict[Path, str]:
    """Every page, by its path."""
    folder = BOOK / "teaching"
    return {
        BOOK / "glossary.md": render_glossary(),
        folder / "plan.md": render_plan(),
        folder / "questions.md": render_questions(answers=False),
    }


if __name__ == "__main__":
    for path, text in render_pages().items():
        path.write_text(text, "utf-8")
        print(path.relative_to(BOOK))
