"""Exercises that check themselves: every chapter has one, its solution passes, mistakes do not."""

import json
import re
from pathlib import Path

import pytest
import yaml

from crtcourse import exercises
from crtcourse.exercises import check, load_exercises

ROOT = Path(__file__).resolve().parents[3]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FOLDED = re.compile(r"(?ms)^(`{3,})\{solution\} (ex-[\w-]+)\n(.*?)^\1[ \t]*$")
ACCEPTS = re.compile(r'`check\("(ex-[\w-]+)", (.*)\)` says that this is right\.')


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def text(path, kind="markdown"):
    return "\n".join("".join(c["source"]) for c in cells(path) if c["cell_type"] == kind)


def solved(path):
    """The answer that each folded solution of a chapter says is right."""
    bodies = [match[3] for match in FOLDED.finditer(text(path))]
    return {m[1]: eval(m[2]) for body in bodies for m in ACCEPTS.finditer(body)}


def test_every_chapter_has_an_exercise_that_checks_itself():
    without = {p.stem for p in CHAPTERS} - {e.chapter for e in load_exercises().values()}
    assert without <= {"lab_attack", "lab_defence"}  # those are graded as a whole


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_folded_solution_passes_and_stands_nowhere_else(path):
    ids = [e.id for e in load_exercises().values() if e.chapter == path.stem]
    answers = solved(path)
    assert sorted(answers) == sorted(ids)
    assert [name for name, answer in answers.items() if not check(name, answer)] == []
    asked = re.findall(r'check\("(ex-[\w-]+)", (.+?)\)', text(path, "code"))
    assert sorted(asked) == sorted((name, "...") for name in ids)
    assert ACCEPTS.search(FOLDED.sub("", text(path))) is None


@pytest.mark.parametrize("exercise", load_exercises().values(), ids=lambda e: e.id)
def test_a_wrong_answer_gets_a_hint_and_a_likely_mistake_its_line(exercise):
    junk = {"number": -123.456, "words": "xyzzy", "function": lambda text: []}[exercise.kind]
    result = check(exercise.id, junk)
    assert not result and result.message
    for mistake, why in (exercise.wrong or {}).items():
        result = check(exercise.id, mistake)
        assert not result.passed and result.message == why
    assert not check(exercise.id, None) and exercise.wants in check(exercise.id, None).message


def test_no_answer_stands_in_the_registry():
    rows = yaml.safe_load((ROOT / "book" / "crtcourse" / "exercises.yml").read_text())
    assert {key for row in rows for key in row} <= {
        *("id", "chapter", "kind", "wants", "hints", "tolerance", "hashed", "wrong")
    }
    assert all(bool(row.get("hashed")) == (row["kind"] == "words") for row in rows)


def test_hints_come_one_after_the_other(monkeypatch):
    monkeypatch.setattr(exercises, "_asked", {})
    shown = [exercises.hint("ex-labels")[:11] for _ in range(3)]
    assert shown == ["Hint 1 of 2", "Hint 2 of 2", "Hint 2 of 2"]


def test_a_mistyped_name_is_refused_with_the_nearest_ones():
    with pytest.raises(ValueError, match="ex-canary-mean"):
        check("ex-canary-men", 1)


def test_a_function_that_fails_is_told_so():
    assert "ZeroDivisionError" in check("ex-screening-trace", lambda text: 1 / 0).message
