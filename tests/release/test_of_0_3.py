"""What crtlib 0.3 wrote: read where it is still true, refused in one line where it is not.

``data/of_0_3.tar.xz`` was written by it: 40 people, a quarter of whom say their message with their
number twice; a registry, an odometer with a run of ``crt`` and one of ``dpsgd``, both models with
their records, and a folder screened with ``--duplicates drop``."""

import tarfile
from pathlib import Path

import pytest

from confide import odometer, spending, text_registry
from confide.release import certify
from confide.training import train_on_corpus
from crtlib.text import corpora

PACKED = Path(__file__).parent / "data" / "of_0_3.tar.xz"
CRT = {"method": "crt", "policy": "regex:wikitext2", "conservative": "everything"}
SMALL = {"width": 2, "epochs": 1, "sampling_probability": 1.0, "epsilon": 8.0}


@pytest.fixture
def old(tmp_path, monkeypatch):
    with tarfile.open(PACKED) as packed:
        packed.extractall(tmp_path, filter="data")
    monkeypatch.setenv("CRTLIB_REGISTRY", str(tmp_path / "registry"))
    return tmp_path


def test_the_registry_and_the_odometer_are_found(old):
    registry = text_registry.Registry(text_registry.registry_folder())
    entries = odometer.read_entries(old / "talk.jsonl.odometer")
    assert [e.method for e in entries if e.state == "finished"] == ["crt", "dpsgd"]
    assert registry.entries() and registry.find_related_texts(
        corpora.hash_corpus(old / "talk.jsonl")
    )
    (old / "moved").mkdir()
    (old / "talk.jsonl").rename(old / "moved" / "talk.jsonl")
    trained = train_on_corpus.train(
        old / "moved" / "talk.jsonl", out=old / "new", **SMALL | {"method": "dpsgd"}
    )
    assert "An earlier run was made by crtlib 0.3" in trained.promise


def test_a_model_of_a_method_that_hides_copies_has_no_certificate(old):
    """0.3 said: holds, a secret at random (3.62, .001). Ten of forty leave a trace."""
    place = old / "talk.jsonl.odometer"
    value = certify.write_certificate(old / "model_crt", old / "c.html", odometer_folder=place)
    assert value["verdict"] == "void"
    assert any("trained by crtlib 0.3" in why and "again" in why for why in value["void_because"])


def test_a_model_that_read_each_copy_stays_certified_once_the_other_is_struck(old):
    place = old / "talk.jsonl.odometer"
    value = certify.write_certificate(old / "model_dpsgd", old / "c.html", odometer_folder=place)
    assert value["verdict"] == "void" and "--strike" in value["void_because"][0]
    crt = next(e for e in odometer.read_entries(place) if e.method == "crt")
    registry = text_registry.Registry(text_registry.registry_folder())
    odometer.strike_run(place, crt.entry[:12], because="nobody saw it", registry=registry)
    value = certify.write_certificate(
        old / "model_dpsgd", old / "c.html", odometer_folder=place, force=True
    )
    assert value["verdict"] == "holds"


def test_a_new_run_after_one_of_0_3_says_so(old):
    trained = train_on_corpus.train(old / "talk.jsonl", out=old / "new", **CRT | SMALL)
    assert not trained.holds and "void: An earlier run was made by crtlib 0.3" in (trained.promise)
    bill = spending.report_spending(
        spending.read_odometer_history(old / "talk.jsonl.odometer", None), delta=1e-6
    )
    assert bill["leave_out_repeats"] == 1


def test_a_folder_that_it_screened_is_refused_in_one_line(old):
    with pytest.raises(ValueError, match=r"screened: was screened by another version .* again$"):
        train_on_corpus.train(old / "screened", out=old / "new", **SMALL)
    assert not (old / "new").exists()
