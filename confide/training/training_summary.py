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
    prepared = fitted.data
    perplexity, bits = None, None
    if prepared.test:
        perplexity = next(value for name, _, _, value in rows if name == "test_ppl")
        bits = _bits_per_character(study, prepared, perplexity)
    return {
        **count_parameters(fitted.run.model),
        "base": pretrained.base_model_name(study.init) if study.brings_vocabulary else None,
        "recurrent": fitted.spec is not None and fitted.spec.recurrent,
        "adapters": bool(study.lora),
        "corpus": {"name": Path(study.corpus).name, "points": _count_own_points(prepared)},
        "perplexity": perplexity,
        "held_out": study.heldout > 0,
        "vocabulary": prepared.tokenizer.vocab_size,
        "bits_per_character": bits,
    }


def _count_own_points(prepared: PreparedData) -> int:
    """The number of points of the text itself, without the canaries that were planted in it."""
    return sum(not p.user.startswith(CANARY_USER_PREFIX) for p in prepared.points)


def _spoken_texts(
    points: Iterable[Point], times: Mapping[Point, int] | None = None
) -> Iterator[str]:
    """The messages in these points, without what a template puts around them; each is repeated as
    often as its point counts."""
    for point in points:
        for start, end in spoken_spans(point):
            yield from [point.text[start:end]] * (times[point] if times else 1)


def _bits_per_character(study: CrtStudy, prepared: PreparedData, perplexity: float) -> float:
    """Bits per character of the text that perplexity is measured on, from its ``perplexity`` per
    token."""
    sequences, _ = prepared.tokenizer.encode_marked(prepared.test)
    own_words = study.template != "speaker"
    masks = study_run.predicted_token_masks(
        [*prepared.test], sequences, prepared.tokenizer, own_words=own_words
    )
    counts = prepared.test.values()
    tokens = sum(count * int(mask.sum()) for count, mask in zip(counts, masks, strict=True))
    characters = sum(
        count * (end - start)
        for point, count in prepared.test.items()
        for start, end in spoken_spans(point)
    )
    return math.log2(perplexity) * tokens / characters


def summarise_training(
    study: CrtStudy, fitted: TrainedStudy, rows: Sequence[StudyRow], facts: TrainingFacts
) -> list[str]:
    """The lines that a command prints: noise, sizes, perplexity, masks, and the exposure of the
    canaries."""
    run, data = fitted.run, fitted.data
    lines = []
    value_of = {name: value for name, _, _, value in rows}
    if run.events:
        steps = sum(event.steps for event in run.events)
        drawn_points = training_facts.count_private_points(study, data)
        drawn = (
            count_of(drawn_points, "person", "people")
            if study.training_method.by_user
            else f"{drawn_points:,} points"
        )
        lines.append(
            f"private {drawn} · noise {study.noise_multiplier:.4g} · "
            f"{steps:,} steps of about {study.normaliser:.0f} · q {study.sampling_probability:.4g}"
        )
    public = f"public  {value_of['n_public']:,.0f} points · {run.updates['public']:,} steps"
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
            _spoken_texts(data.read), Counter(_spoken_texts(data.test, data.test))
        )
        others = [f"counts of the words that it read {counted:.3g}"]
        if before is not None:
            others.insert(0, f"the untuned model {_bits_per_character(study, data, before):.3g}")
        measured += f"; on the same text {', '.join(others)}"
    lines += [public, measured]
    prepared = data.prepared
    if study.repeats_are_hidden and study.duplicates != "drop":
        lines += describe_bare_masks(prepared.bare_masks, len(prepared.all), study.duplicates)
    for metric, note in (("exposure", ""), ("exposure_sampled", " (sampled: at most 10)")):
        if bits := [value for name, _, _, value in rows if name == metric]:
            listed = " ".join(f"{bits_of_canary:.1f}" for bits_of_canary in bits)
            lines.append(f"exposure of {len(bits)} canaries, in bits{note}: {listed}")
    return lines
