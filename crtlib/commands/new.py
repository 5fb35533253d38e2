"""``crtlib new``: a folder that holds the whole path as settings."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

FILES = ("crtlib.toml", "Makefile", "README.md", "gitignore", "policies/ours.toml")


def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Write a small project: settings, policies and a recipe of the whole path.

    Example: crtlib new helpdesk
    """
    from crtlib import files

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is not empty; name a new folder")
    home = resources.files("crtlib.commands") / "project"
    for name in FILES:
        text = (home / name).read_text(encoding="utf-8")
        files.write_text(folder / name.replace("gitignore", ".gitignore"), text)
    print(f"{folder}/crtlib.toml: name your file under [ingest], then 'crtlib run {folder}'")
