"""Canaries: random secrets that are planted, so that it is known what must not be learned.

They are from Carlini et al. (2019). CRT, Section 5.1, inserts ten of them, each twenty times.

>>> from crtlib.text.records import Corpus
>>> planted = insert_canaries(Corpus("empty", ()), make_canaries(10, seed=0), copies=20, seed=0)
>>> len(planted), planted.dialogues[0].turns[0].text[:10]
(200, 'My ID is: ')
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crtlib.text.records import Corpus, Dialogue, Secret, Turn

CANARY_SPEAKER = "USR"
CANARY_CARRIER = "My ID is: "
CANARY_DIGITS = 6
CANARY_ID_PREFIX = "canary-"
CANARY_USER_PREFIX = f" {CANARY_ID_PREFIX}"
"""How the names of users of planted dialogues begin; nothing but the attack is counted on them. No
user of a corpus has such a name, since readers strip names
(:func:`crtlib.text.identity.normalise_unit_name`)."""
CANARY_SPACE_SIZE = 10**CANARY_DIGITS
"""The size of the randomness space R of Definition 9."""
AUDIT_CANARY_LETTERS = 8
"""Letters of an audit canary: capitals that no tokenizer has joined, each a rare token."""


def canary_prefix() -> str:
    """The text before the digits of a canary in a turn-level point."""
    return f"{CANARY_SPEAKER}: {CANARY_CARRIER}"


def make_canaries(n: int = 10, *, seed: int) -> tuple[str, ...]:
    """``n`` distinct six-digit secrets, uniform over the ``10**6``."""
    if not 1 <= n <= CANARY_SPACE_SIZE:
        raise ValueError(f"n={n}: must be in [1, {CANARY_SPACE_SIZE}] canaries")
    rng = np.random.default_rng(seed)
    return tuple(
        f"{v:0{CANARY_DIGITS}d}" for v in rng.choice(CANARY_SPACE_SIZE, size=n, replace=False)
    )


def make_canary_pairs(n: int, *, seed: int) -> list[tuple[str, str]]:
    """``n`` canaries of an audit, each paired with a control, all distinct and uniform over the
    words of ``AUDIT_CANARY_LETTERS`` letters: each pair could have been the other way round."""
    drawn = np.random.default_rng([seed, 7]).integers(26, size=(2 * n + 100, AUDIT_CANARY_LETTERS))
    alphabet = np.array(list(string.ascii_uppercase))
    words = list(dict.fromkeys("".join(row) for row in alphabet[drawn]))
    return list(zip(words[:n], words[n : 2 * n], strict=True))


def insert_canaries(
    corpus: Corpus,
    secrets: Sequence[str],
    *,
    copies: int = 20,
    seed: int,
    carrier: str = CANARY_CARRIER,
) -> Corpus:
    """``corpus`` with each canary as ``copies`` one-turn dialogues, at random places."""
    if copies < 0:
        raise ValueError(f"copies={copies}: must be at least 0")
    rng = np.random.default_rng([seed, 1])
    planted = []
    for k, secret in enumerate(secrets):
        span = Secret("id", len(carrier), len(carrier) + len(secret))
        turn = Turn(CANARY_SPEAKER, carrier + secret, (span,))
        planted += [
            Dialogue(f"{CANARY_ID_PREFIX}{k}-{c}", f"{CANARY_USER_PREFIX}{k}", (turn,))
            for c in range(copies)
        ]
    total = len(corpus) + len(planted)
    placed = dict(zip(rng.choice(total, len(planted), replace=False), planted, strict=True))
    rest = iter(corpus.dialogues)
    dialogues = tuple(placed[i] if i in placed else next(rest) for i in range(total))
    return replace(corpus, dialogues=dialogues)
