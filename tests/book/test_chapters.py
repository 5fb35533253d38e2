"""A recorded chapter belongs to the tables that it shows, and to the code that made its outputs."""

import importlib.util
import json
from pathlib import Path

import pytest

from crtbook import tables

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "book" / "chapters").glob("*.ipynb"))
spec = importlib.util.spec_from_file_location("build_book", ROOT / "book" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_was_recorded_from_todays_tables(path):
    chapter = json.loads(path.read_text(encoding="utf-8"))
    carried = chapter["metadata"].get("tables", {})
    assert set(carried) == set(build.shown_tables(chapter))
    stale = [name for name, sha in carried.items() if tables.digest(name) != sha]
    assert stale == [], f"python book/build.py --publish laptop --only {path.stem}"


def test_some_chapters_show_recorded_tables():
    shown = {n for p in CHAPTERS for n in build.shown_tables(json.loads(p.read_text()))}
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
    renewed = build.resourced(RAN, {"cells": [*now, prose("More.")]})
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
    with pytest.raises(ValueError, match="code cells 2 do other things"):
        build.resourced(RAN, now)
    assert build.resourced(RAN, now, force=True)["cells"][-1]["outputs"] == ["2"]
    with pytest.raises(ValueError, match="3 code cells, 2 are recorded"):
        build.resourced(RAN, {"cells": [*now["cells"], code("1\n")]}, force=True)


def test_colab_installs_first_where_the_book_has_an_address(tmp_path, monkeypatch):
    chapter, path = json.loads(json.dumps(RAN)), tmp_path / "c.ipynb"
    monkeypatch.setattr(build, "ROOT", tmp_path)
    for url in ("https://example.org/a/b", "https://example.org/c", ""):
        (tmp_path / "_config.yml").write_text(f'repository:\n  url: "{url}"\n')
        build.write(path, chapter)
        chapter = json.loads(path.read_text())
        tags = [cell["metadata"].get("tags", []) for cell in chapter["cells"]]
        assert ["colab" in some for some in tags].count(True) == bool(url)
        if url:
            assert "colab" in tags[1] and "remove-cell" in tags[1]
            assert f"git+{url}#subdirectory=book" in chapter["cells"][1]["source"]
    assert chapter == RAN
