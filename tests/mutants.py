"""Mutation testing of the modules that a guarantee rests on: ``python tests/mutants.py odometer``.

mutmut changes each function of a module in every small way it knows (a number, an operator, an
argument, a text) and runs the module's own tests against each. What they let pass is listed: a gap
in the tests, or a change that makes no difference. ``--sample N`` tries N mutants of each module,
drawn at random, and gives the score with its 95 % interval; ``--only`` tries those that are named.
``--but`` leaves slow tests out: what only they would notice then counts as let pass. It works in a
copy, under ``_build/mutants``.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from crtlib.intervals import clopper_pearson

ROOT = Path(__file__).parents[1]
MODULES = {
    "odometer": ("confide/odometer", "accounting/test_odometer"),
    "privacy_cost": ("crtlib/accounting/privacy_cost", "accounting/test_privacy_cost"),
    "guarantees": (
        "crtlib/accounting/guarantees",
        "accounting/test_confidentiality",
        "accounting/test_guess_bounds",
    ),
    "secret_protection": (
        "crtlib/accounting/secret_protection",
        "accounting/test_secret_protection",
    ),
    "clipping": ("crtlib/training/clipping", "training/test_clipping", "training/test_units"),
    "phases": ("crtlib/training/phases", "training/test_phases"),
    "preparation": ("crtlib/screening/preparation", "screening/test_preparation"),
    "redaction": ("crtlib/screening/redaction", "screening/test_redaction"),
    "rates": ("crtlib/screening/rates", "screening/test_rates"),
    "rate_values": ("crtlib/screening/rate_values", "screening/test_rates"),
    "secret_outcomes": ("crtlib/screening/secret_outcomes", "screening/test_rates"),
}
"""Each module with the files of its tests."""
SETTINGS = """[mutmut]
source_paths={module}.py
pytest_add_cli_args_test_selection=
    {tests}
    -k
    {but}
"""
TOOL = ROOT / "_build" / "mutmut"
"""mutmut is kept apart: its wheel brings a package "tests", which would hide ours."""
RUN = "from mutmut.__main__ import cli; cli()"
MAKE = (
    "from mutmut import __main__ as m; "
    "m.copy_src_dir(); m.copy_also_copy_files(); m.setup_source_paths(); m.create_mutants(1)"
)
SHOW = (
    "import sys; from mutmut import __main__ as m\n"
    "for one in sys.argv[1:]: print(m.get_diff_for_mutant(one, path=m.find_mutant(one).path))"
)
KILLED = {"killed", "timeout", "segfault"}


def install():
    """mutmut without its tests."""
    if not (TOOL / "mutmut").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(TOOL)]
        subprocess.run([*pip, "mutmut==3.8.1"], check=True)
        shutil.rmtree(TOOL / "tests", ignore_errors=True)


def copy(name, folder, but):
    """The library and one file of tests, with mutmut's settings; the module itself it writes."""
    module, *files = MODULES[name]
    tests = "\n    ".join(f"tests/{file}.py" for file in files)
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    for place in (folder, folder / "mutants"):
        for part in ("crtlib", "confide", "tests"):
            shutil.copytree(ROOT / part, place / part, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", place)
    (folder / "mutants" / f"{module}.py").unlink()
    (folder / "setup.cfg").write_text(SETTINGS.format(module=module, tests=tests, but=but))


def drawn(names: Iterable[str], sample: int, seed: int) -> list[str]:
    """``sample`` of the names (all where there are fewer), whatever their order."""
    names = sorted(names)
    return sorted(random.Random(seed).sample(names, min(sample, len(names))))


def score(name: str, of: int, found: dict[str, str]) -> str:
    """One line a module: how many of its mutants were tried, and what became of them."""
    killed = sum(status in KILLED for status in found.values())
    low, high = (f"{100 * end:.0f}" for end in clopper_pearson(killed, len(found)))
    return (
        f"{name}: {of} mutants, {len(found)} tried, {killed} killed, {len(found) - killed} survived"
        f", {100 * killed / len(found):.0f} % ({low} to {high} %)"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; default: all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, default=10**9, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="*", default=[], help="the ends of mutants' names")
    parser.add_argument("--but", nargs="*", default=[], help="parts of the names of tests")
    options = parser.parse_args()
    install()
    environment = os.environ | {"PYTHONPATH": str(TOOL), "OMP_NUM_THREADS": "1"}
    for name in options.modules or MODULES:
        if name not in MODULES:
            parser.error(f"{name}: must be one of {', '.join(MODULES)}")
        folder = ROOT / "_build" / "mutants" / name
        copy(name, folder, f"not ({' or '.join(options.but)})" if options.but else "test")

        def python(code, *arguments, folder=folder, **kept):
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.run(command, cwd=folder, env=environment, text=True, **kept)

        def statuses(python=python):
            lines = python(RUN, "results", "--all", "1", capture_output=True, check=True).stdout
            return dict(line.strip().split(": ") for line in lines.splitlines() if ": " in line)

        python(MAKE, check=True, capture_output=True)
        every = statuses()
        some = [n for n in every if n.endswith(tuple(options.only))] if options.only else every
        names = drawn(some, options.sample, options.seed)
        python(RUN, "run", "--max-children", str(options.jobs), *names, capture_output=True)
        after = statuses()
        found = {one: after[one] for one in names}
        if "not checked" in found.values():
            sys.exit(f"{name}: mutmut did not finish, or the tests fail without a mutant")
        print(score(name, len(every), found), flush=True)
        left = [one for one in names if found[one] != "killed"]
        print("".join(f"  {found[one]}: {one}\n" for one in left), end="", flush=True)
        python(SHOW, *left)


if __name__ == "__main__":
    main()
