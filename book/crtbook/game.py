"""A reconstruction game: is a secret named no more often than was promised?

>>> game = GameStudy(seed=0, candidates=4, copies=2, others=8, steps=2, batch_size=4.0, noise=0.0)
>>> {name: number for name, _, _, number in game.run(Desk())}  # no noise, no promise kept
{'success': 1.0, 'promised': 0.5, 'accounted': 1.0, 'noise_multiplier': 0.0}
"""

import functools
import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pandas import DataFrame
from scipy import sparse
from torch import nn

from crtbook.study import Desk, Row, Study, make_rows
from crtbook.tight import account_secrets, noise_multiplier
from crtlib.accounting.secret_protection import ProtectionPlan, plan_protection
from crtlib.intervals import clopper_pearson
from crtlib.models.construction import build_model
from crtlib.models.scoring import token_logprobs
from crtlib.models.specs import ModelSpec
from crtlib.training import schedules
from crtlib.training.loop import train_model
from crtlib.values import (
    NonNegativeFloat,
    OpenProbability,
    PositiveFloat,
    PositiveInt,
    checked_dataclass,
)

WORDS = 64  # tokens that are not candidates


@checked_dataclass
class GameStudy(Study):
    """A secret, drawn uniformly from ``candidates``, is in ``copies`` examples among ``others``. A
    model is trained. The attacker, who knows everything but the secret and the randomness, names
    the candidate whose likelihood training has raised most.

    With ``learns="bias"`` only the output bias of the model learns. Then each candidate's gradient
    has a direction of its own, and naming the most raised one is nearly the best possible attack.
    With "lstm" all of a small language model learns. The added noise is ``noise`` times what the
    promise ``posterior`` needs: 1 as promised, 0 none, 0.5 the fault that an audit must notice.
    """

    kind: ClassVar[str] = "game"
    LEARNS: ClassVar[tuple[str, str]] = ("bias", "lstm")

    learns: Literal["bias", "lstm"] = "bias"
    candidates: PositiveInt = 50
    copies: PositiveInt = 4
    others: PositiveInt = 60
    steps: PositiveInt = 4
    batch_size: PositiveFloat = 48.0
    posterior: OpenProbability = 0.5
    noise: NonNegativeFloat = 1.0
    clip_norm: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 0.5

    def cost(self) -> float:
        """CPU seconds."""
        return 0.03 + 2e-5 * self.steps * self.batch_size + 1e-4 * self.candidates * self.copies

    def run(self, desk: Desk) -> list[Row]:
        """Return whether the secret was named, what was promised, and what is accounted for the
        steps that ran (the smaller of the bounds by KL and by the blow-up function)."""
        promise = replace(self, seed=0, noise=1.0)
        plan = _plan_promise(promise)
        (phase,) = schedules.weighted_phases(
            replace(plan, noise_multiplier=plan.noise_multiplier * self.noise),
            epochs=1,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
        )
        rng = np.random.default_rng([self.seed, 11])
        secret = int(rng.integers(self.candidates))
        other_texts = rng.integers(self.candidates, self.candidates + WORDS, size=(self.others, 2))
        texts = [[c, secret] for c in self.carriers] + other_texts.tolist()
        shape = ModelSpec("lstm", self.candidates + WORDS, embedding=8, hidden=8)
        model = build_model(shape, self.seed).to(desk.device)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.learns == "lstm" or name == "head.bias")
        scores_before = self.scores(model)
        run = train_model(model, [phase], {"private": texts}, seed=self.seed, optimizer="sgd")
        guess = int((self.scores(model) - scores_before).argmax())
        (event,) = run.events
        sigma = event.noise_multiplier
        accounted = _account_steps(promise, sigma, event.steps)
        metrics = {"success": guess == secret, "promised": self.posterior, "accounted": accounted}
        return make_rows(metrics | {"noise_multiplier": sigma})

    @property
    def carriers(self) -> range:
        """The tokens after which a candidate comes."""
        return range(self.candidates, self.candidates + self.copies)

    def scores(self, model: nn.Module) -> np.ndarray:
        """The log-likelihood of each candidate in all its places, ``(candidates,)``."""
        sequences = [[c, k] for k in range(self.candidates) for c in self.carriers]
        logprobs = np.concatenate(token_logprobs(model, sequences))
        sums: np.ndarray = logprobs.reshape(self.candidates, self.copies).sum(1)
        return sums


@functools.lru_cache(maxsize=16)
def _plan_promise(game: GameStudy) -> ProtectionPlan:
    """A plan in which all examples are equally likely and the noise is least by the tight bound."""
    holders = (np.arange(game.copies + game.others) < game.copies)[None].astype(float)
    incidence = sparse.csr_array(holders)
    promise = 1 / game.candidates, game.posterior
    plan = plan_protection(
        incidence,
        *promise,
        steps=game.steps,
        batch_size=game.batch_size,
        scale=math.inf,
        neighbouring_relation="reference",
    )
    sigma = noise_multiplier(
        incidence,
        plan.probabilities,
        *promise,
        steps=game.steps,
        accounting="tight",
        neighbouring_relation="reference",
    )
    return replace(plan, noise_multiplier=sigma)


@functools.lru_cache(maxsize=64)
def _account_steps(game: GameStudy, noise_multiplier: float, steps: int) -> float:
    if noise_multiplier == 0:
        return 1.0
    realised_plan = replace(_plan_promise(game), noise_multiplier=noise_multiplier, steps=steps)
    return float(account_secrets(realised_plan, [0])[0].posterior)


def summarise_games(table: DataFrame) -> DataFrame:
    """One row for each (learns, noise): games, successes, their Clopper-Pearson interval, the
    promise, and whether the interval refutes it, as it should where noise is missing.
    """
    rows = []
    for (learns, noise), cell in table.groupby(["learns", "noise"]):
        won = cell[cell.metric == "success"].value
        low, high = clopper_pearson(int(won.sum()), len(won))
        constants = {name: cell[cell.metric == name].value.iloc[0]
                for name in ("promised", "accounted", "noise_multiplier")}  # fmt: skip
        rows.append(
            {"learns": learns, "noise": noise, "games": len(won), "won": int(won.sum()), "low": low,
             "rate": won.mean(), "high": high, **constants, "refuted": low > constants["promised"]}
        )  # fmt: skip
    return DataFrame(rows)
