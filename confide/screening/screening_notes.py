"""What a reader of a screening's numbers must know, a sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from confide.screening.screened_rates import is_deduplicated_by_likeness
from crtlib.arguments import argument
from crtlib.intervals import count_of
from crtlib.screening import (
    bound_levers,
    policy_names,
)
from crtlib.screening.rate_values import RATE_NAMES, PolicyRates, Rate
from crtlib.screening.taught_text import Shift

TWO_READERS_NOTE = (
    "no number for all secrets: two people read, and how many secrets of a message both overlook "
    "is not known; the table is for one secret in each message"
)


def list_screening_notes(
    summary: dict[str, Any],
    counted: PolicyRates,
    shifts: Sequence[Shift],
    *,
    was_read: bool,
) -> list[str]:
    """What a reader of the numbers must know, a sentence each. ``was_read``: people read turns from
    this text to judge the policies."""
    notes = [
        f"a policy was taught, and of this text {s}; its numbers are for text like its labels"
        for s in shifts
    ]
    if unread := (summary["labels"] or {}).get("unread", 0):
        notes.append(
            f"{count_of(unread, 'turn that was drawn was', 'turns that were drawn were')} not "
            "read: each counts as a secret on which the policies fail"
        )
    elif counted.trace.origin == "unknown":
        notes.append(
            (
                "no turn that was read has a secret, so"
                if was_read
                else f"without {argument('labels')}"
            )
            + " nothing is known about what was missed, "
            + (
                "so a certificate promises of each secret what it does of one that was missed"
                if counted.public.origin == "policy"  # so no secret is learned without noise
                else "and a certificate will be void"
            )
        )
    elif counted.trace.failures and counted.trace.origin == "one_per_cluster":
        second_reading = (summary["labels"] or {}).get("read_twice")
        disputed = second_reading["doubted"] if second_reading else "all"
        if disputed:
            notes.append(
                f"{count_of(counted.trace.failures, 'label decides', 'labels decide')} the bound "
                f"of the trace rate, {disputed} of them by one reader alone; 'crtlib label "
                "adjudicate' writes what to read again"
            )
    for name in ("trace", "public"):
        rate: Rate = getattr(counted, name)
        if rate.origin == "one_per_cluster" and rate.judged_secrets:
            notes.append(f"{name}: {bound_levers.name_bound_lever(rate, alpha=counted.alpha)}")
    if counted.left_out_points:
        notes.append(
            f"{count_of(counted.left_out_points, 'labelled point is', 'labelled points are')} of "
            "people who taught a policy, or drawn before it was sealed: the rates are for all "
            "others"
        )
    if summary["unit"] == "user" and summary["points"] == 1:
        notes.append(
            "one person wrote all of it, so nothing can be promised about a person: screen it with "
            f"{argument('unit', 'turn', 'dialogue')}"
        )
    if not summary["redacted_spans"]:
        notes.append("pi flagged nothing, so nothing was redacted")
    if not summary["public"]:
        notes.append("no point is public, so CRT is DP-SGD on redacted text")
    supplied = policy_names.user_supplied_parts(f"{summary['policy']}+{summary['conservative']}")
    if supplied:
        notes.append(
            f"it is assumed that {' and '.join(supplied)} "
            f"{'was' if len(supplied) == 1 else 'were'} "
            "not made from this text: a message that decided their content would decide how others "
            "are read"
        )
    if is_deduplicated_by_likeness(summary):
        notes.append(
            f"duplicates were decided by likeness ({summary['dedup_by']}), so one message "
            "may decide whether others are read: nothing trained on this folder has a certificate"
        )
    return notes


def describe_all_secrets(counted: PolicyRates) -> list[str]:
    """Sentences on what the rates are about, and on the rates over all secrets if the drawn
    messages hold several, with a warning if the two differ by more than their error. Promises are
    about one secret in a message."""
    each = {name: rate for name in RATE_NAMES if (rate := getattr(counted, name)).all_secrets}
    if not each:
        was_read_twice = any(getattr(counted, name).reread_counts for name in RATE_NAMES)
        return [TWO_READERS_NOTE] if was_read_twice else []
    cap = max(rate.all_secrets.cap for rate in each.values())
    owner = "person" if counted.cluster == "user" else "conversation"
    shares = "; ".join(
        f"{name} {100 * rate.all_secrets.share:.1f}, at most "
        f"{math.ceil(1000 * rate.all_secrets.upper) / 10}"
        for name, rate in each.items()
    )
    notes = [
        f"the table is per 100 messages that hold a secret (one message per {owner}, one secret "
        f"per message); per 100 secrets in messages so drawn (at most {cap} from one): {shares} "
        "(each bound on its own)"
    ]
    more = [n for n, rate in each.items() if rate.all_secrets.share > rate.upper_bound]
    less = [n for n, rate in each.items() if (rate.rate or 0) > rate.all_secrets.upper]
    if more:
        notes.append(
            f"{' and '.join(more)}: more of 100 secrets fail than the table's bound for messages "
            "allows: messages with many secrets fail more often, and a promise is about one secret "
            "in a message"
        )
    if less:
        notes.append(
            f"{' and '.join(less)}: fewer of 100 secrets fail than of 100 messages, by more than "
            "the error: messages with few secrets fail more often"
        )
    return notes
