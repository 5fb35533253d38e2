"""``crtlib card``: how often a detector is wrong, as a page, a badge and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def card(
    corpus: Annotated[Path, opt("Corpus folder or JSONL.", "place", argument="CORPUS")],
    policy: Annotated[str, opt("The detector, any policy of crtlib screen; several joined by +.")],
    labels: Annotated[Path, opt("Folder of crtlib label, read.")],
    out: Annotated[Path, opt("Folder of card.html, card.json and badge.svg.", "place")],
    force: Annotated[bool, opt("Replace a card that exists.", "place")] = False,
) -> Answer:
    """Say how often any detector misses, by kind, length, position and script, with bounds.

    Example: crtlib card corpus --policy presidio --labels labels --out card
    """
    from crtlib.reports import screening as library

    facts = library.card(corpus, policy, out, labels=labels, force=force)
    return Answer(facts, [library.card_text(facts), f"{out}/card.html   {out}/badge.svg"])
