"""The command line ``crtlib``; :mod:`crtlib.cli` runs the commands of :mod:`confide.commands`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from confide import commands
from crtlib import cli
from crtlib.version import __version__

APPLICATION_PACKAGES = ("cryptography", "duckdb", "jsonschema", "tqdm")
"""Packages that the application imports but the library does not; ``crtlib[app]`` installs them."""

CRTLIB_PROGRAM = cli.Program(
    "crtlib",
    "confide.commands",
    commands.COMMANDS,
    version=__version__,
    about="Train language models on text that holds secrets, and certify what they can give away.",
)


def main() -> None:
    """Run the command line and exit with its code; with 2 if packages are not installed."""
    missing = [name for name in APPLICATION_PACKAGES if find_spec(name) is None]
    if missing:
        what = f"{', '.join(missing)}: needed here and not installed; pip install 'crtlib[app]'"
        print(f"crtlib: error: {what}", file=sys.stderr)
        sys.exit(2)
    cli.run_program(CRTLIB_PROGRAM)


if __name__ == "__main__":
    main()
