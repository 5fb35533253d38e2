"""What students do not see: ``python book/instructor.py [--key class.key] [--out FOLDER]`` writes
notes, answers, the labs' solutions and, for the students of a class, an exam each.

The numbers of an exam follow from the key of the class and the student's name, and the solutions
are computed from them; without the key nobody makes either.
"""

import argparse
import html
import math
import random
from pathlib import Path
from typing import Any

import render
import teaching
from crtcourse import keys
from crtlib import files, intervals
from crtlib.accounting import guarantees, secrets

BOOK = Path(__file__).resolve().parent

SOLVE = {
    "coin": lambda p: math.log(p / (1 - p)),
    "laplace": lambda epsilon, t: math.exp(-epsilon * t),
    "shame": lambda n, delta: n * delta,
    "empty": lambda n, q: (1 - q) ** n,
    "labels": lambda missed, labelled: intervals.clopper_pearson_upper(missed, labelled),
    "amplified": lambda epsilon, gamma: guarantees.bayes_amplify(epsilon, delta=0.0, gamma=gamma)[
        0
    ],
    "exposure": lambda rank: math.log2(10**6 / rank),
    "luck": lambda canaries, bits: 1 - (1 - 2.0**-bits) ** canaries,
    "copies": lambda copies, gamma: 1 - (1 - gamma) ** copies,
    "guess": lambda epsilon, candidates: float(
        secrets.posterior(epsilon, 1 / candidates, kind="pure")
    ),
}
"""The answer to each question of ``teaching/exam.yml``, from its numbers."""


def exam(secret: bytes, name: str) -> list[tuple[str, float]]:
    """The questions of one student, and their answers."""
    rng = random.Random(keys.seed(secret, "exam", name))
    out = []
    for question, given in teaching.data("teaching/exam.yml").items():
        numbers = {key: rng.choice(values) for key, values in given["numbers"].items()}
        out.append((given["asks"].format(**numbers), SOLVE[question](**numbers)))
    return out


def pages(key: dict[str, Any] | None) -> dict[str, str]:
    """Every page of the edition by its file's name, as markdown."""
    solutions = (BOOK / "teaching" / "solutions.txt").read_text(encoding="utf-8")
    out = {"notes": teaching.notes(), "answers": teaching.questions(answers=True)}
    out |= {"solutions": solutions}
    table = []
    for name in key["students"] if key else ():
        asked = exam(bytes.fromhex(key["secret"]), name)
        lines = [f"# Exam: {name}", "", "Give each answer to three digits; two points each.", ""]
        out[f"exam-{name}"] = "\n".join([*lines, *(f"1. {text}\n" for text, _ in asked)])
        table.append(f"| {name} | " + " | ".join(f"{answer:.4g}" for _, answer in asked) + " |")
    if table:
        head = f"| student | {' | '.join(SOLVE)} |\n|{'---|' * (1 + len(SOLVE))}\n"
        out["exam solutions"] = "# Solutions of the exams\n\n" + head + "\n".join(table)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--key", type=Path, help="the class, as crtbook lab wrote it")
    parser.add_argument("--out", type=Path, default=BOOK.parent / "_build" / "instructor")
    options = parser.parse_args()
    try:
        written = pages(keys.read(options.key) if options.key else None)
    except (ValueError, OSError) as error:
        parser.error(f"--key: {error}")
    options.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    links = [f'<li><a href="{html.escape(name)}.html">{html.escape(name)}</a>' for name in written]
    for name, text in written.items():
        body = f"<main>{render.markdown(text)}</main>"
        files.write_text(options.out / f"{name}.html", render.document(name, body))
    body = f"<main><h1>For the instructor</h1><ul>{''.join(links)}</ul></main>"
    files.write_text(options.out / "index.html", render.document("For the instructor", body))
    print(options.out / "index.html")
