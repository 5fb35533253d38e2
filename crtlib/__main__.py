"""The command line: ``crtlib COMMAND``, the commands of :mod:`crtlib.commands`.

What all commands share stands here once: ``--json``, ``--quiet``, ``--log``, errors of one line,
exit codes.
A command is a function that prints what a person reads and returns its facts, a dict of JSON
values; ``"ok": False`` among them says that the work is done and the answer is no.

Exit codes: 0 done; 1 a defect of ours, with a traceback; 2 a user's mistake, nothing is written;
3 the machine (disk full, dead worker, damaged file; what was finished is kept); 4 done, and the
answer is no; 130 interrupted.

>>> failure(ValueError("gamma=7: must be in [0, 1]"))
Failure(code=2, where='gamma=7', what='must be in [0, 1]', hint='')
>>> print(failure(OSError(28, "No space left on device", "out/a.json")))
crtlib: error: out/a.json: no space left on device; free some, then run the same command again
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from crtlib import __version__, commands, log, roots
from crtlib.checks import AccessError, DamagedError, MachineError

DONE, DEFECT, MISTAKE, MACHINE, NO, INTERRUPTED = 0, 1, 2, 3, 4, 130

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BROKEN = FULL | {errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def _version(asked: bool) -> None:
    if asked:
        print(f"crtlib {__version__}")
        raise typer.Exit


# --------------------------------------------------------------------------- what went wrong
@dataclass(frozen=True)
class Failure:
    """Why a command ended: where (a file with its line, or an option with its value), what is the
    matter there, and what to do about it."""

    code: int
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in ("crtlib: error", self.where, self.what) if part)
        return text + (f"; {self.hint}" if self.hint else "")

    def facts(self) -> dict[str, Any]:
        """The error as ``--json`` prints it."""
        return {"schema": "crtlib/error/1", "ok": False, **vars(self)}


def failure(error: BaseException) -> Failure | None:
    """What an error means to the user; None for a defect of ours, and for no more than help."""
    if hasattr(error, "format_message"):
        return _usage(error)
    if isinstance(error, OSError) and error.errno:
        hint = "free some, then run the same command again" if error.errno in FULL else ""
        code = MACHINE if error.errno in BROKEN else MISTAKE
        return Failure(
            code, roots.told(str(error.filename or "")), os.strerror(error.errno).lower(), hint
        )
    if isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker":  # Dask's
        hint = "what was finished is kept: run the same command again"
        return Failure(MACHINE, "workers", "one died (killed, or out of memory)", hint)
    if isinstance(error, MemoryError):
        return Failure(MACHINE, "memory", "there is not enough", "try less at a time")
    if isinstance(error, RecursionError):
        return Failure(MISTAKE, "input", "is nested too deeply")
    if isinstance(error, (ValueError, OSError, MachineError)):
        machine = isinstance(error, (DamagedError, MachineError))
        machine = machine and not isinstance(error, AccessError)
        where, colon, rest = " ".join(roots.told(str(error)).split()).partition(": ")
        what, _, hint = (rest if colon else where).partition("; ")
        what = what or type(error).__name__
        return Failure(MACHINE if machine else MISTAKE, where if colon else "", what, hint)
    return None


def _code(error: BaseException) -> int:
    """The exit code that an error leads to."""
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    ended = failure(error)
    return getattr(error, "exit_code", DEFECT) if ended is None else ended.code


def _usage(error: Any) -> Failure | None:
    """An error of typer's own, which it would print as a box."""
    if name := getattr(error, "option_name", None):
        near = next(iter(getattr(error, "possibilities", None) or []), "")
        said = getattr(error, "message", "").removesuffix(f": {name}").lower()
        return Failure(
            MISTAKE, name, said or "no such option", f"did you mean {near}?" * bool(near)
        )
    message = " ".join(error.format_message().split())
    parameter = getattr(error, "param", None)
    if parameter is None:
        return Failure(MISTAKE, "", message) if message else None
    name = max(parameter.opts, key=len) if parameter.opts[0][0] == "-" else parameter.metavar
    what = "is missing" if message.startswith("Missing") else " ".join(error.message.split())
    return Failure(MISTAKE, name or parameter.name.upper(), what)


# --------------------------------------------------------------------------- what all share
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors only.")]


def _path(value: str) -> Path:
    """A path as it was given; an empty one would be the current folder."""
    if not str(value) or "\0" in str(value):
        raise typer.BadParameter("is empty, or no path")
    if "://" in str(value):  # as a path it would be a folder called s3:
        raise typer.BadParameter("is a URL, must be a local file or folder")
    return Path(value)


class Url(str):
    """The URL that an option names in place of a path."""


def _place(value: str) -> Path | Url:
    return Url(value) if "://" in str(value) else _path(value)


_path.__name__ = "path"  # as the help prints it
_place.__name__ = "path or URL"
WRITTEN = {"out": 1, "labels": 2}
"""Options that name what a command writes, or adds to. What is last is sent first: labels note
whom they have judged, or nothing of it is shown."""
Log = Annotated[
    Path | None, typer.Option("--log", help="Append events to this file, never text.", parser=_path)
]


EVERY = (("as_json", Json, False), ("quiet", Quiet, False), ("log_file", Log, None))
"""The options that every command has: name, kind, default."""


def _parameters(name: str, signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """The options of a command, and those that all have."""
    for parameter in signature.parameters.values():
        kind, *options = get_args(parameter.annotation) or (None,)
        if options and Path in (kind, *get_args(kind)):
            options[0].parser = _place if name in commands.REACH else _path
    by_key = inspect.Parameter.KEYWORD_ONLY
    parameters = {name: p.replace(kind=by_key) for name, p in signature.parameters.items()}
    for key, kind, default in EVERY:
        parameters.setdefault(key, inspect.Parameter(key, by_key, default=default, annotation=kind))
    return parameters


def shared(name: str, function: Callable[..., Any]) -> Callable[..., None]:
    """A command with the options that all have. One that has its own ``--json`` prints its object
    itself, one that has its own ``--quiet`` is quiet itself; one may also return its exit code."""
    signature = inspect.signature(function, eval_str=True)
    parameters = _parameters(name, signature)

    @functools.wraps(function)
    def run(**options: Any) -> None:
        if not _speaks(name):
            options |= {"as_json": False, "quiet": True, "log_file": None}
        as_json, quiet = options["as_json"], options["quiet"]
        given = {key: value for key, value in options.items() if key in signature.parameters}
        typed = [key for key, value in options.items() if value != parameters[key].default]
        with log.events(options["log_file"], name, typed, _code) as told:
            text = io.StringIO()
            with contextlib.ExitStack() as streams:
                if quiet:
                    streams.enter_context(contextlib.redirect_stderr(io.StringIO()))
                near = _near(given, streams) if name in commands.REACH else given
                if as_json or quiet or near != given:  # what it says of local copies is put right
                    streams.enter_context(contextlib.redirect_stdout(text))
                result = function(**near)
            if near != given and not (as_json or quiet):
                print(roots.told(text.getvalue()), end="")
            facts = result if isinstance(result, dict) else {}
            code = result if isinstance(result, int) else DONE if facts.get("ok", True) else NO
            told["code"] = code
        if as_json:
            facts = facts or json.loads(text.getvalue() or "{}")
            facts = json.loads(roots.told(json.dumps(plain(facts))))
            facts = facts if isinstance(facts, dict) else {"rows": facts}
            head = {"schema": f"crtlib/{name.replace(' ', '-')}/1", "ok": True}
            print(json.dumps(head | plain(facts), allow_nan=False))
        if code:
            raise typer.Exit(code)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(parameters.values()), return_annotation=None
    )
    run.__annotations__ = {key: p.annotation for key, p in parameters.items()}
    return run


def _near(given: Mapping[str, Any], end: contextlib.ExitStack) -> dict[str, Any]:
    """The options with local paths in place of URLs: copies of what is read, and for what is
    written a folder that is sent to its URL at the ``end``. Raises ``ValueError`` for a URL that
    is none, or that is written and read."""
    urls = [
        (key, one)
        for key, value in given.items()
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, Url)
    ]
    places = {(key, url): roots.root(url, key) for key, url in urls}  # all, before any is read
    for (key, out), (other, url) in itertools.permutations(urls, 2):
        both = f"{out.rstrip('/')}/", f"{url.rstrip('/')}/"
        if key == "out" and (both[0].startswith(both[1]) or both[1].startswith(both[0])):
            raise ValueError(f"--out: {out} is, holds or lies in what --{other} names")
    near: dict[Url, Path] = {}
    for (key, url), place in sorted(places.items(), key=lambda x: WRITTEN.get(x[0][0], 0)):
        if key not in WRITTEN:
            near[url] = roots.here(place)
            continue
        if note := roots.note(place):
            print(note, file=sys.stderr)
        near[url] = end.enter_context(roots.written(place, always=key == "labels"))

    def local(value: Any) -> Any:
        if isinstance(value, list):
            return [local(one) for one in value]
        return near[value] if isinstance(value, Url) else value

    return {key: local(value) for key, value in given.items()}


def _launched() -> bool:
    """Whether this is one of several processes of ``torchrun``."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ["WORLD_SIZE"] != "1"


def _speaks(name: str) -> bool:
    """Whether this process writes and speaks, of several for all; refuses what none can share."""
    if _launched() and name != "train":
        raise ValueError(f"torchrun: {name} runs in one process; only train shares its work")
    return not _launched() or os.environ["RANK"] == "0"


def _add(app: typer.Typer, name: str, command: Callable[..., Any] | typer.Typer) -> None:
    """Add a command to an application, or a group of them."""
    if not isinstance(command, typer.Typer):
        app.command(name)(shared(name, command))
        return
    for info in command.registered_commands:
        if info.callback is not None:
            full = f"{name} {info.name or info.callback.__name__}"
            info.callback = shared(full, info.callback)
    app.add_typer(command, name=name)


def plain(value: Any) -> Any:
    """A value as JSON has it: paths are strings, what is not finite is a string or null.

    >>> plain({"a": Path("b"), "c": [float("inf"), float("nan")]})
    {'a': 'b', 'c': ['inf', None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return str(value) if isinstance(value, Path) else value


def application(title: str, named: Mapping[str, Callable[..., Any] | typer.Typer]) -> typer.Typer:
    """A program of these commands, with what all share."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=title)

    @app.callback()
    def about(
        version: Annotated[
            bool,
            typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
        ] = False,
    ) -> None:
        pass

    for name, command in named.items():
        _add(app, name, command)
    return app


app = application(
    "Train language models on text that holds secrets, and measure that they did not leak.",
    {name: commands.load(name) for name in commands.COMMANDS},
)


def main(other: typer.Typer | None = None, program: str = "crtlib") -> None:
    """Run a command line, and end with its exit code."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its notes are not ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # names of files may be no UTF-8
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = (other or app)(standalone_mode=False, prog_name=program)
    except Exception as error:
        ended = failure(error)
        if ended is None:
            if hasattr(error, "format_message"):  # typer has printed the help
                raise SystemExit(MISTAKE) from None
            raise
        print(str(ended).replace("crtlib", program, 1), file=sys.stderr)
        if "--json" in sys.argv:
            print(json.dumps(ended.facts()))
        raise SystemExit(ended.code) from None
    if code == INTERRUPTED:
        print(f"{program}: interrupted; the same command goes on", file=sys.stderr)
    raise SystemExit(code if isinstance(code, int) else DONE)


if __name__ == "__main__":
    main()
