"""A released folder, in which every file that others may see declares what it may know of private
text. The files are written here, or only listed (certificates), and the promise is computed from
what they declare.

>>> from confide.release.file_sources import NoisedSource
>>> from confide.release.file_sources import ScreenedSource
>>> from confide.release.file_sources import Screening
>>> from confide.release.source_fold import combine_sources
>>> from crtlib.accounting.events import SampledGaussian
>>> import tempfile
>>> step = SampledGaussian(sampling_probability=0.01, noise_multiplier=1.0, steps=500)
>>> screening = Screening("5" * 64, trace=0.05, public=0.002)
>>> weights = NoisedSource("a", "turn", "replace", (step,), screening)
>>> combine_sources([weights]).kind
'bayesian_confidentiality'
>>> combine_sources([weights, ScreenedSource("vocabulary", screening)]).delta2
0.002
>>> combine_sources([NoisedSource("a", "turn", "replace", (step,), None)]).kind
'dp'
>>> release = Release(Path(tempfile.mkdtemp()))
>>> release.write("README.md", SourcedContent(b"perplexity 12.3456", frozenset()))
Traceback (most recent call last):
ValueError: README.md: does not state what it may know of private text
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
)
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from confide.release.file_sources import SOURCES_ADAPTER, FileSource, SourcedContent
from confide.release.seal import RELEASE_FILE, RELEASE_FORMAT, read_signed, sign_value
from crtlib import files, outputs
from crtlib.files import StrPath


class Release:
    """A folder that others may see, while it is being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, frozenset[FileSource]] = {}

    def write(self, name: str, value: SourcedContent) -> None:
        """Write a value into the folder, under a name that does not depend on any text.

        Args:
            name: The file's path relative to the folder.
            value: Its content, with the sources that declare what it may know.

        Raises:
            ValueError: If it declares no source, or the name is not allowed.

        Guarantee:
            No byte leaves without a source. Test:
            ``tests/release/test_released_folder.py::test_nothing_leaves_that_does_not_say_what_it_knows``.
        """
        if not value.sources:
            raise ValueError(f"{name}: does not state what it may know of private text")
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*", name, re.ASCII):
            raise ValueError(f"{name!r}: is not an allowed name for a released file")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value.content, Path):
            os.replace(value.content, path)
        else:
            with files.replace_atomically(path) as temporary_file:
                temporary_file.write_bytes(value.content)
        self.sources[name] = value.sources

    def write_folder(self, folder: Path, *parts: SourcedContent | FileSource) -> None:
        """Write all files of a private folder; each may know all that ``parts`` may know."""
        sources = SourcedContent.text("", *parts).sources
        for name in list_contents(folder):
            self.write(name, SourcedContent(folder / name, sources))

    def close(self, key: Ed25519PrivateKey, run: str) -> None:
        """List and sign every file in the folder, including its marker, which may know all that the
        other files may know.

        Args:
            key: The odometer's key.
            run: The run's name in the odometer.

        Raises:
            ValueError: For a file that was not written by :meth:`write`.

        Guarantee:
            The signed list names every file in the folder, with its hash and its sources. Tests:
            ``tests/release/test_released_folder.py::test_nothing_leaves_that_does_not_say_what_it_knows``,
            ``tests/release/test_released_folder.py::test_a_release_is_read_as_it_was_written``.
        """
        self.sources[outputs.MARKER_FILE] = frozenset[FileSource]().union(*self.sources.values())
        present = set(list_contents(self.folder)) - {RELEASE_FILE}
        if strangers := present ^ set(self.sources):
            raise ValueError(f"{min(strangers)}: was not written as part of the release")
        all_sources = sorted(self.sources[outputs.MARKER_FILE], key=repr)
        file_rows = {
            name: _file_row(
                self.folder / name,
                [k for k, s in enumerate(all_sources) if s in self.sources[name]],
            )
            for name in sorted(present)
        }
        content = {"schema": RELEASE_FORMAT, "run": run, "files": file_rows}
        content["sources"] = SOURCES_ADAPTER.dump_python(all_sources, mode="json")
        _write_file_list(self.folder, content, key)


def list_more_files(
    folder: Path, contents: Mapping[Path, bytes], key: Ed25519PrivateKey
) -> str | None:
    """The signed list of a release, extended by files that are about to be written (a certificate).
    Their sources are those of all other files, since they were computed from these. None if another
    key signed the list, which then stays as it is."""
    try:
        content = read_signed(folder / RELEASE_FILE, key.public_key().public_bytes_raw().hex())
    except ValueError:
        return None
    all_sources = list(range(len(content["sources"])))
    for path, content_bytes in contents.items():
        row = {"sha256": hashlib.sha256(content_bytes).hexdigest(), "sources": all_sources}
        content["files"][str(path.relative_to(folder.resolve()))] = row
    return _signed_list(content, key)


def _write_file_list(folder: Path, content: Mapping[str, Any], key: Ed25519PrivateKey) -> None:
    """Sign the file list of a release and write it."""
    files.write_text(folder / RELEASE_FILE, _signed_list(content, key), outputs.PUBLIC_FILE_MODE)


def _signed_list(content: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    return json.dumps(sign_value(content, key), indent=1) + "\n"


def _file_row(path: Path, sources: list[int]) -> dict[str, Any]:
    """The row of a file in the list of a release: its hash and the numbers of its sources."""
    return {"sha256": outputs.hash_file(path), "sources": sources}


def list_contents(folder: Path) -> list[str]:
    """The paths of everything in a folder, including links and empty folders, since a name alone
    can give something away."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    )


@dataclass(frozen=True)
class Manifest:
    """What a finished release says about itself: its run, the public key, the sources of all files
    together, and each file's SHA-256. ``altered`` lists the files that are not as they were
    written, and those that are missing or were added."""

    run: str
    key: str
    sources: tuple[FileSource, ...]
    altered: tuple[str, ...]
    hashes: Mapping[str, str]


def read_release(folder: StrPath) -> Manifest:
    """Read the signed list of a release and compare it with the folder, file by file.

    Raises ``ValueError`` if there is no list, or its signature does not match its content."""
    home = Path(folder)
    if (home / RELEASE_FILE).is_symlink():
        raise ValueError(f"{home / RELEASE_FILE}: is a link, a file is needed")
    content = read_signed(home / RELEASE_FILE)
    try:
        all_sources = SOURCES_ADAPTER.validate_python(content["sources"], strict=False)
        hashes = {str(n): str(row["sha256"]) for n, row in content["files"].items()}
        source_numbers = {k for row in content["files"].values() for k in row["sources"]}
        run, key = str(content["run"]), str(content["public_key"])
        is_complete = source_numbers == set(range(len(all_sources)))
        is_complete &= content["schema"] == RELEASE_FORMAT
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError):
        is_complete = False
    if not is_complete:
        raise ValueError(f"{home / RELEASE_FILE}: is damaged, or of another version of crtlib")
    altered = []
    for name in sorted({*list_contents(home), *hashes} - {RELEASE_FILE}):
        path = home / name
        is_plain_file = name in hashes and path.is_file() and not path.is_symlink()
        if not is_plain_file or outputs.hash_file(path) != hashes[name]:
            altered.append(name)
    return Manifest(run, key, tuple(all_sources), tuple(altered), hashes)
