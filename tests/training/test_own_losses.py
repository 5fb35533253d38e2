"""Losses of one's own, one of each row, are clipped as the engine clips its own."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.training import own_losses
from crtlib.training.loop import Training, train_model
from crtlib.training.phases import PrivatePhase, PublicPhase
from tests.training.test_loop import PARTS, SPEC, flat
from tests.training.test_own_loop import GPT2, NOISE, PHASES, RARE

OWNERS = {"private": [k // 2 for k in range(15)]}
LENGTHS = torch.tensor([5, 2, 4])
TOKENS = torch.randint(1, 20, (3, 5), generator=torch.Generator().manual_seed(0))


def logits_of(model, batch):
    if isinstance(model, nn.Module) and hasattr(model, "features"):
        return model(batch["input_ids"])
    return model(**{name: x for name, x in batch.items() if name != "labels"}).logits


def cross_entropy(model, batch):
    """The loss of the engine: the mean over the targets of each row."""
    labels = batch["labels"][:, 1:]
    logits = logits_of(model, batch)[:, :-1].transpose(1, 2)
    each = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    return each.sum(1) / (labels != -100).sum(1).clamp_min(1)


def focal(model, batch):
    each = cross_entropy(model, batch)
    return (1 - torch.exp(-each)).square() * each


@pytest.mark.parametrize("owners", [None, OWNERS], ids=["points", "units"])
@pytest.mark.parametrize("spec", [SPEC, GPT2], ids=["lstm", "gpt2"])
def test_the_engines_own_loss_gives_the_same_private_steps(spec, owners):
    phases = [PHASES[1]]
    # A unit's loss is the mean over its texts, and not over all of their tokens.
    parts = {"private": [row[:3] for row in PARTS["private"]]} if owners else PARTS
    one, two = (build_model(spec, 0).double() for _ in range(2))
    train_model(one, phases, parts, seed=0, owners=owners)
    for step in Training(two, phases, parts, seed=0, owners=owners):
        step(cross_entropy)
    torch.testing.assert_close(flat(one), flat(two), rtol=0, atol=1e-9)


def test_public_steps_take_the_mean_of_the_rows():
    model, other = (build_model(GPT2, 0) for _ in range(2))
    rows = [PublicPhase(1, "public", 1, 12, 1.0)]
    for step in Training(model, rows, PARTS, seed=0, optimizer="sgd"):
        loss = step(focal)
    same = {
        n: torch.cat([x, x, x, x])
        for n, x in own_losses.make_micro_batch(
            torch.tensor([[1, 2, 3, 4, 0], [2, 3, 0, 0, 0], [4, 5, 6, 7, 8]]),
            torch.tensor([4, 2, 5]),
        ).items()
    }
    mean = focal(other, same).mean()
    mean.backward()
    torch.testing.assert_close(loss, mean.detach())
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.detach(), (q - q.grad).detach(), rtol=1e-4, atol=1e-6)


def clipped_alone(model, losses, clip_norm):
    """Row by row, by autograd alone."""
    total = 0
    for row, length in zip(TOKENS, LENGTHS, strict=True):
        batch = own_losses.make_micro_batch(row[None, : int(length)], length[None])
        gradient = torch.autograd.grad(
            losses(model, batch).sum(), list(model.parameters()), allow_unused=True
        )
        g = torch.cat([torch.zeros_like(p).flatten() if x is None else x.flatten()
                       for p, x in zip(model.parameters(), gradient, strict=True)])  # fmt: skip
        total = total + g * min(1.0, float(clip_norm / g.norm()))
    return total


class Scaled(nn.Module):
    """A layer without a rule."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))


@pytest.mark.parametrize("kind", ["gpt2", "lstm", "unknown layer"])
def test_losses_are_clipped_row_by_row(kind):
    model = build_model(SPEC if kind == "lstm" else GPT2, 0)
    losses = focal
    if kind == "unknown layer":
        model.scaled = Scaled()

        def losses(model, batch):
            return focal(model, batch) * model.scaled.gain

    model = model.double()
    want = clipped_alone(model, losses, 0.5)
    slow = kind == "unknown layer"
    with pytest.warns(UserWarning, match="slow") if slow else contextlib.nullcontext():
        norms = own_losses.add_clipped_gradients_of_losses(
            model, TOKENS, LENGTHS, losses, clip_norm=0.5
        ).norms
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float((got - want).norm()) < 1e-6 and (norms > 0.5).any()


def of_the_batch(model, batch):
    return cross_entropy(model, batch).mean()


def divided_by_the_batch(model, batch):
    """As ``transformers`` 5 does: by all targets of the batch."""
    labels = batch["labels"][:, 1:]
    logits = logits_of(model, batch)[:, :-1].transpose(1, 2)
    each = F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)
    return each.sum(1) / (labels != -100).sum()


def weighted_by_the_batch(model, batch):
    each = cross_entropy(model, batch)
    return each * each.detach().softmax(0)


def rolled(model, batch):
    each = cross_entropy(model, batch)
    return each * each.roll(1)


def longest_of_the_batch(model, batch):
    """Padding is no text, and tells of the longest row."""
    return logits_of(model, batch).logsumexp(-1).mean(1)


@pytest.mark.parametrize(
    "losses", [divided_by_the_batch, weighted_by_the_batch, rolled, longest_of_the_batch]
)
def test_losses_that_mix_are_refused(losses):
    model = build_model(GPT2, 0)
    before = flat(model)
    step = next(iter(Training(model, [PHASES[1]], PARTS, seed=0)))
    with pytest.raises(
        ValueError, match=r"^losses: the other rows of a batch change what one adds"
    ):
        step(losses)
    assert torch.equal(flat(model), before)
    step(focal)  # it was not begun


def noisy(model, batch):
    return cross_entropy(model, batch) * (1 + torch.rand(()))


def detached(model, batch):
    return cross_entropy(model, batch).detach()


def test_a_sum_of_rows_is_clipped_by_what_each_adds():
    """A row's gradient is what its own tokens add to all losses: here 1.5 of its own."""
    model = build_model(GPT2, 0).double()

    def half_of_the_next(model, batch):
        each = cross_entropy(model, batch)
        return each + each.roll(1) / 2

    own_losses.refuse_mixing_losses(model, half_of_the_next)
    own_losses.add_clipped_gradients_of_losses(
        model, TOKENS, LENGTHS, half_of_the_next, clip_norm=0.5
    )
    got = torch.cat([p.grad.flatten() for p in model.parameters()])
    want = clipped_alone(model, lambda m, b: 1.5 * cross_entropy(m, b), 0.5)
    assert float((got - want).norm()) < 1e-6


class Probe(nn.Linear):
    def __call__(self, model, batch):
        return super().__call__(logits_of(model, batch)).square().mean((1, 2))


HEAD = torch.zeros(20, requires_grad=True)  # an optimizer takes it, and it is no parameter


def with_a_head(model, batch):
    return (logits_of(model, batch) * HEAD).square().mean((1, 2))


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (noisy, "(draw random numbers of their own|change what one adds)"),
        (of_the_batch, "one number for each row of input_ids, not of the batch"),
        (lambda model, batch: 0.0, "one number for each row of input_ids"),
        (detached, "have no graph"),
        (Probe(20, 2), r"read a tensor of shape \(2, 20\) that learns outside of the model"),
        (with_a_head, r"read a tensor of shape \(20,\) that learns outside of the model"),
        (lambda m, b: 1e30 * cross_entropy(m, b), "gradients for random tokens overflow"),
    ],
    ids=["noisy", "of the batch", "number", "detached", "a parameter outside", "a tensor outside",
         "huge"],
)  # fmt: skip
def test_other_losses_that_are_refused(losses, said):
    with pytest.raises(ValueError, match=f"^losses: .*{said}"):
        next(iter(Training(build_model(GPT2, 0), [PHASES[1]], PARTS, seed=0)))(losses)


def test_a_layer_beside_the_model_is_refused_at_any_step():
    batch = own_losses.make_micro_batch(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 2]))
    with pytest.raises(ValueError, match="learns outside of the model"):
        own_losses._losses_of_rows(build_model(GPT2, 0), Probe(20, 2), batch)


def test_an_empty_sample_reads_no_losses_and_is_a_step():
    model = build_model(GPT2, 0)
    training = Training(model, [RARE], PARTS, seed=0)
    before = flat(model)
    for step in training:
        step(focal)
    assert training.run.updates["private"] == 2 and not torch.equal(flat(model), before)


def test_losses_are_read_by_phases_that_take_them():
    class OfAnotherPackage(PrivatePhase):
        pass

    phase = OfAnotherPackage(epoch=1, sampling_probability=0.3, steps=1, **NOISE)
    step = next(iter(Training(build_model(GPT2, 0), [phase], PARTS, seed=0)))
    with pytest.raises(ValueError, match=r"^losses: must be left out in a OfAnotherPackage"):
        step(focal)
    step()


def of_hidden_states(model, batch):
    """``transformers`` hooks the layers at the first call that asks for them."""
    inputs = {name: x for name, x in batch.items() if name != "labels"}
    hidden = model(**inputs, output_hidden_states=True).hidden_states[1]
    marks = batch["attention_mask"][..., None]
    return (
        cross_entropy(model, batch) + (hidden * marks).square().mean(2).sum(1) / marks.sum(1)[:, 0]
    )


def that_hook_what_mixes(model, batch):
    if not model.transformer.h[0]._forward_hooks:
        model.transformer.h[0].register_forward_hook(lambda layer, x, out: out + out.sum(0))
    return cross_entropy(model, batch).detach() + model.transformer.wpe.weight[0].sum()


@pytest.mark.parametrize("first", [0, 1], ids=["public", "private"])
def test_losses_that_hook_the_model_are_tried_before_anything_is_charged(first):
    """A loss that asks for hidden states is taken at every step. Once: it was refused at the second
    step, when the first was charged."""
    charged = []
    model, phases = build_model(GPT2, 0), PHASES[first : first + 2]
    training = Training(model, phases, PARTS, seed=0, on_start=lambda *_: charged.append(1))
    with contextlib.suppress(ValueError):
        for step in training:
            step(of_hidden_states)
    assert training.steps_left == 0 and charged == [1]
    options = {"seed": 0, "on_start": lambda *_: charged.append(2)}
    for losses, phase in ((that_hook_what_mixes, first), (rolled, first)):
        other = Training(build_model(GPT2, 0), PHASES[phase : phase + 2], PARTS, **options)
        step = next(iter(other))
        with pytest.raises(
            ValueError, match=r"the other texts of a batch change|rows of a batch change"
        ):
            step(losses)
        assert other.run.events == [] and charged == [1]


def test_long_rows_are_tried_as_well():
    """What decides by the length of the batch shows beside a long text alone."""
    spec = ModelSpec("gpt2", 20, hidden=8, layers=1, heads=2, context=64)

    def cut_in_long_batches(model, batch):
        each = cross_entropy(model, batch)
        return each * (1 + (batch["input_ids"].shape[1] > 50))

    with pytest.raises(ValueError, match="the other rows of a batch change"):
        own_losses.refuse_mixing_losses(build_model(spec, 0), cut_in_long_batches)
