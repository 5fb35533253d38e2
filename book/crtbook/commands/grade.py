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
    key: Annotated[Path, opt("Key file of the class, from 'crtbook lab'.", "place")],
    out: Annotated[Path | None, opt("CSV file for the marks.", "place")] = None,
) -> Answer:
    """Grade the submissions to a lab: a row for each file with points, total, copies and hints.

    The files are data; no code of a student runs. Grading twice gives the same marks. The column
    ``rationale`` is empty: the teacher marks what stands in ``explained``.

    Example: crtbook grade submissions --lab attack --key class.key --out grades.csv
    """
    from crtcourse import grading, keys

    rows = grading.grade(folder, lab, keys.read(key))
    if out is not None:
        grading.write(rows, out)
    return Answer({"rows": rows}, [grading.text(rows)])
