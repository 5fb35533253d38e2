"""What a GPU needs, seen on a CPU: nothing that a step computes is read while it runs, its own
branches give the same numbers, and no rounding that torch was asked for reaches a norm."""

import sys
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crtlib.models import recurrent
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.training import bookkeeping, clipping, devices, loop, phases
from crtlib.training.loop import train
from crtlib.training.noise import add_noise
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
        for module in (clipping, phases):
            patch.setattr(module, "sent", lambda x, device: self.mark([x.clone()])[0])

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
    monkeypatch.setattr(devices, "HOST", frozenset())
    monkeypatch.setattr(recurrent, "FUSED", frozenset({"cpu"}))
    return monkeypatch


MODELS = [SPEC, ModelSpec("gpt2", 20, hidden=8, layers=1, heads=2, context=8)]


@pytest.mark.parametrize("spec", MODELS, ids=["lstm", "gpt2"])
def test_a_step_reads_nothing_but_whether_a_gradient_overflowed(spec, gpu):
    """One number of each pass, without which all entries would have to be sifted, and one at the
    end of a phase; besides, transformers looks at the positions before each pass. Reading anything
    else would make the host wait for the GPU."""
    model = build(spec, 0)
    run = [phases.PublicPhase(1, "public", 1, 4, 0.01), private(sampling_probability=1.0)]
    with Far(list(model.parameters()), gpu) as far:
        train(model, run, PARTS, seed=0, optimizer="sgd")
    theirs = {} if spec.recurrent else {"hidden": 3 + run[1].steps}
    assert far.readers == {"add_clipped": run[1].steps, "_run_phase": 1} | theirs


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
    tokens, lengths = phases.collate(PARTS["private"], range(9), torch.device("cpu"))[0]
    found = []
    for host in (devices.HOST, frozenset()):
        monkeypatch.setattr(devices, "HOST", host)
        model = build(spec, 0)
        with torch.no_grad():
            next(model.parameters())[9] *= 3e3  # so that some probabilities underflow
        losses, norms = clipping.clipped_sum(model, tokens, lengths, clip_norm=0.1)
        found.append([losses, norms, *(p.grad for p in model.parameters())])
    for near, far in zip(*found, strict=True):
        torch.testing.assert_close(far, near, rtol=1e-4, atol=1e-6)


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
    model = build(SPEC, 0)
    assert loop.tokens_at_once(model, 1000.0) == loop.TOKENS_AT_ONCE_OF_A_GPU
    assert loop.tokens_at_once(model, 1e-3) < 4096


def test_a_gradient_of_each_example_is_within_the_memory():
    model = build(ModelSpec("gpt2", 4000, hidden=256, layers=2, heads=4, context=1024), 0)
    short, long = (loop.tokens_at_once(model, 0.1, longest) for longest in (65, 1025))
    assert long < short == loop.tokens_at_once(model, 0.1)
    # A layer's product is made where it begins to pay, and takes so much for each example.
    widths = model.transformer.h[0].mlp.c_fc.weight
    turn = bookkeeping.ghost_until(widths, widths)
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
    model = build(ModelSpec("gpt2", 64, hidden=64, layers=1, heads=2, context=64, tied=False), 0)
    tokens = torch.randint(0, 64, (1, 48), generator=torch.Generator().manual_seed(0))
    try:
        torch.set_float32_matmul_precision("medium")
        with Rounding() as rounding:
            assert not torch.allclose(x @ x, (x.double() @ x.double()).float(), rtol=1e-4)
            clipping.clipped_sum(model, tokens, torch.tensor([48]), clip_norm=0.01)
        assert rounding.products > 5  # those of the model itself
        assert torch.get_float32_matmul_precision() == "medium"  # as it was
    finally:
        torch.set_float32_matmul_precision(before)
    total = torch.stack([p.grad.double().square().sum() for p in model.parameters()]).sum().sqrt()
    assert abs(total / 0.01 - 1) < 2e-6
