"""Summarise the training of a study: its facts, its bits per character, and the lines to print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from confide.training import training_facts
from confide.training.training_facts import TrainingFacts
from crtlib.intervals import count_of
from crtlib.models import pretrained, word_counts
from crtlib.screening.preparation import describe_bare_masks
from crtlib.studies import study_run
from crtlib.studies.crt_study import CrtStudy, StudyRow
from crtlib.studies.study_data import PreparedData
from crtlib.studies.study_run import TrainedStudy
from crtlib.text.canaries import CANARY_USER_PREFIX
from crtlib.text.data_points import spoken_spans
from crtlib.text.records import Point


def count_parameters(model: nn.Module) -> dict[str, int]:
    """How many parameters a model has, and how many of them are trained."""
    parameters = [*model.parameters()]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained_parameters": sum(p.numel() for p in parameters if p.requires_grad),
    }


def describe_study(
    study: CrtStudy, fitted: TrainedStudy, rows: Sequence[StudyRow]
) -> dict[str, Any]:
    """The sizes of a study, and the perplexity of held-out text or of an evaluation; None if there
    is no such text.

    Guarantee:
        An evaluation is not called held out. Tests:
        ``tests/test_session.py::test_with_an_evaluation_no_text_is_held_out``,
        ``tests/reports/test_certificate_pages.py::test_a_card_says_on_what_text_it_was_measured``.
    """
    d = fitted.data
    ppl, bits = None, None
    if d.test:
        ppl = next(x for name, _, _, x in rows if name == "test_ppl")
        bits = _bits_per_character(study, d, ppl)
    return {
        **count_parameters(fitted.run.model),
        "base": pretrained.base_model_name(study.init) if study.brings_vocabulary else None,
        "recurrent": fitted.spec is not None and fitted.spec.recurrent,
        "adapters": bool(study.lora),
        "corpus": {"name": Path(study.corpus).name, "points": _count_own_points(d)},
        "perplexity": ppl,
        "held_out": study.heldout > 0,
        "vocabulary": d.tokenizer.vocab_size,
        "bits_per_character": bits,
    }


def _count_own_points(d: PreparedData) -> int:
    """The number of points of the text itself, without the canaries that were planted in it."""
    return sum(not p.user.startswith(CANARY_USER_PREFIX) for p in d.points)


def _spoken_texts(
    points: Iterable[Point], times: Mapping[Point, int] | None = None
) -> Iterator[str]:
    """The messages in these points, without what a template puts around them; each is repeated as
    often as its point counts."""
    for p in points:
        for a, b in spoken_spans(p):
            yield from [p.text[a:b]] * (times[p] if times else 1)


def _bits_per_character(study: CrtStudy, d: PreparedData, perplexity: float) -> float:
    """Bits per character of the text that perplexity is measured on, from its ``perplexity`` per
    token."""
    sequences, _ = d.tokenizer.encode_marked(d.test)
    own_words = study.template != "speaker"
    masks = study_run.predicted_token_masks([*d.test], sequences, d.tokenizer, own_words=own_words)
    tokens = sum(w * int(mask.sum()) for w, mask in zip(d.test.values(), masks, strict=True))
    letters = sum(w * (b - a) for p, w in d.test.items() for a, b in spoken_spans(p))
    return math.log2(perplexity) * tokens / letters


def summarise_training(
    study: CrtStudy, fitted: TrainedStudy, rows: Sequence[StudyRow], facts: TrainingFacts
) -> list[str]:
    """The lines that a command prints: noise, sizes, perplexity, masks, and the exposure of the
    canaries."""
    run, d, lines = fitted.run, fitted.data, []
    n = {name: value for name, _, _, value in rows}
    if run.events:
        steps = sum(event.steps for event in run.events)
        count = training_facts.count_private_points(study, d)
        drawn = (
            count_of(count, "person", "people")
            if study.training_method.by_user
            else f"{count:,} points"
        )
        lines.append(
            f"private {drawn} · noise {study.noise_multiplier:.4g} · "
            f"{steps:,} steps of about {study.normaliser:.0f} · q {study.sampling_probability:.4g}"
        )
    public = f"public  {n['n_public']:,.0f} points · {run.updates['public']:,} steps"
    if study.lora:
        public += (
            f" · LoRA {study.lora}: {facts['trained_parameters']:,} of {facts['parameters']:,}"
        )
    before = fitted.before.get("ppl")
    start = "" if before is None else f"{before:.4g} before, "
    measured = f"nobody is held out by seed {study.seed}, so no perplexity is measured"
    if facts["perplexity"] is not None:
        measured = (
            f"{training_facts.PERPLEXITY_NAMES[facts['held_out']]} {start}"
            f"{facts['perplexity']:.4g} after, of "
            f"{facts['vocabulary']:,} tokens: {facts['bits_per_character']:.3g} bits a character, "
            "which alone compares vocabularies"
        )
        counted = word_counts.word_count_bits(
            _spoken_texts(d.read), Counter(_spoken_texts(d.test, d.test))
        )
        others = [f"counts of the words that it read {counted:.3g}"]
        if before is not None:
            others.insert(0, f"the untuned model {_bits_per_character(study, d, before):.3g}")
        measured += f"; on the same text {', '.join(others)}"
    lines += [public, measured]
    prepared = d.prepared
    if study.repeats_are_hidden and study.duplicates != "drop":
        lines += describe_bare_masks(prepared.bare_masks, len(prepared.all), study.duplicates)
    for metric, note in (("exposure", ""), ("exposure_sampled", " (sampled: at most 10)")):
        if bits := [value for name, _, _, value in rows if name == metric]:
            listed = " ".join(f"{x:.1f}" for x in bits)
            lines.append(f"exposure of {len(bits)} canaries, in bits{note}: {listed}")
    return lines
