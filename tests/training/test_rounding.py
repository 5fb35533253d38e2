"""Where the positions of a text cancel, a ghost norm is nothing but rounding, which is charged: no
example adds more than the clipping norm."""

import pytest
import torch
import transformers
from torch import nn

from crtlib.models import interface, pretrained
from crtlib.training import clipping, gradient_entries
from crtlib.training.gradient_entries import (
    DenseGrad,
    EmbeddingGrad,
    OuterProductGrad,
    StackedGrad,
    clip_factors,
    fill_missing_gradients,
    trainable_parameters,
)
from crtlib.training.gradient_recorder import GradientRecorder

ROWS, COLUMNS, EXAMPLES, LEFT = 300, 33, 16, 1e-5


class Parameters(nn.Module):
    """Parameters of one shape, and a head that learns nothing."""

    def __init__(self, count):
        super().__init__()
        shape = (ROWS, COLUMNS)
        self.each = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for _ in range(count))
        self.bias = nn.Parameter(torch.zeros(ROWS))


def cancelling(width, seed, scale=1.0):
    """Vectors (EXAMPLES, 16, width) whose halves cancel but for ``LEFT`` of their length."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(EXAMPLES, 8, width, generator=generator)
    rest = LEFT * torch.randn(EXAMPLES, 8, width, generator=generator)
    return scale * torch.cat([half, rest - half], 1)


def twice(width, seed, scale=1.0):
    half = torch.randn(EXAMPLES, 8, width, generator=torch.Generator().manual_seed(seed))
    return scale * torch.cat([half, half], 1)


def outer(p, seed=0, **options):
    return OuterProductGrad(p, cancelling(ROWS, seed), twice(COLUMNS, seed + 1), **options)


def entries_that_cancel(kind, model):
    p, q = model.each
    ids = torch.arange(8).repeat(EXAMPLES, 2)
    if kind == "outer":
        return [outer(p)]
    if kind == "bias":
        return [outer(p, bias=(model.bias, twice(1, 5)))]
    if kind == "embedding":
        return [EmbeddingGrad(p, ids, cancelling(COLUMNS, 0))]
    if kind == "stacked":
        rows, columns = cancelling(ROWS, 0).repeat(2, 1, 1), twice(COLUMNS, 1).repeat(2, 1, 1)
        return [StackedGrad([p, q], OuterProductGrad(p, rows, columns))]
    if kind == "gain":
        return [OuterProductGrad(p, cancelling(ROWS, 0, 1e6), twice(COLUMNS, 1))]
    if kind == "underflow":  # the squares of its rows are below the least number that float32 has
        rows, columns = twice(ROWS, 0, 1e-22), twice(COLUMNS, 1, 1e17)
        return [OuterProductGrad(p, rows, columns)]
    grads = cancelling(COLUMNS, 0)
    table = torch.zeros(EXAMPLES, ROWS, COLUMNS)
    table.scatter_add_(1, ids[..., None].expand_as(grads)[:, :8], -grads[:, :8])
    if kind == "tied outer":  # the head's entry is what the embedding's is, but for its sign
        rows = nn.functional.one_hot(ids[:, :8], ROWS).float()
        return [
            OuterProductGrad(p, rows, -grads[:, :8]),
            EmbeddingGrad(p, ids[:, :8], moved(grads)),
        ]
    assert kind == "tied dense"
    return [DenseGrad(p, table), EmbeddingGrad(p, ids[:, :8], moved(grads))]


def moved(grads):
    return grads[:, :8] * (1 + LEFT * torch.sin(torch.arange(COLUMNS)))


def added_of_each(make, clip_norm):
    """Length of what each example adds, and its length before, both in float64."""
    found = []
    for factors in ("clipped", "whole"):
        for i in range(EXAMPLES):
            model = Parameters(2)
            fill_missing_gradients(model.parameters())
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(interface, "output_head", lambda m: interface.Head(m.each[0]))
                recorder = GradientRecorder(model, EXAMPLES)
            for entry in make(model):
                recorder.add(entry)
            each = (
                clip_factors(recorder.norms(), clip_norm)
                if factors == "clipped"
                else torch.ones(16)
            )
            recorder.add_clipped(each * (torch.arange(EXAMPLES) == i))
            grads = [p.grad.double().flatten() for p in model.parameters()]
            found.append(torch.cat(grads).norm())
    return torch.stack(found[:EXAMPLES]), torch.stack(found[EXAMPLES:])


KINDS = ("outer", "bias", "embedding", "stacked", "gain", "underflow", "tied outer", "tied dense")


@pytest.mark.parametrize("kind", KINDS)
def test_what_cancels_is_clipped(kind):
    clip_norm = 1e-6 if kind != "gain" else 1.0
    clipped, whole = added_of_each(lambda model: entries_that_cancel(kind, model), clip_norm)
    assert whole.min() > 2 * clip_norm  # each has to be clipped
    assert clipped.max() <= clip_norm * (1 + 1e-4)


def test_a_square_below_zero_cancels_no_other():
    """The rounding of one parameter, which may be negative, beside an honest one as long as it."""
    honest = torch.zeros(EXAMPLES, ROWS, COLUMNS)
    honest[:, 0, 0] = 2e-3
    clipped, whole = added_of_each(
        lambda model: [outer(model.each[0]), DenseGrad(model.each[1], honest)], 1e-4
    )
    assert whole.min() > 1e-3
    assert clipped.max() <= 1e-4 * (1 + 1e-4)


def test_an_ordinary_norm_is_the_number_that_was_computed():
    """And so the weights of runs stay what they were."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randn(4, 30, n, generator=generator) for n in (ROWS, COLUMNS))
    model = Parameters(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface, "output_head", lambda m: interface.Head(m.each[0]))
        recorder = GradientRecorder(model, 4)
    recorder.add(OuterProductGrad(model.each[0], rows, columns))
    grams = (rows @ rows.mT) * (columns @ columns.mT)
    assert torch.equal(
        recorder.norms(), grams.flatten(1).sum(1, dtype=torch.float64).sqrt().float()
    )


def test_a_long_row_of_one_size_has_its_norm():
    """One sum after the other of forty million squares is two hundredths short."""
    grads = torch.full((1, 1000, 38_600), 0.37)
    norm = DenseGrad(nn.Parameter(torch.zeros(1, 1)), grads).square().value.sqrt()
    assert abs(float(norm) / (0.37 * 38_600_000**0.5) - 1) < 1e-4


# --------------------------------------------------------------------------- whole models
def cancelling_model(gain, seed):
    """A Llama that has fitted a text in which one of two words follows each of four, in turn: the
    gradients of its head cancel. ``gain``: that of its last norm."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, intermediate_size=32, max_position_embeddings=64,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    first = range(10, 14)
    follow = {a: [30 + 2 * i, 31 + 2 * i] for i, a in enumerate(first)}
    follow |= {30 + k: [10 + (k // 2 + 1) % 4] for k in range(8)}
    text = [w for r in range(4) for i in range(4) for w in (10 + i, 30 + 2 * i + (r + i) % 2)]
    with torch.no_grad():
        model.model.norm.weight.fill_(gain)
        attention = model.model.layers[0].self_attn
        attention.o_proj.weight.zero_()
        attention.v_proj.weight.zero_()
        model.model.embed_tokens.weight.normal_()
        states = interface.hidden_states(model, torch.tensor([list(follow)]))[0].double()
        logits = torch.full((len(follow), 300), -12.0, dtype=torch.float64)
        for row, words in zip(logits, follow.values(), strict=True):
            row[words] = 12.0
        head = torch.linalg.lstsq(states, logits).solution.T
        noise = torch.randn(head.shape, generator=torch.Generator().manual_seed(seed))
        model.lm_head.weight.copy_(head + noise * 3e-5 / gain)
    return model, torch.tensor([[*text, 10]])


def length_of_sum(model, run):
    model.zero_grad(set_to_none=True)
    run(model)
    grads = [p.grad for p in trainable_parameters(model).values()]
    return float(torch.stack([g.double().square().sum() for g in grads]).sum().sqrt())


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapters"])
@pytest.mark.parametrize(("gain", "clip_norm"), [(1.0, 1e-6), (1e4, 1.0), (1e6, 1.0)])
def test_a_text_that_cancels_in_a_model_is_clipped(gain, clip_norm, adapted):
    for seed in (3, 5, 8):
        model, text = cancelling_model(gain, seed)
        if adapted:
            model = pretrained.with_lora(model, 2, seed=0)
        lengths = torch.tensor([text.shape[1]])
        long = length_of_sum(
            model,
            lambda m: clipping.add_clipped_gradients(m, text, lengths, clip_norm=clip_norm),  # noqa: B023
        )
        assert long <= clip_norm * (1 + 1e-4)


def test_a_long_bias_has_its_norm():
    norm = DenseGrad(nn.Parameter(torch.zeros(1)), torch.ones(2, 200_000)).square().value.sqrt()
    assert torch.allclose(norm, torch.full((2,), 200_000**0.5))


@pytest.mark.parametrize(("share", "gram"), [(1, 512), (1, 100), (0.2, 512), (0.2, 100)])
def test_what_is_charged_depends_on_no_other_example(share, gram, monkeypatch):
    """Nor does it matter that beside a long text an embedding's norm is taken token by token.
    Once: the charge followed the longest text of a batch, and so did whether there was any, so one
    text decided what every other one added, by up to a hundredth of the clip norm."""
    monkeypatch.setattr(gradient_entries, "MAX_GRAM_TOKENS", gram)
    config = transformers.GPT2Config(
        vocab_size=4000, n_positions=128, n_embd=256, n_layer=2, n_head=2,
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    texts = [torch.randint(1, 4000, (n,)) for n in (64, 64, 30, 128)]
    aims = [text.masked_fill(torch.rand(len(text)) >= share, -100) for text in texts]

    def clipped(which, clip_norm=1e-3):
        model.zero_grad()
        lengths = torch.tensor([len(texts[k]) for k in which])
        tokens = nn.utils.rnn.pad_sequence([texts[k] for k in which], batch_first=True)
        targets = nn.utils.rnn.pad_sequence([aims[k] for k in which], batch_first=True)
        clipping.add_clipped_gradients(
            model, tokens, lengths, clip_norm=clip_norm, targets=None if share == 1 else targets
        )
        return torch.cat([p.grad.double().flatten() for p in model.parameters()]) / clip_norm

    each = [clipped([k]) for k in range(4)]
    assert float((clipped([0, 1, 2]) - sum(each[:3])).norm()) < 1e-5
    assert float((clipped([0, 1, 2, 3]) - sum(each)).norm()) < 1e-5
    norms = [float(one.norm()) for one in each]
    assert all(0.99 < norm <= 1 + 1e-6 for norm in norms)
    assert min(norms) < 0.9995 or share < 1  # it is charged
