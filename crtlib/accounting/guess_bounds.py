"""What people ask about a guarantee: how often an adversary who has the model guesses right.

The adversary must decide whether a secret was in its message or was blacked out. Without the model
this is a coin toss, right in 50 cases of 100; :func:`right_guess_rate` bounds how often a guess is
right with the model. (epsilon, delta) bounds such guesses on average. It does not bound what
somebody believes after one look at the model, so no function here returns a belief.

>>> phase = SampledGaussian(1 / 90, noise_multiplier=1.063, steps=360)
>>> rates = {"trace_rate": 0.055, "public_rate": 0.0092}
>>> gain = guess_advantage(phase, copies=1, neighbouring_relation="replace", **rates)
>>> round(100 * right_guess_rate(gain), 1)
50.9
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from crtlib.accounting import accountants, privacy_cost
from crtlib.accounting.events import GroupSizes, SampledGaussian, SampledGaussians
from crtlib.accounting.privacy_loss import Array
from crtlib.checks import check_allowed, check_probabilities, check_whole_number

TRADEOFF_POINTS = 600  # epsilons at which a trade-off curve reads the profile
MAX_TRADEOFF_EPSILON = 30.0  # the largest of them
MAX_COPIES = 500  # each number of copies up to it is accounted by itself
MAX_FINE_GROUP_SIZE = 6  # groups up to this size are accounted finely, larger ones quickly


def guess_advantage(
    events: SampledGaussians,
    *,
    copies: int,
    trace_rate: float,
    neighbouring_relation: str,
    public_rate: float = 0.0,
    group: GroupSizes = 1,
) -> float:
    """The most that a guess may gain over a coin, about a value in several points or a person with
    several secrets: min(1, A(copies trace_rate) + copies public_rate).

    If j of them are in clear, the total variation distance is at most T_j. In whatever way the
    misses depend on each other, the mean of their number J is at most copies trace_rate, and E[T_J]
    is at most A(E[J]) for the least concave A above T_0, ..., T_copies (Jensen). The distance of a
    mixture from a fixed law is at most the mean of the distances.

    Args:
        events: What was done to private points.
        copies: The number of points that hold the value, or of secrets that the person has.
        trace_rate: An upper bound on the probability with which each leaves a trace.
        neighbouring_relation: As in :func:`crtlib.accounting.privacy_cost.epsilon`; "replace" if
            the value is blacked out or replaced by another one.
        public_rate: An upper bound on the probability with which each is trained on without noise.
        group: How many points one value stands for, in all events or in each, as in the same
            function.

    Returns:
        A number in [0, 1]: the share of right guesses is half of one plus this
        (:func:`right_guess_rate`).

    Raises:
        ValueError: For arguments outside their range.

    Guarantee:
        No adversary who decides whether the value was there or was blacked out gains more, however
        the misses depend on each other. Tests: ``tests/accounting/test_guess_bounds.py::
        test_the_bound_for_copies_holds_however_misses_depend``,
        ``tests/accounting/test_guess_bounds.py::test_right_guesses_are_those_of_the_best_adversary``.
    """
    check_whole_number("copies", copies, 0)
    check_allowed("copies", copies, copies <= MAX_COPIES, f"at most {MAX_COPIES}")
    check_probabilities(trace_rate=trace_rate, public_rate=public_rate)
    event_list = (events,) if isinstance(events, SampledGaussian) else tuple(events)
    sizes = (group,) * len(event_list) if isinstance(group, int) else tuple(group)
    # More values in clear reveal no less: what follows a 1 is 1.
    distances_by_count = [0.0] + [1.0] * copies
    for j in range(1, copies + 1):
        group_sizes = tuple(j * size for size in sizes)
        distances_by_count[j] = _total_variation_distance(
            event_list, group_sizes, neighbouring_relation=neighbouring_relation
        )
        if distances_by_count[j] >= 1:
            break
    distances = np.maximum.accumulate(distances_by_count)
    bound = concave_majorant(distances.tolist(), copies * trace_rate)
    return min(1.0, bound + copies * public_rate)


@lru_cache(maxsize=4096)
def _total_variation_distance(
    events: tuple[SampledGaussian, ...], group: tuple[int, ...], *, neighbouring_relation: str
) -> float:
    """A bound on the total variation distance for a group in clear; for a large one, to 1e-3."""
    curve = privacy_cost.privacy_profile(
        events, "pld", neighbouring_relation=neighbouring_relation, group=group,
        coarse=max(group, default=0) > MAX_FINE_GROUP_SIZE,
    )  # fmt: skip
    return curve.delta(0.0)


def concave_majorant(values: Sequence[float], position: float) -> float:
    """The value at ``position`` of the least concave function above ``values`` at 0, 1, and so on.

    >>> concave_majorant([0, 0, 1], 0.5)
    0.25
    """
    points = np.array(values, dtype=float)
    index = np.arange(len(points))
    i, j = index[index <= position, None], index[index > position]
    slopes = (points[j] - points[i]) / (j - i)
    chords = points[i] + slopes * (position - i)  # each that is over ``position``
    point = points[int(position)] if position == int(position) else -math.inf
    return float(chords.max(initial=point))


def right_guess_rate(advantage: float) -> float:
    """How often a guess between two worlds is right at most, if a coin chooses the world: half of
    one plus the total variation distance. Times 100 it is "of 100 guesses".

    >>> right_guess_rate(0.2)
    0.6
    """
    check_probabilities(advantage=advantage)
    return (1 + advantage) / 2


def value_guess_rate(epsilon: float, *, delta: float, prior: float) -> float:
    """How often the value of a missed secret is guessed at most, among the values that the policies
    would have treated in the same way: e^epsilon prior + delta.

    This is the definition of (epsilon, delta)-DP, applied to the event that the guess is right, and
    averaged over the prior.

    Args:
        epsilon: The epsilon for a *missed* secret. Which secrets a policy misses depends on their
            values, so random redaction must not be counted here.
        delta: The delta for a missed secret.
        prior: The chance of a right guess without the model, among the values that ``pi`` would
            miss in this place and, if anything is learned without noise, that ``pi_c`` would flag
            there. The model may show that a value was learned with noise, which tells a rare name
            from all common ones: if 990 of 1,000 names are common words, a rare one then has a
            prior of 1/10, not of 1/1,000.

    Returns:
        A chance, at most 1.

    Raises:
        ValueError: For an epsilon or a prior outside its range.

    Guarantee:
        No adversary names the value more often. Test: ``tests/accounting/test_guess_bounds.py::
        test_a_value_is_guessed_at_most_as_often_as_is_said``.

    >>> round(value_guess_rate(1.0, delta=1e-6, prior=0.01), 6)
    0.027184
    """
    check_allowed("epsilon", epsilon, epsilon >= 0, "at least 0")
    check_allowed("prior", prior, 0 < prior <= 1, "in (0, 1]")
    return min(1.0, math.exp(min(epsilon + math.log(prior), 0.0)) + delta)


def tradeoff_curve(
    events: SampledGaussians,
    type_i: Sequence[float] | Array,
    *,
    neighbouring_relation: str,
    group: GroupSizes = 1,
    trace_rate: float = 1.0,
    public_rate: float = 0.0,
) -> Array:
    """The trade-off curve of composed events (f-DP; Dong, Roth and Su 2022): at the type I errors
    ``type_i``, each in [0, 1], no test between two worlds has a smaller type II error. A type I
    error is to say "it was in the text" when it was not, a type II error is to miss it when it was.
    A coin has 1 - type I.

    It is the maximum over epsilon of 1 - delta - e^epsilon type_i and e^-epsilon (1 - delta -
    type_i) (Wasserman and Zhou 2010), with delta(epsilon) from the accountant "pld": always on the
    safe side. For adding or removing, it holds for both directions. With a ``trace_rate`` below 1
    or a ``public_rate``, it is the curve for a secret that may have been redacted: each
    (epsilon, delta) becomes that of Theorem 8.3.

    >>> phase = SampledGaussian(0.01, noise_multiplier=1.27053328, steps=1000)
    >>> errors = [0.01, 0.1, 0.5]
    >>> tradeoff_curve(phase, errors, neighbouring_relation="replace").round(3).tolist()
    [0.965, 0.78, 0.305]
    """
    type_i_errors = np.asarray(type_i, dtype=float)
    for worst in (type_i_errors.min(), type_i_errors.max()) if type_i_errors.size else ():
        check_probabilities(type_i=float(worst))
    check_probabilities(trace_rate=trace_rate, public_rate=public_rate)
    curve = privacy_cost.privacy_profile(
        events, "pld", neighbouring_relation=neighbouring_relation, group=group
    )
    epsilons, deltas = _sample_profile(curve)
    deltas = trace_rate * deltas[:, None] + public_rate
    slopes = 1 + trace_rate * np.expm1(epsilons)[:, None]
    lines = np.maximum(1 - deltas - slopes * type_i_errors, (1 - deltas - type_i_errors) / slopes)
    return np.asarray(np.maximum(0.0, lines.max(axis=0)))


@lru_cache(maxsize=8)
def _sample_profile(curve: accountants.PrivacyProfile) -> tuple[Array, Array]:
    """Return epsilons, and a profile's deltas there, each (TRADEOFF_POINTS,)."""
    epsilons = np.linspace(
        0, min(curve.answer(1e-9).value, MAX_TRADEOFF_EPSILON) + 1e-3, TRADEOFF_POINTS
    )
    return epsilons, curve.deltas(epsilons)
