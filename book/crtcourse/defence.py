"""The defence lab: given a corpus and a budget, you hand in a plan, and the grader trains it.

>>> empty = make_empty_form()
>>> sorted(empty["plan"])[:4], empty["claim"]["unit"]
(['batch_size', 'clip_norm', 'conservative', 'dedup'], '')
>>> parse_plan(empty["plan"] | {"epochs": 500})  # doctest: +ELLIPSIS
Traceback (most recent call last):
crtlib.checks.ParameterError: epochs=500: with pub_passes=1 it reads the text 1000 times, ...

What is handed in is data: a plan, patterns, and a claim. The grader trains the plan on the text of
another class, so fitted weights, patterns for known values and invented numbers earn nothing.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
import regex
from pydantic import Field

from crtcourse import labs
from crtcourse.labs import Marks, clip, read_number
from crtlib.accounting import privacy_cost
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.attacks import exposure, membership, membership_measures
from crtlib.screening import policy_changes, regex_policies
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import PolicyRates
from crtlib.screening.rates import measure_rates
from crtlib.screening.redaction import FlaggedSpans, redact
from crtlib.studies import study_run
from crtlib.text.records import Point, Secret
from crtlib.training import methods
from crtlib.training.methods import GuaranteeTerms, PublicConstants
from crtlib.values import PositiveInt, checked_dataclass

DIALOGUES = 120
READINGS = 80
"""The budget: how often the text may be read, including passes over the public part."""
DELTA = 8e-5
LEAST_DELTA = 0.06
"""A guarantee whose total delta is above this promises nothing to one customer in sixteen."""
WORST_PPL, BEST_PPL = 30.0, 1.5
"""The perplexities over words that earn nothing and everything; ordinary training on redacted text
reaches about the second one."""
POINTS = {"utility": 25, "leakage": 25, "epsilon": 50}
TAUGHT = 1.1
"""To earn all points of a promise, the perplexity on private turns must be this many times lower
than without the private part of the training: noise protects nothing if nothing was learned.
"""


Rate = Annotated[float, Field(gt=0, le=100)]


@checked_dataclass
class Plan:
    """What to screen, what to choose, how to train: only public constants and patterns.

    ``policy`` maps kinds to regular expressions for what is redacted; ``conservative`` is
    "policy" (the same), "everything", or patterns of its own. ``epsilon`` is the budget of DP-SGD,
    add-or-remove, at delta 8e-5; the noise is the least that keeps it.
    """

    method: Literal["sgd", "dedup", "dpsgd", "crt"] = "sgd"
    policy: Mapping[str, str] = field(default_factory=dict)
    conservative: Literal["policy", "everything"] | Mapping[str, str] = "policy"
    dedup: Literal["all", "flagged", "none"] = "all"
    epochs: PositiveInt = 8
    pub_passes: PositiveInt = 1
    batch_size: PositiveInt = 32
    learning_rate: Rate = 1e-2
    private_learning_rate: Rate = 5e-3
    sampling_probability: Annotated[float, Field(ge=0.02, le=0.5)] = 0.1
    clip_norm: Rate = 0.1
    epsilon: Rate = 3.0

    def __post_init__(self) -> None:
        readings = self.epochs * (1 + self.pub_passes)
        if readings > READINGS:
            raise ValueError(
                f"epochs={self.epochs}: with pub_passes={self.pub_passes} it reads the text "
                f"{readings} times, the budget is {READINGS}"
            )


def parse_plan(plan: Mapping[str, Any]) -> Plan:
    """A plan as it was handed in. Raises ``ValueError`` for an unknown field or a bad value."""
    return Plan(**plan)


# --------------------------------------------------------------------------- screening
def pattern_policy(name: str, patterns: Mapping[str, str]) -> Policy:
    """A policy made of regular expressions by kind; each point gets at most two seconds."""
    try:
        compiled = {kind: regex.compile(text) for kind, text in patterns.items()}
    except (regex.error, TypeError) as error:
        raise ValueError(f"{name}: not a regular expression: {error}") from None
    return Policy(name, functools.partial(_flag_matches, compiled))


def _flag_matches(compiled: Mapping[str, Any], points: Sequence[Point]) -> FlaggedSpans:
    """What patterns match in each point. Of matches that overlap, the first pattern's counts."""
    flags = []
    for point in points:
        spans: list[Secret] = []
        for kind, pattern in compiled.items():
            for match in pattern.finditer(point.text, timeout=2.0):
                start, end = match.span(kind) if kind in pattern.groupindex else match.span()
                if start < end and all(end <= s.start or s.end <= start for s in spans):
                    spans.append(Secret(kind, start, end))
        flags.append(tuple(sorted(spans, key=lambda s: s.start)))
    return flags


def make_policies(plan: Plan) -> tuple[Policy, Policy]:
    """The policies pi and pi_c of a plan."""
    pi = pattern_policy("policy", plan.policy)
    if plan.conservative == "everything":
        return pi, regex_policies.everything_policy
    if isinstance(plan.conservative, str):
        return pi, pi
    return pi, policy_changes.union_policy(pi, pattern_policy("conservative", plan.conservative))


# --------------------------------------------------------------------------- training
@dataclass(frozen=True)
class Outcome:
    """What a plan achieved on one class: perplexity over words, the highest exposure of ten
    canaries in bits, the AUC of membership, the guarantee under replacement, and how many times
    lower private text made the perplexity on private turns of other people (1: it taught nothing).
    """

    perplexity: float
    highest: float
    auc: float
    rates: PolicyRates
    guarantee: Guarantee | None
    taught: float


@functools.lru_cache(maxsize=4)
def draw_people(seed: int) -> labs.People:
    """The text of a class. Class 0 is for practice."""
    return labs.draw_people(seed=seed, dialogues=DIALOGUES)


def least_noise_multiplier(plan: Plan) -> float:
    """The least noise multiplier that keeps the plan's epsilon, adding or removing one turn."""
    steps = plan.epochs * max(1, round(1 / plan.sampling_probability))
    return privacy_cost.noise_multiplier(
        epsilon=plan.epsilon,
        delta=DELTA,
        sampling_probability=plan.sampling_probability,
        steps=steps,
        neighbouring_relation="add_or_remove",
    )


def train_plan(plan: Plan, text: labs.People, *, private_part: bool = True) -> labs.Fitted:
    """Screen and train as the plan states, with or without the part that reads private turns."""
    pi, pi_c = make_policies(plan)
    private = methods.method_by_name(plan.method).private
    constants = PublicConstants.of(
        plan, noise_multiplier=least_noise_multiplier(plan) if private else 0.0, normaliser=64.0
    )
    return labs.fit_model(
        text,
        plan.method,
        constants,
        pi=pi,
        pi_c=pi_c,
        dedup=plan.dedup,
        duplicates="mask_private",  # one turn must decide about no other for the promise to hold
        private_part=private_part,
    )


def measure_perplexity(plan: Plan, fitted: labs.Fitted, points: Sequence[Point]) -> float:
    """Perplexity over the words of some turns, read as the plan's method reads them."""
    raw = methods.method_by_name(plan.method).reads_raw
    texts = points if raw else [redact(p, p.secrets) for p in points]
    points_read = dict.fromkeys(texts, 1)
    return study_run.measure_utility(fitted.model, fitted.tokenizer, points_read)["ppl_words"]


def perplexity_ratio_without_private(plan: Plan, fitted: labs.Fitted, text: labs.People) -> float:
    """How many times lower the perplexity on turns with a secret is than that of the same training
    without its private part. The turns are of people on whom no model is trained."""
    private = [p for p in text.test if p.secrets]
    without = train_plan(plan, text, private_part=False)
    return measure_perplexity(plan, without, private) / measure_perplexity(plan, fitted, private)


def run_plan(plan: Plan, seed: int = 0) -> Outcome:
    """Screen, train, attack and account, and train again without the private part: some twenty
    seconds of one core."""
    text = draw_people(seed)
    fitted = train_plan(plan, text)
    pi, pi_c = make_policies(plan)
    bits = exposure.canary_exposure(fitted.model, fitted.tokenizer, text.canaries)
    probe = membership.build_probe(text.points, fitted.prepared.all, text.others, seed=seed)
    members, others = membership.score_probe(fitted.model, fitted.tokenizer, probe)
    missed = np.array(probe.missed, bool) if any(probe.missed) else np.ones(len(members), bool)
    method = methods.method_by_name(plan.method)
    rates = measure_rates(
        text.points, pi, pi_c, dedup=plan.dedup if method.deduplicates else "none"
    )
    return Outcome(
        measure_perplexity(plan, fitted, text.test),
        float(bits.max()),
        float(membership_measures.auc(members[missed], others[missed])),
        rates,
        guarantee_of_run(plan, fitted, rates),
        perplexity_ratio_without_private(plan, fitted, text) if fitted.events else 1.0,
    )


def guarantee_of_run(plan: Plan, fitted: labs.Fitted, rates: PolicyRates) -> Guarantee | None:
    """What the run promises under replacement, with the rates at their upper bounds."""
    if not fitted.events:
        return None
    terms = GuaranteeTerms(
        gamma=BoundedRate.from_rate(rates.trace, alpha=rates.alpha),
        delta2=BoundedRate.from_rate(rates.public, alpha=rates.alpha),
        noise_delta=DELTA,
        unit="turn",
        accountant="pld",
        neighbouring_relation="replace",
        public="the number of private points",
    )
    return methods.method_by_name(plan.method).promise(fitted.events, terms)


# --------------------------------------------------------------------------- hand in, grade
def make_empty_form() -> dict[str, Any]:
    """An empty submission: a plan, and what you claim about it."""
    plan = {f.name: getattr(Plan(), f.name) for f in fields(Plan)}
    claim = {"epsilon": None, "delta": None, "unit": "", "neighbouring_relation": ""}
    return {"lab": "defence", "name": "", "plan": plan, "claim": claim}


def grade_answer(answer: Mapping[str, Any], seed: int) -> Marks:
    """Train the plan on the class of this seed, and mark the result.

    Raises ``ValueError`` for a plan that breaks the budget or a rule.
    """
    plan = parse_plan(answer["plan"])
    outcome = run_plan(plan, seed)
    marks = Marks(POINTS)
    marks.add(
        "utility",
        math.log(WORST_PPL / outcome.perplexity) / math.log(WORST_PPL / BEST_PPL),
        f"perplexity over words is {outcome.perplexity:.2f}: more public text or more passes "
        "over it cost no epsilon",
    )
    undefended = leak_without_defence(seed, plan.epochs, plan.batch_size, plan.learning_rate)
    marks.add(
        "leakage",
        (undefended - share_leaked(outcome)) / undefended if undefended > 0.1 else 0.0,
        f"highest exposure {outcome.highest:.1f} bits, membership AUC {outcome.auc:.2f}; what the "
        "same training without policy and noise does not leak either earns nothing",
    )
    share, why = _judge_claim(outcome.guarantee, answer.get("claim") or {})
    learned = clip(math.log(max(outcome.taught, 1.0)) / math.log(TAUGHT))
    if share and learned < 1:
        why = (
            "private text taught the model little: without it the perplexity on private turns is "
            f"{outcome.taught:.2f} times as high, and {TAUGHT:g} times earns all"
        )
    share *= learned
    if outcome.perplexity >= WORST_PPL:
        share /= 2
        why += "; for a model without use a promise counts half"
    marks.add("epsilon", share, why)
    return marks


def share_leaked(outcome: Outcome) -> float:
    """The share of what exposure and membership could reveal, beyond chance, in [0, 1]."""
    chance, most = exposure.exposure_chance_band(canaries=10).high, math.log2(10**6)  # in bits
    exposed = clip((outcome.highest - chance) / (most - chance))
    return (exposed + clip((outcome.auc - 0.6) / 0.35)) / 2


@functools.lru_cache(maxsize=64)
def leak_without_defence(seed: int, epochs: int, batch_size: int, learning_rate: float) -> float:
    """What leaks when the same training reads raw text, without noise."""
    settings = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    return share_leaked(run_plan(parse_plan({"dedup": "none", **settings}), seed))


def _judge_claim(guarantee: Guarantee | None, claim: Mapping[str, Any]) -> tuple[float, str]:
    """The share of the points for the promise, and what is wrong with it."""
    if guarantee is None:
        return 0.0, "this plan promises nothing: it adds no noise"
    if guarantee.delta > LEAST_DELTA:
        return 0.0, (
            f"delta is {guarantee.delta:.2g}: secrets are in public points. Widen the "
            "conservative policy"
        )
    required = {"unit": "turn", "neighbouring_relation": "replace"}
    for field_name, right in required.items():
        if right not in str(claim.get(field_name, "")):
            return 0.0, f"the claim must name its {field_name.replace('_', ' ')}"
    stated, total = claim.get("epsilon"), claim.get("delta")
    if stated is None or read_number(stated) < guarantee.epsilon * 0.99:
        return 0.0, (
            f"the claim is below what the run spent, epsilon = {guarantee.epsilon:.2f}: account "
            "for the replacement of a turn, with gamma at its upper bound"
        )
    if total is None or read_number(total) < guarantee.delta * 0.99:
        return 0.0, f"the claim leaves delta2 out: the whole delta is {guarantee.delta:.2g}"
    smaller = math.log(8 / max(read_number(stated), 1e-9)) / math.log(32)
    return (
        2 / 3 + clip(smaller) / 3 if smaller >= 0 else 0.0,
        "a smaller epsilon' or a policy that leaves fewer traces lowers epsilon",
    )


def make_true_claim(outcome: Outcome) -> dict[str, Any]:
    """The claim that is true for an outcome. It leaves a tenth of room, because outcomes differ a
    little from class to class."""
    guarantee = outcome.guarantee
    if guarantee is None:
        return dict(make_empty_form()["claim"])
    return {
        "epsilon": round(1.1 * guarantee.epsilon, 3),
        "delta": round(1.1 * guarantee.delta, 4),
        "unit": "one secret in one turn",
        "neighbouring_relation": "replace",
    }
