"""Extraction: greedy decoding by the token, what is remembered against what is regular."""

import numpy as np
import pytest

from crtbook import secrets as extraction
from crtlib.models import scoring
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import schedules
from crtlib.training.loop import train_model

SPECS = {
    "lstm": ModelSpec("lstm", vocab_size=24, embedding=24, hidden=24),
    "gemma2": ModelSpec("gemma2", vocab_size=24, hidden=16, heads=2, context=32),
}


@pytest.mark.parametrize("kind", SPECS)
def test_extracted_is_greedy_decoding_and_agrees_with_the_ranks(kind):
    model = build_model(SPECS[kind], 0)
    rng = np.random.default_rng(0)
    random = rng.integers(24, size=(600, 4)).tolist()
    told = extraction.continue_greedily(model, random, length=5)
    sequences = [p + s for p, s in zip(random, told.tolist(), strict=True)]
    for row in range(0, 600, 3):  # spoil the last, the first or a middle token of some
        at = (8, 4, 6)[row % 9 // 3]
        sequences[row][at] = (sequences[row][at] + 1) % 24
    found = extraction.find_extractable(model, sequences, prefix=4, suffix=5)
    assert (~found).nonzero()[0].tolist() == list(range(0, 600, 3))
    ranks = scoring.token_scores(model, sequences)[1]
    assert found.tolist() == [bool((r[3:] == 0).all()) for r in ranks]


def test_what_was_read_is_memorised_and_what_follows_from_a_rule_is_not():
    rng = np.random.default_rng(1)
    rule = [[a] * 4 + [a] * 4 for a in range(20)]
    secrets = rng.integers(24, size=(4, 8)).tolist()
    probes, rest = [*rule[:4], *secrets], rule * 3
    phases = schedules.sgd_phases(epochs=30, batch_size=16, learning_rate=2e-2)
    ours, theirs = (
        train_model(build_model(SPECS["lstm"], 0), phases, {"public": part}, seed=0).model
        for part in (rest + secrets * 4, rest)
    )
    found = extraction.classify_extractions(ours, theirs, probes, prefix=4, suffix=4)
    assert found[:4].tolist() == ["generalised"] * 4
    assert (found[4:] == "memorised").sum() >= 3


def test_bad_input_is_named():
    model = build_model(SPECS["lstm"], 0)
    with pytest.raises(ValueError, match=r"one has 4 tokens: must be at least 3\+2"):
        extraction.find_extractable(model, [[1, 2, 3, 4]], prefix=3, suffix=2)
    with pytest.raises(ValueError, match="prefix=0: must be at least 1"):
        extraction.find_extractable(model, [[1, 2]], prefix=0, suffix=2)
    assert extraction.find_extractable(model, [], prefix=3, suffix=2).tolist() == []
