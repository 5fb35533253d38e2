"""What is installed: the lock has every package that an environment needs, by its hash."""

import importlib.metadata
import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lock import ENVIRONMENTS, LOCK, ROOT, asked, read

PINS = read()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_each_file_has_a_hash_and_each_line_an_environment():
    for line in LOCK.read_text().splitlines():
        assert re.search(r" --hash=sha256:[0-9a-f]{64}  # \w+( \w+)*$", line), line[:60]
    assert set(PINS) == {*ENVIRONMENTS, "gpu"}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_nothing_is_missing_where_pip_adds_no_dependency(environment):
    """Of what is asked for, and of what these packages need here, every version is the pinned."""
    pins = PINS["gpu"] | PINS[environment]
    ahead = [need for extra in ENVIRONMENTS[environment] for need in asked(extra)]
    seen = set()
    while ahead:
        need = Requirement(ahead.pop())
        name = canonicalize_name(need.name)
        if (name, *sorted(need.extras)) in seen:
            continue
        seen.add((name, *sorted(need.extras)))
        assert name in pins, f"{name}: make lock"
        if name != "soupsieve":  # one for the first releases of Python 3.11, one for the others
            assert need.specifier.contains(pins[name], prereleases=True), need
        try:
            inner = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of an environment that is not this one
        for line in inner:
            marker = Requirement(line).marker
            if name != "torch" and (
                marker is None or any(marker.evaluate({"extra": e}) for e in need.extras or [""])
            ):
                ahead.append(line)


def test_make_docker_binder_and_conda_install_from_the_lock():
    asked_for = re.findall(r"call LOCKED,(\w+)\)", MAKEFILE)
    assert asked_for == ["renderer", "gpu", "book", "test", "lab"]
    dockerfile, binder = ((ROOT / f).read_text() for f in ("Dockerfile", ".binder/postBuild"))
    for text, environment in ((dockerfile, "library"), (binder, "book")):
        assert re.findall(r"(\w+)\( \|\$\)' lock.txt", text) == [environment]
    for text in (
        MAKEFILE,
        dockerfile,
        binder.replace("\\\n", ""),
    ):  # ours apart, nothing without a hash but PyTorch
        lines = re.findall(r"(?m)^.*(?:pip install|\$\(PIP\)) (.*)$", text)
        free = [
            line for line in lines if "--require-hashes" not in line and "--disable" not in line
        ]
        assert len(free) == 2 and any("torch" in line.lower() for line in free), free
    (python,) = re.findall(r"FROM python:([\d.]+)", dockerfile)
    assert (ROOT / ".binder" / "runtime.txt").read_text() == f"python-{python}\n"
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert conda["dependencies"] == [f"python={python}", "make"]
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert least == f">={python}"
