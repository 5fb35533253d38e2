"""The reconstruction game: the promise is kept, nearly reached, and a planted fault is caught."""

import pandas as pd
import pytest

from crtlib.experiments import game, secrets
from crtlib.experiments import store as store_studies
from crtlib.training import phases

GAMES = 60


def rate(noise, **settings):
    runs = [game.Game(seed=seed, noise=noise, **settings) for seed in range(GAMES)]
    rows = [
        {"kind": r.kind, "noise": noise, "metric": m, "value": v}
        for r in runs
        for m, _, _, v in r.measure()
    ]
    return game.verdicts(pd.DataFrame(rows)).iloc[0]


def test_promise_is_kept_and_nearly_reached():
    honest = rate(1.0)
    assert honest.accounted <= honest.promised == 0.5
    assert not honest.refuted
    assert honest.high > 0.35  # an attack far below the bound could not notice any fault


def test_half_the_noise_is_caught():
    """Noise that is halved behind the ledger's back, with the promise as it was."""
    honest = phases.PrivatePhase.updates
    with pytest.MonkeyPatch.context() as patch:

        def halved(self, model, batch, noise):
            object.__setattr__(self, "noise_multiplier", self.noise_multiplier / 2)
            yield from honest(self, model, batch, noise)
            object.__setattr__(self, "noise_multiplier", self.noise_multiplier * 2)

        patch.setattr(phases.PrivatePhase, "updates", halved)
        faulty = rate(1.0)
    assert faulty.accounted <= 0.5  # the ledger was told of the noise that should have been added
    assert faulty.refuted


def test_runs_are_collected_once_and_seeded(tmp_path):
    runs = [game.Game(seed=s, candidates=4, others=8, steps=1, batch_size=6) for s in (0, 1)]
    store = store_studies.Store(tmp_path)
    table = secrets.collect(runs, store, progress=False)
    again = secrets.collect(runs[::-1], store, progress=False)
    assert len(table) == 8 and table.seed.nunique() == 2
    assert sorted(table.value) == sorted(again.value)
    assert runs[0].measure() == runs[0].measure()
    assert secrets.key(runs[0]) != secrets.key(runs[1])


def test_bad_kind_is_named():
    with pytest.raises(ValueError, match="kind='gpt': must be one of bias, lstm"):
        game.Game(seed=0, kind="gpt")
