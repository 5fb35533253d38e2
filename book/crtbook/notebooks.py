"""What papermill makes of one of the book's notebooks reads well by itself.

papermill finds :class:`ChapterEngine` by this package's entry point and runs with it the notebooks
that lie beside ``book/plain.py``, all others as ever: its bar says how many training runs are
done, and in the output the numbers stand in the text.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from papermill.engines import NBClientEngine, papermill_engines

SWEEP = re.compile(r"(run \d+ of \d+).*<([\d:]+)")


class _Bar:
    """Standard error of the cells: the bar of a sweep is shown in papermill's own."""

    def __init__(self, shown: Any) -> None:
        self.shown = shown

    def write(self, text: str) -> None:
        if self.shown is not None and (last := SWEEP.findall(text)):
            self.shown.set_postfix_str(f"{last[-1][0]}, {last[-1][1]} left")

    def flush(self) -> None:
        """Nothing is kept."""


class ChapterEngine(NBClientEngine):  # type: ignore[misc]
    """Runs a notebook as papermill does."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
        """Run it and, where it is one of the book's, put the numbers into its text."""
        book = Path(options.get("input_path") or "").resolve().parent.parent / "book"
        if not (book / "plain.py").is_file():
            super().execute_managed_notebook(nb_man, kernel_name, **options)
            return
        options["stderr_file"] = options.get("stderr_file") or _Bar(nb_man.pbar)
        super().execute_managed_notebook(nb_man, kernel_name, **options)
        sys.path.insert(0, str(book))
        plain = importlib.import_module("plain")
        readable = plain.convert_cells(nb_man.nb.cells)
        nb_man.nb.cells = nbformat.from_dict(readable)  # type: ignore[no-untyped-call]


papermill_engines.register(None, ChapterEngine)
