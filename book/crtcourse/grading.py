"""Grade a folder of submissions: one row for each file, without running any code from them.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> files.write_text(folder / "ann.json", '{"lab": "attack"')
>>> (row,) = grade_folder(folder, "attack", keys.make_key())
>>> row["name"], row["total"], row["hints"][:12]
('ann', 0.0, 'not graded: ')
"""

import contextlib
import difflib
import json
import re
import signal
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from crtcourse import attack, defence, keys
from crtcourse.labs import Marks, describe_error, make_printable, read_number
from crtlib import csv_formulas, files
from crtlib.checks import check_choice

LABS = ("attack", "defence")
LARGEST = 1 << 18
"""The largest size of a submission in bytes."""
SECONDS = {"attack": 10.0, "defence": 60.0}
"""Processor seconds that grading one submission may take."""
OWN = {"attack": ("exposure", "extraction", "membership"), "defence": ("plan",)}
"""The answers that no two students hand in alike by chance."""


def grade_folder(folder: str | Path, lab: str, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of all ``*.json`` files in a folder, by name: points for each task, a column for the
    teacher's marks of the rationale, the total without them, whose answers are the same, hints,
    and the rationale.

    ``key`` is that of the class (:func:`crtcourse.keys.read_key`). A file that cannot be graded
    gets a row of 0 points with the reason, and so does a student of the class without a file.
    Raises ``ValueError`` for a folder without submissions.
    """
    check_choice("lab", lab, LABS)
    paths = sorted(p for p in Path(folder).iterdir() if p.suffix == ".json")
    if not paths:
        raise ValueError(f"{folder}: holds no submission (*.json)")
    names_by_answer: dict[str, list[str]] = {}
    rows = [_grade_file(path, lab, key, names_by_answer) for path in paths]
    handed_in = [find_student(path.stem, key) for path in paths]
    for row, name in zip(rows, handed_in, strict=True):
        if name is not None and handed_in.count(name) > 1:
            row["hints"] = "; ".join(filter(None, [row["hints"], f"{name} has several files"]))
    rows += [_make_absent_row(name, lab) for name in key["students"] if name not in handed_in]
    for row in rows:
        alike = {name for who in names_by_answer.values() if row["name"] in who for name in who}
        row["same_as"] = ", ".join(sorted(alike - {row["name"]}))
    return rows


def find_student(stem: str, key: Mapping[str, Any]) -> str | None:
    """The student of a class to whom this file belongs. Names are compared without case and marks,
    because learning platforms change them ("Ann_Lee (1)"); None where none or several fit.

    >>> find_student("ann_LEE (1)", {"students": {"Ann Lee": {}, "Bob": {}}})
    'Ann Lee'
    """
    students = [name for name in key["students"] if _fold_name(name) == _fold_name(stem)]
    return students[0] if len(students) == 1 else None


def _fold_name(name: str) -> str:
    """A name as it is compared: without case, marks, and the number of a copy."""
    plain = re.sub(r"\s*\(\d+\)$", "", unicodedata.normalize("NFC", name))
    return " ".join(re.split(r"[\W_]+", plain.casefold())).strip()


def _make_absent_row(name: str, lab: str) -> dict[str, Any]:
    """The row of a student who handed in no file."""
    points = attack.POINTS if lab == "attack" else defence.POINTS
    row = {"name": name, **dict.fromkeys(points, 0.0), "rationale": "", "total": 0.0}
    return row | {"same_as": "", "hints": "no file of this student", "explained": ""}


def _grade_file(
    path: Path, lab: str, key: Mapping[str, Any], names_by_answer: dict[str, list[str]]
) -> dict[str, Any]:
    """The row of one file. Whoever gives an answer is added to ``names_by_answer``, which thus
    tells whose answers are the same."""
    points = attack.POINTS if lab == "attack" else defence.POINTS
    name = csv_formulas.escape_csv_formula(make_printable(path.stem))
    no_marks = Marks(points, dict.fromkeys(points, 0.0))
    explanation = ""
    try:
        answer = read_submission(path)
        with limit_seconds(SECONDS[lab]):
            marks = grade_submission(answer, lab, find_key_of_student(path.stem, lab, key))
        explanation = csv_formulas.escape_csv_formula(
            make_printable(str(answer.get("rationale", ""))[: attack.LONGEST])
        )
        for task in OWN[lab]:
            if answer.get(task) and answer[task] != attack.make_empty_form("ABC").get(task):
                same_answer = task + json.dumps(answer[task], sort_keys=True)
                names_by_answer.setdefault(same_answer, []).append(name)
    except Exception as error:  # the row reports it, and the next file is graded
        marks = replace(no_marks, hints=[f"not graded: {describe_error(error)}"])
    hints = "; ".join(marks.hints)
    row = {"name": name, **marks.earned, "rationale": "", "total": marks.total, "same_as": ""}
    return row | {"hints": hints, "explained": explanation}


def read_submission(path: Path) -> dict[str, Any]:
    """Read a submission. Raises ``ValueError`` if it is not a regular file, is too large, is not
    text in UTF-8 or UTF-16, is not JSON, or has a name twice."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("is no regular file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"is larger than {LARGEST >> 10} KiB")
    is_utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        answer = json.loads(
            content.decode("utf-16" if is_utf16 else "utf-8-sig"),
            object_pairs_hook=_refuse_repeated_names,
            parse_constant=read_number,
        )
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(answer, dict):
        raise ValueError("must be an object, as the empty form")
    return answer


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("has a name twice")
    return dict(pairs)


@contextlib.contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Raise ``TimeoutError`` after so many processor seconds; only in the main thread."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds:g} processor seconds")

    earlier_handler = signal.signal(signal.SIGPROF, stop)
    # Again each second, as a library may have discarded the first.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier_handler)


def find_key_of_student(name: str, lab: str, key: Mapping[str, Any]) -> attack.Key | int:
    """What a student is graded by: for the attack a key, for the defence the seed of the class."""
    if lab == "defence":
        return keys.derive_seed(bytes.fromhex(key["secret"]), lab)
    student_name = find_student(name, key)
    if student_name is None:
        near = difflib.get_close_matches(_fold_name(name), map(_fold_name, key["students"]), n=1)
        near_students = [n for n in key["students"] if _fold_name(n) in near]
        hint = f"; the nearest is {near_students[0]!r}" if near_students else ""
        raise ValueError(f"no student of this name got a hand-out{hint}")
    return attack.Key(**key["students"][student_name])


def grade_submission(answer: Any, lab: str, by: attack.Key | int) -> Marks:
    """The marks of one submission. Raises ``ValueError`` where nothing of it can be marked."""
    if not isinstance(answer, Mapping) or answer.get("lab") != lab:
        raise ValueError(f"lab: must be {lab!r}")
    return (
        defence.grade_answer(answer, by) if isinstance(by, int) else attack.grade_answer(answer, by)
    )


def write_marks(rows: list[dict[str, Any]], out: str | Path) -> None:
    """Write the rows as a CSV file, atomically, that only its owner can read."""
    files.write_text(out, pd.DataFrame(rows).to_csv(index=False), mode=0o600)


def format_marks(rows: list[dict[str, Any]]) -> str:
    """The rows for a terminal: one line for each, then what needs attention."""
    lines = []
    for row in rows:
        tasks = (f"{k} {v:g}" for k, v in row.items() if k != "total" and isinstance(v, float))
        lines.append(f"{row['name']}: {row['total']:g} ({', '.join(tasks)})")
        lines += [f"    same answers as {row['same_as']}"] * bool(row["same_as"])
        lines += [f"    hint: {hint}" for hint in row["hints"].split("; ") if hint]
    return "\n".join(lines)
