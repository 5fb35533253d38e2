"""The rates of a screened folder, with bounds for what its labels have judged by now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confide.labels import registry
from crtlib.files import StrPath
from crtlib.screening.rate_values import PolicyRates, rates_from_json
from crtlib.text import screened_folder


def is_deduplicated_by_likeness(summary: Mapping[str, Any]) -> bool:
    """Whether screening may have left a message out because it is like others: as a near duplicate,
    or by a Bloom filter. One message may then decide whether any number of others is read, so what
    is trained on such a folder has no certificate."""
    return bool(summary["dedup"] != "none" and summary["dedup_by"] != "exact")


def stored_rates(corpus: StrPath) -> PolicyRates | None:
    """The rates of a screened folder, by :func:`rates_of_screened_folder`; None for any other
    text."""
    return rates_of_screened_folder(corpus) if screened_folder.is_screened_folder(corpus) else None


def rates_of_screened_folder(folder: StrPath) -> PolicyRates:
    """The rates of a screened folder, as counted when it was made, with bounds for all pairs that
    were judged by now, since this pair was chosen from these. Raises ``ValueError`` if the labels
    that judged it were read again since."""
    summary = screened_folder.read_screening_summary(folder)
    labels = summary["labels"] or {"judged": 1, "sha256": None}
    registry.refuse_earlier_reading(labels["sha256"], labels.get("reading_sha256"))
    judged_until_now = registry.register_judged_pairs(
        {"labels": labels["sha256"]}, summary["corpus_sha256"]
    )
    return rates_from_json(summary["rates"], policy_pairs=max(labels["judged"], judged_until_now))
