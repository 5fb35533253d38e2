"""A corpus: each customer says one number, which is the secret."""

import numpy as np

from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.sources import register_corpus, simulated_source


def draw(dialogues, seed, variety):
    rng = np.random.default_rng([seed, 7])
    out = []
    for k, number in enumerate(rng.integers(10**5, 10**6, dialogues)):
        text = f"My ticket is {number}."
        turn = Turn("USR", text, (Secret("number", 13, 19),))
        out.append(Dialogue(f"{seed}-{k}", f"u{seed}-{k}", (turn, Turn("SYS", "Thank you."))))
    return Corpus("toy_corpus", tuple(out))


SOURCE = register_corpus(
    simulated_source("toy_corpus", "Toy corpus", draw, sizes={"train": 50, "test": 20}, content="1")
)
