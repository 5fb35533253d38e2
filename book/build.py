"""Make the book: the recorded edition first, then the chapters that you run yourself.

``--first`` renders at once what is there: the recorded chapters, and those chapters of ``--live``
that were run already. It needs neither PyTorch nor the library. Without it the other chapters of
``--live`` are run, and their pages are replaced one by one. What a chapter showed is kept in
``_build/cache`` under the hash of everything that affects it, so nothing is run twice.

For maintainers: ``--publish laptop`` records the executed notebooks in ``book/chapters`` (with
``--only canary`` those named). ``--resource canary`` gives a recorded chapter today's source and
keeps its outputs, where code changed only in its imports.
"""

import argparse
import ast
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import plain

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "book" / "crtbook" / "recorded"
PUBLISHED = ROOT / "book" / "chapters"
CACHE = ROOT / "_build" / "cache"
LIVE = ROOT / "_build" / "live"
PACKAGES = [
    ROOT / "crtlib",
    ROOT / "confide",
    ROOT / "book" / "crtbook",
    ROOT / "book" / "crtcourse",
]
SOURCES = [*PACKAGES, ROOT / "lock.txt"]
"""What affects the outputs of a chapter, apart from its own code and parameters."""
PAUSE = 20
"""The least number of seconds between two renderings."""


def parse_chapter_names(names: str) -> list[str]:
    """The chapters that ``all``, ``none`` or a comma-separated list names; exits 2 for others."""
    every = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    if names in ("all", "none", ""):
        return every if names == "all" else []
    chosen = list(dict.fromkeys(names.replace(",", " ").split()))
    if unknown := [name for name in chosen if name not in every]:
        print(f"LIVE={unknown[0]}: must be all, none, or of {', '.join(every)}", file=sys.stderr)
        sys.exit(2)
    return chosen


# --------------------------------------------------------------------------- what was run already
@functools.cache
def hash_surroundings() -> str:
    """The hash of the library, its tables, the pinned packages and the corpora that are here."""
    files = [f for s in SOURCES for f in ([s] if s.is_file() else sorted(s.rglob("*")))]
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode())
            digest.update(file.read_bytes())
    data = os.environ.get("CRTLIB_DATA", "")
    digest.update("\n".join(sorted(os.listdir(data)) if os.path.isdir(data) else []).encode())
    return digest.hexdigest()


def list_code(notebook: dict[str, Any]) -> list[str]:
    """The code of each code cell."""
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def cache_path(name: str, profile: str) -> Path:
    """Where the outputs of a chapter are stored once its current code has run."""
    code = list_code(plain.read_notebook(ROOT / "notebooks" / f"{name}.ipynb"))
    key = hashlib.sha256(json.dumps([code, profile, hash_surroundings()]).encode()).hexdigest()
    return CACHE / f"{name}-{key[:20]}.ipynb"


def recorded_seconds(name: str) -> float:
    """The seconds that a chapter took when it was recorded, to order chapters by length."""
    path = PUBLISHED / f"{name}.ipynb"
    return plain.read_notebook(path)["metadata"]["papermill"]["duration"] if path.is_file() else 0.0


def show_chapters(names: list[str], profile: str) -> list[str]:
    """Put the chapters that have run, with today's prose, where pages are made from. Return the
    names of those that have not run."""
    shutil.rmtree(LIVE, ignore_errors=True)
    LIVE.mkdir(parents=True)
    missing = []
    for name in names:
        if (path := cache_path(name, profile)).is_file():
            notebook = plain.read_notebook(ROOT / "notebooks" / f"{name}.ipynb")
            write_notebook(
                LIVE / f"{name}.ipynb", replace_source(plain.read_notebook(path), notebook)
            )
        else:
            missing.append(name)
    return missing


def render_pages() -> Path:
    """Write the pages that have changed; return the first page."""
    program = Path(sys.executable).parent / "jupyter-book"
    command = [program, "build", "--quiet", ROOT / "book"]
    environment = os.environ | {"BOOK_LIVE": str(LIVE)}
    # Warnings are written to standard error.
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=environment).returncode:
        sys.exit("jupyter-book: the pages were not made (see above)")
    return ROOT / "_build" / "html" / "index.html"


# --------------------------------------------------------------------------- running
def describe_failure(executed: Path, log: str) -> str:
    """The failing cell's error in a few lines, or the end of papermill's own output."""
    try:
        cells = plain.read_notebook(executed)["cells"]
    except (OSError, ValueError):
        cells = []
    lines = log.strip().splitlines()[-6:]
    for cell in cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                source = [f"| {line}" for line in "".join(cell["source"]).splitlines()[:6]]
                lines = [*source, f"{output['ename']}: {output['evalue']}"]
    return "\n".join(f"    {line}" for line in lines)


def tidy_notebook(executed: Path) -> None:
    """Hide the injected cell; keep only those notes of papermill that hold on any machine."""
    notebook = plain.read_notebook(executed)
    for cell in notebook["cells"]:
        for key in ("papermill", "execution"):
            cell["metadata"].pop(key, None)
        if "outputs" in cell:  # progress bars
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
        if is_injected(cell):
            cell["metadata"]["tags"] = ["injected-parameters", "remove-cell"]
    notes, kept_keys = notebook["metadata"], ("duration", "parameters", "start_time", "version")
    notes["papermill"] = {key: notes["papermill"][key] for key in kept_keys}
    notes["tables"] = hash_shown_tables(notebook)
    write_notebook(executed, notebook)


SHOWS = re.compile(r"""\b(?:load_recorded|find_recorded)\(\s*["'](\w+)["']""")
LEDGER = re.compile(r"\bledger\.load_ledger\(")


def hash_shown_tables(notebook: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each recorded table that a notebook's code reads by its name, from
    ``crtbook.tables.hash_table``; the ledger reads all. A table that is not recorded has no hash:
    once it is recorded, the chapter is stale."""
    code = "\n".join(list_code(notebook))
    names = SHOWS.findall(code)
    return {
        path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(RECORDED.glob("*.parquet"))
        if path.stem in names or LEDGER.search(code)
    }


def dump_code(source: str) -> str:
    """A code cell without imports, comments and spacing: the part that affects its outputs."""
    tree = ast.parse(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source))
    tree.body = [n for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    return ast.dump(tree)


def is_injected(cell: dict[str, Any]) -> bool:
    """Whether papermill added the cell."""
    return "injected-parameters" in cell["metadata"].get("tags", [])


def replace_source(
    chapter: dict[str, Any], notebook: dict[str, Any], *, force: bool = False
) -> dict[str, Any]:
    """A recorded chapter with the source of its notebook and its own outputs.

    Code cells are paired in order; prose may be added or removed. Raises ``ValueError`` where the
    number of code cells differs, or, unless ``force``, where code differs in more than its imports.
    """
    ran = [c for c in chapter["cells"] if c["cell_type"] == "code" and not is_injected(c)]
    code = list_code(notebook)
    if len(ran) != len(code):
        raise ValueError(f"{len(code)} code cells, {len(ran)} are recorded: run it again")
    pairs = enumerate(zip(list_code({"cells": ran}), code, strict=True), 1)
    changed = [str(k) for k, (old, new) in pairs if dump_code(old) != dump_code(new)]
    if changed and not force:
        which = ", ".join(changed)
        raise ValueError(
            f"code cells {which} differ from the recorded ones: run it again, or --yes"
        )
    outputs = iter(ran)
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            old = next(outputs)
            cell |= {name: old[name] for name in ("outputs", "execution_count")}
        cells.append(cell)
        if "parameters" in cell["metadata"].get("tags", []):
            cells += [c for c in chapter["cells"] if is_injected(c)]
    return {**chapter, "cells": cells}


def renew_sources(names: list[str], *, force: bool = False) -> None:
    """Update the source of recorded chapters; exits 1 and writes none where one is refused."""
    renewed = {}
    for name in names:
        path = PUBLISHED / f"{name}.ipynb"
        try:
            notebook = plain.read_notebook(ROOT / "notebooks" / path.name)
            renewed[path] = replace_source(plain.read_notebook(path), notebook, force=force)
        except (OSError, ValueError) as error:
            sys.exit(f"--resource {name}: {error}")
    for path, chapter in renewed.items():
        write_notebook(path, chapter)


def write_notebook(path: Path, notebook: dict[str, Any]) -> None:
    """Write a notebook as this repository keeps it: if that has an address, Colab installs it."""
    url = re.findall(r'(?m)^  url: "(.+)"', (ROOT / "_config.yml").read_text("utf-8"))
    cells = [c for c in notebook["cells"] if "colab" not in c["metadata"].get("tags", [])]
    for address in url:
        tags = ["injected-parameters", "colab", "remove-cell"]
        ours = f'"crtlib[accountants,app,secrets,train] @ git+{address}"'
        install = f'%pip install -q {ours} "crtbook @ git+{address}#subdirectory=book"'
        code = f'import sys\n\nif "google.colab" in sys.modules:\n    {install}'
        cell = {"cell_type": "code", "execution_count": None, "id": "colab"}
        cells.insert(1, {**cell, "metadata": {"tags": tags}, "outputs": [], "source": code})
    text = json.dumps({**notebook, "cells": cells}, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, "utf-8")


def execute_notebook(name: str, profile: str, target: Path) -> str | None:
    """Run one notebook into the file ``target``; return what went wrong, or None."""
    import papermill

    part = ROOT / "_build" / "parts" / f"{name}.ipynb"
    part.parent.mkdir(parents=True, exist_ok=True)
    quiet = {"progress_bar": False, "extra_arguments": ["--IPKernelApp.log_level=CRITICAL"]}
    options = {"kernel_name": "python3", "engine_name": "nbclient", "cwd": ROOT, **quiet}
    notebook = ROOT / "notebooks" / f"{name}.ipynb"
    try:
        papermill.execute_notebook(notebook, part, {"profile": profile}, **options)
    except Exception as error:  # from the notebook, its kernel, the disk: the others go on
        return f"notebooks/{name}.ipynb failed:\n{describe_failure(part, str(error))}"
    tidy_notebook(part)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(part, target)
    return None


def execute_all(
    targets: dict[str, Path], profile: str, show_finished: Callable[[], object] = lambda: None
) -> None:
    """Run the notebooks with these names into these files, two at a time, the longest first, with a
    bar. ``show_finished`` is called whenever some have finished. Exits 1 where one failed."""
    from tqdm import tqdm

    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # for the kernels
    failed, last = False, 0.0
    order = sorted(targets, key=recorded_seconds, reverse=True)
    with ThreadPoolExecutor(2) as pool:
        runs = {pool.submit(execute_notebook, name, profile, targets[name]): name for name in order}
        often = 0.5 if sys.stderr.isatty() else 30
        with tqdm(total=len(runs), unit="chapter", mininterval=often) as bar:
            for run in as_completed(runs):
                bar.write(run.result() or f"{runs[run]}: done", sys.stderr)
                bar.update()
                failed = failed or bool(run.result())
                if time.monotonic() - last > PAUSE or bar.n == bar.total:
                    show_finished()
                    last = time.monotonic()
    if failed:
        sys.exit(1)


def run_live(names: list[str], profile: str) -> None:
    """Run what has not run yet; each page is replaced as soon as its chapter has run."""
    missing = show_chapters(names, profile)
    if not missing:
        return

    def show_and_render() -> None:
        show_chapters(names, profile)
        render_pages()

    execute_all({name: cache_path(name, profile) for name in missing}, profile, show_and_render)
    for name in missing:  # remove what earlier code or an earlier library showed
        for path in CACHE.glob(f"{name}-*.ipynb"):
            same = plain.read_notebook(path)["metadata"]["papermill"]["parameters"]
            if path != cache_path(name, profile) and same.get("profile") == profile:
                path.unlink()
    print(f"yours: {', '.join(missing)}\n{ROOT / '_build' / 'html' / 'index.html'}")


def end_interrupted(*_: object) -> None:
    """End the kernels and their workers after an interrupt: they have sessions of their own."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        process.kill()
    print("\ninterrupted; the pages made so far are kept", file=sys.stderr)
    os._exit(130)


def main() -> None:
    """Parse the command line, and do one of the three things."""
    sizes = ["quick", "laptop", "paper"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--live", default="none", metavar="NAMES", help="or all, or none")
    parser.add_argument("--profile", choices=sizes, default="quick", help="of the live chapters")
    parser.add_argument("--first", action="store_true", help="render what is there")
    parser.add_argument("--publish", choices=sizes, help="record the runs in book/chapters")
    parser.add_argument("--resource", nargs="+", metavar="NAME", help="renew a chapter's source")
    parser.add_argument("--yes", action="store_true", help="renew it although its code changed")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="publish these notebooks only")
    arguments = parser.parse_args()
    if arguments.only and not arguments.publish:
        parser.error("--only: goes with --publish; your chapters are those of --live")
    if arguments.yes and not arguments.resource:
        parser.error("--yes: goes with --resource")
    signal.signal(signal.SIGINT, end_interrupted)
    signal.signal(signal.SIGTERM, end_interrupted)
    names = parse_chapter_names(arguments.live)
    if arguments.resource:
        renew_sources(arguments.resource, force=arguments.yes)
    elif arguments.publish:
        chosen = parse_chapter_names(",".join(arguments.only or ["all"]))
        targets = {name: PUBLISHED / f"{name}.ipynb" for name in chosen}
        execute_all(targets, arguments.publish)
    elif arguments.first:
        missing = show_chapters(names, arguments.profile)
        print(render_pages())
        if missing:
            print(f"recorded so far; to be run here: {', '.join(missing)}")
    else:
        run_live(names, arguments.profile)


if __name__ == "__main__":
    main()
