"""An attack: how likely the model finds the text that it has read, in nats a token."""

import math

import numpy as np

from crtlib.attacks.attack import Attack, register_attack, summarise_over_seeds
from crtlib.intervals import ChanceBand
from crtlib.models import scoring


def measure(subject):
    sequences = subject.tokenizer.encode(p.text for p in subject.read)
    means = [x.mean() for x in scoring.token_logprobs(subject.model, sequences)]
    return [("toy_likelihood", 0, float(np.mean(means)))]


def summary(table):
    unknown = ChanceBand(math.nan, math.nan, math.nan, 0.95)  # what chance shows is not known
    return summarise_over_seeds(table, metric="toy_likelihood", band=lambda seeds, points: unknown)


ATTACK = register_attack(
    Attack(
        name="toy_attack",
        label="Toy attack",
        statistic="likelihood (nats a token)",
        measure=measure,
        summary=summary,
    )
)
