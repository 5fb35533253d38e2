"""Methods of training: the schedules that they make of public constants, and what they promise.

Schedules: lists of phases, made from public constants; nothing here sees data.

>>> schedule = crt(
...     epochs=2, pub_passes=1, public_batch_size=16, public_learning_rate=1e-2,
...     private=Private(sampling_probability=0.1, noise_multiplier=1.0, clip_norm=0.1,
...                     normaliser=256, learning_rate=5e-3),
... )
>>> [(type(p).__name__, p.part, p.epoch) for p in schedule]
... # doctest: +NORMALIZE_WHITESPACE
[('PublicPhase', 'public', 1), ('PrivatePhase', 'private', 1),
 ('PublicPhase', 'public', 2), ('PrivatePhase', 'private', 2)]
>>> events(schedule)
SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20)

A method is a value: what it reads, the phases it makes of public constants, what it promises.

>>> constants = Constants(epochs=2, batch_size=16, learning_rate=1e-2)
>>> [type(phase).__name__ for phase in by_name("sgd").phases(constants)]
['PublicPhase', 'PublicPhase']
>>> [method.label for method in METHODS.values() if method.reads_raw]
['DP-SGD', 'user-level DP-SGD', 'JFT', 'S-DP', 'LP-weighted', 'Greedy']
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crtlib.accounting import guarantees, ledger
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.accounting.ledger import Events, SampledGaussian
from crtlib.checks import check, check_choice
from crtlib.training.phases import Phase, PrivatePhase, PublicPhase, SelectivePhase

if TYPE_CHECKING:
    from crtlib.accounting.secrets import Plan


@dataclass(frozen=True, kw_only=True)
class Private:
    """The constants of DP-SGD that every epoch shares."""

    sampling_probability: float
    noise_multiplier: float
    clip_norm: float
    normaliser: float
    learning_rate: float

    @property
    def steps(self) -> int:
        """Steps of one epoch: as many as visit each point once in expectation (CRT, note 3)."""
        return max(1, round(1 / self.sampling_probability))

    def phase(self, epoch: int) -> PrivatePhase:
        """One epoch of DP-SGD."""
        return PrivatePhase(epoch=epoch, steps=self.steps, **vars(self))


def sgd(*, epochs: int, batch_size: int, learning_rate: float) -> list[Phase]:
    """Ordinary training on all points: the "non-private with mask" baseline when redacted."""
    return [PublicPhase(e, "all", 1, batch_size, learning_rate) for e in numbered(epochs)]


def dpsgd(*, epochs: int, private: Private) -> list[Phase]:
    """DP-SGD on every point (all of them in the part "private")."""
    return [private.phase(e) for e in numbered(epochs)]


def crt(
    *,
    epochs: int,
    pub_passes: int,
    public_batch_size: int,
    public_learning_rate: float,
    private: Private,
    has_public: bool = True,
) -> list[Phase]:
    """Algorithm 1, lines 5 to 8: an epoch of SGD on D_pub, then one of DP-SGD on D_pri.

    ``pub_passes`` is the number of passes over D_pub in each epoch (literal Algorithm 1: 1).
    Deduplication leaves few public points (61 sentences on CustomerSim), so one pass is a handful
    of steps; more cost no confidentiality. ``has_public=False`` where D_pub is empty: CRT is then
    DP-SGD on redacted text, as the paper says of ``pi_c = 1``.
    """
    public = PublicPhase(1, "public", pub_passes, public_batch_size, public_learning_rate)
    phases: list[Phase] = []
    for e in numbered(epochs):
        phases += [replace(public, epoch=e)] if has_public else []
        phases.append(private.phase(e))
    return phases


def jft(*, epochs: int, public: PublicPhase, private: Private) -> list[Phase]:
    """Just Fine-tune Twice (Shi et al., EMNLP 2022): ``epochs`` of ordinary training on redacted
    text (the part "public"), then as many of DP-SGD on the same points in clear."""
    first: list[Phase] = [replace(public, epoch=e) for e in numbered(epochs)]
    return first + [private.phase(epochs + e) for e in numbered(epochs)]


def weighted(plan: Plan, *, epochs: int, clip_norm: float, learning_rate: float) -> list[Phase]:
    """The steps of a plan of :mod:`crtlib.accounting.secrets` (Hush!) in ``epochs`` phases of as
    equal length as can be, divided by the plan's batch size.

    Raises ValueError for fewer than one epoch, or more than the plan has steps.
    """
    check("epochs", epochs, 1 <= epochs <= plan.steps, f"in 1 to {plan.steps}, the plan's steps")
    ends = np.linspace(0, plan.steps, epochs + 1).round().astype(int)
    return [
        PrivatePhase(
            epoch=k + 1,
            sampling_probability=tuple(plan.probabilities.tolist()),
            steps=int(steps),
            noise_multiplier=plan.noise_multiplier,
            clip_norm=clip_norm,
            normaliser=plan.batch_size,
            learning_rate=learning_rate,
        )
        for k, steps in enumerate(np.diff(ends))
    ]


def events(phases: Sequence[Phase]) -> SampledGaussian | None:
    """The one ledger entry of a schedule whose private phases share their constants, or None."""
    made = [event for event in (p.event() for p in phases) if event is not None]
    if not made:
        return None
    if len({(e.sampling_probability, e.noise_multiplier) for e in made}) > 1:  # type: ignore[union-attr]
        raise ValueError("phases: private phases differ in sampling probability or noise")
    return replace(made[0], steps=sum(e.steps for e in made))  # type: ignore[return-value]


def numbered(epochs: int) -> range:
    """The numbers of so many epochs, from 1; raises ValueError for none."""
    if epochs < 1:
        raise ValueError(f"epochs={epochs}: must be at least 1")
    return range(1, epochs + 1)


if TYPE_CHECKING:  # it solves linear programs, which few trainings ask for
    from crtlib.accounting.secrets import Plan


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The public constants of a run; each method reads some of them.

    ``plan`` is one of :mod:`crtlib.accounting.secrets`, of who holds which secret; ``has_public``
    is False where screening lets no point pass.
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
    plan: Plan | None = None
    has_public: bool = True

    @classmethod
    def of(cls, values: Any, **others: Any) -> Constants:
        """Those that a study or a plan has among its fields, and ``others``."""
        own = {f.name: getattr(values, f.name) for f in fields(cls) if hasattr(values, f.name)}
        return cls(**own | others)

    @property
    def private(self) -> Private:
        """Those of DP-SGD."""
        return Private(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            normaliser=self.normaliser,
            learning_rate=self.private_learning_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a promise is made of, beside the events: the policies' miss rates, the total delta, the
    unit, the accounting, and what else is treated as public."""

    gamma: MissRate
    delta2: MissRate
    delta: float
    unit: str
    accountant: str
    neighbouring_relation: str
    public: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train, as a value: what it reads, its phases, and what it promises.

    ``reads`` names the settings that change what it does, of those that some methods do not read;
    ``searched`` those that a search draws for it. ``noise``: "calibrated" from epsilon and delta,
    or a fixed noise multiplier, 0 for none. ``reads_redacted``: of what ``reads_raw``, the part
    "public" is the same points redacted. ``by_user``: all points of a person are one unit, drawn
    and clipped together. ``models``: the kinds it can train, None for all.
    ``weighs``: each point has a sampling probability of its own, from a plan that ``solver`` makes
    (:func:`crtlib.accounting.secrets.solve`); ``baseline`` is False
    for an ablation of another method; ``trains`` is False for the public model as it is.
    """

    name: str
    label: str
    phases: Callable[[Constants], list[Phase]]
    promise: Callable[[Events, Terms], Guarantee | None]
    reads: frozenset[str]
    searched: tuple[str, ...]
    noise: float | Literal["calibrated"] = 0.0
    private: bool = False
    reads_raw: bool = False
    reads_redacted: bool = False
    by_user: bool = False
    flags_tokens: bool = False
    weighs: bool = False
    solver: str = "auto"
    trains: bool = True
    deduplicates: bool = False
    baseline: bool = True
    models: tuple[str, ...] | None = None


METHODS: dict[str, Method] = {}
"""The methods that are known, by name, in the order in which they are shown."""


def register(method: Method) -> Method:
    """Make a method known to studies, sweeps, figures and the command line; returns it."""
    if METHODS.get(method.name, method) != method:
        raise ValueError(f"name={method.name!r}: another method has this name")
    METHODS[method.name] = method
    return method


def by_name(name: str) -> Method:
    """The method of this name; those of other packages come by the entry points
    ``crtlib.methods``, each a module that registers its own."""
    check_choice("method", name, tuple(known()))
    return METHODS[name]


def known() -> dict[str, Method]:
    """All methods by name, those of other packages too."""
    _load_others()
    return METHODS


@functools.cache
def _load_others() -> None:
    for entry in metadata.entry_points(group="crtlib.methods"):
        entry.load()


def _none(events: Events, terms: Terms) -> None:
    return None


def _of_a_point(events: Events, terms: Terms) -> Guarantee:
    """Differential privacy of one data point."""
    relation = terms.neighbouring_relation
    return Guarantee(
        ledger.epsilon(
            events,
            delta=terms.delta,
            accountant=terms.accountant,
            neighbouring_relation=relation,
        ),
        delta=terms.delta,
        unit=f"one {terms.unit}",
        neighbours=relation,
        accountant=terms.accountant,
        public=terms.public,
    )


def _of_a_user(events: Events, terms: Terms) -> Guarantee:
    """Differential privacy of a person: all that he says, however much."""
    return replace(_of_a_point(events, terms), unit="one user, with all his points")


def _of_what_is_redacted(events: Events, terms: Terms) -> Guarantee:
    """Just Fine-tune Twice: what the policy finds is read with noise alone; what it misses, also
    without. So with a policy that may miss there is no epsilon, as for S-DP."""
    spent = _of_a_point(events, terms)
    return replace(
        spent,
        epsilon=spent.epsilon if terms.gamma.bound == 0 else math.inf,
        unit=f"the redacted spans of one {terms.unit}",
        kind="selective differential privacy",
        gamma=terms.gamma,
        public=f"{terms.public}, and the redacted text of every {terms.unit}",
    )


def _jft(c: Constants) -> list[Phase]:
    public = PublicPhase(1, "public", 1, c.batch_size, c.learning_rate)
    return jft(epochs=c.epochs, public=public, private=c.private)


def _selective(c: Constants) -> list[Phase]:
    return [
        SelectivePhase(
            epoch=epoch,
            batch_size=c.batch_size,
            private_segments=c.private_segments,
            noise_multiplier=c.noise_multiplier,
            clip_norm=c.clip_norm,
            hidden_clip=c.clip_norm,
            public_learning_rate=c.learning_rate,
            private_learning_rate=c.private_learning_rate,
        )
        for epoch in numbered(c.epochs)
    ]


def _lp_weighted(c: Constants) -> list[Phase]:
    if c.plan is None:
        raise ValueError("plan=None: LP-weighted training needs a plan of who holds which secret")
    return weighted(
        c.plan, epochs=c.epochs, clip_norm=c.clip_norm, learning_rate=c.private_learning_rate
    )


_POLICY = {"gamma", "per", "policy"}
_DEDUP = {"dedup", "duplicates"}
_PUBLIC = {"batch_size", "learning_rate"}
_PRIVATE = {"private_learning_rate", "sampling_probability", "clip_norm", "normaliser"}
_BUDGET = {"epsilon", "delta", "accountant", "neighbouring_relation"}
_SEARCHED = ("learning_rate", "batch_size")
_SEARCHED_PRIVATE = ("private_learning_rate", "sampling_probability")

SELECTIVE_NOISE = 0.7
"""Noise multiplier of S-DP: that of the dialogue results its authors released. With a policy that
misses there is no epsilon that one could calibrate it to."""

SGD = register(
    Method(
        name="sgd",
        label="non-private",
        phases=lambda c: sgd(
            epochs=c.epochs, batch_size=c.batch_size, learning_rate=c.learning_rate
        ),
        promise=_none,
        reads=frozenset(_POLICY | _PUBLIC),
        searched=_SEARCHED,
    )
)
DEDUP = register(
    replace(
        SGD,
        name="dedup",
        label="non-private, deduplicated",
        reads=SGD.reads | _DEDUP,
        deduplicates=True,
        baseline=False,
    )
)
DPSGD = register(
    Method(
        name="dpsgd",
        label="DP-SGD",
        phases=lambda c: dpsgd(epochs=c.epochs, private=c.private),
        promise=_of_a_point,
        reads=frozenset(_PRIVATE | _BUDGET),
        searched=_SEARCHED_PRIVATE,
        noise="calibrated",
        private=True,
        reads_raw=True,
    )
)
USER_DPSGD = register(
    replace(DPSGD, name="user_dpsgd", label="user-level DP-SGD", promise=_of_a_user, by_user=True)
)
JFT = register(
    replace(
        DPSGD,
        name="jft",
        label="JFT",
        phases=_jft,
        promise=_of_what_is_redacted,
        reads=frozenset(_POLICY | _PUBLIC | _PRIVATE | _BUDGET),
        searched=(*_SEARCHED, *_SEARCHED_PRIVATE),
        reads_redacted=True,
    )
)
SELECTIVE = register(
    Method(
        name="selective",
        label="S-DP",
        phases=_selective,
        promise=lambda events, terms: guarantees.guarantee(
            events, gamma=terms.gamma, delta=terms.delta, unit=terms.unit
        ),
        reads=frozenset(_POLICY | _PUBLIC | {"private_learning_rate", "clip_norm", "delta"}),
        searched=(*_SEARCHED, "private_learning_rate"),
        noise=SELECTIVE_NOISE,
        private=True,
        reads_raw=True,
        flags_tokens=True,
        models=("lstm",),  # it hands a noisy hidden state on
    )
)
CRT = register(
    Method(
        name="crt",
        label="CRT",
        phases=lambda c: crt(
            epochs=c.epochs,
            pub_passes=c.pub_passes,
            public_batch_size=c.batch_size,
            public_learning_rate=c.learning_rate,
            private=c.private,
            has_public=c.has_public,
        ),
        # Bayesian confidentiality of one random secret (CRT, Theorem 8.3)
        promise=lambda events, terms: guarantees.crt_guarantee(events, **vars(terms)),
        reads=frozenset(_POLICY | _DEDUP | _PUBLIC | _PRIVATE | _BUDGET | {"pub_passes"}),
        searched=(*_SEARCHED, "pub_passes", *_SEARCHED_PRIVATE),
        noise="calibrated",
        private=True,
        deduplicates=True,
    )
)
CRT_WITHOUT_NOISE = register(
    replace(
        CRT,
        name="crt_sigma0",
        label="CRT, σ = 0",
        promise=_none,
        reads=CRT.reads - _BUDGET,
        noise=0.0,
        baseline=False,
    )
)

LP_WEIGHTED = register(
    Method(
        name="lp_weighted",
        label="LP-weighted",
        phases=_lp_weighted,
        promise=_none,  # that of each secret is its plan's: crtlib.accounting.secrets
        reads=frozenset(
            {"private_learning_rate", "sampling_probability", "clip_norm", "prior", "posterior"}
        ),
        searched=_SEARCHED_PRIVATE,
        private=True,
        reads_raw=True,
        weighs=True,
    )
)
GREEDY = register(
    replace(
        LP_WEIGHTED,
        name="greedy",
        label="Greedy",
        solver="greedy",
        baseline=False,
    )
)
"""The baseline of the LP: each example whole or not at all, taken while no secret has too many."""

PUBLIC = register(
    Method(
        name="public",
        label="public model",
        phases=lambda constants: [],
        promise=_none,
        reads=frozenset(),
        searched=(),
        trains=False,
    )
)
