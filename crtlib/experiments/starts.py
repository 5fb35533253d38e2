"""The model before it reads the corpus: random, trained on public text, or pre-trained elsewhere.

>>> from crtlib.experiments.crt import CrtStudy
>>> from crtlib.text.tokenizer import train_bpe
>>> study = CrtStudy(method="sgd", model="lstm", gamma=0.0, seed=0, embedding=8, hidden=8)
>>> model, spec = initial(study, train_bpe(["a word or two"], vocab_size=300))
>>> type(model).__name__, spec.hidden
('RecurrentLM', 8)
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from crtlib.models import pretrained
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.text import corpora, units
from crtlib.text.tokenizer import Bpe
from crtlib.training import schedules
from crtlib.training.loop import train

if TYPE_CHECKING:
    from crtlib.experiments.crt import CrtStudy

PUBLIC_DIALOGUES = 1000
"""At most so many dialogues of a public corpus initialise a model."""


def initial(study: CrtStudy, tokenizer: Bpe) -> tuple[nn.Module, ModelSpec | None]:
    """The model before it reads the corpus: random weights, those of a pre-trained model, or
    weights that were trained here on public text."""
    if study.brings_vocabulary:
        model: Any = pretrained.pretrained(pretrained.place(study.init), tokenizer)
        kind = model.config.model_type
        if study.model not in ("pretrained", kind):
            raise ValueError(f"model={study.model!r}: init={study.init!r} is a {kind}")
        if study.lora:
            model = pretrained.with_lora(
                model,
                study.lora,
                seed=study.seed,
                alpha=study.lora_alpha,
                targets=study.lora_targets,
            )
        return model, None
    spec = replace(study.shape(), vocab_size=tokenizer.vocab_size)
    model = build(spec, study.seed)
    if study.init != "random":
        start = _public_start(study.init, study.init_epochs, spec, study.seed, tokenizer)
        model.load_state_dict(start)
    return model, spec


@functools.lru_cache(maxsize=4)
def _public_start(
    corpus: str, epochs: int, spec: ModelSpec, seed: int, tokenizer: Bpe
) -> dict[str, object]:
    """Weights after ordinary training on a public corpus, read with the run's own vocabulary."""
    public = corpora.load(corpus, limit=PUBLIC_DIALOGUES)
    texts = (p.text for p in units.points(public, unit="turn"))
    sequences = [ids[: spec.context] for ids in tokenizer.encode(texts)]
    rate = {"gpt2": 3e-3}.get(spec.kind, 1e-2)
    phases = schedules.sgd(epochs=epochs, batch_size=32, learning_rate=rate)
    return train(build(spec, seed), phases, {"public": sequences}, seed=seed).model.state_dict()
