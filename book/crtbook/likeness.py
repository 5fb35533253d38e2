"""How like a corpus is to the original CustomerSim: sizes, secrets, templates.

>>> from crtlib.text.customersim import simulate
>>> round(statistics(simulate(50, 0))["turns_mean"]) > 5
True
"""

from __future__ import annotations

import math
import statistics as st
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from crtlib.text.customersim import KINDS
from crtlib.text.records import Corpus

ORIGINAL: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "turns_mean": (8.520, 0.03),
        "turns_sd": (0.623, 0.04),
        "words_mean": (73.32, 0.8),
        "words_sd": (8.085, 0.3),
        "secret_turn_share": (0.3561, 0.003),
        "secret_free_turns": (61, 0),
        "secret_templates": (165, 20),
        **dict.fromkeys(("share_name", "share_tracking"), (0.334, 0.003)),
        **dict.fromkeys(("share_phone", "share_order", "share_address"), (0.110, 0.006)),
        "unique_name": (0.778, 0.015),
        "unique_phone": (0.908, 0.03),
        "unique_order": (0.918, 0.02),
        "unique_address": (0.922, 0.02),
        "unique_tracking": (0.978, 0.004),
        "shared_name": (0.369, 0.08),
        "shared_phone": (0.129, 0.08),
        "shared_order": (0.123, 0.08),
        "shared_address": (0.148, 0.08),
    }
)
"""What ``statistics`` and ``shared_values`` say of the original (10,000 training and 1,000 test
dialogues, github.com/wyshi/lm_privacy; secrets found by ``screen.regex``), and how far 10,000 of
ours may be from it: four standard deviations of a draw or more; Faker also has fewer names."""


def statistics(corpus: Corpus) -> dict[str, float]:
    """What a corpus looks like: sizes, the mix and the uniqueness of its secrets, its templates.

    Words are separated by white space and include the speaker's label. ``share_k`` is the share
    of kind ``k`` among all labelled secrets, ``unique_k`` the number of distinct values over the
    number of occurrences. ``secret_free_turns`` and ``secret_templates`` count *distinct* turns
    without a secret, and distinct turns with one after each value is replaced by its kind.
    """
    counts: dict[str, int] = defaultdict(int)
    values = _values(corpus)
    free: set[str] = set()
    templates: set[str] = set()
    for turn in corpus.turns():
        template, last = f"{turn.speaker}: ", 0
        for s in turn.secrets:
            counts[s.kind] += 1
            template, last = template + turn.text[last : s.start] + f"<{s.kind}>", s.end
        (templates if turn.secrets else free).add(template + turn.text[last:])
    turns = [len(d.turns) for d in corpus.dialogues]
    words = [sum(1 + len(t.text.split()) for t in d.turns) for d in corpus.dialogues]
    total = sum(counts.values())
    return {
        "dialogues": len(corpus),
        "turns_mean": st.fmean(turns),
        "turns_sd": st.pstdev(turns),
        "words_mean": st.fmean(words),
        "words_sd": st.pstdev(words),
        "secret_turn_share": sum(bool(t.secrets) for t in corpus.turns()) / sum(turns),
        "secret_free_turns": len(free),
        "secret_templates": len(templates),
        **{f"share_{k}": counts[k] / total if total else math.nan for k in KINDS},
        **{f"unique_{k}": len(values[k]) / counts[k] if counts[k] else math.nan for k in KINDS},
    }


def shared_values(train: Corpus, test: Corpus) -> dict[str, float]:
    """By kind, the share of the distinct values of ``test`` that also occur in ``train``."""
    known = _values(train)
    return {f"shared_{k}": len(known[k] & new) / len(new) for k, new in _values(test).items()}


def _values(corpus: Corpus) -> dict[str, set[str]]:
    """By kind, the distinct values of the labelled secrets."""
    values: dict[str, set[str]] = defaultdict(set)
    for turn in corpus.turns():
        for s, value in zip(turn.secrets, turn.values(), strict=True):
            values[s.kind].add(value)
    return values
