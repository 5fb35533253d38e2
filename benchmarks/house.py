"""The plan of the house, counted from its own imports: rooms, floors, circles, arrows upward,
modules, lines, the longest module and the longest function body. Exits 1 beyond a limit.

    python benchmarks/house.py [PACKAGE FOLDER]
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"floors": 9, "circles": 0, "arrows upward": 0, "longest module": 900, "longest body": 80}

Graph = Mapping[str, set[str]]


@dataclass(frozen=True)
class House:
    """``modules``: of each the modules that it imports; ``lines`` and ``bodies`` (of functions):
    how long they are."""

    modules: dict[str, set[str]]
    lines: dict[str, int]
    bodies: dict[str, int]

    def rooms(self) -> dict[str, set[str]]:
        """Of each room, or module of the ground, those that it imports."""
        graph: dict[str, set[str]] = {room(module): set() for module in self.modules}
        for module, imports in self.modules.items():
            graph[room(module)] |= {room(other) for other in imports} - {room(module), ""}
        return {name: imports for name, imports in graph.items() if name}


def room(module: str) -> str:
    """``crtlib.text.units`` is in ``text``, ``crtlib.files`` in ``files``, ``crtlib`` in none."""
    return [*module.split("."), ""][1]


def read(package: Path) -> House:
    """The house of a package: what its files say, nothing is imported."""
    files = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    house = House({}, {}, {})
    for module, path in files.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        house.modules[module] = {m for m in _imports(tree, files) if m != module}
        house.lines[module] = text.count("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                house.bodies[f"{module}:{node.name}"] = _body(node)
    return house


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, files: Iterable[str]) -> Iterable[str]:
    """What runs: an import for the type checker alone (``if TYPE_CHECKING:``) is none."""
    checks = [n for n in ast.walk(tree) if isinstance(n, ast.If)]
    typed = {id(m) for n in checks if ast.unparse(n.test) == "TYPE_CHECKING" for m in n.body}
    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                module = whole if whole in files else node.module
                yield from {module} & set(files)


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = node.body[ast.get_docstring(node) is not None :]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def circles(graph: Graph) -> list[list[str]]:
    """The sets of nodes that reach each other, of at least two."""
    reach = {node: _reach(graph, node) for node in graph}
    found = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph}
    return sorted(sorted(group) for group in found if len(group) > 1)


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    open_ = [start]
    while open_:
        for node in graph.get(open_.pop(), set()) - seen:
            seen.add(node)
            open_.append(node)
    return seen


def floors(graph: Graph) -> dict[str, int]:
    """The floor of each room: 1 where it imports none, else one above the highest it imports.
    Rooms of a circle have none."""
    floor: dict[str, int] = {}
    while ready := [n for n in graph if n not in floor and graph[n] <= set(floor)]:
        for node in ready:
            floor[node] = 1 + max((floor[other] for other in graph[node]), default=0)
    return floor


def layers(file: Path) -> list[set[str]]:
    """The layers of the import contract, the highest first; the last is the ground."""
    config = configparser.ConfigParser()
    config.read(file, encoding="utf-8")
    lines = config["importlinter:contract:house"]["layers"].split("\n")
    return [set(re.findall(r"\w+", line)) for line in lines if line.strip()]


def on_one_ground(graph: Graph, ground: set[str]) -> Graph:
    """The same rooms, those of the ground as one."""
    named = {name: "ground" if name in ground else name for name in graph}
    merged: Graph = {name: set() for name in named.values()}
    for name, imports in graph.items():
        merged[named[name]] |= {named[other] for other in imports} - {named[name]}
    return merged


def upward(graph: Graph, order: list[set[str]]) -> list[tuple[str, str]]:
    """Imports of a room above, or beside, the one that asks; within the ground they are free."""
    height = {name: -k for k, layer in enumerate(order) for name in layer}
    ground = order[-1] if len(order[-1]) > 1 else set()
    arrows = [(a, b) for a in graph for b in graph[a] if height[a] <= height[b]]
    return [(a, b) for a, b in arrows if not {a, b} <= ground]


def count(house: House, order: list[set[str]]) -> dict[str, tuple[int, str]]:
    """Each number, with the name of what has it."""
    rooms = house.rooms()
    floor = floors(on_one_ground(rooms, order[-1]))
    bad = circles(rooms) + circles(house.modules)
    arrows = upward(rooms, order)
    highest = [name for name in floor if floor[name] == max(floor.values())]
    inside = {r for m in house.modules if m.count(".") == 2 for r in [room(m)]}
    module = max(house.lines, key=lambda m: house.lines[m])
    body = max(house.bodies, key=lambda f: house.bodies[f], default="")
    return {
        "rooms": (len(inside), ", ".join(sorted(inside))),
        "floors": (max(floor.values(), default=0), f"highest: {', '.join(highest)}"),
        "circles": (len(bad), "; ".join(" - ".join(group) for group in bad)),
        "arrows upward": (len(arrows), ", ".join(f"{a} -> {b}" for a, b in arrows)),
        "modules": (len(house.modules), ""),
        "lines": (sum(house.lines.values()), ""),
        "longest module": (house.lines[module], module),
        "longest body": (house.bodies.get(body, 0), body),
    }


def main() -> None:
    """Print the table; exit 1 where a number is beyond its limit, and name all that is."""
    package = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "crtlib").resolve()
    house = read(package)
    numbers = count(house, layers(package.parent / ".importlinter"))
    for name, (number, what) in numbers.items():
        limit = f"at most {LIMITS[name]}" if name in LIMITS else ""
        print(f"{name:<16}{number:>8}  {limit:<12}  {what}".rstrip())
    print(*(f"too long: {name}, {n} lines" for name, n in beyond(house)), sep="\n")
    sys.exit(any(numbers[name][0] > limit for name, limit in LIMITS.items()))


def beyond(house: House) -> list[tuple[str, int]]:
    """Modules and functions that are longer than they may be, the longest first."""
    both = [(house.lines, "longest module"), (house.bodies, "longest body")]
    long = [(n, x) for lengths, kind in both for n, x in lengths.items() if x > LIMITS[kind]]
    return sorted(long, key=lambda pair: -pair[1])


if __name__ == "__main__":
    main()
