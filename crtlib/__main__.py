"""``python -m crtlib``: the command, which is the application's (:mod:`confide.__main__`).

This is the only place in the library that names the application, so that the command has one name.
"""

import sys

INSTALL_HINT = "crtlib: error: confide: is needed here and not installed; pip install 'crtlib[app]'"


def main() -> None:
    """Run the command if the application is installed; else print what to install, and exit 2."""
    try:
        from confide.__main__ import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "confide":
            raise
        print(INSTALL_HINT, file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
