"""The model card that travels with a model: README.md with the front matter that hubs read.

>>> _name("a/b: c")
'"a/b: c"'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crtlib.reports.pages import page
from crtlib.reports.sentences import Certificate, sentences

PROMISES = ("O0", "O2", "O3", "O4", "O5", "O6")


def _name(text: str) -> str:
    """A text as a YAML scalar that cannot be taken for anything else (JSON is YAML)."""
    return json.dumps(text, ensure_ascii=False)


def model_card(
    value: Certificate,
    *,
    settings: Mapping[str, Any],
    perplexity: float | None = None,
    base: str | None = None,
    adapter: bool = False,
    command: str = "",
) -> str:
    """README.md: front matter, and what the model is, was trained on and may give away.

    ``settings`` is every setting of the training; ``perplexity`` that of held-out text; ``base``
    the hub's id of the model that it started from; ``command`` the line that repeats it. Nothing
    of the text that was trained on is in it. The promises are the certificate's own sentences.
    """
    said = sentences(value)
    promises = [text for name in PROMISES for text in said.get(name, [])]
    tags = ["crtlib", "differential-privacy", "confidential", value["method"]["name"]]
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
           if base else {}),
        "license": "other",
        "tags": tags,
    }  # fmt: skip
    name = value["model"]["name"]
    return page(
        "model_card.md.j2", c=value, name=name, settings=settings, promises=promises,
        front={k: _name(v) if isinstance(v, str) else [_name(t) for t in v]
               for k, v in front.items()},
        index=None if perplexity is None else {"name": _name(name), "value": f"{perplexity:.4g}"},
        limits=said["O14"], command=command,
    )  # fmt: skip
