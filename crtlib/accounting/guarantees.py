"""A guarantee with all its parts, and the bounded rates that it rests on.

>>> BoundedRate.measured(0, 200).bound < 0.015
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from crtlib.accounting.privacy_cost import describe_relation
from crtlib.checks import check_allowed, check_probabilities
from crtlib.intervals import at_most, clopper_pearson_upper, round_up_to_figures

RATE_ORIGINS = {"policy": "certain from the policy", "unknown": "unknown: no label shows a secret"}
"""The basis of a rate that was neither measured nor assumed."""


class CountedRate(Protocol):
    """What is read of a :class:`crtlib.screening.rate_values.Rate`."""

    @property
    def rate(self) -> float | None: ...
    @property
    def failures(self) -> int: ...
    @property
    def judged_secrets(self) -> int: ...
    @property
    def upper_bound(self) -> float: ...
    @property
    def origin(self) -> str: ...
    @property
    def reread_counts(self) -> tuple[int, int] | None: ...


@dataclass(frozen=True)
class BoundedRate:
    """The rate at which secrets leave a trace (gamma) or are public (delta2), with the bound that a
    guarantee relies on.

    :meth:`measured` computes the bound from the labels of one reader. A rate that
    :mod:`crtlib.screening.rates` counted already has a bound, which :meth:`from_rate` takes over.

    >>> print(BoundedRate.measured(0, 200))
    0 (measured: 0 of 200, 95 % upper bound 0.01487)
    >>> print(BoundedRate(0.05), BoundedRate(0.0, origin="certain from the policy"), sep=", ")
    0.05 (assumed), 0 (certain from the policy)
    """

    rate: float
    """The measured rate or, if nothing was measured, the certain or assumed one."""
    upper_bound: float | None = None
    """The upper bound on a measured rate; None: the rate itself is the bound."""
    failures: int | None = None
    """If measured, how many of the judged secrets leave a trace, or are public."""
    judged_secrets: int | None = None
    """If measured, how many labelled secrets were judged."""
    confidence: float = 0.95
    """The confidence with which a measured bound holds."""
    reread_counts: tuple[int, int] | None = None
    """If two people read: of the secrets that the second one found, how many the first had
    overlooked and count here, and how many there are in all."""
    origin: str = "assumed"
    """The basis of a rate that was not measured."""

    def __post_init__(self) -> None:
        check_probabilities(rate=self.rate)
        if self.upper_bound is not None:
            check_probabilities(upper_bound=self.upper_bound)

    @classmethod
    def measured(
        cls, failures: int, judged_secrets: int, *, confidence: float = 0.95
    ) -> BoundedRate:
        """The rate observed on ``judged_secrets`` that one reader found, of which ``failures``
        leave a trace, or are public, with the one-sided bound of Clopper and Pearson."""
        check_allowed("judged_secrets", judged_secrets, judged_secrets >= 1, "at least 1")
        upper_bound = clopper_pearson_upper(failures, judged_secrets, confidence=confidence)
        share = failures / judged_secrets
        return cls(share, upper_bound, failures, judged_secrets, confidence)

    @classmethod
    def from_rate(cls, rate: CountedRate, *, alpha: float) -> BoundedRate:
        """A rate that was counted on labels, with its own bound.

        Args:
            rate: A :class:`crtlib.screening.rate_values.Rate`.
            alpha: An upper bound on the chance that this bound is too low.

        Returns:
            The rate. If its bound is assumed, or holds only on average over a draw, the bound takes
            the place of the rate, without a confidence.

        Raises:
            ValueError: For a bound that is not a rate.

        Guarantee:
            The bound is the rate's own, whoever read the labels, and is not computed again. Test:
            ``tests/release/test_one_number.py::
            test_what_is_said_of_a_model_is_what_its_certificate_says``.
        """
        if rate.origin != "one_per_cluster":
            return cls(rate.upper_bound, origin=RATE_ORIGINS.get(rate.origin, "assumed"))
        return cls(
            rate.rate or 0.0,
            upper_bound=rate.upper_bound,
            failures=rate.failures,
            judged_secrets=rate.judged_secrets,
            confidence=1 - alpha,
            reread_counts=rate.reread_counts,
        )

    @property
    def bound(self) -> float:
        """What a guarantee may rely on: the upper bound, or the rate if it was not measured."""
        return self.rate if self.upper_bound is None else self.upper_bound

    def __str__(self) -> str:
        if self.upper_bound is None:
            return f"{at_most(self.rate)} ({self.origin})"
        # Rounded downwards: it is what one can rely on.
        confidence = float(-round_up_to_figures(-100 * self.confidence))
        second_reader = ""
        if self.reread_counts:
            overlooked_count, found_count = self.reread_counts
            second_reader = (
                f"; of {found_count} that a second reader found, "
                f"{overlooked_count} had been overlooked and missed"
            )
        return (
            f"{self.rate:.4g} (measured: {self.failures} of {self.judged_secrets}{second_reader}, "
            f"{confidence:g} % upper bound {at_most(self.upper_bound)})"
        )


@dataclass(frozen=True)
class Guarantee:
    """A guarantee that can be printed: epsilon and delta mean nothing without the other fields."""

    epsilon: float
    delta: float
    unit: str
    neighbouring_relation: str
    """By name, or in words if no name describes how neighbours differ."""
    accountant: str
    kind: str = "differential privacy"
    gamma: BoundedRate | None = None
    """The trace rate of the redaction policy; None if the guarantee does not use that policy."""
    delta2: BoundedRate | None = None
    """The public rate of the conservative policy; None if the guarantee does not use that one."""
    public: str = ""
    """What else the guarantee treats as known to everybody."""

    @property
    def _warning_of_removal(self) -> str:
        """What confidentiality under add/remove covers, and what it does not."""
        if self.neighbouring_relation != "add_or_remove" or "confidentiality" not in self.kind:
            return ""
        return (
            " (the paper's accounting: it covers leaving the point out, "
            "and not exchanging its secret for a mask, which costs more)"
        )

    def __str__(self) -> str:
        neighbours = describe_relation(self.neighbouring_relation, self.accountant)
        parts = [
            f"({at_most(self.epsilon)}, {at_most(self.delta)}) {self.kind}",
            f"unit: {self.unit}",
            f"neighbours: {neighbours}{self._warning_of_removal}",
            f"accountant: {self.accountant}",
        ]
        rates = (
            ("trace rate: the redacted points differ", "gamma", self.gamma, "redaction"),
            ("public rate: learned without noise", "delta2", self.delta2, "conservative"),
        )
        for name, symbol, rate, policy in rates:
            rate_text = f"{name}, {symbol} = {rate}"
            parts.append(rate_text if rate is not None else f"{policy} policy: not used")
        rests_on_counts = any(rate and rate.judged_secrets for rate in (self.gamma, self.delta2))
        public = [self.public] * bool(self.public) + ["the counts of labels"] * rests_on_counts
        if public:
            parts.append(f"treated as public: {', and '.join(public)}")
        return "; ".join(parts)
