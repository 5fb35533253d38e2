"""Save and load a trained model and its tokenizer, in a local folder and never in a pickle.

>>> import tempfile
>>> try:
...     load_model(tempfile.mkdtemp() + "/none")
... except ValueError as error:
...     print(str(error).rpartition(": ")[2])
no such folder (hf download NAME --local-dir makes one)
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
from tokenizers import Tokenizer, processors
from torch import nn

from crtlib import files
from crtlib.files import StrPath
from crtlib.foreign_files import ForeignFileError, foreign_model
from crtlib.models import construction, interface, pretrained
from crtlib.models.specs import ModelSpec
from crtlib.text import tokenizer as tokenizers
from crtlib.text.records import MASK
from crtlib.text.tokenizer import AnyTokenizer, BpeTokenizer, copy_backend_tokenizer

MAX_GENERATED_TOKENS = 256
"""The most tokens that ``generate`` writes unless another number is given."""


def load_model(folder: StrPath) -> tuple[nn.Module, AnyTokenizer]:
    """Load the model and the tokenizer in a local folder, which :func:`save_model` wrote or which
    holds a causal transformers model with its fast tokenizer, as safetensors.

    Args:
        folder: On this machine; nothing is fetched.

    Returns:
        The model, on the host, and its tokenizer.

    Raises:
        ValueError: For anything else, in one line.

    Guarantee:
        No code in the folder is run, and pickled weights, which could hold code, are not opened.
        Test: ``tests/attacks/test_leakage.py::test_transformers_folders``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder (hf download NAME --local-dir makes one)")
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(p.name for s in ("bin", "pt", "pth", "pkl") for p in folder.glob(f"*.{s}"))
        content = f"only pickled weights ({pickled[0]})" if pickled else "no weights"
        raise ValueError(
            f"{folder}: holds {content}, it needs a safetensors file (model.save_pretrained)"
        )
    fault = "holds no model with its tokenizer that can be read"
    with foreign_model(folder, str(folder), fault):
        if (folder / "model.json").is_file():
            model, tokenizer, _ = load_saved_model(folder)
        else:
            from transformers import AutoTokenizer

            model = pretrained.load_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        if not (isinstance(tokenizer, BpeTokenizer) or tokenizer.is_fast):
            raise ForeignFileError("its tokenizer must be a fast one (tokenizer.json)")
        if not isinstance(tokenizer, BpeTokenizer):
            tokenizer.decode(tokenizer("a").input_ids)  # settings that it cannot use fail here
        check_vocabulary(model, tokenizer)
    return model, tokenizer


def save_model(
    model: nn.Module,
    tokenizer: BpeTokenizer,
    spec: ModelSpec | None,
    folder: StrPath,
    *,
    template: str | None = None,
    base: str | None = None,
) -> tuple[str, ...]:
    """Write a model of ours, its tokenizer and its shape to ``folder``, each file atomically.
    Return the names of the files.

    Without a ``spec``, ``transformers`` can load, generate with and serve the folder: it has the
    config, the generation config with the end token, safetensors, and the tokenizer, with
    ``template`` (Jinja) as its chat template. A model with adapters is written merged, and the
    adapters alone are written into ``adapter/``, for the model ``base``."""
    folder = Path(folder)
    if spec is None:
        from transformers import GenerationConfig

        save_fast_tokenizer(tokenizer, folder, template, interface.context_length(model))
        merged: Any = pretrained.merge_adapters(model)
        config = merged.config
        config.bos_token_id, config.eos_token_id = tokenizer.bos, tokenizer.eos
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.eos
        config.dtype = "float32"
        merged.generation_config = GenerationConfig(
            bos_token_id=tokenizer.bos, eos_token_id=tokenizer.eos,
            pad_token_id=config.pad_token_id, max_new_tokens=MAX_GENERATED_TOKENS,
        )  # fmt: skip
        with pretrained.hide_progress_bars():
            merged.save_pretrained(folder)
            if merged is not model:  # what peft loads, without a path of this machine
                adapter: Any = model
                for adapter_config in adapter.peft_config.values():
                    adapter_config.base_model_name_or_path = base or ""
                adapter.save_pretrained(folder / "adapter", save_embedding_layers=False)
                (folder / "adapter" / "README.md").unlink(missing_ok=True)  # an unfilled template
        return ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json")
    with files.replace_atomically(folder / "model.safetensors") as temporary_file:
        safetensors.torch.save_model(model, str(temporary_file))
    tokenizer.save(folder / "tokenizer.json")
    files.write_text(folder / "model.json", json.dumps(asdict(spec), indent=1) + "\n")
    return ("model.safetensors", "tokenizer.json", "model.json")


def save_fast_tokenizer(
    tokenizer: BpeTokenizer, folder: Path, template: str | None, longest: int | None
) -> None:
    """Write a tokenizer in the form that ``transformers`` reads: with the begin token in front of
    every text, and with ``<MASK>`` shown when text is decoded."""
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


def load_saved_model(folder: Path) -> tuple[nn.Module, BpeTokenizer, ModelSpec | None]:
    """The model, tokenizer and shape that :func:`save_model` wrote to ``folder``."""
    if not (folder / "model.json").is_file():
        names = json.loads(files.read_text(folder / "tokenizer_config.json"))
        raw_tokenizer = Tokenizer.from_str(files.read_text(folder / "tokenizer.json"))
        bpe = tokenizers.with_mask_token(raw_tokenizer, names["bos_token"], names["eos_token"])
        return pretrained.load_pretrained(folder), bpe, None
    spec = ModelSpec(**json.loads(files.read_text(folder / "model.json")))
    size = (folder / "model.safetensors").stat().st_size
    if max(spec.layers * spec.hidden**2, spec.vocab_size * spec.hidden) > size:  # a byte each
        fault = "its weights are fewer than model.json says"
        raise ForeignFileError(f"holds no model with its tokenizer that can be read; {fault}")
    model = construction.build_model(spec, 0)
    safetensors.torch.load_model(model, files.check_regular_file(folder / "model.safetensors"))
    return model, tokenizers.load_tokenizer(folder / "tokenizer.json"), spec


def check_vocabulary(model: nn.Module, tokenizer: AnyTokenizer) -> None:
    """Raise ``ValueError`` if the tokenizer cannot be the one that the model was trained with.

    A model may have a few more rows than the tokenizer has tokens: padding to a multiple of 64.
    """
    rows = len(interface.output_head(model).weight)
    size = copy_backend_tokenizer(tokenizer).get_vocab_size()
    is_padded = rows % 64 == 0 and 0 < rows - size < max(64, rows / 20)
    if size != rows and not is_padded:
        raise ForeignFileError(
            f"its tokenizer has {size} tokens, its model {rows}: it must be the model's"
        )
