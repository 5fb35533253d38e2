"""Frozen values whose fields have types and ranges; a bad one is refused in one line.

>>> @checked_dataclass
... class Shape:
...     hidden: PositiveInt = 64
...     gamma: Probability = 0.1
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
from typing import (
    Annotated,
    Any,
    cast,
    dataclass_transform,
)

import pydantic.dataclasses
from pydantic import ConfigDict, Field, ValidationError

from crtlib.checks import ParameterError
from crtlib.options import T, first_mistake

# --------------------------------------------------------------------- values
Probability = Annotated[float, Field(ge=0, le=1)]
OpenProbability = Annotated[float, Field(gt=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonEmptyStr = Annotated[str, Field(min_length=1)]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def checked_dataclass(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that checks its fields' types and ranges when it is made.

    ``dataclasses.replace``, ``asdict`` and ``fields`` work as on any other. An integer becomes a
    float if the field is one, so that 3 and 3.0 are one value; nothing else is converted. Raises
    :class:`ParameterError`, in one line, for a bad or unknown field.
    """
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    made_class: Any = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    honest = made_class.__init__

    @functools.wraps(honest)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        try:
            honest(self, *args, **values)
        except ValidationError as error:
            unknown = f"unknown; allowed are {', '.join(f.name for f in fields(self))}"
            raise ParameterError(str(first_mistake(error, repr, unknown))) from None

    made_class.__init__ = checked
    return cast(type[T], made_class)
