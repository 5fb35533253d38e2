"""Write the pages for lecturers, and the glossary, from their data: ``python book/teaching.py``.

``glossary.yml``, ``teaching/plan.yml``, ``teaching/questions.yml`` and the chapters are the source;
a test holds the pages in step.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import plain

BOOK = Path(__file__).resolve().parent

LEVELS = {"recall": "in the text", "apply": "to compute", "judge": "to judge"}
PACE, CELL, EXERCISE, WRONG, TASK = 100, 2, 7, 2, 5
"""Words told in a minute, and the minutes of a cell, of an exercise in pairs, of a wrong answer and
of a task of a lab."""
ALONE = {"lab_attack": 120, "lab_defence": 180}
"""Minutes of the labs, as their pages say."""


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


def link(name: str) -> str:
    """A link from a page of the folder ``teaching``."""
    return f"[{plain.titles()[name]}](../chapters/{name}.ipynb)"


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
        name = where or plain.titles()[row["chapter"]]
        lines += [row["term"], f"  {raised(row['means'])} [{name}]({page})", ""]
    return "\n".join([*lines[:-1], "```", ""])


NOT_TOLD = ("", "Five questions", "Exercises", "Summary", "The published runs")
FOLDED = re.compile(r"(?ms)^(`{3,})\{(?:solution|exercise|admonition\} Proof).*?^\1$")


def size(names: Sequence[str], sections: Sequence[str] | None = None) -> tuple[int, int]:
    """Words outside proofs and solutions, and cells that are seen, of what chapters tell: of all
    sections but the closing ones, or of those that are named."""
    words, seen = 0, 0
    for name in names:
        head = ""
        for cell in cells(name):
            tags = {*cell["metadata"].get("tags", [])}
            pieces = [f"## {head}\n", "".join(cell["source"])]
            if cell["cell_type"] == "code":
                seen += told(head, sections) and not tags & {"hide-input", "remove-cell"}
                continue
            _, *parts = re.split(r"(?m)^## (.*)$", "".join(pieces))
            for head, text in zip(parts[::2], parts[1::2], strict=True):
                words += told(head, sections) * len(FOLDED.sub("", text).split())
    return words, seen


def told(head: str, sections: Sequence[str] | None) -> bool:
    """Whether a section is one of those, or of all but the closing ones."""
    return head not in NOT_TOLD if sections is None else head in sections


def quiz(number: int) -> list[list[str]]:
    """Five questions for the beginning of an hour, on the last hour before it that has any."""
    bank = data("teaching/questions.yml")
    for hour in data("teaching/plan.yml")[number - 2 :: -1] if number > 1 else []:
        if rows := [row for name in hour["read"] for row in bank.get(name, [])[::2]]:
            return rows[:: max(1, len(rows) // 5)][:5]
    return []


def hours(plan: Sequence[dict[str, Any]]) -> list[str]:
    """What is done in each hour, with minutes that follow from what is named."""
    out = []
    for k, hour in enumerate(plan, 1):
        out += ["", f"### Hour {k}: {hour['title']}", ""]
        if goals := hour.get("objectives"):
            out += ["**After this hour a student can:**", "", *(f"- {x}" for x in goals), ""]
        (words, _), live = size(hour["read"], hour.get("sections")), hour.get("live", [])
        parts = ", ".join(hour.get("sections", [])) or "every section"
        of = ", ".join(map(link, hour["read"]))
        shown = "; ".join(x["show"] for x in live)
        wrong = hour.get("wrong", [])
        asked, home = (
            ", ".join(f"{{ref}}`{name}`" for name in hour[kind]) for kind in ("class", "home")
        )
        tasks = hour.get("tasks", 0)
        rows = [
            (5, "quiz", "five questions on what came before" if k > 1 else
             "none: open the first page, and let them type"),
            (round(words / PACE), "talk", f"{words:,} words of {of}: {parts}"),
            (CELL * len(live), "shown live", shown),
            (EXERCISE * len(hour["class"]), "in pairs", asked),
            (TASK * tasks, "at the lab", f"{tasks} tasks begun"),
            (WRONG * len(wrong), "wrong answers", "; ".join(x for x, _ in wrong)),
            (2, "homework", home or "finish the lab"),
        ]  # fmt: skip
        out += ["| minutes | what |", "|---|---|"]
        out += [f"| {n} | **{name}**: {x} |" for n, name, x in rows if n and x]
        out.append(f"| **{sum(n for n, _, x in rows if x)}** | what is left is for questions |")
    return out


def alone() -> list[str]:
    """Every chapter with the time that it takes somebody who works through it."""
    taught = {n for hour in data("teaching/plan.yml") for n in hour["read"]}
    out, total = ["| chapter | words | cells | exercises | minutes |", "|---|---|---|---|---|"], 0
    for name in chapters():
        words, seen = size([name])
        count = sum("".join(c["source"]).count("{exercise}") for c in cells(name))
        minutes = ALONE.get(name) or round(words / PACE + CELL * seen + 10 * count)
        total += minutes
        more = "" if name in taught else " (further reading)"
        out.append(f"| {link(name)}{more} | {words:,} | {seen} | {count} | {minutes} |")
    return [*out, f"| **all** | | | | **{total}**: {total / 60:.0f} hours |"]


def plan() -> str:
    """Ten hours, three, and thirty, with minutes that follow from what they name."""
    return "\n".join([
        "# Three, ten or thirty hours",
        "",
        f"The minutes are computed: {PACE} words of the named sections are told in a minute, a "
        f"demonstration takes {CELL} minutes, an exercise in pairs {EXERCISE}, a wrong answer "
        f"{WRONG}, a task of a lab {TASK}. What an hour has left is for questions. The quiz asks "
        "about the hour before, from the [bank](questions.md). `make slides` writes the slides. "
        "A demonstration takes seconds at the `quick` profile; run the cells before it in the "
        "break. `make instructor` writes what students do not "
        "see: what to say and what to wait for, the answers, the labs' model solutions, and an "
        "exam for each student.",
        "",
        "## Ten hours",
        *hours(data("teaching/plan.yml")),
        "",
        "## Three hours",
        *hours(data("teaching/short.yml")),
        "",
        "## Thirty hours",
        "",
        f"Every chapter, read and run: {PACE} words a minute, {CELL} minutes a cell, ten an "
        "exercise.",
        "",
        *alone(),
        "",
        (BOOK / "teaching" / "marks.txt").read_text(encoding="utf-8"),
    ])  # fmt: skip


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
        ["# Answers", "", "To the questions of the book, with the same numbers."]
        if answers
        else [
            "# Questions",
            "",
            "For a quiz or an exam; every answer follows from its chapter. *In the text* asks for "
            "what stands there, *to compute* for a small calculation, *to judge* for what follows "
            "and what does not. The answers are in the instructor's edition (`make instructor`).",
        ]
    )
    bank = data("teaching/questions.yml")
    for name in (n for n in chapters() if n in bank):
        head += ["", f"## {plain.titles()[name]}", ""]
        for k, (level, question, answer) in enumerate(bank[name], 1):
            mask = (answer if answers else question).replace("<MASK>", "`<MASK>`")
            head.append(f"{k}. {mask}" if answers else f"{k}. {mask} *({LEVELS[level]})*")
    return "\n".join([*head, ""])


def pages() -> dict[Path, str]:
    """Every page, by its path."""
    folder = BOOK / "teaching"
    return {
        BOOK / "glossary.md": glossary(),
        folder / "plan.md": plan(),
        folder / "questions.md": questions(answers=False),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
        print(path.relative_to(BOOK))
