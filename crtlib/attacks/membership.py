"""Membership inference: does a model find secrets that it was trained on likelier than others?

CRT, Section 5.1 and Appendix A.5: members are sentences of the training text that hold a secret;
non-members have the same format, with secrets that the model never saw. The half with the lower
perplexity is called members. An accuracy of one half is chance.

>>> from crtlib.attacks.membership_measures import best_possible_accuracy
>>> from crtlib.attacks.membership_scores import TextLogprobs
>>> from crtlib.attacks.membership_scores import MEMBERSHIP_SCORES
>>> rng = np.random.default_rng(0)
>>> fresh, read = rng.normal(5, 1, 1000), rng.normal(5, 1, 1000)
>>> abs(accuracy(read, fresh) - 0.5) < 0.04
True
>>> read[:300] = 1.0  # three in ten were missed by the redaction policy, and learned
>>> round(accuracy(read, fresh), 2), round(best_possible_accuracy(0.3), 2)
(0.58, 0.59)
>>> accuracy(read[:300], fresh[:300])
1.0
>>> band = accuracy_chance_band(null_std(read, fresh), points=20)
>>> round(band.low, 2), round(band.high, 2)
(0.47, 0.53)

**Exchangeable by construction.** For each kind, only values are kept that occur *once* in the
training and the pool points together. If both are draws from one source, each such value was
equally likely to be drawn on either side, whatever the sizes, so without training nothing tells a
member from a non-member. (Keeping every training value and every fresh one would not do: values
that occur in the training text, such as short names, would then be commoner than those that do
not.)

**One carrier for both sides.** Each member's sentence is scored with its own value and with a fresh
one. The wording, which the model has read with a mask, then reveals nothing, and no luck in the
choice of easy sentences widens the band. The remaining assumption is that, given its kind, a value
does not depend on the sentence. This is true for CustomerSim; elsewhere a run at gamma = 0 shows
it.

**Scores beyond the loss**: zlib, Min-K%++, a reference model, RMIA. Each gives a sentence a number
that is lower if the model has read it, and each is judged like the loss.

>>> reading = TextLogprobs(
...     texts=("USR: I am Ada", "USR: aaaaaaaaaaaa"), logprobs=[np.array([-1.0, -3]), -np.ones(2)],
...     standard=[np.array([0.5, -1.0]), np.ones(2)],
... )
>>> {s.name: s.of(reading).round(3).tolist() for s in MEMBERSHIP_SCORES if not s.needs_reference}
{'loss': [2.0, 1.0], 'zlib': [0.095, 0.067], 'min_k_plus_plus': [1.0, -1.0]}
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from torch import nn

from crtlib.attacks.attack import (
    CELL_COLUMNS,
    Attack,
    AttackRow,
    Subject,
    mean_and_std,
    register_attack,
    repeat_at_every_gamma,
)
from crtlib.attacks.membership_measures import (
    AccuracyMetric,
    MembershipStatistic,
    accuracy,
    accuracy_chance_band,
    auc,
    group_accuracy,
    null_std,
    paired_accuracy,
    tpr_at_fpr,
)
from crtlib.checks import check_allowed
from crtlib.models import scoring
from crtlib.text import canaries
from crtlib.text.records import Point, Secret
from crtlib.text.tokenizer import BpeTokenizer

SecretPredicate = Callable[[Point, Secret], bool]
ACCURACY_METRICS = (
    AccuracyMetric("mia_accuracy", np.asarray, "all"),
    AccuracyMetric("mia_missed_accuracy", np.asarray, "missed"),
    AccuracyMetric("mia_redacted_accuracy", np.asarray, "redacted"),
    AccuracyMetric("group_accuracy", np.exp, "all", group=True),
    AccuracyMetric("group_nll_accuracy", np.asarray, "all", group=True),
    AccuracyMetric("mia_address_accuracy", np.asarray, "paper_kind"),
    AccuracyMetric("group_address_accuracy", np.exp, "paper_kind", group=True),
)


# --------------------------------------------------------------------------- what is scored
@dataclass(frozen=True, repr=False)
class MembershipProbe:
    """Sentences in clear; the k-th of both sides differ in one secret only.

    ``missed`` states for each member whether its secret is in what the model was trained on,
    ``kinds`` what kind of secret it is.
    """

    members: tuple[str, ...] = field(repr=False)
    nonmembers: tuple[str, ...] = field(repr=False)
    missed: tuple[bool, ...]
    kinds: tuple[str, ...] = ()


def build_probe(
    points: Sequence[Point],
    trained: Iterable[Point],
    pool: Sequence[Point],
    *,
    sequences: int = 2000,
    seed: int,
    kinds: Collection[str] | None = None,
) -> MembershipProbe:
    """Build a probe: members from ``points``, fresh values for them from ``pool``; at most
    ``sequences`` sentences in all.

    ``points`` are the training points in clear with their labels. ``trained`` are the same points
    as the method read them (``PreparedData.read``), which shows what was missed. ``pool`` are
    points from the same source that nothing was trained on. ``kinds`` limits the probe to these
    kinds of secret (in the paper, addresses). Canaries are left out; a sentence is used once, for
    one of its secrets. The probe is smaller if the corpora are small, and empty if nothing is
    labelled.

    Raises ``ValueError`` for an odd or too small ``sequences``.
    """
    check_allowed(
        "sequences", sequences, sequences >= 2 and sequences % 2 == 0, "even and at least 2"
    )
    rng = np.random.default_rng([seed, 2])
    is_unrepeated = unrepeated_secrets(points, pool, kinds=kinds)
    unused_values = fresh_values(pool, is_unrepeated, rng)
    is_left = remaining_secrets(trained)
    rows: list[tuple[str, str, bool, str]] = []
    for p, s in draw_secret_per_point(points, is_unrepeated, rng):
        if unused_values[s.kind] and len(rows) < sequences // 2:
            control_text = p.text[: s.start] + unused_values[s.kind].pop() + p.text[s.end :]
            rows.append((p.text, control_text, is_left(p, s), s.kind))
    return MembershipProbe(*zip(*rows, strict=True)) if rows else MembershipProbe((), (), ())


def secret_value(point: Point, s: Secret) -> str:
    """The text of a secret."""
    return point.text[s.start : s.end]


def unrepeated_secrets(
    points: Sequence[Point], pool: Sequence[Point], *, kinds: Collection[str] | None = None
) -> SecretPredicate:
    """A predicate for secrets whose value occurs once in all these points together, that are of
    ``kinds``, and that are not canaries."""
    value_counts = Counter(secret_value(p, s) for p in (*points, *pool) for s in p.secrets)

    def is_unrepeated(p: Point, s: Secret) -> bool:
        if p.user.startswith(canaries.CANARY_USER_PREFIX):
            return False
        return value_counts[secret_value(p, s)] == 1 and (not kinds or s.kind in kinds)

    return is_unrepeated


def draw_secret_per_point(
    source: Sequence[Point], is_eligible: SecretPredicate, rng: np.random.Generator
) -> list[tuple[Point, Secret]]:
    """One eligible secret from each point that has one, in random order."""
    pairs = []
    for p in source:
        eligible_secrets = [s for s in p.secrets if is_eligible(p, s)]
        if eligible_secrets:
            pairs.append((p, eligible_secrets[rng.integers(len(eligible_secrets))]))
    return [pairs[i] for i in rng.permutation(len(pairs))]


def fresh_values(
    pool: Sequence[Point], is_eligible: SecretPredicate, rng: np.random.Generator
) -> dict[str, list[str]]:
    """One eligible value from each point that has one, by kind, in random order."""
    values_by_kind: dict[str, list[str]] = defaultdict(list)
    for p, s in draw_secret_per_point(pool, is_eligible, rng):
        values_by_kind[s.kind].append(secret_value(p, s))
    return values_by_kind


def remaining_secrets(trained: Iterable[Point]) -> SecretPredicate:
    """A predicate for secrets that are still, at least in part, in their point as the method read
    it."""
    remaining_by_point = {p.id: [(s.kind, secret_value(p, s)) for s in p.secrets] for p in trained}

    def is_remaining(p: Point, s: Secret) -> bool:
        value = secret_value(p, s)
        remaining = remaining_by_point.get(p.id, ())
        return any(kind == s.kind and fragment in value for kind, fragment in remaining)

    return is_remaining


def score_probe(
    model: nn.Module, tokenizer: BpeTokenizer, probe: MembershipProbe
) -> tuple[np.ndarray, np.ndarray]:
    """The mean negative log-likelihood per token of members and of non-members, in nats, ``(n,)``
    each.

    The texts are encoded as in training, with their end. ``np.exp`` of it is the perplexity.
    """
    logprobs = scoring.token_logprobs(model, tokenizer.encode(probe.members + probe.nonmembers))
    scores = np.array([-x.mean() for x in logprobs])
    return scores[: len(probe.members)], scores[len(probe.members) :]


def subtract_reference_scores(scores: np.ndarray, reference_scores: np.ndarray) -> np.ndarray:
    """Return the scores less those of a model that never read these values, so that what is hard
    for every model, such as a rare name, cancels out (Carlini et al. 2021; Watson et al. 2022).

    The reference must know what such values look like: use a run with another seed and the same
    gamma. One at gamma = 0 has read nothing but masks; its scores of secrets are noise, and so is
    the difference.
    """
    return np.asarray(scores) - reference_scores


def member_views(probe: MembershipProbe) -> dict[str, np.ndarray]:
    """Masks of the members, ``(n,)`` each: "all", "missed", "redacted"."""
    missed = np.array(probe.missed, dtype=bool)
    return {"all": np.ones_like(missed), "missed": missed, "redacted": ~missed}


def paper_kind_mask(probe: MembershipProbe) -> np.ndarray:
    """The mask of the members of the kind that A.5 uses: reference numbers if there are any, else
    addresses; no member if the kinds are not known."""
    kind = "reference" if "reference" in probe.kinds else "address"
    return np.array([k == kind for k in probe.kinds] or [False] * len(probe.members), dtype=bool)


def membership_metrics(
    probe: MembershipProbe, members: np.ndarray, nonmembers: np.ndarray, *, seed: int
) -> list[tuple[str, float]]:
    """Run every attack on given scores, as (metric, value).

    Each accuracy is taken over one of four sets of members: all, those whose secret was missed,
    those redacted, and those of the kind that the paper attacks (:func:`paper_kind_mask`). A set
    without members is left out.
    """
    masks = member_views(probe) | {"paper_kind": paper_kind_mask(probe)}
    rows = [("n_members", float(len(members))), ("n_missed", float(masks["missed"].sum()))]
    group = functools.partial(group_accuracy, seed=seed)
    for metric in ACCURACY_METRICS:
        mask = masks[metric.members]
        selected_scores = [metric.of(scores[mask]) for scores in (members, nonmembers)]
        statistic = group if metric.group else accuracy
        rows += statistic_with_null(metric.name, *selected_scores, statistic=statistic)
    if len(members):
        rows.append(("mia_auc", float(auc(members, nonmembers))))
        rows.append(("mia_paired_accuracy", float(paired_accuracy(members, nonmembers))))
        rows += [(f"mia_tpr_{f}", tpr_at_fpr(f, members, nonmembers)) for f in (0.01, 0.001)]
    return rows


def statistic_with_null(
    name: str,
    members: np.ndarray,
    nonmembers: np.ndarray,
    *,
    statistic: MembershipStatistic = accuracy,
) -> list[tuple[str, float]]:
    """A statistic and its null deviation as two metrics; no metric if there is no member."""
    if not len(members):
        return []
    value = float(statistic(members, nonmembers))
    return [(name, value), (f"{name}_null", null_std(members, nonmembers, statistic=statistic))]


def measure_membership(
    model: nn.Module, tokenizer: BpeTokenizer, probe: MembershipProbe, *, seed: int
) -> list[tuple[str, float]]:
    """The :func:`membership_metrics` of one trained model; each sentence is scored once."""
    if not probe.members:
        return [("n_members", 0.0), ("n_missed", 0.0)]
    return membership_metrics(probe, *score_probe(model, tokenizer, probe), seed=seed)


def summarise_membership(
    table: pd.DataFrame,
    *,
    metric_prefixes: tuple[str, ...] = ("mia_", "group_", "n_members", "n_missed"),
) -> pd.DataFrame:
    """Summarise a results table in one row per (metric, model, method, gamma), for metrics that
    begin with one of ``metric_prefixes``: mean and spread over seeds.

    Metrics with a null deviation also have the chance band, ``low`` to ``high``, in which all
    numbers of that metric lie with probability 95 % if nothing was learned, and the ``verdict``:
    below, inside, above. DP-SGD ignores gamma: its one result appears at every gamma.
    """
    cells = ["metric", *CELL_COLUMNS]
    rows = table[table.metric.str.startswith(metric_prefixes)]
    null = rows.metric.str.endswith("_null")
    summary = mean_and_std(rows[~null].groupby(cells).value)
    square = rows[null].assign(metric=rows.metric.str.removesuffix("_null"), value=rows.value**2)
    summary["null"] = np.sqrt(square.groupby(cells).value.mean())
    points = summary.groupby("metric").seeds.transform("size")
    bands = [
        accuracy_chance_band(sd, seeds=n, points=k)
        for sd, n, k in zip(summary.null, summary.seeds, points, strict=True)
    ]
    has_null = summary.null.notna()
    summary["low"] = np.where(has_null, [b.low for b in bands], np.nan)
    summary["high"] = np.where(has_null, [b.high for b in bands], np.nan)
    summary["verdict"] = np.select(
        [~has_null, summary["mean"] > summary.high + 1e-12, summary["mean"] < summary.low - 1e-12],
        ["", "above", "below"],
        "inside",
    )
    return repeat_at_every_gamma(summary.reset_index(), sort_columns=cells)


def probe_of_subject(subject: Subject) -> MembershipProbe:
    """The sentences on which every membership attack tries this model."""
    return build_probe(subject.points, subject.read, subject.others, seed=subject.seed)


def _membership_rows(subject: Subject) -> list[AttackRow]:
    rows = measure_membership(
        subject.model, subject.tokenizer, probe_of_subject(subject), seed=subject.seed
    )
    return [(metric, 0, value) for metric, value in rows]


MEMBERSHIP_ATTACK = register_attack(
    Attack(
        name="membership",
        label="Membership inference",
        statistic="accuracy (share of right guesses)",
        measure=_membership_rows,
        summary=summarise_membership,
    )
)
