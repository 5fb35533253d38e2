"""Grade a folder of submissions: one row a student, and never any code of theirs.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> files.write_text(folder / "ann.json", '{"lab": "attack"')
>>> [(row["name"], row["total"], row["hints"][:12]) for row in grade(folder, "attack")]
[('ann', 0.0, 'not graded: ')]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from crtcourse import attack, defence
from crtcourse.marks import Marks
from crtlib import files
from crtlib.checks import check_choice

LABS = ("attack", "defence")


def grade(folder: str | Path, lab: str, *, seed: int = 0) -> list[dict[str, Any]]:
    """The rows of all ``*.json`` of a folder, by name: points for each task, their total, hints.

    ``seed`` is that of the class, whose key it is. A file that cannot be graded is a row of 0
    points with the reason. Raises ``ValueError`` for a folder without submissions.
    """
    check_choice("lab", lab, LABS)
    paths = sorted(Path(folder).glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: holds no submission (*.json)")
    return [_row(path, lab, seed) for path in paths]


def _row(path: Path, lab: str, seed: int) -> dict[str, Any]:
    points = attack.POINTS if lab == "attack" else defence.POINTS
    try:
        marks = judge(json.loads(path.read_text(encoding="utf-8")), lab, seed)
        earned, hints, total = marks.earned, "; ".join(marks.hints), marks.total
    except (ValueError, TypeError, KeyError, AttributeError, TimeoutError) as error:
        earned, total = dict.fromkeys(points, 0.0), 0.0
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        hints = f"not graded: {reason}"
    return {"name": files.harmless(path.stem), **earned, "total": total, "hints": hints}


def judge(answer: Any, lab: str, seed: int) -> Marks:
    """The marks of one submission. Raises ``ValueError`` where it is malformed."""
    if not isinstance(answer, Mapping) or answer.get("lab") != lab:
        raise ValueError(f"lab: must be {lab!r}")
    if lab == "attack":
        return attack.grade(answer, attack.room(seed).key)
    return defence.grade(answer, seed)


def write(rows: list[dict[str, Any]], out: str | Path) -> None:
    """The rows as a CSV file, atomically; marks are their owner's."""
    with files.replacing(out, mode=0o600) as part:
        part.write_text(pd.DataFrame(rows).to_csv(index=False), encoding="utf-8")


def text(rows: list[dict[str, Any]]) -> str:
    """The rows for a terminal: a line each, with the hints below."""
    lines = []
    for row in rows:
        tasks = (f"{k} {v:g}" for k, v in row.items() if k not in ("name", "total", "hints"))
        lines.append(f"{row['name']}: {row['total']:g} of 100 ({', '.join(tasks)})")
        lines += [f"    hint: {hint}" for hint in row["hints"].split("; ") if hint]
    return "\n".join(lines)
