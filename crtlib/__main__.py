"""The command line: ``crtlib simulate | screen | account | train | sweep``.

Every command refuses bad input in one line on standard error, exits with 2 and writes nothing.
"""

from __future__ import annotations

import sys

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train language models on text that holds secrets, and measure that they did not leak.",
)


def main() -> None:
    """Run the command line; user mistakes become one line and exit code 2."""
    try:
        app()
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        print(f"crtlib: error: {message}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
