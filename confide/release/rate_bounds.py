"""Recompute bounds on rates for all pairs of policies that their labels have judged by now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from confide import odometer_lines, spending
from confide.labels import registry
from confide.release.certifiable_run import CertifiableRun
from crtlib.screening.rate_values import RATES_ALPHA, rate_upper_bound

SpentOrHistory = TypeVar("SpentOrHistory", spending.SpentBudget, spending.SpendingHistory)


READ_SINCE_REASON = (
    "The labels that judged it were read again since: screen with their last reading, and train "
    "again."
)


def with_current_label_counts(
    trained: CertifiableRun, issued: Mapping[str, Any] | None = None
) -> CertifiableRun:
    """The training, with the bounds on its rates for as many pairs as its labels have judged by
    now, from which this pair was chosen; they may have been fewer when it began. It is void if the
    labels were read again since. ``issued``: the labels as its certificate states them; then the
    bounds are those of the time when it was issued."""
    told, rates = dict(trained.record["labels"] or {}), dict(trained.record["rates"])
    sha = trained.record["corpus"]["sha256"]
    if told and issued:
        others = told.pop("others", 0)
        told |= {"judged": max(issued["judged"], told["judged"])}
        told |= {"others": min(others, issued["others"])} if "others" in issued else {}
        replaced = max(told.get("replaced", 0), issued.get("replaced", 0))
        told |= {"replaced": replaced} if replaced else {}
    elif told:
        if registry.were_read_since(told["sha256"], told.get("reading_sha256")):
            trained = replace(trained, void_reasons=(*trained.void_reasons, READ_SINCE_REASON))
        judged = registry.register_judged_pairs({"labels": told["sha256"]}, sha)
        told = {**told, "judged": max(judged, told["judged"])}
        replaced = registry.count_replaced_turns(told["sha256"])
        told |= {"replaced": replaced} if replaced else {}
        if not told.get("others") or registry.count_other_sets(told["sha256"], sha):
            told.pop("others", None)  # unknown how many nobody read
    if trained.spent:
        trained = replace(trained, spent=with_current_bounds(trained.spent, told, sha))
    if not told or told["judged"] == trained.record["labels"]["judged"]:
        return replace(trained, record={**trained.record, "labels": told or None})

    def with_bounds_of_today(rows: Mapping[str, Any]) -> dict[str, Any]:
        """The rows with bounds recomputed from their counts. The share of all secrets does not
        follow from counts, so it is left out."""
        kept = {
            name: {n: v for n, v in row.items() if n != "all_secrets"} for name, row in rows.items()
        }
        return {name: {**row, "upper": recompute_bound(row, told)} for name, row in kept.items()}

    kinds = {kind: with_bounds_of_today(rows) for kind, rows in rates.pop("by_kind").items()}
    rates, own = with_bounds_of_today(rates), trained.files_promise
    trace, public = (rates[name]["upper"] for name in ("trace", "public"))
    own = replace(own, gamma=max(own.gamma, trace), delta2=own.delta2 and max(own.delta2, public))
    record = {**trained.record, "labels": told, "rates": {**rates, "by_kind": kinds}}
    return replace(trained, record=record, files_promise=own)


def find_issued_count(trained: CertifiableRun, rates: Mapping[str, Any]) -> dict[str, int] | None:
    """How many pairs a training's labels had judged when a certificate was issued that names no
    labels, because no promise rests on them: the number from which the bounds in its ``rates``
    follow. None if the bounds do not come from labels, or follow from no such number.

    Guarantee:
        An issued certificate can be verified whatever the labels judge later. Test:
        ``tests/test_months.py::test_a_certificate_of_a_month_is_verified_after_the_next``.
    """
    told, row = trained.record["labels"], rates["miss"]
    if not told or row["how"] != "one_per_cluster":
        return None
    sha = trained.record["corpus"]["sha256"]
    now = registry.register_judged_pairs({"labels": told["sha256"]}, sha)
    for judged in range(told["judged"], max(now, told["judged"]) + 1):
        if recompute_bound(row, {**told, "judged": judged}) == row["upper"]:
            return {"judged": judged}
    return None


def with_current_bounds(
    spent: SpentOrHistory, told: Mapping[str, Any] | None = None, corpus: str = ""
) -> SpentOrHistory:
    """What was spent before, with the bounds on its rates for as many pairs as their labels have
    judged by now. For labels that also judge this run, and for runs on its ``corpus``, that number
    is the one in ``told``, so that the bounds hold together with those of this run. Labels that
    were read again since bound nothing."""

    def later(e: odometer_lines.OdometerEntry, name: str, upper: float) -> float:
        if name not in e.counted:
            return upper
        (count, of, *again), by = e.counted[name], e.counted["labels"]
        if registry.were_read_since(by, e.counted.get("reading")):
            return 1.0
        if told and (e.corpus == corpus or by == told["sha256"]):
            ours = told
        else:
            judged = registry.register_judged_pairs({"labels": by}, e.corpus)
            ours = {"alpha": RATES_ALPHA, "judged": max(1, judged)}
        row = {"count": count, "of": of, "again": again, "how": "one_per_cluster"}
        return max(upper, recompute_bound(row, ours))

    entries = (
        replace(e, gamma=later(e, "trace", e.gamma), delta2=later(e, "public", e.delta2))
        for e in spent.entries
    )
    return replace(spent, entries=tuple(entries))


def recompute_bound(rate: Mapping[str, Any], labels: Mapping[str, Any] | None) -> float:
    """The upper bound of a rate, recomputed from its counts if it has any."""
    if rate["how"] != "one_per_cluster" or not labels:
        return float(rate["upper"])
    alpha = labels["alpha"] / (2 * labels["judged"])
    return rate_upper_bound(rate["count"], rate["of"], rate.get("again"), alpha=alpha)
