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
        f"a policy was taught, and of this text {shift}; its numbers are for text like its labels"
        for shift in shifts
    ]
    if unread := (summary["labels"] or {}).get("unread", 0):
        notes.append(
            f"{count_of(unread, 'turn that was drawn was', 'turns that were drawn were')} not "
            "read: each counts as a secret on which the policies fail"
        )
    elif counted.trace.origin == "unknown":
        why = f"without {argument('labels')}"
        if was_read:
            why = "no turn that was read has a secret, so"
        consequence = "and a certificate will be void"
        if counted.public.origin == "policy":  # so no secret is learned without noise
            consequence = (
                "so a certificate promises of each secret what it does of one that was missed"
            )
        notes.append(f"{why} nothing is known about what was missed, {consequence}")
    elif counted.trace.failures and counted.trace.origin == "one_per_cluster":
        second_reading = (summary["labels"] or {}).get("read_twice")
        disputed = second_reading["doubted"] if second_reading else "all"
        if disputed:
            notes.append(
                f"{count_of(counted.trace.failures, 'label decides', 'labels decide')} the bound "
                f"of the trace rate, {disputed} of them by one reader alone; 'crtlib label "
                "adjudicate' writes what to read again"
            )
    for rate_name in ("trace", "public"):
        rate: Rate = getattr(counted, rate_name)
        if rate.origin == "one_per_cluster" and rate.judged_secrets:
            notes.append(f"{rate_name}: {bound_levers.name_bound_lever(rate, alpha=counted.alpha)}")
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
        verb = "was" if len(supplied) == 1 else "were"
        notes.append(
            f"it is assumed that {' and '.join(supplied)} {verb} not made from this text: a "
            "message that decided their content would decide how others are read"
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
    every_rate = {name: getattr(counted, name) for name in RATE_NAMES}
    rates_of_all_secrets = {name: rate for name, rate in every_rate.items() if rate.all_secrets}
    if not rates_of_all_secrets:
        was_read_twice = any(rate.reread_counts for rate in every_rate.values())
        return [TWO_READERS_NOTE] if was_read_twice else []
    cap = max(rate.all_secrets.cap for rate in rates_of_all_secrets.values())
    owner = "person" if counted.cluster == "user" else "conversation"
    shares = "; ".join(
        f"{name} {100 * rate.all_secrets.share:.1f}, at most "
        f"{math.ceil(1000 * rate.all_secrets.upper) / 10}"
        for name, rate in rates_of_all_secrets.items()
    )
    notes = [
        f"the table is per 100 messages that hold a secret (one message per {owner}, one secret "
        f"per message); per 100 secrets in messages so drawn (at most {cap} from one): {shares} "
        "(each bound on its own)"
    ]
    more_often = [
        name
        for name, rate in rates_of_all_secrets.items()
        if rate.all_secrets.share > rate.upper_bound
    ]
    less_often = [
        name
        for name, rate in rates_of_all_secrets.items()
        if (rate.rate or 0) > rate.all_secrets.upper
    ]
    if more_often:
        notes.append(
            f"{' and '.join(more_often)}: more of 100 secrets fail than the table's bound for "
            "messages allows: messages with many secrets fail more often, and a promise is about "
            "one secret in a message"
        )
    if less_often:
        notes.append(
            f"{' and '.join(less_often)}: fewer of 100 secrets fail than of 100 messages, by more "
            "than the error: messages with few secrets fail more often"
        )
    return notes
