"""``crtbook grade``: grade a folder of submissions to a lab."""

from pathlib import Path

from crtlib.options import CommandResult


def grade(
    folder: Path,
    lab: str,
    key: Path,
    out: Path | None = None,
) -> CommandResult:
    """Grade the submissions to a lab: for each file its points, total, copies and hints.

    The files are data; no code of a student runs. Grading twice gives the same marks. The column
    ``rationale`` is left empty for the teacher, who marks what stands in ``explained``.

    Example: crtbook grade submissions --lab attack --key class.key --out grades.csv

    Files:
        FOLDER: Folder with a NAME.json for each student.
        --key: Key file of the class, which 'crtbook lab' wrote.
        --out: CSV file for the marks.
    Options:
        --lab: Lab to grade: attack or defence.
    """
    from crtcourse import grading, keys

    rows = grading.grade_folder(folder, lab, keys.read_key(key))
    if out is not None:
        grading.write_marks(rows, out)
    return CommandResult({"rows": rows}, [grading.format_marks(rows)])
