"""Membership inference, by the loss and by other scores, and inference of a secret in its context.

Membership inference: does the model hold the secrets that it read likelier than fresh ones?

CRT, Section 5.1 and Appendix A.5: members are sentences of the training text that hold a secret,
non-members are of the same format with secrets that were never read; the half of lower perplexity
is called members, and one half right is a guess.

>>> rng = np.random.default_rng(0)
>>> fresh, read = rng.normal(5, 1, 1000), rng.normal(5, 1, 1000)
>>> abs(accuracy(read, fresh) - 0.5) < 0.04
True
>>> read[:300] = 1.0  # three in ten were missed by the redaction policy, and learned
>>> round(accuracy(read, fresh), 2), round(ceiling(0.3), 2), accuracy(read[:300], fresh[:300])
(0.58, 0.59, 1.0)
>>> band = chance_band(null_sd(read, fresh), points=20)
>>> round(band.low, 2), round(band.high, 2)
(0.47, 0.53)

**Exchangeable by construction.** Of each kind only the values are kept that stand *once* in the
training and the pool points together. Where both are draws from one source, each such value was
as likely to be drawn on either side, whatever the sizes, so without training nothing tells a member
from a non-member. (Keeping every training value and every fresh one would not do: values that
occur in the training text are then commoner, such as short names, than those that do not.)

**One carrier, worn by both sides.** Each member's sentence is scored with its own value and with a
fresh one. The wording, which the model has read with a mask, then says nothing, and no luck in
dealing out easy sentences widens the band. What remains assumed is that, given its kind, a value
does not depend on the sentence: true of CustomerSim; elsewhere a run at gamma = 0 shows it.

**Scores beyond the loss**: zlib, Min-K%++, a reference model, RMIA. Each gives a number of a
sentence that is lower where the model has read it, and each is judged as the loss is.

>>> reading = Reading(
...     texts=("USR: I am Ada", "USR: aaaaaaaaaaaa"), logprobs=[np.array([-1.0, -3]), -np.ones(2)],
...     standard=[np.array([0.5, -1.0]), np.ones(2)],
... )
>>> {s.name: s.of(reading).round(3).tolist() for s in SCORES if not s.needs_reference}
{'loss': [2.0, 1.0], 'zlib': [0.095, 0.067], 'min_k_plus_plus': [1.0, -1.0]}

Inference and reconstruction of a secret in its context (Lukas et al. 2023).

The attacker has a sentence of the training text with its secret masked. *Inference*: he knows the
secret to be one of ``CANDIDATES`` values and names the one that makes the sentence likeliest.
*Reconstruction*: he has no list, and lets the model go on greedily from what stands before it.

>>> from crtlib.attacks.attack import ATTACKS
>>> ATTACKS["pii"].label
'Inference and reconstruction in context'
>>> share_right(np.array([[1.0, 2.0, 3.0], [5.0, 4.0, 4.5], [2.0, 2.0, 7.0]])).tolist()
[1.0, 0.0, 0.5]

**Chance.** The other candidates are values of the same kind that nobody's training text holds, each
for one sentence only; a value counts if it stands once in all the points. Whatever the model, if it
has not read the secret, each of the k values is as likely to be named, and sentences are
independent: right answers are Binomial(n, 1/k). As often as the true value, any candidate would be
reconstructed, so the others show how often luck does it.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import scipy
from scipy import special
from torch import Tensor, nn

from crtlib.attacks.attack import CELL, Attack, Row, Subject, at_every_gamma, register, spread
from crtlib.checks import check, check_shares, check_whole
from crtlib.intervals import Band, clopper_pearson_upper
from crtlib.models import scoring
from crtlib.text import canaries
from crtlib.text.records import Point, Secret
from crtlib.text.tokenizer import Bpe


# --------------------------------------------------------------------------- what is scored
@dataclass(frozen=True, repr=False)
class Probe:
    """Sentences in clear; the k-th of both sides differ in one secret only.

    ``missed`` says of each member whether its secret stands in what the model was trained on,
    ``kinds`` what it is.
    """

    members: tuple[str, ...]
    nonmembers: tuple[str, ...]
    missed: tuple[bool, ...]
    kinds: tuple[str, ...] = ()


def probe(
    points: Sequence[Point],
    trained: Iterable[Point],
    pool: Sequence[Point],
    *,
    sequences: int = 2000,
    seed: int,
    kinds: Collection[str] | None = None,
) -> Probe:
    """Members from ``points``, fresh values for them from ``pool``; at most ``sequences`` in all.

    ``points`` are the training points in clear with their labels, and ``trained`` the same as the
    method read them (``Prepared.all``), from which follows what was missed. ``pool`` are points of
    the same source that nothing was trained on. ``kinds``: these kinds of secret only (the paper:
    addresses). Canaries are left out; a sentence is used once, for one of its secrets. The probe
    is smaller where the corpora are, and empty where nothing is labelled.

    Raises ``ValueError`` for an odd or too small ``sequences``.
    """
    check("sequences", sequences, sequences >= 2 and sequences % 2 == 0, "even and at least 2")
    rng = np.random.default_rng([seed, 2])
    single = singles(points, pool, kinds=kinds)
    fresh = fresh_values(pool, single, rng)
    left = remains(trained)
    rows: list[tuple[str, str, bool, str]] = []
    for p, s in one_each(points, single, rng):
        if fresh[s.kind] and len(rows) < sequences // 2:
            other = p.text[: s.start] + fresh[s.kind].pop() + p.text[s.end :]
            rows.append((p.text, other, left(p, s), s.kind))
    return Probe(*zip(*rows, strict=True)) if rows else Probe((), (), ())


def value_of(point: Point, s: Secret) -> str:
    """The text of a secret."""
    return point.text[s.start : s.end]


Single = Callable[[Point, Secret], bool]


def singles(
    points: Sequence[Point], pool: Sequence[Point], *, kinds: Collection[str] | None = None
) -> Single:
    """Which secrets stand once in all these points together, are of ``kinds``, and no canary."""
    seen = Counter(value_of(p, s) for p in (*points, *pool) for s in p.secrets)

    def single(p: Point, s: Secret) -> bool:
        planted = p.user.startswith(canaries.USER)
        return not planted and seen[value_of(p, s)] == 1 and (not kinds or s.kind in kinds)

    return single


def one_each(
    source: Sequence[Point], single: Single, rng: np.random.Generator
) -> list[tuple[Point, Secret]]:
    """In random order, one single secret of each point that has one."""
    pairs = []
    for p in source:
        own = [s for s in p.secrets if single(p, s)]
        if own:
            pairs.append((p, own[rng.integers(len(own))]))
    return [pairs[i] for i in rng.permutation(len(pairs))]


def fresh_values(
    pool: Sequence[Point], single: Single, rng: np.random.Generator
) -> dict[str, list[str]]:
    """One value of each point that has one, by kind, in random order."""
    fresh: dict[str, list[str]] = defaultdict(list)
    for p, s in one_each(pool, single, rng):
        fresh[s.kind].append(value_of(p, s))
    return fresh


def remains(trained: Iterable[Point]) -> Single:
    """Whether a secret still stands in its point as the method read it, wholly or in part."""
    left = {p.id: [(s.kind, value_of(p, s)) for s in p.secrets] for p in trained}

    def missed(p: Point, s: Secret) -> bool:
        value = value_of(p, s)
        return any(kind == s.kind and part in value for kind, part in left.get(p.id, ()))

    return missed


def score(model: nn.Module, tokenizer: Bpe, probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    """Mean negative log-likelihood a token of members and of non-members, each ``(n,)``, in nats.

    The texts are encoded as in training, with their end. ``np.exp`` of it is the perplexity.
    """
    logprobs = scoring.token_logprobs(model, tokenizer.encode(probe.members + probe.nonmembers))
    scores = np.array([-x.mean() for x in logprobs])
    return scores[: len(probe.members)], scores[len(probe.members) :]


def calibrated(scores: np.ndarray, reference_scores: np.ndarray) -> np.ndarray:
    """Scores less those of a model that never read these values: what is hard for every model,
    such as a rare name, cancels out (Carlini et al. 2021; Watson et al. 2022).

    The reference must know what such values look like: a run with another seed, of equal gamma.
    One at gamma = 0 has read nothing but masks; its scores of secrets are noise, and so is the
    difference.
    """
    return np.asarray(scores) - reference_scores


# --------------------------------------------------------------------------- the attacks
Values = float | np.ndarray


Statistic = Callable[[np.ndarray, np.ndarray], Values]
"""A number of two sides, (n,) and (m,); of (draws, n) and (draws, m) one a draw."""


def _together(members: np.ndarray, nonmembers: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The scores of both sides, (..., n + m), n and m."""
    scores = np.concatenate([members, nonmembers], axis=-1)
    n, m = np.shape(members)[-1], np.shape(nonmembers)[-1]
    if not n or not m or not np.isfinite(scores).all():
        raise ValueError(
            f"scores: {n} members and {m} non-members, must be finite and at least one each"
        )
    return scores, n, m


def accuracy(members: np.ndarray, nonmembers: np.ndarray) -> Values:
    """Share of right guesses when the half of lower score is called members (A.5).

    Where sizes differ both sides weigh the same, and scores that tie at the threshold are told
    apart by a coin: it is the point of the ROC curve where TPR + FPR = 1. As every statistic here,
    it takes sides (n,) and (m,), or many at once, (draws, n) and (draws, m), and gives (draws,).
    """
    scores, n, m = _together(members, nonmembers)
    order = np.argsort(scores, axis=-1)
    called = np.cumsum(order < n, axis=-1) / n + np.cumsum(order >= n, axis=-1) / m
    half = (called >= 1 - 1e-12).argmax(axis=-1)[..., None]
    threshold = np.take_along_axis(scores, np.take_along_axis(order, half, -1), -1)
    (low, low_false), (tied, tied_false) = (
        (x[..., :n].mean(-1), x[..., n:].mean(-1))
        for x in (scores < threshold, scores == threshold)
    )
    right = low + tied * (1 - low - low_false) / (tied + tied_false)
    return right if np.ndim(right) else float(right)


def auc(members: np.ndarray, nonmembers: np.ndarray) -> Values:
    """Probability that a member scores below a non-member, ties counted half."""
    scores, n, m = _together(members, nonmembers)
    ranks = scipy.stats.rankdata(scores, axis=-1)[..., :n].sum(-1)
    below = 1 - (ranks - n * (n + 1) / 2) / (n * m)
    return below if np.ndim(below) else float(below)


def tpr_at(fpr: float, members: np.ndarray, nonmembers: np.ndarray) -> float:
    """Largest true positive rate at a false positive rate of at most ``fpr`` (Carlini et al. 2022).

    Below one in ``len(nonmembers)`` it is the share of members that beat every non-member.
    """
    check_shares(fpr=fpr)
    _, _, m = _together(members, nonmembers)
    allowed = int((np.arange(1, m + 1) / m <= fpr).sum())  # so many non-members may score lower
    return float((members < np.append(np.sort(nonmembers), np.inf)[allowed]).mean())


def paired_accuracy(members: np.ndarray, nonmembers: np.ndarray) -> Values:
    """Ours: told that one of the two sentences on a carrier is a member, how often the lower score
    is. Stronger than the median where carriers or kinds differ much; chance is 0.5 +- 0.5/sqrt(n).
    """
    lower, equal = np.less(members, nonmembers), np.equal(members, nonmembers)
    return np.mean(lower + 0.5 * equal, axis=-1)


def group_accuracy(
    members: np.ndarray, nonmembers: np.ndarray, *, groups: int = 2000, size: int = 20, seed: int
) -> Values:
    """Group membership (A.5): ``accuracy`` of the sum of scores of ``size`` sentences, over
    ``groups`` groups, half of them of members. The paper sums perplexities, which a few rare names
    decide; sums of their logarithms see more.

    Each group is drawn with replacement from all sentences of its side. 20,000 draws use the same
    n sentences again and again, so that luck in those counts: with 1,000 the null deviation is
    0.04, with 100 0.12, and no number of groups makes it smaller.
    """
    check("groups", groups, groups >= 2 and groups % 2 == 0, "even and at least 2")
    check("size", size, size >= 1, "at least 1")
    rng = np.random.default_rng(seed)
    shape = (groups // 2, size)
    sums = []
    for side in map(np.asarray, (members, nonmembers)):
        sums.append(side.take(rng.integers(side.shape[-1], size=shape), axis=-1).sum(-1))
    return accuracy(*sums)


def ceiling(missed: float) -> float:
    """The best that ``accuracy`` can do where a share ``missed`` of the members was in clear.

    All those are in the lower half, and the rest of it is dealt out between redacted members and
    non-members: 1 / (2 - missed), which at 0.1 is 0.526. (0.5 + missed / 2 would need a threshold
    that knows ``missed``.)
    """
    check_shares(missed=missed)
    return 1 / (2 - missed)


# --------------------------------------------------------------------------- chance
DRAWS_AT_ONCE = 50
"""So many are scored together: more would leave the cache."""


def null_sd(
    members: np.ndarray,
    nonmembers: np.ndarray,
    *,
    statistic: Statistic = accuracy,
    draws: int = 400,
    seed: int = 0,
) -> float:
    """Deviation from one half of a statistic, were members and non-members exchangeable.

    Swaps the two sentences on a carrier by coin flips and scores again; for the group attack too it
    is the sentences that are swapped, not the groups, which share them. For a :class:`Statistic`
    that becomes ``1 - x`` when the sides are exchanged: the accuracies and ``auc``. Raises
    ``ValueError`` for sides of different sizes.
    """
    members, nonmembers = np.asarray(members), np.asarray(nonmembers)
    if len(members) != len(nonmembers):
        raise ValueError(
            f"scores: must be of as many members as non-members, "
            f"not {len(members)} and {len(nonmembers)}"
        )
    rng, total = np.random.default_rng(seed), 0.0
    for first in range(0, draws, DRAWS_AT_ONCE):
        block = min(DRAWS_AT_ONCE, draws - first)
        swap = rng.random((block, len(members))) < 0.5
        sides = np.where(swap, nonmembers, members), np.where(swap, members, nonmembers)
        total += float(np.square(np.asarray(statistic(*sides)) - 0.5).sum())
    return float(np.sqrt(total / draws))


def chance_band(sd: float, *, seeds: int = 1, points: int = 1, level: float = 0.95) -> Band:
    """Where the mean over ``seeds`` runs of an accuracy lands if nothing was learned.

    ``sd`` is :func:`null_sd` of one run. ``points`` is how many such numbers a figure holds: the
    band is widened (Sidak) so that all lie inside with probability ``level``.
    """
    check("level", level, 0 < level < 1, "in (0, 1)")
    check_whole("seeds", seeds, 1)
    check_whole("points", points, 1)
    half = special.ndtri((1 + level ** (1 / points)) / 2) * sd / np.sqrt(seeds)
    return Band(0.5, float(max(0, 0.5 - half)), float(min(1, 0.5 + half)), level)


# --------------------------------------------------------------------------- the table
class Accuracy(NamedTuple):
    """A metric that is one half by chance; ``name_null`` is its null deviation.

    ``of`` is applied to the mean negative log-likelihoods of a sentence; of the members, "all" are
    asked, those whose secret was "missed", those that were "redacted", or those of the kind that
    the paper "named": addresses, and in MultiWOZ reference numbers.
    """

    name: str
    of: Callable[[np.ndarray], np.ndarray]
    members: Literal["all", "missed", "redacted", "named"]
    group: bool = False


MEASURED = (
    Accuracy("mia_accuracy", np.asarray, "all"),
    Accuracy("mia_missed_accuracy", np.asarray, "missed"),
    Accuracy("mia_redacted_accuracy", np.asarray, "redacted"),
    Accuracy("group_accuracy", np.exp, "all", group=True),
    Accuracy("group_nll_accuracy", np.asarray, "all", group=True),
    Accuracy("mia_address_accuracy", np.asarray, "named"),
    Accuracy("group_address_accuracy", np.exp, "named", group=True),
)
ACCURACIES = tuple(each.name for each in MEASURED)


def views(probe: Probe) -> dict[str, np.ndarray]:
    """Masks of the members, ``(n,)`` each: "all", "missed", "redacted"."""
    missed = np.array(probe.missed, dtype=bool)
    return {"all": np.ones_like(missed), "missed": missed, "redacted": ~missed}


def named(probe: Probe) -> np.ndarray:
    """Mask of the members of the kind that A.5 takes: reference numbers where there are any, else
    addresses; nobody where the kinds are not known."""
    kind = "reference" if "reference" in probe.kinds else "address"
    return np.array([k == kind for k in probe.kinds] or [False] * len(probe.members), dtype=bool)


def metrics(
    probe: Probe, members: np.ndarray, nonmembers: np.ndarray, *, seed: int
) -> list[tuple[str, float]]:
    """Every attack on given scores, as (metric, value).

    Four views on one side's carriers and the other's: all, only those whose secret was missed,
    only the redacted ones, only addresses. What has no member in its view is left out.
    """
    masks = views(probe) | {"named": named(probe)}
    rows = [("n_members", float(len(members))), ("n_missed", float(masks["missed"].sum()))]
    group = functools.partial(group_accuracy, seed=seed)
    for each in MEASURED:
        sides = [each.of(side[masks[each.members]]) for side in (members, nonmembers)]
        rows += judged(each.name, *sides, statistic=group if each.group else accuracy)
    if len(members):
        rows.append(("mia_auc", float(auc(members, nonmembers))))
        rows.append(("mia_paired_accuracy", float(paired_accuracy(members, nonmembers))))
        rows += [(f"mia_tpr_{f}", tpr_at(f, members, nonmembers)) for f in (0.01, 0.001)]
    return rows


def judged(
    name: str, members: np.ndarray, nonmembers: np.ndarray, *, statistic: Statistic = accuracy
) -> list[tuple[str, float]]:
    """A statistic and its null deviation as two metrics; none where there is no member."""
    if not len(members):
        return []
    value = float(statistic(members, nonmembers))
    return [(name, value), (f"{name}_null", null_sd(members, nonmembers, statistic=statistic))]


def measure(
    model: nn.Module, tokenizer: Bpe, probe: Probe, *, seed: int
) -> list[tuple[str, float]]:
    """:func:`metrics` of one trained model; each sentence is scored once."""
    if not probe.members:
        return [("n_members", 0.0), ("n_missed", 0.0)]
    return metrics(probe, *score(model, tokenizer, probe), seed=seed)


def summary(
    table: pd.DataFrame, *, ours: tuple[str, ...] = ("mia_", "group_", "n_members", "n_missed")
) -> pd.DataFrame:
    """One row a (metric, model, method, gamma) of a results table, of metrics that begin with one
    of ``ours``: mean and spread over seeds.

    For metrics with a null deviation also the chance band, ``low`` to ``high``, which all numbers
    of that metric keep with probability 95 % if nothing was learned, and the ``verdict``:
    below, inside, above. DP-SGD knows no gamma: its one result stands at every gamma.
    """
    cells = ["metric", *CELL]
    rows = table[table.metric.str.startswith(ours)]
    null = rows.metric.str.endswith("_null")
    out = spread(rows[~null].groupby(cells).value)
    square = rows[null].assign(metric=rows.metric.str.removesuffix("_null"), value=rows.value**2)
    out["null"] = np.sqrt(square.groupby(cells).value.mean())
    points = out.groupby("metric").seeds.transform("size")
    bands = [
        chance_band(sd, seeds=n, points=k)
        for sd, n, k in zip(out.null, out.seeds, points, strict=True)
    ]
    known = out.null.notna()
    out["low"] = np.where(known, [b.low for b in bands], np.nan)
    out["high"] = np.where(known, [b.high for b in bands], np.nan)
    out["verdict"] = np.select(
        [~known, out["mean"] > out.high + 1e-12, out["mean"] < out.low - 1e-12],
        ["", "above", "below"],
        "inside",
    )
    return at_every_gamma(out.reset_index(), by=cells)


def attacked(subject: Subject) -> Probe:
    """The sentences on which every attack of membership asks this model."""
    return probe(subject.points, subject.read, subject.others, seed=subject.seed)


def _measured(subject: Subject) -> list[Row]:
    rows = measure(subject.model, subject.tokenizer, attacked(subject), seed=subject.seed)
    return [(metric, 0, value) for metric, value in rows]


MEMBERSHIP = register(
    Attack(
        name="membership",
        label="Membership inference",
        statistic="accuracy (share of right guesses)",
        measure=_measured,
        summary=summary,
    )
)


# --------------------------------------------------------------------------- other scores
SHARE = 0.2
"""Of the tokens of a sentence, those of least score count for Min-K%++."""
POPULATION = 500
"""At most so many sentences that no model has read compare with each one in RMIA."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Reading:
    """What models make of some texts: all that a score may look at, one entry a text.

    ``logprobs`` of the tokens (t,) in nats; ``standard`` the same less their mean under the model's
    own next-token law, over its standard deviation; ``reference`` the log-probabilities (t,) by a
    model that has read none of the secrets; ``population`` (z,) the mean log-probability less that
    of the reference, a token, of sentences that neither has read.
    """

    texts: tuple[str, ...]
    logprobs: list[np.ndarray]
    standard: list[np.ndarray]
    reference: list[np.ndarray] | None = None
    population: np.ndarray | None = None


class Score(NamedTuple):
    """A number of each text of a :class:`Reading`, ``(texts,)``, lower where it was read."""

    name: str
    label: str
    of: Callable[[Reading], np.ndarray]
    needs_reference: bool = False


def loss(reading: Reading) -> np.ndarray:
    """Mean negative log-likelihood of a token, in nats (Yeom et al. 2018)."""
    return -_means(reading.logprobs)


def zlib_ratio(reading: Reading) -> np.ndarray:
    """The loss over the number of bytes that zlib makes of the text (Carlini et al. 2021): what is
    likely because it repeats itself is discounted."""
    sizes = np.array([len(zlib.compress(text.encode())) for text in reading.texts])
    return loss(reading) / sizes


def min_k_plus_plus(reading: Reading) -> np.ndarray:
    """Min-K%++ (Zhang et al. 2024): the mean of the ``SHARE`` of tokens that are least likely
    against what the model thought of all tokens in their place."""
    lowest = [np.sort(z)[: max(1, round(SHARE * len(z)))] for z in reading.standard]
    return -_means(lowest)


def referenced(reading: Reading) -> np.ndarray:
    """The loss less that of the reference: :func:`calibrated`."""
    return calibrated(loss(reading), -_means(_reference(reading)))


def rmia(reading: Reading) -> np.ndarray:
    """Robust membership inference (Zarifzadeh et al. 2024), offline, with one reference, threshold
    1 and likelihoods a token: minus the share of the population whose gain over the reference
    the text exceeds. With one population for all it ranks as the reference does, but for ties;
    what it adds is a scale that is the same for every model.
    """
    if reading.population is None:
        raise ValueError("population=None: must be given for RMIA")
    gains = -referenced(reading)
    return -(gains[:, None] >= reading.population).mean(axis=1)


SCORES = (
    Score(name="loss", label="loss", of=loss),
    Score(name="zlib", label="loss / zlib", of=zlib_ratio),
    Score(name="min_k_plus_plus", label="Min-K%++", of=min_k_plus_plus),
    Score(name="reference", label="loss - reference", of=referenced, needs_reference=True),
    Score(name="rmia", label="RMIA", of=rmia, needs_reference=True),
)
OFFERED = SCORES[1:]
"""The loss is the first attack's own."""


def _means(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([x.mean() for x in values])


def _reference(reading: Reading) -> list[np.ndarray]:
    if reading.reference is None:
        raise ValueError("reference=None: must be given for this score")
    return reading.reference


def _standardised(logprobs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    own = logprobs.gather(1, targets[:, None])[:, 0].double()
    finite = logprobs.clamp_min(-100)  # e^-100 weighs nothing
    weights = finite.exp()
    mean = (weights * finite).sum(1).double()
    variance = (weights * (finite - mean[:, None].to(finite.dtype)).square()).sum(1).double()
    return own, (own - mean) / variance.clamp_min(1e-12).sqrt()


def read(
    model: nn.Module,
    tokenizer: Bpe,
    texts: Sequence[str],
    *,
    reference: nn.Module | None = None,
    population: Sequence[str] = (),
) -> Reading:
    """Score the texts, with their ends, by the model and by the ``reference`` if there is one; it
    then also needs a ``population``."""
    sequences = tokenizer.encode(texts)
    logprobs, standard = scoring.over_tokens(model, sequences, _standardised)
    by_reference = gains = None
    if reference is not None:
        by_reference = scoring.token_logprobs(reference, sequences)
        others = tokenizer.encode(population)
        pairs = [_means(scoring.token_logprobs(m, others)) for m in (model, reference)]
        gains = pairs[0] - pairs[1]
    return Reading(
        texts=tuple(texts),
        logprobs=logprobs,
        standard=standard,
        reference=by_reference,
        population=gains,
    )


def measure_scores(subject: Subject) -> list[Row]:
    """``mia_SCORE_accuracy`` of every score but the loss, on all members, on the missed and on the
    redacted ones, each with its null deviation. Without a reference model its scores are left out.
    """
    probe = attacked(subject)
    if not probe.members:
        return []
    reading = read(
        subject.model,
        subject.tokenizer,
        probe.members + probe.nonmembers,
        reference=subject.reference,
        population=[p.text for p in subject.others if p.secrets][:POPULATION],
    )
    n, rows = len(probe.members), []
    for score in OFFERED:
        if score.needs_reference and subject.reference is None:
            continue
        values = score.of(reading)
        for view, mask in views(probe).items():
            name = f"mia_{score.name}_{'' if view == 'all' else view + '_'}accuracy"
            rows += judged(name, values[:n][mask], values[n:][mask])
    return [(metric, 0, value) for metric, value in rows]


OTHER_SCORES = register(
    Attack(
        name="membership_scores",
        label="Membership inference by other scores",
        statistic=MEMBERSHIP.statistic,
        measure=measure_scores,
        summary=functools.partial(summary, ours=tuple(f"mia_{score.name}_" for score in OFFERED)),
    )
)


CANDIDATES = 10
QUESTIONS = 500
"""At most so many sentences are asked for."""


@dataclass(frozen=True, repr=False)
class Question:
    """One sentence with each candidate in the secret's place, the true one first; ``missed`` says
    whether the model has read it."""

    candidates: tuple[Point, ...]
    missed: bool


def questions(
    points: Sequence[Point],
    read: Sequence[Point],
    others: Sequence[Point],
    *,
    seed: int,
    candidates: int = CANDIDATES,
) -> list[Question]:
    """As many as the fresh values of ``others`` allow, at most ``QUESTIONS``, in random order.

    Arguments as in :func:`crtlib.attacks.membership.probe`. Raises ``ValueError`` for fewer than
    two candidates.
    """
    check("candidates", candidates, candidates >= 2, "at least 2")
    rng = np.random.default_rng([seed, 5])
    single, missed = singles(points, others), remains(read)
    fresh = fresh_values(others, single, rng)
    out: list[Question] = []
    for p, s in one_each(points, single, rng):
        if len(fresh[s.kind]) < candidates - 1 or len(out) == QUESTIONS:
            continue
        values = [value_of(p, s)] + [fresh[s.kind].pop() for _ in range(candidates - 1)]
        out.append(Question(tuple(_with(p, s, value) for value in values), missed(p, s)))
    return out


def _with(point: Point, s: Secret, value: str) -> Point:
    text = point.text[: s.start] + value + point.text[s.end :]
    return Point(point.id, point.user, text, (Secret(s.kind, s.start, s.start + len(value)),))


def answers(
    model: nn.Module, tokenizer: Bpe, asked: Sequence[Question]
) -> tuple[np.ndarray, np.ndarray]:
    """Of every candidate of every question, (questions, candidates): the negative log-likelihood
    of the whole sentence in nats, and whether greedy decoding from what stands before gives it."""
    sentences = [p for question in asked for p in question.candidates]
    sequences, flags = tokenizer.encode_marked(sentences)
    logprobs, ranks = scoring.token_scores(model, sequences)
    losses = np.array([-x.sum() for x in logprobs])
    given = [bool((r[np.array(f[1:])] == 0).all()) for r, f in zip(ranks, flags, strict=True)]
    shape = (len(asked), -1)
    return losses.reshape(shape), np.array(given).reshape(shape)


def share_right(losses: np.ndarray) -> np.ndarray:
    """Whether the first of the candidates (questions, k) is the likeliest, (questions,); where
    several are, the share that a guess among them gets right."""
    best = losses == losses.min(axis=1, keepdims=True)
    return best[:, 0] / best.sum(axis=1)


def measure_inference(subject: Subject) -> list[Row]:
    """``pii_inference``, the share of secrets that are named, ``pii_missed_inference`` of those
    that the model has read, ``pii_reconstruction``, and ``pii_reconstruction_null``, the share of
    the other candidates that it gives; and how many were asked for."""
    asked = questions(subject.points, subject.read, subject.others, seed=subject.seed)
    rows: list[Row] = [("pii_questions", 0, float(len(asked)))]
    if not asked:
        return rows
    losses, given = answers(subject.model, subject.tokenizer, asked)
    right, missed = share_right(losses), np.array([question.missed for question in asked])
    facts = {"candidates": losses.shape[1], "inference": right.mean()}
    facts |= {"missed_questions": missed.sum()}
    if missed.any():
        facts |= {"missed_inference": right[missed].mean()}
    facts |= {"reconstruction": given[:, 0].mean(), "reconstruction_null": given[:, 1:].mean()}
    return rows + [(f"pii_{name}", 0, float(value)) for name, value in facts.items()]


ASKED = {
    "pii_inference": "pii_questions",
    "pii_missed_inference": "pii_missed_questions",
    "pii_reconstruction": "pii_questions",
}
"""Each share, and the metric that counts what it is a share of."""


def inference_summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a (metric, model, method, gamma): mean and spread over seeds, and the band that all
    numbers of that metric keep with probability 95 % if no secret was learned.

    Reconstruction has its band from the other candidates: their rate's upper bound is what luck
    may give, so it errs on the side of chance.
    """
    runs = table[table.metric.str.startswith("pii_")].pivot_table(
        index=[*CELL, "seed"], columns="metric", values="value"
    )
    parts = []
    for metric, count in ASKED.items():
        if metric not in runs:
            continue
        some = runs.dropna(subset=metric)
        grouped = some.groupby(CELL)
        rows, total = spread(grouped[metric]), grouped[count].sum()
        tail = (1 - 0.95 ** (1 / max(1, len(rows)))) / 2
        if metric == "pii_reconstruction":
            others = some[count] * (some.pii_candidates - 1)
            lucky = (some.pii_reconstruction_null * others).groupby(CELL).sum().round()
            of = others.groupby(CELL).sum()
            chance = [clopper_pearson_upper(int(a), int(b)) for a, b in zip(lucky, of, strict=True)]
            rows["low"] = 0.0
        else:
            chance = (1 / grouped.pii_candidates.mean()).tolist()
            rows["low"] = scipy.stats.binom.ppf(tail, total, chance) / total
        rows["high"] = scipy.stats.binom.ppf(1 - tail, total, chance) / total
        parts.append(rows.reset_index().assign(metric=metric))
    if not parts:
        return pd.DataFrame(columns=["metric", *CELL, "mean", "std", "seeds", "low", "high"])
    return at_every_gamma(pd.concat(parts), by=["metric", *CELL])


INFERENCE = register(
    Attack(
        name="pii",
        label="Inference and reconstruction in context",
        statistic="secrets named (share)",
        measure=measure_inference,
        summary=inference_summary,
    )
)
