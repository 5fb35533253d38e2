"""The notebooks run with changed parameters, and refuse bad ones.

Papermill and its kernel start where they are what is tested; elsewhere the cells that papermill
makes are run by the same shell in a fork of this process, which has imported everything already.
"""

import contextlib
import functools
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from papermill import execute_notebook
from papermill.cli import _resolve_type
from papermill.engines import papermill_engines
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from papermill.translators import PythonTranslator

from crtbook import grids, runner, search, settings
from tests.kills.__main__ import forked_pool

ROOT = Path(__file__).resolve().parents[2]
SMALL = {
    "seeds": "1",
    "dialogues": "60",
    "models": '["lstm"]',
    "methods": '["sgd", "crt"]',
    "ablation_gammas": "[0.05]",
    "shapes.lstm.embedding": "8",
    "shapes.lstm.hidden": "8",
    "data.customersim.heldout": "30",
}
QUICK = {  # what "make book" runs whole
    "dp_from_zero": {},
    "language_models": {"dialogues": "30", "epochs": "4"},
    "customersim": {"dialogues": "300"},
    "amplification": {"gammas": "[0.0, 0.1, 0.5]", "epsilons": "[1.0, 4.0]"},
    "labels": {"labels": "[50]", "draws": "500", "epsilon": "1.0"},
}


def papermill(name, out, **parameters):
    given = [x for k, v in parameters.items() for x in ("-p", k, str(v))]
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    notebook = ROOT / "notebooks" / f"{name}.ipynb"
    return subprocess.run(
        [*command, notebook, out, *given], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def executed(name, place, **parameters):
    """Run the cells of a chapter, with what papermill injects, in a fork; the MIME types of what
    they show. A cell that raises fails."""
    notebook = load_notebook_node(str(ROOT / "notebooks" / f"{name}.ipynb"))
    given = {k: _resolve_type(str(v)) for k, v in parameters.items()}
    notebook = parameterize_notebook(notebook, given, kernel_name="python3", language="python")
    for module in runner.PRELOADED:
        importlib.import_module(module)
    said = place / "said.json"
    if not (pid := os.fork()):
        code = 1
        try:
            os.chdir(ROOT)
            runner.process_pool = forked_pool
            said.write_text(json.dumps(_run(notebook)))
            code = 0
        except BaseException:
            said.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said.read_text()[-2000:]
    return json.loads(said.read_text())


def _run(notebook):
    shell, kinds = InteractiveShell.instance(), []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            with capture_output() as shown:
                done = shell.run_cell(cell.source)
            done.raise_error()
            kinds += [kind for output in shown.outputs for kind in output.data]
    return kinds


@pytest.mark.parametrize("name", QUICK)
def test_a_chapter_runs_with_other_parameters(name, tmp_path):
    assert "image/svg+xml" in executed(name, tmp_path, **QUICK[name])


CHAPTERS = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(CHAPTERS - {*QUICK, "canary"}))
def test_each_chapter_runs_at_its_quick_size(name, tmp_path):
    """That of the engine called a method that was gone for days: what it shows is recorded."""
    keeps_runs = "store = None" in (ROOT / "notebooks" / f"{name}.ipynb").read_text()
    store = {"store": tmp_path / "store"} if keeps_runs else {}
    executed(name, tmp_path, profile="quick", **store)


def test_canary_with_other_parameters_computes_only_what_is_missing(tmp_path):
    store = tmp_path / "store"
    first = executed("canary", tmp_path, gammas="[0.05]", store=store, **SMALL)
    cells = {p: p.stat().st_mtime_ns for p in store.glob("*.json")}
    assert len(cells) == 4  # sgd, crt and the two ablations
    gammas = {json.loads(p.read_text())["study"]["gamma"] for p in cells}
    assert gammas == {0.05}
    assert first.count("image/svg+xml") >= 2  # the fresh figure and the recorded one
    executed("canary", tmp_path, gammas="[0.05, 0.3]", store=store, **SMALL)
    assert {p: p.stat().st_mtime_ns for p in cells} == cells
    assert len(list(store.glob("*.json"))) == 6


BAD = [
    ({"gamas": "[0.1]"}, "gamas: unknown; allowed are profile"),
    ({"gammas": "[7]"}, "gammas=[7]: must be a list of float from 0 to 1"),
    ({"profile": "huge"}, "profile='huge': must be one of quick, laptop, paper"),
    ({"shapes.lstm.hiden": "3"}, "shapes.lstm.hiden: unknown; allowed are embedding, hidden"),
]


def test_a_bad_parameter_ends_a_chapter_in_one_line(tmp_path):
    (parameters, message), *_ = BAD
    store = tmp_path / "store"
    done = papermill("canary", tmp_path / "out.ipynb", store=store, **parameters)
    assert done.returncode != 0
    assert message in done.stderr
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    errors = [o for c in cells for o in c.get("outputs", []) if o["output_type"] == "error"]
    assert errors[0]["traceback"] == [f"parameter refused: {errors[0]['evalue']}"]
    assert message in errors[0]["evalue"]
    assert not store.exists()


@pytest.mark.parametrize(("parameters", "message"), BAD)
def test_bad_parameters_are_refused_in_one_line(parameters, message):
    canary = json.loads((ROOT / "notebooks" / "canary.ipynb").read_text())
    with pytest.raises(settings.ParameterError) as refused:
        given(canary, **parameters)
    assert message in str(refused.value) and "\n" not in str(refused.value)


GLUED = """import sys
from myst_nb import glue

print("run 1 of 2  50%|#####     | [00:08<00:06]", file=sys.stderr)
glue("n", "7", display=False)
"""


DRAWN = """from IPython.display import SVG

SVG("<svg xmlns='http://www.w3.org/2000/svg'><title>by profile quick</title></svg>")
"""


def test_what_papermill_makes_of_a_chapter_reads_well(tmp_path):
    """The package's entry point is papermill's engine: numbers stand in the text, bars do not, and
    a figure has its caption and how it was made below it. It was a dict that no notebook can be
    written with: papermill ran each chapter that draws, and then saved nothing of its end."""
    entries = tomllib.loads((ROOT / "book" / "pyproject.toml").read_text())["project"][
        "entry-points"
    ]
    module, _, name = entries["papermill.engine"]["crtbook"].partition(":")
    engine = getattr(importlib.import_module(module), name)
    assert papermill_engines.get_engine(None) is engine
    cells = [
        nbformat.v4.new_code_cell("n = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_markdown_cell("We found {glue:text}`n` {cite:p}`carlini2019secret`."),
        nbformat.v4.new_code_cell(GLUED),
        nbformat.v4.new_code_cell(DRAWN, metadata={"mystnb": {"figure": {"caption": "Drawn."}}}),
        nbformat.v4.new_markdown_cell("And {glue:text}`none`."),
    ]
    for folder, text in (("chapter", "book"), ("other", None)):
        (tmp_path / folder / "notebooks").mkdir(parents=True)
        path = tmp_path / folder / "notebooks" / "one.ipynb"
        kernel = {"name": "python3", "language": "python", "display_name": ""}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(notebook, path)
        if text:
            (tmp_path / folder / text).symlink_to(ROOT / text)
        out = tmp_path / f"{folder}.ipynb"
        execute_notebook(path, out, {"n": 2}, kernel_name="python3", progress_bar=False)
    made = nbformat.read(tmp_path / "chapter.ipynb", 4).cells
    assert [c.source for c in made if c.cell_type == "markdown"] == [
        "We found 7 (Carlini et al., 2019).",
        "And (not run).",
    ]
    assert "injected-parameters" in made[1].metadata.tags and made[3].outputs == []
    _, below = made[4].outputs
    assert below.data["text/markdown"] == "Drawn.\n\n*by profile quick*"
    other = nbformat.read(tmp_path / "other.ipynb", 4).cells
    assert other[2].source == cells[1].source and len(other[3].outputs) == 2


# --------------------------------------------------------------------------- parameters cells
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
sys.path.insert(0, str(ROOT / "book"))
computed = importlib.import_module("computed")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return json.loads(request.param.read_text())


def code(notebook, tag=""):
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    some = [c for c in cells if not tag or tag in c["metadata"].get("tags", [])]
    return "\n".join("".join(c["source"]) for c in some)


def given(notebook, **injected):
    """The settings after the parameters cell and the lines that papermill makes of parameters."""
    names = {}
    exec(code(notebook, "parameters"), names)
    exec(PythonTranslator.codify(injected), names)
    return settings.read_parameters(names, computed.find_section(notebook))


def test_parameters_cell_is_written_from_the_section(notebook):
    section = computed.find_section(notebook)
    assert code(notebook, "parameters") == settings.make_parameters_cell(section), (
        "run python book/computed.py"
    )


def test_parameters_cell_changes_nothing_by_itself(notebook):
    assert given(notebook) == settings.load_settings(computed.find_section(notebook))
    assert given(notebook, profile="paper").profile == "paper"


def test_papermill_explains_every_parameter(notebook):
    (cell,) = (c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", []))
    cell = {"source": "".join(cell["source"])}
    explained = {p.name: p for p in PythonTranslator.inspect(cell)}
    accepted = set(given(notebook))
    assert accepted <= set(explained)
    for name in accepted:
        assert explained[name].help
        dotted = explained[name].default == "Dotted()"
        assert dotted or explained[name].inferred_type_name != "None", name


def test_device_workers_and_a_dotted_name_are_effective_or_refused(notebook):
    """What a chapter has none of, it refuses by name; the others it sets."""
    for name, entry in [
        ("device", "cpu"),
        ("workers", 3),
        ("store", "elsewhere"),
        ("shapes.lstm.hidden", 48),
        ("training.steps", 7),
        ("data.customersim.heldout", 31),
        ("model.vocab_size", 300),
    ]:
        try:
            made = given(notebook, **{name: entry})
        except settings.ParameterError as refused:
            assert str(refused).startswith(f"{name.split('.')[0]}")
            assert ": unknown; allowed are " in str(refused) and "\n" not in str(refused)
            continue
        for part in name.split("."):
            made = made[part]
        assert made == entry


TAKES = {  # by chapter: one dotted name that it has, None where it has none
    "amplification": None,
    "axis": None,
    "canary": "shapes.lstm.hidden",
    "claims": "shapes.lstm.hidden",
    "customersim": None,
    "dp_from_zero": None,
    "engine": "shapes.lstm.batch",
    "extraction": "training.epochs",
    "lab_attack": None,
    "lab_defence": None,
    "labels": None,
    "language_models": None,
    "leakage_report": "shapes.table.hidden",
    "leakage_training": "data.customersim.dialogues",
    "membership": "data.customersim.vocab_size",
    "own_data": None,
    "pitfalls": None,
    "pretrained": None,
    "reconstruction_bounds": None,
    "screening": "data.schema_guided.labelled",
    "secret_protection": "model.hidden",
    "utility": "shapes.lstm.epochs.crt",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapters_take_the_dotted_names_that_they_have(path):
    notebook, name = json.loads(path.read_text()), TAKES[path.stem]
    if name is None:
        with pytest.raises(settings.ParameterError, match=r"^shapes.* unknown; allowed are"):
            given(notebook, **{"shapes.lstm.hidden": 16})
        return
    made = given(notebook, **{name: 16})
    for part in name.split("."):
        made = made[part]
    assert made == 16


def test_papermill_sets_a_dotted_name(tmp_path):
    """What papermill makes of it, run by papermill itself, on the first cells of a chapter."""
    short = json.loads((ROOT / "notebooks" / "canary.ipynb").read_text())
    end = next(
        i for i, c in enumerate(short["cells"]) if "read_parameters(globals()" in str(c["source"])
    )
    short["cells"] = short["cells"][: end + 1]
    short["cells"][end]["source"] += ["\nprint(settings.shapes.lstm.hidden, settings.gammas)"]
    (tmp_path / "short.ipynb").write_text(json.dumps(short))
    out = tmp_path / "out.ipynb"
    parameters = {"shapes.lstm.hidden": "200", "gammas": "[0.05]"}
    done = papermill(tmp_path / "short", out, **parameters)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = [
        o["text"] for c in json.loads(out.read_text())["cells"] for o in c.get("outputs", [])
    ]
    assert "".join(map("".join, printed)).strip() == "200 (0.05,)"


# --------------------------------------------------------------------------- nothing is ignored
CALLED = re.compile(r"\bgrids\.(\w+)\(settings\b")


def flat(tree, above=""):
    for name, entry in tree.items():
        if isinstance(entry, Mapping):
            yield from flat(entry, f"{above}{name}.")
        else:
            yield f"{above}{name}", entry


def others(entry):
    """Other values of the same kind, of which some rule may refuse some."""
    if isinstance(entry, int):
        return [entry + 1, entry - 1, 2 * entry]
    if isinstance(entry, float):
        return [entry / 2]
    if isinstance(entry, tuple):
        return [entry[:-1], (*entry, "schema_guided"), (*entry, 1)]
    return ["everything", "gpt2", "gru", "lstm", "multiwoz", "customersim"]


def studies(names, made):
    """The runs that a chapter's calls of these grids make."""
    called = []
    for name in names:
        grid = getattr(grids, name)
        rest = list(inspect.signature(grid).parameters)[1:]
        for corpus in made.corpora if "corpus" in rest else [None]:
            options = {"seed": 0, "corpus": corpus}
            try:
                called.append(grid(made, **{n: e for n, e in options.items() if n in rest}))
            except ValueError as error:  # corpora that are not here
                called.append(error)
    return repr(called)


def test_everything_a_chapter_accepts_is_read(notebook, monkeypatch):
    """A name stands in the chapter's code or, where a run is handed on, in that of the grid; below
    it, each dotted name changes a run where runs are made."""
    monkeypatch.setattr(
        search, "choose_trial", functools.cache(search.choose_trial)
    )  # reads a table each time
    text, made = code(notebook), given(notebook)
    names, before = set(CALLED.findall(text)), {}
    library = inspect.getsource(grids) if names else ""
    library += (
        inspect.getsource(runner.run_studies) if "runner.run_studies(settings" in text else ""
    )
    for name, entry in flat(made):
        first = name.split(".")[0]
        stands = re.search(rf"\bsettings\.{first}\b", text)
        if (
            any(fnmatchcase(name, pattern) for pattern in settings.find_idle_names(made))
            or name == "profile"
        ):
            continue
        if stands and (not names or "." not in name):
            continue
        leaf = name.rpartition(".")[2]  # read by the chapter in a loop over settings.data
        if stands and re.search(rf"\bsizes?\.{leaf}\b", text):
            continue
        changed = []
        for other in (v for v in others(entry) if v != entry):
            with contextlib.suppress(settings.ParameterError):
                changed.append(settings.assign_changes(made, {name: other}))
        if not changed and name == "data.customersim.labelled":
            continue  # refused: nothing learns from labels there
        before = before or studies(names, made)
        effective = any(studies(names, settings_) != before for settings_ in changed)
        handed = "." not in name and re.search(rf"\bsettings\.{name}\b", library)
        assert effective or handed or re.search(rf"\bsettings\.{re.escape(name)}\b", text), name
