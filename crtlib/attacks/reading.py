"""Under which template a model reads a corpus most easily: that of its training, most likely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from torch import nn

from crtlib.attacks import leakage
from crtlib.attacks.leakage import Reading, Scores
from crtlib.models.scoring import Scorer
from crtlib.text import templates
from crtlib.text.records import Corpus, Point
from crtlib.text.templates import Template
from crtlib.text.tokenizer import AnyTokenizer

TEXTS, NATS, SHARE, LEVEL = 200, 0.2, 0.6, 1e-3
"""How many texts are read; how much lower a loss must be, in how much of them, at what level."""


def fit(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    corpus: Corpus,
    *,
    unit: str,
    used: Template | None = None,
    device: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Read ``TEXTS`` texts, evenly drawn, under ``used`` and every candidate: the name of the
    template to read with, and what a report says of it. ``template``: the one that is ``used``, the
    ``best``, and the mean loss of each (nats a token, own tokens of the texts), to one decimal, as
    an exact loss is a hash of the text; ``warning``: what a person must be told, if anything.

    Without ``used`` the best candidate is used. Another one wins where its loss is lower by
    ``NATS`` on average, in ``SHARE`` of the texts, at level ``LEVEL`` of a sign test.
    """
    every = {t.name: t for t in ([used] if used else [])} | {
        name: t for name, t in templates.CANDIDATES.items() if not used or name != used.name
    }
    some = _sample(corpus, unit)
    each, words = {}, Counter[int]()
    for name, template in every.items():
        texts = templates.points(some, unit, template)
        each[name] = _losses(model, tokenizer, texts, device)
        if name == "plain":
            for document in leakage.documents(texts, tokenizer):
                words.update(document.tokens)
    if not words:
        raise ValueError(leakage.NO_TEXT)
    losses = {name: float(np.nanmean(x)) for name, x in each.items()}
    first = used.name if used else min(losses, key=lambda name: losses[name])
    best = first
    for name in sorted(losses, key=lambda name: losses[name]):
        gain = each[first] - each[name]
        better = int((gain > 0).sum())
        n = int((gain != 0).sum())
        if (
            name != first and np.nanmean(gain) >= NATS and better >= SHARE * len(gain)
            and scipy.stats.binomtest(better, n, alternative="greater").pvalue < LEVEL
        ):  # fmt: skip
            best = name
            break
    share = np.array(list(words.values())) / max(1, sum(words.values()))
    entropy = float(-(share * np.log(share)).sum())
    shown = {name: round(x, 1) for name, x in losses.items()}
    facts: dict[str, Any] = {"template": {"used": first, "best": best, "losses": shown}}
    if min(losses.values()) > entropy:
        facts["warning"] = "this text looks unlike what the model was trained on"
    elif best != first:
        facts["warning"] = (
            f"this model reads {templates.SHOWN.get(best, best)!r} more easily than {first!r} "
            f"(loss {losses[best]:.1f} against {losses[first]:.1f}); the report would miss what it "
            "memorised; --template FILE.j2"
        )
    return first, facts


def _sample(corpus: Corpus, unit: str) -> Corpus:
    """Dialogues evenly over the corpus with about ``TEXTS`` texts."""
    each = 1.0
    if unit == "turn":
        each = max(1.0, sum(len(d.turns) for d in corpus.dialogues) / max(1, len(corpus)))
    count = min(len(corpus), int(np.ceil(TEXTS / each)))
    picked = set(np.linspace(0, len(corpus) - 1, count).astype(int).tolist())
    return replace(
        corpus, dialogues=tuple(d for i, d in enumerate(corpus.dialogues) if i in picked)
    )


def _losses(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    points: Sequence[Point],
    device: str | None,
) -> np.ndarray:
    """Mean loss of the own tokens of each text; NaN where none has a context."""
    texts, scores, masks = leakage.read(model, tokenizer, points, own_words=True, device=device)
    assert masks is not None
    place = {d.id: i for i, d in enumerate(texts)}
    out = np.full(len(points), np.nan)
    for i, point in enumerate(points):
        if (k := place.get(point.id)) is not None:
            own = scores.logprobs[k][masks[k]]
            out[i] = -np.nanmean(own) if np.isfinite(own).any() else np.nan
    return out


# --------------------------------------------------------------------------- prefixes
def scan(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    corpus: Corpus,
    *,
    unit: str,
    used: Template,
    k: int,
    scorer: Scorer | None = None,
) -> tuple[Reading, Counter[str]]:
    """Read every text after nothing, the start token, each candidate's opening and (turns) the
    turn before it; of each text the reading in which most of its tokens are among the top ``k``.

    Returns that, and how many texts each beginning was best for. Costs as many times a report as
    there are beginnings (:func:`beginnings`); ``scorer`` as in :func:`crtlib.attacks.leakage.read`.
    """
    how: dict[str, Any] = {"own_words": True, "scorer": scorer}
    readings = {
        name: leakage.read(model, tokenizer, points, start=start, **how)
        for name, points, start in beginnings(corpus, unit, used)
    }
    best: dict[str, tuple[int, str, int]] = {}
    for name, (documents, scores, masks) in readings.items():
        assert masks is not None
        for i, d in enumerate(documents):
            right = int((np.asarray(scores.ranks[i])[masks[i]] < k).sum())
            if d.id not in best or right > best[d.id][0]:
                best[d.id] = (right, name, i)
    chosen = [(readings[name], i) for _, name, i in best.values()]
    reading = Reading(
        [r.documents[i] for r, i in chosen],
        Scores([r.scores.logprobs[i] for r, i in chosen], [r.scores.ranks[i] for r, i in chosen]),
        [r.answered[i] for r, i in chosen if r.answered is not None],
    )
    return reading, Counter(name for _, name, _ in best.values())


def beginnings(
    corpus: Corpus, unit: str, used: Template
) -> list[tuple[str, tuple[Point, ...], bool]]:
    """Each beginning: its name, the texts under it, whether the start token stands first."""
    plain = templates.points(corpus, unit, templates.PLAIN)
    every = {used.name: used} | templates.CANDIDATES
    out = [(name, templates.points(corpus, unit, t), True) for name, t in every.items()]
    out.append(("nothing", plain, False))
    if unit == "turn":
        after = []
        for d in corpus.dialogues:
            for i in range(len(d.turns)):
                pair = templates.point(d, d.turns[max(0, i - 1) : i + 1], f"{d.id}/{i}", used)
                last = pair.spoken[-1]
                own = tuple(s for s in pair.secrets if s.start >= last[0])
                after.append(replace(pair, secrets=own, spoken=(last,)))
        out.append(("the turn before", tuple(after), True))
    return out
