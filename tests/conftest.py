"""What tests of several subpackages share, and which of them run every night only."""

import atexit
import functools
import gc
import os
import signal
import sys
import tempfile
import uuid

import pytest

gc.disable()  # until all files are read: nothing that is imported goes away again

import papermill.engines  # noqa: E402, F401  first: it loads crtbook.notebooks
from hypothesis import HealthCheck, settings  # noqa: E402

from confide import __main__ as cli  # noqa: E402
from crtbook import __main__ as companion  # noqa: E402
from tests.nightly import LONG, NIGHTLY, ROOT, by_night  # noqa: E402

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("day", settings.get_profile("patient"), max_examples=25)

os.environ["CRTLIB_REGISTRY"] = tempfile.mkdtemp()  # never that of the user


@pytest.fixture(scope="module", autouse=True)
def registry_of_the_file(tmp_path_factory):
    """The registry in which what several tests of a file share is entered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", str(tmp_path_factory.mktemp("registry")))
        yield


@pytest.fixture(scope="session")
def registries(tmp_path_factory):
    return tmp_path_factory.mktemp("registries")


@pytest.fixture(autouse=True)
def registry(registries, monkeypatch):
    """A registry of each test's own, made when it is used: many train on the same people."""
    home = registries / uuid.uuid4().hex
    monkeypatch.setenv("CRTLIB_REGISTRY", str(home))
    return home


def pytest_configure(config):
    config.addinivalue_line("markers", "nightly: what `make nightly` runs and `make test` does not")
    settings.load_profile("day" if config.getoption("markexpr") == "not nightly" else "patient")


def pytest_ignore_collect(collection_path, config):
    """A file that would be left out as a whole is not read either."""
    if config.getoption("markexpr") == "not nightly" and collection_path.is_relative_to(ROOT):
        return collection_path.relative_to(ROOT).as_posix() in NIGHTLY or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if by_night(item):
            item.add_marker("nightly")
    items.sort(key=lambda item: item.path.stem not in LONG)


# Else a library that counts its objects at the end takes them for leaks.
atexit.register(gc.unfreeze)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def learned(pytestconfig, tmp_path_factory):
    """``learned(model, phases, parts, seed=0)`` trains, once for all files, workers and runs of
    the tests that have the same library: see :mod:`tests.trained`."""
    from tests.trained import learned

    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("trained") if cache else tmp_path_factory.mktemp("trained")
    return functools.partial(learned, folder)


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line; its exit code, standard output and standard error."""

    def call(*args):
        program = "crtbook" if args[:1] and args[0] in companion.app.names else "crtlib"
        monkeypatch.setattr(sys, "argv", [program, *map(str, args)])
        with pytest.raises(SystemExit) as end:
            (companion if program == "crtbook" else cli).main()
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


@pytest.fixture
def ends():
    """Fails a test that waits for ever, as nothing else would."""

    def late(*_):
        raise AssertionError("two minutes have passed")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
