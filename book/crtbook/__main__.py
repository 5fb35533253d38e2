"""The command line of the companion: ``crtbook COMMAND``, with what all of ``crtlib``'s share."""

from __future__ import annotations

from crtbook.commands.claims import claims
from crtbook.commands.grade import grade
from crtbook.commands.lab import lab
from crtbook.commands.sweep import sweep
from crtlib import __main__ as cli

app = cli.application(
    "Run the studies of three papers on confidential language modelling, and teach from them.",
    {"sweep": sweep, "claims": claims, "lab": lab, "grade": grade},
)


def main() -> None:
    """Run the command line, and end with its exit code."""
    cli.main(app, "crtbook")


if __name__ == "__main__":
    main()
