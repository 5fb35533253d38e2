"""A recurrence as one compiled loop: as exact as torch's operators, and not needed."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from crtlib import machine
from crtlib.models import compiled, recurrent
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.training import clipping

needs_llvm = pytest.mark.skipif(find_spec("llvmlite") is None, reason="llvmlite is not installed")
SHAPES = [("lstm", 1, 1, 1, 1), ("lstm", 3, 7, 21, 2), ("lstm", 9, 30, 64, 1), ("gru", 3, 9, 13, 2)]


def step(kind, batch, time, hidden, layers, dtype=torch.float32):
    """Norms and clipped sum of a model whose gates are not all half open."""
    spec = ModelSpec(kind, 23, embedding=6, hidden=hidden, layers=layers)
    model = build(spec, seed=1).to(dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    tokens = torch.randint(0, 23, (batch, time + 1), generator=generator)
    lengths = torch.randint(2, time + 2, (batch,), generator=generator)
    norms = clipping.clipped_sum(model, tokens, lengths, clip_norm=0.1).norms
    return [norms, *(p.grad for p in model.parameters())]


def nothing(like):
    """A product that adds nothing at any time."""
    return compiled.Product(like[:0], like[:0], torch.eye(like.shape[2]))


def with_operators(monkeypatch, *args):
    with monkeypatch.context() as patch:
        patch.setattr(recurrent, "steps_of", lambda *_, **__: None)
        return step(*args)


@needs_llvm
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_near_to_double_precision_as_torch_s_operators_are(shape, monkeypatch):
    exact = step(*shape, torch.float64)

    def errors(some):
        pairs = zip(some, exact, strict=True)
        return torch.stack([(a - b).norm() / b.norm().clamp_min(1e-12) for a, b in pairs])

    ours, theirs = errors(step(*shape)), errors(with_operators(monkeypatch, *shape))
    assert ours.max() <= 2 * theirs.max() + 3e-7


def bend(x, *_):
    return None, x.sigmoid(), x.tanh()


@needs_llvm
def test_sigmoid_and_tanh_keep_their_digits_everywhere():
    x = torch.cat([torch.linspace(-80, 80, 4001), torch.logspace(-30, 1, 1001)])[None, None]
    open_, bent = torch.empty_like(x), torch.empty_like(x)
    compiled.steps_of(bend, x, open_, bent, add=nothing(x))()
    for ours, exact in ((open_, x.double().sigmoid()), (bent, x.double().tanh())):
        torch.testing.assert_close(ours.double(), exact, rtol=4 * 2**-24, atol=0)
        assert ours.abs().max() == 1


@needs_llvm
def test_what_is_no_number_stays_none():
    """Or an example whose gradient overflowed would not be seen, and left out."""
    x = torch.tensor([[[float("nan"), float("inf"), -float("inf")]]])
    open_, bent = torch.empty_like(x), torch.empty_like(x)
    compiled.steps_of(bend, x, open_, bent, add=nothing(x))()
    nan = float("nan")
    torch.testing.assert_close(open_[0, 0], torch.tensor([nan, 1, 0]), equal_nan=True)
    torch.testing.assert_close(bent[0, 0], torch.tensor([nan, 1, -1]), equal_nan=True)


@needs_llvm
def test_only_what_becomes_something_changes():
    x, wide = torch.ones(3, 2, 5), torch.ones(2, 3, 10).transpose(0, 1)  # wide: two numbers
    before = wide.clone()
    compiled.steps_of(lambda x, a, b: (None, None, a + b + x), x, wide, add=nothing(x))()
    assert torch.equal(x, torch.ones(3, 2, 5))
    before[..., 5:] = 3
    assert torch.equal(wide, before)


@needs_llvm
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize(("batch", "n"), [(1, 1), (1, 4), (3, 1), (4, 6)])
def test_each_step_sees_what_the_one_before_it_left(backwards, by_columns, batch, n):
    """Matrices are parts of larger ones, and the last step adds no product."""
    generator = torch.Generator().manual_seed(0)
    gates = torch.randn(batch, 5, 2 * n, generator=generator).transpose(0, 1)
    state = torch.randn(6, batch, n, generator=generator)
    matrix = torch.randn(2 * n, 2 * n + 3, generator=generator)
    matrix = matrix[:, 3 : n + 3].T if by_columns else matrix[:n, 3:]

    def earlier_and_later(state):
        return (state[1:], state[:-1]) if backwards else (state[:-1], state[1:])

    wanted, carried = gates.clone(), state.clone()
    before, after = earlier_and_later(carried)
    for t in reversed(range(5)) if backwards else range(5):
        if t < 4:
            wanted[t] += before[t] @ matrix
        wanted[t, :, :n] *= 0.5
        after[t] = wanted[t, :, :n] + wanted[t, :, n:]

    before, after = earlier_and_later(state)
    compiled.steps_of(
        lambda a, b, _: (a * 0.5, None, a * 0.5 + b),
        gates, after, add=compiled.Product(gates[:4], before[:4], matrix), backwards=backwards,
    )()  # fmt: skip
    torch.testing.assert_close(gates, wanted)
    torch.testing.assert_close(state, carried)


@needs_llvm
def test_scipy_s_product_does_where_torch_shows_none(monkeypatch):
    """Other builds of torch than Linux wheels hide theirs."""
    ours = step("lstm", 3, 7, 21, 2)
    with monkeypatch.context() as patch:
        patch.setattr(compiled.ctypes, "CDLL", raising)
        compiled._sgemm.cache_clear(), compiled._compiled.cache_clear()
        theirs = step("lstm", 3, 7, 21, 2)
    compiled._sgemm.cache_clear(), compiled._compiled.cache_clear()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def raising(*_):
    raise OSError("no such library")


@needs_llvm
@pytest.mark.parametrize("x", [
    torch.ones(2, 2, 4, dtype=torch.float64),
    torch.ones(2, 2, 4, dtype=torch.bfloat16),
    torch.ones(2, 2, 4, device="meta"),
    torch.ones(2, 2, 8)[..., ::2],
    torch.ones(1).expand(2, 2, 4),
])  # fmt: skip
def test_other_types_devices_and_layouts_are_left_to_torch(x):
    assert compiled.steps_of(lambda x: (x,), x, add=nothing(torch.ones(1, 1, 4))) is None


@needs_llvm
def test_threads_take_the_same_steps():
    compiled._compiled.cache_clear()
    layer, x = recurrent.Lstm(6, 16), torch.linspace(-2, 2, 4 * 9 * 6).view(4, 9, 6)
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(lambda _: layer(x).detach(), range(40))
    assert all(torch.equal(first, other) for other in others)


def test_without_llvmlite_torch_s_operators_do_it(monkeypatch):
    compiled._compiled.cache_clear()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "llvmlite", None)
        ours = step("lstm", 3, 7, 21, 2)
        assert machine.software() == {}
    compiled._compiled.cache_clear()
    theirs = with_operators(monkeypatch, "lstm", 3, 7, 21, 2)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("compiles", [True, False])
@pytest.mark.parametrize("kind", [recurrent.Lstm, recurrent.Gru])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3)])
def test_no_text_and_no_step_are_nothing_to_do(kind, shape, compiles, monkeypatch):
    if not compiles:
        monkeypatch.setattr(recurrent, "steps_of", lambda *_, **__: None)
    layer, x = kind(3, 4), torch.zeros(shape, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert out.shape == (*shape[:2], 4) and x.grad.shape == shape
    assert all(not p.grad.any() for p in layer.parameters())
