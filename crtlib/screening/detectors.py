"""Policies from packages that find names and numbers: transformers, Presidio.

They get the turn's own words, without the speaker: to Presidio "USR" is an organisation. They read
context, so what :mod:`crtlib.screening.tagger` says about Proposition 5 holds for them too. No
model runs code of its own, and none is read from a pickle.

>>> import numpy as np
>>> from crtlib.text.records import Point
>>> def shouting(points):  # (words, 1 + 2 kinds) for each: plain; then begins and goes on
...     return [
...         np.array([[1 - w.isupper(), w.isupper(), 0.0] for w in p.text.split()]) for p in points
...     ]
>>> policy = detector("shouting", ("NAME",), shouting)
>>> policy([Point("0", "u", "call ADA now")])
[(Secret(kind='NAME', start=5, end=8),)]
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from crtlib.checks import check
from crtlib.screening.policy import Floats, Policy, register, runs, trimmed, words
from crtlib.screening.redact import merged
from crtlib.text.records import Point, Secret

Score = Callable[[Sequence[Point]], list[Floats]]
"""Points -> of each (words, 1 + 2 kinds): plain; then, of each kind, begins and goes on."""

THRESHOLD = 0.3
"""Which score of the kinds together flags a word (CRT, A.4)."""


def plain_under(threshold: float) -> float:
    """Under which score for plain a word is flagged, so that a ``threshold`` of the kinds flags it.
    Probabilities have six decimals: a score of exactly the threshold counts."""
    check("threshold", threshold, 0 < threshold <= 1, "in (0, 1]")
    return 1 - threshold + 5e-7


def detector(
    name: str,
    kinds: tuple[str, ...],
    score: Score,
    plain: float = plain_under(THRESHOLD),
) -> Policy:
    """Flags words whose ``score`` for plain is under ``plain``. Those next to each other are one
    secret, cut where one begins, of the kind that is likeliest over its words; a mask is none."""
    check("plain", plain, 0 <= plain <= 1, "in [0, 1]")

    def flag(points: Sequence[Point]) -> Iterator[tuple[Secret, ...]]:
        for point, p in zip(points, score(points), strict=True):
            flagged = trimmed(point.text, p[:, 0] < plain)
            yield runs(point.text, flagged, p[:, 1::2], p[:, 2::2], kinds)

    return Policy(name, flag, learned=True, own_words=True, batched=True)


# --------------------------------------------------------------------------- Presidio
SPACY_MODELS = tuple(f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm"))
"""English models of spaCy, the largest first."""


def _engine(model: str) -> Any:
    """Presidio's engine on a spaCy model that is installed: ``model``, or the largest."""
    policy = f"presidio:{model}" if model else "presidio"
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise ValueError(
            f"policy={policy!r}: needs the package presidio_analyzer: pip install presidio-analyzer"
        )
    spacy, analyzer = map(importlib.import_module, ("spacy", "presidio_analyzer"))
    NlpEngineProvider = importlib.import_module("presidio_analyzer.nlp_engine").NlpEngineProvider

    wanted = (model,) if model else SPACY_MODELS
    here = [name for name in wanted if spacy.util.is_package(name)]
    if not here:
        raise ValueError(
            f"policy={policy!r}: needs a language model: python -m spacy download {wanted[0]}"
        )
    models = [{"lang_code": "en", "model_name": here[0]}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
    return analyzer.AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


@register("presidio", "[:SPACY_MODEL]", learned=True)
def presidio(model: str = "", *, engine: Any = None) -> Policy:
    """Flags the words in which Microsoft's Presidio, in English, finds something with a score of
    at least 0.3 (CRT, A.4), on a spaCy ``model`` that is installed (the largest of
    ``SPACY_MODELS`` by default); ``engine`` is an ``AnalyzerEngine`` of your own."""
    engine = engine or _engine(model)
    name = f"presidio:{model}" if model else "presidio"

    def flag(points: Sequence[Point]) -> Iterator[tuple[Secret, ...]]:
        for p in points:
            found = engine.analyze(text=p.text, language="en", score_threshold=THRESHOLD)
            yield merged([_whole(p.text, r.entity_type, r.start, r.end) for r in found])

    return Policy(name, flag, learned=True, own_words=True, batched=True)


def _whole(text: str, kind: str, start: int, end: int) -> tuple[Secret, ...]:
    """The words of a text that share a character with an interval, as one span."""
    touched = [(a, b) for a, b in words(text) if a < end and start < b]
    return (Secret(kind, touched[0][0], touched[-1][1]),) if touched else ()
