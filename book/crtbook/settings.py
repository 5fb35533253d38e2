"""The settings of a chapter or sweep: a section of a profile, with a person's changes.

A profile (``profiles/*.yml``) changes sizes, never the method; one with a ``base`` states only what
differs from that. What may be set, and to which values, is in ``sections.yml``; every setting has a
dotted name.

>>> settings = read_parameters({"profile": "quick", "gammas": "[0.05]"}, "crt")
>>> settings.gammas, settings.ablation_gammas, settings.shapes["lstm"].hidden
((0.05,), (), 64)
>>> settings.but(**{"shapes.lstm.hidden": "200"}).shapes["lstm"].hidden
200
>>> read_parameters({"gammas": [7]}, "amplification")
Traceback (most recent call last):
...
crtlib.checks.ParameterError: gammas=[7]: must be a list of float from 0 to 1
"""

import functools
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import crtbook
from crtlib import options
from crtlib.checks import ParameterError, printable
from crtlib.screening import policy_names
from crtlib.text import corpora
from crtlib.training import methods

FOLDER = crtbook.FOLDER / "profiles"
SIMULATED = "customersim"
_SIZES = ("quick", "laptop", "paper")
_IPYTHON = {"In", "Out", "get_ipython", "exit", "quit", "open"}

_shown = functools.partial(printable, quoted=True)

Node = Mapping[str, Any]
"""What is known about a field, or a group of fields, in the terms of JSON Schema."""

SECTIONS: dict[str, Node] = crtbook.load_data_file("sections")["sections"]
"""The sections that a profile has, by name."""


def _is_method(name: str) -> bool:
    try:
        return bool(methods.method_by_name(name))
    except ValueError:
        return False


FORMATS: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], Any]]] = {
    "method": (lambda: methods.METHODS, _is_method),
    "corpus": (
        lambda: (*corpora.available_corpora(), "FILE.jsonl"),
        lambda name: name in corpora.available_corpora() or re.match(r".*\.jsonl(\.gz)?$", name),
    ),
    "policy": (  # "tagger" alone learns from a study's own labelled dialogues
        lambda: (
            "tagger",
            *(f"{name}{takes}" for name, takes in policy_names.available_policies().items()),
        ),
        lambda name: all(
            p.partition(":")[0] in policy_names.available_policies() for p in name.split("+")
        ),
    ),
    "device": (
        lambda: ("auto", "cpu", "cuda", "cuda:N"),
        re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch,
    ),
}
"""For each kind of registered name: the names that exist now, and whether a word is one."""


class Settings(Mapping[str, Any]):
    """Frozen values by name, as attributes and as items; groups of them are nested."""

    _section: str
    _values: Mapping[str, Any]

    def __init__(self, section: str, values: Mapping[str, Any]) -> None:
        vars(self).update(values, _section=section, _values=dict(values))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: settings are frozen; see but()")

    def but(self, **changes: Any) -> Any:
        """The same settings with these changes, checked again; see :func:`assign_changes`."""
        return assign_changes(self, changes)


class Dotted:
    """Records what is assigned below it, as in the line that papermill makes from
    ``-p shapes.lstm.hidden 200``.

    >>> shapes = Dotted()
    >>> shapes.lstm.hidden = 200
    >>> shapes.assigned()
    {'lstm': {'hidden': 200}}
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return vars(self).setdefault(name, Dotted())

    def assigned(self) -> dict[str, Any]:
        """What was assigned, by name."""
        parts = {k: v.assigned() if isinstance(v, Dotted) else v for k, v in vars(self).items()}
        return {name: part for name, part in parts.items() if part != {}}


# --------------------------------------------------------------------------- profiles
def profile_names() -> list[str]:
    """The profiles that exist, smallest first."""
    names = [file.stem for file in FOLDER.glob("*.yml")]
    return sorted(names, key=lambda n: (_SIZES.index(n) if n in _SIZES else len(_SIZES), n))


def load_settings(section: str, profile: str = "quick", **changes: Any) -> Any:
    """The settings of a section at a profile's sizes, with ``changes``.

    The whole profile is checked first. Raises :class:`ParameterError` for an unknown profile or
    section, and for mistakes in the profile or in ``changes``.
    """
    for name, value, allowed in (
        ("profile", profile, profile_names()),
        ("section", section, SECTIONS),
    ):
        if value not in allowed:
            printed = printable(value, quoted=True)
            raise ParameterError(f"{name}={printed}: must be one of {', '.join(allowed)}")
    return assign_changes(_load_profile(profile)[section], changes)


@functools.cache
def _load_profile(name: str) -> dict[str, Settings]:
    """All sections of a profile."""
    return read_profile(_load_tree(name), name)


def _load_tree(name: str, chain: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """What a profile's file holds, on top of what its ``base`` holds."""
    tree = dict(crtbook.read_yaml((FOLDER / f"{name}.yml").read_text("utf-8")))
    base = tree.pop("base", None)
    if base is None:
        return tree
    if base not in profile_names() or base in (name, *chain):
        raise ParameterError(f"profile {name}: base={base!r}: must be another profile")
    return _merge_trees(_load_tree(base, (*chain, name)), tree)


def list_bases(profile: str) -> tuple[str, ...]:
    """The profiles that one is based on, the nearest first; empty for a name that is no profile."""
    if profile not in profile_names():
        return ()
    base = crtbook.read_yaml((FOLDER / f"{profile}.yml").read_text("utf-8")).get("base")
    return (base, *list_bases(base)) if base else ()


def read_profile(tree: Mapping[str, Any], name: str) -> dict[str, Settings]:
    """All sections of a profile, from what its file holds; none may be unknown or missing."""
    label, sections = f"profile {name}: ", {}
    if unknown := [section for section in tree if section not in SECTIONS]:
        raise ParameterError(label + _describe_unknown(unknown[0], SECTIONS))
    for section, node in SECTIONS.items():
        if not isinstance(tree.get(section), Mapping):
            raise ParameterError(f"{label}{section}: is missing, or is not a group of settings")
        base = tree.get(node.get("base", ""), {})  # the section takes those of its fields it has
        shared = {field: part for field, part in base.items() if field in node["properties"]}
        merged = _merge_trees(shared, tree[section]) | {"profile": name}
        sections[section] = _build_settings(section, merged, f"{label}{section}.")
    return sections


def _merge_trees(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, part in overrides.items():
        deeper = isinstance(part, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merge_trees(merged[name], part) if deeper else part
    return merged


def read_parameters(namespace: Mapping[str, Any], section: str) -> Any:
    """The settings of a notebook: its section at its profile's sizes, with what was passed.

    ``namespace`` is the notebook's ``globals()`` after its parameters cell, where ``None`` means
    "as in the profile". An unknown name is refused: papermill itself would only warn.
    """
    passed = {
        name: entry.assigned() if isinstance(entry, Dotted) else entry
        for name, entry in namespace.items()
        if not (name.startswith("_") or name in _IPYTHON or callable(entry) or entry is None)
        and not isinstance(entry, types.ModuleType)
        and not (isinstance(entry, Dotted) and not entry.assigned())
    }
    return load_settings(section, str(passed.pop("profile", "quick")), **passed)


# --------------------------------------------------------------------------- names and changes
def assign_changes(settings: Any, changes: Mapping[str, Any]) -> Any:
    """The settings with ``changes``, whose names may be dotted: ``{"shapes.lstm.hidden": 200}``.

    A mapping stands for the dotted names below it. A string is read as JSON where no string is
    expected, because papermill and the command line pass lists as strings. Raises
    :class:`ParameterError` for a name that is unknown or that nothing reads, and for a bad value.
    """
    section = settings._section
    assigned = dict(_list_changes(SECTIONS[section], changes))
    if "profile" in assigned:
        raise ParameterError(f"profile={assigned['profile']!r}: is chosen when settings are loaded")
    tree = _copy_as_dict(settings)
    for pattern, source in SECTIONS[section].get("follows", {}).items():
        for name, part in _find_places(tree, pattern) if source in assigned else ():
            if name not in assigned:
                part.pop(name.rpartition(".")[2], None)
    for name, entry in assigned.items():
        *groups, last = name.split(".")
        functools.reduce(lambda part, key: part.setdefault(key, {}), groups, tree)[last] = entry
    changed = _build_settings(section, tree)
    for name in assigned:
        if any(fnmatchcase(name, pattern) for pattern in find_idle_names(changed)):
            raise ParameterError(f"{name}: is read by nothing under the other settings")
    return changed


def _copy_as_dict(entry: Any) -> Any:
    return {k: _copy_as_dict(v) for k, v in entry.items()} if isinstance(entry, Mapping) else entry


def _fields_of_group(node: Node) -> dict[str, Node]:
    """The fields of a group; a single one called ``*`` where names are free."""
    free_names = {"*": node["additionalProperties"]} if "additionalProperties" in node else {}
    return {**node.get("properties", {}), **free_names}


def list_leaves(node: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Every dotted name and what is known about it; ``*`` stands for a name of your choice."""
    for part, child in _fields_of_group(node).items():
        yield from (
            list_leaves(child, f"{prefix}{part}.")
            if _fields_of_group(child)
            else [(prefix + part, child)]
        )


def _list_changes(
    node: Node, changes: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """The changes by full dotted name, strings read as JSON where no string is expected."""
    for key, entry in changes.items():
        child_node, name = node, prefix[:-1]
        for part in str(key).split("."):
            children, name = _fields_of_group(child_node), f"{name}.{part}".lstrip(".")
            if part not in children and "*" not in children:
                raise ParameterError(_describe_unknown(name, children))
            child_node = children.get(part, children.get("*", {}))
        group = _fields_of_group(child_node)
        if isinstance(entry, str) and child_node.get("type") != "string":
            try:
                entry = json.loads(entry)
            except (ValueError, RecursionError):  # too many digits raise no JSONDecodeError
                allowed = "JSON, an object" if group else _describe_field(child_node)
                raise ParameterError(f"{name}={_shown(entry)}: must be {allowed}") from None
        if not group:
            yield name, entry
        elif isinstance(entry, Mapping) and entry:
            yield from _list_changes(child_node, entry, f"{name}.")
        else:
            parts = ", ".join(f"{name}.{part}" for part in group).replace("*", "NAME")
            raise ParameterError(f"{name}={_shown(entry)}: must be set by parts: {parts}")


def _find_places(tree: Any, pattern: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted names that match a pattern, and the part of the tree that holds each."""
    first, _, remaining = pattern.partition(".")
    if not remaining:
        yield prefix + first, tree
    for key in list(tree) if first == "*" else [first]:
        if remaining and isinstance(tree.get(key), dict):
            yield from _find_places(tree[key], remaining, f"{prefix}{key}.")


def _describe_unknown(name: str, allowed: Iterable[str]) -> str:
    names = ", ".join(allowed)
    return f"{name}: unknown; allowed are {names}" if names else f"{name}: unknown"


# --------------------------------------------------------------------------- types and ranges
def _build_settings(section: str, tree: Mapping[str, Any], label: str = "") -> Settings:
    """The settings in a tree, with what follows from them filled in. Raises
    :class:`ParameterError` for the first mistake, in one line that begins with ``label``."""
    filled, node = _copy_as_dict(tree), SECTIONS[section]
    for pattern, source in node.get("follows", {}).items():
        for name, part in _find_places(filled, pattern):
            last = name.rpartition(".")[2]
            if source in filled and part.get(last) is None:  # not set: none, or the same
                part[last] = filled[source] if last == source else []
    try:
        settings: Settings = _build_group(node, filled, "", section)
    except ParameterError as error:
        raise ParameterError(f"{label}{error}") from None
    return settings


def _build_group(node: Node, entries: Any, name: str, section: str = "") -> Any:
    """A group of settings, each checked; what its node calls missing or unknown is refused."""
    properties, prefix = node.get("properties", {}), f"{name}.".lstrip(".")
    if not isinstance(entries, Mapping):
        parts = ", ".join(_fields_of_group(node))
        raise ParameterError(f"{name}={_shown(entries)}: must be a group of {parts}")
    free_node: Node = node.get("additionalProperties", {})
    names, valid = (
        FORMATS[node["propertyNames"]["format"]]
        if free_node
        else (lambda: properties, properties.get)
    )
    if unknown := [key for key in entries if not (isinstance(key, str) and valid(key))]:
        raise ParameterError(_describe_unknown(f"{prefix}{unknown[0]}", names()))
    usual = {k: child["default"] for k, child in properties.items() if "default" in child}
    values = {k: v for k, v in (usual | dict(entries)).items() if v is not None}
    if missing := [k for k in (*properties, *node.get("required", ())) if k not in values]:
        raise ParameterError(f"{prefix}{missing[0]}: is missing")
    checked = {}
    for key, child in (properties or dict.fromkeys(values, free_node)).items():
        check = _build_group if _fields_of_group(child) else _check_value
        checked[key] = check(child, values[key], prefix + key)
    settings = Settings(section, checked)
    for is_broken, text in _check_rules(settings):
        if is_broken:
            raise ParameterError(prefix + text)
    return settings


def _check_value(node: Node, entry: Any, name: str) -> Any:
    several = node["type"] == "array"
    if not several or isinstance(entry, list | tuple):
        items = tuple(
            _convert_item(node.get("items", node), x) for x in (entry if several else [entry])
        )
        if None not in items and len(items) >= node.get("minItems", 0):
            return items if several else items[0]
    raise ParameterError(f"{name}={_shown(entry)}: must be {_describe_field(node)}")


def _convert_item(node: Node, entry: Any) -> Any:
    """A number or word as its node requires, with whole numbers as floats where it requires floats;
    None where it does not fit."""
    if node["type"] == "string":
        is_allowed = isinstance(entry, str) and entry and entry in node.get("enum", [entry])
        names = FORMATS.get(node.get("format", ""))
        return entry if is_allowed and (names is None or names[1](entry)) else None
    kinds = (int,) if node["type"] == "integer" else (int, float)
    if isinstance(entry, bool) or not isinstance(entry, kinds) or not abs(entry) < 1e300:
        return None
    low, high = node.get("minimum", -math.inf), node.get("maximum", math.inf)
    exclusive_low = node.get("exclusiveMinimum", -math.inf)
    exclusive_high = node.get("exclusiveMaximum", math.inf)
    if low <= entry <= high and exclusive_low < entry < exclusive_high:
        return kinds[-1](entry)
    return None


def _describe_field(node: Node) -> str:
    """Type and range of a field, in the words of the command line."""
    item = node.get("items", node)
    if "format" in item:
        item = {"enum": [*FORMATS[item["format"]][0]()]}
    return f"{'a list of ' * (node['type'] == 'array')}{options.describe_type(item)}"


def _check_rules(part: Any) -> Iterator[tuple[Any, str]]:
    """The rules between the settings of a group or a section: whether each one is broken."""
    get_setting = part.get
    model = get_setting("model")
    heads = (model if isinstance(model, Settings) else part).get("heads")
    hidden = get_setting("hidden", ())
    for width in [hidden] if isinstance(hidden, int) else hidden:
        yield heads and width % heads, f"heads={heads}: must divide hidden={width}"
    late_snapshots = [epoch for epoch in get_setting("snapshots", ()) if epoch > part.epochs]
    rule = f"must be at most epochs={get_setting('epochs')}"
    yield late_snapshots, f"snapshots={late_snapshots}: {rule}"
    if "conservative" in part:
        learns = "tagger" in (part.policy, part.conservative)
        rule = (
            "above 0, because tagger learns from labels"
            if learns
            else "0, because no policy is tagger"
        )
        yield bool(part.labelled) != learns, f"labelled={part.labelled}: must be {rule}"
    if "corpora" in part:
        names, sizes = list(part.corpora), ", ".join(part.data)
        first = "copies" in part and names[0] != SIMULATED
        yield first, f"corpora={names}: must begin with {SIMULATED}"
        unsized = [corpus for corpus in names if corpus not in part.data]
        yield unsized, f"corpora={unsized}: data has sizes for {sizes} only"
    if noises := list(get_setting("noise_multipliers", ())):
        is_wrong = min(noises) > 0 or max(noises) == 0
        yield is_wrong, f"noise_multipliers={noises}: must hold 0 and one above 0"


def find_idle_names(settings: Any) -> Iterator[str]:
    """Patterns of dotted names that nothing reads under the other settings."""
    utility = settings._section == "utility"  # its choices run an LSTM on CustomerSim, in any case
    data_sizes = settings.get("data", ())
    corpora_read = (*settings.get("corpora", data_sizes), *[SIMULATED][:utility])
    yield from (f"data.{corpus}.*" for corpus in data_sizes if corpus not in corpora_read)
    for model, shape in settings.shapes.items() if "models" in settings else ():
        used_methods = map(methods.method_by_name, (*settings.methods, *settings.ablations))
        run = {method.name for method in used_methods if model in (method.models or (model,))}
        if utility:
            run |= {"crt"} if model == "lstm" else {"sgd", "dpsgd", "crt"}
        if model not in settings.models and not (utility and model == "lstm"):
            yield f"shapes.{model}.*"
        own_epochs = {name if name in shape.epochs else "crt" for name in run}
        yield from (
            f"shapes.{model}.epochs.{name}" for name in shape.epochs if name not in own_epochs
        )


# --------------------------------------------------------------------------- parameters cells
_KINDS = {"number": "float", "integer": "int", "string": "str"}


def make_parameters_cell(section: str) -> str:
    """The parameters cell of a notebook that reads this section: each name with its type, range
    and sentence, in the form that ``papermill --help-notebook`` understands.

    >>> print(make_parameters_cell("customersim").splitlines()[2])
    profile = "quick"  # type: str quick|laptop|paper: the sizes of all that is not set here
    """
    nodes = dict(SECTIONS[section]["properties"])
    last = {name: nodes.pop(name) for name in ("store", "workers", "device") if name in nodes}
    # a profile that changes one of these is named where it is used
    head = f"{'|'.join(_SIZES)}: {nodes.pop('profile')['description']}"
    lines = [
        "from crtbook.settings import Dotted, read_parameters",
        "",
        f'profile = "quick"  # type: str {head}',
    ]
    groups = {name: node for name, node in nodes.items() if _fields_of_group(node)}
    for name, node in (nodes | last).items():
        if name not in groups:
            item = node.get("items", node)
            kind = _KINDS[item["type"]]
            kind = f"list[{kind}]" if "items" in node else kind
            range_ = "text" if "format" in item else options.describe_type(item)
            range_text = "" if range_ == "text" else f"{range_.partition(' ')[2] or range_}: "
            lines.append(f"{name} = None  # type: {kind} {range_text}{node['description']}")
    lines += [f"{name} = Dotted()  # {node['description']}" for name, node in groups.items()]
    dotted = {n.partition(".")[0] for s in SECTIONS.values() for n, _ in list_leaves(s) if "." in n}
    if other_groups := sorted(dotted - set(nodes)):
        values = ", ".join(["Dotted()"] * len(other_groups))
        lines += [f"{', '.join(other_groups)} = {values}  # no such names here"]
    return "\n".join(lines)
