"""Folders that are written completely or not at all, and that record what they were made from.

A folder is written beside its place, its marker ``crtlib.json`` last, and then swapped in. Every
reader requires the marker and checks the hashes of what it reads.

>>> import pathlib, tempfile
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> with staged_folder(home / "out", command="demo", options={"n": 1}) as part:
...     _ = (part / "a.txt").write_text("private")
>>> sorted(p.name for p in (home / "out").iterdir()), oct((home / "out/a.txt").stat().st_mode)[-3:]
(['a.txt', 'crtlib.json'], '600')
>>> require_marker(home / "out")["command"]
'demo'
>>> is_up_to_date(home / "out", command="demo", options={"n": 1})
True
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crtlib.arguments import argument, argument_error
from crtlib.checks import DamagedError, printable, raise_machine_fault
from crtlib.files import (
    StrPath,
    check_private_key,
    check_regular_file,
    lock_folder,
    open_regular_file,
    read_bytes,
    translate_disk_errors,
    why_not_regular,
)
from crtlib.version import __version__

MARKER_FILE = "crtlib.json"
SEAL_FILE = "release.json"
"""The file that lists and signs a release, the marker included."""
MARKER_FORMAT = "crtlib/output/2"
PRIVATE_FILE_MODE, PUBLIC_FILE_MODE = 0o600, 0o644
SHA256_PATTERN = "[0-9a-f]{64}"
KEYED_HASH_PREFIX = "hmac:"
"""The prefix of a private file's hash in the marker of a folder that is shown in part."""
InputFiles = Mapping[str, StrPath]
"""What a folder is made from: name -> path, whose content is hashed, or name -> SHA-256."""


def hash_file(path: StrPath) -> str:
    """The SHA-256 of a file or, for a folder with a marker, of the hashes that its marker lists."""
    path = Path(path)
    if path.is_dir():
        listed = json.dumps(require_marker(path, names=())["files"], sort_keys=True)
        return hashlib.sha256(listed.encode()).hexdigest()
    with open_regular_file(check_regular_file(path)) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tree(path: StrPath) -> str:
    """The SHA-256 of a file, of a folder with a marker, or of all files in any other folder."""
    path = Path(path)
    if not path.is_dir() or find_marker(path) is not None:
        return hash_file(path)
    digest = hashlib.sha256()
    for one in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{one.relative_to(path)}\0{hash_file(one)}\n".encode())
    return digest.hexdigest()


def hash_inputs(inputs: InputFiles) -> dict[str, str]:
    """The SHA-256 of each input; one that is a hash already (64 hexadecimal digits) stays."""
    return {
        name: str(value) if _is_sha256(value) else hash_tree(value)
        for name, value in inputs.items()
    }


def check_inputs_unchanged(inputs: InputFiles, before: Mapping[str, str]) -> None:
    """Refuse inputs whose hashes are not those from before they were read."""
    for name, sha in hash_inputs(inputs).items():
        if sha != before[name]:
            raise ValueError(f"{inputs[name]}: was changed while it was read; run this again")


def _is_sha256(value: StrPath) -> bool:
    return isinstance(value, str) and re.fullmatch(SHA256_PATTERN, value) is not None


def with_keyed_hashes(value: Any, key: bytes) -> Any:
    """A JSON value in the form that may be shown: each SHA-256 in it becomes an HMAC of it under
    ``key``, and ``sha256`` in names becomes ``hmac``. With a plain hash of private text, whoever
    knows all other text could test candidates for the rest.

    >>> shown = with_keyed_hashes({"corpus_sha256": "a" * 64, "turns": 3}, b"key")
    >>> list(shown), shown["corpus_hmac"] == with_keyed_hashes("a" * 64, b"key")
    (['corpus_hmac', 'turns'], True)
    """
    if isinstance(value, Mapping):
        return {
            name.replace("sha256", "hmac"): with_keyed_hashes(one, key)
            for name, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [with_keyed_hashes(one, key) for one in value]
    if isinstance(value, str):
        return re.sub(
            SHA256_PATTERN, lambda m: hmac.new(key, m[0].encode(), "sha256").hexdigest(), value
        )
    return value


def load_or_make_key(path: StrPath) -> bytes:
    """The key in a private file; a new one if there is none."""
    try:
        kept = read_bytes(path)
    except OSError as error:
        raise_machine_fault(error)
        kept = b""
    return kept if len(kept) == 32 else secrets.token_bytes(32)


def key_path_beside(folder: StrPath) -> Path:
    """The path of the key of a folder that is shown: a private file beside the folder."""
    place = Path(folder).absolute()
    return place.with_name(f".{place.name}.key")


# Reading.


def find_marker(folder: StrPath) -> dict[str, Any] | None:
    """The content of a folder's marker; None if there is none, or it is not as it was written."""
    path = Path(folder) / MARKER_FILE
    try:
        if not path.is_file() or path.stat().st_size > 1 << 28:
            return None
        content = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise_machine_fault(error)
        return None
    keys = {"command": str, "options": dict, "inputs": dict, "files": dict}
    ours = isinstance(content, dict) and content.get("schema") == MARKER_FORMAT
    ours = ours and content.pop("sum", None) == _marker_checksum(content)
    ours = ours and all(type(content.get(k)) is t for k, t in keys.items())
    facts = content.get("facts", {}) if ours else None
    whole = isinstance(facts, dict) and all(isinstance(group, dict) for group in facts.values())
    return content if whole else None


def _marker_checksum(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a marker's content, which shows that an entry was edited or removed."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def require_marker(folder: StrPath, names: Iterable[str] | None = None) -> dict[str, Any]:
    """The marker of a finished folder, after the files ``names`` were compared with their hashes.

    ``names`` are patterns such as ``data/*.parquet``; None means all files, ``()`` none. Raises
    ``ValueError`` if the folder is missing, unfinished or not ours, or if a file is missing or not
    the one that was written.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'is not a folder' if folder.exists() else 'no such file'}")
    content = find_marker(folder)
    if content is None:
        raise ValueError(f"{folder}: has no intact {MARKER_FILE}; it is unfinished or not ours")
    key = load_or_make_key(folder / str(content["key"])) if "key" in content else b""
    for name in _names_matching(content["files"], ("*",) if names is None else names):
        path, expected = folder / name, content["files"][name]
        if not path.is_file() or expected not in (
            found := hash_file(path),
            _keyed_file_hash(found, key),
        ):
            raise DamagedError(
                f"{path}: does not match its SHA-256 in {MARKER_FILE}; "
                f"make it again with 'crtlib {content['command']} …'"
            )
    return content


def _names_matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The relative names that match any of the patterns, such as ``data/*.parquet``."""
    every = list(patterns)
    return [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in every)]


def _keyed_file_hash(sha: str, key: bytes) -> str:
    """The hash of a private file in the form that the marker of a folder with a key has."""
    return KEYED_HASH_PREFIX + str(with_keyed_hashes(sha, key))


def is_up_to_date(
    folder: StrPath,
    *,
    command: str,
    options: Mapping[str, Any],
    inputs: InputFiles | None = None,
    key: str | None = None,
) -> bool:
    """Whether the folder is what the same command made from the same inputs, undamaged."""
    _finish_killed_swap(_nonempty_path(folder))
    content = find_marker(folder)
    if content is None:
        return False
    same = _marker_recipe(command, options, hash_inputs(inputs or {}))
    same = same if key is None else with_keyed_hashes(same, load_or_make_key(Path(folder) / key))
    if any(content[key] != value for key, value in same.items()):
        return False
    try:
        require_marker(folder)
    except ValueError:
        return False
    return True


# Writing.


def check_output_file(
    path: StrPath, *, inputs: Iterable[StrPath] = (), force: bool = False
) -> Path:
    """``path``, if a file may be written there; ``ValueError`` states why it may not.

    A file that exists is replaced only with ``force``; an input, a device, a pipe, a folder and
    ``""`` never are.
    """
    path = _nonempty_path(path)
    _refuse_input_as_output(path, inputs)
    if path.exists() and (what := why_not_regular(path)):
        raise argument_error("out", f"{path} {what}")
    if path.exists() and not force:
        overwrite = argument("force", True)
        raise argument_error("out", f"{path} exists; choose another name or {overwrite}")
    _check_can_create(path)
    return path


def _check_can_create(path: Path) -> None:
    """Refuse a path that could not be created, before the work rather than after it."""
    if path.is_symlink() and not path.exists():
        raise argument_error("out", f"{path} is a link to nothing")
    above = next((p for p in path.absolute().parents if os.path.lexists(p)), Path("/"))
    if not above.is_dir():
        raise argument_error("out", f"{path} is in {above}, which is not a folder")
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise_machine_fault(error)
        raise argument_error("out", f"{path} is in {above}, which cannot be written") from None


def check_output_folder(
    folder: StrPath,
    *,
    inputs: Iterable[StrPath] = (),
    force: bool | None = False,
) -> Path:
    """``folder``, if it may be written; ``ValueError`` states why it may not.

    A folder that is new or empty may be written. One with our marker may be with ``force``, if
    everything in it is ours; None means that the caller has no such option. An input, a folder with
    an input in it, a file, a device and ``""`` never may be.
    """
    folder = _nonempty_path(folder)
    _refuse_input_as_output(folder, inputs)
    if not folder.exists():
        _check_can_create(folder)
        return folder
    if not folder.is_dir():
        raise argument_error(
            "out", f"{folder} {why_not_regular(folder) or 'is a file'}; a folder is needed"
        )
    if not _folder_entries(folder):
        return folder
    content = find_marker(folder)
    if content is None:
        raise argument_error(
            "out", f"{folder} holds files that are not ours; choose another folder"
        )
    if not force:
        raise argument_error(
            "out",
            f"{folder} holds what 'crtlib {content['command']}' made; "
            "choose another folder" + f" or {argument('force', True)}" * (force is False),
        )
    foreign = sorted(
        set(_relative_file_names(folder)) - {MARKER_FILE, SEAL_FILE, *content["files"]}
    )
    if foreign:
        raise argument_error(
            "out", f"{folder} holds {len(foreign)} files that no command wrote; move them first"
        )
    return folder


def _nonempty_path(path: StrPath) -> Path:
    if not os.fspath(path):
        raise argument_error("out", "is empty; name a file or a folder")
    try:
        os.fspath(path).encode()
        Path(path).resolve()
    except UnicodeEncodeError:
        raise argument_error("out", f"{printable(os.fspath(path))} is not UTF-8") from None
    except (RuntimeError, OSError):
        raise argument_error("out", f"{path} is a link in a circle") from None
    return Path(path)


def _refuse_input_as_output(out: Path, inputs: Iterable[StrPath]) -> None:
    for name in inputs:
        path = Path(name)
        with contextlib.suppress(OSError, RuntimeError):  # links in a circle
            if out.exists() and path.exists():
                same = out.samefile(path)
                inside = out.is_dir() and out.resolve() in path.resolve().parents
                if same or inside:
                    what = f"{'is' if same else 'holds'} an input"
                    raise argument_error("out", f"{out} {what}; choose another place")
            if path.is_dir() and path.resolve() in (out.resolve(), *out.resolve().parents):
                raise argument_error("out", f"{out} is inside an input; choose another place")


def _folder_entries(folder: Path) -> list[Path]:
    """The entries of a folder, except what a new file system has and what is staged there."""
    return [p for p in folder.iterdir() if p.name not in ("lost+found", ".part", ".old")]


def _relative_file_names(folder: Path) -> list[str]:
    """The relative names of everything in a folder that is not a folder itself."""
    return sorted(
        str((Path(root) / name).relative_to(folder))
        for root, _, names in os.walk(folder)
        for name in names
    )


def _marker_recipe(
    command: str, options: Mapping[str, Any], inputs: Mapping[str, str]
) -> dict[str, Any]:
    plain = json.loads(json.dumps(dict(options), allow_nan=False))
    return {"command": command, "options": plain, "inputs": dict(inputs)}


@contextlib.contextmanager
def staged_folder(
    folder: StrPath,
    *,
    command: str,
    options: Mapping[str, Any],
    inputs: InputFiles | None = None,
    public: Sequence[str] = (),
    facts: dict[str, Any] | None = None,
    force: bool = False,
    add: bool = False,
    key: str | None = None,
    seal: Callable[[Path], None] | None = None,
) -> Iterator[Path]:
    """Yield a folder beside ``folder`` to write into; on success it takes that place, marked.

    Files whose relative name matches a pattern in ``public`` get the mode 0644, all others 0600,
    and folders without a public file 0700, all minus the umask. A file that was private stays
    private when it is replaced.

    ``options`` are JSON values, without paths or dates. ``facts`` are written into the marker as
    they are at the end. With ``add``, the yielded folder begins as a copy of the finished
    ``folder``, foreign files included, so ``folder`` need not be new. ``key`` names a private file
    in the folder, with 32 random bytes that stay when the folder is made again; the marker then
    holds no plain hash of an input, of an option or of a private file (:func:`with_keyed_hashes`).
    ``seal`` is called with the folder when everything is in it, the marker included.

    The yielded folder is on the file system of ``folder``, links followed; if ``folder`` is a mount
    point, the yielded folder is inside it. Raises ``ValueError`` if the place may not be written
    (:func:`check_output_folder`), another process is writing it, or an input was changed in the
    meantime. On any error everything stays as before.
    """
    before = hash_inputs(inputs or {})
    recipe = _marker_recipe(command, options, before)
    paths = [p for p in (inputs or {}).values() if not _is_sha256(p)]
    _finish_killed_swap(_nonempty_path(folder))
    folder = (
        _nonempty_path(folder) if add else check_output_folder(folder, inputs=paths, force=force)
    )
    if add:
        require_marker(folder, names=())
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = _staging_path(folder, "part")
    part.mkdir(mode=0o700, exist_ok=True)
    with lock_folder(part, f"{argument('out')}: {part} is being written by another process"):
        _remove_all(part.iterdir())  # left by a process that was killed
        try:
            # The umask, read from a new file: to query it is to change it, for all threads.
            probe = part / ".umask"
            os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o777))
            umask = 0o777 & ~stat.S_IMODE(probe.stat().st_mode)
            probe.unlink()
            if add:
                shutil.copytree(folder, part, dirs_exist_ok=True)
                os.chmod(part, 0o700)
            if key and (folder / key).is_file():
                check_private_key(folder / key)
            secret = load_or_make_key(folder / key) if key else b""
            with translate_disk_errors(part):
                if key:
                    (part / key).parent.mkdir(exist_ok=True)
                    (part / key).write_bytes(secret)
                yield part
            check_inputs_unchanged(inputs or {}, before)
            (part / MARKER_FILE).unlink(missing_ok=True)
            files = {name: hash_file(part / name) for name in _relative_file_names(part)}
            if key:
                shown = _names_matching(files, public)
                files = {
                    n: f if n in shown else _keyed_file_hash(f, secret) for n, f in files.items()
                }
                recipe = with_keyed_hashes(recipe, secret) | {"key": key}
            content = {"schema": MARKER_FORMAT, "version": __version__, **recipe, "files": files}
            content |= {"facts": facts} if facts else {}
            content["sum"] = _marker_checksum(content)
            text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False)
            (part / MARKER_FILE).write_text(text + "\n", encoding="utf-8")
            if seal:
                seal(part)
            _set_modes_and_sync(part, folder, public, umask)
            _swap_folders(part, folder)
        except BaseException:  # after a swap the name may already be another process's
            shutil.rmtree(part, ignore_errors=True)
            raise


def _staging_path(folder: Path, end: str) -> Path:
    place = folder.resolve()
    return place / f".{end}" if place.is_mount() else place.with_name(f".{place.name}.{end}")


def _remove_all(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _set_modes_and_sync(part: Path, old: Path, public: Sequence[str], umask: int) -> None:
    """Set the modes of all files and folders, and sync the files to disk."""
    names = _relative_file_names(part)
    open_to_all = _names_matching(names, public)
    open_to_all += [MARKER_FILE, SEAL_FILE] if open_to_all else []
    shown: set[Path] = set()
    for name in names:
        path = part / name
        mode = PUBLIC_FILE_MODE if name in open_to_all else PRIVATE_FILE_MODE
        with contextlib.suppress(OSError):
            before = stat.S_IMODE((old / name).stat().st_mode)
            mode &= before if not before & 0o077 else ~0
        os.chmod(path, mode & ~umask)
        if mode & 0o044:
            shown.update(p for p in path.parents if p == part or part in p.parents)
        with open_regular_file(path) as file:
            os.fsync(file.fileno())
    for root, _, _ in os.walk(part, topdown=False):
        os.chmod(root, (0o755 if Path(root) in shown else 0o700) & ~umask)


def _swap_folders(part: Path, folder: Path) -> None:
    """Put ``part`` in the place of ``folder``; :func:`_finish_killed_swap` repairs a kill in
    between."""
    folder = folder.resolve()
    if part.parent == folder:  # a mount point: nothing can take its place
        _remove_all(_folder_entries(folder))
        os.chmod(folder, stat.S_IMODE(part.stat().st_mode))
        for path in sorted(part.iterdir(), key=lambda p: p.name == MARKER_FILE):  # the marker last
            os.replace(path, folder / path.name)
        part.rmdir()
        return
    if not folder.exists() or not any(folder.iterdir()):
        os.replace(part, folder)
        return
    old = _staging_path(folder, "old")
    shutil.rmtree(old, ignore_errors=True)
    os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)


def _finish_killed_swap(folder: Path) -> None:
    """Finish or undo a swap during which the process was killed."""
    old = _staging_path(folder, "old")
    if old.is_dir() and find_marker(old) is not None:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(old, folder)
