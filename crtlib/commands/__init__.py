"""The commands of ``crtlib``, one file each: a function of the file's name, or a dict of several
(``crtlib label sample``), whose parameters are options (:func:`crtlib.options.opt`).

A command returns an :class:`crtlib.options.Answer`; :mod:`crtlib.cli` prints it.
"""

from __future__ import annotations

from typing import Annotated

from crtlib.options import opt

Force = Annotated[bool, opt("Replace results that exist.", "place")]
"""The option of every command that writes."""

Workers = Annotated[int, opt("Processes, or threads.", "speed", ge=1, le=1024)]
On = Annotated[
    str,
    opt("Where they run: processes:, threads:, dask://HOST:PORT or entry:MODULE:NAME.", "speed",
        flag="--executor"),
]  # fmt: skip
"""Where a command that reads batch by batch runs them."""

REACH = ("screen",)
"""The commands that take URLs (:mod:`crtlib.roots`)."""

COMMANDS = (
    "new",
    "run",
    "ingest",
    "simulate",
    "convert",
    "label",
    "tagger",
    "card",
    "advise",
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
