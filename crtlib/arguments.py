"""Write an argument as the caller writes it: ``force=True`` in a script, ``--force`` in a command.

The library names the arguments of its public functions, and only the command line knows options:
:class:`crtlib.cli.Command` calls its function with them :func:`written_as_options`.

>>> print(argument_error("out", f"a exists; choose another name or {argument('force', True)}"))
out: a exists; choose another name or force=True
>>> argument("dates", "dmy", "mdy"), arguments(copies="N", rename={"3": "NAME"})
("dates='dmy' or 'mdy'", "copies=N, rename={'3': 'NAME'}")
>>> with written_as_options({"table": "secrets"}):
...     print(argument("table"), argument("force", True), argument("dates", "dmy", "mdy"))
...     print(arguments(copies="N", rename={"3": "NAME"}))
--secrets --force --dates dmy or mdy
--copies N --rename 3=NAME
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

_option_names: ContextVar[Mapping[str, str] | None] = ContextVar("option_names", default=None)
"""While a command runs: its options by the names of the arguments that are called otherwise. None
while a script calls the library."""


def argument(name: str, *values: object) -> str:
    """An argument of a public function, with its value or one of several, as the caller writes it.
    A word in capitals stands for a value."""
    if _option_names.get() is None:
        shown = [v if isinstance(v, str) and v.isupper() else repr(v) for v in values]
        return f"{name}={' or '.join(shown)}" if values else name
    flag = flag_of(option_of(name))
    typed = " or ".join(_typed_value(value) for value in values if value is not True)
    return f"{flag} {typed}" if typed else flag


def arguments(**values: object) -> str:
    """Several arguments, as the caller writes them together, each with its value or, as a tuple,
    with one of several."""
    between = ", " if _option_names.get() is None else " "
    each = {n: v if isinstance(v, tuple) else (v,) for n, v in values.items()}
    return between.join(argument(name, *any_of) for name, any_of in each.items())


def argument_error(name: str, what: str) -> ValueError:
    """The error that refuses an argument: its name, and what is wrong with it."""
    return ValueError(f"{argument(name)}: {what}")


def _typed_value(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={one}" for key, one in value.items())
    return str(value)


def option_of(name: str) -> str:
    """The option of the running command for an argument."""
    return (_option_names.get() or {}).get(name, name)


def flag_of(option: str) -> str:
    """How an option is written on the command line: ``for_`` as ``--for``, and what is named by
    its place as it is (``SOURCE``)."""
    return option if option.isupper() else "--" + option.rstrip("_").replace("_", "-")


@contextlib.contextmanager
def written_as_options(renamed: Mapping[str, str]) -> Iterator[None]:
    """Within the block arguments are written as options of a command. ``renamed`` has the name of
    the option for each argument that the library calls otherwise."""
    before = _option_names.set(renamed)
    try:
        yield
    finally:
        _option_names.reset(before)
