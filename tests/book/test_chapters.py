"""A recorded chapter belongs to the tables that it shows, and to the code that made its outputs."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from crtbook import tables
from crtbook.claims import ledger
from crtbook.claims.claim import load_claims_file
from crtbook.figures.tables import UNSAID, is_unsaid, keep_for_text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "book"))
plain = importlib.import_module("plain")
sys.path.insert(0, str(ROOT / "book" / "_ext"))
pages = importlib.import_module("pages")
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("*.ipynb"))
spec = importlib.util.spec_from_file_location("build_book", ROOT / "book" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_was_recorded_from_todays_tables(path):
    chapter = json.loads(path.read_text(encoding="utf-8"))
    carried = chapter["metadata"].get("tables", {})
    assert set(carried) == set(build.hash_shown_tables(chapter))
    stale = [name for name, sha in carried.items() if tables.hash_table(name) != sha]
    assert stale == [], f"python book/build.py --publish laptop --only {path.stem}"


def test_some_chapters_show_recorded_tables():
    shown = {n for p in CHAPTERS for n in build.hash_shown_tables(json.loads(p.read_text()))}
    assert {"crt_laptop", "leakage_laptop", "tuning"} <= shown


def code(text, outputs=(), tags=()):
    cell = {"cell_type": "code", "source": text.splitlines(True), "metadata": {"tags": list(tags)}}
    return cell | {"outputs": list(outputs), "execution_count": 1 if outputs else None}


def prose(text):
    return {"cell_type": "markdown", "source": [text], "metadata": {}}


RAN = {
    "metadata": {"papermill": {"duration": 3}},
    "cells": [
        prose("Old words."),
        code("n = 1\n", ["1"], ["parameters"]),
        code("n = 2\n", [], ["injected-parameters"]),
        code("from a import f\nf(n)  # why\n", ["2"]),
    ],
}


def test_imports_and_prose_are_renewed_and_outputs_kept():
    now = [prose("New."), code("n = 1\n", tags=["parameters"]), code("from b.c import f\n\nf(n)\n")]
    renewed = build.replace_source(RAN, {"cells": [*now, prose("More.")]})
    assert ["".join(c["source"]) for c in renewed["cells"]] == [
        "New.",
        "n = 1\n",
        "n = 2\n",
        "from b.c import f\n\nf(n)\n",
        "More.",
    ]
    assert [c["outputs"] for c in renewed["cells"] if "outputs" in c] == [["1"], [], ["2"]]
    assert renewed["metadata"] == RAN["metadata"]


def test_other_code_is_refused_unless_one_insists():
    now = {"cells": [code("n = 1\n", tags=["parameters"]), code("from a import f\nf(n + 1)\n")]}
    with pytest.raises(ValueError, match="code cells 2 differ from the recorded"):
        build.replace_source(RAN, now)
    assert build.replace_source(RAN, now, force=True)["cells"][-1]["outputs"] == ["2"]
    with pytest.raises(ValueError, match="3 code cells, 2 are recorded"):
        build.replace_source(RAN, {"cells": [*now["cells"], code("1\n")]}, force=True)


def test_colab_installs_first_where_the_book_has_an_address(tmp_path, monkeypatch):
    chapter, path = json.loads(json.dumps(RAN)), tmp_path / "c.ipynb"
    monkeypatch.setattr(build, "ROOT", tmp_path)
    for url in ("https://example.org/a/b", "https://example.org/c", ""):
        (tmp_path / "_config.yml").write_text(f'repository:\n  url: "{url}"\n')
        build.write_notebook(path, chapter)
        chapter = json.loads(path.read_text())
        tags = [cell["metadata"].get("tags", []) for cell in chapter["cells"]]
        assert ["colab" in some for some in tags].count(True) == bool(url)
        if url:
            assert "colab" in tags[1] and "remove-cell" in tags[1]
            assert f"git+{url}#subdirectory=book" in chapter["cells"][1]["source"]
    assert chapter == RAN


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_sentence_is_about_what_was_not_measured(path):
    """A chapter said "of 0 occurrences the model completes 0: a recall of not defined"."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    empty = {name: value for name, value in plain.stored_values(cells).items() if is_unsaid(value)}
    assert empty == {}
    for cell in cells:
        for out in cell.get("outputs", ()):
            told = "".join([*out.get("data", {}).get("text/plain", ""), *out.get("text", "")])
            assert not UNSAID.search(told), (cell["source"], told)
            assert "no answer yet" not in told, "a check without an answer shows nothing"


def test_a_value_that_was_not_measured_is_not_kept_for_a_sentence(monkeypatch):
    kept = {}
    monkeypatch.setattr("myst_nb.glue", lambda name, value, display: kept.update({name: value}))
    keep_for_text(found=3, of="3 of 40")
    keep_for_text("recall", recall="not defined")
    assert kept == {"found": 3, "of": "3 of 40", "recall": "not defined"}
    for value in (float("nan"), None, "", [], "0 of 0", "a recall of nan", "not defined"):
        with pytest.raises(ValueError, match=r"recall=.*must be something that was measured"):
            keep_for_text(recall=value)


def drawings(chapter):
    """The SVG of each figure of a recorded chapter."""
    for cell in json.loads((ROOT / "book" / "chapters" / chapter).read_text("utf-8"))["cells"]:
        for out in cell.get("outputs", ()):
            if "image/svg+xml" in out.get("data", {}):
                yield "".join(out["data"]["image/svg+xml"])


def size(drawing):
    """Width and height of what of a drawing is seen, in points."""
    return tuple(map(float, re.search(r'viewBox="\S+ 0 (\S+) (\S+)"', drawing).groups()))


def test_the_picture_of_a_story_is_one_panel_wherever_its_drawing_begins():
    """A drawing that was widened to the left kept the height of all its panels, and half a screen
    stood empty; one chapter opened with a grid of four panels, 11 pixels its letters."""
    drawn = list(drawings("axis.ipynb"))
    assert len(drawn) == 2
    for drawing in drawn:
        assert size(pages.cut_to_one_panel(drawing))[1] < size(drawing)[1] / 2
    *_, grid = drawings("secret_protection.ipynb")
    shown = pages.cut_to_one_panel(grid)
    assert re.findall(">(weight that is kept|noise multiplier|test loss.*)</text>", shown) == [
        "noise multiplier"
    ]
    assert set(re.findall('xlink:href="#(m[^"]*)"', shown)) <= set(
        re.findall(' id="([^"]*)"', shown)
    )
    (wide, high), (whole, both) = size(shown), size(grid)
    assert wide < 0.6 * whole and high < 0.7 * both


TYPED = re.compile(r"(?<!\w)\[\s*[-−]?[\d.,]*\d ?%?, [-−]?[\d.,]*\d ?%?\](?!\()")


WRITTEN = [*ROOT.glob("book/*.md"), ROOT / "README.md"]
WRITTEN.remove(ROOT / "book" / "what_we_know.md")  # made from the ledger


@pytest.mark.parametrize("path", [*CHAPTERS, *WRITTEN], ids=lambda path: path.stem)
def test_no_interval_in_a_sentence_is_typed_by_hand(path):
    """One chapter had 1.06 [1.03, 1.08] where What we know had 1.06 [1.05, 1.06], and one called
    open what the ledger had decided."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    words = re.sub(r"```(python|console|bash|text).*?```|`[^`]*`|\$[^$]*\$", "", text, flags=re.S)
    assert TYPED.findall(words) == []


def test_an_interval_that_was_typed_is_seen():
    assert TYPED.findall("it is 1.06 [1.03, 1.08], or 37 % [30 %, 45 %]; see [a page](x.md)") == [
        "[1.03, 1.08]", "[30 %, 45 %]",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["canary", "membership", "utility"])
def test_an_interval_in_a_sentence_is_the_ledgers_of_today(name):
    chapter = json.loads((ROOT / "book" / "chapters" / f"{name}.ipynb").read_text("utf-8"))
    cells = [c for c in chapter["cells"] if "ledger.format_interval_of_row" in "".join(c["source"])]
    shown = {
        out["metadata"]["scrapbook"]["name"]: out["data"]["application/papermill.record/text/plain"]
        for cell in cells
        for out in cell["outputs"]
        if "scrapbook" in out["metadata"]
    }
    now: dict[str, str] = {}
    given = {"np": np, "tables": tables, "paper": tables.load_recorded("crt_paper"),
             "ledger": ledger, "keep_for_text": lambda **values: now.update(values),
             "render_table": print, "at_the_end": lambda *_: "", "said": ""}  # fmt: skip
    for cell in cells:
        exec("".join(cell["source"]), dict(given))
    assert {key: repr(value) for key, value in now.items()} == shown


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_figure_has_a_caption_and_stands_alone_in_its_cell(path):
    bare = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        drawn = [o for o in cell.get("outputs", ()) if "image/svg+xml" in o.get("data", {})]
        named = cell["metadata"].get("mystnb", {}).get("figure", {})
        if drawn and (len(drawn) > 1 or not {"caption", "name"} <= set(named)):
            bare.append("".join(cell["source"])[-80:])
        for out in drawn:  # how it was made is no part of the drawing
            written = re.sub(r"(?s)<title>.*?</title>", "", "".join(out["data"]["image/svg+xml"]))
            assert not re.search(r"\bprofile, \w+, \d+ seed", written)
    assert bare == []


CELL = re.compile(r"(?s)<td\b[^>]*>([^<]*)</td>")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_cell_of_numbers_is_read_at_a_glance(path):
    """Fifty cells said "above at 5 of 6: 0.500 to 0.560", and a page of zeros counted seeds."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for out in cell.get("outputs", ()):
            html = "".join(out.get("data", {}).get("text/html", ""))
            cells = CELL.findall(html)
            assert not any(re.search(r"\d \(?[↑↓]|± –", text) for text in cells), "a loose mark"
            long = [t for t in cells if len(t) > 20 and len(re.findall(r"\d\.\d", t)) > 1]
            assert len(long) < 13, long[:3]
            if "Recorded seeds of each point" in html:
                assert html.lstrip().startswith("<details>")


def test_the_chapter_on_extraction_tells_both_tables():
    """It said that what can be guessed stays, and showed 48 probes; of 480 it falls to nothing."""
    chapter = json.loads((ROOT / "book/chapters/extraction.ipynb").read_text("utf-8"))
    said = plain.stored_values(chapter["cells"])
    runs = tables.load_recorded("probes_laptop")
    of = runs[runs.metric.isin(["memorised", "generalised"])]
    of = of.groupby(["metric", "hidden", "noise_multiplier"]).value.agg(["mean", "sum"])
    for width, counts in of.loc["generalised"]["sum"].groupby("hidden"):
        listed = ", ".join(f"{n:.0f}" for n in counts)
        assert f"{listed} at width {width}" in said["ex_more_guessed"]
    for name, noise in (("ex_more_zero", 0.0), ("ex_more_small", 0.1)):
        share = 100 * of.loc["memorised"]["mean"].xs(noise, level=1) / 480
        assert said[name] == f"{share.min():.0f} to {share.max():.0f} %"


@pytest.mark.parametrize("name", ["canary", "membership", "utility"])
def test_the_epochs_at_the_papers_size_are_those_of_the_runs(name):
    """All were said to have a tenth; S-DP has 6 %, and DP-SGD 20 %."""
    chapter = json.loads((ROOT / f"book/chapters/{name}.ipynb").read_text("utf-8"))
    prose = "\n".join("".join(c["source"]) for c in chapter["cells"])
    (figure,) = (f for f in load_claims_file("figures") if f["id"] == "crt-3")
    runs = tables.load_recorded("crt_paper").groupby("method").epochs.unique()
    for method, words in (("sgd", "non-private training"), ("crt", "CRT"), ("dpsgd", "DP-SGD"),
                          ("selective", "S-DP")):  # fmt: skip
        (epochs,), whole = runs[method], figure["epochs"][method]
        share = f"{100 * epochs / whole:.0f} %"
        told = rf"{epochs:.0f}( epochs)? of {words} instead of {whole} \({share}\)"
        assert re.search(told, prose)


def test_the_ratio_of_the_pretrained_model_is_judged_by_the_ledger():
    """It was called "close to, or below, it by our rule", of two seeds with one epoch."""
    said = plain.stored_values(
        json.loads((ROOT / "book/chapters/pretrained.ipynb").read_text("utf-8"))["cells"]
    )
    for corpus in ("customersim", "schema_guided"):
        cell = {"dialogues": 16, "model": "pretrained", "metric": "valid_ppl_words"}
        row = ledger.find_row("crt-f2-gpt-pretrained", corpus=corpus, **cell)
        assert said[f"judged-{corpus}"].startswith(f"{row.verdict} (")


def test_the_longer_steps_of_the_engine_are_those_of_the_file():
    said = plain.stored_values(
        json.loads((ROOT / "book/chapters/engine.ipynb").read_text("utf-8"))["cells"]
    )
    rows = json.loads((ROOT / "data/results/benchmark_private_step.json").read_text())["rows"]
    for engine, name in (("ours", "longer_ours"), ("opacus-hooks", "longer_hooks")):
        of = [row["ratio_median"] for row in rows
              if row["engine"] == engine and not row["model"].startswith("book-")]  # fmt: skip
        assert (said[f"{name}_low"], said[f"{name}_high"]) == (f"{min(of):.2f}", f"{max(of):.2f}")
