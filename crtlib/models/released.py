"""A model of ours as a folder of ``transformers``, which loads it, generates with it and serves it.

>>> import tempfile
>>> from crtlib.models.build import build
>>> from crtlib.models.spec import ModelSpec
>>> from crtlib.text.tokenizer import train_bpe
>>> bpe = train_bpe(["hello"], vocab_size=270)
>>> folder = tempfile.mkdtemp()
>>> save(build(ModelSpec("gpt2", bpe.vocab_size, hidden=8, heads=2), 0), bpe, folder)
>>> read(folder)[1].fingerprint == bpe.fingerprint
True
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors
from torch import nn

from crtlib.files import Named
from crtlib.models import pretrained
from crtlib.models.interface import context
from crtlib.text.records import MASK
from crtlib.text.tokenizer import Bpe
from crtlib.text.tokenizer import plain as plain_tokenizer

LONGEST = 256
"""Tokens that ``generate`` writes at most where nobody says how many."""


def save(
    model: nn.Module,
    tokenizer: Bpe,
    folder: Named,
    *,
    template: str | None = None,
    base: str | None = None,
) -> None:
    """Write config, generation config with the end token, safetensors, and the tokenizer, with
    ``template`` (Jinja) as its chat template. A model with adapters is written merged, and the
    adapters alone into ``adapter/``, for the model ``base``."""
    from transformers import GenerationConfig

    folder = Path(folder)
    _tokenizer(tokenizer, folder, template, context(model))
    whole: Any = pretrained.merged(model)
    config = whole.config
    config.bos_token_id, config.eos_token_id = tokenizer.bos, tokenizer.eos
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.eos
    config.dtype = "float32"
    whole.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos, eos_token_id=tokenizer.eos,
        pad_token_id=config.pad_token_id, max_new_tokens=LONGEST,
    )  # fmt: skip
    with pretrained.quiet():
        whole.save_pretrained(folder)
    if whole is not model:
        _adapter(model, folder / "adapter", base or "")


def _adapter(model: Any, folder: Path, base: str) -> None:
    """What ``peft`` loads, without a path of this machine, and without the embeddings."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = base
    with pretrained.quiet():
        model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a form that nobody has filled in


def _tokenizer(tokenizer: Bpe, folder: Path, template: str | None, longest: int | None) -> None:
    """As ``transformers`` reads it: the begin in front of every text, ``<MASK>`` shown as it is."""
    from transformers import PreTrainedTokenizerFast

    content = json.loads(tokenizer.json)
    for added in content["added_tokens"]:
        added["special"] &= added["content"] != MASK
    backend = Tokenizer.from_str(json.dumps(content))
    first = tokenizer.bos_token
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0",
        pair=f"{first}:0 $A:0 $B:1",
        special_tokens=[(first, tokenizer.bos)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=first, eos_token=tokenizer.eos_token,
        pad_token=tokenizer.eos_token, clean_up_tokenization_spaces=False,
        **({} if longest is None else {"model_max_length": longest}),
    )  # fmt: skip
    fast.chat_template = template
    fast.save_pretrained(folder)


def read(folder: Named) -> tuple[nn.Module, Bpe]:
    """The model and the tokenizer that :func:`save` wrote."""
    folder = Path(folder)
    names = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bpe = plain_tokenizer(raw, names["bos_token"], names["eos_token"])
    return pretrained.load(folder), bpe
