"""The commands of ``crtlib``, one file each: a function of the file's name, read by typer.

>>> COMMANDS[-3], load("train").__doc__.splitlines()[0]
('sweep', 'Screen and train on a corpus; write the model, its guarantee and the canary attack.')
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

COMMANDS = (
    "simulate",
    "convert",
    "screen",
    "tagger",
    "train",
    "generate",
    "certify",
    "audit",
    "account",
    "protect",
    "report",
    "claims",
    "sweep",
    "lab",
    "grade",
)
"""Their names, in the order of ``crtlib --help``."""


def load(name: str) -> Callable[..., Any]:
    """The function of a command."""
    command: Callable[..., Any] = getattr(importlib.import_module(f"crtlib.commands.{name}"), name)
    return command
