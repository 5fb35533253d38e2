"""Try a model before its first private step: does it keep the examples of a batch apart?

The noise of DP-SGD covers what one example adds to the clipped sum. It covers nothing if one
example influences what the others add: by a norm over the batch, by attention to padding, by
positions that depend on the longest text of the batch. Some of that is refused by name
(:func:`crtlib.training.layer_rules.refuse_unfit_layers`); what nobody has thought of is found by
trying, and so is a training loss that is not the model's own.

>>> from crtlib.models.specs import ModelSpec
>>> from crtlib.models.construction import build_model
>>> spec = ModelSpec("gpt2", vocab_size=60, hidden=8, layers=1, heads=2, context=32)
>>> model = build_model(spec, seed=0)
>>> refuse_mixing(model, max_text_tokens=32)
>>> model.transformer.h[0].register_forward_hook(lambda layer, x, y: y - y.mean(0))  # of the batch
<torch.utils.hooks.RemovableHandle object at ...>
>>> refuse_mixing(model, max_text_tokens=32)  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
ValueError: model: a GPT2LMHeadModel lets the other texts of a batch change what one adds, by ...
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from crtlib.models import interface
from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.progress import bar_options
from crtlib.training import clipping
from crtlib.training.devices import is_host
from crtlib.training.gradient_entries import trainable_parameters
from crtlib.training.weight_seal import sums_of_saved_tensors

SHORT_TEXT_TOKENS = (5, 12, 3, 24)
"""The lengths, in tokens, of the texts whose gradients are compared first."""
MAX_LONG_TOKENS_AT_ONCE = 2**14
"""The most tokens, with padding, of long texts in one batch, which always has at least two."""
UNCLIPPED = 1e9
"""A clip norm that clips no gradient of a probe."""
WEIGHT_SHIFT_STD = 0.02
"""The standard deviation by which weights are moved: an adapter that starts at zero would hide what
it does."""
CPU_TOLERANCE, GPU_TOLERANCE = 1e-4, 1e-2
"""How far apart rounding may bring sums, in clip norms, and hidden states, in their own size: on a
CPU, and on a GPU, whose products have fewer bits. On a CPU, rounding makes 3e-6 on ninety small
architectures; the smallest real effect ever seen was 6e-3."""
MOST_BY_ROUNDING = 2e-3
"""How far apart sums may be in the model's own precision, in clip norms, if double precision finds
nothing. Rounding makes 1.2e-4 on SmolLM2 with its 30 layers, and 1e-15 there in doubles."""
MAX_TOKENS_IF_UNLIMITED = 256
"""The length of the longest text that is tried, if neither the model nor the caller limits it."""


def refuse_mixing(
    model: nn.Module, *, max_text_tokens: int | None = None, progress: bool = False
) -> None:
    """Refuse a model that noise would not cover, before it has read any text.

    A model for next tokens is refused if its settings state that it looks ahead, because it would
    be read without a mask of its padding. All others read random tokens, never a text. One for next
    tokens is also refused if later tokens change what it says of earlier ones: its losses would be
    those of a model that has seen what it predicts.

    First, the clipped sum of a batch of short texts (``SHORT_TEXT_TOKENS``) is taken twice. Random
    draws show in torch's generators, even if they rarely have an effect, or in a difference. The
    sum is compared with the sum of what each text adds alone. Without clipping, it
    is compared with the gradients that autograd takes from the model's own logits for each text
    alone, unpadded. This also finds a loss that is not the model's own, as with a head that scales.
    Then the comparisons are repeated on a batch of long texts (:func:`long_text_tokens`): a short
    one, one of half the longest length, one a token shorter than the longest, and the longest.

    Both batches use the trainable parameters, the way in which they will be clipped (at once, or
    one text after the other), and weights that are moved a little. What is charged for rounding, up
    to some hundredths of a clip norm for long texts, is the same in a batch and alone, so clipped
    sums are compared with clipped sums.

    The recurrent models of this library are not tried: they read a text token by token, each row by
    itself, and their clipping is tested against autograd.

    Args:
        model: On the device where it will be trained. It is left as it was: weights, gradients,
            buffers, mode, and the state of torch's generators.
        max_text_tokens: The most tokens that are read at once; None: what the model can read, at
            most ``MAX_TOKENS_IF_UNLIMITED``.
        progress: Show a bar of passes; a large model takes minutes for its longest texts.

    Raises:
        ValueError: One line that states what was seen, in clip norms, or that the model raised
            something.

    Guarantee:
        For a model that is let through, these two batches of random texts add to the clipped sum
        what their texts add alone, to within ``CPU_TOLERANCE`` clip norms (``GPU_TOLERANCE`` on a
        GPU), in the model's own precision or in double precision, where rounding vanishes
        (:func:`distance_beyond_rounding`). No text is read here. This is tried, not proved: what
        shows only with certain tokens, lengths or weights is not found.
        Tests: ``tests/training/test_probe.py::test_what_mixes_is_refused``,
        ``tests/training/test_probe.py::test_what_mixes_long_texts_alone_is_refused``.
    """
    if isinstance(model, RecurrentLM):
        return
    longest_tokens = longest_tried_tokens(model, max_text_tokens)
    class_name, device = type(interface.unwrap_model(model)).__name__, interface.device_of(model)
    tolerance = CPU_TOLERANCE if is_host(device) else GPU_TOLERANCE
    causal = interface.is_causal(model)
    if causal and (layer := _layer_that_looks_ahead(model)):
        raise ValueError(
            f"model: a {class_name} looks ahead in layer {layer!r}, so that it would read padding: "
            "must be a causal model (config.json: is_decoder true)"
        )
    lengths_by_batch = [[min(n, longest_tokens) for n in SHORT_TEXT_TOKENS]]
    if longest_tokens > max(SHORT_TEXT_TOKENS):
        lengths_by_batch.append(long_text_tokens(longest_tokens))
    # Two for draws, two for later tokens, and for each batch: its texts at once and each alone,
    # clipped and not.
    passes = 2 + 2 * causal + sum(2 + 2 * len(lengths) for lengths in lengths_by_batch)
    with (
        with_perturbed_weights(model),
        _errors_in_one_line(class_name),
        tqdm(desc="trying the model", unit="pass", **bar_options(progress, total=passes)) as bar,
    ):
        saved_before = sums_of_saved_tensors(model)
        texts = texts_to_read(model, lengths_by_batch[0])
        generators_before = generator_states(device)
        first_sum, clip_norm = _clipped_sum_of_batch(model, texts)
        draws = has_drawn(model, generators_before)
        second_sum, _ = _clipped_sum_of_batch(model, texts, clip_norm)
        bar.update(2)
        if draws or distance_in_clip_norms(first_sum, second_sum, clip_norm) > tolerance:
            raise ValueError(
                f"model: a {class_name} draws random numbers of its own: no run could resume from "
                "its checkpoint; must be built without noise"
            )
        if causal:
            longest_text = max(texts, key=len)[:-1]
            measure_effect = partial(_effect_of_later_tokens, model, longest_text, bar)
            effect = distance_beyond_rounding(model, measure_effect, tolerance)
            if effect > tolerance:
                raise ValueError(
                    f"model: a {class_name} looks ahead: later tokens move what it predicts from "
                    f"earlier ones by {effect:.2g} of its size; must be a causal model"
                )
        measure_effect = partial(_effect_of_company, model, texts, clip_norm, bar)
        effect = distance_beyond_rounding(model, measure_effect, tolerance)
        if effect > tolerance:
            raise ValueError(
                f"model: a {class_name} lets the other texts of a batch change what one adds, by "
                f"{effect:.2g} clip norms, or has a loss that does not follow from its output "
                "layer: no noise would cover that; must be another model"
            )
        for tensor_name, saved in sums_of_saved_tensors(model).items():
            if not torch.equal(saved, saved_before[tensor_name]):
                raise ValueError(
                    f"model: a {class_name} keeps something of what it reads in {tensor_name!r}, "
                    "which is saved with it, and no noise would cover that; must be another model"
                )
        for long_lengths in lengths_by_batch[1:]:
            texts = texts_to_read(model, long_lengths)
            measure_effect = partial(_effect_of_company, model, texts, clip_norm / 10, bar)
            effect = distance_beyond_rounding(model, measure_effect, tolerance)
            if effect > tolerance:
                raise ValueError(
                    f"model: a {class_name} reads a text differently in a batch with one of "
                    f"{longest_tokens} tokens, by {effect:.2g} clip norms: no noise would cover "
                    "that; must be read with a smaller context, or be another model"
                )


@contextlib.contextmanager
def _errors_in_one_line(class_name: str) -> Iterator[None]:
    """Turn any error of a model that cannot be read or clipped here into one line. A lack of memory
    is raised as it is."""
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise ValueError(
            f"model: a {class_name} cannot be read and clipped here ({kind})"
        ) from error


# --------------------------------------------------------------------------- what is compared
def long_text_tokens(longest_tokens: int) -> list[int]:
    """The lengths of the long texts that are read in one batch: as many of them, from the longest
    down, as ``MAX_LONG_TOKENS_AT_ONCE`` allows.

    An effect of the batch's length, such as attention to its best few positions, changes a text
    that is just shorter than the longest. An effect of one fixed length changes a text on the other
    side of it.

    >>> long_text_tokens(256)
    [24, 128, 255, 256]
    """
    lengths = [max(SHORT_TEXT_TOKENS), longest_tokens // 2, longest_tokens - 1, longest_tokens]
    return lengths[-max(2, MAX_LONG_TOKENS_AT_ONCE // longest_tokens) :]


def longest_tried_tokens(model: nn.Module, max_text_tokens: int | None) -> int:
    """The tokens of the longest text that is tried: ``max_text_tokens``, or by default
    ``MAX_TOKENS_IF_UNLIMITED``, but no more than the model can read."""
    wanted = max_text_tokens or MAX_TOKENS_IF_UNLIMITED
    return min(wanted, interface.context_length(model) or wanted)


def _layer_that_looks_ahead(model: nn.Module) -> str | None:
    """The name of a layer whose settings state that it is not causal, or None. A decoder's
    attention to an encoder, which is not used here, does not count."""
    for name, module in model.named_modules():
        decoder = getattr(module, "is_decoder", None)
        if decoder is False or (decoder is None and getattr(module, "is_causal", None) is False):
            return str(name)
    return None


def generator_states(device: torch.device) -> Tensor:
    """The states of torch's generators, of the host's and the device's, one after the other."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def has_drawn(model: nn.Module, generators_before: Tensor) -> bool:
    """Whether torch's generators have moved since :func:`generator_states` was taken.

    A model with LayerDrop may draw one number a layer at a rate of zero, too, and a larger rate is
    refused by name; so its draws count by their effect alone, and not here.
    """
    if any(hasattr(module, "layerdrop") for module in model.modules()):
        return False
    return not torch.equal(generators_before, generator_states(interface.device_of(model)))


def _effect_of_later_tokens(model: nn.Module, text: Tensor, bar: tqdm[Any]) -> float:
    """How much the second half of a text moves the logits of the first, in their own size."""
    unwrapped = interface.unwrap_model(model)
    half_tokens = len(text) // 2
    with torch.no_grad():
        logits_alone, logits_followed = (
            unwrapped(input_ids=ids[None], use_cache=False).logits[0, :half_tokens]
            for ids in (text[:half_tokens], text)
        )
    bar.update(2)
    return _norm([logits_followed - logits_alone]) / max(_norm([logits_alone]), 1e-12)


def random_texts(model: nn.Module, lengths: Sequence[int]) -> list[Tensor]:
    """Texts of random tokens, (length,) each, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = len(interface.output_head(model).weight)
    config = getattr(interface.unwrap_model(model), "config", None)
    padding = getattr(config, "pad_token_id", None) or 0
    device = interface.device_of(model)
    texts = []
    for length in lengths:
        token_ids = torch.randint(1, vocabulary, (length,), generator=generator)
        other_ids = 1 + token_ids % (vocabulary - 1)
        texts.append(torch.where(token_ids == padding, other_ids, token_ids).to(device))
    return texts


def texts_to_read(model: nn.Module, lengths: Sequence[int]) -> list[Tensor]:
    """Random texts of which the model reads so many tokens: one that predicts the next token does
    not read the last."""
    return random_texts(model, [length + interface.is_causal(model) for length in lengths])


def pad_texts(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(text) for text in texts])
    return nn.utils.rnn.pad_sequence(list(texts), batch_first=True), lengths


def _clipped_sum_of_batch(
    model: nn.Module, texts: Sequence[Tensor], clip_norm: float | None = None
) -> tuple[list[Tensor], float]:
    """Return the clipped sum of a batch, and the clip norm. Its default is the median norm of the
    gradients, so that half of them are clipped."""
    tokens, lengths = pad_texts(texts)
    targets = None if interface.is_causal(model) else tokens
    for parameter in trainable_parameters(model).values():
        parameter.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training itself warns of a layer clipped in parts
        if clip_norm is None:
            _, norms = clipping.add_clipped_gradients(
                model, tokens, lengths, clip_norm=1.0, targets=targets
            )
            clip_norm = float(norms.median().clamp_min(1e-3))
            if not math.isfinite(clip_norm):
                raise ValueError(
                    "model: its gradients for random tokens overflow or are NaN: must be finite"
                )
            return _clipped_sum_of_batch(model, texts, clip_norm)
        clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=clip_norm, targets=targets)
    return gradients_or_zeros(model), clip_norm


def _effect_of_company(
    model: nn.Module, texts: Sequence[Tensor], clip_norm: float, bar: tqdm[Any]
) -> float:
    """The distance of the sum of a batch from what its texts add alone, in clip norms. It is the
    larger of two: between the clipped sums and, without clipping, from the gradients by autograd.

    The clipped sum is right only if the gradients of single texts are right too, because the norm
    by which a gradient is clipped is computed from it.
    """
    clipped_together, _ = _clipped_sum_of_batch(model, texts, clip_norm)
    bar.update()
    clipped_alone = [torch.zeros_like(x) for x in clipped_together]
    for text in texts:
        clipped, _ = _clipped_sum_of_batch(model, [text], clip_norm)
        bar.update()
        clipped_alone = [total + x for total, x in zip(clipped_alone, clipped, strict=True)]
    together, _ = _clipped_sum_of_batch(model, texts, UNCLIPPED)
    bar.update()
    by_autograd = [torch.zeros_like(x) for x in clipped_together]
    for text in texts:
        gradient = _gradient_by_autograd(model, text)
        bar.update()
        by_autograd = [total + x for total, x in zip(by_autograd, gradient, strict=True)]
    return max(
        distance_in_clip_norms(clipped_together, clipped_alone, clip_norm),
        distance_in_clip_norms(together, by_autograd, _norm(by_autograd)),
    )


def _gradient_by_autograd(model: nn.Module, text: Tensor) -> list[Tensor]:
    """The gradient of a text by autograd, unpadded, from the model's own logits."""
    parameters = list(trainable_parameters(model).values())
    with torch.enable_grad():
        causal = interface.is_causal(model)
        inputs, targets = (text[:-1], text[1:]) if causal else (text, text)
        output = interface.unwrap_model(model)(input_ids=inputs[None], use_cache=False)
        loss = F.cross_entropy(output.logits[0].float(), targets)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def _norm(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([x.double().square().sum() for x in tensors]).sum().sqrt())


def gradients_or_zeros(model: nn.Module) -> list[Tensor]:
    return [
        torch.zeros_like(p) if p.grad is None else p.grad
        for p in trainable_parameters(model).values()
    ]


def distance_in_clip_norms(
    first: Sequence[Tensor], second: Sequence[Tensor], clip_norm: float
) -> float:
    """The distance between two sums, in clip norms."""
    differences = [x.double() - y.double() for x, y in zip(first, second, strict=True)]
    return _norm(differences) / clip_norm


def distance_beyond_rounding(
    model: nn.Module, measure_distance: Callable[[], float], tolerance: float
) -> float:
    """The distance between two sums of a model, in clip norms. It is taken again with the model in
    double precision if it is more than allowed and may be due to rounding, as with many layers.

    Args:
        model: The model whose sums are compared; it is left as it was, without gradients.
        measure_distance: Reads and clips with the model as it is when called, and returns how far
            apart two sums are.
        tolerance: What a caller lets through; a distance up to this is not taken again.

    Returns:
        The distance in double precision. Or the first one, if that is allowed or more than
        ``MOST_BY_ROUNDING``, or if the model cannot be read in double precision.

    Raises:
        torch.OutOfMemoryError: If a GPU can hold the model in single precision only.
    """
    first_distance = measure_distance()
    if not tolerance < first_distance <= MOST_BY_ROUNDING:
        return first_distance
    try:
        with _in_doubles(model):
            return measure_distance()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return first_distance


@contextlib.contextmanager
def _in_doubles(model: nn.Module) -> Iterator[None]:
    """While active, the model is in double precision; afterwards it has its old tensors again, and
    no gradient."""
    parameters = [(p, p.data) for p in model.parameters()]
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]
    try:
        for parameter, values in parameters:
            parameter.grad, parameter.data = None, values.double()
        for module, name, buffer in buffers:
            setattr(module, name, buffer.double())
        yield
    finally:
        for parameter, values in parameters:
            parameter.grad, parameter.data = None, values
        for module, name, buffer in buffers:
            setattr(module, name, buffer)


@contextlib.contextmanager
def with_perturbed_weights(model: nn.Module) -> Iterator[None]:
    """While active, the model is in training mode with its weights moved; afterwards all is as it
    was."""
    parameters = list(trainable_parameters(model).values())
    weights_before = [(p, p.detach().clone(), p.grad) for p in parameters]
    buffers_before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    modes_before = [(module, module.training) for module in model.modules()]
    generator = torch.Generator().manual_seed(1)
    device = interface.device_of(model)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            model.train()
            with torch.no_grad():
                for parameter in parameters:
                    noise = torch.randn(parameter.shape, generator=generator)
                    noise = noise.to(device=parameter.device, dtype=parameter.dtype)
                    parameter.add_(noise, alpha=WEIGHT_SHIFT_STD)
            yield
        finally:
            with torch.no_grad():
                for parameter, weights, gradient in weights_before:
                    parameter.copy_(weights)
                    parameter.grad = gradient
                for buffer, values in buffers_before:
                    buffer.copy_(values)
            for module, was_training in modes_before:
                module.training = was_training
