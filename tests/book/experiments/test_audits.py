"""White-box games against every private method: below the proof, half of the noise noticed."""

import math
from pathlib import Path

import numpy as np
import pytest

from crtbook import audits, tables

NAMES = [each.name for each in audits.AUDITS]


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_holds_and_half_of_the_noise_is_refuted(name):
    row = audits.table([name]).iloc[0]
    assert row.audited < row.proved < row["audited at 0.5"]
    assert row.audited > 0.4 * row.proved  # an attack that sees nothing would prove nothing


def test_a_canary_is_as_strong_as_the_clip_allows_and_moves_no_other():
    """Without noise each canary that is drawn moves by exactly one clip norm, and nothing else."""
    model = audits._model(40)
    included = audits._coins(40, 0)
    phases = audits.schedules.dpsgd(epochs=6, private=audits._private(0.0, 40))
    points = [[audits.FIRST + i, audits.YES if c else audits.NO] for i, c in enumerate(included)]
    pushes, events = audits._pushes(model, phases, {"private": points}, scale=audits.CLIP, seed=0)
    sign = np.where(included, 1.0, -1.0)
    assert np.allclose(np.abs(pushes).round(), np.abs(pushes), atol=1e-3)
    assert np.isin((pushes * sign).round(), (0, 1)).all()
    assert 0.5 < np.abs(pushes).mean() < 0.9 and len(events) == 6


def test_crt_shows_the_mask_where_the_policy_caught_the_secret():
    """At gamma = 0 both worlds read the mask: whatever the noise, nothing can be told apart."""
    games = audits.crt(4000, 0.05, 0, gamma=0.0)
    sides = games.scores[games.included], games.scores[~games.included]
    assert audits.audit(*sides, delta=audits.DELTA).epsilon == 0 == games.proved


def test_a_method_without_an_audit_is_refused():
    with pytest.raises(ValueError, match="audit='sgd': must be one of dpsgd, dpsgd_replace, crt"):
        audits.table(["sgd"])


def test_the_page_shows_the_recorded_table():
    """What is audited is rounded down and what is proved up; what is refuted is so as printed."""
    recorded = tables.recorded("audits")
    assert list(recorded.method) == NAMES and set(recorded.games) == {16_000}
    assert (recorded.audited < recorded.proved).all()
    page = (Path(__file__).resolve().parents[3] / "book" / "guarantees.md").read_text("utf-8")
    part = page.split("**Audits of the proofs.**")[1].split("**Planted faults.**")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line[:1] == "|"][2:]
    for (_, row), (label, _, *numbers) in zip(recorded.iterrows(), lines, strict=True):
        audited, half = (math.floor(100 * row[c]) / 100 for c in ("audited", "audited at 0.5"))
        proved = math.ceil(100 * row.proved) / 100
        verdict = "refuted" if half > proved else "not refuted"
        assert label == row.label
        assert numbers == [f"{audited:.2f}", f"{proved:.2f}", f"{half:.2f}, {verdict}"]
