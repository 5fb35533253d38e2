"""Settings as values: each field has a type, a range and a sentence, and a dotted name.

>>> from crtbook.sections.chapters import Engine
>>> size = {"vocab_size": 100, "hidden": 8, "batch": 2, "length": 4}
>>> settings = build(Engine, {"seed": 0, "trials": 3, "shapes": {"lstm": size}})
>>> assign(settings, {"shapes.lstm.hidden": "200"}).shapes["lstm"].hidden
200
>>> assign(settings, {"trials": 0})
Traceback (most recent call last):
...
crtlib.checks.ParameterError: trials=0: must be a whole number of at least 1
>>> assign(settings, {"shapes.lsm.hidden": 8})
Traceback (most recent call last):
...
crtlib.checks.ParameterError: shapes.lsm: unknown; allowed are lstm
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import core_schema

from crtlib.checks import ParameterError
from crtlib.experiments.value import Count, NotNegative, Positive, Share, Word, adapter, value

Shares = Annotated[tuple[Share, ...], Field(min_length=1)]
Positives = Annotated[tuple[Positive, ...], Field(min_length=1)]
NotNegatives = Annotated[tuple[NotNegative, ...], Field(min_length=1)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]

Node = dict[str, Any]
"""The JSON schema of a field, or of a group of fields."""

Follows = Mapping[str, tuple[str, Callable[[Any], Any]]]
"""Pattern of a dotted name, the setting that decides it where it is not given, and how."""

KNOWN: dict[str, Callable[[], Iterable[str]]] = {}
"""For each kind of registered thing, what its names may be now: one can be added at any time."""


@dataclass(frozen=True)
class Named:
    """Marks the type of a name that a registry knows: ``Annotated[str, Named("method", ...)]``.

    ``known`` lists the names for people, ``valid`` says whether one is of them or like them.
    """

    kind: str
    known: Callable[[], Iterable[str]]
    valid: Callable[[str], bool]

    def __post_init__(self) -> None:
        KNOWN[self.kind] = self.known

    def _check(self, name: str) -> str:
        if not self.valid(name):
            raise ValueError(f"{self.kind}={name!r}: must be one of {', '.join(self.known())}")
        return name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "format": self.kind}


class Group(Mapping[str, Any]):
    """A value whose fields are its items too: ``shape["hidden"]``, ``{**shape}``."""

    def __getitem__(self, name: str) -> Any:
        if name not in tuple(self):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        own: Any = self
        return (f.name for f in fields(own))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@value
class Settings(Group):
    """What one section of a profile sets; a base of all.

    ``FOLLOWS`` names what another setting decides where it is not given: the pattern of its dotted
    name, that setting, and how. A change of that setting takes it back, so that nothing stays
    behind. ``BASE`` is the section whose values hold where a profile gives none for this one.
    """

    FOLLOWS: ClassVar[Follows] = {}
    BASE: ClassVar[str] = ""

    profile: Word = Field("quick", description="the sizes of all that is not set here")

    def but(self, **changes: Any) -> Self:
        """The same settings with these changed, checked anew; see :func:`assign`."""
        return assign(self, changes)

    def idle(self) -> Iterable[str]:
        """Patterns of dotted names that nothing reads as the other settings stand."""
        return ()


S = TypeVar("S", bound=Settings)


def build(section: type[S], tree: Mapping[str, Any], where: str = "") -> S:
    """The settings in ``tree``, as read from YAML or JSON, with what follows from them filled in.

    Raises :class:`ParameterError` for the first mistake, in one line that begins with ``where``.
    """
    whole = _filled(section, tree)
    try:
        made: S = adapter(section).validate_json(json.dumps(whole, default=repr))
    except ValidationError as error:
        raise ParameterError(where + _refusal(section, whole, error)) from None
    return made


def assign(settings: S, changes: Mapping[str, Any]) -> S:
    """The settings with ``changes``, whose names may be dotted: ``{"shapes.lstm.hidden": 200}``.

    A mapping stands for the dotted names below it. A string is read as JSON where no string is
    expected, because papermill and the command line pass lists as strings. Raises
    :class:`ParameterError` for a name that is unknown or that nothing reads, and for a bad value.
    """
    section, tree = type(settings), asdict(settings)
    given = dict(_leaves(section, changes))
    if "profile" in given:
        raise ParameterError(f"profile={given['profile']!r}: is chosen when settings are loaded")
    _forget(section, tree, given)
    for name, entry in given.items():
        *above, last = name.split(".")
        functools.reduce(lambda part, key: part.setdefault(key, {}), above, tree)[last] = entry
    changed = build(section, tree)
    for name in given:
        if any(fnmatchcase(name, pattern) for pattern in changed.idle()):
            raise ParameterError(f"{name}: is not read, as the other settings stand")
    return changed


def nothing(_: Any) -> list[Any]:
    """What follows another setting by not being asked for any more."""
    return []


def same(entry: Any) -> Any:
    """What follows another setting by being equal to it."""
    return entry


# --------------------------------------------------------------------------- names and ranges
def leaves(section: type[Settings]) -> Iterator[tuple[str, Node]]:
    """Every dotted name and what is known of it; ``*`` stands for a name of one's own choice."""

    def below(node: Node, name: str) -> Iterator[tuple[str, Node]]:
        for part, child in _children(section, node).items():
            path = f"{name}.{part}".lstrip(".")
            yield from below(child, path) if _is_group(child) else [(path, child)]

    return below(_schema(section), "")


def top(section: type[Settings]) -> dict[str, Node]:
    """The fields of a section and what is known of each."""
    return _children(section, _schema(section))


def phrase(node: Node) -> str:
    """What a field may be, in words.

    >>> phrase({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1}})
    'a list of whole numbers of at least 1'
    """
    if node.get("type") == "array":
        bounds = limits(node)
        if "enum" in node["items"] or "format" in node["items"]:
            return f"a list of some of {bounds}"
        nouns = {"number": "numbers", "integer": "whole numbers"}[node["items"]["type"]]
        return f"a list of {nouns} {bounds}".replace(" at least", " of at least").rstrip()
    bounds = limits(node)
    if "enum" in node or "format" in node:
        return f"one of {bounds}"
    noun = {"number": "a number", "integer": "a whole number"}.get(node["type"], "a word")
    return f"{noun} {bounds}".replace(" at least", " of at least").rstrip()


def limits(node: Node) -> str:
    """The range of a field: ``in [0, 1]``, ``at least 1``, or the names that it may be."""
    node = node.get("items", node)
    if "enum" in node:
        return ", ".join(node["enum"])
    if "format" in node:
        return ", ".join(KNOWN[node["format"]]())
    least, most = node.get("minimum"), node.get("maximum")
    above, under = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    left = f"[{least:g}" if least is not None else f"({above:g}" if above is not None else ""
    right = f"{most:g}]" if most is not None else f"{under:g})" if under is not None else ""
    if left and right:
        return f"in {left}, {right}"
    return f"at least {least:g}" if least is not None else f"above {above:g}" if left else ""


@functools.cache
def _schema(section: type[Settings]) -> Node:
    return adapter(section).json_schema()


def _is_group(node: Node) -> bool:
    return node.get("type") == "object"


def _children(section: type[Settings], node: Node) -> dict[str, Node]:
    """The fields of a group; one called ``*`` where the names are free."""
    free = node.get("additionalProperties")
    parts = node.get("properties", {}) | ({"*": free} if isinstance(free, dict) else {})
    return {name: _whole(section, part) for name, part in parts.items()}


def _whole(section: type[Settings], node: Node) -> Node:
    """A node with what its reference stands for."""
    if "$ref" not in node:
        return node
    target = _schema(section)["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return {**target, **{k: v for k, v in node.items() if k != "$ref"}}


def _at(section: type[Settings], path: Iterable[str]) -> Node:
    """The node of a dotted name; :class:`ParameterError` where there is none."""
    node, name = _schema(section), ""
    for part in path:
        children = _children(section, node)
        name = f"{name}.{part}".lstrip(".")
        if part not in children and "*" not in children:
            raise ParameterError(_unknown(name, children))
        node = children.get(part, children.get("*", {}))
    return node


def _unknown(name: str, allowed: Iterable[str]) -> str:
    names = ", ".join(allowed)
    return f"{name}: unknown; allowed are {names}" if names else f"{name}: unknown"


# --------------------------------------------------------------------------- trees of settings
def _leaves(
    section: type[Settings], changes: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any]]:
    """The changes by full dotted name, strings read as JSON where no string is expected."""
    for key, entry in changes.items():
        name = f"{above}{key}"
        if isinstance(entry, Mapping) and entry:
            yield from _leaves(section, entry, f"{name}.")
            continue
        node = _at(section, name.split("."))
        if isinstance(entry, str) and node.get("type") != "string":
            entry = _read(name, entry, node)
        if not _is_group(node):
            yield name, entry
        elif isinstance(entry, Mapping) and entry:
            yield from _leaves(section, entry, f"{name}.")
        else:
            some = ", ".join(f"{name}.{part}" for part in _children(section, node))
            parts = some.replace("*", "NAME")
            raise ParameterError(f"{name}={entry!r}: must be set by parts: {parts}")


def _read(name: str, text: str, node: Node) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        allowed = "JSON, an object" if _is_group(node) else phrase(node)
        raise ParameterError(f"{name}={text!r}: must be {allowed}") from None


def _parents(tree: Any, pattern: list[str], above: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name that matches a pattern, and the part of the tree that holds it."""
    first, *rest = pattern
    if not isinstance(tree, MutableMapping):
        return
    if not rest:
        yield above + first, tree
    for key in list(tree) if first == "*" else [first]:
        if rest and key in tree:
            yield from _parents(tree[key], rest, f"{above}{key}.")


def _filled(section: type[Settings], tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with what is not given taken from what it follows."""
    whole = deepcopy(dict(tree))
    for pattern, (source, rule) in section.FOLLOWS.items():
        for name, part in _parents(whole, pattern.split(".")):
            last = name.rsplit(".", 1)[-1]
            if source in whole and part.get(last) is None:
                part[last] = rule(whole[source])
    return whole


def _forget(section: type[Settings], tree: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Take out of the tree what follows a setting that is given, but what is given itself."""
    for pattern, (source, _) in section.FOLLOWS.items():
        for name, part in _parents(tree, pattern.split(".")) if source in given else ():
            if name not in given:
                part.pop(name.rsplit(".", 1)[-1], None)


def _refusal(section: type[Settings], tree: Mapping[str, Any], error: ValidationError) -> str:
    """The first mistake that pydantic found, in one line, by its dotted name."""
    first = error.errors(include_url=False, include_context=False)[0]
    loc = [str(part) for part in first["loc"]]
    node, path, entry = _schema(section), [], tree
    for part in loc:
        children = _children(section, node)
        if not _is_group(node):
            break
        path.append(part)
        if loc[len(path) :] == ["[key]"]:
            return _unknown(".".join(path), KNOWN[node["propertyNames"]["format"]]())
        if part not in children and "*" not in children:
            return _unknown(".".join(path), children)
        if not isinstance(entry, Mapping) or part not in entry:
            return f"{'.'.join(path)}: is missing"
        node, entry = children.get(part, children.get("*", {})), entry[part]
    name, text = ".".join(path), first["msg"].removeprefix("Value error, ")
    if not _is_group(node):
        return f"{name}={entry!r}: must be {phrase(node)}"
    if first["type"] == "value_error":
        return f"{name}.{text}".lstrip(".")
    return f"{name}={entry!r}: must be a group of {', '.join(_children(section, node))}"
