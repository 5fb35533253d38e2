"""Exercises that check themselves: an answer in, a verdict and one line of why out.

>>> check("ex-labels", 30)
✗ not yet: ex-labels. Hint 1 of 2: hint("ex-labels")
>>> hint("ex-labels")
'Hint 1 of 2: put m = 0 into the definition: which power of 1 - p is left?'
>>> bool(check("ex-labels", 29)), check("ex-labels", ...).message
(True, 'no answer yet; it wants a whole number of labels')

A notebook shows nothing for a check that has no answer yet: on a page, where nobody can type one,
it would look like a failure.

The registry is ``exercises.yml``, which holds no answers. A number is computed by the recipe of
:mod:`crtcourse.recipes` that has the exercise's name, a function is run on cases, and words are
compared as salted hashes (scrypt). The space of answers is so small that hashes hide nothing: the
check is for learning, never for marks.
"""

import difflib
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from crtcourse import recipes


@dataclass(frozen=True)
class Exercise:
    """One exercise: what it asks for, how it is checked, its hints, and replies to likely mistakes.

    ``tolerance`` is relative; ``hashed`` are the digests of accepted words; ``wrong`` maps a number
    (within the tolerance) or words to one line.
    """

    id: str
    chapter: str
    kind: str
    wants: str
    hints: Sequence[str]
    tolerance: float = 0.01
    hashed: Sequence[str] = ()
    wrong: Mapping[Any, str] | None = None


@dataclass(frozen=True, repr=False)
class Result:
    """The verdict on one answer; ``bool(result)`` is whether it is right."""

    id: str
    passed: bool
    message: str
    answered: bool = True

    def _ipython_display_(self) -> None:
        if self.answered:
            print(self)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        if self.passed:
            return f"✓ right: {self.id}"
        return f"✗ not yet: {self.id}. {self.message}"


@functools.cache
def load_exercises() -> dict[str, Exercise]:
    """All exercises by their label in the book."""
    rows = yaml.safe_load(resources.files("crtcourse").joinpath("exercises.yml").read_text("utf-8"))
    return {row["id"]: Exercise(**row) for row in rows}


def find_exercise(name: str) -> Exercise:
    """The exercise with this label; for an unknown one ``ValueError`` names the nearest labels."""
    if name not in load_exercises():
        near = difflib.get_close_matches(str(name), load_exercises(), n=3, cutoff=0.0)
        raise ValueError(f"id={name!r}: must be an exercise that checks itself, as {near}")
    return load_exercises()[name]


def hash_words(name: str, words: str) -> str:
    """The salted hash of an answer in words, whatever the case, spaces and order of a list are."""
    items = sorted(" ".join(part.split()).lower().strip(". ") for part in words.split(","))
    salt = f"crtlib:{name}".encode()
    return hashlib.scrypt(", ".join(items).encode(), salt=salt, n=2**12, r=8, p=1, dklen=16).hex()


_asked: dict[str, int] = {}
"""How many hints of each exercise were shown in this session."""


def _next_hint(name: str) -> tuple[int, str]:
    """The number of the next hint, or of the last one, and its heading."""
    count = len(find_exercise(name).hints)
    number = min(_asked.get(name, 0) + 1, count)
    return number, f"Hint {number} of {count}: "


def hint(name: str) -> str:
    """The next hint; after the last one, the last one again."""
    _asked[name], head = _next_hint(name)
    return head + find_exercise(name).hints[_asked[name] - 1]


def check(name: str, answer: Any) -> Result:
    """Judge an answer. For a wrong one, a line says what went wrong if others made this mistake
    before, and otherwise where the next hint is. ``...`` means that there is no answer yet.

    Raises ``ValueError`` only for an unknown label.
    """
    exercise = find_exercise(name)
    if answer is ...:
        return Result(name, False, f"no answer yet; it wants {exercise.wants}", answered=False)
    judges = {"number": _judge_number, "words": _judge_words, "function": _judge_function}
    passed, why = judges[exercise.kind](exercise, answer)
    return Result(name, passed, why if passed or why else f'{_next_hint(name)[1]}hint("{name}")')


def _is_near(value: float, expected: float, exercise: Exercise) -> bool:
    tolerance = exercise.tolerance
    return math.isclose(value, expected, rel_tol=tolerance, abs_tol=tolerance / 1e3)


def _judge_number(exercise: Exercise, answer: Any) -> tuple[bool, str]:
    """Whether a number is right, and what is known about a wrong one."""
    try:
        value = float(answer)
    except (TypeError, ValueError):
        return False, f"it wants {exercise.wants}, not {type(answer).__name__}"
    if _is_near(value, recipes.RECIPES[exercise.id](), exercise):
        return True, ""
    for mistake, why in (exercise.wrong or {}).items():
        if _is_near(value, float(mistake), exercise):
            return False, why
    return False, ""


def _judge_words(exercise: Exercise, answer: Any) -> tuple[bool, str]:
    """Whether words are right, and what is known about wrong ones."""
    if isinstance(answer, (set, frozenset, list, tuple)):
        answer = ", ".join(map(str, answer))
    if not isinstance(answer, (str, int)):
        return False, f"it wants {exercise.wants}, not {type(answer).__name__}"
    code = hash_words(exercise.id, str(answer))
    if code in exercise.hashed:
        return True, ""
    mistakes = {
        hash_words(exercise.id, str(key)): why for key, why in (exercise.wrong or {}).items()
    }
    return False, mistakes.get(code, "")


def _judge_function(exercise: Exercise, answer: Any) -> tuple[bool, str]:
    """Whether a function is right on the cases of its exercise, and where it is wrong."""
    if not callable(answer):
        return False, f"it wants {exercise.wants}, not {type(answer).__name__}"
    try:
        why: str = recipes.RECIPES[exercise.id](answer)
    except Exception as error:  # in the student's own code: report it, and go on
        return False, f"it raised {type(error).__name__}: {error}"
    return not why, why
