"""Adam and SGD give the bits of torch.optim, and leave torch's compiler where it is."""

import subprocess
import sys

import pytest
import torch

from crtlib.optimizers import Adam, Sgd

THEIRS = {
    "adam": lambda p: torch.optim.Adam(p, lr=1.0),
    "fused": lambda p: torch.optim.Adam(p, lr=1.0, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1.0),
}
OURS = {"adam": Adam, "fused": lambda p: Adam(p, fused=True), "sgd": Sgd}


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (33,), (3,))]


def gradients(step):
    torch.manual_seed(100 + step)
    return [torch.randn(7, 5), torch.randn(33), torch.randn(3) if step > 1 else None]


@pytest.mark.parametrize("name", OURS)
def test_steps_are_those_of_torch_bit_for_bit_and_go_on_from_a_state(name):
    mine, theirs = parameters(), parameters()
    ours, reference = OURS[name](mine), THEIRS[name](theirs)
    for step in range(6):
        rate = 0.1 / (1 + step)
        if step == 3:
            state = ours.state_dict()
            ours = OURS[name](mine)
            ours.load_state_dict(state)
        ours.rate = reference.param_groups[0]["lr"] = rate
        for p, q, grad in zip(mine, theirs, gradients(step), strict=True):
            p.grad, q.grad = grad, None if grad is None else grad.clone()
        ours.step()
        reference.step()
    assert all(torch.equal(p, q) for p, q in zip(mine, theirs, strict=True))


def test_a_state_that_torch_wrote_is_taken_over():
    mine, theirs = parameters(), parameters()
    reference, ours = torch.optim.Adam(theirs, lr=0.1), Adam(mine, rate=0.1)
    for step in range(4):
        if step == 2:
            ours.load_state_dict(reference.state_dict())
            for p, q in zip(mine, theirs, strict=True):
                p.data.copy_(q)
        for p, q, grad in zip(mine, theirs, gradients(3 + step), strict=True):
            p.grad, q.grad = grad, grad.clone()
        ours.step()
        reference.step()
    assert all(torch.equal(p, q) for p, q in zip(mine, theirs, strict=True))


TRAINS = """
import sys
from crtlib.experiments import crt
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.training.loop import train
from crtlib.training.phases import PublicPhase
model = build(ModelSpec("lstm", 9, embedding=4, hidden=4), seed=0)
train(model, [PublicPhase(1, "public", 1, batch_size=2, learning_rate=0.1)],
      {"public": [[1, 2, 3]] * 4}, seed=0)
print({"torch._dynamo", "sympy", "transformers"} & set(sys.modules))
"""


def test_a_process_that_trains_loads_neither_a_compiler_nor_what_it_does_not_use():
    done = subprocess.run([sys.executable, "-c", TRAINS], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr[-2000:]
