"""``crtbook grade``: grade a folder of submissions to a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def grade(
    folder: Annotated[
        Path, opt("Folder with a NAME.json for each student.", "place", argument="FOLDER")
    ],
    lab: Annotated[str, opt("Lab: attack or defence.")],
    seed: Annotated[int, opt("Seed of the class: its key; 0 is for practice.")] = 0,
    out: Annotated[Path | None, opt("CSV file for the marks.", "place")] = None,
) -> Answer:
    """Grade the submissions to a lab: points for each task, the total, and hints.

    The files are data; no code of a student runs. Grading twice gives the same marks.

    Example: crtbook grade submissions --lab attack --seed 48213 --out grades.csv
    """
    from crtcourse import grading

    rows = grading.grade(folder, lab, seed=seed)
    if out is not None:
        grading.write(rows, out)
    return Answer({"rows": rows}, [grading.text(rows)])
