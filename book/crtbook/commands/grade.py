"""``crtbook grade``: grade a folder of submissions to a lab."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def grade(
    folder: Annotated[Path, typer.Argument(help="Folder with a NAME.json for each student.")],
    lab: Annotated[str, typer.Option(help="attack or defence.")],
    seed: Annotated[int, typer.Option(help="Seed of the class: its key. 0 is for practice.")] = 0,
    out: Annotated[Path | None, typer.Option(help="CSV file for the marks.")] = None,
) -> None:
    """Grade the submissions to a lab: points for each task, the total, and hints.

    The files are data; no code of a student runs. Grading twice gives the same marks.

    Example: crtbook grade submissions --lab attack --seed 48213 --out grades.csv
    """
    from crtcourse import grading

    rows = grading.grade(folder, lab, seed=seed)
    if out is not None:
        grading.write(rows, out)
    print(grading.text(rows))
