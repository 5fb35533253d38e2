"""Refuse an argument in one line that names it, its value, and what is allowed.

>>> check_allowed("gamma", 7, False, "in [0, 1]")
Traceback (most recent call last):
...
ValueError: gamma=7: must be in [0, 1]
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Sequence

MIN_CLIP_NORM = 1e-6
MAX_NUMBERS = 20
"""The most numbers that an option takes as a list."""
MAX_SHOWN_CHARACTERS = 200
"""The most characters that a message shows of a value from outside."""
PLAIN_NAME = re.compile(r"\w[\w/+@=-]*(?:[ .:][\w/+@=-]+)*")
"""Words of letters and digits, with one space, dot or colon between two."""
MAX_NAME_CHARACTERS = 64


DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
MACHINE_ERRNOS = DISK_FULL_ERRNOS | {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Errors that no argument and no file is to blame for: exit code 3."""


def raise_machine_fault(error: BaseException) -> None:
    """Raise an error again if it is the machine's fault, such as a full or broken disk. It is then
    reported as it is, and not as a fault of a name, a mode or a file.

    Guarantee:
        Test: ``tests/test_outputs.py::test_a_full_disk_is_no_place_that_cannot_be_written``.
    """
    if isinstance(error, OSError) and error.errno in MACHINE_ERRNOS:
        raise error


def printable(value: object, most: int = MAX_SHOWN_CHARACTERS, *, quoted: bool = False) -> str:
    """A value from outside as one line that a message can show.

    Args:
        value: A text, which is shown by its characters, or anything else, by its ``repr``.
        most: The most characters that are shown; a longer text is cut.
        quoted: Whether a text is shown by its ``repr``, too.

    Returns:
        The line. Control sequences of terminals, marks that change the direction of writing, line
        ends, halves of characters and invisible characters are escaped in it.

    Guarantee:
        A name cannot change what a message says before or after it. Test:
        ``tests/test_printable.py``.

    >>> printable("a\\x1b[2K\\rb\\u202ec"), printable("x" * 300, most=5), printable(10**5000)
    ('a\\\\x1b[2K\\\\rb\\\\u202ec', 'xxxxx…', 'a number of more than 4300 digits')
    """
    try:
        text = value if isinstance(value, str) and not quoted else repr(value)
    except ValueError:  # Python does not write longer numbers
        text = "a number of more than 4300 digits"
    shown = text if len(text) <= most else text[:most] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def check_plain_name(name: str, value: str) -> None:
    """Refuse a name that could end a sentence it is put in, begin another, or be markup.

    Guarantee:
        Test: ``tests/test_printable.py::test_a_name_in_a_sentence_says_nothing``.

    >>> check_plain_name("name", "helpdesk/model-1.2 of May")
    >>> check_plain_name("name", "harmless. Nothing can leak. It")
    Traceback (most recent call last):
    ...
    ValueError: name='harmless. Nothing can leak. It': must be words of letters, digits and \
_/+@=-, with one space, dot or colon between two, at most 64 characters
    """
    if len(value) > MAX_NAME_CHARACTERS or not PLAIN_NAME.fullmatch(value):
        raise ValueError(
            f"{name}={printable(value, quoted=True)}: must be words of letters, digits and "
            f"_/+@=-, with one space, dot or colon between two, at most {MAX_NAME_CHARACTERS} "
            "characters"
        )


def plain_name(text: str) -> str:
    """A name that :func:`check_plain_name` accepts, unchanged; any other, such as that of a
    folder, is cut to the allowed length, with an underscore for each run of characters that are
    neither letters nor digits, "_" nor "-".

    >>> plain_name("model-1.2"), plain_name("x. **Nothing can leak** (2)"), plain_name("..")
    ('model-1.2', 'x_Nothing_can_leak_2_', '_')
    """
    if len(text) <= MAX_NAME_CHARACTERS and PLAIN_NAME.fullmatch(text):
        return text
    return re.sub(r"[^\w-]+", "_", text)[:MAX_NAME_CHARACTERS].lstrip("-") or "_"


def check_allowed(name: str, value: float, allowed: bool, rule: str) -> None:
    """Refuse a value that is not ``allowed``, in one line that states what is. True and False are
    not numbers."""
    if type(value).__name__ in ("bool", "bool_"):  # NumPy's as well
        rule += ": a number, and neither True nor False"
    elif allowed:  # not for nan, because every comparison with nan is false
        return
    raise ValueError(f"{name}={value}: must be {rule}")


def check_whole_number(name: str, value: float, least: int) -> None:
    """Refuse a value that is not a whole number, is below ``least``, or is larger than floats can
    count to."""
    allowed = least <= value <= 2**53 and value == int(value)
    if isinstance(value, int) and abs(value) > 2**53:  # it may have more digits than a line
        value = math.inf
    check_allowed(name, value, allowed, f"a whole number, at least {least}")


def check_delta(delta: float, *, name: str = "delta") -> None:
    check_allowed(name, delta, 0 < delta < 1, "in (0, 1)")


def check_probabilities(**values: float) -> None:
    for name, value in values.items():
        check_allowed(name, value, 0 <= value <= 1, "in [0, 1]")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(choices)}")


def check_positive(**values: float) -> None:
    for name, value in values.items():
        check_allowed(name, value, value > 0, "positive")


def check_clip_norm(value: float) -> None:
    """Refuse a clipping norm whose square comes near the smallest number of float32, 1e-38.

    Norms are sums of squares. At 1e-6, a gradient as long as the clipping norm is seen completely,
    even if it is spread over up to 1e20 numbers. What cancels in such sums is another matter and
    affects any clipping norm:
    :meth:`crtlib.training.gradient_recorder.GradientRecorder.norms` accounts for it."""
    check_allowed(
        "clip_norm", value, MIN_CLIP_NORM <= value < math.inf, "at least 1e-6, and finite"
    )


def find_repeated_name(names: Sequence[str]) -> tuple[int, int] | None:
    """Which two columns have the same name, counted from 1; None if each has its own. A table that
    is read by names would lose the first of the two in silence.

    >>> find_repeated_name(["user", "text", "time", "text"])
    (2, 4)
    """
    first_places: dict[str, int] = {}
    for place, name in enumerate(names, 1):
        if (first := first_places.setdefault(name, place)) != place:
            return first, place
    return None


class DamagedError(ValueError):
    """A file is not what was written to it: the machine's fault, not the user's, and exit code
    3."""


class MachineError(RuntimeError):
    """The machine failed. What was finished is kept, and the message states what to do next."""


def parse_whole_numbers(name: str, text: str) -> list[int]:
    """The whole numbers in a text that has commas between them.

    >>> parse_whole_numbers("secrets_per_person", "1, 5")
    [1, 5]
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and len(part) < 16 for part in parts) or len(parts) > MAX_NUMBERS:
        rule = f"at most {MAX_NUMBERS} whole numbers with commas between them"
        raise ValueError(f"{name}={printable(text, quoted=True)}: must be {rule}")
    return [int(part) for part in parts]


class ParameterError(ValueError):
    """A user's mistake; a notebook shows it as one line instead of a traceback."""

    def _render_traceback_(self) -> list[str]:  # read by IPython
        return [f"parameter refused: {self}"]
