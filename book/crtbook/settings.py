"""The settings of a chapter or sweep: a profile's section, with what a person has changed.

A profile (``profiles/*.yml``) changes sizes, never the method; one with a ``base`` says only what
it changes of another. What may be set, and to what, is in :mod:`crtbook.sections`; every
setting has a dotted name.

>>> settings = parameters({"profile": "quick", "gammas": "[0.05]"}, "crt")
>>> settings.gammas, settings.ablation_gammas, settings.shapes["lstm"].hidden
((0.05,), (), 64)
>>> assign(settings, {"shapes.lstm.hidden": "200"}).shapes["lstm"].hidden
200
>>> parameters({"gammas": [7]}, "amplification")
Traceback (most recent call last):
...
crtlib.checks.ParameterError: gammas=[7]: must be a list of numbers in [0, 1]
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from importlib import resources
from typing import Any, TypeVar, overload

import yaml

from crtbook.schema import Settings, assign, build, leaves, limits, top
from crtbook.sections import SECTIONS
from crtlib.checks import ParameterError

__all__ = ["Dotted", "ParameterError", "assign", "cell", "load", "parameters", "profile_names"]

FOLDER = resources.files("crtbook") / "profiles"
S = TypeVar("S", bound=Settings)
_SIZES = ("quick", "laptop", "paper")
_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}


class Dotted:
    """Records what is assigned below it, as the line does that papermill makes of
    ``-p shapes.lstm.hidden 200``.

    >>> shapes = Dotted()
    >>> shapes.lstm.hidden = 200
    >>> shapes.assigned()
    {'lstm': {'hidden': 200}}
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        part = Dotted()
        setattr(self, name, part)
        return part

    def assigned(self) -> dict[str, Any]:
        """What was assigned, by name."""
        parts = {k: v.assigned() if isinstance(v, Dotted) else v for k, v in vars(self).items()}
        return {name: part for name, part in parts.items() if part != {}}


def profile_names() -> list[str]:
    """The profiles that exist, smallest first."""
    names = [file.name.removesuffix(".yml") for file in FOLDER.iterdir() if ".yml" in file.name]
    return sorted(names, key=lambda n: (_SIZES.index(n) if n in _SIZES else len(_SIZES), n))


@overload
def load(section: type[S], profile: str = "quick", **changes: Any) -> S: ...
@overload
def load(section: str, profile: str = "quick", **changes: Any) -> Any: ...
def load(section: type[Settings] | str, profile: str = "quick", **changes: Any) -> Any:
    """The settings of a section (its name or its class) at a profile's sizes, with ``changes``.

    The whole profile is checked first. Raises :class:`ParameterError` for an unknown profile or
    section, and for what is wrong in the profile or in ``changes``.
    """
    if profile not in profile_names():
        raise ParameterError(f"profile={profile!r}: must be one of {', '.join(profile_names())}")
    for name, cls in SECTIONS.items():
        if section in (name, cls):
            return assign(_profile(profile)[name], changes)
    raise ParameterError(f"section={section!r}: must be one of {', '.join(SECTIONS)}")


@functools.cache
def _profile(name: str) -> dict[str, Settings]:
    """All sections of a profile."""
    return read(_tree(name), name)


def _tree(name: str, above: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """What a profile's file holds, over what the profile that it names as its ``base`` holds."""
    tree = dict(yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8")))
    base = tree.pop("base", None)
    if base is None:
        return tree
    if base not in profile_names() or base in (name, *above):
        raise ParameterError(f"profile {name}: base={base!r}: must be another profile")
    return _merged(_tree(base, (*above, name)), tree)


def read(tree: Mapping[str, Any], name: str) -> dict[str, Settings]:
    """All sections of a profile from what its file holds; none may be unknown or missing."""
    where = f"profile {name}: "
    if unknown := [section for section in tree if section not in SECTIONS]:
        allowed = ", ".join(SECTIONS)
        raise ParameterError(f"{where}{unknown[0]}: unknown; allowed are {allowed}")
    for section in SECTIONS:
        if not isinstance(tree.get(section), Mapping):
            raise ParameterError(f"{where}{section}: is missing, or no group of settings")
    return {
        section: build(cls, _whole(cls, tree, section) | {"profile": name}, f"{where}{section}.")
        for section, cls in SECTIONS.items()
    }


def _whole(cls: type[Settings], tree: Mapping[str, Any], section: str) -> dict[str, Any]:
    """A section's own values over those of its base, of which it takes the fields that it has."""
    shared = {name: part for name, part in tree.get(cls.BASE, {}).items() if name in top(cls)}
    return _merged(shared, tree[section])


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for name, part in own.items():
        deeper = isinstance(part, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = _merged(both[name], part) if deeper else part
    return both


def parameters(namespace: Mapping[str, Any], section: str) -> Any:
    """The settings of a notebook: its section at its profile's sizes, with what was passed.

    ``namespace`` is the notebook's ``globals()`` after its parameters cell, where ``None`` means
    "as in the profile". An unknown name is refused: papermill itself would only warn.
    """
    plain = {
        name: entry
        for name, entry in namespace.items()
        if not (name.startswith("_") or name in _IPYTHON or callable(entry) or entry is None)
        and not isinstance(entry, Dotted | types.ModuleType)
    }
    below = {n: entry.assigned() for n, entry in namespace.items() if isinstance(entry, Dotted)}
    given = plain | {name: parts for name, parts in below.items() if parts}
    return load(section, str(given.pop("profile", "quick")), **given)


# --------------------------------------------------------------------------- parameters cells
_KINDS = {"number": "float", "integer": "int", "string": "str"}


def cell(section: str) -> str:
    """The parameters cell of a notebook that reads this section: each name with its type, range
    and sentence, in the form that ``papermill --help-notebook`` understands.

    >>> print(cell("customersim").splitlines()[2])
    profile: str = "quick"  # one of quick, laptop, paper: the sizes of all that is not set here
    """
    nodes = top(SECTIONS[section])
    last = {name: nodes.pop(name) for name in ("store", "workers", "device") if name in nodes}
    head = nodes.pop("profile")["description"]
    sizes = ", ".join(_SIZES)  # a profile that changes one of these is named where it is used
    lines = ["from crtbook.settings import Dotted", ""]
    lines += [f'profile: str = "quick"  # one of {sizes}: {head}']
    plain = {n: node for n, node in nodes.items() if node.get("type") != "object"}
    lines += [_line(name, node) for name, node in (plain | last).items()]
    groups = {n: node for n, node in nodes.items() if n not in plain}
    lines += [f"{name} = Dotted()  # {node['description']}" for name, node in groups.items()]
    dotted = (name for cls in SECTIONS.values() for name, _ in leaves(cls) if "." in name)
    if others := sorted({name.split(".")[0] for name in dotted} - set(nodes)):
        values = ", ".join(["Dotted()"] * len(others))
        lines += [f"{', '.join(others)} = {values}  # no such names here"]
    return "\n".join(lines)


def _line(name: str, node: Mapping[str, Any]) -> str:
    several = node.get("type") == "array"
    kind = _KINDS[(node["items"] if several else node).get("type", "string")]
    kind = f"list[{kind}]" if several else kind
    range_ = "" if "format" in node.get("items", node) else limits(dict(node))
    choice = "enum" in node.get("items", node)
    told = f"{'some' if several else 'one'} of {range_}" if choice else range_
    return f"{name}: {kind} = None  # {told}{': ' if told else ''}{node['description']}"
