"""The model card that travels with a model: README.md with the front matter that hubs read.

>>> _name("a/b: c")
'"a/b: c"'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crtlib.reports.pages import page

TAGS = {"dp": "differential-privacy", "bayesian_confidentiality": "confidential"}


def _name(text: str) -> str:
    """A text as a YAML scalar that cannot be taken for anything else (JSON is YAML)."""
    return json.dumps(text, ensure_ascii=False)


def of_training(facts: Mapping[str, Any]) -> str:
    """README.md of a trained model: what it is, was trained on and may give away, as the line of
    the training promises it. Nothing of the text that was trained on is in it.

    ``facts`` are those of a :class:`crtlib.experiments.own.Trained`.
    """
    base, kind = facts["base"], facts["kind"]
    front = {
        "library_name": "crtlib" if facts["recurrent"] else "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base, "base_model_relation": "finetune"} if base else {}),
        "license": "other",
        "tags": ["crtlib", *([TAGS[kind]] if kind in TAGS else []), facts["method"]["name"]],
    }
    quoted = {
        key: _name(value) if isinstance(value, str) else [_name(tag) for tag in value]
        for key, value in front.items()
    }
    index = [_name(facts[name]) for name in ("name", "perplexity") if facts[name]]
    return page("model_card.md.j2", f=facts, front=quoted, index=index)
