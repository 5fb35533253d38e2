"""Open JupyterLab on the chapters: ``python book/lab.py`` (``make lab``).

The notebooks are copies in ``_build/lab`` in their plain form (``book/plain.py``), with the
published outputs. A copy that you have changed is kept; delete it to get the published one back.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import plain
import teaching

BOOK = Path(__file__).resolve().parent

FOLDER = BOOK.parent / "_build" / "lab"
WRITTEN = ".written.json"


def refresh(folder: Path = FOLDER) -> list[str]:
    """Write the notebooks and a page of contents; returns the names that were changed by hand, and
    so were left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / WRITTEN
    written = json.loads(note.read_text()) if note.is_file() else {}
    kept = []
    with tempfile.TemporaryDirectory() as fresh:
        for path in plain.write(Path(fresh)):
            target, digest = folder / path.name, _digest(path)
            if target.is_file() and _digest(target) != written.get(path.name):
                kept.append(path.stem)
                continue
            target.write_bytes(path.read_bytes())
            written[path.name] = digest
    note.write_text(json.dumps(written))
    known = plain.titles()
    lines = [f"1. [{known[name]}]({name}.ipynb)" for name in teaching.chapters()]
    head = "# Confidential language modelling\n\nOpen a chapter, run its cells, type answers.\n\n"
    (folder / "start.md").write_text(head + "\n".join(lines) + "\n", "utf-8")
    return kept


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    for name in refresh():
        print(f"{name}: you have changed it, so it is left as it is")
    python = str(Path(sys.executable).parent)
    os.environ["PATH"] = python + os.pathsep + os.environ["PATH"]
    options = ["--notebook-dir", str(FOLDER), "--LabApp.default_url=/lab/tree/start.md"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options, *sys.argv[1:]])
