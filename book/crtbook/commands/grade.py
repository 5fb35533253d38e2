"""``crtbook grade``: grade a folder of submissions to a lab."""

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
    models: Annotated[
        Path | None, opt("New folder for each team's model, to be attacked.", "place")
    ] = None,
    found: Annotated[
        Path | None, opt("Folder with what each team found in those models.", "place")
    ] = None,
) -> Answer:
    """Grade the submissions to a lab: a row for each file with points, total, copies and hints.

    The files are data; no code of a student runs. Grading twice gives the same marks. The column
    ``rationale`` is empty: the teacher marks what stands in ``explained``. A round of the defence
    lab is two calls: with ``--models``, and a week later with ``--found``.

    Example: crtbook grade submissions --lab attack --key class.key --out grades.csv
    """
    from crtcourse import grading, keys

    rows = grading.grade(folder, lab, keys.read(key), models=models, found=found)
    if out is not None:
        grading.write(rows, out)
    return Answer({"rows": rows}, [grading.text(rows)])
