"""The tokenizer learns from public text only, and loses nothing."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from crtlib.screening import regex_policies
from crtlib.studies import study_data
from crtlib.text import customersim, data_points, templates, tokenizer
from crtlib.text.records import MASK, Corpus, Dialogue, Secret, Turn

CORPUS = customersim.simulate_corpus(40, 0, "paper")
TURNS = [f"{t.speaker}: {t.text}" for t in CORPUS.turns()]
BPE = tokenizer.train_bpe(TURNS, vocab_size=512)


def test_any_text_survives_the_round_trip():
    for text in [*TURNS[:100], "naïve — 漢字 42", "   spaces  "]:
        assert BPE.decode(BPE.encode([text])[0]) == text


def test_digits_are_single_tokens_wherever_they_stand():
    ids = BPE.encode(["order 12-345 67890"])[0]
    assert [i for i in ids if i in BPE.digits] == [BPE.digits[int(d)] for d in "1234567890"]


def test_mask_is_one_token_and_swallows_the_space_before_it():
    assert BPE.encode([f"is {MASK}."])[0] == BPE.encode([f"is{MASK}."])[0]
    assert BPE.encode([f"{MASK}{MASK}"])[0].count(BPE.mask) == 2


def test_the_vocabulary_does_not_depend_on_private_text():
    """Spell every secret backwards: the tokenizer of a run does not change."""

    def backwards(turn):
        text = turn.text
        for s in turn.secrets:
            text = text[: s.start] + text[s.start : s.end][::-1] + text[s.end :]
        return replace(turn, text=text)

    dialogues = tuple(replace(d, turns=tuple(map(backwards, d.turns))) for d in CORPUS.dialogues)
    other = replace(CORPUS, dialogues=dialogues)
    assert other != CORPUS
    for unit in ("turn", "dialogue"):
        ours, theirs = (
            study_data._train_tokenizer(
                c,
                SimpleNamespace(unit=unit, vocab_size=512),
                templates.SPEAKER_TEMPLATE,
                points,
                [p.secrets for p in points],
                regex_policies.oracle_policy,
            )
            for c, points in ((c, data_points.make_points(c, unit=unit)) for c in (CORPUS, other))
        )
        assert ours.json == theirs.json


def test_the_vocabulary_skips_a_turn_that_is_flagged_only_in_context():
    """pi_c finds the second turn within its dialogue, and nothing in turns by themselves."""
    dialogues = [Dialogue(str(k), "u", (Turn("SYS", "hello"), Turn("USR", "zyx"))) for k in (0, 1)]
    corpus = Corpus("c", tuple(dialogues))
    points = data_points.make_points(corpus, unit="dialogue")
    text, study = points[0].text, SimpleNamespace(unit="dialogue", vocab_size=300)
    found = [(Secret("name", text.index("zyx"), len(text)),)] * 2

    def nothing(points):
        return [()] * len(points)

    def fitted(corpus, private_flags):
        points = data_points.make_points(corpus, unit="dialogue")
        return study_data._train_tokenizer(
            corpus, study, templates.SPEAKER_TEMPLATE, points, private_flags, nothing
        ).json

    words = fitted(corpus, found)
    without = replace(corpus, dialogues=tuple(replace(d, turns=d.turns[:1]) for d in dialogues))
    none = [()] * 2
    assert words == fitted(without, none)
    assert words != fitted(corpus, none)


def test_save_and_load(tmp_path):
    BPE.save(tmp_path / "bpe.json")
    assert tokenizer.load_tokenizer(tmp_path / "bpe.json").fingerprint == BPE.fingerprint


def test_a_small_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocab_size=100: must be at least 259"):
        tokenizer.train_bpe(["a"], vocab_size=100)
    with pytest.raises(ValueError, match="must be at most 1,048,576"):
        tokenizer.train_bpe(["a"], vocab_size=2**63)
