"""What a certificate assumes of earlier texts and of labels, a sentence each: they stand in its
JSON, and so in every line and on every page that says what it promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confide.odometer_lines import OdometerEntry

ONE_MESSAGE_ASSUMPTION = "a message of this text was one message of each earlier text"
GIVEN_LABELS_ASSUMPTION = "the labels, which nobody drew for this, are like the rest"
TWO_READERS_ASSUMPTION = (
    "of the secrets on which the search fails two readers together find at least the share that "
    "either finds of all"
)


def assume_of_earlier_texts(entries: Iterable[OdometerEntry], corpus: str) -> list[str]:
    """What a promise assumes that covers the runs of these ``entries``, too, for the text with the
    hash ``corpus``: a message that stood in another text several times was several messages there.

    Guarantee:
        The certificate, its page, ``guarantee.txt``, the model's card and the last line of
        ``train`` say it. Test: ``tests/release/test_what_is_assumed.py::
        test_every_word_of_a_promise_with_earlier_texts_carries_its_condition``.
    """
    return [ONE_MESSAGE_ASSUMPTION] * any(e.corpus != corpus for e in entries)


def assume_of_labels(record: Mapping[str, Any]) -> list[str]:
    """What the bounds of the rates in a ``record`` assume of the labels that were counted."""
    labels = record["labels"] or {}
    given = labels.get("drawn") == "given"
    twice = "again" in record["rates"]["trace"]
    return [GIVEN_LABELS_ASSUMPTION] * given + [TWO_READERS_ASSUMPTION] * twice
