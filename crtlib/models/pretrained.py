"""A pre-trained causal model of ``transformers``, ready to be trained in full or by adapters.

>>> import tempfile
>>> try:
...     load_model_config(tempfile.mkdtemp())
... except ValueError as error:
...     print(str(error).rpartition(": ")[2])
holds no config.json of a transformers model
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from crtlib import files
from crtlib.files import StrPath
from crtlib.foreign_files import (
    ForeignFileError,
    foreign_model,
    load_foreign_config,
    refuse_whatever_fails,
)
from crtlib.models.interface import (
    device_of,
    hidden_states,
    layers_below_head,
    output_head,
    unwrap_model,
)
from crtlib.models.smollm2 import (
    SMOLLM2_HUB_ID,
    SMOLLM2_NAME,
    SMOLLM2_PACKAGE,
    SMOLLM2_PACKAGE_VERSION,
    smollm2_folder,
)
from crtlib.text.tokenizer import BpeTokenizer, load_pretrained_tokenizer
from crtlib.torch_random import seeded_torch_rng

ALL_LINEAR = "all-linear"

NO_MODEL_DESCRIBED = "its config.json describes no model that can be built"


def resolve_model_path(name: StrPath) -> str:
    """The folder or hub id of a model: "smollm2" is in the cache (:func:`smollm2_folder`), and any
    other name is a folder or a hub id itself."""
    return str(smollm2_folder()) if str(name) == SMOLLM2_NAME else str(name)


def base_model_name(name: StrPath) -> str:
    """The name of a model in a model card: its hub id, or the last part of its folder's path."""
    if str(name) == SMOLLM2_NAME:
        return SMOLLM2_HUB_ID
    return Path(name).name if Path(name).is_dir() else str(name)


def model_fingerprint(name_or_folder: str | Path) -> str:
    """A hash that identifies a starting point, by the files of a folder or by the hub's name."""
    if str(name_or_folder) == SMOLLM2_NAME:
        return hashlib.sha256(f"{SMOLLM2_PACKAGE} {SMOLLM2_PACKAGE_VERSION}".encode()).hexdigest()
    folder, digest = Path(name_or_folder), hashlib.sha256(str(name_or_folder).encode())
    if folder.is_dir():
        digest = hashlib.sha256()
        for path in sorted(p for p in folder.iterdir() if p.suffix in (".json", ".safetensors")):
            digest.update(path.name.encode() + files.read_bytes(path))
    return digest.hexdigest()


def load_model_config(name: StrPath, *, masked: bool = False) -> Any:
    """The configuration of a causal model, or of a ``masked`` one (BERT), without dropout: its
    randomness would come from no random stream of the run
    (:func:`crtlib.training.layer_rules.refuse_unfit_layers`).

    Raises ``ValueError`` for a model of another kind, for pickled weights and for an adapter.
    """
    option, folder = f"init={str(name)!r}", Path(name)
    if not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        raise ValueError(f"{option}: holds pickled weights; save it as safetensors")
    config = load_foreign_config(name, option)
    with foreign_model(name, option, NO_MODEL_DESCRIBED):
        kinds = config.architectures or [""]
        if masked and (config.model_type != "bert" or not any("ForMaskedLM" in k for k in kinds)):
            raise ForeignFileError(f"is a {kinds[0]}; a BertForMaskedLM is needed")
        if config.is_encoder_decoder or (any("MaskedLM" in kind for kind in kinds) and not masked):
            raise ForeignFileError(f"is a {kinds[0]}; a causal model is needed")
        for key, value in config.to_dict().items():
            if "drop" in key and isinstance(value, float):
                setattr(config, key, 0.0)
    return config


def count_config_parameters(config: Any, kind: Any = None) -> int:
    """The number of parameters of a model with this configuration, which is causal or of this
    ``kind``. The model is built without memory for its weights."""
    from transformers import AutoModelForCausalLM

    kind = kind or AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, trust_remote_code=False)
    return sum(p.numel() for p in model.parameters())


def count_pretrained_parameters(name: StrPath) -> int:
    """The number of parameters of a causal model from the hub, or in a local folder, by its
    ``config.json``.

    Raises ``ValueError`` in one line if no model can be built from it.
    """
    config = load_model_config(name)
    with foreign_model(name, f"init={str(name)!r}", NO_MODEL_DESCRIBED):
        return count_config_parameters(config)


@contextlib.contextmanager
def hide_progress_bars() -> Iterator[None]:
    """While active, hide the progress bars of ``transformers``, which nobody watches there."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def load_pretrained(name_or_folder: StrPath, *, masked: bool = False) -> nn.Module:
    """A causal (or ``masked``) model from the hub, or in a local folder, in float32; only from
    safetensors files.

    Raises ``ValueError`` if its logits are not a linear map of its last hidden state (with an
    optional soft cap), as the fused loss and the scores would then not be those of the model. Also
    if ``config.json`` asks for more than the files hold, as building that could take all memory.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    config, folder = load_model_config(name_or_folder, masked=masked), Path(name_or_folder)
    kind: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    bytes_of_files = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    options: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False}
    if getattr(config, "attn_logit_softcapping", None):
        options["attn_implementation"] = "eager"  # the other kernels leave the cap out
    option = f"init={str(name_or_folder)!r}"
    with (
        foreign_model(name_or_folder, option, "no model can be built from its files"),
        hide_progress_bars(),
    ):
        # A weight takes at least four bits.
        if folder.is_dir() and count_config_parameters(config, kind) > 2 * bytes_of_files:
            raise ForeignFileError("its weights are fewer than config.json says")
        model: nn.Module = kind.from_pretrained(
            str(name_or_folder), config=config, dtype=torch.float32, **options
        ).eval()
        try:
            layers_below_head(model)
        except ValueError as error:
            raise ForeignFileError(str(error).removeprefix("model: ")) from None
        probe = torch.arange(4)[None]
        with torch.no_grad():
            our_logits, model_logits = (
                output_head(model).logits(hidden_states(model, probe)),
                model(input_ids=probe).logits,
            )
        if not torch.isfinite(model_logits).all():
            raise ForeignFileError("its weights are not finite, or give results that are not")
        if not torch.allclose(our_logits, model_logits, rtol=1e-3, atol=1e-3):
            raise ForeignFileError("its head is not a plain linear map")
    return model


def load_with_added_tokens(name_or_folder: StrPath, tokenizer: BpeTokenizer) -> nn.Module:
    """A pre-trained model with embeddings for the tokens that ``tokenizer`` adds to the model's own
    (:func:`crtlib.text.tokenizer.adapt_tokenizer`). They start at the mean of the others.

    Raises ``ValueError`` as :func:`load_pretrained` does, and for a vocabulary smaller than the
    model's own.
    """
    model: Any = load_pretrained(name_or_folder)
    table = model.get_input_embeddings().weight
    old_size = load_pretrained_tokenizer(name_or_folder).get_vocab_size()
    if tokenizer.vocab_size < old_size:
        raise ValueError(
            f"vocab_size={tokenizer.vocab_size}: must be at least the model's {old_size}"
        )
    added = list(range(old_size, tokenizer.vocab_size))
    with torch.no_grad():
        if tokenizer.vocab_size > len(table):
            model.resize_token_embeddings(tokenizer.vocab_size, mean_resizing=False)
        tables = {
            id(t): t for t in (model.get_input_embeddings().weight, output_head(model).weight)
        }
        for rows in tables.values():
            rows[added] = rows[:old_size].mean(0)
    model.config.bos_token_id, model.config.eos_token_id = tokenizer.bos, tokenizer.eos
    return model


def with_gradient_checkpointing(model: nn.Module) -> nn.Module:
    """The model, changed so that a backward pass computes the inside of each block again instead of
    keeping it. It takes less memory and a third more time, and gives the same gradients.

    Raises ``ValueError`` for a model that cannot do this: a recurrent one has no blocks.
    """
    unwrapped = unwrap_model(model)
    if not getattr(unwrapped, "supports_gradient_checkpointing", False):
        raise ValueError("gradient_checkpointing: needs a transformer")
    later_name = "activation_checkpointing_enable"  # in later versions of transformers
    enable = getattr(unwrapped, later_name, None)
    (enable or unwrapped.gradient_checkpointing_enable)({"use_reentrant": False})
    return model


# --------------------------------------------------------------------------- adapters
def with_lora(
    model: nn.Module, rank: int, *, alpha: float | None = None, targets: str = ALL_LINEAR, seed: int
) -> nn.Module:
    """The model with adapters of this rank (LoRA, Hu et al. 2022) on the layers ``targets``
    ("all-linear", or names joined by commas); only the adapters learn. ``alpha`` is twice the rank
    by default.

    The output layer gets no adapter. Raises ``ValueError`` without the package ``peft``, for
    targets that are not there, and for targets that take no adapter or do not work with one. An
    example is a router of experts, whose two results ``peft`` takes for one.
    """
    try:
        import peft
    except ImportError:
        raise ValueError("lora: needs pip install 'crtlib[train]'") from None
    names: str | list[str] = targets if targets == ALL_LINEAR else targets.split(",")
    unwrapped, option = unwrap_model(model), f"lora_targets={targets!r}"
    layers = [f".{name}" for name, _ in unwrapped.named_modules()]
    suffixes = [f".{name}" for name in names]
    if names != ALL_LINEAR and not any(layer.endswith(tuple(suffixes)) for layer in layers):
        raise ValueError(f"{option}: the model has no such layers")
    scale: Any = alpha or 2 * rank  # declared an int there, though only divided by the rank
    config = peft.LoraConfig(
        r=rank, lora_alpha=scale, target_modules=names, lora_dropout=0.0,
        fan_in_fan_out=unwrapped.config.model_type == "gpt2", task_type="CAUSAL_LM",
    )  # fmt: skip
    model_type = type(unwrapped).__name__
    refused = f"not all of these layers of a {model_type} take an adapter; name others"
    with seeded_torch_rng(seed), refuse_whatever_fails(option, refused), torch.no_grad():
        with warnings.catch_warnings():  # peft asks transformers for an attribute's old name
            warnings.simplefilter("ignore", FutureWarning)
            wrapped: nn.Module = peft.get_peft_model(model, config)
        wrapped(input_ids=torch.arange(4, device=device_of(unwrapped))[None], use_cache=False)
    output_head(wrapped)  # refuses an adapter on the output layer
    return wrapped


def merge_adapters(model: nn.Module) -> nn.Module:
    """A plain model of ``transformers`` in which the adapters are added to a copy of the weights,
    in float32; the model itself if it has no adapters."""
    if unwrap_model(model) is model:
        return model
    wrapped: Any = copy.deepcopy(model)
    merged: nn.Module = wrapped.float().merge_and_unload()
    return merged.requires_grad_(True)
