"""The reconstruction game: the promise is kept, nearly reached, and a planted fault is caught."""

import pandas as pd
import pytest

from crtbook import game, runner
from crtbook.study import Desk, Store
from crtlib.training import phases

GAMES = 60


def rate(noise, **settings):
    runs = [game.GameStudy(seed=seed, noise=noise, **settings) for seed in range(GAMES)]
    rows = [
        {"learns": r.learns, "noise": noise, "metric": m, "value": v}
        for r in runs
        for m, _, _, v in r.run(Desk())
    ]
    return game.summarise_games(pd.DataFrame(rows)).iloc[0]


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
    runs = [game.GameStudy(seed=s, candidates=4, others=8, steps=1, batch_size=6.0) for s in (0, 1)]
    store = Store(tmp_path)
    table = runner.sweep(runs, store, workers=1, progress=False)
    again = runner.sweep(runs[::-1], store, workers=1, progress=False)
    assert len(table) == 8 and table.seed.nunique() == 2
    assert sorted(table.value) == sorted(again.value)
    assert runs[0].run(Desk()) == runs[0].run(Desk())
    assert runs[0].key != runs[1].key


def test_bad_kind_is_named():
    with pytest.raises(ValueError, match="learns='gpt': must be 'bias' or 'lstm'"):
        game.GameStudy(seed=0, learns="gpt")
