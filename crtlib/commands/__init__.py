"""The commands of ``crtlib``, one file each: a function of the file's name, read by typer, or a
``typer.Typer`` of that name whose commands come after it (``crtlib label sample``).

It prints what a person reads and returns its facts as a dict, which ``--json`` prints; ``"ok":
False`` among them is exit code 4. What all commands share stands in :mod:`crtlib.__main__`.

>>> COMMANDS[-1], load("train").__doc__.splitlines()[0]
('report', 'Screen and train on a corpus; write the model, its guarantee and the canary attack.')
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any

import typer

Force = Annotated[bool, typer.Option("--force", help="Replace results that exist.")]
"""The option of every command that writes."""

As = Annotated[
    str, typer.Option("--as", help="jsonl, or dataset: a folder with a card that datasets reads.")
]
"""What simulate and convert write."""

Workers = Annotated[int, typer.Option(min=1, max=1024, help="Processes, or threads.")]
On = Annotated[
    str,
    typer.Option("--executor", help="processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME"),
]
"""Where a command that reads batch by batch runs them."""

REACH = ("ingest", "label sample", "label import", "tagger", "screen", "report")
"""The commands whose paths may be URLs (:mod:`crtlib.roots`)."""

COMMANDS = (
    "new",
    "run",
    "ingest",
    "simulate",
    "convert",
    "label",
    "tagger",
    "screen",
    "train",
    "generate",
    "certify",
    "audit",
    "account",
    "protect",
    "report",
)
"""Their names, in the order of ``crtlib --help``."""


def load(name: str) -> Callable[..., Any] | typer.Typer:
    """The function of a command, or a group of commands."""
    command: Any = getattr(importlib.import_module(f"crtlib.commands.{name}"), name)
    return command
