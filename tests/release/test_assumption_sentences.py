"""Assumptions are decided by their kind; how one is worded decides nothing."""

import re

import pytest

from confide import assumption_sentences
from confide.assumption_sentences import SENTENCES, Assumption, read_assumption
from confide.release import assumptions, leaver, source_fold
from confide.release.file_sources import (
    NAME_BESIDE_COUNTED,
    SOURCES_ADAPTER,
    BaseSource,
    BroughtSource,
    NoisedSource,
    ScriptSource,
    TaughtSource,
)
from confide.reports import model_card, sentences, standards
from crtlib.accounting.events import SampledGaussian
from tests.reports.test_certificate_pages import DP, made

SLOT_VALUES = {
    "subject": "list:a, b.csv",
    "sha256": "5" * 64,
    "people": 1_280,
    "beside_counted": True,
}
EVENT = SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=3)
SOURCES = (
    NoisedSource("run", "user", "replace", (EVENT,), None),
    BaseSource("gpt2", "outside"),
    BaseSource("m2", "elsewhere", beside_counted=True),
    BroughtSource("list:a.txt"),
    ScriptSource("run.py", "5" * 64),
    TaughtSource(3),
)


def test_a_sentence_is_read_as_the_assumption_that_wrote_it():
    for kind, wordings in SENTENCES.items():
        for model, wording in wordings.items():
            for filled in (True, False):
                slots = {n: x for n, x in SLOT_VALUES.items() if "{" + n + "}" in wording}
                if not filled:
                    slots = {"subject": "gpt2"} if "subject" in slots else {}
                assumption = Assumption(kind, **slots, model=model)
                if kind == "unknown" and model != "this":
                    continue  # no version wrote it
                assert read_assumption(assumption.sentence()) == assumption


@pytest.mark.parametrize(("sentence", "meant"), [
    ("gpt2 had not read this text", Assumption("base_unread", "gpt2")),
    ("apart from the earlier models that are counted, m2 had not read this text",
     Assumption("base_unread", "m2", beside_counted=True)),
    ("gpt2, from which an earlier model started, had not read its text",
     Assumption("base_unread", "gpt2", model="earlier_other_text")),
    ("list:a.txt was not made from this text", Assumption("not_made_from_text", "list:a.txt")),
    ("list:a.txt was not made from this text, which it screened for an earlier model",
     Assumption("not_made_from_text", "list:a.txt", model="earlier_same_text")),
    ("nobody of this text taught a policy under another name", Assumption("nobody_taught")),
    ("for the people of this text who taught a policy, at most 15, masking one of their secrets "
     "would change no label elsewhere, the policy passes over no larger share of their secrets, "
     "and nobody else of this text taught one", Assumption("people_taught", people=15)),
    ("for the 30 people of this text who taught a policy masking one of their secrets would "
     "change no label elsewhere, and nobody else taught one",
     Assumption("people_taught", people=30)),
    ("run.py, which took the steps, taught the model nothing of this text beside them",
     Assumption("script", "run.py")),
    (f"run.py (SHA-256 {'5' * 64}), which took the steps, taught the model nothing of this text "
     "beside them, and kept nothing of one text for the loss of another",
     Assumption("script", "run.py", "5" * 64)),
    ("run.py, which took the steps, taught the model nothing of this text beside them, kept "
     "nothing of one text for the loss of another, and let no text choose a learning rate",
     Assumption("script", "run.py")),
    ("no two names in this text are of one person", Assumption("one_name")),
    ("whatever nobody had thought of", Assumption("unknown", "whatever nobody had thought of")),
])  # fmt: skip
def test_what_files_hold_is_read_as_it_was_meant(sentence, meant):
    """These are words of files that exist: whoever rewords a sentence leaves this list as it is."""
    assert read_assumption(sentence) == meant


def test_a_release_that_marks_a_base_by_its_name_is_read_as_before():
    old = [{"name": f"{NAME_BESIDE_COUNTED}m2", "lineage": "elsewhere", "kind": "base"}]
    (base,) = SOURCES_ADAPTER.validate_python(old)
    assert base == BaseSource("m2", "elsewhere", beside_counted=True)
    again = SOURCES_ADAPTER.dump_python([base], mode="json")
    assert SOURCES_ADAPTER.validate_python(again) == [base]


@pytest.mark.parametrize(("source", "sentence"), [
    (BaseSource("gpt2", "outside"), "gpt2 had not read this text"),
    (BaseSource("m1", "known"), None),
    (BroughtSource("list:a.txt"), "list:a.txt was not made from this text"),
    (TaughtSource(0), "nobody of this text taught a policy under another name"),
    (TaughtSource(15), "for the people of this text who taught a policy, at most 15, masking one"),
    (TaughtSource(None), "for the people of this text who taught a policy masking one of"),
    (ScriptSource("run.py", ""), "run.py, which took the steps, taught the model nothing of this "
     "text beside them, kept nothing of one text for the loss of another, let no text choose a "
     "learning rate, and did not change how the model reads"),
])  # fmt: skip
def test_what_is_assumed_of_a_source(source, sentence):
    assumption = source_fold.assumption_of_source(source)
    if sentence is None:
        assert assumption is None
    else:
        assert assumption.sentence().startswith(sentence)


def decisions():
    """Whatever is decided by what is assumed: what is assumed besides, which sentences a page has,
    of whom a promise is, which requirements are met, and which earlier runs promise nothing."""
    fold = source_fold.combine_sources(SOURCES)
    earlier = [a.of_earlier_model(same_text=same) for a in fold.assumed for same in (True, False)]
    alone = assumptions.assume_of_models_from_outside(fold)
    every = assumptions.state_assumptions([*fold.assumed, *alone, *earlier])
    decided = [[a.subject for a in alone]]
    for assumed in ([sentence] for sentence in every):
        value = made(*DP, ("assumed", assumed))
        decided.append([*sentences.select_sentences(value)])
        decided.append("of somebody who taught no policy" in model_card.describe_promise(value))
        rows = standards.judge_requirements(value, "aisvs")
        decided.append([(row["id"], row["status"]) for row in rows])
        line = type("Line", (), {"assumed": assumed, "model": "a", "tensors": None, "base": None,
                                 "base_tensors": None})  # fmt: skip
        decided.append(len(leaver._taught_by_people([line])))
    return every, decided


def test_rewording_changes_no_decision(monkeypatch):
    """Each of these was decided by the beginning, the end or a part of an English sentence."""

    def reword(wording):
        parts = re.split(r"(\{\w+\})", wording)
        return "Take it that " + "".join(
            part if part.startswith("{") else part[::-1] for part in parts
        )

    said, decided = decisions()
    other = {
        kind: {model: reword(wording) for model, wording in wordings.items()}
        for kind, wordings in SENTENCES.items()
    }
    monkeypatch.setattr(assumption_sentences, "SENTENCES", other)
    said_otherwise, decided_otherwise = decisions()
    assert not {*said} & {*said_otherwise} and len(said) == len(said_otherwise)
    assert decided_otherwise == decided
