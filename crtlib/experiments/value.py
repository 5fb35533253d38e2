"""Frozen values whose fields have types and ranges; a bad one is refused in one line.

>>> @value
... class Shape:
...     hidden: Count = 64
...     gamma: Share = 0.1
>>> Shape(gamma=1).gamma
1.0
>>> Shape(hidden=-1)
Traceback (most recent call last):
...
crtlib.checks.ParameterError: hidden=-1: must be greater than or equal to 1
>>> Shape(hiden=3)
Traceback (most recent call last):
...
crtlib.checks.ParameterError: hiden: unknown; allowed are hidden, gamma
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from crtlib.checks import ParameterError

Share = Annotated[float, Field(ge=0, le=1)]
Open = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Word = Annotated[str, Field(min_length=1)]

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def value(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that checks its fields' types and ranges when it is made.

    ``dataclasses.replace``, ``asdict`` and ``fields`` work as on any other. Integers become floats
    where a float is asked for, so that 3 and 3.0 are one value; nothing else is converted. Raises
    :class:`ParameterError`, one line, for a bad or unknown field.
    """
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    made: Any = dataclass(frozen=True, kw_only=True, config=config)(cls)
    honest = made.__init__

    @functools.wraps(honest)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        try:
            honest(self, *args, **given)
        except ValidationError as error:
            raise refusal(error, [f.name for f in fields(self)]) from None

    made.__init__ = checked
    return cast(type[T], made)


def refusal(error: ValidationError, known: list[str]) -> ParameterError:
    """The first mistake that pydantic found, in one line."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"]) or "value"
    kind = first["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return ParameterError(f"{name}: unknown; allowed are {', '.join(known)}")
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return ParameterError(f"{name}: is missing")
    text = first["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return ParameterError(text)  # our own rules name the argument themselves
    return ParameterError(
        f"{name}={first['input']!r}: must be {text.removeprefix('Input should be ')}"
    )


def adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    """What reads and writes values of this type as JSON."""
    return pydantic.TypeAdapter(kind)
