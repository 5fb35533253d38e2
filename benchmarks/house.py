"""Budgets of the code: tokens by package, and imports that run downwards. Exits 1 beyond a limit.

    python benchmarks/house.py [CHECKOUT]

A token is what Python reads as one, without comments, docstrings, brackets and commas; an f-string
counts once. So neither long lines nor many short ones pay. ``[tool.house]`` in ``pyproject.toml``
has the budgets: of each subpackage, of other folders, and ``sum`` of all tracked Python, cells of
notebooks included, tests and examples left out. An import for the type checker counts as well.
"""

from __future__ import annotations

import ast
import configparser
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("crtlib", "book/crtbook", "book/crtcourse")
QUIET = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT")}
Graph = Mapping[str, set[str]]


# ---------------------------------------------------------------- tokens
def tokens(source: str) -> int:
    """Tokens of a Python text; 0 where it is none (a cell that begins with ``%``)."""
    try:
        tree = ast.parse(source)
        read = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, tokenize.TokenError):
        return 0
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    scopes = (n for n in ast.walk(tree) if isinstance(n, kinds))
    bodies = (n.body[0] for n in scopes if ast.get_docstring(n) is not None)
    docs = {(first.lineno, first.col_offset) for first in bodies}
    count = depth = 0
    for token in read:
        name = tokenize.tok_name[token.type]
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")  # Python 3.12 on
        inside = depth > 0 and not (name == "FSTRING_START" and depth == 1)
        skipped = token.type in QUIET or inside or name in ("FSTRING_END", "ENDMARKER")
        count += not skipped and token.string not in "()[]{}," and token.start not in docs
    return count


def sources(path: Path) -> Iterator[str]:
    """The Python texts of a file: a module, or the code cells of a notebook."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        yield text
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"])


def part(name: str) -> str | None:
    """The line of the budget that a tracked file belongs to; None for what is not counted."""
    free = ("tests/", "examples/", "book/chapters/")
    if name.startswith(free) or Path(name).suffix not in (".py", ".ipynb"):
        return None
    if name.startswith("crtlib/"):
        module = name.split("/")[1]
        return f"crtlib.{module}" if not module.endswith(".py") else "crtlib"
    folder = next((p for p in PACKAGES[1:] if name.startswith(f"{p}/")), name.split("/")[0])
    return folder.rpartition("/")[2]


def budget(root: Path) -> Counter[str]:
    """Tokens of each part of a checkout; of an untracked tree, of all its files."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    files = [str(p.relative_to(root)) for p in root.rglob("*.py")]
    files = listed.stdout.splitlines() if listed.returncode == 0 and listed.stdout else files
    count: Counter[str] = Counter()
    for name in files:
        if (key := part(name)) and (root / name).is_file():
            count[key] += sum(tokens(source) for source in sources(root / name))
    return count


def refused(count: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """What is beyond its budget, in a sentence each; a part without a line of its own as well."""
    total = sum(n for name, n in count.items() if name.startswith("crtlib"))
    every = {**count, "crtlib in all": total, "sum": sum(count.values())}
    return [
        f"{name}: {n:,} tokens, its budget is {limits.get(name, 0):,}"
        for name, n in every.items()
        if n > limits.get(name, 0)
    ]


# ---------------------------------------------------------------- imports
@dataclass(frozen=True)
class House:
    """``modules``: of each the modules that it imports; ``lines``: how long each is."""

    modules: dict[str, set[str]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    imports: list[int] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)

    def rooms(self) -> dict[str, set[str]]:
        """Of each subpackage, or module beside them, those that it imports."""
        graph: dict[str, set[str]] = {room(module): set() for module in self.modules}
        for module, imports in self.modules.items():
            graph[room(module)] |= {room(other) for other in imports} - {room(module), ""}
        return {name: imports for name, imports in graph.items() if name}


def room(module: str) -> str:
    """``crtlib.text.units`` is in ``text``, ``crtlib.files`` in ``files``, ``crtlib`` in none."""
    return [*module.split("."), ""][1]


def read(package: Path) -> House:
    """What the files of a package say; nothing is imported."""
    files = {_name(path, package): path for path in sorted(package.rglob("*.py"))}
    house = House()
    for module, path in files.items():
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        house.modules[module] = {m for m in _imports(tree, files) if m != module}
        house.lines[module] = text.count("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                house.imports.append((node.end_lineno or node.lineno) - node.lineno + 1)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = len(node.args.args) + len(node.args.kwonlyargs)
                house.parameters[f"{module}:{node.name}"] = size
    return house


def _name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, files: Iterable[str]) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in files)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                module = whole if whole in files else node.module
                yield from {module} & set(files)


def circles(graph: Graph) -> list[list[str]]:
    """The sets of nodes that reach each other, of at least two."""
    reach = {node: _reach(graph, node) for node in graph}
    groups = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    open_ = [start]
    while open_:
        for node in graph.get(open_.pop(), set()) - seen:
            seen.add(node)
            open_.append(node)
    return seen


def layers(file: Path) -> list[set[str]]:
    """The layers of the import contract, the highest first; the last is the ground."""
    config = configparser.ConfigParser()
    config.read(file, "utf-8")
    lines = config["importlinter:contract:house"]["layers"].split("\n")
    return [set(re.findall(r"\w+", line)) for line in lines if line.strip()]


def upward(graph: Graph, order: list[set[str]]) -> list[tuple[str, str]]:
    """Imports from above, or beside, the subpackage that asks; within the ground they are free."""
    height = {name: -k for k, layer in enumerate(order) for name in layer}
    ground = order[-1] if len(order[-1]) > 1 else set()
    arrows = [(a, b) for a in graph for b in graph[a] if height[a] <= height[b]]
    return [(a, b) for a, b in arrows if not {a, b} <= ground]


def main() -> None:
    """Print the budgets and the imports; exit 1 where one is exceeded, and name all that are."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve()
    limits = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["house"]
    count, house = budget(root), read(root / "crtlib")
    total = sum(n for name, n in count.items() if name.startswith("crtlib"))
    rows = [*sorted(count.items()), ("crtlib in all", total), ("sum", sum(count.values()))]
    for name, number in rows:
        print(f"{name:<22}{number:>9,}  budget {limits.get(name, 0):>8,}")
    lines = sum(house.lines.values())
    named = sorted(house.parameters, key=lambda f: -house.parameters[f])[:1]
    print(f"modules {len(house.modules)}, lines {lines:,}, longest {max(house.lines.values())}; "
          f"imports {sum(house.imports) / lines:.1%} of lines; most parameters: "
          f"{', '.join(f'{f} ({house.parameters[f]})' for f in named)}")  # fmt: skip
    wrong = refused(count, limits)
    closed = [f"circle: {' - '.join(c)}" for c in circles(house.rooms()) + circles(house.modules)]
    wrong += closed if len(closed) > limits.get("circles", 0) else []
    order = layers(root / ".importlinter")
    wrong += [f"upward: {a} -> {b}" for a, b in upward(house.rooms(), order)]
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
