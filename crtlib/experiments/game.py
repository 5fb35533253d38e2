"""A reconstruction game: is a secret named no more often than was promised?

>>> game = Game(seed=0, candidates=4, copies=2, others=8, steps=2, batch_size=4, noise=0.0)
>>> {name: value for name, _, _, value in game.measure()}  # no noise, no promise kept
{'success': 1.0, 'promised': 0.5, 'accounted': 1.0, 'noise_multiplier': 0.0}
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy import sparse

from crtlib.accounting import secrets
from crtlib.checks import check_choice
from crtlib.experiments import store
from crtlib.intervals import clopper_pearson
from crtlib.models import scoring
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.training import weighted
from crtlib.training.loop import train

WORDS = 64  # tokens that are no candidates


@dataclass(frozen=True, kw_only=True)
class Game:
    """A secret, one of ``candidates`` drawn evenly, stands in ``copies`` examples among ``others``.
    A model is trained, and the attacker, who knows all but the secret and the randomness, names the
    candidate whose likelihood training has raised most.

    ``kind="bias"``: of the model only the output bias learns. Then each candidate's gradient has a
    direction of its own, and naming the most raised is nearly the best attack there is. "lstm": all
    of a small language model learns. ``noise`` times what the promise ``posterior`` needs is
    added: 1 as promised, 0 none, 0.5 the fault that an audit must notice.
    """

    seed: int
    kind: str = "bias"
    candidates: int = 50
    copies: int = 4
    others: int = 60
    steps: int = 4
    batch_size: float = 48.0
    posterior: float = 0.5
    noise: float = 1.0
    clip_norm: float = 0.1
    learning_rate: float = 0.5

    KINDS: ClassVar = ("bias", "lstm")

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, self.KINDS)

    def measure(self, device: str = "cpu") -> list[store.Row]:
        """Whether the secret was named; what was promised, and what is accounted for the rounds
        that ran (the smaller of the bounds by KL and by the blow-up function)."""
        promise = replace(self, seed=0, noise=1.0)
        made = _promise(promise)
        sigma = made.noise_multiplier * self.noise
        (phase,) = weighted.phases(
            replace(made, noise_multiplier=sigma),
            epochs=1,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
        )
        rng = np.random.default_rng([self.seed, 11])
        secret = int(rng.integers(self.candidates))
        carriers = range(self.candidates, self.candidates + self.copies)
        others = rng.integers(self.candidates, self.candidates + WORDS, size=(self.others, 2))
        read = [[c, secret] for c in carriers] + others.tolist()
        shape = ModelSpec("lstm", self.candidates + WORDS, embedding=8, hidden=8)
        model = build(shape, self.seed).to(device)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.kind == "lstm" or name == "head.bias")
        before = self.scores(model)
        run = train(model, [phase], {"private": read}, seed=self.seed, optimizer="sgd")
        named = int((self.scores(model) - before).argmax())
        facts = {"success": named == secret, "promised": self.posterior}
        (ran,) = run.events
        facts |= {"accounted": _accounted(promise, ran.noise_multiplier, ran.steps)}
        facts |= {"noise_multiplier": ran.noise_multiplier}
        return [(name, 0, 0, float(value)) for name, value in facts.items()]

    def scores(self, model) -> np.ndarray:
        """The log-likelihood of each candidate in all its places, ``(candidates,)``."""
        carriers = range(self.candidates, self.candidates + self.copies)
        each = [[c, k] for k in range(self.candidates) for c in carriers]
        told = np.concatenate(scoring.token_logprobs(model, each))
        return told.reshape(self.candidates, self.copies).sum(1)


@functools.lru_cache(maxsize=16)
def _promise(game: Game) -> secrets.Plan:
    """Every example is as likely as another; the noise is the least by the tight bound."""
    held = sparse.csr_array(
        (np.arange(game.copies + game.others) < game.copies)[None].astype(float)
    )
    return secrets.plan(
        held,
        1 / game.candidates,
        game.posterior,
        steps=game.steps,
        batch_size=game.batch_size,
        scale=math.inf,
        accounting="tight",
    )


@functools.lru_cache(maxsize=64)
def _accounted(game: Game, noise_multiplier: float, steps: int) -> float:
    if noise_multiplier == 0:
        return 1.0
    done = replace(_promise(game), noise_multiplier=noise_multiplier, steps=steps)
    return done.guarantees([0], tight=True)[0].posterior


def verdicts(table: pd.DataFrame, *, confidence: float = 0.95) -> pd.DataFrame:
    """One row a kind and noise: games, successes, their Clopper-Pearson interval, the promise, and
    whether the interval refutes it, as it should where noise is missing.
    """
    rows = []
    for (kind, noise), cell in table.groupby(["kind", "noise"]):
        won = cell[cell.metric == "success"].value
        low, high = clopper_pearson(int(won.sum()), len(won), confidence=confidence)
        told = {name: cell[cell.metric == name].value.iloc[0]
                for name in ("promised", "accounted", "noise_multiplier")}  # fmt: skip
        rows.append(
            {"kind": kind, "noise": noise, "games": len(won), "won": int(won.sum()), "low": low,
             "rate": won.mean(), "high": high, **told, "refuted": low > told["promised"]}
        )  # fmt: skip
    return pd.DataFrame(rows)
