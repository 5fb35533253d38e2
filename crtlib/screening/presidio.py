"""Microsoft Presidio as a policy, where its packages are installed."""

from __future__ import annotations

from functools import partial
from importlib import import_module, util
from typing import Any

from crtlib.screening.detectors import FLAG_THRESHOLD, word_spans
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import Spans, merge_spans
from crtlib.text.records import Point, Secret

# --------------------------------------------------------------------------- Presidio
SPACY_MODELS = tuple(f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm"))
"""English models of spaCy, the largest first."""


def _make_presidio_engine(policy: str, model: str) -> Any:
    """Presidio's engine on an installed spaCy model: ``model``, or the largest by default."""
    if util.find_spec("presidio_analyzer") is None:
        raise ValueError(
            f"policy={policy!r}: needs the package presidio_analyzer: pip install presidio-analyzer"
        )
    packages = ("spacy", "presidio_analyzer", "presidio_analyzer.nlp_engine")
    spacy, analyzer, nlp = map(import_module, packages)
    model_names = (model,) if model else SPACY_MODELS
    installed = [name for name in model_names if spacy.util.is_package(name)]
    if not installed:
        raise ValueError(
            f"policy={policy!r}: needs a language model: python -m spacy download {model_names[0]}"
        )
    models = [{"lang_code": "en", "model_name": installed[0]}]
    configuration = {"nlp_engine_name": "spacy", "models": models}
    provider = nlp.NlpEngineProvider(nlp_configuration=configuration)
    return analyzer.AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def presidio_policy(model: str = "", *, engine: Any = None) -> Policy:
    """A policy that flags the words in which Microsoft's Presidio, in English, finds something with
    a score of at least 0.3 (CRT, A.4).

    It uses an installed spaCy ``model``, by default the largest of ``SPACY_MODELS``; ``engine`` is
    an ``AnalyzerEngine`` of your own. It is given the turn's own words, without the speaker, since
    to Presidio "USR" is an organisation."""
    name = f"presidio:{model}" if model else "presidio"
    engine = engine or _make_presidio_engine(name, model)

    def flag_words(p: Point) -> Spans:
        flagged = []
        for r in engine.analyze(text=p.text, language="en", score_threshold=FLAG_THRESHOLD):
            words = [(a, b) for a, b in word_spans(p.text) if a < r.end and r.start < b]
            if words:
                flagged.append([Secret(r.entity_type, words[0][0], words[-1][1])])
        return merge_spans(flagged)

    return Policy(name, partial(map, flag_words), learned=True, own_words=True)
