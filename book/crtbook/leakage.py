"""Runs of the leakage chapters: one model, trained once, with its report at each snapshot.

>>> tiny = LeakageStudy(method="sgd", seed=0, dialogues=6, heldout=4, public=12, public_epochs=1,
...                     epochs=2, snapshots=(1, 2), embedding=8, hidden=8, canaries=1, copies=2)
>>> [epoch for metric, epoch, _, _ in tiny.run(Desk()) if metric == "unique"]
[1, 2]
"""

import copy
import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pandas import DataFrame
from pydantic import Field
from torch import nn

from crtbook import mitigations, runs
from crtbook.mitigations import measure_report_recall
from crtbook.secrets import incidence_of_values
from crtbook.study import Desk, Row, Study
from crtbook.tables import STUDIES
from crtlib.accounting import privacy_cost, secret_protection
from crtlib.attacks import leakage
from crtlib.attacks.leakage import TokenScores
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, regex_policies
from crtlib.screening.preparation import DedupScope, PreparedPoints, prepare_points
from crtlib.screening.redaction import redact
from crtlib.studies import crt_study, study_data, study_run
from crtlib.text import canaries, corpora, customersim, data_points
from crtlib.text.records import Corpus, Dialogue, Point, Turn
from crtlib.text.tokenizer import BpeTokenizer, train_bpe
from crtlib.training import methods, schedules
from crtlib.training.loop import train_model
from crtlib.training.methods import Method, PublicConstants
from crtlib.training.phases import Phase
from crtlib.training.run_state import TrainingRun
from crtlib.values import (
    NonEmptyStr,
    NonNegativeFloat,
    NonNegativeInt,
    OpenProbability,
    PositiveFloat,
    PositiveInt,
    Probability,
    checked_dataclass,
)

PARTS = ("public", "private")
THRESHOLDS = (8.0, 3.0)
"""Perplexities above which the paper's interface makes no suggestion (Section 6.1)."""
PROSE = ("arxiv",)
"""Corpora with public text of the same kind: a vocabulary from dialogues would spell their words.
"""
PUNCTUATION = re.compile(r"[^\w\s]")
epsilon = functools.lru_cache(privacy_cost.epsilon)


@checked_dataclass
class LeakageStudy(Study):
    """One model and its leakage report at the epochs ``snapshots``.

    With ``unit="user"`` a point is all that a user said, so epsilon is that of a person. ``public``
    dialogues of other, simulated people supply the vocabulary, the start of ``init="public"``, and
    the public model; for arXiv they are abstracts by other authors. Each of ``canaries`` users says
    a secret of their own ``copies`` times, each of ``bots`` a long sentence. ``method="public"``
    reads only public text. ``policy="rare"`` masks words of fewer than ``min_users`` users.
    ``left_out`` compares the last snapshot with a model trained without the owners of unique
    sequences, for as many epochs as the study; ``left_out_at`` also compares earlier snapshots.
    ``detail`` keeps length and perplexity of each unique sequence. ``threshold`` is a ratio of
    perplexities.
    """

    kind: ClassVar[str] = "leakage"
    LATER = frozenset({"left_out_at"})

    method: Literal["sgd", "dpsgd", "crt", "lp_weighted", "public"]
    corpus: NonEmptyStr = crt_study.DEFAULT_CORPUS
    unit: Literal["turn", "user"] = "turn"
    dialogues: PositiveInt = 60
    heldout: PositiveInt = 60
    public: PositiveInt = 150
    public_epochs: PositiveInt = 6
    canaries: NonNegativeInt = 0
    copies: NonNegativeInt = 10
    bots: NonNegativeInt = 0
    policy: Literal["none", "regex", "rare"] = "none"
    gamma: Probability = 0.0
    min_users: PositiveInt = 5
    dedup: bool = False
    init: Literal["random", "public"] = "random"
    model: Literal["lstm", "gru", "gpt2"] = "gru"
    embedding: PositiveInt = 32
    hidden: PositiveInt = 48
    layers: PositiveInt = 1
    vocab_size: PositiveInt = 400
    epochs: PositiveInt = 12
    snapshots: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = (12,)
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-2
    pub_passes: PositiveInt = 3
    private_learning_rate: PositiveFloat = 1e-2
    sampling_probability: Probability = 0.1
    noise_multiplier: NonNegativeFloat = 1.0
    clip_norm: PositiveFloat = 0.1
    delta: OpenProbability = 8e-5
    prior: OpenProbability = 1e-3
    posterior: OpenProbability = 0.1
    threshold: PositiveFloat = 2.0
    left_out: bool = False
    detail: bool = False
    left_out_at: Annotated[tuple[PositiveInt, ...], Field(strict=False)] = ()

    @property
    def training_method(self) -> Method:
        """Its method."""
        return methods.method_by_name(self.method)

    def reads(self) -> Iterable[str]:
        """The fingerprint of its corpus."""
        return (corpora.corpus_fingerprint(self.corpus),)

    def lacks(self) -> str | None:
        """The corpus, where it is missing here or not large enough."""
        return runs.describe_missing_data(self.corpus, self.dialogues + 2 * self.heldout)

    def cost(self) -> float:
        """CPU seconds: training, and a report at each snapshot."""
        width = 1e-3 * (2 + 8 * math.pow(self.hidden / 200, 1.5)) * self.layers
        reports = 0.5 + len(self.snapshots) * (0.8 + self.left_out)
        per_text = 2.2 if self.corpus in PROSE else 1.0  # longer, and with a larger vocabulary
        trainings = 1 + self.left_out + len(self.left_out_at)
        epochs = trainings * self.epochs + reports
        return per_text * self.dialogues * width * epochs

    def memory(self) -> float:
        """GiB: a whole corpus, and every sequence that somebody has."""
        return 6.0 if self.corpus in PROSE else super().memory()

    def shape(self, tokenizer: BpeTokenizer) -> ModelSpec:
        """The model's shape."""
        sizes = {n: getattr(self, n) for n in ("embedding", "hidden", "layers")}
        return ModelSpec(self.model, tokenizer.vocab_size, **sizes)

    def run(self, desk: Desk) -> list[Row]:
        """Train, make the report on the raw training text at each snapshot, keep the model."""
        data, run = train_run(self, desk)
        if desk.model:
            runs.save_run(run, data.tokenizer, self.shape(data.tokenizer), desk.model)
        rows = []
        for entry in run.history:
            epoch = int(entry.pop("epoch"))
            for name, number in entry.items():
                metric, _, item = name.partition("/")
                rows.append((metric, epoch, int(item or 0), number))
        return rows


@dataclass(frozen=True)
class Data:
    """Raw training and held-out points, and the public text with the vocabulary made from it."""

    points: tuple[Point, ...]
    heldout: tuple[Point, ...]
    public: tuple[Point, ...]
    tokenizer: BpeTokenizer


def draw_data(study: LeakageStudy) -> Data:
    """What a run reads; each part follows from the seed."""
    split = study_data.split_corpus(
        study.corpus, "paper", study.dialogues, study.heldout, study.seed
    )
    public_source = public_text(study.corpus, study.public, study.seed, split.others)
    secret = canaries.make_canaries(study.canaries, seed=study.seed) if study.canaries else ()
    planted = canaries.insert_canaries(split.train, secret, copies=study.copies, seed=study.seed)
    planted = _add_bots(planted, public_source, study)
    public = data_points.make_points(public_source, "turn")
    tokenizer = train_bpe((p.text for p in public), vocab_size=study.vocab_size)
    return Data(
        _make_points(planted, study.unit), _make_points(split.valid, study.unit), public, tokenizer
    )


def public_text(corpus: str, dialogues: int, seed: int, others: Corpus) -> Corpus:
    """What everybody may read: simulated dialogues, or prose by people whom no run reads."""
    if corpus in PROSE:
        return replace(others, dialogues=others.dialogues[:dialogues])
    return customersim.simulate_corpus(dialogues, 10**6 + seed, "rich", database_seed=1)


def _add_bots(corpus: Corpus, word_source: Corpus, study: LeakageStudy) -> Corpus:
    """Add users who repeat one long sentence, as the bots in the paper's Reddit data do."""
    vocabulary = sorted({w for t in word_source.turns() if not t.secrets for w in t.text.split()})
    rng, bots = np.random.default_rng([study.seed, 3]), list[Dialogue]()
    for k in range(study.bots):
        turns = (Turn("USR", " ".join(rng.choice(vocabulary, 20))),)
        bots += [Dialogue(f"bot{k}-{c}", f"bot{k}", turns) for c in range(study.copies)]
    return replace(corpus, dialogues=(*corpus.dialogues, *bots))


def _make_points(corpus: Corpus, unit: str) -> tuple[Point, ...]:
    if unit == "turn":
        return data_points.make_points(corpus, "turn")
    return data_points.make_points(data_points.merge_by_user(corpus), "dialogue")


def screen_points(study: LeakageStudy, points: Sequence[Point]) -> PreparedPoints:
    """The points as the method reads them, redacted and deduplicated where the method does so."""
    policy = {
        "none": regex_policies.none_policy,
        "regex": policy_changes.with_misses(
            regex_policies.corpus_regex_policy(), study.gamma, study.seed
        ),
        "rare": mitigations.rare_words(study.min_users),
    }[study.policy]
    careful = (
        regex_policies.corpus_regex_policy()
        if study.training_method.deduplicates
        else regex_policies.none_policy
    )
    scope: DedupScope = "all" if study.dedup else "none"
    return prepare_points(points, policy(points), careful(points), dedup=scope, duplicates="drop")


# --- training -------------------------------------------------------------------------------------

TrainModel = Callable[[Sequence[Point]], nn.Module]
"""A function that trains a model on these points and no others."""


def make_trainer(
    shape: ModelSpec,
    tokenizer: BpeTokenizer,
    phases: Sequence[Phase],
    *,
    seed: int,
    device: str = "cpu",
) -> TrainModel:
    """Return a function that trains a model of this shape on any points. With it, a public model
    from other text takes one call, ``trainer(...)(other_points)`` (Inan et al. 2021, Section 5)."""
    part = "private" if any(p.part == "private" for p in phases) else "public"

    def train_on(points: Sequence[Point]) -> nn.Module:
        parts = {"public": [], "private": []} | {part: tokenizer.encode(p.text for p in points)}
        return train_model(build_model(shape, seed).to(device), phases, parts, seed=seed).model

    return train_on


def leave_users_out(train_on: TrainModel, points: Sequence[Point], users: set[str]) -> nn.Module:
    """The paper's second kind of public model: trained again without any data of these users
    (usually :meth:`crtlib.attacks.leakage.LeakageReport.owners`), so public only to them.

    Raises ``ValueError`` where a user has no point, or nobody remains.
    """
    unknown = users - {p.user for p in points}
    if unknown:
        raise ValueError(f"users: {len(unknown)} of {len(users)} have no point in the corpus")
    if not (remaining_points := [p for p in points if p.user not in users]):
        raise ValueError(f"users: all {len(users)} are left out, nobody remains to train on")
    return train_on(remaining_points)


@functools.lru_cache(maxsize=4)
def _train_public_model(
    shape: ModelSpec,
    tokenizer: BpeTokenizer,
    points: tuple[Point, ...],
    seed: int,
    epochs: int,
    device: str,
) -> nn.Module:
    plan = schedules.sgd_phases(epochs=epochs, batch_size=32, learning_rate=1e-2)
    return make_trainer(shape, tokenizer, plan, seed=seed, device=device)(points)


def public_model(study: LeakageStudy, d: Data, device: str = "cpu") -> nn.Module:
    """The model of other people's text, as a copy, so that it can be trained on."""
    options = (study.seed, study.public_epochs, device)
    return copy.deepcopy(
        _train_public_model(study.shape(d.tokenizer), d.tokenizer, d.public, *options)
    )


def make_plain_trainer(study: LeakageStudy, data: Data, device: str = "cpu") -> TrainModel:
    """A trainer for ordinary training of the run's shape on any points, to leave users out."""
    plan = schedules.sgd_phases(
        epochs=study.epochs, batch_size=study.batch_size, learning_rate=study.learning_rate
    )
    return make_trainer(
        study.shape(data.tokenizer), data.tokenizer, plan, seed=study.seed, device=device
    )


def schedule_phases(study: LeakageStudy, prepared: PreparedPoints) -> list[Phase]:
    """The phases of a run."""
    size = study.dialogues * (1 if study.unit == "user" else 8)  # eight turns a dialogue: public
    plan = plan_secret_protection(study, prepared.all) if study.training_method.weighs else None
    return study.training_method.phases(
        PublicConstants.of(
            study, plan=plan, normaliser=study.sampling_probability * size,
            has_public=bool(prepared.public),
        )
    )  # fmt: skip


def plan_secret_protection(
    study: Any, points: Sequence[Point], scale: float = 1.0
) -> secret_protection.ProtectionPlan:
    """The plan of secret protection (Hush!), from which point holds which labelled value."""
    values = [{p.text[a.start : a.end] for a in p.secrets} for p in points]
    return secret_protection.plan_protection(
        incidence_of_values(values),
        study.prior,
        study.posterior,
        steps=study.epochs * max(1, round(1 / study.sampling_probability)),
        batch_size=study.sampling_probability * len(points),
        scale=scale,
        solver=study.training_method.solver,
        neighbouring_relation="reference",
    )


def train_run(study: LeakageStudy, desk: Desk) -> tuple[Data, TrainingRun]:
    """Train. What was measured at each snapshot is in the run's history, so that a run that resumes
    from its checkpoint has it as well. A metric of several items has names ``metric/item``."""
    data = draw_data(study)
    public = public_model(study, data, desk.device)
    documents = leakage.tokenise_documents(data.points, data.tokenizer)
    public_scores = leakage.score_documents(public, documents, bos=data.tokenizer.bos)
    prepared = screen_points(study, data.points)
    phases = schedule_phases(study, prepared) if study.training_method.trains else []

    def measure_epoch(epoch: int, model: nn.Module) -> dict[str, float]:
        if epoch not in study.snapshots:
            return {}
        past = [p for p in phases if p.epoch <= epoch]
        return _measure_snapshot(
            study, data, model, documents, public_scores, epoch, past, desk.device
        )

    if not study.training_method.trains:
        return data, TrainingRun(
            public, history=[{"epoch": study.epochs, **measure_epoch(study.epochs, public)}]
        )
    texts = (
        {"private": prepared.all}
        if study.training_method.reads_raw
        else {k: getattr(prepared, k) for k in PARTS}
    )
    parts = {k: data.tokenizer.encode(p.text for p in v) for k, v in texts.items()}
    start = public_model(study, data) if study.init == "public" else None
    model = (start or build_model(study.shape(data.tokenizer), study.seed)).to(desk.device)
    options: dict[str, Any] = {"on_epoch": measure_epoch, "checkpoint": desk.checkpoint}
    return data, train_model(model, phases, parts, seed=study.seed, **options)


# --- recorded runs --------------------------------------------------------------------------------

TEXTS: dict[str, dict[str, Any]] = STUDIES["texts"]
"""What is done to the text in Figure 5's runs."""
METHODS: dict[str, dict[str, Any]] = STUDIES["methods"]
"""The runs of the table of methods."""


def select_table_2(table: DataFrame) -> DataFrame:
    """The rows of Table 2's runs, in which points are people."""
    return table[table.unit == "user"]


def select_figure_5(table: DataFrame) -> DataFrame:
    """The rows of Figure 5's runs on unchanged text: these keep ``detail``."""
    matches = [table[name] == value for name, value in TEXTS["as it is"].items()]
    return table[np.logical_and.reduce([table.detail, *matches])]


# --- measuring ------------------------------------------------------------------------------------


def make_report(
    study: LeakageStudy, d: Data, model: nn.Module, public: nn.Module
) -> leakage.LeakageReport:
    """The tab attack on the training text, compared with a public model."""
    return leakage.measure_leakage(model, d.tokenizer, d.points, k=1, public=public)


def _measure_snapshot(
    study: LeakageStudy,
    data: Data,
    model: nn.Module,
    documents: Sequence[leakage.Document],
    public_scores: TokenScores,
    epoch: int,
    past: Sequence[Phase],
    device: str,
) -> dict[str, float]:
    """What a snapshot shows, by metric; for each unique sequence as ``metric/item``.

    It is the report of :func:`make_report`, of scores by the public model that are the same at each
    snapshot, and of one reading by the model that also says how sure it is.
    """
    scores, next_perplexity = mitigations.score_with_next_perplexity(
        model, documents, bos=data.tokenizer.bos
    )
    every_token = [np.ones(len(document.tokens), dtype=bool) for document in documents]
    empty = len(data.points) - len(documents)
    reading = leakage.ScoredPoints(documents, scores, every_token, empty, public_scores)
    page = leakage.measure_leakage_of_chunks(model, data.tokenizer, [reading], k=1)
    unique_sequences = page.unique()
    clean = study.policy == "none" and not study.training_method.deduplicates
    texts = (p if clean else redact(p, p.secrets) for p in data.heldout)
    metrics: dict[str, float | None] = {
        **study_run.measure_utility(
            model, data.tokenizer, Counter(replace(p, id="", user="") for p in texts)
        ),
        "train_ppl": np.exp(-np.nanmean(np.concatenate(page.scores.logprobs))),
        "runs": len(page.runs),
        "longest": max(unique_sequences.length, default=0),
        # Sequences with a complete labelled secret.
        "unique_secrets": sum(map(bool, unique_sequences.kinds)),
        **leakage.leakage_metrics(page.sequences, study.threshold),
    }
    if not study.training_method.weighs and (event := schedules.combine_phase_events(past)):
        metrics["epsilon"] = epsilon(
            event, delta=study.delta, neighbouring_relation="add_or_remove"
        )
    planted = {p.user for p in data.points if p.user.startswith(canaries.CANARY_USER_PREFIX)}
    if planted:
        recall = measure_report_recall(model, page, bos=data.tokenizer.bos, users=planted)
        metrics |= {f"canaries_{k}": v for k, v in asdict(recall).items()}
    if epoch in study.left_out_at or (study.left_out and epoch == study.epochs):
        metrics |= _measure_without_owners(study, data, model, page, device)
    decoded = [data.tokenizer.decode(w) for w in unique_sequences.tokens]
    metrics["punctuation"] = None
    if decoded:
        metrics["punctuation"] = np.mean([bool(PUNCTUATION.search(text)) for text in decoded])
    metrics |= _measure_answers(study, data, model, page, next_perplexity)
    if study.detail:
        metrics |= {f"unique_length/{k}": float(v) for k, v in enumerate(unique_sequences.length)}
        perplexities = enumerate(unique_sequences.perplexities)
        metrics |= {f"unique_perplexity/{k}": min(values) for k, values in perplexities}
    return {name: float(number) for name, number in metrics.items() if number is not None}


def _measure_answers(
    study: LeakageStudy,
    data: Data,
    model: nn.Module,
    page: leakage.LeakageReport,
    next_perplexity: Sequence[np.ndarray],
) -> dict[str, float]:
    """Held-out accuracy among three guesses. With ``detail`` also what an interface costs that does
    not answer above a perplexity, and the share of unique sequences that remain."""
    heldout_documents = leakage.tokenise_documents(data.heldout, data.tokenizer)
    scores, next_perplexity_of_held = mitigations.score_with_next_perplexity(
        model, heldout_documents, bos=data.tokenizer.bos
    )
    ranks = np.concatenate(scores.ranks)
    metrics = {"acc_top_3": float((ranks[ranks != leakage.NO_CONTEXT_RANK] < 3).mean())}
    if not study.detail:
        return metrics
    remaining, cost = (
        mitigations.harden_interface(
            texts, text_scores, perplexity, k=1, thresholds=THRESHOLDS
        ).set_index("threshold")
        for texts, text_scores, perplexity in (
            (page.documents, page.scores, next_perplexity),
            (heldout_documents, scores, next_perplexity_of_held),
        )
    )
    for line in THRESHOLDS:
        metrics[f"acc_above_threshold_{line:g}"] = cost.accuracy[line]
        if remaining.unique[np.inf]:
            share = remaining.unique[line] / remaining.unique[np.inf]
            metrics[f"share_above_threshold_{line:g}"] = share
    return metrics


def end_at_snapshot(study: LeakageStudy, epoch: int) -> LeakageStudy:
    """The same training, but ending at a snapshot, so that its model there is kept."""
    if epoch == study.epochs:
        return study
    return replace(study, epochs=epoch, snapshots=(epoch,), left_out=False)


def make_report_without_owners(
    study: LeakageStudy,
    data: Data,
    model: nn.Module,
    page: leakage.LeakageReport,
    device: str = "cpu",
) -> leakage.LeakageReport | None:
    """The report against a model that was trained without the owners of unique sequences, as in
    Table 4 of Inan et al.; None where there is no owner, or nobody else."""
    owners = page.owners()
    if not owners or owners == {p.user for p in data.points}:
        return None
    train_on = make_plain_trainer(study, data, device)
    return make_report(study, data, model, leave_users_out(train_on, data.points, owners))


def _measure_without_owners(
    study: LeakageStudy, data: Data, model: nn.Module, page: leakage.LeakageReport, device: str
) -> dict[str, float | None]:
    """The metrics of :func:`make_report_without_owners`."""
    metrics: dict[str, float | None] = {
        "left_out_users": len(page.owners()) / len({p.user for p in data.points})
    }
    if compared := make_report_without_owners(study, data, model, page, device):
        compared_metrics = leakage.leakage_metrics(compared.sequences, study.threshold)
        metrics |= {f"left_out_{k}": v for k, v in compared_metrics.items()}
    return metrics
