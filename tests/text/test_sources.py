"""A corpus is a value: all are found by name, and a stranger's is one among them."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from crtlib import plugins
from crtlib.text import corpora, customersim, sources
from crtlib.text.records import Corpus, Dialogue, Turn


def draw(dialogues, seed, variety):
    turn = Turn("USR", f"{variety} {seed}")
    return Corpus("toy", tuple(Dialogue(f"{seed}-{i}", f"u{i}", (turn,)) for i in range(dialogues)))


def toy(name="toy", content="1"):
    return sources.simulated_source(
        name, "A toy", draw, sizes={"train": 5, "test": 2}, content=content
    )


@pytest.fixture
def registry(monkeypatch):
    """The registered corpora; what a test adds is gone after it."""
    corpora.available_corpora()
    monkeypatch.setattr(sources, "REGISTERED_SOURCES", dict(sources.REGISTERED_SOURCES))
    monkeypatch.setattr(corpora, "REGISTERED_SOURCES", sources.REGISTERED_SOURCES)
    return sources.REGISTERED_SOURCES


def test_every_corpus_of_ours_is_a_value_with_a_label():
    names = {"arxiv", "customersim", "multiwoz", "schema_guided", "wikitext2"}
    known = corpora.available_corpora()
    assert names <= set(known)
    assert {n for n in known if known[n].by_rule} == {
        "customersim",
        *("wikitext2", "wikitext2_cut"),
    }
    assert {n for n in known if known[n].draw} == {"customersim"}
    assert len({s.label for s in known.values()}) == len(known)
    assert not {s.label for s in known.values()} & set(known)


def test_customersim_is_loaded_like_any_other():
    loaded = corpora.load_corpus("customersim", "valid", limit=7)
    assert loaded.dialogues == customersim.simulate_corpus(7, 1).dialogues
    assert len(corpora.load_corpus("customersim", "test")) == 1_000
    assert corpora.is_corpus_available("customersim") and corpora.is_corpus_available(
        "customersim", "train"
    )
    assert not corpora.is_corpus_available("customersim", "dev")
    assert not corpora.is_corpus_available("customersim", folder="x")
    prints = [
        corpora.corpus_fingerprint("customersim", split) for split in ("train", "valid", "train")
    ]
    assert len(set(prints)) == 2 and all(len(p) == 64 for p in prints)
    with pytest.raises(ValueError, match="split='dev': must be one of train, valid, test"):
        corpora.load_corpus("customersim", "dev")
    with pytest.raises(ValueError, match="folder='x': customersim is simulated, it has none"):
        corpora.load_corpus("customersim", folder="x")


def test_customersim_has_another_fingerprint_when_a_template_changes(monkeypatch):
    before = corpora.corpus_fingerprint("customersim")
    monkeypatch.setattr(
        customersim, "RICH_GRAMMAR", dict(customersim.RICH_GRAMMAR) | {"goodbye": "bye"}
    )
    customersim._generator_hash.cache_clear()
    try:
        assert corpora.corpus_fingerprint("customersim") != before
    finally:
        monkeypatch.undo()
        customersim._generator_hash.cache_clear()
    assert corpora.corpus_fingerprint("customersim") == before


def test_a_stranger_registers_a_corpus(registry):
    mine = sources.register_corpus(toy())
    assert (
        corpora.find_source("toy") is mine and corpora.available_corpora()["toy"].label == "A toy"
    )
    assert [d.id for d in corpora.load_corpus("toy", "test").dialogues] == ["1-0", "1-1"]
    assert len(corpora.load_corpus("toy", limit=3)) == 3 and corpora.is_corpus_available(
        "toy", "test"
    )
    assert corpora.find_source("toy").draw(2, 9, "rich").dialogues[0].turns[0].text == "rich 9"
    first = corpora.corpus_fingerprint("toy")
    sources.register_corpus(mine)  # the same again is no conflict
    with pytest.raises(ValueError, match="name='toy': is taken"):
        sources.register_corpus(toy(content="2"))
    sources.register_corpus(toy(content="2"), replace=True)
    assert corpora.corpus_fingerprint("toy") != first


@pytest.mark.parametrize("name", ["", "a/b", "a.jsonl", "../x", "hub:a", "a b"])
def test_a_name_that_reads_as_a_path_is_refused(registry, name):
    with pytest.raises(ValueError, match="name="):
        sources.register_corpus(toy(name))


def test_packages_bring_corpora(registry, monkeypatch, tmp_path):
    (tmp_path / "brought_corpus.py").write_text(
        "from crtlib.text import sources\n"
        "from crtlib.text.records import Corpus\n"
        "TOY = sources.simulated_source('brought', 'Brought', lambda n, s, v: Corpus('b', ()),"
        " sizes={'train': 1}, content='1')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("ok", "brought_corpus:TOY", corpora.CORPUS_ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    corpora._register_plugins.cache_clear()
    try:
        assert "brought" in corpora.available_corpora()
        assert corpora.find_source("brought").label == "Brought"
    finally:
        corpora._register_plugins.cache_clear()
        monkeypatch.undo()


@pytest.mark.parametrize("brought", ["no_such_module:X", "math:pi"])
def test_a_package_that_brings_no_corpus_is_named(registry, monkeypatch, brought):
    point = EntryPoint("gone", brought, corpora.CORPUS_ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    corpora._register_plugins.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"^crtlib\.corpora='gone': cannot be loaded from"):
            corpora.available_corpora()
    finally:
        corpora._register_plugins.cache_clear()
        monkeypatch.undo()


def test_packages_are_not_asked_for_a_corpus_of_ours():
    """A broken package must not slow or stop what does not need it."""
    code = (
        "from crtlib import plugins\n"
        "from crtlib.text import corpora\n"
        "plugins.entry_points = lambda group: 1 / 0\n"
        "print(corpora.load_corpus('customersim', limit=1).name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert run.stdout == "customersim-paper\n"


def test_an_unknown_corpus_is_told_the_names():
    with pytest.raises(ValueError, match=r"corpus='nothing': must be one of .*customersim.*path"):
        corpora.load_corpus("nothing")
