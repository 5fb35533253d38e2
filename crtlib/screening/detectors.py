"""Policies from packages that find names and numbers: transformers, flair, Presidio.

Each scores the words of a point for its own kinds, and flags by thresholds (CRT, A.4: 0.3 for a
tag; for the conservative policy also plain text with a score under 0.9). They read context, so
what :mod:`crtlib.screening.tagger` says about Proposition 5 holds for them too.

>>> from crtlib.text.records import Point
>>> def shouting(texts):  # (words, 1 + 2 kinds) for each text: plain, begins, goes on
...     return [np.array([[1 - w.isupper(), w.isupper(), 0.0] for w in t.split()]) for t in texts]
>>> policy = Detector("shouting", ("NAME",), shouting)
>>> policy([Point("0", "u", "call ADA now")])
[(Secret(kind='NAME', start=5, end=8),)]
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crtlib.screening.policy import runs, words
from crtlib.text.records import Point, Secret

Tokens = Iterable[tuple[int, int, np.ndarray]]
"""Start, end and a (1 + 2 kinds,) row of scores: plain; then, of each kind, begins and goes on."""


@dataclass(frozen=True, eq=False)
class Detector:
    """Flags words of which a kind's score reaches its threshold, or plain's is under ``plain``."""

    name: str
    kinds: tuple[str, ...]
    score: Callable[[Sequence[str]], list[np.ndarray]]
    threshold: float = 0.3
    thresholds: Mapping[str, float] = field(default_factory=dict)
    plain: float = 0.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.thresholds) - set(self.kinds))
        if unknown:
            allowed = ", ".join(self.kinds)
            raise ValueError(f"thresholds: {unknown[0]!r} is no kind, must be one of {allowed}")
        _check_thresholds(self.threshold, self.thresholds)
        if not 0 <= self.plain <= 1:
            raise ValueError(f"plain={self.plain}: must be in [0, 1]")

    def __call__(self, points: Sequence[Point]) -> list[tuple[Secret, ...]]:
        least = np.array([self.thresholds.get(kind, self.threshold) for kind in self.kinds])
        labels = []
        for point, p in zip(points, self.score([p.text for p in points]), strict=True):
            begins, goes_on = p[:, 1::2], p[:, 2::2]
            flagged = ((begins + goes_on) >= least).any(1) | (p[:, 0] < self.plain)
            labels.append(runs(point.text, flagged, begins, goes_on, self.kinds))
        return labels


def _check_thresholds(threshold: float, thresholds: Mapping[str, float]) -> None:
    for name, value in {"threshold": threshold, **thresholds}.items():
        if not 0 < value <= 1:
            raise ValueError(f"threshold={value} ({name}): must be in (0, 1]")


def _need(package: str, install: str, policy: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"policy={policy!r}: needs the package {package}: {install}")


_PLAIN = {"O", "_", "<unk>", "<START>", "<STOP>"}  # the last two of a CRF


def _columns(tags: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The kinds in tags such as O, B-PER, S-PER, and in which column of a row each tag counts."""
    split = [re.fullmatch(r"(?:([BIESLU])-)?(.+)", tag, re.DOTALL).groups() for tag in tags]
    kinds = tuple(sorted({kind for _, kind in split} - _PLAIN))
    columns = np.zeros((len(tags), 1 + 2 * len(kinds)))
    for row, (prefix, kind) in zip(columns, split, strict=True):
        begins = prefix in ("B", "S", "U")
        row[2 + 2 * kinds.index(kind) - begins if kind in kinds else 0] = 1
    return kinds, columns


def _by_word(text: str, tokens: Tokens, kinds: int) -> np.ndarray:
    """(words, 1 + 2 kinds): for each word the row of the least plain token that touches it."""
    at = words(text)
    rows = np.zeros((len(at), 1 + 2 * kinds))
    rows[:, 0] = 1
    ends = [end for _, end in at]
    for start, end, row in tokens:
        k = int(np.searchsorted(ends, start, side="right"))
        while k < len(at) and at[k][0] < end:
            if row[0] < rows[k, 0]:
                rows[k] = row
            k += 1
    return rows


def transformers_ner(
    name: str,
    *,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    plain: float = 0.0,
    batch: int = 32,
    device: str = "cpu",
) -> Detector:
    """A token-classification model of transformers: a folder, or a name on the hub.

    Only weights in safetensors are read. Texts beyond the model's context are read in windows that
    overlap, so that no word goes unseen. ``thresholds`` are by kind (``PER``); ``plain=0.9`` makes
    the conservative policy.
    """
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True)
        model = AutoModelForTokenClassification.from_pretrained(name, use_safetensors=True)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"policy='ner:{name}': no token-classification model with safetensors and tokenizer"
        ) from None
    if not tokenizer.is_fast:
        raise ValueError(f"policy='ner:{name}': its tokenizer has no offsets, a fast one is needed")
    model = model.to(device).eval()
    kinds, columns = _columns([model.config.id2label[k] for k in range(model.config.num_labels)])
    most = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))

    def score(texts: Sequence[str]) -> list[np.ndarray]:
        found = []
        for k in range(0, len(texts), batch):
            lot = list(texts[k : k + batch])
            coded = tokenizer(
                lot,
                truncation=True,
                max_length=most,
                stride=most // 4,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                padding=True,
                return_tensors="pt",
            )
            offsets = coded.pop("offset_mapping").tolist()
            of = coded.pop("overflow_to_sample_mapping").tolist()
            with torch.inference_mode():
                scores = model(**coded.to(device)).logits.double().softmax(-1).cpu().numpy()
            tokens: list[list] = [[] for _ in lot]
            for text, window, rows in zip(of, offsets, scores @ columns, strict=True):
                pairs = zip(window, rows, strict=True)
                tokens[text] += [(a, b, row) for (a, b), row in pairs if a < b]
            found += [_by_word(t, rows, len(kinds)) for t, rows in zip(lot, tokens, strict=True)]
        return found

    return Detector(f"ner:{name}", kinds, score, threshold, thresholds or {}, plain)


def flair(
    name: str,
    *,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    plain: float = 0.0,
    batch: int = 32,
) -> Detector:
    """A sequence tagger of flair: a file, or a name on the hub.

    The paper's policy is ``flair/ner-english-ontonotes-fast``; with ``plain=0.9``, its conservative
    one. Flair's files are pickles, which run code when they are read: take them only from whom you
    trust.
    """
    _need("flair", "pip install flair", f"flair:{name}")
    from flair.data import Sentence
    from flair.models import SequenceTagger

    try:
        model = SequenceTagger.load(name)
    except Exception as error:  # whatever flair, the hub or a pickle raise
        raise ValueError(
            f"policy='flair:{name}': flair cannot load it ({type(error).__name__})"
        ) from None
    tags = model.label_dictionary.get_items()
    kinds, columns = _columns(tags)
    column = dict(zip(tags, columns, strict=True))

    def score(texts: Sequence[str]) -> list[np.ndarray]:
        sentences = [Sentence(t) for t in texts]
        model.predict(sentences, mini_batch_size=batch, return_probabilities_for_all_classes=True)
        found = []
        for text, sentence in zip(texts, sentences, strict=True):
            tokens = []
            for token in sentence:
                spread = token.get_tags_proba_dist(model.tag_type)
                row = sum(s.score * column[s.value] for s in spread if s.value in column)
                tokens.append((token.start_position, token.end_position, row))
            found.append(_by_word(text, tokens, len(kinds)))
        return found

    return Detector(f"flair:{name}", kinds, score, threshold, thresholds or {}, plain)


def presidio(
    *,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    entities: Sequence[str] | None = None,
    engine: Any = None,
) -> Detector:
    """Microsoft's Presidio, in English; ``engine`` is an ``AnalyzerEngine`` of your own.

    ``thresholds`` are by the name of the recogniser (``PhoneRecognizer``) or by entity
    (``PHONE_NUMBER``), the first before the second before ``threshold``. ``entities`` are what to
    look for, by default all that it knows.
    """
    _need("presidio_analyzer", "pip install presidio-analyzer", "presidio")
    from presidio_analyzer import AnalyzerEngine, RecognizerResult

    if engine is None:
        import spacy

        if not spacy.util.is_package("en_core_web_lg"):
            raise ValueError(
                "policy='presidio': needs its language model: python -m spacy download "
                "en_core_web_lg"
            )
        engine = AnalyzerEngine()
    least = dict(thresholds or {})
    _check_thresholds(threshold, least)
    kinds = tuple(sorted(entities or engine.get_supported_entities(language="en")))
    known = {r.name for r in engine.get_recognizers(language="en")} | set(kinds)
    unknown = sorted(set(least) - known)
    if unknown:
        allowed = ", ".join(sorted(known))
        raise ValueError(f"thresholds: {unknown[0]!r} is unknown, must be one of {allowed}")

    def score(texts: Sequence[str]) -> list[np.ndarray]:
        found = []
        for text in texts:
            at = words(text)
            rows = np.zeros((len(at), 1 + 2 * len(kinds)))
            rows[:, 0] = 1
            for r in engine.analyze(text=text, language="en", entities=list(kinds)):
                by = (r.recognition_metadata or {}).get(RecognizerResult.RECOGNIZER_NAME_KEY)
                if r.score < least.get(by, least.get(r.entity_type, threshold)):
                    continue
                column = 1 + 2 * kinds.index(r.entity_type)
                inside = [k for k, (a, b) in enumerate(at) if a < r.end and r.start < b]
                for k in inside:  # already above its threshold, whatever the score
                    rows[k, 0], rows[k, column + (k != inside[0])] = 0, 1
            found.append(rows)
        return found

    return Detector("presidio", kinds, score)
