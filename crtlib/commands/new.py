"""``crtlib new``: a folder that holds the whole path as settings."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt

FILES = ("crtlib.toml", "Makefile", "README.md", "gitignore", "policies/ours.toml")


def new(
    folder: Annotated[Path, opt("A new or empty folder.", "place", argument="DIR")],
) -> Answer:
    """Write a small project: settings, policies and a recipe of the whole path.

    Example: crtlib new helpdesk
    """
    from crtlib import files

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: is not empty; name a new folder")
    home = resources.files("crtlib.commands") / "project"
    names = [name.replace("gitignore", ".gitignore") for name in FILES]
    for source, name in zip(FILES, names, strict=True):
        files.write_text(folder / name, (home / source).read_text(encoding="utf-8"))
    line = f"{folder}/crtlib.toml: name your file under [ingest], then 'crtlib run {folder}'"
    return Answer({"folder": folder, "files": names}, [line])
