"""A corpus is a value: all are found by name, and a stranger's is one among them."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from crtlib.text import corpora, customersim, records
from crtlib.text.records import Corpus, Dialogue, Turn


def draw(dialogues, seed, variety):
    turn = Turn("USR", f"{variety} {seed}")
    return Corpus("toy", tuple(Dialogue(f"{seed}-{i}", f"u{i}", (turn,)) for i in range(dialogues)))


def toy(name="toy", content="1"):
    return records.simulated(name, "A toy", draw, sizes={"train": 5, "test": 2}, content=content)


@pytest.fixture
def registry(monkeypatch):
    """The registered corpora; what a test adds is gone after it."""
    corpora.known()
    monkeypatch.setattr(records, "SOURCES", dict(records.SOURCES))
    monkeypatch.setattr(corpora, "SOURCES", records.SOURCES)
    return records.SOURCES


def test_every_corpus_of_ours_is_a_value_with_a_label():
    names = {"customersim", "multiwoz", "schema_guided", "wikitext2"}
    known = corpora.known()
    assert names <= set(known)
    assert {n for n in known if known[n].by_rule} == {
        "customersim",
        *("wikitext2", "wikitext2_cut"),
    }
    assert {n for n in known if known[n].draw} == {"customersim"}
    assert len({s.label for s in known.values()}) == len(known)
    assert not {s.label for s in known.values()} & set(known)


def test_customersim_is_loaded_like_any_other():
    loaded = corpora.load("customersim", "valid", limit=7)
    assert loaded.dialogues == customersim.simulate(7, 1).dialogues
    assert len(corpora.load("customersim", "test")) == 1_000
    assert corpora.available("customersim") and corpora.available("customersim", "train")
    assert not corpora.available("customersim", "dev")
    assert not corpora.available("customersim", folder="x")
    prints = [corpora.fingerprint("customersim", split) for split in ("train", "valid", "train")]
    assert len(set(prints)) == 2 and all(len(p) == 64 for p in prints)
    with pytest.raises(ValueError, match="split='dev': must be one of train, valid, test"):
        corpora.load("customersim", "dev")
    with pytest.raises(ValueError, match="folder='x': customersim is simulated, it has none"):
        corpora.load("customersim", folder="x")


def test_customersim_has_another_fingerprint_when_a_template_changes(monkeypatch):
    before = corpora.fingerprint("customersim")
    monkeypatch.setattr(customersim, "RICH", dict(customersim.RICH) | {"goodbye": "bye"})
    customersim._content.cache_clear()
    try:
        assert corpora.fingerprint("customersim") != before
    finally:
        monkeypatch.undo()
        customersim._content.cache_clear()
    assert corpora.fingerprint("customersim") == before


def test_a_stranger_registers_a_corpus(registry):
    mine = records.register(toy())
    assert corpora.source("toy") is mine and corpora.known()["toy"].label == "A toy"
    assert [d.id for d in corpora.load("toy", "test").dialogues] == ["1-0", "1-1"]
    assert len(corpora.load("toy", limit=3)) == 3 and corpora.available("toy", "test")
    assert corpora.source("toy").draw(2, 9, "rich").dialogues[0].turns[0].text == "rich 9"
    first = corpora.fingerprint("toy")
    records.register(mine)  # the same again is no conflict
    with pytest.raises(ValueError, match="name='toy': is taken"):
        records.register(toy(content="2"))
    records.register(toy(content="2"), replace=True)
    assert corpora.fingerprint("toy") != first


@pytest.mark.parametrize("name", ["", "a/b", "a.jsonl", "../x", "hub:a", "a b"])
def test_a_name_that_reads_as_a_path_is_refused(registry, name):
    with pytest.raises(ValueError, match="name="):
        records.register(toy(name))


def test_packages_bring_corpora_and_a_broken_one_is_passed_over(registry, monkeypatch, tmp_path):
    (tmp_path / "brought_corpus.py").write_text(
        "from crtlib.text import records\n"
        "from crtlib.text.records import Corpus\n"
        "TOY = records.simulated('brought', 'Brought', lambda n, s, v: Corpus('b', ()),"
        " sizes={'train': 1}, content='1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [
        EntryPoint("ok", "brought_corpus:TOY", corpora.GROUP),
        EntryPoint("gone", "no_such_module:X", corpora.GROUP),
        EntryPoint("other", "math:pi", corpora.GROUP),
    ]
    monkeypatch.setattr(corpora, "entry_points", lambda group: points)
    corpora._plugins.cache_clear()
    try:
        with pytest.warns(UserWarning) as warned:
            assert "brought" in corpora.known()
        assert [str(w.message).split(";")[0] for w in warned] == [
            "corpus 'gone' of a package: is left out",
            "corpus 'other' of a package: is left out",
        ]
        assert corpora.source("brought").label == "Brought"
    finally:
        corpora._plugins.cache_clear()
        monkeypatch.undo()


def test_packages_are_not_asked_for_a_corpus_of_ours():
    """A broken package must not slow or stop what does not need it."""
    code = (
        "from crtlib.text import corpora\n"
        "corpora.entry_points = lambda group: 1 / 0\n"
        "print(corpora.load('customersim', limit=1).name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert run.stdout == "customersim-paper\n"


def test_an_unknown_corpus_is_told_the_names():
    with pytest.raises(ValueError, match=r"corpus='nothing': must be one of .*customersim.*path"):
        corpora.load("nothing")
