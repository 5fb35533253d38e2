"""The commands of ``crtlib``, one file each: a function of the file's name, read by typer, or a
``typer.Typer`` of that name whose commands come after it (``crtlib label sample``).

>>> COMMANDS[-3], load("train").__doc__.splitlines()[0]
('sweep', 'Screen and train on a corpus; write the model, its guarantee and the canary attack.')
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer

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
    "sweep",
    "lab",
    "grade",
)
"""Their names, in the order of ``crtlib --help``."""


def load(name: str) -> Callable[..., Any] | typer.Typer:
    """The function of a command, or the sub-application."""
    command: Any = getattr(importlib.import_module(f"crtlib.commands.{name}"), name)
    return command


def add(app: typer.Typer) -> None:
    """Add all of them to an application."""
    for name in COMMANDS:
        command = load(name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
