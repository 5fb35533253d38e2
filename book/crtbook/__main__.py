"""The command line of the companion: ``crtbook COMMAND``, run as ``crtlib`` commands are."""

from crtlib import __version__, cli

app = cli.Program(
    "crtbook",
    "crtbook.commands",
    {name: name for name in ("sweep", "plan", "claims", "lab", "grade")},
    version=__version__,
    about="Run the studies of three papers on confidential language modelling, and teach from "
    "them.",
)


def main() -> None:
    """Run the command line, and end with its exit code."""
    cli.run_program(app)


if __name__ == "__main__":
    main()
