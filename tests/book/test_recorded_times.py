"""A recorded time says of which code it is, and a chapter that shows one of another version says so
beside it."""

import ast
import json
import re
from pathlib import Path

import pytest

from crtlib.version import __version__

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "data" / "results"
TABLES = sorted(RESULTS.glob("benchmark_*.json"))
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("*.ipynb"))


def minor(version):
    return ".".join(version.split(".")[:2])


def origin_of(table):
    """The version, commit, processor and day of a table; ``AssertionError`` where one lacks."""
    told = [table.get("version"), table.get("commit")]
    told += [table.get("machine", {}).get(name) for name in ("cpu", "date")]
    assert all(told), "a table of times names its version, commit, processor and date"
    return told


def names_read(tree):
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def names_made(tree):
    """What later cells can read of this one: its variables and functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        for target in node.targets if isinstance(node, ast.Assign) else ():
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def silent_places(cells, tables):
    """The cells with a number of a table of another minor version that do not say "version X.Y",
    which is that of the table."""
    of_table, numbers, silent = {}, {}, []
    for place, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            tree = ast.parse(source)
            read = {n for n in tables if n in source}
            read |= {of_table[n] for n in names_read(tree) if n in of_table}
            for table in read:
                of_table |= dict.fromkeys(names_made(tree), table)
                for output in cell["outputs"]:
                    numbers[output.get("metadata", {}).get("scrapbook", {}).get("name")] = table
            continue
        glued = set(re.findall(r"\{glue:text\}`(\w+)`", source)) & numbers.keys()
        for table in {numbers[name] for name in glued}:
            version = minor(tables[table]["version"])
            if version != minor(__version__) and f"version {version}" not in source:
                silent.append(place)
    return silent


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_of_times_names_the_code_the_processor_and_the_day(path):
    version, *_ = origin_of(json.loads(path.read_text()))
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)


@pytest.mark.parametrize("lacking", ["version", "commit", "cpu", "date"])
def test_a_table_that_lacks_one_is_refused(lacking):
    table = {"version": "0.2.0", "commit": "c", "machine": {"cpu": "x", "date": "2026-11-22"}}
    origin_of(table)
    for part in (table, table["machine"]):
        part.pop(lacking, None)
    with pytest.raises(AssertionError):
        origin_of(table)


def test_a_chapter_says_beside_a_time_that_it_is_of_another_version():
    tables = {path.name: json.loads(path.read_text()) for path in TABLES}
    for path in CHAPTERS:
        places = silent_places(json.loads(path.read_text())["cells"], tables)
        assert not places, f"{path.stem}: cells {places}"


@pytest.mark.parametrize(
    ("version", "text", "silent"),
    [
        ("0.1.0", "It takes {glue:text}`price`.", [2]),
        ("0.1.0", "It takes {glue:text}`price` (version 0.1).", []),
        (__version__, "It takes {glue:text}`price`.", []),
        ("0.1.0", "It takes {glue:text}`other`.", []),
    ],
)
def test_a_planted_old_table_is_refused(version, text, silent):
    recorded = [{"metadata": {"scrapbook": {"name": "price"}}}]
    cells = [
        {"cell_type": "code", "source": "told = read('benchmark_x.json')", "outputs": []},
        {"cell_type": "code", "source": "keep(price=told['s'])", "outputs": recorded},
        {"cell_type": "markdown", "source": text},
    ]
    assert silent_places(cells, {"benchmark_x.json": {"version": version}}) == silent


def silent_times(text):
    """The lines with a measured time that do not say of which version; "more than" is a limit."""
    timed = re.compile(r"(?<!more than )\b[\d.,]*\d CPU (seconds|hours|minutes)")
    return [line for line in text.splitlines() if timed.search(line) and "version 0" not in line]


def test_a_time_on_a_page_is_of_a_version():
    pages = [*(ROOT / "book").glob("*.md"), *CHAPTERS, *(ROOT / "notebooks").glob("*.ipynb")]
    assert len(pages) > 30
    for path in pages:
        assert not silent_times(path.read_text()), path.name
    assert silent_times("It took 8,437 CPU seconds.") == ["It took 8,437 CPU seconds."]


def test_the_decision_on_the_engine_has_the_recorded_ratios():
    """Its table has the rows of the file in their order, and the least of the rounds."""
    recorded = json.loads((RESULTS / "benchmark_private_step.json").read_text())["rows"]
    ratios = {}
    for row in recorded:
        ratios.setdefault(row["model"], {})[row["engine"]] = row["ratio_min"]
    decision = (ROOT / "docs" / "decisions" / "13-own-engine.md").read_text()
    told = re.findall(r"\d \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|\n", decision)
    assert len(told) == len(ratios)
    for cells, row in zip(told, ratios.values(), strict=True):
        for cell, engine in zip(cells, ("kernels", "ours", "opacus-hooks"), strict=True):
            assert abs(float(cell) - row[engine]) <= (0.05 if float(cell) > 10 else 0.0051)
