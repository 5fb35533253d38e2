"""Training methods as values: what each one reads, the phases it runs, and what it promises.

>>> constants = PublicConstants(epochs=2, batch_size=16, learning_rate=1e-2)
>>> [type(phase).__name__ for phase in method_by_name("sgd").phases(constants)]
['PublicPhase', 'PublicPhase']
>>> [method.label for method in METHODS.values() if method.reads_raw]
['DP-SGD', 'user-level DP-SGD', 'JFT', 'S-DP', 'LP-weighted', 'Greedy']
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from crtlib.accounting import confidentiality, privacy_cost, selective_privacy
from crtlib.accounting.events import SampledGaussians
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.accounting.secret_protection import ProtectionPlan
from crtlib.checks import check_choice
from crtlib.plugins import load_plugins
from crtlib.training.phases import Phase, PublicPhase
from crtlib.training.schedules import (
    DpSgdConstants,
    crt_phases,
    dpsgd_phases,
    epoch_numbers,
    jft_phases,
    sgd_phases,
    weighted_phases,
)
from crtlib.training.selective import SelectivePhase

_POLICY_SETTINGS = {"gamma", "per", "policy"}
_DEDUP_SETTINGS = {"dedup", "duplicates"}
_PUBLIC_SETTINGS = {"batch_size", "learning_rate"}
_PRIVATE_SETTINGS = {"private_learning_rate", "sampling_probability", "clip_norm", "normaliser"}
_BUDGET_SETTINGS = {"epsilon", "delta", "accountant", "neighbouring_relation"}
_SEARCHED_SETTINGS = ("learning_rate", "batch_size")
_SEARCHED_PRIVATE_SETTINGS = ("private_learning_rate", "sampling_probability")
SELECTIVE_NOISE_MULTIPLIER = 0.7
"""The noise multiplier of S-DP, taken from the dialogue results that its authors released. With a
policy that misses secrets there is no epsilon to calibrate it to."""


@dataclass(frozen=True, kw_only=True)
class PublicConstants:
    """The public constants of a run; each method reads some of them.

    ``plan`` (:mod:`crtlib.accounting.secret_protection`) is made from who holds which secret;
    ``has_public`` is False if screening lets no point pass.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    pub_passes: int = 1
    private_learning_rate: float = 0.0
    sampling_probability: float = 0.0
    noise_multiplier: float = 0.0
    clip_norm: float = 1.0
    normaliser: float = 1.0
    private_segments: int = 0
    plan: ProtectionPlan | None = None
    has_public: bool = True

    @classmethod
    def of(cls, values: Any, **others: Any) -> PublicConstants:
        """Return the constants that ``values``, a study or a plan, has as attributes, updated with
        ``others``."""
        from_attributes = {
            f.name: getattr(values, f.name) for f in fields(cls) if hasattr(values, f.name)
        }
        return cls(**from_attributes | others)

    @property
    def private(self) -> DpSgdConstants:
        """The constants of DP-SGD."""
        return DpSgdConstants(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            normaliser=self.normaliser,
            learning_rate=self.private_learning_rate,
        )


@dataclass(frozen=True, kw_only=True)
class GuaranteeTerms:
    """The terms of a promise, apart from the events: the trace and public rates of the policies,
    the delta of the noise alone, the unit, the accounting, and what else is treated as public."""

    gamma: BoundedRate
    delta2: BoundedRate
    noise_delta: float
    unit: str
    accountant: str
    neighbouring_relation: str
    public: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train: what it reads, its phases, and what it promises."""

    name: str
    label: str
    """Its name in tables and figures."""
    phases: Callable[[PublicConstants], list[Phase]]
    promise: Callable[[SampledGaussians, GuaranteeTerms], Guarantee | None]
    reads: frozenset[str]
    """The settings that change what it does, among those that not every method reads."""
    searched: tuple[str, ...]
    """The settings that a search draws for it."""
    noise: float | Literal["calibrated"] = 0.0
    """A fixed noise multiplier, 0 for none, or "calibrated" from epsilon and delta."""
    private: bool = False
    """Whether it trains on the part "private" with clipping and noise."""
    reads_raw: bool = False
    """Whether it reads text unredacted."""
    reads_redacted: bool = False
    """Whether, besides ``reads_raw``, it reads the same points redacted, as the part "public"."""
    by_user: bool = False
    """Whether all points of a person are one unit, drawn and clipped together."""
    flags_tokens: bool = False
    """Whether it is told which tokens are private."""
    weighs: bool = False
    """Whether each point has a sampling probability of its own, from a plan."""
    solver: str = "auto"
    """The solver that makes that plan
    (:func:`crtlib.accounting.secret_weights.maximise_weights`)."""
    trains: bool = True
    """False for the public model, which is used as it is."""
    deduplicates: bool = False
    """Whether repeated messages are masked or left out."""
    baseline: bool = True
    """False for an ablation of another method."""
    models: tuple[str, ...] | None = None
    """The kinds of model that it can train; None: all."""


METHODS: dict[str, Method] = {}
"""The registered methods by name, in the order in which they are shown."""


def register_method(method: Method) -> Method:
    """Register a method for studies, sweeps, figures and the command line, and return it."""
    if METHODS.get(method.name, method) != method:
        raise ValueError(f"name={method.name!r}: another method has this name")
    METHODS[method.name] = method
    return method


def method_by_name(name: str) -> Method:
    """Return the method with this name. Other packages add methods by entry points in the group
    ``crtlib.methods``, each of which names a module that registers its own."""
    check_choice("method", name, tuple(all_methods()))
    return METHODS[name]


def all_methods() -> dict[str, Method]:
    """All methods by name, including those of other packages."""
    _load_plugin_methods()
    return METHODS


@functools.cache
def _load_plugin_methods() -> None:
    load_plugins("crtlib.methods")


def _promise_nothing(events: SampledGaussians, terms: GuaranteeTerms) -> None:
    return None


def _promise_per_point(events: SampledGaussians, terms: GuaranteeTerms) -> Guarantee:
    """Differential privacy for one data point."""
    accountant_bound = privacy_cost.epsilon_and_accountant(
        events,
        delta=terms.noise_delta,
        accountant=terms.accountant,
        neighbouring_relation=terms.neighbouring_relation,
    )
    return Guarantee(
        accountant_bound.value,
        delta=terms.noise_delta,
        unit=f"one {terms.unit}",
        neighbouring_relation=terms.neighbouring_relation,
        accountant=accountant_bound.accountant,
        public=terms.public,
    )


def _promise_per_user(events: SampledGaussians, terms: GuaranteeTerms) -> Guarantee:
    """Differential privacy for one person: everything they say, however much."""
    return replace(_promise_per_point(events, terms), unit="one user, with all their points")


def _promise_redacted_spans(events: SampledGaussians, terms: GuaranteeTerms) -> Guarantee:
    """Just Fine-tune Twice: what the policy finds is read only with noise, but what it misses is
    also read without. So with a policy that may miss there is no finite epsilon, as for S-DP."""
    guarantee = _promise_per_point(events, terms)
    return replace(
        guarantee,
        epsilon=guarantee.epsilon if terms.gamma.bound == 0 else math.inf,
        unit=f"the redacted spans of one {terms.unit}",
        kind="selective differential privacy",
        gamma=terms.gamma,
        public=f"{terms.public}, and the redacted text of every {terms.unit}",
    )


def _jft_from_constants(c: PublicConstants) -> list[Phase]:
    public = PublicPhase(1, "public", 1, c.batch_size, c.learning_rate)
    return jft_phases(epochs=c.epochs, public=public, private=c.private)


def _selective_from_constants(constants: PublicConstants) -> list[Phase]:
    return [
        SelectivePhase(
            epoch=epoch,
            batch_size=constants.batch_size,
            private_segments=constants.private_segments,
            noise_multiplier=constants.noise_multiplier,
            clip_norm=constants.clip_norm,
            hidden_clip=constants.clip_norm,
            public_learning_rate=constants.learning_rate,
            private_learning_rate=constants.private_learning_rate,
        )
        for epoch in epoch_numbers(constants.epochs)
    ]


def _lp_weighted_from_constants(c: PublicConstants) -> list[Phase]:
    if c.plan is None:
        raise ValueError("plan=None: LP-weighted training needs a plan of who holds which secret")
    return weighted_phases(
        c.plan, epochs=c.epochs, clip_norm=c.clip_norm, learning_rate=c.private_learning_rate
    )


SGD = register_method(
    Method(
        name="sgd",
        label="non-private",
        phases=lambda c: sgd_phases(
            epochs=c.epochs, batch_size=c.batch_size, learning_rate=c.learning_rate
        ),
        promise=_promise_nothing,
        reads=frozenset(_POLICY_SETTINGS | _PUBLIC_SETTINGS),
        searched=_SEARCHED_SETTINGS,
    )
)
DEDUP = register_method(
    replace(
        SGD,
        name="dedup",
        label="non-private, deduplicated",
        reads=SGD.reads | _DEDUP_SETTINGS,
        deduplicates=True,
        baseline=False,
    )
)
DPSGD = register_method(
    Method(
        name="dpsgd",
        label="DP-SGD",
        phases=lambda c: dpsgd_phases(epochs=c.epochs, private=c.private),
        promise=_promise_per_point,
        reads=frozenset(_PRIVATE_SETTINGS | _BUDGET_SETTINGS),
        searched=_SEARCHED_PRIVATE_SETTINGS,
        noise="calibrated",
        private=True,
        reads_raw=True,
    )
)
USER_DPSGD = register_method(
    replace(
        DPSGD, name="user_dpsgd", label="user-level DP-SGD", promise=_promise_per_user, by_user=True
    )
)
JFT = register_method(
    replace(
        DPSGD,
        name="jft",
        label="JFT",
        phases=_jft_from_constants,
        promise=_promise_redacted_spans,
        reads=frozenset(_POLICY_SETTINGS | _PUBLIC_SETTINGS | _PRIVATE_SETTINGS | _BUDGET_SETTINGS),
        searched=(*_SEARCHED_SETTINGS, *_SEARCHED_PRIVATE_SETTINGS),
        reads_redacted=True,
    )
)
SELECTIVE = register_method(
    Method(
        name="selective",
        label="S-DP",
        phases=_selective_from_constants,
        promise=lambda events, terms: selective_privacy.selective_guarantee(
            events,
            gamma=terms.gamma,
            delta=terms.noise_delta,
            unit=terms.unit,
            neighbouring_relation="replace",
        ),
        reads=frozenset(
            _POLICY_SETTINGS | _PUBLIC_SETTINGS | {"private_learning_rate", "clip_norm", "delta"}
        ),
        searched=(*_SEARCHED_SETTINGS, "private_learning_rate"),
        noise=SELECTIVE_NOISE_MULTIPLIER,
        private=True,
        reads_raw=True,
        flags_tokens=True,
        models=("lstm",),  # it passes on a noisy hidden state
    )
)
CRT = register_method(
    Method(
        name="crt",
        label="CRT",
        phases=lambda c: crt_phases(
            epochs=c.epochs,
            pub_passes=c.pub_passes,
            public_batch_size=c.batch_size,
            public_learning_rate=c.learning_rate,
            private=c.private,
            has_public=c.has_public,
        ),
        # Bayesian confidentiality for one random secret (CRT, Theorem 8.3)
        promise=lambda events, terms: confidentiality.crt_guarantee(events, **vars(terms)),
        reads=frozenset(
            _POLICY_SETTINGS
            | _DEDUP_SETTINGS
            | _PUBLIC_SETTINGS
            | _PRIVATE_SETTINGS
            | _BUDGET_SETTINGS
            | {"pub_passes"}
        ),
        searched=(*_SEARCHED_SETTINGS, "pub_passes", *_SEARCHED_PRIVATE_SETTINGS),
        noise="calibrated",
        private=True,
        deduplicates=True,
    )
)
CRT_WITHOUT_NOISE = register_method(
    replace(
        CRT,
        name="crt_sigma0",
        label="CRT, σ = 0",
        promise=_promise_nothing,
        reads=CRT.reads - _BUDGET_SETTINGS,
        noise=0.0,
        baseline=False,
    )
)

LP_WEIGHTED = register_method(
    Method(
        name="lp_weighted",
        label="LP-weighted",
        phases=_lp_weighted_from_constants,
        # The promise for each secret comes from the plan: crtlib.accounting.secret_protection
        promise=_promise_nothing,
        reads=frozenset(
            {"private_learning_rate", "sampling_probability", "clip_norm", "prior", "posterior"}
        ),
        searched=_SEARCHED_PRIVATE_SETTINGS,
        private=True,
        reads_raw=True,
        weighs=True,
    )
)
GREEDY = register_method(
    replace(
        LP_WEIGHTED,
        name="greedy",
        label="Greedy",
        solver="greedy",
        baseline=False,
    )
)
"""The baseline for the LP: each example is taken in full or not at all, as long as no secret gets
too many."""

PUBLIC_MODEL = register_method(
    Method(
        name="public",
        label="public model",
        phases=lambda constants: [],
        promise=_promise_nothing,
        reads=frozenset(),
        searched=(),
        trains=False,
    )
)
