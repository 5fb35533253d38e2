"""The book: published chapters match their notebooks, notebooks stay thin, pages stay offline."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import yaml

from crtlib.accounting import confidentiality, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import BoundedRate
from crtlib.intervals import clopper_pearson_upper, labels_needed

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())


def cells(path: Path, kind: str = "code") -> list[dict]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


def source(cell: dict) -> str:
    return "".join(cell["source"])


def listed_files() -> list[str]:
    return [chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("book_build", ROOT / "book" / "build.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> Path:
    return request.param


def test_contents_and_notebooks_agree():
    chapters = {f.removeprefix("chapters/") for f in listed_files() if f.startswith("chapters/")}
    assert chapters == {path.stem for path in NOTEBOOKS}


def test_every_page_of_the_contents_exists():
    pages = [f for f in [TOC["root"], *listed_files()] if not f.startswith("chapters")]
    assert [f for f in pages if not (ROOT / "book" / f"{f}.md").is_file()] == []


def test_notebook_is_committed_without_outputs(notebook):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(notebook))


def test_notebook_has_one_folded_parameters_cell_with_a_profile(notebook):
    (parameters,) = [cell for cell in cells(notebook) if "parameters" in tags(cell)]
    assert "hide-input" in tags(parameters)
    assert re.search(r"^profile\b.*=", source(parameters), re.MULTILINE)


def test_notebook_defines_nothing_long(notebook):
    """What is longer than 15 lines belongs in the library, where it is tested."""
    for cell in cells(notebook):
        for node in ast.walk(ast.parse(re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source(cell)))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While):
                body = node.body[
                    isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None :
                ]
                lines = node.end_lineno - body[0].lineno + 1
                assert lines <= 15, f"{source(cell).splitlines()[node.lineno - 1]}: {lines} lines"


def test_published_chapter_runs_the_notebooks_code(notebook):
    published = ROOT / "book" / "chapters" / notebook.name
    ours = [source(cell) for cell in cells(notebook)]
    theirs = [source(cell) for cell in cells(published) if "injected-parameters" not in tags(cell)]
    assert theirs == ours
    assert any(cell["outputs"] for cell in cells(published)), "recorded without outputs"


def test_published_chapter_says_the_same(notebook):
    published = ROOT / "book" / "chapters" / notebook.name
    assert [source(cell) for cell in cells(published, "markdown")] == [
        source(cell) for cell in cells(notebook, "markdown")
    ]


DRAWS = re.compile(r"(theme\.provenance|HTML|drawn|luckiest|in_one_panel)\(")


def test_a_cell_that_only_draws_is_folded(notebook):
    """What a student reads is the idea; twelve cells were one line of plotting."""
    shown = [c for c in cells(notebook) if not {"hide-input", "remove-cell"} & {*tags(c)}]
    assert [source(c) for c in shown if DRAWS.match(source(c).lstrip())] == []


MODULES = defaultdict(list)
for top in ("crtlib", "confide", "book/crtbook", "book/crtcourse"):
    for module in (ROOT / top).rglob("*.py"):
        MODULES[module.stem].append(module.read_text("utf-8"))
SPOKEN = re.compile(r"`(?:[a-z_]+\.)*([a-z_]+)\.([a-zA-Z_]+)[`(]")


def gone(text: str) -> list[str]:
    """The names of a module's parts that a text speaks of, and that the module has no more."""
    return [
        f"{module}.{name}"
        for module, name in SPOKEN.findall(text)
        if module in MODULES and name not in MODULES  # a package is followed by its module
        and module not in ("data", "screening")  # also a variable, and a file
        and not any(re.search(rf"\b{name}\b", told) for told in MODULES[module])
    ]  # fmt: skip


def test_what_a_chapter_speaks_of_is_there(notebook):
    """An exercise asked for `exposure.chance_band`, which had another name since two months; so had
    what eight sentences spoke of."""
    assert gone("\n".join(map(source, cells(notebook, "markdown")))) == []
    assert gone("`exposure.chance_band(canaries=10)`, `exposure.exposure_chance_band`") == [
        "exposure.chance_band"
    ]


def test_published_chapter_has_the_same_captions(notebook):
    published = ROOT / "book" / "chapters" / notebook.name

    def captions(path: Path) -> list[dict]:
        return [
            c["metadata"].get("mystnb", {})
            for c in cells(path)
            if "injected-parameters" not in tags(c)
        ]

    assert captions(published) == captions(notebook)


def test_the_worked_decision_of_the_case_page_computes_its_bounds():
    page = (ROOT / "book" / "cases.md").read_text(encoding="utf-8")
    assert f"$\\gamma$ at most {clopper_pearson_upper(6, 400):.1%}".replace("%", " %") in page
    assert f"$\\delta_2 \\le$ {clopper_pearson_upper(0, 400):.2%}".replace("%", " %") in page
    assert clopper_pearson_upper(0, 400) > 1 / 3100


def test_published_chapter_names_no_folder_of_the_machine(notebook):
    text = (ROOT / "book" / "chapters" / notebook.name).read_text(encoding="utf-8")
    assert re.findall(r"/(?:home|root|tmp|work|Users)/[^\s\"\\]*", text) == []


def test_printed_guarantee_in_the_book_is_what_the_library_prints():
    """The worked example of guarantees.md, recomputed: q = 0.01, T = 1000, epsilon' = 1."""
    page = (ROOT / "book" / "guarantees.md").read_text(encoding="utf-8")
    sigma = privacy_cost.noise_multiplier(
        epsilon=1,
        delta=8e-5,
        sampling_probability=0.01,
        steps=1000,
        neighbouring_relation="add_or_remove",
    )
    phase = SampledGaussian(sampling_probability=0.01, noise_multiplier=sigma, steps=1000)
    amplified = {
        relation: confidentiality.confidentiality_epsilon(
            phase, gamma=0.1, total_delta=8e-5, neighbouring_relation=relation
        )
        for relation in privacy_cost.NEIGHBOURING_RELATIONS
    }
    guarantee = confidentiality.crt_guarantee(
        phase,
        gamma=BoundedRate(0.1),
        delta2=BoundedRate(0.0),
        noise_delta=8e-5,
        unit="turn",
        public="the rounded number of private points",
        neighbouring_relation="replace",
    )
    assert str(guarantee) in page
    replaced = privacy_cost.epsilon(phase, delta=8e-5, neighbouring_relation="replace")
    assert f"an $\\epsilon'$ of 1 is really {replaced:.2f}" in page
    assert f"of {amplified['add_or_remove']:.3f} is really {amplified['replace']:.3f}" in page
    assert f"{labels_needed(8e-5):,} labels" in page


def test_failing_cell_is_shown_in_a_few_lines(build, tmp_path):
    output = {"output_type": "error", "ename": "ValueError", "evalue": "gamma=7: must be in [0, 1]"}
    cell = {"cell_type": "code", "source": ["x = 1\n"] * 40, "outputs": [output]}
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"cells": [cell]}))
    shown = build.describe_failure(path, log="")
    assert "ValueError: gamma=7: must be in [0, 1]" in shown
    assert len(shown.splitlines()) < 10


def test_build_refuses_an_unknown_profile(build, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["build.py", "--live", "canary", "--profile", "huge"])
    with pytest.raises(SystemExit) as stopped:
        build.main()
    assert stopped.value.code == 2
    assert "quick" in capsys.readouterr().err


def test_live_names_chapters_or_all_or_none(build, capsys):
    assert build.parse_chapter_names("none") == build.parse_chapter_names("") == []
    assert len(build.parse_chapter_names("all")) == len(NOTEBOOKS)
    assert build.parse_chapter_names("leakage_report, canary,canary") == [
        "leakage_report",
        "canary",
    ]
    with pytest.raises(SystemExit) as stopped:
        build.parse_chapter_names("canary,cannary")
    assert stopped.value.code == 2
    assert "LIVE=cannary: must be all, none, or of amplification, axis" in capsys.readouterr().err


# --------------------------------------------------------------------------- live chapters
def test_the_book_is_rendered_without_torch_and_the_library():
    """What ``--first`` and the pages' extensions import is there before anything else is."""
    script = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "crtlib", "pandas", "matplotlib", "papermill"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.path[:0] = ["book", "book/_ext"]
import build, edition, pages
build.render_pages = lambda: "rendered"
build.show_chapters = lambda names, profile: names
sys.argv = ["build.py", "--first", "--live", "canary"]
build.main()
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[0] == "rendered"


def test_a_chapter_runs_again_where_its_code_the_library_or_the_size_changed(
    build, tmp_path, monkeypatch
):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "library").mkdir()
    source, module = tmp_path / "notebooks" / "one.ipynb", tmp_path / "library" / "a.py"
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "SOURCES", [tmp_path / "library"])
    code = {"cell_type": "code", "metadata": {}, "source": ["x = 1\n"]}
    prose = {"cell_type": "markdown", "metadata": {}, "source": ["Words."]}

    def key(cells=(code, prose), library="y = 1", profile="quick"):
        build.hash_surroundings.cache_clear()
        source.write_text(json.dumps({"cells": cells}))
        module.write_text(library)
        return build.cache_path("one", profile)

    first = key()
    assert key() == first
    assert key(cells=[code, prose | {"source": ["Other words."]}]) == first
    changed = [
        key(cells=[code | {"source": ["x = 2\n"]}, prose]),
        key(library="y = 2"),
        key(profile="laptop"),
    ]
    assert len({first, *changed}) == 4
    build.hash_surroundings.cache_clear()


def test_a_page_says_whether_it_is_recorded_or_yours(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book" / "_ext"))
    edition = importlib.import_module("edition")
    app = SimpleNamespace(
        srcdir=ROOT / "book", env=SimpleNamespace(metadata=defaultdict(dict), found_docs=[])
    )

    def shown():
        text = [""]
        app.env.found_docs = ["index", "chapters/canary", "chapters/claims"]
        stale = edition.list_outdated(app, app.env, set(), set(), set())
        for page in stale:
            edition.read_chosen_notebook(app, page, text)
            app.env.metadata[page]["shown"] = edition.hash_shown(app, page)
        edition.read_chosen_notebook(app, "chapters/canary", text)
        return stale, "".join(json.loads(text[0])["cells"][0]["source"])

    stale, first = shown()
    assert stale == ["chapters/canary", "chapters/claims"]
    assert first.startswith("# Canaries") and "\nRecorded at the `laptop` profile on " in first
    assert shown()[0] == []
    recorded = json.loads((ROOT / "book" / "chapters" / "canary.ipynb").read_text())
    recorded["metadata"]["papermill"]["parameters"]["profile"] = "quick"
    (tmp_path / "canary.ipynb").write_text(json.dumps(recorded))
    monkeypatch.setenv("BOOK_LIVE", str(tmp_path))
    stale, yours = shown()
    assert stale == ["chapters/canary"]
    assert "**Yours:** run on this machine at the `quick` profile" in yours
    monkeypatch.delenv("BOOK_LIVE")
    assert shown() == (["chapters/canary"], first)


SLEEPER = """
import sys
sys.path.insert(0, "book")
from pathlib import Path
import build
build.ROOT = Path(sys.argv[1])
build.CACHE, build.LIVE, build.SOURCES = build.ROOT / "cache", build.ROOT / "live", []
sys.argv[1:] = ["--live", "one"]
build.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT")
def test_an_interrupted_build_leaves_no_process(tmp_path):
    """A kernel has a session of its own, and so has the process that it started."""
    mark = tmp_path / "mark"
    cell = (
        f"import os, subprocess\nsleeper = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(mark)!r}, 'w').write(f'{{os.getpid()}} {{sleeper.pid}}')\nsleeper.wait()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "one.ipynb")
    command = [sys.executable, "-c", SLEEPER, tmp_path]
    build = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not (mark.exists() and " " in mark.read_text()) and time.monotonic() < until:
        assert build.poll() is None, build.stderr.read()
        time.sleep(0.1)
    left = [psutil.Process(int(pid)) for pid in mark.read_text().split()]
    build.send_signal(signal.SIGINT)
    assert build.wait(timeout=600) == 130
    assert "interrupted" in build.stderr.read()
    assert psutil.wait_procs(left, timeout=30)[1] == []


# --------------------------------------------------------------------------- the forge
def spelled(run, choices):
    """A step's command, for each choice of its matrix."""
    hole = "${{ matrix.make }}"
    return [run.replace(hole, choice) for choice in choices] if hole in run else [run]


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.stem)
def test_what_the_forge_runs_is_here_and_what_it_asks_has_a_label(path):
    made = yaml.safe_load(path.read_text())
    makefile = (ROOT / "Makefile").read_text()
    if path.parent.name == "workflows":
        assert True in made and made["permissions"]["contents"] == "read"  # YAML reads "on" so
        for job in made["jobs"].values():
            assert job["timeout-minutes"] and job["steps"][0]["uses"].startswith("actions/checkout")
            choices = job.get("strategy", {}).get("matrix", {}).get("make", [])
            runs = [step["run"] for step in job["steps"] if "run" in step]
            assert runs
            for command in (c for run in runs for c in spelled(run, choices)):
                program, *words = command.split()
                if program == "make":
                    assert re.search(rf"(?m)^{words[0]}:", makefile), command
                else:
                    assert os.access(ROOT / program, os.X_OK), command
    else:
        assert made["name"] and made["description"]
        fields = [part for part in made["body"] if part["type"] != "markdown"]
        assert fields and all(part["attributes"]["label"] for part in fields)
