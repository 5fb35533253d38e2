"""Hashes of policies, by which a changed one is told from the one that labels judged."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from crtlib.checks import MachineError
from crtlib.screening.policy_names import (
    BUILTIN_MAKERS,
    POLICY_ENTRY_POINTS,
    find_maker,
    parse_policy_name,
    strip_paths,
)
from crtlib.text import sources


def policy_digest(name: str) -> str:
    """The SHA-256 of a policy: of its name, and of the contents of its files and folders.

    Args:
        name: As :func:`crtlib.screening.policy_names.policy_by_name` reads it.

    Returns:
        64 hexadecimal digits.

    Raises:
        OSError: For a file of the policy that cannot be read.

    Guarantee:
        A policy with other content in a file, or from another version of the package that adds it,
        is another policy. So what labels showed about the one bounds nothing about the other. Test:
        ``tests/release/test_counted_judgements.py::
        test_every_pair_that_labels_judge_counts_wherever_they_lie``.

    >>> policy_digest("cautious") == policy_digest("everything")
    False
    """
    hashes = []
    for kind, argument in parse_policy_name(name):
        path = Path(argument)
        content = argument
        if argument and path.exists():  # without an argument it would be the current folder
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
            content = sources.hash_files(files)
        # another package's policy counts as a different one in each version
        code = "" if kind in BUILTIN_MAKERS else _hash_package_code(kind)
        hashes.append(f"{kind}:{content}{code}")
    return hashlib.sha256("+".join(hashes).encode()).hexdigest()


def _hash_package_code(kind: str) -> str:
    """The SHA-256 of all files of the package that makes policies of this kind, or of the one file
    that does."""
    files = _list_package_files(kind)
    if files is None:
        files = [_find_source_file(kind)]
    return sources.hash_files([p for p in files if p.is_file() and "__pycache__" not in p.parts])


def _find_source_file(kind: str) -> Path:
    """The file with the code that makes a policy of this kind; "nowhere" where none is known."""
    maker = find_maker(kind)
    make: Any = maker and maker.make
    while isinstance(make, partial):
        make = make.func
    make = inspect.unwrap(make) if make else None
    code = make if inspect.isroutine(make) or inspect.isclass(make) else type(make)
    try:
        return Path(inspect.getsourcefile(code) or "nowhere").resolve()
    except TypeError:  # it was defined in no file
        return Path("nowhere")


def _list_package_files(kind: str) -> list[Path] | None:
    """All files of the package that makes policies of this kind: those in its topmost folder with
    an ``__init__.py``, and those that its distribution installed, where that lists the maker's
    file. None: the maker's file is in neither, so it may read any file beside it."""
    source = _find_source_file(kind)
    folders = [f for f in source.parents if (f / "__init__.py").is_file()]
    files = set(folders[-1].rglob("*")) if folders and source.is_file() else set[Path]()
    for entry in entry_points(group=POLICY_ENTRY_POINTS, name=kind):
        installed = {
            Path(str(f.locate())).resolve()
            for f in (entry.dist.files if entry.dist else None) or ()
        }
        if source in installed:
            files |= installed
    return sorted(files) or None


def check_policy_files_known(name: str) -> None:
    """Raise ``ValueError`` for a policy made by somebody's own code that is no package, since
    nobody could tell later whether it has changed.

    Guarantee:
        If a policy passes, its hash (:func:`policy_digest`) changes whenever a file of the package
        that makes it is changed, added or deleted. What it imports from other packages, and what it
        reads elsewhere, is not hashed; a certificate states this as an assumption. Test:
        ``tests/screening/test_policy.py::
        test_a_policy_of_loose_files_is_not_sealed``.
    """
    for kind, _ in parse_policy_name(name):
        if kind not in BUILTIN_MAKERS and _list_package_files(kind) is None:
            raise ValueError(
                f"policy={strip_paths(name)!r}: comes from code that is not a package, so nobody "
                "could tell later whether the files that it reads were changed: must be a folder "
                "with an __init__.py, or an installed package that lists its files"
            )


def check_policies_unchanged(names: Iterable[str], digests: Iterable[str]) -> None:
    """Raise :class:`MachineError` where a policy's files are not those whose hash was taken, since
    all workers must flag the same."""
    for name, digest in zip(names, digests, strict=True):
        if policy_digest(name) != digest:
            raise MachineError(
                f"policy={strip_paths(name)!r}: has changed, or differs where a worker reads it; "
                "what was finished is kept: give all workers the same files"
            )
