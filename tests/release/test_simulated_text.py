"""A text is a simulation's where every dialogue of it is, with its labels."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from confide.screening import corpus_screening
from confide.text import registry_units
from confide.training import training_record
from crtlib.text import corpus_folder, customersim, jsonl
from crtlib.text.records import Dialogue, Secret, Turn

MADE = [*customersim.stream_dialogues(4, 7, "paper")]
PIN = Turn("USR", "my word is zorblax, thanks", (Secret("other", 11, 18),))
PEOPLE = [Dialogue(f"s7-{k}", f"p{k}", (PIN,)) for k in range(1000, 1004)]


def reads_labels_of_real_text(path):
    study = SimpleNamespace(
        corpus=path, policy="oracle", conservative="cautious", screening=None, unit="turn"
    )
    return training_record.reads_labels_of_real_text(study)


def text_about(path, folder):
    how = corpus_screening.ScreeningOptions("oracle", "cautious")
    return corpus_screening.screen_corpus(path, folder, how, key=None).summary["about"]


TEXTS = {
    "all of it": (MADE, True),
    "its second half": (MADE[2:], True),
    "two simulations": ([*MADE, *customersim.stream_dialogues(3, 8, "rich")], True),
    "ids of one": ([MADE[0], *PEOPLE], False),
    "numbers of one": (
        [MADE[0], *(replace(d, id=f"s7-d{k}") for k, d in enumerate(PEOPLE, 1))],
        False,
    ),
    "another person": ([MADE[0], replace(MADE[1], user="ann"), *MADE[2:]], False),
    "no labels": (
        [replace(d, turns=tuple(Turn(t.speaker, t.text) for t in d.turns)) for d in MADE],
        False,
    ),
    "a person behind it": ([*MADE, Dialogue("ann", "ann", (PIN,))], False),
}


@pytest.mark.parametrize("name", TEXTS)
def test_simulated_is_true_of_every_dialogue(tmp_path, name):
    """A text of 600 people whose ids begin s7-, with one simulated dialogue put first, was
    "simulated": its own labels were taken for a search ("public at most 1.22 %", where 301 of 305
    public points held a secret), and nobody in it was a person."""
    talks, simulated = TEXTS[name]
    jsonl.write_jsonl(talks, tmp_path / "c.jsonl")
    (tmp_path / "s").mkdir()
    assert text_about(tmp_path / "c.jsonl", tmp_path / "s")["simulated"] is simulated
    assert reads_labels_of_real_text(tmp_path / "c.jsonl") is not simulated
    people = [kind for kind, _ in registry_units.hash_registry_units(tmp_path / "c.jsonl")]
    assert ("user" in people) is not simulated


def test_the_simulators_marker_alone_makes_no_text_simulated(tmp_path):
    corpus_folder.save_corpus(
        PEOPLE, tmp_path / "s", command="simulate", options={}, simulated=True
    )
    assert reads_labels_of_real_text(tmp_path / "s")
    corpus_folder.save_corpus(MADE, tmp_path / "t", command="simulate", options={})
    assert not reads_labels_of_real_text(tmp_path / "t")
