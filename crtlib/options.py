"""What a person may set, declared once: a name with its sentence, type, range and effect.

An option is a field of a model, such as the recipe of a training, made by :func:`option` with its
sentence in a string below it. Or it is a parameter of a command's function, whose docstring has the
sentences. Values may come as text: pydantic reads them, and the first mistake is reported in one
line.

>>> from pydantic import Field
>>> from typing import Annotated
>>> def demo(rows: Annotated[int, Field(ge=1)] = 3) -> None:
...     '''Read a table.
...
...     Options:
...         --rows: Rows to read.
...     '''
>>> validate_options(option_model_of(demo), {"rows": "7"}).rows
7
>>> validate_options(option_model_of(demo), {"rows": "0"})
Traceback (most recent call last):
...
crtlib.options.InvalidOption: rows=0: must be greater than or equal to 1
>>> [(o.flag, o.phrase, o.text) for o in options_of(option_model_of(demo))]
[('--rows', 'int from 1', 'Rows to read.')]
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import (
    Any,
    Self,
    TypeVar,
)

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from crtlib.arguments import flag_of, option_of
from crtlib.checks import ParameterError

SECTION_HEADING = re.compile(r"^([A-Z][\w ]*):\n(?= )", re.MULTILINE)
OPTION_ROW = re.compile(
    r"^ {4}(?:--)?(?P<word>[\w-]+)(?: \((?P<needs>[^)]+)\))?(?: (?P<metavar>.+?))?: "
    r"(?P<text>.+(?:\n {8}.+)*)",
    re.MULTILINE,
)
"""An option in a command's docstring: ``--name (needs) VALUE: sentence``, or ``ARGUMENT:
sentence``, below the name of its group; ``needs`` as in :func:`option`."""

M = TypeVar("M", bound="OptionModel")
T = TypeVar("T")


class OptionModel(BaseModel):
    """A group of options. It is frozen, and refuses any other name."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=False, use_attribute_docstrings=True
    )

    @model_validator(mode="after")
    def _refuse_what_is_not_read(self) -> Self:
        """Refuse an option that was given but is not read with the other options as they are
        (``needs`` of :func:`option`).

        Guarantee:
            No option is accepted that the values of others make ineffective. Test:
            ``tests/test_options.py::test_an_option_without_effect_is_refused``.
        """
        for checked in options_of(type(self)):
            needs, name = checked.needs, checked.name
            if name not in self.model_fields_set or not needs:
                continue
            if not any(map(self._is_so, needs.split(" or "))):
                condition = needs.removeprefix("no ")
                rule = f"with {needs}" if condition == needs else f"without {condition}"
                raise InvalidOption(name, f"is read only {rule}", str(getattr(self, name)))
        return self

    def _is_so(self, rule: str) -> bool:
        """Whether the option that a rule names is as the rule states."""
        if rule.startswith("no "):
            return not getattr(self, rule.removeprefix("no "))
        name, unequal, value = rule.partition("!=")
        if unequal:
            return bool(getattr(self, name) != value)
        name, equal, value = rule.partition("=")
        return bool(getattr(self, name) == value if equal else getattr(self, name))


def option(
    default: Any,
    group: str,
    *,
    needs: str | None = None,
    word: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of an :class:`OptionModel`; the string below it is the option's sentence.

    Args:
        default: Its value if none is given; ``...`` if one must be given.
        group: The heading below which it is listed. Options under "Files", "Speed and memory" and
            "Output" do not change the result.
        needs: What it needs in order to be read: that another option is set (``lora``), has a value
            (``init=random``) or does not have it (``init!=random``), or is not set (``no verify``).
            Several are joined by `` or ``.
        word: The word shown in its place, in capitals, if it is an argument.
        metavar: Its type and range in words, if they do not follow from its annotation.
    """
    extra: Any = {"group": group, "needs": needs, "word": word, "metavar": metavar}
    return Field(default, json_schema_extra={"option": extra})


class InvalidOption(ParameterError):
    """One mistake: the option's name, what is wrong, and the value that was given."""

    def __init__(self, name: str, what: str, given: str = "") -> None:
        self.name, self.what, self.given = name, what, " ".join(given[:80].split())
        self.flag = flag_of(option_of(name))  # an argument of a command has none
        super().__init__(f"{name}{'=' if self.given else ''}{self.given}: {what}")

    def __reduce__(self) -> tuple[Any, ...]:  # a worker process raises it as well
        return type(self), (self.name, self.what, self.given)


class OptionWouldHelp(ValueError):
    """An input cannot be used as it is; the message says which of ``names`` would resolve it.

    The names are those of options as a command's function has them (``no_users``). Whoever reads
    options from elsewhere, such as a file of settings, can say what they are called there."""

    def __init__(self, message: str, *names: str) -> None:
        self.names = names
        super().__init__(message)


@dataclass(frozen=True)
class CommandResult:
    """What a command returns: the ``facts`` that ``--json`` prints, and ``lines`` for people.
    ``"ok": False`` among the facts means that the work is done and the answer is no. If work is
    done while the lines are read, the facts are complete after the last line."""

    facts: Mapping[str, Any]
    lines: Iterable[str] = ()


# --------------------------------------------------------------------- what is known of an option
@dataclass(frozen=True)
class Option:
    """An option as all forms show it."""

    name: str
    default: Any
    is_required: bool
    node: Mapping[str, Any]
    word: str
    group: str
    text: str
    needs: str | None
    metavar: str | None

    @property
    def is_positional(self) -> bool:
        return self.word.isupper()

    @property
    def flag(self) -> str:
        """How it is written on the command line; for an argument, its word."""
        return self.word if self.is_positional else flag_of(self.name)

    @property
    def kind(self) -> str:
        """Its type in the JSON schema: ``integer``, ``boolean``, ``array``, or ``path``."""
        return str(self.node.get("format") or self.node.get("type"))

    @property
    def many(self) -> bool:
        return self.kind == "array"

    @property
    def is_path(self) -> bool:
        return "path" in (self.kind, self.node.get("items", {}).get("format"))

    @property
    def phrase(self) -> str:
        """Its type and range in words."""
        return self.metavar or describe_type(self.node)


def describe_type(node: Mapping[str, Any]) -> str:
    """The type and range of a JSON schema: ``float above 0 to 1``, ``turn|dialogue``."""
    if "enum" in node or "const" in node:
        return "|".join(map(str, node.get("enum", [node.get("const")])))
    if node.get("type") == "array":
        return describe_type(node["items"])
    kinds = {"integer": "int", "number": "float", "boolean": "bool"}
    range_words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
    range_words["exclusiveMaximum"] = "below"
    bounds = [f"{words} {node[key]:g}" for key, words in range_words.items() if key in node]
    return " ".join([node.get("format") or kinds.get(node.get("type", ""), "text"), *bounds])


@functools.cache
def option_model_of(function: Callable[..., Any]) -> type[OptionModel]:
    """The options of a command's function, as a model."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in parameters
    }
    option_model: type[OptionModel] = create_model(
        function.__name__, __base__=OptionModel, __doc__=function.__doc__, **fields
    )
    return option_model


def parse_option_docs(model: type[OptionModel]) -> dict[str, dict[str, Any]]:
    """What the docstrings of a model and its base classes say about its options, by flag. Raises
    ``ValueError`` if Python has left the docstrings out."""
    if sys.flags.optimize > 1:
        raise ValueError("python -OO: leaves out the docstrings that declare options; use -O")
    docs_by_flag = {}
    for base in reversed([c for c in model.__mro__ if issubclass(c, OptionModel)]):
        _, *sections = SECTION_HEADING.split(inspect.cleandoc(base.__doc__ or ""))
        for title, rows in zip(sections[::2], sections[1::2], strict=True):
            for row in OPTION_ROW.finditer(rows):
                text = " ".join(row["text"].split())
                described = row.groupdict() | {"group": title, "text": text}
                docs_by_flag["--" + row["word"].lower()] = described
    return docs_by_flag


def _describe_field(model: type[OptionModel], name: str) -> dict[str, Any] | None:
    """What :func:`option` says about a field, and its sentence, from the first class that has them,
    since a subclass may set only a value. None for a parameter of a function."""
    for base in model.__mro__:
        info = base.model_fields.get(name) if issubclass(base, OptionModel) else None
        extra = info.json_schema_extra if info else None
        if info and info.description and isinstance(extra, dict):
            extra_option: Any = extra["option"]
            text = " ".join(info.description.split())
            return extra_option | {"text": text, "word": extra_option["word"] or flag_of(name)[2:]}
    return None


@functools.cache
def options_of(model: type[OptionModel]) -> list[Option]:
    """All options of a model, in order."""
    nodes, docs, rows = model.model_json_schema()["properties"], parse_option_docs(model), []
    for name, info in model.model_fields.items():
        node, needed = nodes[name], info.is_required()
        variants = (n for n in node.get("anyOf", ()) if n.get("type") != "null")
        default = None if needed else info.default
        described = _describe_field(model, name) or docs[flag_of(name)]
        rows.append(Option(name, default, needed, next(variants, {}) | node, **described))
    return rows


def validate_options(
    model: type[M], given: Mapping[str, Any], whose: str = "", others: Collection[str] = ()
) -> M:
    """Make a model from names and values; raises :class:`InvalidOption` for the first mistake.
    ``whose`` names what the options belong to, such as "method plan"; ``others`` are the names of
    options that another method has."""
    fields = model.model_fields
    for name, value in given.items():
        if name not in fields:
            if whose and (name in others or not others):
                raise InvalidOption(name, f"is not an option of {whose}")
            similar = difflib.get_close_matches(name, {*fields, *others}, 1)
            raise InvalidOption(
                name, "no such option" + (f"; did you mean {similar[0]}?" if similar else "")
            )
        if isinstance(value, float) and math.isnan(value):
            raise InvalidOption(name, "must be a number", "nan")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise first_mistake(error) from None


def first_mistake(
    error: ValidationError, show: Callable[[Any], str] = str, unknown: str = "no such option"
) -> ParameterError:
    """The first mistake that pydantic found, in one line. A rule of ours words its own."""
    first = error.errors(include_url=False)[0]
    name, kind = str((first["loc"] or ("value",))[0]), first["type"]
    if our_error := first.get("ctx", {}).get("error"):
        return our_error if isinstance(our_error, InvalidOption) else ParameterError(str(our_error))
    if kind.startswith("missing"):
        return InvalidOption(name, "is missing")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return InvalidOption(name, unknown)
    rule = first["msg"].replace("Input should be", "must be")
    return InvalidOption(name, rule.partition(", unable")[0], show(first["input"]))
