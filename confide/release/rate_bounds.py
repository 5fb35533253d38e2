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
    labels, rates = dict(trained.record["labels"] or {}), dict(trained.record["rates"])
    sha = trained.record["corpus"]["sha256"]
    if labels and issued:
        other_sets = labels.pop("others", 0)
        labels |= {"judged": max(issued["judged"], labels["judged"])}
        labels |= {"others": min(other_sets, issued["others"])} if "others" in issued else {}
        replaced = max(labels.get("replaced", 0), issued.get("replaced", 0))
        labels |= {"replaced": replaced} if replaced else {}
    elif labels:
        if registry.were_read_since(labels["sha256"], labels.get("reading_sha256")):
            trained = replace(trained, void_reasons=(*trained.void_reasons, READ_SINCE_REASON))
        judged = registry.register_judged_pairs({"labels": labels["sha256"]}, sha)
        labels = {**labels, "judged": max(judged, labels["judged"])}
        replaced = registry.count_replaced_turns(labels["sha256"])
        labels |= {"replaced": replaced} if replaced else {}
        if not labels.get("others") or registry.count_other_sets(labels["sha256"], sha):
            labels.pop("others", None)  # unknown how many nobody read
    if trained.spent:
        trained = replace(trained, spent=with_current_bounds(trained.spent, labels, sha))
    if not labels or labels["judged"] == trained.record["labels"]["judged"]:
        return replace(trained, record={**trained.record, "labels": labels or None})

    def with_bounds_of_today(rows: Mapping[str, Any]) -> dict[str, Any]:
        """The rows with bounds recomputed from their counts. The share of all secrets does not
        follow from counts, so it is left out."""
        recomputed = {}
        for name, row in rows.items():
            counts = {key: value for key, value in row.items() if key != "all_secrets"}
            recomputed[name] = {**counts, "upper": recompute_bound(counts, labels)}
        return recomputed

    kinds = {kind: with_bounds_of_today(rows) for kind, rows in rates.pop("by_kind").items()}
    rates, files_promise = with_bounds_of_today(rates), trained.files_promise
    trace, public = (rates[name]["upper"] for name in ("trace", "public"))
    gamma = max(files_promise.gamma, trace)
    delta2 = files_promise.delta2 and max(files_promise.delta2, public)
    files_promise = replace(files_promise, gamma=gamma, delta2=delta2)
    record = {**trained.record, "labels": labels, "rates": {**rates, "by_kind": kinds}}
    return replace(trained, record=record, files_promise=files_promise)


def find_issued_count(trained: CertifiableRun, rates: Mapping[str, Any]) -> dict[str, int] | None:
    """How many pairs a training's labels had judged when a certificate was issued that names no
    labels, because no promise rests on them: the number from which the bounds in its ``rates``
    follow. None if the bounds do not come from labels, or follow from no such number.

    Guarantee:
        An issued certificate can be verified whatever the labels judge later. Test:
        ``tests/test_months.py::test_a_certificate_of_a_month_is_verified_after_the_next``.
    """
    labels, row = trained.record["labels"], rates["miss"]
    if not labels or row["how"] != "one_per_cluster":
        return None
    sha = trained.record["corpus"]["sha256"]
    judged_now = registry.register_judged_pairs({"labels": labels["sha256"]}, sha)
    for judged in range(labels["judged"], max(judged_now, labels["judged"]) + 1):
        if recompute_bound(row, {**labels, "judged": judged}) == row["upper"]:
            return {"judged": judged}
    return None


def with_current_bounds(
    spent: SpentOrHistory, labels: Mapping[str, Any] | None = None, corpus: str = ""
) -> SpentOrHistory:
    """What was spent before, with the bounds on its rates for as many pairs as their labels have
    judged by now. For labels that also judge this run, and for runs on its ``corpus``, that number
    is the one in ``labels``, so that the bounds hold together with those of this run. Labels that
    were read again since bound nothing."""

    def current_bound(entry: odometer_lines.OdometerEntry, name: str, upper: float) -> float:
        if name not in entry.counted:
            return upper
        count, judged_secrets, *reread_counts = entry.counted[name]
        labels_hash = entry.counted["labels"]
        if registry.were_read_since(labels_hash, entry.counted.get("reading")):
            return 1.0
        if labels and (entry.corpus == corpus or labels_hash == labels["sha256"]):
            counts = labels
        else:
            judged = registry.register_judged_pairs({"labels": labels_hash}, entry.corpus)
            counts = {"alpha": RATES_ALPHA, "judged": max(1, judged)}
        row = {"count": count, "of": judged_secrets, "again": reread_counts}
        row["how"] = "one_per_cluster"
        return max(upper, recompute_bound(row, counts))

    entries = (
        replace(
            entry,
            gamma=current_bound(entry, "trace", entry.gamma),
            delta2=current_bound(entry, "public", entry.delta2),
        )
        for entry in spent.entries
    )
    return replace(spent, entries=tuple(entries))


def recompute_bound(rate: Mapping[str, Any], labels: Mapping[str, Any] | None) -> float:
    """The upper bound of a rate, recomputed from its counts if it has any."""
    if rate["how"] != "one_per_cluster" or not labels:
        return float(rate["upper"])
    alpha = labels["alpha"] / (2 * labels["judged"])
    return rate_upper_bound(rate["count"], rate["of"], rate.get("again"), alpha=alpha)
