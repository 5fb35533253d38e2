"""White-box games against every private method: below the proof, half of the noise noticed."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from crtbook import audits, tables
from crtlib.intervals import clopper_pearson
from tests.book.experiments import games as others
from tests.faults import __main__ as planting
from tests.faults.table import FAULTS

NAMES = [each.name for each in audits.AUDITS]
GROUPS = [each.name for each in others.GROUPS]
NOISE = [f for f in FAULTS if f.name.startswith(("10 % less noise", "no noise where"))]


@pytest.fixture(autouse=True)
def _more_games(monkeypatch):
    """The tables have the games of :mod:`tests.book.experiments.games` as well."""
    more = (*audits.AUDITS, *others.TENSORS, *others.GROUPS)
    monkeypatch.setattr(audits, "AUDITS", more)


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_holds_and_less_noise_is_refuted(name):
    """A game that could not find a mistake would prove nothing."""
    rows = audits.audit_methods([name], games=12_000, epsilons=(3.0,)).set_index("noise")
    honest = rows.loc[1.0]
    assert 0.7 * honest.proved < honest.audited < honest.proved == pytest.approx(3, abs=1e-3)
    refuted = rows.right >= rows.refuted_from
    assert not refuted.loc[1.0] and refuted.loc[0.5] and refuted.loc[0.0]
    assert rows.power.loc[0.5] > 0.999


@pytest.mark.parametrize("fault", [None, *NOISE], ids=lambda f: f.name if f else "honest")
def test_each_noise_fault_of_the_planted_list_is_refuted(fault, monkeypatch):
    """Of one tensor by the game that watches it; of numbers without a gradient by canaries that no
    batch holds."""
    last = fault.name.split()[-1] if fault else "0"
    name, games = (f"tensor_{last}", 10_000) if last.isdigit() else ("dpsgd", 20_000)
    assert len(NOISE) == 7
    if fault:
        code = planting.altered(fault).__code__
        monkeypatch.setattr(planting.function(fault.target), "__code__", code)
    row = audits.audit_methods([name], games=games, epsilons=(8.0,), noises=(1.0,)).iloc[0]
    assert (row.right >= row.refuted_from) == (fault is not None)


@pytest.mark.parametrize("name", GROUPS)
def test_three_points_are_one_canary(name):
    """Of a group each is drawn by itself; those of a user are drawn and clipped together."""
    rows = audits.audit_methods([name], games=300, epsilons=(8.0,), noises=(1.0, 0.5)).set_index(
        "noise"
    )
    assert 0.5 * rows.proved.loc[1.0] < rows.audited.loc[1.0] < rows.proved.loc[1.0]
    assert rows.right.loc[1.0] < rows.refuted_from.loc[1.0] <= rows.right.loc[0.5]


def test_a_fault_of_known_size_is_found_as_often_as_was_said():
    """60 audits of a training with nine tenths of its noise, of 3,000 games each."""
    scale = audits.scale_of(audits.AUDITS[1], 3.0, 400)
    found, games = 0, 3000
    for seed in range(60):
        played = audits.play_dpsgd(games, 0.9, seed, scale, relation="replace")
        right = int(((played.scores > 0) == played.included).sum())
        found += right >= audits.least_refuting_guesses(games, played.proof(1.0)[1])
    said = audits.detection_power(games, played.proof(1.0)[1], played.proof(0.9)[1])
    assert 0.2 < said < 0.8
    low, high = clopper_pearson(found, 60, confidence=0.999)
    assert low < said < high


def test_honest_trainings_are_refuted_no_more_often_than_was_said():
    scale = audits.scale_of(audits.AUDITS[1], 3.0, 400)
    refuted = 0
    for seed in range(40):
        played = audits.play_dpsgd(2000, 1.0, seed, scale, relation="replace")
        right = int(((played.scores > 0) == played.included).sum())
        refuted += right >= audits.least_refuting_guesses(2000, played.proof(1.0)[1])
    assert refuted <= 5


def test_how_many_right_guesses_refute():
    """Against the binomial law written out, and against no advantage at all."""
    least = audits.least_refuting_guesses(1000, 0.2)
    tail = [stats.binom.sf(k - 1, 1000, 0.6) for k in (least - 1, least)]
    assert tail[1] <= 0.05 < tail[0]
    assert audits.detection_power(1000, 0.2, 0.2) == pytest.approx(tail[1])
    assert (
        audits.least_refuting_guesses(10, 1.0) == 11 and audits.detection_power(10, 1.0, 1.0) == 0
    )


def test_a_canary_is_as_strong_as_the_clip_allows_and_moves_no_other():
    """Without noise each canary that is drawn moves by exactly one clip norm, and nothing else."""
    model = audits._model(40)
    included = audits._flip_coins(40, 0)
    phases = audits.schedules.dpsgd_phases(epochs=6, private=audits._private_constants(0.0, 40))
    points = [[audits.FIRST + i, audits.YES if c else audits.NO] for i, c in enumerate(included)]
    pushes, events = audits._train_and_record_pushes(model, phases, {"private": points}, seed=0)
    sign = np.where(included, 1.0, -1.0)
    assert np.allclose(np.abs(pushes).round(), np.abs(pushes), atol=1e-3)
    assert np.isin((pushes * sign).round(), (0, 1)).all()
    assert 0.5 < np.abs(pushes).mean() < 0.9 and len(events) == 6


def test_crt_shows_the_mask_where_the_policy_caught_the_secret():
    """At gamma = 0 both worlds read the mask: whatever the noise, nothing can be told apart."""
    games = audits.play_crt(4000, 0.05, 0, gamma=0.0)
    assert games.proof(1.0) == (0.0, 0.0)
    right = int(((games.scores > 0) == games.included).sum())
    assert right < audits.least_refuting_guesses(4000, 0.0)


def test_a_method_without_an_audit_is_refused():
    with pytest.raises(ValueError, match="audit='sgd': must be one of dpsgd, dpsgd_replace, crt"):
        audits.audit_methods(["sgd"])


def test_the_page_shows_the_recorded_table():
    """What is audited is rounded down; what is refuted is so as it is printed."""
    recorded = tables.load_recorded("audits")
    assert list(dict.fromkeys(recorded.method)) == NAMES
    honest = recorded[recorded.noise == 1]
    assert (honest.right < honest.refuted_from).all() and (honest.audited < honest.proved).all()
    page = (Path(__file__).resolve().parents[3] / "book" / "guarantees.md").read_text("utf-8")
    part = page.split("**Audits of the proofs.**")[1].split("**Noise faults.**")[0]
    lines = [line for line in part.splitlines() if line[:1] == "|"][2:]
    assert lines == audits.format_rows(recorded)
