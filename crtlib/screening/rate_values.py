"""Rates of a pair of policies as values: what was counted, its upper bound, and their JSON.

What the three rates mean, and how they are counted, is said in :mod:`crtlib.screening.rates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from crtlib.checks import check_allowed
from crtlib.intervals import clopper_pearson_upper, count_of
from crtlib.screening.secret_shares import ShareOfSecrets

RATE_NAMES = ("miss", "trace", "public")
RATES_ALPHA = 0.05
"""The trace and public bounds hold together with a probability of at least 1 - RATES_ALPHA."""

RateOrigin = Literal["one_per_cluster", "exchangeable", "assumed", "policy", "unknown"]
ClusterUnit = Literal["user", "dialogue"]

TOO_FEW_LABELS = 0.25
"""Where the bound for a group exceeds the observed share by more than this, only the lack of labels
makes it so large, and it says nothing about the policy."""


@dataclass(frozen=True)
class Rate:
    """The rate at which secrets fail, with an upper bound.

    ``failures`` of the ``judged_secrets``, one secret from each cluster, fail; ``upper_bound``
    bounds their rate. ``origin`` states where the bound comes from: counted on labels
    (``one_per_cluster``, or ``exchangeable`` for a bound on the mean over the draw of labels),
    ``assumed``, certain from the ``policy``, or ``unknown``. ``labelled_counts``: how many of all
    labelled secrets fail, and how many labelled secrets there are; these have no bound.
    ``reread_counts``, where turns were read twice, counts randomly drawn turns in which the second
    reader found a secret: first those in which the first reader had marked nothing and the secret
    fails, then all of them. ``all_secrets``, where messages that hold several secrets were drawn:
    the share of all secrets in such messages that fail, with a bound.
    """

    failures: int
    judged_secrets: int
    upper_bound: float
    origin: RateOrigin
    labelled_counts: tuple[int, int] | None = None
    reread_counts: tuple[int, int] | None = None
    all_secrets: ShareOfSecrets | None = None

    @property
    def rate(self) -> float | None:
        """The observed share; None where no secret was judged."""
        return self.failures / self.judged_secrets if self.judged_secrets else None

    @property
    def has_too_few_labels(self) -> bool:
        """Whether only the lack of labels makes the bound so large (:data:`TOO_FEW_LABELS`)."""
        if self.origin != "one_per_cluster" or self.rate is None:
            return False
        return self.upper_bound - self.rate > TOO_FEW_LABELS

    def describe_with_lack_of_labels(self) -> str:
        """The rate as it is printed, followed by the reason where only the lack of labels makes its
        bound so large."""
        return f"{self}, due to too few labels" if self.has_too_few_labels else str(self)

    def to_json(self) -> dict[str, Any]:
        """The rate as stored in ``summary.json`` and in a certificate, below ``rates.miss``."""
        values: dict[str, Any] = {
            "count": self.failures,
            "of": self.judged_secrets,
            "rate": self.rate,
            "upper": self.upper_bound,
            "how": self.origin,
        }
        if self.labelled_counts:
            values["all"] = list(self.labelled_counts)
        if self.reread_counts:
            values["again"] = list(self.reread_counts)
        if self.all_secrets:
            values["all_secrets"] = asdict(self.all_secrets)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rate:
        """The rate that :meth:`to_json` wrote."""
        labelled, reread = (values.get(name) for name in ("all", "again"))
        share = values.get("all_secrets")
        return cls(
            failures=values["count"],
            judged_secrets=values["of"],
            upper_bound=values["upper"],
            origin=values["how"],
            labelled_counts=tuple(labelled) if labelled else None,
            reread_counts=tuple(reread) if reread else None,
            all_secrets=ShareOfSecrets(**share) if share else None,
        )

    def __str__(self) -> str:
        if self.origin == "unknown":
            return "unknown: no label shows a secret"
        bound = percent_rounded_up(self.upper_bound)
        if self.rate is None or self.origin == "policy":
            return f"at most {bound} ({self.origin})"
        suffix = " on average" if self.origin == "exchangeable" else ""
        counts = f"{self.failures} of {self.judged_secrets} ({100 * self.rate:.2f} %)"
        return f"{counts}, at most {bound}{suffix}"


def percent_rounded_up(share: float) -> str:
    """A share in per cent, rounded up, so that a bound remains a bound."""
    hundredths = min(-(-share * 10_000 // 1), 10_000)
    return f"{hundredths / 100:.2f} %"


UNKNOWN_RATE = Rate(0, 0, 1.0, "unknown")


def assumed_rate(rate: float) -> Rate:
    """A rate that nobody measured.

    >>> print(assumed_rate(0.1))
    at most 10.00 % (assumed)
    """
    check_allowed("rate", rate, 0 <= rate <= 1, "in [0, 1]")
    return Rate(0, 0, rate, "assumed")


@dataclass(frozen=True)
class PolicyRates:
    """The three rates of a pair of policies, in total and by kind of secret.

    Each bound in ``by_kind`` holds on its own; these bounds do not hold together. ``alpha`` is the
    probability with which one bound may fail. ``cluster`` is the unit from which one secret was
    taken, ``points`` the number of labelled points judged, and ``secrets`` the number of secrets in
    them. ``left_out_points`` are those of the ``left_out_clusters``: people who taught a policy,
    and whom the rates therefore do not cover. ``policy_pairs`` counts the pairs of policies that
    these labels have judged so far, this one included.
    """

    miss: Rate
    trace: Rate
    public: Rate
    by_kind: Mapping[str, Mapping[str, Rate]] = field(default_factory=dict)
    cluster: ClusterUnit = "user"
    points: int = 0
    secrets: int = 0
    left_out_points: int = 0
    policy_pairs: int = 1
    left_out_clusters: int = 0

    @property
    def alpha(self) -> float:
        """The probability with which one bound may fail: two bounds enter a guarantee for each
        pair judged so far, and all of them share :data:`RATES_ALPHA`."""
        return RATES_ALPHA / (2 * self.policy_pairs)

    @property
    def gamma(self) -> float:
        """The bound on the trace rate: gamma of Theorem 8.3."""
        return self.trace.upper_bound

    @property
    def delta2(self) -> float:
        """The bound on the public rate: delta2 of Theorem 8.3."""
        return self.public.upper_bound

    def to_json(self) -> dict[str, Any]:
        """``{miss, trace, public}.{count, of, rate, upper, how}`` and ``by_kind``."""
        return map_rates(vars(self), Rate.to_json)

    def labels_json(self) -> dict[str, Any]:
        """What a certificate states about the labels, as far as it is known here."""
        counts = {"cluster": self.cluster, "turns": self.points, "secrets": self.secrets}
        level = {"judged": self.policy_pairs, "alpha": self.alpha, "left_out": self.left_out_points}
        left_out = {"apart": self.left_out_clusters} if self.left_out_clusters else {}
        return counts | level | left_out

    def table(self) -> str:
        """The rates as a table for a terminal, at most 80 columns wide."""
        descriptions = {
            "miss": "secrets the search missed",
            "trace": "the redacted point still differs",
            "public": "a secret trained on without noise",
        }
        clusters = count_of(self.trace.judged_secrets, self.cluster, f"{self.cluster}s")
        head = f"one secret a {self.cluster}, {clusters}"
        rows = [f"{head:<42} {'count':>6} {'of':>6} {'rate':>8} {'at most':>9}"]
        for name, text in descriptions.items():
            r: Rate = getattr(self, name)
            rate = "-" if r.rate is None else f"{100 * r.rate:.2f} %"
            bound = percent_rounded_up(r.upper_bound)
            counts = f"{r.failures:>6} {r.judged_secrets:>6}"
            rows.append(f"{name:<7} {text:<34} {counts} {rate:>8} {bound:>9}")
        return "\n".join(rows)


def map_rates(rates: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """The three rates and those in ``by_kind``, with ``change`` applied to each."""
    kinds = {k: {n: change(r) for n, r in row.items()} for k, row in rates["by_kind"].items()}
    return {name: change(rates[name]) for name in RATE_NAMES} | {"by_kind": kinds}


def rates_from_json(values: Mapping[str, Any], *, policy_pairs: int = 1) -> PolicyRates:
    """The rates that ``PolicyRates.to_json`` wrote, with their bounds computed again for the
    ``policy_pairs`` that the labels have judged by now. A share of all secrets is left out where
    its recorded bound is too low for so many pairs, as it cannot be computed from the counts.

    >>> rates_from_json(PolicyRates(UNKNOWN_RATE, UNKNOWN_RATE, assumed_rate(0.1)).to_json()).delta2
    0.1
    """

    def rate(row: Mapping[str, Any]) -> Rate:
        recorded = Rate.from_json(row)
        if recorded.origin != "one_per_cluster":
            return replace(recorded, all_secrets=None)
        alpha = RATES_ALPHA / (2 * policy_pairs)
        share = recorded.all_secrets
        upper_bound = rate_upper_bound(
            recorded.failures, recorded.judged_secrets, recorded.reread_counts, alpha=alpha
        )
        return replace(
            recorded,
            upper_bound=upper_bound,
            all_secrets=share if share and share.alpha <= alpha else None,
        )

    return PolicyRates(**map_rates(values, rate), policy_pairs=policy_pairs)


def rate_upper_bound(
    failures: int,
    judged_secrets: int,
    reread_counts: Sequence[int] | None = None,
    *,
    alpha: float,
) -> float:
    """The upper bound on a rate, which is too low with a probability of at most ``alpha``.

    It is the bound of Clopper and Pearson. Where turns were read again, it is the sum of two such
    bounds, each with half of ``alpha``: one on the rate among the secrets that the first reader
    found, and one on the share of secrets that fail in turns where the first reader marked nothing.

    Args:
        failures: Secrets that fail.
        judged_secrets: Secrets that were judged, each from a different user or conversation.
        reread_counts: As in :class:`Rate`; None: nobody read again.
        alpha: The probability with which the bound may be too low.

    Returns:
        The bound, at most 1.

    Raises:
        ValueError: For impossible counts.

    Guarantee:
        It covers the rate with probability ``1 - alpha`` if the secrets were drawn independently.
        Where turns were read again, it is also assumed that both readers together find at least as
        large a share of the failing secrets as either reader alone finds of all secrets. Tests:
        ``tests/screening/test_rates.py::test_the_bound_by_two_readers_covers``,
        ``tests/screening/test_rates.py::test_what_the_first_reader_overlooked_is_added_to_the_bound``.

    >>> [
    ...     round(rate_upper_bound(0, 400, reread_counts, alpha=0.025), 4)
    ...     for reread_counts in (None, (0, 80), (0, 400))
    ... ]
    [0.0092, 0.0642, 0.0218]
    """
    if reread_counts:
        count_pairs = (failures, judged_secrets), (reread_counts[0], reread_counts[1])
        return min(1.0, sum(rate_upper_bound(*counts, alpha=alpha / 2) for counts in count_pairs))
    return clopper_pearson_upper(failures, judged_secrets, confidence=1 - alpha)
