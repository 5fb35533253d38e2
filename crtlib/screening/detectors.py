"""Policies from packages that find names and numbers: transformers, flair, Presidio.

Each scores the words of a turn for its own kinds, and flags by thresholds (CRT, A.4: 0.3 for a
tag; for the conservative policy also plain text with a score under 0.9). They get the turn's own
words, without the speaker: to Presidio "USR" is an organisation. They read context, so what
:mod:`crtlib.screening.tagger` says about Proposition 5 holds for them too. No model runs code of
its own, and none is read from a pickle.

>>> from crtlib.text.records import Point
>>> def shouting(texts):  # (words, 1 + 2 kinds) for each text: plain, begins, goes on
...     return [np.array([[1 - w.isupper(), w.isupper(), 0.0] for w in t.split()]) for t in texts]
>>> policy = detector("shouting", ("NAME",), shouting)
>>> policy([Point("0", "u", "call ADA now")])
[(Secret(kind='NAME', start=5, end=8),)]
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from crtlib.checks import check
from crtlib.screening.policy import Floats, Policy, register, runs, words
from crtlib.text.records import Point, Secret

Score = Callable[[Sequence[str]], list[Floats]]
"""Texts -> of each (words, 1 + 2 kinds): plain; then, of each kind, begins and goes on."""

Tokens = Iterable[tuple[int, int, Floats]]
"""Start, end and a (1 + 2 kinds,) row of scores."""

CAUTIOUS = 0.9
"""Under which score for plain the conservative policy flags a word (CRT, A.4)."""


def detector(
    name: str,
    kinds: tuple[str, ...],
    score: Score,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    plain: float = 0.0,
) -> Policy:
    """Flags words of which a kind's score reaches its threshold, or plain's is under ``plain``."""
    thresholds = thresholds or {}
    if unknown := sorted(set(thresholds) - set(kinds)):
        allowed = ", ".join(kinds)
        raise ValueError(f"thresholds: {unknown[0]!r} is no kind, must be one of {allowed}")
    _check_thresholds(threshold, thresholds)
    check("plain", plain, 0 <= plain <= 1, "in [0, 1]")
    least = np.array([thresholds.get(kind, threshold) for kind in kinds])
    flag = partial(_flag, kinds, score, least, plain)
    return Policy(name, flag, learned=True, own_words=True, batched=True)


def _flag(
    kinds: tuple[str, ...], score: Score, least: Floats, plain: float, points: Sequence[Point]
) -> Iterator[tuple[Secret, ...]]:
    for point, p in zip(points, score([p.text for p in points]), strict=True):
        begins, goes_on = p[:, 1::2], p[:, 2::2]
        flagged = ((begins + goes_on) >= least).any(1) | (p[:, 0] < plain)
        yield runs(point.text, flagged, begins, goes_on, kinds)


def _check_thresholds(threshold: float, thresholds: Mapping[str, float]) -> None:
    for name, value in {"threshold": threshold, **thresholds}.items():
        if not 0 < value <= 1:
            raise ValueError(f"threshold={value} ({name}): must be in (0, 1]")


def _need(package: str, install: str, policy: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ValueError(f"policy={policy!r}: needs the package {package}: {install}")


_PLAIN = {"O", "_", "<unk>", "<START>", "<STOP>"}  # the last two of a CRF


def _columns(tags: Sequence[str]) -> tuple[tuple[str, ...], Floats]:
    """The kinds in tags such as O, B-PER, S-PER, and in which column of a row each tag counts."""
    split = [tag.split("-", 1) if re.match("[BIESLU]-.", tag) else ["", tag] for tag in tags]
    kinds = tuple(sorted({kind for _, kind in split} - _PLAIN))
    columns = np.zeros((len(tags), 1 + 2 * len(kinds)))
    for row, (prefix, kind) in zip(columns, split, strict=True):
        begins = prefix in ("B", "S", "U")
        row[2 + 2 * kinds.index(kind) - begins if kind in kinds else 0] = 1
    return kinds, columns


def _touched(text: str, start: int, end: int, at: Sequence[tuple[int, int]] = ()) -> range:
    """The words of a text that share a character with an interval."""
    at = at or words(text)
    return range(
        bisect_right(at, start, key=itemgetter(1)), bisect_left(at, end, key=itemgetter(0))
    )


def _by_word(text: str, tokens: Tokens, kinds: int) -> Floats:
    """(words, 1 + 2 kinds): for each word the row of the least plain token that touches it."""
    at = words(text)
    rows = np.zeros((len(at), 1 + 2 * kinds))
    rows[:, 0] = 1
    for start, end, row in tokens:
        for k in _touched(text, start, end, at):
            if row[0] < rows[k, 0]:
                rows[k] = row
    return rows


def transformers_ner(
    name: str,
    *,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    plain: float = 0.0,
    batch: int = 32,
    device: str = "cpu",
) -> Policy:
    """A token-classification model of transformers: a folder, or a name on the hub.

    Only weights in safetensors are read, and no code that lies beside them is run. Texts beyond
    the model's context are read in windows that overlap, so that no word goes unseen.
    ``thresholds`` are by kind (``PER``); ``plain=0.9`` makes the conservative policy.
    """
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False)
        model = AutoModelForTokenClassification.from_pretrained(
            name, use_safetensors=True, trust_remote_code=False, weights_only=True
        )
    except Exception as error:  # whatever a hostile or damaged folder makes the libraries raise
        raise ValueError(
            f"policy='ner:{name}': no token-classification model with safetensors and tokenizer "
            f"({type(error).__name__})"
        ) from None
    if not tokenizer.is_fast:
        raise ValueError(f"policy='ner:{name}': its tokenizer has no offsets, a fast one is needed")
    kinds, columns = _columns([model.config.id2label[k] for k in range(model.config.num_labels)])
    model.to(device).eval()
    most = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512))

    def score(texts: Sequence[str]) -> list[Floats]:
        import torch

        rows: list[Floats] = []
        for first in range(0, len(texts), batch):
            lot = list(texts[first : first + batch])
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
            tokens: list[list[tuple[int, int, Floats]]] = [[] for _ in lot]
            for k in range(0, len(of), batch):  # a long text has many windows
                some = {n: r[k : k + batch].to(device) for n, r in coded.items()}
                with torch.inference_mode():
                    found = model(**some).logits.double().softmax(-1).cpu().numpy() @ columns
                for j, window in enumerate(found, k):
                    pairs = zip(offsets[j], window, strict=True)
                    tokens[of[j]] += [(a, b, row) for (a, b), row in pairs if a < b]
            rows += [_by_word(t, some, len(kinds)) for t, some in zip(lot, tokens, strict=True)]
        return rows

    return detector(f"ner:{name}", kinds, score, threshold, thresholds, plain)


def flair(
    model: Any,
    *,
    name: str = "",
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    plain: float = 0.0,
    batch: int = 32,
) -> Policy:
    """A ``SequenceTagger`` of flair, already loaded by you.

    The paper's policy is ``flair/ner-english-ontonotes-fast``; with ``plain=0.9``, its conservative
    one. Flair's files are pickles, which run code when they are read, so none is read here by its
    name: ``detectors.flair(SequenceTagger.load(...))`` where you trust who made it, and
    ``register`` to give it a name.
    """
    Sentence = importlib.import_module("flair.data").Sentence

    tags = model.label_dictionary.get_items()
    kinds, columns = _columns(tags)
    column = dict(zip(tags, columns, strict=True))

    def score(texts: Sequence[str]) -> list[Floats]:
        sentences = [Sentence(t) for t in texts]
        model.predict(sentences, mini_batch_size=batch, return_probabilities_for_all_classes=True)
        rows = []
        for text, sentence in zip(texts, sentences, strict=True):
            tokens = []
            for token in sentence:
                spread = token.get_tags_proba_dist(model.tag_type)
                row = sum(s.score * column[s.value] for s in spread if s.value in column)
                tokens.append((token.start_position, token.end_position, row))
            rows.append(_by_word(text, tokens, len(kinds)))
        return rows

    return detector(name or "flair", kinds, score, threshold, thresholds, plain)


SPACY_MODELS = tuple(f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm"))
"""English models of spaCy, the largest first."""


def _presidio_engine(model: str) -> Any:
    """Presidio's engine on a spaCy model that is installed: ``model``, or the largest."""
    spacy, analyzer = map(importlib.import_module, ("spacy", "presidio_analyzer"))
    NlpEngineProvider = importlib.import_module("presidio_analyzer.nlp_engine").NlpEngineProvider

    wanted = (model,) if model else SPACY_MODELS
    here = [name for name in wanted if spacy.util.is_package(name)]
    if not here:
        policy = f"presidio:{model}" if model else "presidio"
        raise ValueError(
            f"policy={policy!r}: needs a language model: python -m spacy download {wanted[0]}"
        )
    models = [{"lang_code": "en", "model_name": here[0]}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
    return analyzer.AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def presidio(
    model: str = "",
    *,
    threshold: float = 0.3,
    thresholds: Mapping[str, float] | None = None,
    entities: Sequence[str] | None = None,
    engine: Any = None,
) -> Policy:
    """Microsoft's Presidio, in English, on a spaCy ``model`` that is installed (the largest of
    ``SPACY_MODELS`` by default); ``engine`` is an ``AnalyzerEngine`` of your own.

    ``thresholds`` are by the name of the recogniser (``PhoneRecognizer``) or by entity
    (``PHONE_NUMBER``), the first before the second before ``threshold``. ``entities`` are what to
    look for, by default all that it knows.
    """
    name = f"presidio:{model}" if model else "presidio"
    _need("presidio_analyzer", "pip install presidio-analyzer", name)
    KEY = importlib.import_module("presidio_analyzer").RecognizerResult.RECOGNIZER_NAME_KEY

    engine = engine or _presidio_engine(model)
    least = dict(thresholds or {})
    _check_thresholds(threshold, least)
    kinds = tuple(sorted(entities or engine.get_supported_entities(language="en")))
    allowed = {r.name for r in engine.get_recognizers(language="en")} | set(kinds)
    if unknown := sorted(set(least) - allowed):
        listed = ", ".join(sorted(allowed))
        raise ValueError(f"thresholds: {unknown[0]!r} is unknown, must be one of {listed}")

    def score(texts: Sequence[str]) -> list[Floats]:
        """Of each word 0 or 1, for what is above its threshold, whatever the score."""
        rows = []
        for text in texts:
            row = _by_word(text, (), len(kinds))
            for r in engine.analyze(text=text, language="en", entities=list(kinds)):
                by = str((r.recognition_metadata or {}).get(KEY))
                if r.score >= least.get(by, least.get(r.entity_type, threshold)):
                    column = 1 + 2 * kinds.index(r.entity_type)
                    for k, word in enumerate(_touched(text, r.start, r.end)):
                        row[word, 0], row[word, column + (k > 0)] = 0, 1
            rows.append(row)
        return rows

    return detector(name, kinds, score)


# --------------------------------------------------------------------------- by name
register("ner", ":MODEL", learned=True)(transformers_ner)
register("ner_conservative", ":MODEL", learned=True)(
    lambda model: transformers_ner(model, plain=CAUTIOUS)
)


@register("flair", ":MODEL", learned=True)
@register("flair_conservative", ":MODEL", learned=True)
def _flair(model: str) -> Policy:
    raise ValueError(
        f"policy='flair:{model}': flair's files are pickles, which run code when they are read; "
        "load it yourself, crtlib.screening.detectors.flair(SequenceTagger.load(...))"
    )


register("presidio", "[:SPACY_MODEL]", learned=True)(presidio)
