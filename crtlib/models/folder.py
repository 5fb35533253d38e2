"""A trained model and its tokenizer, from a folder of this machine and never from a pickle.

>>> import tempfile
>>> try:
...     load(tempfile.mkdtemp() + "/none")
... except ValueError as error:
...     print(str(error).rpartition(": ")[2])
no such folder (hf download NAME --local-dir makes one)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from torch import nn

from crtlib.models import build, interface
from crtlib.text.tokenizer import Bpe, backend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(folder: str | Path) -> tuple[nn.Module, Bpe | PreTrainedTokenizerBase]:
    """Model and tokenizer of a local folder: one that :func:`crtlib.experiments.trials.save` wrote, or a
    transformers causal model with its fast tokenizer, as safetensors.

    Raises ``ValueError`` for anything else; pickled weights are never opened, as that runs code.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder (hf download NAME --local-dir makes one)")
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(p.name for s in ("bin", "pt", "pth", "pkl") for p in folder.glob(f"*.{s}"))
        holds = f"only pickled weights ({pickled[0]})" if pickled else "no weights"
        raise ValueError(
            f"{folder}: holds {holds}, it needs a safetensors file (model.save_pretrained)"
        )
    try:
        if (folder / "model.json").is_file():
            from crtlib.experiments import trials

            model, tokenizer = trials.load(folder)
        else:
            from transformers import AutoTokenizer

            model = build.load(folder)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder}: holds no model with its tokenizer that can be read") from error
    if not (isinstance(tokenizer, Bpe) or tokenizer.is_fast):
        raise ValueError(f"{folder}: its tokenizer must be a fast one (tokenizer.json)")
    check_vocabulary(model, tokenizer)
    return model, tokenizer


def check_vocabulary(model: nn.Module, tokenizer: Bpe | PreTrainedTokenizerBase) -> None:
    """Raise ``ValueError`` where the tokenizer cannot be the one that the model was trained with.

    A model may have some rows more than the tokenizer has tokens: padding to a multiple of 64.
    """
    rows, size = len(interface.head(model).weight), backend(tokenizer).get_vocab_size()
    padded = rows % 64 == 0 and 0 < rows - size < max(64, rows / 20)
    if size != rows and not padded:
        raise ValueError(f"tokenizer: has {size} tokens, its model {rows}: it must be the model's")
