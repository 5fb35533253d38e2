"""What is installed: the lock has every package that an environment needs, by its hash."""

import ast
import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from confide.__main__ import APPLICATION_PACKAGES
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


NAMES = {"ahocorasick": "pyahocorasick", "markupsafe": "jinja2", "yaml": "pyyaml"}
"""What is called otherwise than the distribution that brings it."""


def imported(package, *, late):
    """Of each module of a package what it imports, dotted; what is for types alone is left out.
    ``late``: in functions too."""
    found = {}
    for path in (ROOT / package).rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = set()
        ahead = list(ast.parse(path.read_text(encoding="utf-8")).body)
        while ahead:
            node = ahead.pop()
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found[name] |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                ahead += node.orelse
            elif late or not isinstance(node, ast.FunctionDef):
                ahead += ast.iter_child_nodes(node)
    return found


def strangers(modules):
    """The distributions that some modules import, which are no part of Python and not ours."""
    first = {name.partition(".")[0] for names in modules.values() for name in names}
    ours = {"crtlib", "confide", "__future__", *sys.stdlib_module_names}
    return {NAMES.get(name, name) for name in first - ours}


def with_torch(modules):
    """The modules that import torch, by themselves or through others of them."""
    found, before = {"torch"}, set()
    while found != before:
        before = found
        found = found | {name for name, names in modules.items() if names & found}
    return found


def needs(*extras):
    return {canonicalize_name(Requirement(need).name) for extra in extras for need in asked(extra)}


def test_what_is_installed_is_what_is_imported():
    library, application = (imported(name, late=False) for name in ("crtlib", "confide"))
    heavy = with_torch(library)
    light = {name: names for name, names in library.items() if name not in heavy}
    assert strangers(light) <= needs("") <= strangers(imported("crtlib", late=True))
    assert strangers(library) <= needs("", "train") | {"triton"}
    trainers = {"confide.hf": application.pop("confide.hf")}
    assert strangers(application) <= needs("", "app", "train")
    assert strangers(trainers) <= needs("", "trainers")
    assert {NAMES.get(name, name) for name in APPLICATION_PACKAGES} == needs("app")
