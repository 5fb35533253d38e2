"""A guarantee with all its parts, and the miss rate that it stands on.

>>> MissRate.measured(0, 200).bound < 0.015
True
"""

from __future__ import annotations

from dataclasses import dataclass

from crtlib.accounting.ledger import describe_relation
from crtlib.checks import check, check_shares
from crtlib.intervals import at_most, clopper_pearson_upper, upwards


@dataclass(frozen=True)
class MissRate:
    """The rate at which a screening policy misses secrets: assumed, or measured on labels.

    >>> print(MissRate.measured(0, 200))
    0 (measured: 0 of 200, 95 % upper bound 0.01487)
    """

    rate: float
    misses: int | None = None
    labelled: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        check_shares(rate=self.rate)

    @classmethod
    def measured(cls, misses: int, labelled: int, *, confidence: float = 0.95) -> MissRate:
        """The rate observed on ``labelled`` secrets, of which a policy missed ``misses``."""
        check("labelled", labelled, labelled >= 1, "at least 1")
        clopper_pearson_upper(misses, labelled, confidence=confidence)  # refuses impossible counts
        return cls(misses / labelled, misses, labelled, confidence)

    @property
    def bound(self) -> float:
        """What a guarantee may count on: the upper bound, or the rate where it is assumed."""
        return self.rate if self.upper_bound is None else self.upper_bound

    @property
    def upper_bound(self) -> float | None:
        """The one-sided Clopper-Pearson bound, or None where the rate is only assumed."""
        if self.misses is None or self.labelled is None:
            return None
        return clopper_pearson_upper(self.misses, self.labelled, confidence=self.confidence)

    def __str__(self) -> str:
        if self.upper_bound is None:
            return f"{at_most(self.rate)} (assumed)"
        held = float(-upwards(-100 * self.confidence))  # downwards: it is what one can rely on
        return (
            f"{self.rate:.4g} (measured: {self.misses} of {self.labelled}, "
            f"{held:g} % upper bound {at_most(self.upper_bound)})"
        )


@dataclass(frozen=True)
class Guarantee:
    """A guarantee that can be printed: epsilon and delta say nothing without the other fields.

    ``gamma`` and ``delta2`` are the miss rates of the redaction policy and of the conservative
    policy; None where the guarantee does not use that policy. ``public`` names what else the
    guarantee treats as known to everybody.
    """

    epsilon: float
    delta: float
    unit: str
    neighbours: str
    accountant: str
    kind: str = "differential privacy"
    gamma: MissRate | None = None
    delta2: MissRate | None = None
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
