"""Makes what papermill writes from a notebook of the book readable by itself.

papermill finds :class:`ChapterEngine` by this package's entry point, and uses it to run the
notebooks that are beside ``book/plain.py``; it runs all others as usual. The bar shows how many
training runs are done, and in the output the numbers are in the text.
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
    """Standard error of the cells: shows the bar of a sweep in papermill's own bar."""

    def __init__(self, shown: Any) -> None:
        self.shown = shown

    def write(self, text: str) -> None:
        if self.shown is not None and (last := SWEEP.findall(text)):
            self.shown.set_postfix_str(f"{last[-1][0]}, {last[-1][1]} left")

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""


class ChapterEngine(NBClientEngine):  # type: ignore[misc]
    """Runs a notebook as papermill does."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
        """Run it and, where it is a notebook of the book, put the numbers into its text."""
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
