"""What a GPU needs, seen on a CPU: nothing that a step computes is read while it runs, its own
branches give the same numbers, and no rounding that torch was asked for reaches a norm."""

import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crtlib.models import interface, recurrent
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import (
    clipping,
    devices,
    gradient_entries,
    gradient_recorder,
    loop,
    memory,
    micro_batch,
    phases,
    steps,
)
from crtlib.training.loop import train_model
from crtlib.training.noise import add_noise
from tests.training.test_clipping import SMALL, batch_of, clip_at, distance, grads_of, model_of
from tests.training.test_loop import PARTS, SPEC, private

READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2"}


class Far(TorchDispatchMode):
    """Takes some tensors, and all that is made of them, for a GPU's; counts who reads them."""

    def __init__(self, tensors, patch):
        super().__init__()
        self.storages, self.readers = {}, Counter()
        self.mark(tensors)
        for name in ("tolist", "numpy", "cpu", "item"):  # on a CPU no operator
            patch.setattr(torch.Tensor, name, self.noting(getattr(torch.Tensor, name)))
        for module in (micro_batch, phases):
            patch.setattr(module, "send_to_device", lambda x, device: self.mark([x.clone()])[0])

    def mark(self, tensors):
        for x in tensors:
            self.storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return tensors

    def has(self, tensors):
        return any(x.untyped_storage().data_ptr() in self.storages for x in tensors)

    def noting(self, honest):
        def read(x, *args, **kwargs):
            if self.has([x]):
                self.note()
            return honest(x, *args, **kwargs)

        return read

    def note(self):
        """The function of this library that reads."""
        frame = sys._getframe(1)
        while "crtlib" not in frame.f_globals.get("__name__", ""):
            frame = frame.f_back
        self.readers[frame.f_code.co_name] += 1

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        name, far = operator.overloadpacket.__name__, self.has(given)
        by_mask = name.startswith("index") and any(x.dtype == torch.bool for x in given[1:])
        if far and (name in READS or by_mask):
            self.note()
        out = operator(*args, **(kwargs or {}))
        if far or name == "arange":  # positions are counted where they are used
            self.mark([x for x in tree_leaves(out) if isinstance(x, torch.Tensor)])
        return out


@pytest.fixture
def gpu(monkeypatch):
    """The branches of a GPU, on a CPU."""
    monkeypatch.setattr(devices, "HOST_DEVICE_TYPES", frozenset())
    monkeypatch.setattr(recurrent, "FUSED_DEVICE_KINDS", frozenset({"cpu"}))
    return monkeypatch


MODELS = [SPEC, ModelSpec("gpt2", 20, hidden=8, layers=1, heads=2, context=8)]


@pytest.mark.parametrize("spec", MODELS, ids=["lstm", "gpt2"])
@pytest.mark.parametrize("stacked", [gradient_entries.MAX_STACKED_INPUT_NUMBERS, 0])
def test_a_step_reads_nothing(spec, stacked, gpu):
    """A number is read at the end of a phase, and of each pass over layers so large that it would
    take longer to sift them; reading anything else would make the host wait for the GPU."""
    gpu.setattr(gradient_recorder, "MAX_STACKED_INPUT_NUMBERS", stacked)
    gpu.setattr(loop, "refuse_mixing", lambda *_, **__: None)  # it reads, before the first step
    model = build_model(spec, 0)
    run = [phases.PublicPhase(1, "public", 1, 4, 0.01), private(sampling_probability=1.0)]
    with Far(list(model.parameters()), gpu) as far:
        train_model(model, run, PARTS, seed=0, optimizer="sgd")
    once = {} if stacked else {"add_clipped": run[1].steps}
    assert far.readers == {"_end_phase": 1} | once


def test_what_reads_is_seen(gpu):
    """The watch over a step's reads can fail."""
    x = torch.ones(3)
    with Far([x], gpu) as far:
        for read in (torch.Tensor.tolist, lambda x: float(x[0]), lambda x: x[x > 0]):
            y = x + 1
            eval("read(y)", {"__name__": "crtlib", "read": read, "y": y})
    assert sum(far.readers.values()) == 3


def test_fused_adam_reads_nothing(gpu):
    p = torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([p], fused=True)
    p.grad = torch.ones(3)
    with Far([p, p.grad], gpu) as far:
        eval("adam.step()", {"__name__": "crtlib", "adam": adam})
    assert not far.readers


@pytest.mark.parametrize("spec", MODELS, ids=["lstm", "gpt2"])
def test_the_branches_of_a_gpu_give_the_same_sums(spec, monkeypatch):
    tokens, lengths = phases.collate_micro_batches(PARTS["private"], range(9), torch.device("cpu"))[
        0
    ]
    found = []
    for host in (devices.HOST_DEVICE_TYPES, frozenset()):
        monkeypatch.setattr(devices, "HOST_DEVICE_TYPES", host)
        model = build_model(spec, 0)
        with torch.no_grad():
            next(model.parameters())[9] *= 3e3  # so that some probabilities underflow
        losses, norms = clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=0.1)
        found.append([losses, norms, *(p.grad for p in model.parameters())])
    for near, far in zip(*found, strict=True):
        torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "overflows"), [
    *((name, False) for name in SMALL), *((name, True) for name in ("lstm-2", "gru", "gpt2-untied"))
])  # fmt: skip
def test_layers_that_are_recorded_together_count_each_for_itself(name, overflows, gpu):
    model = model_of(name)
    batch = batch_of(model)
    if overflows:  # of one example, that alone reads a certain token
        batch["tokens"][batch["tokens"] == 22] = 21
        batch["tokens"][2, 1:4] = 22
        with torch.no_grad():
            next(p for p in model.parameters() if len(p) == 23)[22] = torch.inf
    gpu.setattr(gradient_entries, "DIRECT_COST_IN_MULTIPLY_ADDS", 10**9)
    expected, reference = grads_of(model, clip_at(0.01, batch)("loop"))
    got, grads = grads_of(model, clip_at(0.01, batch)("bookkeeping"))
    torch.testing.assert_close(got.norms, expected.norms, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert got.norms.isfinite().all() != overflows
    assert distance(grads, reference) < 1e-5


class Operators(TorchDispatchMode):
    """Counts the operators that are called, but for those that only look at the same memory."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        found = [value.alias_info for value in operator._schema.returns]
        self.count += not found or not all(alias and not alias.is_write for alias in found)
        return operator(*args, **(kwargs or {}))


def test_a_private_step_asks_a_gpu_little_more_often_than_a_plain_one(gpu):
    """GPT-2 small, 32 texts of 64 tokens, and the head in two blocks: all as there but the widths,
    which no number of operators depends on."""
    spec = ModelSpec("gpt2", 97, hidden=48, layers=12, heads=12, context=64)
    tokens, lengths = torch.randint(0, 97, (32, 65)), torch.full((32,), 65)
    gpu.setattr(clipping, "MAX_LOGITS_PER_BLOCK", 97 * 64 * 20)
    gpu.setattr(gradient_entries, "DIRECT_COST_IN_MULTIPLY_ADDS", 10**9)
    model = build_model(spec, 0)
    with Operators() as plain:
        logits = interface.output_head(model).logits(interface.hidden_states(model, tokens[:, :-1]))
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    options = {"clip_norm": 0.1, "noise_multiplier": 1.0, "normaliser": 32.0}
    with Operators() as private:
        steps.set_private_gradient(model, [(tokens, lengths)], **options, noise=torch.Generator())
    assert plain.count > 300
    assert private.count <= 1.45 * plain.count + 20, (private.count, plain.count)


@pytest.mark.parametrize("generator", [torch.Generator().manual_seed(0), "secure"])
def test_noise_of_several_tensors_at_once_is_that_of_each(generator, gpu):
    parameters = [torch.nn.Parameter(torch.zeros(300, n)) for n in (70, 70, 90)]
    parameters[1].grad = torch.full((300, 70), 5.0)
    add_noise(parameters, std=2.0, generator=generator)
    a, b, c = (p.grad.double() for p in parameters)
    for grad, mean in ((a, 0), (b, 5), (c, 0)):
        assert abs(grad.mean() - mean) < 6 * 2 / grad.numel() ** 0.5
        assert abs(grad.std() / 2 - 1) < 6 / (2 * grad.numel()) ** 0.5
    assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.05


def test_a_gpu_reads_more_tokens_at_once_within_its_memory(gpu):
    model = build_model(SPEC, 0)
    assert memory.tokens_at_once(model, 1000.0) == memory.GPU_TOKENS_AT_ONCE
    assert memory.tokens_at_once(model, 1e-3) < 4096


def test_a_gradient_of_each_example_is_within_the_memory():
    model = build_model(ModelSpec("gpt2", 4000, hidden=256, layers=2, heads=4, context=1024), 0)
    short, long = (memory.tokens_at_once(model, 0.1, longest) for longest in (65, 1025))
    assert long < short == memory.tokens_at_once(model, 0.1)
    # A layer's product is made where it begins to pay, and takes so much for each example.
    widths = model.transformer.h[0].mlp.c_fc.weight
    turn = gradient_entries.max_ghost_positions(widths, widths)
    assert 4 * 2 * widths.numel() * long / turn < 0.1 * 2**30


def may_round():
    """Whether torch lets a CPU round the factors of a product, as some can."""
    place = getattr(torch.backends.mkldnn, "matmul", None)
    asked = getattr(place, "fp32_precision", None) or torch.get_float32_matmul_precision()
    return asked in ("bf16", "medium")


class Rounding(TorchDispatchMode):
    """Products of float32 as of a CPU that rounds their factors to bfloat16 wherever it may."""

    products = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        name = operator.overloadpacket.__name__.rstrip("_")
        if name in ("mm", "bmm", "addmm", "baddbmm") and may_round():
            self.products += 1
            args = [x.bfloat16().float() if x.dtype == torch.float32 else x for x in args]
        return operator(*args, **(kwargs or {}))


def test_a_norm_is_exact_where_products_are_not():
    """Rounded Gram matrices would let a clipped gradient exceed the bound by a hundredth."""
    before, x = torch.get_float32_matmul_precision(), torch.rand(64, 64)
    model = build_model(
        ModelSpec("gpt2", 64, hidden=64, layers=1, heads=2, context=64, tied=False), 0
    )
    tokens = torch.randint(0, 64, (1, 48), generator=torch.Generator().manual_seed(0))
    try:
        torch.set_float32_matmul_precision("medium")
        with Rounding() as rounding:
            assert not torch.allclose(x @ x, (x.double() @ x.double()).float(), rtol=1e-4)
            clipping.add_clipped_gradients(model, tokens, torch.tensor([48]), clip_norm=0.01)
        assert rounding.products > 5  # those of the model itself
        assert torch.get_float32_matmul_precision() == "medium"  # as it was
    finally:
        torch.set_float32_matmul_precision(before)
    total = torch.stack([p.grad.double().square().sum() for p in model.parameters()]).sum().sqrt()
    assert abs(total / 0.01 - 1) < 2e-6
