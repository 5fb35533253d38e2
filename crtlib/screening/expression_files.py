"""Policies from a file of regular expressions of one's own (TOML)."""

from __future__ import annotations

import time
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import regex as regular
from pydantic import BaseModel, Field, ValidationError

from crtlib import files
from crtlib.checks import raise_machine_fault
from crtlib.screening.policy import Policy, UnansweredError
from crtlib.screening.redaction import Spans, merge_spans
from crtlib.screening.regex_policies import REGEX_CORPORA, corpus_regex_policy
from crtlib.screening.value_lists import LIST_SUFFIXES
from crtlib.text.encodings import describe_recoding
from crtlib.text.records import Point, Secret

# --------------------------------------------------------------------------- expressions
MATCH_TIMEOUT_SECONDS = 5.0
"""How long an expression may take on a turn, plus five microseconds for each character."""
SLOW_TURN_SECONDS, MAX_SLOW_SECONDS = 0.1, 60.0
"""All turns that take longer than the first may together take as long as the second."""

_FIELD_RULES = {
    "pattern": "must be a text",
    "flags": "must consist of i and x",
    "examples": "must be a list of texts",
    "not": "must be a list of texts",
    "check": "must be luhn",
}


class _ExpressionTable(BaseModel, extra="forbid", strict=True):
    """One kind of secret in a file of expressions."""

    pattern: str
    flags: str = Field("", pattern="^[ix]*$")
    examples: list[str] = []
    excluded: list[str] = Field([], alias="not")
    check: Literal["luhn"] | None = None


def has_luhn_digit(number: str) -> bool:
    """Whether the last digit of a number is its Luhn digit (ISO/IEC 7812-1, annex B), as on cards.

    >>> has_luhn_digit("4111 1111 1111 1111"), has_luhn_digit("4111 1111 1111 1112")
    (True, False)
    """
    digits = [unicodedata.decimal(c) for c in number if c.isdecimal()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(digits) > 1 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _compile_expression(
    file_name: str, kind: str, value: object
) -> Callable[[str, str], list[Secret]]:
    """Return a function that finds the spans of one table of a file of expressions in a text; its
    second argument names the text in errors. ``ValueError`` states what is wrong with the table."""

    def wrong(key: str, why: str) -> ValueError:
        return ValueError(f"{file_name}, [{kind}] {key}: {why}")

    slow_seconds = 0.0

    def spans(text: str, turn: str) -> list[Secret]:
        """The spans that the table finds. Raises ``ValueError`` where that takes too long: an
        expression may take exponential time, whatever it looks like."""
        nonlocal slow_seconds
        seconds, began = MATCH_TIMEOUT_SECONDS + 5e-6 * len(text), time.thread_time()
        try:
            matches = [(m[group], *m.span(group)) for m in pattern.finditer(text, timeout=seconds)]
        except TimeoutError:
            raise UnansweredError(
                f"{file_name}, [{kind}] pattern: takes longer than {seconds:.0f} s on "
                f"{turn}; let no two repeats match the same characters"
            ) from None
        seconds_taken = time.thread_time() - began
        slow_seconds += seconds_taken if seconds_taken > SLOW_TURN_SECONDS else 0.0
        if slow_seconds > MAX_SLOW_SECONDS:
            raise UnansweredError(
                f"{file_name}, [{kind}] pattern: takes longer than {MAX_SLOW_SECONDS:.0f} s on "
                f"slow turns together, the last of which is {turn}; let no two repeats match the "
                "same characters"
            )
        return [
            Secret(kind, a, b)
            for value, a, b in matches
            if a < b and value not in excluded and (table.check is None or has_luhn_digit(value))
        ]

    try:
        table = _ExpressionTable.model_validate(value)
    except ValidationError as error:
        key = str((*error.errors()[0]["loc"], "pattern")[0])
        why = _FIELD_RULES.get(key, f"must be one of {', '.join(_FIELD_RULES)}")
        raise wrong(key, why) from None
    excluded = frozenset(table.excluded)
    try:
        bits = sum(regular.RegexFlag[flag.upper()] for flag in set(table.flags))
        pattern = regular.compile(table.pattern, bits)
        group = "secret" if "secret" in pattern.groupindex else 0
        if pattern.match("", timeout=MATCH_TIMEOUT_SECONDS):
            raise wrong("pattern", "matches the empty text")
        for number, example in enumerate(table.examples, 1):
            full_match = pattern.fullmatch(example, timeout=MATCH_TIMEOUT_SECONDS)
            if not full_match or not spans(example, f"example {number}"):
                raise wrong("examples", f"number {number} does not match in full")
    except (regular.error, RecursionError, OverflowError) as error:
        raise wrong("pattern", f"is not a regular expression ({error})") from None
    except TimeoutError:
        raise wrong(
            "pattern", f"takes longer than {MATCH_TIMEOUT_SECONDS:.0f} s on its examples"
        ) from None
    return spans


def expression_file_policy(file: str) -> Policy:
    """A policy that flags what the expressions of a TOML file match, one table for each kind.

    ``pattern`` is a regular expression for the package ``regex``, which also reads those of ``re``;
    the span is the group ``secret`` if there is one. ``flags`` may hold i and x. ``examples`` must
    match completely. ``not`` lists values that are no secrets. With ``check = "luhn"``, only
    numbers whose last digit is that of a card count. An expression that takes longer than
    ``MATCH_TIMEOUT_SECONDS`` on a turn ends the call with a ``ValueError`` that names both.
    """
    file_name = Path(file).name
    if reason := files.why_not_regular(file):
        raise ValueError(f"policy='regex:{file}': {reason}")
    try:
        tables = tomllib.loads(files.read_text(file))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise_machine_fault(error)
        reason = f"is not TOML ({type(error).__name__})"
        if isinstance(error, UnicodeDecodeError):
            reason = f"is not UTF-8; {describe_recoding(Path(file))}"
        raise ValueError(f"policy='regex:{file}': {reason}") from None
    if not tables:
        raise ValueError(f"policy='regex:{file}': holds no table")
    finders = [_compile_expression(file_name, *item) for item in tables.items()]

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        for k, p in enumerate(points, 1):
            yield merge_spans([spans(p.text, f"turn {k}") for spans in finders])

    return Policy(f"regex:{file}", flag, own_words=True, batched=True)


def regex_policy(argument: str) -> Policy:
    """The policy that ``regex:`` names, from a file of expressions or for a corpus."""
    if argument.endswith(".toml"):
        return expression_file_policy(argument)
    if argument not in REGEX_CORPORA:
        hint = f"; list:{argument} looks for the values of a list"
        raise ValueError(
            f"policy='regex:{argument}': must be regex:FILE.toml, or regex: with one of "
            f"{', '.join(REGEX_CORPORA)}" + hint * argument.endswith(LIST_SUFFIXES)
        )
    return corpus_regex_policy(argument)
