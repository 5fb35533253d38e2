"""Run the notebooks and build the book from them, offline, leaving the checkout clean.

``--profile quick`` makes your own edition in ``_build/quick/html``. ``--publish laptop`` instead
records the executed notebooks in ``book/chapters``, the published edition (``--only canary``: those
named). ``--resource canary`` gives a recorded chapter today's source and keeps its outputs, where
code changed in imports alone. Finished training runs are kept in ``store/`` and not run again.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import papermill
import yaml
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book"))

import teaching  # noqa: E402  (book/teaching.py and book/warm.py, a script's neighbours)
import warm  # noqa: E402

PUBLISHED = ROOT / "book" / "chapters"
REMOTE = re.compile(
    r"""<script[^>]+src=["']?(?:https?:)?//[^"'>]+|<link[^>]+href=["']?(?:https?:)?//[^"'>]+\.css"""
    r"""|(?:src|href)=["'](?:https?:)?//[^"']+\.(?:js|css)(?:\?[^"']*)?["']"""
)


def recorded_seconds(notebook: Path) -> float:
    """How long the published edition of this notebook took; one that is not recorded goes first."""
    try:
        recorded = json.loads((PUBLISHED / notebook.name).read_text())
        return recorded["metadata"]["papermill"]["duration"]
    except (OSError, KeyError):
        return float("inf")


def failure(executed: Path, log: str) -> str:
    """The failing cell's error in a few lines, or the end of papermill's own output."""
    try:
        cells = json.loads(executed.read_text())["cells"]
    except (OSError, ValueError):
        cells = []
    lines = log.strip().splitlines()[-6:]
    for cell in cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                source = [f"| {line}" for line in "".join(cell["source"]).splitlines()[:6]]
                lines = [*source, f"{output['ename']}: {output['evalue']}"]
    return "\n".join(f"    {line}" for line in lines)


def tidy(executed: Path) -> None:
    """Hide the injected cell; of papermill's notes keep only what holds on any machine."""
    notebook = json.loads(executed.read_text())
    for cell in notebook["cells"]:
        for key in ("papermill", "execution"):
            cell["metadata"].pop(key, None)
        if "outputs" in cell:  # progress bars
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
        if "injected-parameters" in cell["metadata"].get("tags", []):
            cell["metadata"]["tags"] = ["injected-parameters", "remove-cell"]
    notes, kept = notebook["metadata"], ("duration", "parameters", "start_time", "version")
    notes["papermill"] = {key: notes["papermill"][key] for key in kept}
    notes["tables"] = shown_tables(notebook)
    write(executed, notebook)


RECORDED = ROOT / "book" / "crtbook" / "recorded"
SHOWS = re.compile(r"""\b(?:recorded|edition)\(\s*["'](\w+)["']""")
LEDGER = re.compile(r"\bledger\.ledger\(")


def shown_tables(notebook: dict[str, Any]) -> dict[str, str]:
    """The SHA-256 of each recorded table that a notebook's code reads by its name, as
    ``crtbook.tables.digest`` has it; the ledger reads all. One that is not recorded has
    none: once it is, the chapter is stale."""
    code = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    names = {name for text in code for name in SHOWS.findall(text)}
    if any(LEDGER.search(text) for text in code):
        names |= {path.stem for path in RECORDED.glob("*.parquet")}
    paths = {name: RECORDED / f"{name}.parquet" for name in sorted(names)}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in paths.items()
        if path.is_file()
    }


def essence(source: str) -> str:
    """A code cell without imports, comments and spacing: what decides about its outputs."""
    tree = ast.parse(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source))
    tree.body = [n for n in tree.body if not isinstance(n, ast.Import | ast.ImportFrom)]
    return ast.dump(tree)


def injected(cell: dict[str, Any]) -> bool:
    """Whether papermill put the cell there."""
    return "injected-parameters" in cell["metadata"].get("tags", [])


def resourced(
    chapter: dict[str, Any], notebook: dict[str, Any], *, force: bool = False
) -> dict[str, Any]:
    """A recorded chapter with the source of its notebook and its own outputs.

    Code cells are paired in order; prose may come and go. Raises ``ValueError`` where the number
    of code cells differs, or, unless ``force``, where code differs in more than its imports.
    """
    ran = [c for c in chapter["cells"] if c["cell_type"] == "code" and not injected(c)]
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    if len(ran) != len(code):
        raise ValueError(f"{len(code)} code cells, {len(ran)} are recorded: run it again")
    changed = [
        k
        for k, (old, new) in enumerate(zip(ran, code, strict=True), 1)
        if essence("".join(old["source"])) != essence("".join(new["source"]))
    ]
    if changed and not force:
        which = ", ".join(map(str, changed))
        raise ValueError(
            f"code cells {which} do other things than recorded: run it again, or --yes"
        )
    outputs = iter(ran)
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            old = next(outputs)
            cell = {**cell, "outputs": old["outputs"], "execution_count": old["execution_count"]}
        cells.append(cell)
        if "parameters" in cell["metadata"].get("tags", []):
            cells += [c for c in chapter["cells"] if injected(c)]
    return {**chapter, "cells": cells}


def resource(names: list[str], *, force: bool = False) -> None:
    """Renew the source of recorded chapters; exits 1 and writes none where one refuses."""
    renewed = {}
    for name in names:
        path = PUBLISHED / f"{name}.ipynb"
        try:
            chapter = json.loads(path.read_text(encoding="utf-8"))
            notebook = json.loads((ROOT / "notebooks" / path.name).read_text(encoding="utf-8"))
            renewed[path] = resourced(chapter, notebook, force=force)
        except (OSError, ValueError) as error:
            sys.exit(f"--resource {name}: {error}")
    for path, chapter in renewed.items():
        write(path, chapter)


def write(path: Path, notebook: dict[str, Any]) -> None:
    """A notebook as this repository keeps it."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def execute(notebook: Path, profile: str, work: Path, target: Path) -> str | None:
    """Run one notebook into ``target``; returns what went wrong, or None."""
    part = work / f"{notebook.stem}.part.ipynb"
    quiet = {"progress_bar": False, "extra_arguments": ["--IPKernelApp.log_level=CRITICAL"]}
    how = {"kernel_name": "python3", "cwd": ROOT, **quiet, **warm.engine()}
    try:
        papermill.execute_notebook(notebook, part, {"profile": profile}, **how)
    except Exception as error:  # of the notebook, its kernel, the disk: the others go on
        return f"notebooks/{notebook.name} failed:\n{failure(part, str(error))}"
    tidy(part)
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(part, target / notebook.name)
    return None


def execute_all(profile: str, work: Path, target: Path, only: list[str] | None = None) -> None:
    """Run the notebooks (all, or those named ``only``), two at a time, the longest first; exits 1
    where one fails."""
    names = sorted(p.stem for p in (ROOT / "notebooks").glob("*.ipynb"))
    if unknown := sorted(set(only or ()) - set(names)):
        sys.exit(f"--only {' '.join(unknown)}: must be some of {', '.join(names)}")
    notebooks = [ROOT / "notebooks" / f"{name}.ipynb" for name in only or names]
    notebooks.sort(key=recorded_seconds, reverse=True)
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # for the kernels
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = [pool.submit(execute, n, profile, work, target) for n in notebooks]
        for run in tqdm(as_completed(runs), f"profile {profile}", len(runs), unit="notebook"):
            if error := run.result():
                tqdm.write(error, file=sys.stderr)
    if any(run.result() for run in runs):
        sys.exit(1)


def copy_book(work: Path, profile: str) -> None:
    """Copy the book's sources and its configuration; the chapters come from fresh runs."""
    shutil.copytree(
        ROOT / "book", work / "book", ignore=shutil.ignore_patterns("chapters", "autoapi", "__py*")
    )
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    packages = [str(ROOT / name) for name in ("crtlib", "book/crtbook", "book/crtcourse")]
    config["sphinx"]["config"]["autoapi_dirs"] = packages
    config["html"]["extra_footer"] += f" This edition: profile {profile}, {time.strftime('%F')}."
    (work / "_config.yml").write_text(yaml.safe_dump(config, sort_keys=False))


def remote_files(html: Path) -> list[str]:
    """Every script or style sheet that a page would fetch from another host."""
    pages = sorted(html.rglob("*.html"))
    found = ((page, REMOTE.findall(page.read_text(encoding="utf-8"))) for page in pages)
    return [f"{page.relative_to(html)}: {address}" for page, hits in found for address in hits]


def build(profile: str) -> Path:
    """Make your edition; returns its first page."""
    home = ROOT / "_build" / profile
    work = home / "work"
    shutil.rmtree(work, ignore_errors=True)
    copy_book(work, profile)
    execute_all(profile, work / "parts", work / "book" / "chapters")
    jupyter_book = Path(sys.executable).parent / "jupyter-book"
    command = [jupyter_book, "build", "--quiet", "-W", "--keep-going"]
    # Warnings come on standard error; standard output names the folder that is moved below.
    if subprocess.run([*command, work / "book"], cwd=ROOT, stdout=subprocess.DEVNULL).returncode:
        sys.exit("jupyter-book: the pages were not built without warnings (see above)")
    if remote := remote_files(work / "_build" / "html"):
        sys.exit("pages that need the network:\n" + "\n".join(remote))
    shutil.rmtree(home / "html", ignore_errors=True)
    shutil.move(work / "_build" / "html", home / "html")
    return home / "html" / "index.html"


def main() -> None:
    """Parse the command line, build, and say where the book is and how long it took."""
    sizes = ["quick", "laptop", "paper"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--profile", choices=sizes, help="build your edition")
    what.add_argument("--publish", choices=sizes, help="record the runs in book/chapters")
    what.add_argument("--resource", nargs="+", metavar="NAME", help="renew a chapter's source")
    parser.add_argument("--yes", action="store_true", help="renew it although its code changed")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="publish these notebooks only")
    arguments = parser.parse_args()
    if arguments.only and not arguments.publish:
        parser.error("--only: goes with --publish; your edition has every chapter")
    if arguments.yes and not arguments.resource:
        parser.error("--yes: goes with --resource")
    start, done = time.perf_counter(), PUBLISHED
    if arguments.resource:
        resource(arguments.resource, force=arguments.yes)
    elif arguments.publish:
        execute_all(arguments.publish, ROOT / "_build" / "publish", PUBLISHED, arguments.only)
    else:
        done = build(arguments.profile)
    if done == PUBLISHED:  # the lecturers' pages quote the chapters' summaries
        teaching.write()
    print(f"{done}\n{time.perf_counter() - start:.0f} seconds")


if __name__ == "__main__":
    main()
