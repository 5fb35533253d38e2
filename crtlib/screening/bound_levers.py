"""Why the bound of a rate is as large as it is, and what would make it smaller.

A bound has one term, for what the first reader's labels show. Where a second reader read again, it
has a second term, for what the first reader overlooked. Part of each term was seen to fail, and
part is due to too few labels; different levers lower them.

>>> from crtlib.screening.rates import Rate, rate_upper_bound
>>> def found(count, of, again=None):
...     upper = rate_upper_bound(count, of, again, alpha=0.025)
...     return Rate(count, of, upper, "one_per_cluster", reread_counts=again)
>>> print(name_bound_lever(found(0, 441), alpha=0.025))
most of at most 0.84 % is due to too few labels (0 of 441 failed); twice as many make it 0.50 %, \
the charge of a new draw included
>>> print(name_bound_lever(found(120, 441), alpha=0.025))
most of at most 31.63 % was observed to fail (120 of 441); a better policy lowers it
>>> print(name_bound_lever(found(1, 486, (0, 100)), alpha=0.025))
at most 5.60 % is 1.31 % for what the first reader found (1 of 486 failed) and 4.29 % for what \
that reader overlooked (0 of 100 found again failed); the second is larger, due to too few turns \
read twice: with --share 1 of crtlib label adjudicate that part is 1.04 %, the charge of another \
reading included
"""

from __future__ import annotations

from crtlib.screening.rate_values import RATES_ALPHA, Rate, percent_rounded_up, rate_upper_bound

READ_AGAIN_WHOLE = 0.9
"""Once this share of the secrets was found again, reading a larger share again changes little."""


def bound_in_reach(secrets: int, share: float | None, *, alpha: float) -> float:
    """The least bound that labels can give: the bound without any failure.

    Args:
        secrets: The number of turns, each from a different user, in which the first reader found a
            secret.
        share: The share of all turns that a second reader reads whether marked or not, finding that
            share of the secrets again. None: nobody reads again.
        alpha: The probability with which the bound may be too low.

    Guarantee:
        No counts of at most this many secrets, found once and found again, give a smaller bound.
        Test: ``tests/screening/test_bound_levers.py::test_no_counts_beat_the_bound_in_reach``.

    >>> [round(bound_in_reach(486, share, alpha=0.025), 4) for share in (None, 0.2, 1)]
    [0.0076, 0.0531, 0.018]
    """
    reread_counts = None if share is None else (0, int(share * secrets))
    return rate_upper_bound(0, secrets, reread_counts, alpha=alpha)


def name_bound_lever(rate: Rate, *, alpha: float) -> str:
    """Describe the bound of a rate that was counted on labels: its terms, which of them is larger,
    and what lowers that one most. ``alpha`` is the probability with which the bound may fail
    (:attr:`crtlib.screening.rate_values.PolicyRates.alpha`). A bound of a draw or a reading still
    to come is that of one more pair of policies, since each of them judges again.

    Guarantee:
        The terms add up to the bound, and what is announced is what more labels then give. Tests:
        ``tests/screening/test_bound_levers.py::test_the_terms_make_the_bound``,
        ``tests/screening/test_bound_levers.py::test_what_more_labels_would_give_is_what_they_give``.
    """
    later_alpha = 1 / (1 / alpha + 2 / RATES_ALPHA)
    bound = percent_rounded_up(rate.upper_bound)
    counts = f"{rate.failures} of {rate.judged_secrets}"
    if rate.reread_counts is None:
        if 2 * rate.failures >= rate.upper_bound * rate.judged_secrets:
            return (
                f"most of at most {bound} was observed to fail ({counts}); "
                "a better policy lowers it"
            )
        bound_of_twice = percent_rounded_up(
            rate_upper_bound(2 * rate.failures, 2 * rate.judged_secrets, alpha=later_alpha)
        )
        return (
            f"most of at most {bound} is due to too few labels ({counts} failed); "
            f"twice as many make it {bound_of_twice}, the charge of a new draw included"
        )
    first_term, second_term = bound_terms(rate, alpha=alpha)
    unmarked_failures, reread = rate.reread_counts
    terms = (
        f"at most {bound} is {percent_rounded_up(first_term)} for what the first reader found "
        f"({counts} failed) and {percent_rounded_up(second_term)} for what that reader overlooked "
        f"({unmarked_failures} of {reread} found again failed); "
    )
    first_was_observed = 2 * rate.failures >= first_term * rate.judged_secrets
    second_was_observed = 2 * unmarked_failures >= second_term * reread
    if percent_rounded_up(first_term) == percent_rounded_up(second_term):
        terms += "they are the same, "
        if first_was_observed:
            return f"{terms}and the first was observed: a better policy lowers it"
        if second_was_observed:
            return f"{terms}and the second was observed: the first reading must be repeated"
        return f"{terms}due to too few labels: more turns, read twice, lower them"
    if first_term > second_term:
        if first_was_observed:
            return f"{terms}the first is larger, and was observed: a better policy lowers it"
        return f"{terms}the first is larger, due to too few labels: more turns lower it"
    if second_was_observed:
        return f"{terms}the second is larger, and was observed: the first reading must be repeated"
    if reread >= READ_AGAIN_WHOLE * rate.judged_secrets:
        return (
            f"{terms}the second is larger, due to too few labels: more turns, read twice, lower it"
        )
    reread_bound = percent_rounded_up(
        rate_upper_bound(unmarked_failures, rate.judged_secrets, alpha=later_alpha / 2)
    )
    return (
        f"{terms}the second is larger, due to too few turns read twice: with --share 1 of crtlib "
        f"label adjudicate that part is {reread_bound}, the charge of another reading included"
    )


def bound_terms(rate: Rate, *, alpha: float) -> tuple[float, float]:
    """The two bounds whose sum bounds a rate where turns were read twice: on what fails among what
    the first reader found, and on what fails among what the first reader overlooked."""
    if rate.reread_counts is None:
        raise ValueError("rate: was read by one person; its bound is one term")
    unmarked_failures, reread = rate.reread_counts
    return (
        rate_upper_bound(rate.failures, rate.judged_secrets, alpha=alpha / 2),
        rate_upper_bound(unmarked_failures, reread, alpha=alpha / 2),
    )
