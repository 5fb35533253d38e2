"""Sizes of the code: tokens by package. It prints them, and limits nothing.

    python benchmarks/house.py [CHECKOUT]

A token is what Python reads as one, without comments, docstrings, brackets and commas; an f-string
counts once. ``sum`` is all tracked Python, cells of notebooks included, tests and examples left
out. The layers are in ``.importlinter``.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("crtlib", "confide", "book/crtbook", "book/crtcourse")
QUIET = {getattr(tokenize, name) for name in ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT")}


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
    """The line of the table that a tracked file belongs to; None for what is not counted."""
    free = ("tests/", "examples/", "book/chapters/")
    if name.startswith(free) or Path(name).suffix not in (".py", ".ipynb"):
        return None
    package, _, rest = name.partition("/")
    if package in PACKAGES[:2]:
        module = rest.split("/")[0]
        return f"{package}.{module}" if not module.endswith(".py") else package
    folder = next((p for p in PACKAGES[2:] if name.startswith(f"{p}/")), name.split("/")[0])
    return folder.rpartition("/")[2]


def sizes(root: Path) -> Counter[str]:
    """Tokens of each part of a checkout; of an untracked tree, of all its files."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    files = [str(p.relative_to(root)) for p in root.rglob("*.py")]
    files = listed.stdout.splitlines() if listed.returncode == 0 and listed.stdout else files
    count: Counter[str] = Counter()
    for name in files:
        if (key := part(name)) and (root / name).is_file():
            count[key] += sum(tokens(source) for source in sources(root / name))
    return count


def main() -> None:
    """Print the size of each part, of crtlib and confide in all, and the sum."""
    count = sizes(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve())
    rows = sorted(count.items())
    for package in PACKAGES[:2]:
        total = sum(n for name, n in count.items() if name.partition(".")[0] == package)
        rows.append((f"{package} in all", total))
    rows.append(("sum", sum(count.values())))
    for name, number in rows:
        print(f"{name:<22}{number:>9,}")


if __name__ == "__main__":
    main()
