"""The command line ``crtlib``; :mod:`crtlib.cli` runs the commands of :mod:`crtlib.commands`."""

from __future__ import annotations

from crtlib import __version__, cli, commands

app = cli.Program(
    "crtlib",
    "crtlib.commands",
    commands.COMMANDS,
    version=__version__,
    about="Train language models on text that holds secrets, and measure that they did not leak.",
)


def main() -> None:
    """Run the command line, and end with its exit code."""
    cli.run(app)


if __name__ == "__main__":
    main()
