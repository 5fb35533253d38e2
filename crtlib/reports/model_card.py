"""The model card that travels with a model: README.md with the front matter that hubs read.

>>> _name("a/b: c")
'"a/b: c"'
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from crtlib.reports.pages import page
from crtlib.reports.sentences import Certificate, holds, sentences

TAGS = {"dp": "differential-privacy", "bayesian_confidentiality": "confidential"}
PROMISES = ("O0", "O2", "O3", "O4", "O5", "O6")


RECURRENT = (
    "`transformers` cannot load this model: it is an LSTM or a GRU of crtlib. "
    "`crtlib generate PATH` writes with it, `crtlib.models.folder.load` opens it."
)
UNCERTIFIED = (
    "The promise stands on the numbers in it. It says nothing about text that the model did not "
    "read here, nor about what the model that it started from had read."
)


def _name(text: str) -> str:
    """A text as a YAML scalar that cannot be taken for anything else (JSON is YAML)."""
    return json.dumps(text, ensure_ascii=False)


def model_card(
    value: Certificate,
    *,
    settings: Mapping[str, Any],
    perplexity: str | None = None,
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
    return _page(
        value, settings, promises, said["O14"],
        kind=value["guarantee"]["kind"] if holds(value) else None,
        perplexity=perplexity, base=base, adapter=adapter, command=command, certified=True,
    )  # fmt: skip


def of_training(facts: Mapping[str, Any]) -> str:
    """README.md of a model that has no certificate yet: its promise is the line of the training.

    ``facts`` are those of :meth:`crtlib.experiments.own.Trained.facts`.
    """
    value = {
        "model": {
            "name": facts["name"],
            "parameters": facts["parameters"],
            "trained_parameters": facts["trained_parameters"],
            "base": {"name": facts["base"]} if facts["base"] else None,
        },
        "method": facts["method"],
        "corpus": {"turns": facts["corpus"]["points"], **facts["corpus"]},
    }
    return _page(
        value, facts["settings"], [facts["promise"]], [UNCERTIFIED], kind=facts["kind"],
        perplexity=facts["perplexity"], base=facts["base"], adapters=facts["adapters"],
        recurrent=facts["recurrent"],
    )  # fmt: skip


def _page(
    value: Certificate,
    settings: Mapping[str, Any],
    promises: Sequence[str],
    limits: Sequence[str],
    *,
    kind: str | None,
    perplexity: str | None,
    base: str | None,
    adapter: bool = False,
    adapters: bool = False,
    recurrent: bool = False,
    command: str = "",
    certified: bool = False,
) -> str:
    promised = [TAGS[kind]] if kind in TAGS else []
    front = {
        "library_name": "crtlib" if recurrent else "transformers",
        "pipeline_tag": "text-generation",
        **({"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
           if base else {}),
        "license": "other",
        "tags": ["crtlib", *promised, value["method"]["name"]],
    }  # fmt: skip
    name = value["model"]["name"]
    return page(
        "model_card.md.j2", c=value, name=name, settings=settings, promises=promises,
        front={k: _name(v) if isinstance(v, str) else [_name(t) for t in v]
               for k, v in front.items()},
        index=None if perplexity is None else {"name": _name(name), "value": _name(perplexity)},
        limits=limits, command=command, certified=certified, adapters=adapters,
        recurrent=RECURRENT if recurrent else "",
    )  # fmt: skip
