"""What a store promises, whether it is a folder or a URL."""

import importlib.util
import itertools
import os
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from crtbook import roots
from crtbook.store import WHOLE, Store

STUDY, ROWS = {"study": "toy", "seed": 0}, [("loss", 1, 0, 0.5)]


@pytest.fixture
def store(place):
    store = Store(place)
    store.begin()
    return store


@pytest.fixture
def elsewhere(bucket):
    store = Store(bucket)
    store.begin()
    return store


def write_model(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "weights").write_text(text)
    (folder / "deep" / "run.json").write_text(text)


def test_a_finished_run_is_found_and_a_damaged_one_is_set_aside(store, place):
    store.write("abc", STUDY, {"host": "here"}, ROWS)
    again = Store(place)
    assert again.has("abc") and not again.has("abd")
    assert again.table(["abc"]).value.tolist() == [0.5]
    roots.write(store.path("abc"), roots.read(store.path("abc")).replace("0.5", "0.6"))
    assert not again.has("abc")
    assert [path.name for path in again.damaged()] == ["abc.json.damaged"]
    assert not roots.exists(store.path("abc"))


def test_what_is_no_store_of_this_version_is_refused(store, place):
    roots.write(store.folder / "VERSION", "0\n")
    with pytest.raises(ValueError, match="has version '0', this library reads"):
        Store(place)
    roots.remove(store.folder / "VERSION")
    roots.write(store.folder / "a.json", "{}")
    with pytest.raises(ValueError, match="not a store"):
        Store(place)


def test_a_run_that_fails_leaves_its_state_to_the_next_worker(store, place):
    with pytest.raises(ZeroDivisionError), store.at_hand("abc", True) as (state, model):
        assert not state.exists() and not model.exists()
        state.parent.mkdir(exist_ok=True)
        state.write_bytes(b"one")
        state.with_suffix(".rest.pt").write_bytes(b"two")
        raise ZeroDivisionError
    with Store(place).at_hand("abc", True) as (state, model):
        assert (state.read_bytes(), state.with_suffix(".rest.pt").read_bytes()) == (b"one", b"two")
        write_model(model, "whole")
    store.write("abc", STUDY, {}, ROWS)
    assert not roots.matching(store.folder / "unfinished", "*")
    for read in (store.model("abc"), Store(place).model("abc")):
        assert (read / "deep" / "run.json").read_text() == "whole"


def test_the_next_sweep_removes_what_one_left_that_was_killed_after_it_had_recorded(store, place):
    store.write("abc", STUDY, {}, ROWS)
    for key, end in itertools.product(("abc", "abd", "abe"), (".pt", ".rest.pt")):
        roots.write(store.folder / "unfinished" / f"{key}{end}", "state")
    roots.write(store.path("abe"), roots.read(store.path("abc")))
    with store.alone("abe"):  # another sweep has done it, while a third is at it still
        Store(place).begin()
    left = [path.name for path in roots.matching(store.folder / "unfinished", "*")]
    here = ["abe.pt", "abe.rest.pt"] if roots.is_local(store.folder) else []
    assert left == ["abd.pt", "abd.rest.pt", *here]
    assert Store(place).has("abc")


def test_state_is_sent_while_a_run_goes_on(store, monkeypatch):
    """A worker that is killed runs no last line."""
    monkeypatch.setattr("crtbook.store.SENT", 0.01)
    with store.at_hand("abc", False) as (state, model):
        assert model is None
        state.parent.mkdir(exist_ok=True)
        for text in ("first", "then"):
            state.write_text(text)
            there = store.folder / "unfinished" / "abc.pt"
            for _ in range(500):
                if roots.exists(there) and roots.read(there) == text:
                    break
                threading.Event().wait(0.01)
            assert roots.read(there) == text


def test_half_a_model_is_none(elsewhere):
    with elsewhere.at_hand("abc", True) as (_, model):
        write_model(model, "whole")
    there = elsewhere.folder / "models" / "abc"
    roots.write(there / "weights", "other")
    assert not elsewhere.model("abc").exists()
    roots.write(there / "weights", "whole")
    assert elsewhere.model("abc").exists()
    roots.remove(there / "deep" / "run.json")
    assert not elsewhere.model("abc").exists()


def test_a_model_that_nobody_changed_is_not_sent_again(elsewhere, monkeypatch):
    with elsewhere.at_hand("abc", True) as (_, model):
        write_model(model, "whole")
    monkeypatch.setattr(roots, "put", lambda *_: pytest.fail("sent again"))
    with elsewhere.at_hand("abc", True) as (_, model):
        assert (model / "weights").read_text() == "whole"


@pytest.mark.parametrize("name", ["../x", "/x"])
def test_a_model_of_a_bucket_cannot_write_elsewhere(elsewhere, name):
    roots.write(elsewhere.folder / "models" / "abc" / WHOLE, f'{{"{name}": "0"}}')
    assert not elsewhere.model("abc").exists()


def test_what_is_staged_is_private_and_goes_also_after_a_kill(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with elsewhere.at_hand("abc", True) as (state, _):
        (folder,) = tmp_path.iterdir()
        assert folder in state.parents and stat.S_IMODE(folder.stat().st_mode) == 0o700
        with elsewhere.at_hand("abd", True):  # ours is locked
            assert folder.exists()
    assert not list(tmp_path.iterdir())
    left = Path(tempfile.mkdtemp(prefix=f"crtlib-{os.getuid()}-"))
    os.utime(left, (0, 0))
    with elsewhere.at_hand("abc", True):
        assert not left.exists()


def test_a_folder_by_url_is_a_folder(tmp_path):
    store = Store(f"file://{tmp_path}/runs")
    assert store.folder == tmp_path / "runs" and not store.note


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s4://bucket", "store='s4://bucket': must be a folder or a URL that fsspec knows"),
        ("", "store='': must name a folder or a URL"),
        ("s3://key:word@bucket/x", "store: the URL holds a password; give it to fsspec, not to us"),
    ],
)
def test_what_can_be_no_root_is_refused_in_one_line(name, message, run):
    code, out, err = run("sweep", "games", "--store", name)
    assert (code, out, err) == (2, "", f"crtbook: error: {message}\n")


def test_a_package_that_is_missing_is_named(run, monkeypatch):
    honest = importlib.util.find_spec
    said = {"s3fs": None, "upath": honest("json")}
    spec = lambda name, *more: said[name] if name in said else honest(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", spec)
    code, _, err = run("sweep", "games", "--store", "s3://x")
    assert (code, err) == (2, "crtbook: error: store='s3://x': needs pip install s3fs\n")


def test_a_bucket_that_is_not_there_is_said_in_one_line(bucket, run):
    code, _, err = run("sweep", "games", "--store", bucket.replace("s3://", "s3://no-"))
    assert code == 3 and "does not serve (FileNotFoundError: " in err.splitlines()[-1]


def test_a_sweep_by_command_fills_a_bucket_and_finds_its_runs_again(bucket, run):
    words = ("sweep", "games", "--set", "trials=1", "--executor", "threads:", "--store", bucket)
    code, _, err = run(*words)
    assert code == 0
    assert err == f"private files lie in {bucket}: their protection is the bucket's\n"
    code, out, _ = run(*words, "--dry-run")
    assert code == 0 and "6, of which 0 are missing" in out
