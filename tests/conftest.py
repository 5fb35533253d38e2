"""What tests of several rooms share."""

import sys

import pytest

from crtlib import __main__ as cli


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; its exit code, standard output and standard error."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["crtlib", *map(str, args)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call
