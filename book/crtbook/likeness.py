"""How similar a corpus is to the original CustomerSim: sizes, secrets, templates.

>>> from crtlib.text.customersim import simulate_corpus
>>> round(describe_corpus(simulate_corpus(50, 0))["turns_mean"]) > 5
True
"""

import math
import statistics as st
from collections import Counter, defaultdict

from crtbook.tables import STUDIES
from crtlib.text.customersim import CUSTOMERSIM_KINDS
from crtlib.text.records import Corpus

ORIGINAL: dict[str, tuple[float, float]] = STUDIES["customersim"]
"""What both functions return for the original, and how far our corpus may be from it."""


def describe_corpus(corpus: Corpus) -> dict[str, float]:
    """What a corpus looks like: sizes, the mix and the uniqueness of its secrets, its templates.

    Words are separated by white space and include the speaker's label. ``share_k`` is the share
    of kind ``k`` among all labelled secrets, ``unique_k`` the number of distinct values over the
    number of occurrences. ``secret_free_turns`` and ``secret_templates`` count *distinct* turns:
    those without a secret, and those with one after each value is replaced by its kind.
    """
    counts, values = Counter[str](), _distinct_values(corpus)
    secret_free, templates = set[str](), set[str]()
    for turn in corpus.turns():
        template, last = f"{turn.speaker}: ", 0
        for s in turn.secrets:
            counts[s.kind] += 1
            template, last = template + turn.text[last : s.start] + f"<{s.kind}>", s.end
        (templates if turn.secrets else secret_free).add(template + turn.text[last:])
    turns = [len(d.turns) for d in corpus.dialogues]
    word_counts = [sum(1 + len(t.text.split()) for t in d.turns) for d in corpus.dialogues]
    total = counts.total()
    return {
        "dialogues": len(corpus),
        "turns_mean": st.fmean(turns),
        "turns_sd": st.pstdev(turns),
        "words_mean": st.fmean(word_counts),
        "words_sd": st.pstdev(word_counts),
        "secret_turn_share": sum(bool(t.secrets) for t in corpus.turns()) / sum(turns),
        "secret_free_turns": len(secret_free),
        "secret_templates": len(templates),
        **{f"share_{k}": counts[k] / total if total else math.nan for k in CUSTOMERSIM_KINDS},
        **{
            f"unique_{k}": len(values[k]) / counts[k] if counts[k] else math.nan
            for k in CUSTOMERSIM_KINDS
        },
    }


def shared_values(train: Corpus, test: Corpus) -> dict[str, float]:
    """For each kind, the share of the distinct values of ``test`` that also occur in ``train``."""
    train_values = _distinct_values(train)
    return {
        f"shared_{k}": len(train_values[k] & test_values) / len(test_values)
        for k, test_values in _distinct_values(test).items()
    }


def _distinct_values(corpus: Corpus) -> dict[str, set[str]]:
    """For each kind, the distinct values of the labelled secrets."""
    values: dict[str, set[str]] = defaultdict(set)
    for turn in corpus.turns():
        for s, value in zip(turn.secrets, turn.values(), strict=True):
            values[s.kind].add(value)
    return values
