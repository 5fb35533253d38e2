"""The model card: README.md of a released folder, as transformers and the hub read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crtlib.reports.pages import page


def of_training(facts: Mapping[str, Any]) -> str:
    """README.md of a trained model: what it is, was trained on and may give away, as the line of
    the training promises it. Nothing of the text that was trained on is in it.

    ``facts`` are those of a :class:`crtlib.experiments.own.Trained`.
    """
    return page("model_card.md.j2", f=facts)
