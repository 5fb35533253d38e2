"""Leave out of a public page what it would say about a few people.

>>> people = {"name": 90, "id": 7, "phone": 1}
>>> leave_out_small_groups(people, people)
{'name': 90}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

LEAST_PEOPLE = 5
"""The least number of people with a secret in a group for its rates to be shown."""
SMALL_GROUPS_NOTE = (
    "Groups of fewer than {} {} are left out, and the smallest of the others with them where their "
    "counts would follow by subtraction."
)

Group = TypeVar("Group")


def leave_out_small_groups(
    groups: Mapping[str, Group], people: Mapping[str, int]
) -> dict[str, Group]:
    """The groups that a page for anybody may show.

    Args:
        groups: All groups into which a trait divides what a page shows in total, by name.
        people: How many people were judged in each (:func:`count_judged_people`).

    Returns:
        The groups of at least :data:`LEAST_PEOPLE`. Where one group alone is left out, or all that
        are left out have too few people, the smallest of the others is left out, too: else its
        counts, or theirs together, would be the total less what is shown.

    Guarantee:
        Test: ``tests/reports/test_small_groups.py``.
    """
    hidden = {name for name in groups if people[name] < LEAST_PEOPLE}
    for name in sorted(groups.keys() - hidden, key=lambda name: (people[name], name)):
        if not hidden or (
            len(hidden) > 1 and sum(people[other] for other in hidden) >= LEAST_PEOPLE
        ):
            break
        hidden.add(name)
    return {name: group for name, group in groups.items() if name not in hidden}


def count_judged_people(rates: Mapping[str, Mapping[str, Any]], unread: int) -> int:
    """How many people were judged in a group with these rates (``Rate.to_json``). Turns that nobody
    read are counted in every group, and are nobody's secret there."""
    return min(rate["of"] for rate in rates.values()) - unread


def show_rates_by_kind(rates: Mapping[str, Any], unread: int) -> dict[str, Any]:
    """Rates as JSON, without the kinds of which a public page may say nothing."""
    kinds = rates.get("by_kind", {})
    people = {kind: count_judged_people(row, unread) for kind, row in kinds.items()}
    return {**rates, "by_kind": leave_out_small_groups(kinds, people)}
