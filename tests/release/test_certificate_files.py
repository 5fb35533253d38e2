"""Where a certificate lies, what it replaces, and what excuses no file beside it."""

import fcntl
from dataclasses import replace

import pytest

from confide.release import certify
from confide.training import train_on_corpus
from crtlib.training import methods, schedules
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, copy_folder, make_certificate


def test_what_is_void_is_so_in_every_file(tmp_path):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **CRT | {"neighbouring": "add_or_remove"})
    assert "; void: The exact numbers of messages" in (tmp_path / "m" / "guarantee.txt").read_text()


def test_a_certificate_replaces_no_other_file(tmp_path):
    """Its JSON beside the page was model.json, the shape of the model."""
    trainings.train(write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    before = (tmp_path / "m" / "experiment.json").read_bytes()
    with pytest.raises(ValueError, match=r"experiment\.json exists and is not a certificate"):
        make_certificate(tmp_path / "m", tmp_path / "m" / "experiment.html")
    assert (tmp_path / "m" / "experiment.json").read_bytes() == before


def test_a_certificate_may_lie_in_its_release(certified_model, tmp_path):
    home = copy_folder(certified_model, tmp_path)
    for _ in range(2):
        made = make_certificate(home / "m", home / "m" / "certificate.html")
        assert made["verdict"] == "holds", made["void_because"]
    assert (
        certify.compare_certificate_with_run(home / "m", home / "m" / "certificate.html")[0] is None
    )


def test_a_page_with_wildcards_in_its_name_excuses_no_file(certified_model, tmp_path):
    """The name was a pattern, and a file that was slipped in matched."""
    home = copy_folder(certified_model, tmp_path)
    (home / "m" / "raw.json").write_text('{"raw": "my name is Ada"}')
    for page in (home / "m" / "*.html", home / "m" / "[a-z]*.html"):
        value = make_certificate(home / "m", page)
        assert value["verdict"] == "void" and "raw.json" in str(value["void_because"])
    (tmp_path / "b").mkdir()
    home = copy_folder(certified_model, tmp_path / "b")
    part = home / "m" / ".page.html.raw.part"
    part.write_text("my name is Ada")
    with part.open() as file:  # somebody holds it
        fcntl.flock(file, fcntl.LOCK_EX)
        assert make_certificate(home / "m", home / "m" / "page.html")["verdict"] == "void"
    assert make_certificate(home / "m", home / "m" / "page.html")["verdict"] == "holds"
    assert not part.exists()


def test_a_link_in_the_place_of_the_page_excuses_no_file(tmp_path):
    trainings.train(write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    (tmp_path / "m" / "guarantee.txt").write_text("epsilon 0, says Ada Lovelace")
    (tmp_path / "page.html").symlink_to(tmp_path / "m" / "guarantee.txt")
    with pytest.raises(ValueError, match=r"page\.html is a link"):
        make_certificate(tmp_path / "m", tmp_path / "page.html")  # with --force


def test_what_is_void_says_so_in_all_its_files(tmp_path, monkeypatch):
    """Guarantee.txt decides by itself what is void: of a method of another package, whose phase
    nobody knows, it promised, for everybody to read, what the certificate does not."""

    class Odd(schedules.PrivatePhase):
        pass

    def phases(c):
        made = schedules.dpsgd_phases(epochs=c.epochs, private=c.private)
        return [Odd(**vars(p)) for p in made]

    method = replace(methods.DPSGD, name="odd", label="odd", phases=phases)
    monkeypatch.setitem(methods.METHODS, "odd", method)
    text = write_simulated_text(tmp_path / "c.jsonl")
    made = train_on_corpus.train(
        text, out=tmp_path / "m", method="odd", epochs=1, width=4, epsilon=3.0
    )
    assert make_certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
    assert not made.holds and "void" in (tmp_path / "m" / "guarantee.txt").read_text()
