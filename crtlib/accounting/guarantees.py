"""A guarantee with all its parts, and the bounded rates that it stands on.

>>> BoundedRate.measured(0, 200).bound < 0.015
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crtlib.accounting.privacy_cost import describe_relation
from crtlib.checks import check_allowed, check_probabilities
from crtlib.intervals import at_most, clopper_pearson_upper, round_up_to_figures

RATE_ORIGINS = {"policy": "certain from the policy", "unknown": "unknown: no label shows a secret"}
"""What a rate stands on that nobody measured, where it is not assumed."""


@dataclass(frozen=True)
class BoundedRate:
    """The rate at which secrets leave a trace (gamma), or are public (delta2), with the bound that
    a
    guarantee counts on: ``upper_bound``, or where that is None the ``rate``, which is then certain
    or assumed.

    Of a rate that was measured on labels: ``count`` of ``labelled`` secrets, the ``confidence`` of
    the bound, and where two people read, ``again``: of the secrets that the second one found, how
    many the first had overlooked and count here, and how many they are. No bound is computed
    from these counts here, but by :meth:`measured`, for one reader: what was counted by
    :mod:`crtlib.screening.rates` has its bound, and :meth:`counted` takes it. ``origin`` says what
    a rate stands on that was not measured.

    >>> print(BoundedRate.measured(0, 200))
    0 (measured: 0 of 200, 95 % upper bound 0.01487)
    >>> print(BoundedRate(0.05), BoundedRate(0.0, origin="certain from the policy"), sep=", ")
    0.05 (assumed), 0 (certain from the policy)
    """

    rate: float
    upper_bound: float | None = None
    count: int | None = None
    labelled: int | None = None
    confidence: float = 0.95
    again: tuple[int, int] | None = None
    origin: str = "assumed"

    def __post_init__(self) -> None:
        check_probabilities(rate=self.rate)
        if self.upper_bound is not None:
            check_probabilities(upper_bound=self.upper_bound)

    @classmethod
    def measured(cls, count: int, labelled: int, *, confidence: float = 0.95) -> BoundedRate:
        """The rate observed on ``labelled`` secrets that one reader found, of which
        ``count`` leave a trace, or are public, with the one-sided bound of Clopper and Pearson."""
        check_allowed("labelled", labelled, labelled >= 1, "at least 1")
        upper = clopper_pearson_upper(count, labelled, confidence=confidence)
        return cls(count / labelled, upper, count, labelled, confidence)

    @classmethod
    def counted(cls, row: Mapping[str, Any], *, alpha: float) -> BoundedRate:
        """A rate with its own bound, as ``summary.json`` and a certificate have it.

        Args:
            row: The rate as :meth:`crtlib.screening.rates.Rate.to_json` gives it.
            alpha: The chance with which that bound may be too low.

        Returns:
            The rate. Where the row's bound is assumed, or holds on average over a draw, it stands
            in the place of the rate, without a confidence.

        Raises:
            ValueError: For a bound that is no rate.

        Guarantee:
            The bound is the row's own, whoever read the labels, and is not computed again. Test:
            ``tests/release/test_one_number.py::
            test_what_is_said_of_a_model_is_what_its_certificate_says``.
        """
        if row["how"] != "one_per_cluster":
            return cls(row["upper"], origin=RATE_ORIGINS.get(row["how"], "assumed"))
        pair = row.get("again")
        return cls(
            row["rate"] or 0.0,
            upper_bound=row["upper"],
            count=row["count"],
            labelled=row["of"],
            confidence=1 - alpha,
            again=pair and (pair[0], pair[1]),
        )

    @property
    def bound(self) -> float:
        """What a guarantee may count on: the upper bound, or the rate where it is assumed."""
        return self.rate if self.upper_bound is None else self.upper_bound

    def __str__(self) -> str:
        if self.upper_bound is None:
            return f"{at_most(self.rate)} ({self.origin})"
        held = float(
            -round_up_to_figures(-100 * self.confidence)
        )  # downwards: it is what one can rely on
        twice = ""
        if self.again:
            overlooked, found = self.again
            twice = f"; of {found} of a second reader {overlooked} were overlooked and missed"
        return (
            f"{self.rate:.4g} (measured: {self.count} of {self.labelled}{twice}, "
            f"{held:g} % upper bound {at_most(self.upper_bound)})"
        )


@dataclass(frozen=True)
class Guarantee:
    """A guarantee that can be printed: epsilon and delta say nothing without the other fields.

    ``gamma`` and ``delta2`` are the trace rate of the redaction policy and the public rate of the
    conservative one; None where the guarantee does not use that policy. ``public`` names what else
    the guarantee treats as known to everybody.
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    accountant: str
    kind: str = "differential privacy"
    gamma: BoundedRate | None = None
    delta2: BoundedRate | None = None
    public: str = ""

    @property
    def _paper(self) -> str:
        """What confidentiality under add/remove is, and what it is not."""
        if self.neighbours != "add_or_remove" or "confidentiality" not in self.kind:
            return ""
        return (
            " (the paper's accounting: it covers leaving the point out, "
            "and not exchanging its secret for a mask, which costs more)"
        )

    def __str__(self) -> str:
        said = [
            f"({at_most(self.epsilon)}, {at_most(self.delta)}) {self.kind}",
            f"unit: {self.unit}",
            f"neighbours: {describe_relation(self.neighbours, self.accountant)}{self._paper}",
            f"accountant: {self.accountant}",
        ]
        rates = (
            ("trace rate: the redacted points differ", "gamma", self.gamma, "redaction"),
            ("public rate: learned without noise", "delta2", self.delta2, "conservative"),
        )
        for name, symbol, rate, policy in rates:
            used = f"{name}, {symbol} = {rate}"
            said.append(used if rate is not None else f"{policy} policy: not used")
        counted = any(rate and rate.labelled for rate in (self.gamma, self.delta2))
        if known := [self.public] * bool(self.public) + ["the counts of labels"] * counted:
            said.append(f"treated as public: {', and '.join(known)}")
        return "; ".join(said)
