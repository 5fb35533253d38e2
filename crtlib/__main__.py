"""The command line: ``crtlib COMMAND``, the commands of :mod:`crtlib.commands`.

Every command refuses bad input in one line on standard error, exits with 2 and writes nothing.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from crtlib import __version__, commands

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train language models on text that holds secrets, and measure that they did not leak.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"crtlib {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


commands.add(app)


def main() -> None:
    """Run the command line; user mistakes become one line and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except RuntimeError as error:
        if type(error).__name__ != "UnfinishedError":
            raise
        print(f"crtlib: error: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    except Exception as error:
        # format_message marks typer's own usage errors, which it would print as a box.
        usage = getattr(error, "format_message", None)
        if usage is None and not isinstance(error, (ValueError, OSError)):
            raise
        message = " ".join((usage() if usage else str(error)).split())
        if message:  # empty where typer has printed the help instead
            print(f"crtlib: error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
