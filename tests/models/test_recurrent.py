"""Torch's own recurrent kernels, as a GPU uses them: the same numbers, in few operators."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from crtlib.models import recurrent
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import clipping, devices
from crtlib.training.noise import add_noise
from tests.models import torch_weights
from tests.training import by_loop

SHAPES = {
    "lstm": ModelSpec("lstm", 23, embedding=6, hidden=8),
    "lstm-2-tied": ModelSpec("lstm", 23, hidden=8, layers=2, tied=True),
    "gru-2": ModelSpec("gru", 23, embedding=6, hidden=8, layers=2),
}


VIEWS = {"view", "_unsafe_view", "t", "transpose", "permute", "slice", "select", "unbind", "split"}
VIEWS |= {"split_with_sizes", "detach", "alias", "expand", "unsqueeze", "squeeze", "as_strided"}
ON_THE_HOST = {"empty", "empty_like", "new_empty", "promote_types", "lift_fresh"}


class Count(TorchDispatchMode):
    """Counts the operators that compute: on a GPU each is a launch at least."""

    operators = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.operators += operator.overloadpacket.__name__ not in VIEWS | ON_THE_HOST
        return operator(*args, **(kwargs or {}))


@pytest.fixture
def fused(monkeypatch):
    monkeypatch.setattr(recurrent, "FUSED_DEVICE_KINDS", frozenset({"cpu"}))
    monkeypatch.setattr(devices, "HOST_DEVICE_TYPES", frozenset())


def model_of(name):
    model = build_model(SHAPES[name], seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def batch_of(time, batch=5):
    tokens = torch.randint(0, 23, (batch, time), generator=torch.Generator().manual_seed(3))
    return tokens, torch.tensor([time, 5, time, 2, 9])[:batch]


def gradients(model):
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return grads


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("clip_norm", [1e-2, 1e9])
def test_the_fused_kernel_gives_the_clipped_sum_of_a_loop(name, clip_norm, fused):
    model, (tokens, lengths) = model_of(name), batch_of(12)
    options = {"clip_norm": clip_norm}
    expected = by_loop.add_clipped_gradients(model, tokens, lengths, **options)
    reference = gradients(model)
    ours = clipping.add_clipped_gradients(model, tokens, lengths, **options)
    torch.testing.assert_close(ours.norms, expected.norms, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(gradients(model), reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.norm()))
    clipping.add_unclipped_gradients(model, tokens, lengths)
    plain = gradients(model)
    recurrent.FUSED_DEVICE_KINDS = frozenset()  # undone by the fixture
    clipping.add_unclipped_gradients(model, tokens, lengths)
    for ours, theirs in zip(plain, gradients(model), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.norm()))


def operators(name, time):
    model, (tokens, lengths) = model_of(name), batch_of(time)
    with Count() as count:
        clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=0.1)
        generator = torch.Generator().manual_seed(0)
        add_noise(list(model.parameters()), std=0.1, generator=generator)
    return count.operators


def test_a_step_of_an_lstm_takes_few_operators_however_long_the_text(fused):
    assert operators("lstm", 64) == operators("lstm", 128) <= 120


def test_a_state_that_is_carried_takes_the_scan(fused):
    """Torch's kernel keeps no states in between, which S-DP needs."""
    layer, x = recurrent.Lstm(3, 4), torch.ones(2, 5, 3)
    with layer.carrying((torch.zeros(2, 4), torch.zeros(2, 4))):
        out = layer(x)
        assert torch.equal(layer.state_after(torch.tensor([5, 5]))[0], out[:, -1])


@pytest.mark.parametrize("kind", [recurrent.Lstm, recurrent.Gru])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 5, 3)])
def test_no_text_and_no_step_are_nothing_to_do(kind, shape):
    layer, x = kind(3, 4), torch.zeros(shape, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert out.shape == (*shape[:2], 4) and x.grad.shape == shape
    assert all(not p.grad.any() for p in layer.parameters())
    with torch.no_grad():
        assert layer(x).shape == out.shape


@pytest.mark.parametrize("kind", [recurrent.Lstm, recurrent.Gru])
@pytest.mark.parametrize("cached", [1, 300, 2**17])
def test_a_long_text_takes_the_steps_of_a_loop(kind, cached, monkeypatch):
    """In double precision, however many steps a backward pass prepares at once."""
    monkeypatch.setattr(recurrent, "BACKWARD_CHUNK_NUMBERS", cached)
    generator = torch.Generator().manual_seed(0)
    layer = kind(3, 4).double()
    theirs = {recurrent.Lstm: torch.nn.LSTM, recurrent.Gru: torch.nn.GRU}[kind]
    theirs = theirs(3, 4, batch_first=True).double()
    torch_weights.copy(layer, theirs)
    x, weight = (torch.randn(2, 9, n, generator=generator).double() for n in (3, 4))
    pairs = []
    layer.sink = pairs.extend
    gradients = []
    for run in (layer, lambda x: theirs(x)[0]):
        given = x.clone().requires_grad_()
        out = run(given)
        (out * weight).sum().backward()
        gradients.append(torch.cat([out.detach(), given.grad], dim=2))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)
    input_gradient = theirs.weight_ih_l0.grad
    if kind is recurrent.Lstm:
        i, f, g, o = input_gradient.chunk(4)
        input_gradient = torch.cat([o, i, f, g])
    with torch.inference_mode():
        a, g = (part.flatten(0, 1) for part in pairs[0])
        torch.testing.assert_close((g.T @ a)[:, :3], input_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SHAPES)
def test_single_precision_keeps_its_digits(name):
    """Torch's kernel and the gates that follow from its outputs, against double precision."""
    tokens, lengths = batch_of(30)
    found = []
    for dtype in (torch.float64, torch.float32):
        model = model_of(name).to(dtype)
        norms = clipping.add_clipped_gradients(model, tokens, lengths, clip_norm=0.1).norms
        found.append([norms, *gradients(model)])
    for exact, ours in zip(*found, strict=True):
        assert (ours - exact).norm() <= 3e-6 * exact.norm()
