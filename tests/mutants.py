"""Mutation testing of the modules that a guarantee rests on: ``python tests/mutants.py odometer``.

mutmut changes each function of a module in every small way it knows (a number, an operator, an
argument, a text) and runs the module's own tests against each. What they let pass is listed: a gap
in the tests, or a change that makes no difference. It works in a copy, under ``_build/mutants``.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    "odometer": ("accounting/odometer", "accounting/test_odometer"),
    "ledger": ("accounting/ledger", "accounting/test_ledger"),
    "confidentiality": ("accounting/confidentiality", "accounting/test_confidentiality"),
    "statements": ("accounting/statements", "accounting/test_statements"),
    "clipping": ("training/clipping", "training/test_clipping"),
    "phases": ("training/phases", "training/test_phases"),
    "prepare": ("screening/prepare", "screening/test_prepare"),
    "rates": ("screening/rates", "screening/test_rates"),
}
"""Each module with the file of its tests."""
SETTINGS = """[mutmut]
paths_to_mutate=crtlib/{module}.py
tests_dir=tests/{tests}.py
"""
TOOL = ROOT / "_build" / "mutmut"
"""mutmut is kept apart: its wheel brings a package "tests", which would hide ours."""


def install():
    """mutmut without its tests."""
    if not (TOOL / "mutmut").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(TOOL)]
        subprocess.run([*pip, "mutmut==3.8.1"], check=True)
        shutil.rmtree(TOOL / "tests", ignore_errors=True)


def copy(name, folder):
    """The library and one file of tests, with mutmut's settings; the module itself it writes."""
    module, tests = MODULES[name]
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for place in (folder, folder / "mutants"):
        for part in ("crtlib", "tests"):
            shutil.copytree(ROOT / part, place / part, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", place)
    (folder / "mutants" / "crtlib" / f"{module}.py").unlink()
    (folder / "setup.cfg").write_text(SETTINGS.format(module=module, tests=tests))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    install()
    for name in options.modules or MODULES:
        if name not in MODULES:
            parser.error(f"{name}: must be one of {', '.join(MODULES)}")
        folder = ROOT / "_build" / "mutants" / name
        copy(name, folder)
        mutmut = [sys.executable, "-c", "from mutmut.__main__ import cli; cli()"]
        environment = os.environ | {"PYTHONPATH": str(TOOL), "OMP_NUM_THREADS": "1"}
        where = {"cwd": folder, "env": environment}
        run = [*mutmut, "run", "--max-children", str(options.jobs)]
        subprocess.run(run, check=False, **where)
        subprocess.run([*mutmut, "results"], check=False, **where)


if __name__ == "__main__":
    main()
