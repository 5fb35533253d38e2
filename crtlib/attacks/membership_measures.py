"""How well scores tell members from others: accuracy, area under the curve, the chance band."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import scipy
from scipy import special

from crtlib.checks import check_allowed, check_probabilities, check_whole_number
from crtlib.intervals import ChanceBand

# --------------------------------------------------------------------------- the attacks
StatisticValues = float | np.ndarray
MembershipStatistic = Callable[[np.ndarray, np.ndarray], StatisticValues]
"""A function of two sides, (n,) and (m,), to a number; for (draws, n) and (draws, m), one number
per draw."""

NULL_DRAWS_AT_ONCE = 50
"""The number of draws that are scored together: more would not fit into the cache."""


def _join_sides(members: np.ndarray, nonmembers: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return the scores of both sides, (..., n + m), and n and m."""
    scores = np.concatenate([members, nonmembers], axis=-1)
    n, m = np.shape(members)[-1], np.shape(nonmembers)[-1]
    if not n or not m or not np.isfinite(scores).all():
        raise ValueError(
            f"scores: {n} members and {m} non-members, must be finite and at least one of each"
        )
    return scores, n, m


def accuracy(members: np.ndarray, nonmembers: np.ndarray) -> StatisticValues:
    """The share of right guesses if the half with the lower scores is called members (A.5).

    Sides of different sizes weigh the same, and a coin decides between scores that tie at the
    threshold: this is the point of the ROC curve where TPR + FPR = 1. Like every statistic here,
    it takes sides (n,) and (m,), or many at once, (draws, n) and (draws, m), and then returns
    (draws,).
    """
    scores, n, m = _join_sides(members, nonmembers)
    order = np.argsort(scores, axis=-1)
    called = np.cumsum(order < n, axis=-1) / n + np.cumsum(order >= n, axis=-1) / m
    half = (called >= 1 - 1e-12).argmax(axis=-1)[..., None]
    threshold = np.take_along_axis(scores, np.take_along_axis(order, half, -1), -1)
    (low, low_false), (tied, tied_false) = (
        (x[..., :n].mean(-1), x[..., n:].mean(-1))
        for x in (scores < threshold, scores == threshold)
    )
    right_share = low + tied * (1 - low - low_false) / (tied + tied_false)
    return right_share if np.ndim(right_share) else float(right_share)


def auc(members: np.ndarray, nonmembers: np.ndarray) -> StatisticValues:
    """The probability that a member scores below a non-member, with ties counted as half."""
    scores, n, m = _join_sides(members, nonmembers)
    ranks = scipy.stats.rankdata(scores, axis=-1)[..., :n].sum(-1)
    share_below = 1 - (ranks - n * (n + 1) / 2) / (n * m)
    return share_below if np.ndim(share_below) else float(share_below)


def tpr_at_fpr(fpr: float, members: np.ndarray, nonmembers: np.ndarray) -> float:
    """The largest true positive rate at a false positive rate of at most ``fpr`` (Carlini et al.
    2022).

    If ``fpr`` is below 1 / ``len(nonmembers)``, it is the share of members that score below every
    non-member.
    """
    check_probabilities(fpr=fpr)
    _, _, m = _join_sides(members, nonmembers)
    allowed = int((np.arange(1, m + 1) / m <= fpr).sum())  # so many non-members may score lower
    return float((members < np.append(np.sort(nonmembers), np.inf)[allowed]).mean())


def paired_accuracy(members: np.ndarray, nonmembers: np.ndarray) -> StatisticValues:
    """How often the lower score is that of the member, if one of the two sentences on a carrier is
    known to be one. Not in the paper; stronger than the median if carriers or kinds differ much.
    Chance is 0.5 +- 0.5/sqrt(n).
    """
    lower, equal = np.less(members, nonmembers), np.equal(members, nonmembers)
    return np.mean(lower + 0.5 * equal, axis=-1)


def group_accuracy(
    members: np.ndarray, nonmembers: np.ndarray, *, groups: int = 2000, size: int = 20, seed: int
) -> StatisticValues:
    """Group membership (A.5): the ``accuracy`` of sums of the scores of ``size`` sentences, over
    ``groups`` groups, half of which are of members. The paper sums perplexities, which a few rare
    names decide; sums of their logarithms see more.

    Each group is drawn with replacement from all sentences of its side. The 20,000 draws per side
    use the same n sentences again and again, so luck in these sentences matters: with n = 1,000 the
    null deviation is 0.04, with n = 100 it is 0.12, and no number of groups makes it smaller.
    """
    check_allowed("groups", groups, groups >= 2 and groups % 2 == 0, "even and at least 2")
    check_allowed("size", size, size >= 1, "at least 1")
    rng = np.random.default_rng(seed)
    shape = (groups // 2, size)
    sums = []
    for scores in map(np.asarray, (members, nonmembers)):
        sums.append(scores.take(rng.integers(scores.shape[-1], size=shape), axis=-1).sum(-1))
    return accuracy(*sums)


def best_possible_accuracy(missed: float) -> float:
    """The best that ``accuracy`` can do if a share ``missed`` of the members was in clear.

    All of those are in the lower half, and the rest of that half is shared by redacted members and
    non-members: 1 / (2 - missed), which is 0.526 at 0.1. (0.5 + missed / 2 would need a threshold
    that knows ``missed``.)
    """
    check_probabilities(missed=missed)
    return 1 / (2 - missed)


# --------------------------------------------------------------------------- chance


def null_std(
    members: np.ndarray,
    nonmembers: np.ndarray,
    *,
    statistic: MembershipStatistic = accuracy,
    draws: int = 400,
    seed: int = 0,
) -> float:
    """The deviation of a statistic from one half if members and non-members were exchangeable.

    It swaps the two sentences on a carrier by coin flips and takes the statistic again. For the
    group attack too, sentences are swapped, not groups, which share them. It applies to any
    :class:`MembershipStatistic` that becomes ``1 - x`` when the sides are exchanged: the accuracies
    and ``auc``. Raises ``ValueError`` for sides of different sizes.
    """
    members, nonmembers = np.asarray(members), np.asarray(nonmembers)
    if len(members) != len(nonmembers):
        raise ValueError(
            f"scores: must be for as many members as non-members, "
            f"not {len(members)} and {len(nonmembers)}"
        )
    rng, total = np.random.default_rng(seed), 0.0
    for first in range(0, draws, NULL_DRAWS_AT_ONCE):
        block = min(NULL_DRAWS_AT_ONCE, draws - first)
        swap = rng.random((block, len(members))) < 0.5
        exchanged = np.where(swap, nonmembers, members), np.where(swap, members, nonmembers)
        total += float(np.square(np.asarray(statistic(*exchanged)) - 0.5).sum())
    return float(np.sqrt(total / draws))


def accuracy_chance_band(
    sd: float, *, seeds: int = 1, points: int = 1, level: float = 0.95
) -> ChanceBand:
    """The band in which the mean accuracy over ``seeds`` runs lies if nothing was learned.

    ``sd`` is :func:`null_std` of one run. ``points`` is the number of such means in a figure: the
    band is widened (Sidak) so that all lie inside with probability ``level``.
    """
    check_allowed("level", level, 0 < level < 1, "in (0, 1)")
    check_whole_number("seeds", seeds, 1)
    check_whole_number("points", points, 1)
    half = special.ndtri((1 + level ** (1 / points)) / 2) * sd / np.sqrt(seeds)
    return ChanceBand(0.5, float(max(0, 0.5 - half)), float(min(1, 0.5 + half)), level)


# --------------------------------------------------------------------------- the table
class AccuracyMetric(NamedTuple):
    """A metric that is one half by chance; its null deviation is the metric ``NAME_null``.

    ``of`` is applied to the mean negative log-likelihoods of sentences. ``members`` selects the
    members: all, those whose secret was missed, those that were redacted, or those of the kind that
    the paper attacks (addresses, and in MultiWOZ reference numbers).
    """

    name: str
    of: Callable[[np.ndarray], np.ndarray]
    members: Literal["all", "missed", "redacted", "paper_kind"]
    group: bool = False
