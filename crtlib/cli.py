"""The runner of command lines, for ``crtlib`` and any program with commands of the same form.

A command is a function whose parameters are options (:func:`crtlib.options.option_model_of`); it
returns an :class:`crtlib.options.CommandResult`. The runner reads the line, calls the function, and
prints the answer for people or, with ``--json``, as one object. A group of commands is a dict of
functions. No code reads what was printed.

Exit codes: 0 done; 1 a defect of ours, with a traceback; 2 a user's mistake, nothing is written;
3 the machine's fault (disk full, dead worker, damaged file; what was finished is kept); 4 done, and
the answer is no; 130 interrupted.

>>> describe_failure(ValueError("gamma=7: must be in [0, 1]"))
Failure(code=2, where='gamma=7', what='must be in [0, 1]', hint='')
>>> print(describe_failure(OSError(28, "No space left on device", "out/a.json")))
out/a.json: no space left on device; free some, then run the same command again
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import io
import itertools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from crtlib.arguments import written_as_options
from crtlib.checks import (
    DISK_FULL_ERRNOS,
    MACHINE_ERRNOS,
    DamagedError,
    MachineError,
    printable,
)
from crtlib.options import (  # fmt: skip
    SECTION_HEADING,
    CommandResult,
    InvalidOption,
    Option,
    OptionModel,
    option,
    option_model_of,
    options_of,
    validate_options,
)

EXIT_DONE = 0
EXIT_DEFECT = 1
"""The exit code of Python after a traceback."""
EXIT_USER_MISTAKE = 2
EXIT_MACHINE_FAULT = 3
EXIT_ANSWER_NO = 4
EXIT_INTERRUPTED = 130

TRAIN_EXTRA_PACKAGES = ("torch", "transformers", "safetensors", "peft")
"""Packages that not every installation has; ``crtlib[train]`` installs them."""
FREE_SPACE_HINT = "free some, then run the same command again"
DATABASES = ("sqlite3", "duckdb")
DATABASE_DISK_ERRORS = ("OperationalError", "IOException", "OutOfMemoryException")
"""Errors that these databases raise for a full disk: SQLite the first, DuckDB the others."""
OPTION_GROUP_ORDER = ("Files", "Text", "Policies", "Guarantee", "Model", "Optimisation", "Options")
"""Headings that come first in ``--help``, in this order."""
HELP_WIDTH = {"max_content_width": 80, "terminal_width": 80}
POLICY_OPTIONS = ("policy", "conservative")
"""Options whose values may name files within other words."""


# --------------------------------------------------------------------------- what went wrong
@dataclass(frozen=True)
class Failure:
    """Why a command ended: where (a file with its line, or an option with its value), what is wrong
    there, and what to do about it."""

    code: int
    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.where, self.what) if part)
        return text + (f"; {self.hint}" if self.hint else "")


def describe_failure(error: BaseException) -> Failure | None:
    """What an error means to the user; None for a defect of ours."""
    if isinstance(error, RuntimeError) and getattr(error.__context__, "errno", 0) == errno.ELOOP:
        error = error.__context__ or error  # what pathlib raises for links in a circle
    if isinstance(error, InvalidOption):
        what, _, hint = error.what.partition("; ")
        return Failure(EXIT_USER_MISTAKE, f"{error.flag} {error.given}".strip(), what, hint)
    if isinstance(error, click.ClickException):
        return _describe_mistyped_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, what = error.name.partition(".")[0], "is needed here and not installed"
        if package in TRAIN_EXTRA_PACKAGES:
            return Failure(EXIT_USER_MISTAKE, package, what, "pip install 'crtlib[train]'")
    if isinstance(error, RecursionError):
        return Failure(EXIT_USER_MISTAKE, "input", "is nested too deeply")
    if _is_panic_of_rust(error):
        return Failure(EXIT_USER_MISTAKE, "tokenizer", "crashed on this text")
    if isinstance(error, OSError) and error.errno:
        return _describe_os_error(error)
    if failure := _describe_machine_fault(error):
        return failure
    if isinstance(error, (ValueError, OSError, MachineError)):
        return _describe_message(error)
    return None


def _describe_mistyped_line(error: click.ClickException) -> Failure:
    """A line that click could not read, with the option that was probably meant."""
    name = getattr(error, "option_name", "")
    similar = next(iter(getattr(error, "possibilities", None) or []), "")
    what = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption):
        what = "no such option"
    return Failure(EXIT_USER_MISTAKE, name, what, f"did you mean {similar}?" * bool(similar))


def _describe_os_error(error: OSError) -> Failure:
    """What the operating system refused. The error's number decides whether the machine or the user
    is at fault."""
    assert error.errno is not None
    code = EXIT_MACHINE_FAULT if error.errno in MACHINE_ERRNOS else EXIT_USER_MISTAKE
    hint = FREE_SPACE_HINT if error.errno in DISK_FULL_ERRNOS else ""
    return Failure(code, str(error.filename or ""), os.strerror(error.errno).lower(), hint)


def _describe_machine_fault(error: BaseException) -> Failure | None:
    """What the machine lacks, where a library reports it by an error of its own."""
    if _is_death_of_a_worker(error):
        hint = "what was finished is kept: run the same command again"
        return Failure(EXIT_MACHINE_FAULT, "workers", "one died (killed, or out of memory)", hint)
    if _is_full_disk_of_a_database(error):
        what = "disk full, or a limit on files reached"
        return Failure(EXIT_MACHINE_FAULT, "temporary files", what, FREE_SPACE_HINT)
    if _is_lack_of_memory(error):
        return Failure(EXIT_MACHINE_FAULT, "memory", "there is not enough", "try less at a time")
    return None


def _describe_message(error: Exception) -> Failure:
    """An error of ours, whose message reads ``where: what; hint``."""
    machine = isinstance(error, (DamagedError, MachineError))
    code = EXIT_MACHINE_FAULT if machine else EXIT_USER_MISTAKE
    place, colon, message = " ".join(str(error).split()).partition(": ")
    what, _, hint = (message if colon else place).partition("; ")
    return Failure(code, place if colon else "", what or type(error).__name__, hint)


def _is_death_of_a_worker(error: BaseException) -> bool:
    """Whether a process in a pool of Python or of Dask (which need not be installed) has died."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def _is_full_disk_of_a_database(error: BaseException) -> bool:
    """Whether SQLite or DuckDB could not write its temporary files."""
    package = type(error).__module__.partition(".")[0].strip("_")
    return package in DATABASES and type(error).__name__ in DATABASE_DISK_ERRORS


def _is_lack_of_memory(error: BaseException) -> bool:
    """Whether Python or PyTorch ran out of memory. PyTorch reports it by a class on a GPU, and by
    words on the host."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def _is_panic_of_rust(error: BaseException) -> bool:
    """Whether a tokenizer's Rust code gave up; that error is no ``Exception``."""
    return type(error).__name__ == "PanicException"


# --------------------------------------------------------------------------- one command
OptionChooser = Callable[[Mapping[str, Any] | None], tuple[Sequence[type[OptionModel]], str]]
"""The type of ``choose_options`` in a :class:`Command`."""


class OutputOptions(OptionModel):
    """The options that every command has."""

    json_: bool = option(False, "Output")
    """Print one JSON object and nothing else."""
    quiet: bool = option(False, "Output")
    """Print errors only."""


class Command(click.Command):
    """A function as a command.

    Args:
        program: The command line that it belongs to.
        name: Its words on that line, such as ``label sample``.
        function: What it runs; its parameters are the options, its docstring is the help.
        choose_options: For a command whose options depend on each other. It maps the options that
            were typed, as text, to the models whose options the command then has (the function gets
            the first, as ``recipe``), and to a name for messages, such as "method crt". Called with
            ``None`` it gives the options of every method. Without it the options are the
            function's.
        renamed: The option for each argument that the library calls otherwise; messages name it.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        function: Callable[..., Any],
        choose_options: OptionChooser | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.program, self.function, self.choose_options = program, function, choose_options
        self.renamed = renamed or {}
        text = SECTION_HEADING.split(inspect.getdoc(function) or "")[0].strip()
        first = " ".join(text.partition("\n\n")[0].split())  # shown uncut beside its name
        super().__init__(name, help=text, short_help=first, context_settings=HELP_WIDTH)
        self.full = name

    def list_options(self, typed: Mapping[str, Any] | None) -> list[Option]:
        """The options that the command has, given those that were typed; with None, all it
        knows."""
        models, _ = self._choose_models(typed)
        rows = [o for model in (*models, OutputOptions) for o in options_of(model)]
        return list({o.name: o for o in rows}.values())

    def _choose_models(
        self, typed: Mapping[str, Any] | None
    ) -> tuple[Sequence[type[OptionModel]], str]:
        if self.choose_options is None:
            return [option_model_of(self.function)], ""
        return self.choose_options(typed)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        for o in () if self.params else self.list_options(None):
            # all as text, and each may be repeated, so that an option given twice is noticed
            if o.is_positional:
                self.params.append(click.Argument(
                    [o.name], nargs=-1 if o.many else 1, required=False, default=None,
                    type=click.UNPROCESSED,
                ))  # fmt: skip
                continue
            negation = f"/--no-{o.flag[2:]}" if o.default is True else ""
            settings: dict[str, Any] = {"multiple": True, "type": click.UNPROCESSED}
            settings = {"default": None, "is_flag": True} if o.kind == "boolean" else settings
            self.params.append(click.Option([o.flag + negation, o.name], **settings))
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        pieces = [piece for arg in args for piece in arg.split("=", 1)]
        pairs = itertools.pairwise(pieces)
        ctx.obj = {a[2:].replace("-", "_"): b for a, b in pairs if a.startswith("--")}
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> int:
        """Call the function with what was given as text, print its answer, return the exit
        code."""
        is_leader = _is_leading_process(self.full)
        try:
            output_options = validate_options(
                OutputOptions, self.typed_values(ctx, OutputOptions.model_fields)
            )
            quiet = output_options.quiet or not is_leader
            run = self.bind(ctx)
            with contextlib.redirect_stderr(io.StringIO()) if quiet else contextlib.nullcontext():
                answer = run()
                for line in answer.lines:
                    if not (quiet or output_options.json_):
                        print(line, flush=True)
        except InvalidOption as error:
            flags = {o.name: o.flag for o in self.list_options(None)}
            error.flag = flags.get(error.name, error.flag)
            raise
        if is_leader and output_options.json_:
            head = {"schema": f"{self.program.name}/{self.full.replace(' ', '-')}/1", "ok": True}
            print(json.dumps(head | to_json_value(answer.facts), allow_nan=False))
        return EXIT_DONE if answer.facts.get("ok", True) else EXIT_ANSWER_NO

    def typed_values(self, ctx: click.Context, names: Iterable[str]) -> dict[str, Any]:
        """The values that were typed for these options, as text."""
        options = {o.name: o for o in self.list_options(None)}
        typed = {k: v for k, v in ctx.params.items() if k in names and v not in (None, ())}
        return {k: _check_typed_value(options[k], v) for k, v in typed.items()}

    def bind(self, ctx: click.Context) -> Callable[[], CommandResult]:
        """The function with the values that were typed, ready to be called. Raises
        :class:`InvalidOption` before anything is opened."""
        typed = self.typed_values(ctx, ctx.params.keys() - OutputOptions.model_fields.keys())
        (model, *_), whose = self._choose_models(typed)
        values = validate_options(model, typed, whose)
        given = dict(values) if self.choose_options is None else {"recipe": values}
        return partial(written_as_options(self.renamed)(self.function), **given)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", *OPTION_GROUP_ORDER)
        }
        for o in self.list_options(ctx.obj or {}):
            title = "Arguments" if o.is_positional else o.group
            groups.setdefault(title, []).append(_help_row(o))
        groups["Output"] = [*groups.pop("Output"), ("--help", "Show this and exit.")]
        for group, rows in groups.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows, col_max=32)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        required = [o for o in self.list_options(ctx.obj or {}) if o.is_required]
        positionals = [o.flag + "..." * o.many for o in required if o.is_positional]
        flags = [f"{o.flag} {o.phrase}" for o in required if not o.is_positional]
        return [*positionals, *flags, "[OPTIONS]"]


def _check_typed_value(option: Option, value: Any) -> Any:
    """A value as it was typed. An option for one value may be given only once, and a path must be a
    local one."""
    several = isinstance(value, tuple)
    if several and len(value) > 1 and not option.many:
        raise InvalidOption(option.name, "is given twice")
    for text in map(str, value if several else (value,)):
        if option.is_path and (not text or "\0" in text):
            raise InvalidOption(option.name, "is empty, or no path")
        # as a path, s3://... would be a folder called "s3:"
        if "://" in text and (option.is_path or option.name in POLICY_OPTIONS):
            raise InvalidOption(option.name, "is a URL, must be a local file or folder", text)
    if option.many:
        return list(value)
    return value[0] if several else value


def _help_row(option: Option) -> tuple[str, str]:
    """The row of an option in ``--help``: it with its value, and its sentence with the default."""
    dots, default = "..." * option.many, option.default
    text = option.text
    if default not in (None, "", ()) and option.kind != "boolean" and "[" not in text:
        text += f" [{','.join(map(str, default)) if option.many else default}]"
    if option.is_positional:
        return option.flag + dots, text
    if option.kind == "boolean":
        return ("--no-" + option.flag[2:] if default is True else option.flag), text
    return f"{option.flag} {option.phrase}{dots}", text


# --------------------------------------------------------------------------- all commands
class _CommandGroup(click.Group):
    """A group of commands, listed in the order in which they are declared."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


class Program(_CommandGroup):
    """A command line.

    Args:
        name: Its name, as it is typed.
        package: The package of its commands.
        commands: The name of each command, and the module of ``package`` that has it, which is
            imported when the command is needed. There the command is a function of that name, or a
            sentence and a dict of several functions. If its options depend on each other, the
            module's ``OPTION_CHOOSERS`` has its ``choose_options``, and ``RENAMED_ARGUMENTS`` has
            its ``renamed`` where it needs one (:class:`Command`).
        version: What ``--version`` prints.
        about: The first line of ``--help``.
    """

    def __init__(self, name: str, package: str, commands: Mapping[str, str], *, version: str,
                 about: str) -> None:  # fmt: skip
        option = click.version_option(version, prog_name=name, message="%(prog)s %(version)s")
        super().__init__(name, help=about, no_args_is_help=True, context_settings=HELP_WIDTH)
        option(self)
        self.package, self.names = package, commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name in self.names and cmd_name not in self.commands:
            self.commands[cmd_name] = self._load_command(cmd_name)
        return self.commands.get(cmd_name)

    def _load_command(self, name: str) -> click.Command:
        module = importlib.import_module(f"{self.package}.{self.names[name]}")
        declared, renamed = getattr(module, name), getattr(module, "RENAMED_ARGUMENTS", {})
        if not isinstance(declared, tuple):
            chooser = getattr(module, "OPTION_CHOOSERS", {}).get(name)
            return Command(self, name, declared, chooser, renamed.get(name))
        help_text, functions = declared
        full = {part: f"{name} {part}" for part in functions}
        parts: dict[str, click.Command] = {
            part: Command(self, full[part], function, renamed=renamed.get(full[part]))
            for part, function in functions.items()
        }
        return _CommandGroup(name, parts, help=help_text, no_args_is_help=True)

    def bind_line(self, words: Sequence[str]) -> Callable[[], CommandResult]:
        """The function of a command line with its values, ready to be called; its answer is not
        printed. Raises :class:`InvalidOption` and what click raises."""
        commands = self.all_commands()
        first, *arguments = words
        command = commands.get(first) or commands[f"{first} {arguments.pop(0)}"]
        return command.bind(command.make_context(command.full, arguments))

    def all_commands(self) -> dict[str, Command]:
        """All commands by their words, those in groups included."""
        rows: dict[str, Command] = {}
        for name in self.names:
            command = self.get_command(None, name)
            parts = command.commands.values() if isinstance(command, click.Group) else [command]
            rows |= {part.full: part for part in parts if isinstance(part, Command)}
        return rows


def to_json_value(value: Any) -> Any:
    """A value that JSON can hold: a path becomes a string, an infinity a string, and NaN null.

    >>> to_json_value({"a": Path("b"), "c": [float("inf"), float("nan")]})
    {'a': 'b', 'c': ['inf', None]}
    """
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return str(value) if isinstance(value, Path) else value


def _is_leading_process(command: str) -> bool:
    """Whether this process writes and prints; among several of ``torchrun``, only one does. Refuses
    a command whose work processes cannot share."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    if command != "train":
        raise ValueError(f"torchrun: {command} runs in one process; only train shares its work")
    return os.environ.get("RANK", "0") == "0"


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning in one line, without the line of source that raised it."""
    print(f"warning: {printable(' '.join(str(message).split()), 4_000)}", file=sys.stderr)


def run_program(program: Program) -> None:
    """Run a command line, and end with its exit code."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its notes are not ours
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # names of files may not be UTF-8
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    warnings.showwarning = _print_warning
    try:
        code = program.main(sys.argv[1:], program.name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()
        raise SystemExit(EXIT_USER_MISTAKE) from None
    except (KeyboardInterrupt, click.Abort):
        print(
            f"{program.name}: interrupted; run the same command again to continue", file=sys.stderr
        )
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BaseException as error:
        if isinstance(error, SystemExit) or (ended := describe_failure(error)) is None:
            raise
        print(f"{program.name}: error: {printable(str(ended), 4_000)}", file=sys.stderr)
        if "--json" in sys.argv:
            head = {"schema": f"{program.name}/error/1", "ok": False}
            with contextlib.suppress(OSError):  # the disk below standard output may be full
                print(json.dumps(head | vars(ended)), flush=True)
        raise SystemExit(ended.code) from None
    raise SystemExit(code if isinstance(code, int) else EXIT_DONE)
