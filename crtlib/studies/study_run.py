"""One training of a study, and the measurements of its model."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.attacks import attack_registry
from crtlib.attacks.attack import Subject
from crtlib.models import interface, pretrained, recurrent_lm, scoring
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.ragged_array import RaggedArray
from crtlib.screening import policy_names
from crtlib.screening.rate_values import RATE_NAMES
from crtlib.studies.crt_study import (
    MAX_PUBLIC_DIALOGUES,
    UTILITY_METRICS,
    BoolMask,
    CrtStudy,
    StudyRow,
    TokenIdLists,
    schedule_phases,
)
from crtlib.studies.study_data import PreparedData, prepare_data
from crtlib.text import corpora, data_points, templates
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training import schedules
from crtlib.training.layer_rules import refuse_unfit_layers
from crtlib.training.loop import Training, train_model
from crtlib.training.methods import GuaranteeTerms
from crtlib.training.phases import Phase
from crtlib.training.run_state import TrainingRun

LABELS_STAY = (
    "; assumed: masking a secret changes no label elsewhere (recall.label_stability counts how "
    "often it does)"
)
"""What a study's promise assumes about a policy that learned from its text."""


# --------------------------------------------------------------------------- training
@dataclass(frozen=True)
class TrainedStudy:
    """A trained model with the data that it read and the phases of its training. ``spec`` is its
    shape, or None if it was pre-trained elsewhere; only then may it have a utility from ``before``
    the training."""

    run: TrainingRun
    data: PreparedData
    schedule: list[Phase]
    spec: ModelSpec | None
    before: Mapping[str, float] = field(default_factory=dict)

    def guarantee(self, study: CrtStudy) -> Guarantee | None:
        """What the study's method promises about what ran, or None if no private step ran or one
        ran without noise.

        gamma is the trace rate and delta2 the public rate: upper bounds from counts on labels, not
        the rates that were hoped for.
        """
        events = self.run.events  # what ran: a secure phase that was run again counts twice
        rates = self.data.rates
        if not events or not all(event.noise_multiplier for event in events):
            return None
        return study.training_method.promise(
            events,  # type: ignore[arg-type]
            GuaranteeTerms(
                gamma=BoundedRate.from_rate(rates.trace, alpha=rates.alpha),
                delta2=BoundedRate.from_rate(rates.public, alpha=rates.alpha),
                noise_delta=study.delta,
                unit=study.unit,
                accountant=study.accountant,
                neighbouring_relation=study.neighbouring_relation,
                public=describe_public_knowledge(study) + LABELS_STAY * study.learned,
            ),
        )


def describe_public_knowledge(study: CrtStudy) -> str:
    """Describe what the guarantee treats as known to everybody."""
    known = "the rounded number of private points"
    if study.training_method.reads_raw:
        bytes_only = study.conservative == "everything" or study.brings_vocabulary
        learned = ", and the vocabulary, learned from turns that screening let pass"
        return known + ("" if bytes_only else learned)
    names = study.screening or vars(study)
    others = [part for key in ("policy", "conservative") for part in names[key].split("+")
              if not policy_names.is_builtin(part)]  # fmt: skip
    if others:
        listed = ", ".join(policy_names.strip_paths(part) for part in dict.fromkeys(others))
        known += f"; assumed: {listed}, of another package, answers each point by itself"
    if study.learned:
        known += "; besides, the text that taught the policies"
    return known


def begin_study(
    study: CrtStudy,
    *,
    prepared: PreparedData | None = None,
    device: str = "cpu",
    before: bool = False,
    gradient_checkpointing: bool = False,
    completions_alone: bool = False,
    **training: Any,
) -> tuple[Training, TrainedStudy]:
    """Prepare the data, and create a training whose steps are still to be taken. The model is
    measured on the validation texts after each epoch, and a pre-trained one perhaps on the test
    texts before the first step.

    Args:
        study: The run.
        prepared: ``prepare_data(study)``, if the caller has it already.
        device: Where the model trains.
        before: Also measure a pre-trained model before the first step.
        gradient_checkpointing: As in
            :func:`crtlib.models.pretrained.with_gradient_checkpointing`, which changes no result.
        completions_alone: Only the last turn of each conversation counts in the loss. This changes
            no guarantee: clipping and noise are those of the whole point.
        training: ``checkpoint``, ``secure``, ``memory_gib``, ``optimizer``, ``on_start`` and
            ``progress`` of :class:`crtlib.training.loop.Training`.

    Returns:
        The training, and what it will have trained.

    Raises:
        ValueError: If no point is private and the method trains with noise.
    """
    study = study.ready()
    data = prepared or prepare_data(study)
    private_tokens = None
    if study.training_method.flags_tokens:
        # What pi finds is private, token by token; the text stays raw.
        marked = [
            replace(p, secrets=spans) for p, spans in zip(data.points, data.flags, strict=True)
        ]
        private_tokens = {"private": data.tokenizer.encode_marked(marked)[1]}
    model, spec = _initial_model(study, data.tokenizer)
    if gradient_checkpointing:
        pretrained.with_gradient_checkpointing(model)
    if study.training_method.private:
        refuse_unfit_layers(model.train())
    phases = schedule_phases(study, has_public=bool(data.prepared.public))
    drawn = {"private", *(phase.part for phase in phases if phase.order == "poisson")}
    parts, owners = _tokenise_parts(study, data, model, sorted(drawn))
    loss_mask = _mark_completions(study, data, parts, owners) if completions_alone else None
    own_words = study.template != "speaker"
    measure = partial(measure_utility, tokenizer=data.tokenizer, own_words=own_words)
    model.to(device)
    utility_before = measure(model, points=data.test) if before and spec is None else {}
    begun = Training(
        model,
        phases,
        parts,
        private_tokens=private_tokens,
        loss_mask=loss_mask,
        owners=owners or None,
        precision=study.precision,
        seed=study.seed,
        max_text_tokens=_context_limit(study, model),
        on_epoch=lambda _, m: measure(m, points=data.valid),
        **{"optimizer": study.optimizer} | training,
    )
    return begun, TrainedStudy(begun.run, data, phases, spec, utility_before)


def fit_study(study: CrtStudy, **options: Any) -> TrainedStudy:
    """Call :func:`begin_study` with these ``options``, take all steps, and return the result."""
    training, trained = begin_study(study, **options)
    training.take_all()
    return trained


def measure_utility(
    model: nn.Module, tokenizer: BpeTokenizer, points: dict[Point, int], *, own_words: bool = False
) -> dict[str, float]:
    """Perplexity and top-1 accuracy per token of weighted points: over all tokens (``ppl``,
    ``acc``), and over those that are neither ``<MASK>`` nor part of a labelled secret
    (``ppl_words``, ``acc_words``). ``own_words``: tokens that a template adds do not count.

    Only the second kind compares a model of raw text with one of redacted text: each reads the
    text in the form that it was trained on, and both are scored on the same words. Without points,
    all are NaN.
    """
    if not points:
        return dict.fromkeys(UTILITY_METRICS, math.nan)
    sequences, secret = tokenizer.encode_marked(points)
    logprobs, ranks = map(np.concatenate, scoring.token_scores(model, sequences))
    is_predicted = np.concatenate(
        predicted_token_masks([*points], sequences, tokenizer, own_words=own_words)
    )
    is_secret = np.array([flag for flags in secret for flag in flags[1:]], dtype=bool)
    weights = np.repeat([*points.values()], [len(ids) - 1 for ids in sequences])

    def mean(values: NDArray[Any], counted: BoolMask) -> float:
        return float(weights[counted] @ values[counted] / weights[counted].sum())

    kinds = {"": is_predicted, "_words": is_predicted & ~is_secret}
    nats = {kind: mean(-logprobs, counted) for kind, counted in kinds.items()}
    perplexities = {f"ppl{kind}": float(np.exp(loss)) for kind, loss in nats.items()}
    return perplexities | {
        f"acc{kind}": mean(ranks == 0, counted) for kind, counted in kinds.items()
    }


def predicted_token_masks(
    points: Sequence[Point], sequences: TokenIdLists, tokenizer: BpeTokenizer, *, own_words: bool
) -> list[BoolMask]:
    """For each text, which of its predicted tokens count in :func:`measure_utility`."""
    if own_words:
        return [np.append(x, False) for x in templates.mark_spoken_tokens(points, tokenizer)]
    return [np.ones(len(ids) - 1, dtype=bool) for ids in sequences]


def measure_study(study: CrtStudy, fitted: TrainedStudy) -> list[StudyRow]:
    """Return utility, sizes and what every registered attack finds, as rows of the long table."""
    data, model = fitted.data, fitted.run.model
    rows: list[StudyRow] = [
        (f"valid_{name}", int(measured["epoch"]), 0, measured[name])
        for measured in fitted.run.history
        for name in UTILITY_METRICS
        if data.valid
    ]
    utility: dict[str, float] = {}
    if data.test:
        utility = measure_utility(
            model, data.tokenizer, data.test, own_words=study.template != "speaker"
        )
    facts = {
        **{f"test_{k}": v for k, v in utility.items()},
        "n_public": len(data.prepared.public),
        "n_private": len(data.prepared.private),
        "duplicates": data.prepared.duplicates,
        "missed_secrets": data.prepared.missed_secrets,
        "steps": sum(event.steps for event in fitted.run.events),
        "private_updates": fitted.run.updates["private"],
    }
    for name in RATE_NAMES:  # what the theorem needs, for one secret of each user
        rate = getattr(data.rates, name)
        facts |= {f"{name}_count": rate.failures, f"{name}_of": rate.judged_secrets}
    for policy in ("pi", "pi_c"):
        missed = data.misses(policy)
        facts |= {f"{policy}_misses": missed.failures or 0}
        facts |= {f"{policy}_labelled": missed.judged_secrets or 0}
    rows += [(name, study.epochs, 0, float(number)) for name, number in facts.items()]
    if not np.isfinite(facts.get("test_ppl", 1.0)):
        return rows  # it diverged, so no attack can measure anything
    subject = Subject(
        model=model,
        tokenizer=data.tokenizer,
        points=data.points,
        read=data.read,
        others=data.others,
        canaries=() if study.audited else data.canaries,
        seed=study.seed,
        carrier=templates.carrier_of_template(data.template),
    )
    for attack in attack_registry.all_attacks().values():
        rows += [(name, study.epochs, item, value) for name, item, value in attack.measure(subject)]
    return rows


# The model at the start, and the texts as it reads them.
def _initial_model(study: CrtStudy, tokenizer: BpeTokenizer) -> tuple[nn.Module, ModelSpec | None]:
    """The model before it reads the corpus: with random weights, those of a pre-trained model, or
    weights trained here on public text."""
    if study.brings_vocabulary:
        model: Any = pretrained.load_with_added_tokens(
            pretrained.resolve_model_path(study.init), tokenizer
        )
        kind = model.config.model_type
        if study.model not in ("pretrained", kind):
            raise ValueError(f"model={study.model!r}: init={study.init!r} is a {kind}")
        if study.lora:
            model = pretrained.with_lora(
                model,
                study.lora,
                seed=study.seed,
                alpha=study.lora_alpha,
                targets=study.lora_targets,
            )
        return model, None
    spec = replace(study.shape(), vocab_size=tokenizer.vocab_size)
    model = build_model(spec, study.seed)
    if study.init != "random":
        weights = _pretrain_on_public_corpus(
            study.init, study.init_epochs, spec, study.seed, tokenizer
        )
        model.load_state_dict(weights)
    return model, spec


@functools.lru_cache(maxsize=4)
def _pretrain_on_public_corpus(
    corpus: str, epochs: int, spec: ModelSpec, seed: int, tokenizer: BpeTokenizer
) -> dict[str, object]:
    """The weights after ordinary training on a public corpus, read with the run's vocabulary."""
    public = corpora.load_corpus(corpus, limit=MAX_PUBLIC_DIALOGUES)
    texts = (p.text for p in data_points.make_points(public, unit="turn"))
    sequences = [ids[: spec.context] for ids in tokenizer.encode(texts)]
    learning_rate = {"gpt2": 3e-3}.get(spec.kind, 1e-2)
    phases = schedules.sgd_phases(epochs=epochs, batch_size=32, learning_rate=learning_rate)
    return train_model(
        build_model(spec, seed), phases, {"public": sequences}, seed=seed
    ).model.state_dict()


def _tokenise_parts(
    study: CrtStudy, data: PreparedData, model: nn.Module, drawn: Iterable[str]
) -> tuple[dict[str, RaggedArray], dict[str, Sequence[int]]]:
    """Return the public and the private part as tokens, and the owners of the texts in the
    ``drawn`` parts. A part has owners only if units may own several texts: users, or points longer
    than the model's context.

    Raises ``ValueError`` if no point is private and the method trains with noise.

    Guarantee:
        Whatever part a step with noise draws from, a unit is drawn and clipped as one. Test:
        ``tests/release/test_units_of_all_parts.py``.
    """
    parts = {
        "public": data.tokenizer.encode_flat(p.text for p in data.prepared.public),
        "private": data.tokenizer.encode_flat(p.text for p in data.prepared.private),
    }
    if study.training_method.private and not parts["private"]:
        raise ValueError(
            f"policy={study.policy!r}: no point is private, "
            "so there is nothing to train on with noise"
        )
    limit = _context_limit(study, model)
    point_of_text = dict[str, Sequence[int]]()
    for part, rows in [*parts.items()]:
        numbers = range(len(rows))
        point_of_text[part] = numbers
        if limit is not None:
            parts[part], point_of_text[part] = split_long_texts(rows, numbers, limit, study.long)
    owners = dict[str, Sequence[int]]()
    for part in drawn:
        points = {"public": data.prepared.public, "private": data.prepared.private}.get(part)
        texts = point_of_text.get(part)
        if points is None or texts is None:  # "all", which is both parts
            points = data.prepared.all
            first = len(data.prepared.public)
            private_texts = [first + index for index in point_of_text["private"]]
            texts = [*point_of_text["public"], *private_texts]
        if study.training_method.by_user:
            user_of_point = owner_indices(points)
            owners[part] = [user_of_point[index] for index in texts]
        elif len(texts) > len(points):
            owners[part] = texts
    return parts, owners


def _mark_completions(
    study: CrtStudy,
    data: PreparedData,
    parts: dict[str, RaggedArray],
    owners: Mapping[str, Sequence[int]],
) -> dict[str, RaggedArray]:
    """For each token of each text, whether it belongs to the last turn or ends the text.

    Raises ``ValueError`` for points that are not conversations or that are read in pieces.
    """
    if study.unit != "dialogue" or "private" in owners:
        raise ValueError(
            f"unit={study.unit!r}: must be dialogue, each read as one piece (long=cut), where "
            "completions alone are learned"
        )
    points = {"public": data.prepared.public, "private": data.prepared.private}
    return {
        part: RaggedArray.of(
            (
                [end > last for end in ends][: len(row)]
                for last, ends, row in zip(
                    [p.spoken_spans[-1][0] if p.spoken_spans else 0 for p in points[part]],
                    data.tokenizer.token_ends(p.text for p in points[part]),
                    rows,
                    strict=True,
                )
            ),
            "bool",
        )
        for part, rows in parts.items()
    }


def _context_limit(study: CrtStudy, model: nn.Module) -> int | None:
    """The most tokens that are read at once, a public constant; None: as many as a text has."""
    limit = interface.context_length(model)
    if isinstance(model, recurrent_lm.RecurrentLM) or not study.brings_vocabulary:
        return limit
    return study.context if limit is None else min(limit, study.context)


def split_long_texts(
    rows: Iterable[Sequence[int]], owners: Iterable[int], limit: int, long: str
) -> tuple[RaggedArray, list[int]]:
    """Split each text into pieces of ``limit`` tokens to read and one more to predict, and return
    the pieces and the owner of each. Every token but the first is predicted once; ``long`` "cut"
    keeps only the first piece."""
    piece_owners = []

    def pieces() -> Iterator[Sequence[int]]:
        for row, owner in zip(rows, owners, strict=True):
            starts = range(0, max(1, len(row) - 1), limit) if long == "split" else (0,)
            for start in starts:
                piece_owners.append(owner)
                yield row[start : start + limit + 1]

    return RaggedArray.of(pieces()), piece_owners


def owner_indices(points: Sequence[Point]) -> list[int]:
    """The owner of each point, as a number from 0 for each user. Raises ``ValueError`` if a point
    has no user."""
    if any(not p.user for p in points):
        raise ValueError("method='user_dpsgd': a point has no user; name the user of each dialogue")
    numbers: dict[str, int] = {}
    return [numbers.setdefault(p.user, len(numbers)) for p in points]
