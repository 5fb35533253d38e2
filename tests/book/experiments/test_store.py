"""What a store promises."""

import itertools
import shutil
from pathlib import Path

import pytest

from crtbook.study import Store

STUDY, ROWS = {"study": "toy", "seed": 0}, [("loss", 1, 0, 0.5)]


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "runs")
    store.begin()
    return store


def test_a_finished_run_is_found_and_a_damaged_one_is_set_aside(store):
    store.write("abc", STUDY, {"host": "here"}, ROWS)
    again = Store(store.folder)
    assert again.has("abc") and not again.has("abd")
    assert again.table(["abc"]).value.tolist() == [0.5]
    store.path("abc").write_text(store.path("abc").read_text().replace("0.5", "0.6"))
    assert not again.has("abc")
    assert [path.name for path in store.folder.glob("abc*")] == ["abc.json.damaged"]


def test_finished_runs_of_unfinished_sweeps_that_are_committed_are_whole(tmp_path):
    kept = shutil.copytree(
        Path(__file__).resolve().parents[3] / "data" / "unfinished", tmp_path / "kept"
    )
    runs = [path.stem for path in kept.glob("*.json")]
    assert runs and all(map(Store(kept).has, runs))


def test_what_is_no_store_of_this_version_is_refused(store):
    (store.folder / "VERSION").write_text("0\n")
    with pytest.raises(ValueError, match="has version '0', this library reads"):
        Store(store.folder)
    (store.folder / "VERSION").unlink()
    (store.folder / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="not a store"):
        Store(store.folder)


def test_the_next_sweep_removes_what_one_left_that_was_killed_after_it_had_recorded(store):
    store.write("abc", STUDY, {}, ROWS)
    (store.folder / "unfinished").mkdir()
    for key, end in itertools.product(("abc", "abd", "abe"), (".pt", ".rest.pt")):
        store.unfinished(key).with_suffix(end).write_text("state")
    store.path("abe").write_text(store.path("abc").read_text())
    with store.alone("abe"):  # another sweep has done it, while a third is at it still
        Store(store.folder).begin()
    left = sorted(path.name for path in (store.folder / "unfinished").iterdir())
    assert left == ["abd.pt", "abd.rest.pt", "abe.pt", "abe.rest.pt"]
    store.write("abd", STUDY, {}, ROWS)
    assert len(list((store.folder / "unfinished").iterdir())) == 2


@pytest.mark.parametrize("name", ["s3://bucket/runs", "file:///runs", "", "a\0b"])
def test_what_is_no_folder_is_refused_in_one_line(name, run):
    with pytest.raises(ValueError, match="must be a folder"):
        Store(name)
    code, out, err = run("sweep", "games", "--store", name)
    assert (code, out) == (2, "") and err.startswith("crtbook: error: --store")
    assert len(err.splitlines()) == 1
