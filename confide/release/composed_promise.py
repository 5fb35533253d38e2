"""What a training and those before it promise together.

The promise of the files' sources is composed with the events and the rates of earlier runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from confide import spending
from confide.promise_kinds import BAYESIAN_KIND, SECRET_PLAN_KIND
from confide.release import source_fold
from confide.release.source_fold import FilesPromise
from crtlib.accounting import confidentiality, guess_bounds, privacy_cost
from crtlib.accounting.accountants import PrivacyProfile
from crtlib.accounting.events import SampledGaussian
from crtlib.intervals import round_up_to_figures

FloatPair = tuple[float, float]
"""Epsilon and delta; or two rates, or a prior and a chance."""


GUESS_PRIORS = (1e-6, 1e-3)
PROFILE_EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
PROFILE_DELTAS = tuple(10.0**-k for k in range(4, 13))


def round_bound_up(value: float) -> float | str:
    """A bound as the certificate states it: rounded up to three figures."""
    return "inf" if math.isinf(value) else float(round_up_to_figures(value))


@dataclass(frozen=True)
class ComposedPromise:
    """Everything that composes into a guarantee: what the files promise, the events of this run and
    of earlier ones, for each event how many of its points one unit holds (``groups``), and the
    combined rates of all screenings."""

    files_promise: FilesPromise
    events: tuple[SampledGaussian, ...]
    groups: tuple[int, ...]
    gamma: float
    delta2: float
    accountant: str
    delta: float
    counts_masked_copies: bool = True
    """Whether several messages may become copies of each other once they are masked."""

    @property
    def has_noise_bound(self) -> bool:
        """Whether each point is protected by noise that an accountant can account for."""
        return self.files_promise.kind not in ("none", SECRET_PLAN_KIND)

    @property
    def kind(self) -> str:
        """The kind of promise; because of earlier runs it may be less than the files alone keep."""
        return (
            source_fold.classify_promise(self.gamma, self.delta2)
            if self.has_noise_bound
            else self.files_promise.kind
        )

    @property
    def privacy_profile(self) -> PrivacyProfile:
        """The privacy profile of a secret that is trained on in clear."""
        return privacy_cost.privacy_profile(
            self.events,
            self.accountant,
            neighbouring_relation=self.files_promise.neighbouring_relation,
            group=self.groups,
        )

    def missed_bound(self) -> FloatPair:
        """(epsilon, delta) for a secret that the search passed over."""
        return (
            (self.privacy_profile(self.delta), self.delta)
            if self.has_noise_bound
            else (math.inf, 1.0)
        )

    def random_secret_bound(self) -> FloatPair:
        """(epsilon, delta) for a secret drawn at random (Theorem 8.3, delta2 added in full)."""
        if self.kind != BAYESIAN_KIND:
            return self.missed_bound()
        delta = min(1.0, self.delta + self.delta2)
        return confidentiality.amplified_epsilon(
            self.privacy_profile, delta=self.delta, gamma=self.gamma
        ), delta

    def right_guess_chance(self, copies: int, trace_rate: float, public_rate: float) -> float:
        """The largest chance of guessing correctly whether a secret in ``copies`` messages was
        there or was blacked out. It is for replacement, whatever the relation of the epsilon."""
        gained = guess_bounds.guess_advantage(
            self.events, copies=copies, trace_rate=trace_rate, public_rate=public_rate,
            neighbouring_relation="replace", group=self.groups,
        )  # fmt: skip
        return guess_bounds.right_guess_rate(gained)

    def right_guesses(
        self, copies: Sequence[int], average_rates: FloatPair | None = None
    ) -> list[tuple[str, int, float]]:
        """The right guesses of a certificate, unrounded: rows of whom the guess is about, in how
        many messages, and the largest chance that it is right. A plan has none. ``average_rates``:
        the trace and the public rate averaged over the draw of the labels, if they are known
        (:func:`confide.release.certificate_parts.average_rates`).

        Guarantee:
            Where copies are hidden, no trace rate is relied on for a person, or a value, in k > 1
            messages: each of these may change a private point although none leaves a trace alone,
            since they may be copies of each other once they are masked. Test:
            ``tests/release/test_repeated_messages.py::test_messages_of_one_template_that_are_masked_together``.
        """
        if not self.has_noise_bound:
            return []
        bayes = self.kind == BAYESIAN_KIND
        gamma, delta2 = (self.gamma, self.delta2) if bayes else (1.0, self.delta2)
        rows = [("missed", 1, self.right_guess_chance(1, 1.0, 0.0))]
        if bayes:
            rows.insert(0, ("random", 1, self.right_guess_chance(1, gamma, delta2)))
            rows += (
                [("other", 1, self.right_guess_chance(1, *average_rates))] if average_rates else []
            )
        if delta2 > 0:
            rows.append(("public", 1, 1.0))
        rate_of_several = 1.0 if self.counts_masked_copies else gamma
        return rows + [
            ("user", k, self.right_guess_chance(k, gamma if k == 1 else rate_of_several, delta2))
            for k in copies
        ]

    def value_guesses(self) -> list[FloatPair]:
        """Pairs of a prior and the largest chance of naming a value. Both are chances among the
        values that the policies would treat alike
        (:func:`crtlib.accounting.guess_bounds.value_guess_rate`). Putting one in place of another
        is replacement, whatever the relation of the epsilon. A plan brings pairs of its own.

        Guarantee:
            The prior is not that among all values: whether a value is learned with noise depends on
            the value, so its chance among all of them may be smaller than the prior used here.
            Test:
            ``tests/release/test_what_is_assumed.py::test_the_chance_of_a_value_is_among_those_that_are_treated_alike``.
        """
        if plan := self.files_promise.plan:
            return list(plan.guesses)
        profile = privacy_cost.privacy_profile(
            self.events, self.accountant, neighbouring_relation="replace", group=self.groups
        )
        epsilon = profile(self.delta)
        return [
            (p, guess_bounds.value_guess_rate(epsilon, delta=self.delta, prior=p))
            for p in GUESS_PRIORS
        ]

    def guarantee(self) -> dict[str, Any]:
        """The guarantee, as the certificate has it."""
        plan, accountant, charged = self.files_promise.plan, self.accountant, 0.0
        if self.has_noise_bound:
            accountant = self.privacy_profile.answer(self.delta).accountant
            charged = float(round_up_to_figures(self.privacy_profile.charged(self.delta)))
        return {
            "kind": self.kind,
            "secret": pair_as_json(self.random_secret_bound()),
            "missed": pair_as_json(self.missed_bound()),
            "relation": self.files_promise.neighbouring_relation,
            "accountant": "KL divergence" if plan else accountant,
            "proved": True,  # the antipodal pair is the worst one: a theorem
            "error_charged": charged,
            "conjectured": None,
            "plan": plan and plan.plan,
        }

    def guesses(
        self, copies: Sequence[int], average_rates: FloatPair | None = None
    ) -> dict[str, Any]:
        """The guesses, as the certificate has them, rounded upwards."""
        return {
            "right_guess": [
                {"who": who, "copies": k, "prior": 0.5, "at_most": round_chance_up(p)}
                for who, k, p in self.right_guesses(copies, average_rates)
            ],
            "value_guess": [
                {"prior": p, "at_most": round_chance_up(q)} for p, q in self.value_guesses()
            ],
        }


def compose_promise(
    files_promise: FilesPromise,
    spent: spending.SpentBudget | None,
    *,
    delta: float,
    accountant: str = "pld",
    trials: int = 1,
    law: str | None = None,
) -> ComposedPromise:
    """The promise that this run and those before it make together.

    Args:
        files_promise: What the files of this run promise alone.
        spent: What was spent before on the same text; None: nothing is known about it.
        delta: The delta of the noise alone.
        accountant: As for :func:`crtlib.accounting.privacy_cost.epsilon`.
        trials: Trainings from which this model was chosen; each is charged like this one.
        law: How the labels behind its rates were drawn (:func:`confide.odometer_lines.draw_law`).
    """
    spent_before = spent or spending.SpentBudget(())
    events = tuple(replace(e, steps=e.steps * trials) for e in files_promise.events)
    gamma, delta2 = spent_before.rates(
        files_promise.screening,
        files_promise.gamma,
        files_promise.delta2,
        law,
        unit=files_promise.unit,
        holds=files_promise.holds,
    )
    groups = (1,) * len(events) + spent_before.groups(files_promise.unit, files_promise.holds)
    exact = accountant if max(groups, default=1) == 1 else "pld"
    return ComposedPromise(
        files_promise,
        events=events + spent_before.events,
        groups=groups,
        gamma=gamma,
        delta2=delta2,
        accountant=exact,
        delta=delta,
        counts_masked_copies=files_promise.masks_copies
        or any(e.counts_masked_copies for e in spent_before.private),
    )


def round_chance_up(value: float) -> float:
    return min(1.0, float(round_up_to_figures(value)))


def pair_as_json(pair: FloatPair) -> dict[str, Any]:
    return {"epsilon": round_bound_up(pair[0]), "delta": round_chance_up(pair[1])}


def tabulate_privacy_profile(promise: ComposedPromise) -> dict[str, Any]:
    """What the engineer's page shows beyond the certificate: delta at some epsilons and epsilon at
    some deltas, under both relations, and the trade-off curves (type I, type II) of a secret."""
    curves = {
        relation: privacy_cost.privacy_profile(
            promise.events, "pld", neighbouring_relation=relation, group=promise.groups
        )
        for relation in ("add_or_remove", "replace")
    }
    grid = [i / 80 for i in range(81)]
    rates = {"missed": (1.0, 0.0)}
    rates |= {"secret": (promise.gamma, promise.delta2)} if promise.kind == BAYESIAN_KIND else {}
    lines = {
        name: guess_bounds.tradeoff_curve(
            promise.events, grid, neighbouring_relation="replace", group=promise.groups,
            trace_rate=gamma, public_rate=delta2,
        ).tolist()
        for name, (gamma, delta2) in rates.items()
    }  # fmt: skip
    return {
        "delta_at": [
            {"epsilon": e} | {r: c.delta(e) for r, c in curves.items()} for e in PROFILE_EPSILONS
        ],
        "epsilon_at": [{"delta": d} | {r: c(d) for r, c in curves.items()} for d in PROFILE_DELTAS],
        "curves": {name: list(zip(grid, line, strict=True)) for name, line in lines.items()},
    }
