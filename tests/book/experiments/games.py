"""White-box games that no method of the companion is, and that find a fault: one for the noise of
each tensor of an LSTM that learns as a whole, and two whose canary is three points."""

import functools
import math

import numpy as np
import torch

from crtbook import audits
from crtbook.audits import ALONG, CLIP, FIRST, NO, YES, Audit, Games
from crtlib.models.recurrent import Lstm
from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.specs import ModelSpec
from crtlib.training import schedules
from crtlib.training.loop import train_model


def pushed(model, phases, rows, place, seed, **options):
    """How far each epoch moved what ``place`` reads, (epochs, games), in clip norms; the events."""
    places = [place()]

    def look(epoch, _):
        places.append(place())
        return {}

    done = train_model(
        model, phases, {"private": rows}, seed=seed, optimizer="sgd", on_epoch=look, **options
    )
    return torch.stack(places).diff(dim=0).double().numpy() / CLIP, done.events


def through(games, noise, seed, scale=1.0, *, tensor):
    """DP-SGD of a whole LSTM; the canary is there or not, and its gradient lies in one of the five
    tensors (:data:`TENSORS`): there alone the noise is tested."""
    sigma, units = 2.5 * scale, (4, math.isqrt(games - 1) + 1, games, 128, 4)[tensor]
    tokens = FIRST + 8 * games  # so many that a target hardly moves the others
    model = RecurrentLM(ModelSpec("lstm", vocab_size=tokens, embedding=units, hidden=units))
    (cell,) = model.layers
    assert isinstance(cell, Lstm)
    number = torch.arange(games)
    read, write, unit = torch.zeros_like(number), FIRST + number, torch.zeros_like(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        if tensor == 0:  # each reads a token of its own, whose way on is steep
            cell.weight[3 * units :, :units] = 10 * torch.eye(units)
            read, write = FIRST + number, torch.full_like(number, YES)
        elif tensor == 1:  # each is a pair of a token read and a unit that writes
            read, unit = FIRST + number // units, number % units
            write = FIRST + units + unit
            model.embedding.weight[FIRST : FIRST + units] = 10 * torch.eye(units)
        elif tensor == 2:
            unit = number
        elif tensor == 3:  # all units are on, whatever is read
            cell.bias[:] = 10.0
        if tensor < 3:
            model.head.weight[write, unit] = 50.0
    weight = (model.embedding.weight, cell.weight, cell.bias, model.head.weight, model.head.bias)

    def place():
        x = weight[tensor].detach()
        if tensor == 0:
            return x[FIRST : FIRST + games, 0].clone()
        if tensor == 1:
            return x[3 * units + unit, read - FIRST]
        if tensor == 2:
            return x[3 * units :].clone()
        return (x[write].sum(dim=1) / math.sqrt(units) if tensor == 3 else x[write]).clone()

    private, included = (
        audits._private_constants(sigma * noise, games),
        audits._flip_coins(games, seed),
    )
    phases = schedules.dpsgd_phases(epochs=4, private=private)
    rows = torch.stack([read, write], dim=1)[torch.from_numpy(included)].tolist()
    pushes, events = pushed(model, phases, rows, place, seed)
    scores = audits._score_pushes(pushes, sigma, private.steps, against=0)
    return Games(scores, included, audits._prove_steps(events, sigma, "add_or_remove"))


def together(games, noise, seed, scale=1.0, *, copies=3, of_a_user=False):
    """DP-SGD where ``copies`` points are a canary: a group, or what one user says; it has another
    value in the other world."""
    sigma, model, included = 2.5 * scale, audits._model(games), audits._flip_coins(games, seed)
    private = audits._private_constants(sigma * noise, games)
    phases = schedules.dpsgd_phases(epochs=4, private=private)
    rows = [
        [FIRST + i, YES if coin else NO] for i, coin in enumerate(included) for _ in range(copies)
    ]
    owners = {"private": np.repeat(np.arange(games), copies).tolist()} if of_a_user else None

    def place():
        return model.embedding.weight.detach()[FIRST:, ALONG].clone()

    pushes, events = pushed(model, phases, rows, place, seed, owners=owners)
    drawn = 1 if of_a_user else copies
    inside, outside = (audits._law_of_pushes(private.steps * drawn, sign) for sign in (1, -1))
    spread = sigma * np.sqrt(private.steps)
    scores = audits.log_ratio(pushes, inside=inside, outside=outside, sigma=spread)
    if of_a_user:
        return Games(scores, included, audits._prove_steps(events, sigma, "replace"))
    law = tuple(audits._law_of_pushes(copies, 1)[1].tolist())

    def proof(x):
        return audits._prove_group(law, sigma * x, len(events), ("replace",))

    return Games(scores, included, proof)


TENSORS = tuple(
    Audit(
        f"tensor_{k}", f"DP-SGD, {part}", "add_or_remove",
        functools.partial(through, tensor=k), at_once=250 if k == 2 else 2_000,
    )
    for k, part in enumerate(
        ("embedding", "cell's weights", "cell's bias", "output weights", "output bias")
    )
)  # fmt: skip
GROUPS = (
    Audit("dpsgd_group", "DP-SGD, three points", "replace", together),
    Audit(
        "user_dpsgd", "user-level DP-SGD", "replace",
        functools.partial(together, of_a_user=True), at_once=2_000,
    ),
)  # fmt: skip
