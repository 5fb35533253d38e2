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
        d, run = train_run(self, desk)
        if desk.model:
            runs.save_run(run, d.tokenizer, self.shape(d.tokenizer), desk.model)
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
    other = public_text(study.corpus, study.public, study.seed, split.others)
    secret = canaries.make_canaries(study.canaries, seed=study.seed) if study.canaries else ()
    planted = canaries.insert_canaries(split.train, secret, copies=study.copies, seed=study.seed)
    planted, public = _add_bots(planted, other, study), data_points.make_points(other, "turn")
    tokenizer = train_bpe((p.text for p in public), vocab_size=study.vocab_size)
    return Data(
        _make_points(planted, study.unit), _make_points(split.valid, study.unit), public, tokenizer
    )


def public_text(corpus: str, dialogues: int, seed: int, others: Corpus) -> Corpus:
    """What everybody may read: simulated dialogues, or prose by people whom no run reads."""
    if corpus in PROSE:
        return replace(others, dialogues=others.dialogues[:dialogues])
    return customersim.simulate_corpus(dialogues, 10**6 + seed, "rich", database_seed=1)


def _add_bots(corpus: Corpus, words: Corpus, study: LeakageStudy) -> Corpus:
    """Add users who repeat one long sentence, as the bots in the paper's Reddit data do."""
    vocabulary = sorted({w for t in words.turns() if not t.secrets for w in t.text.split()})
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
    if not (rest := [p for p in points if p.user not in users]):
        raise ValueError(f"users: all {len(users)} are left out, nobody remains to train on")
    return train_on(rest)


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


def make_plain_trainer(study: LeakageStudy, d: Data, device: str = "cpu") -> TrainModel:
    """A trainer for ordinary training of the run's shape on any points, to leave users out."""
    plan = schedules.sgd_phases(
        epochs=study.epochs, batch_size=study.batch_size, learning_rate=study.learning_rate
    )
    return make_trainer(study.shape(d.tokenizer), d.tokenizer, plan, seed=study.seed, device=device)


def schedule_phases(study: LeakageStudy, ready: PreparedPoints) -> list[Phase]:
    """The phases of a run."""
    size = study.dialogues * (1 if study.unit == "user" else 8)  # eight turns a dialogue: public
    plan = plan_secret_protection(study, ready.all) if study.training_method.weighs else None
    return study.training_method.phases(
        PublicConstants.of(
            study, plan=plan, normaliser=study.sampling_probability * size,
            has_public=bool(ready.public),
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
    d = draw_data(study)
    public = public_model(study, d, desk.device)
    documents = leakage.tokenise_documents(d.points, d.tokenizer)
    public_scores = leakage.score_documents(public, documents, bos=d.tokenizer.bos)
    ready = screen_points(study, d.points)
    phases = schedule_phases(study, ready) if study.training_method.trains else []

    def look(epoch: int, model: nn.Module) -> dict[str, float]:
        if epoch not in study.snapshots:
            return {}
        past = [p for p in phases if p.epoch <= epoch]
        return _measure_snapshot(study, d, model, public_scores, epoch, past, desk.device)

    if not study.training_method.trains:
        return d, TrainingRun(
            public, history=[{"epoch": study.epochs, **look(study.epochs, public)}]
        )
    texts = (
        {"private": ready.all}
        if study.training_method.reads_raw
        else {k: getattr(ready, k) for k in PARTS}
    )
    parts = {k: d.tokenizer.encode(p.text for p in v) for k, v in texts.items()}
    start = public_model(study, d) if study.init == "public" else None
    model = (start or build_model(study.shape(d.tokenizer), study.seed)).to(desk.device)
    options: dict[str, Any] = {"on_epoch": look, "checkpoint": desk.checkpoint}
    return d, train_model(model, phases, parts, seed=study.seed, **options)


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
    same = [table[name] == value for name, value in TEXTS["as it is"].items()]
    return table[np.logical_and.reduce([table.detail, *same])]


# --- measuring ------------------------------------------------------------------------------------


def make_report(
    study: LeakageStudy, d: Data, model: nn.Module, public: nn.Module
) -> leakage.LeakageReport:
    """The tab attack on the training text, compared with a public model."""
    return leakage.measure_leakage(model, d.tokenizer, d.points, k=1, public=public)


def _measure_snapshot(
    study: LeakageStudy,
    d: Data,
    model: nn.Module,
    public_scores: TokenScores,
    epoch: int,
    past: Sequence[Phase],
    device: str,
) -> dict[str, float]:
    """What a snapshot shows, by metric; for each unique sequence as ``metric/item``.

    It is the report of :func:`make_report`, of scores by the public model that are the same at each
    snapshot, and of one reading by the model that also says how sure it is.
    """
    documents = leakage.tokenise_documents(d.points, d.tokenizer)
    scores, next_perplexity = mitigations.score_with_next_perplexity(
        model, documents, bos=d.tokenizer.bos
    )
    every_token = [np.ones(len(document.tokens), dtype=bool) for document in documents]
    empty = len(d.points) - len(documents)
    reading = leakage.ScoredPoints(documents, scores, every_token, empty, public_scores)
    page = leakage.measure_leakage_of_chunks(model, d.tokenizer, [reading], k=1)
    alone = page.unique()
    clean = study.policy == "none" and not study.training_method.deduplicates
    texts = (p if clean else redact(p, p.secrets) for p in d.heldout)
    facts: dict[str, float | None] = {
        **study_run.measure_utility(
            model, d.tokenizer, Counter(replace(p, id="", user="") for p in texts)
        ),
        "train_ppl": np.exp(-np.nanmean(np.concatenate(page.scores.logprobs))),
        "runs": len(page.runs),
        "longest": max(alone.length, default=0),
        "unique_secrets": sum(map(bool, alone.kinds)),  # sequences with a complete labelled secret
        **leakage.leakage_metrics(page.sequences, study.threshold),
    }
    if not study.training_method.weighs and (event := schedules.combine_phase_events(past)):
        facts["epsilon"] = epsilon(event, delta=study.delta, neighbouring_relation="add_or_remove")
    planted = {p.user for p in d.points if p.user.startswith(canaries.CANARY_USER_PREFIX)}
    if planted:
        recall = measure_report_recall(model, page, bos=d.tokenizer.bos, users=planted)
        facts |= {f"canaries_{k}": v for k, v in asdict(recall).items()}
    if epoch in study.left_out_at or (study.left_out and epoch == study.epochs):
        facts |= _measure_without_owners(study, d, model, page, device)
    words = [d.tokenizer.decode(w) for w in alone.tokens]
    facts["punctuation"] = np.mean([bool(PUNCTUATION.search(w)) for w in words]) if words else None
    facts |= _measure_answers(study, d, model, page, next_perplexity)
    if study.detail:
        facts |= {f"unique_length/{k}": float(v) for k, v in enumerate(alone.length)}
        facts |= {f"unique_perplexity/{k}": min(v) for k, v in enumerate(alone.perplexities)}
    return {name: float(number) for name, number in facts.items() if number is not None}


def _measure_answers(
    study: LeakageStudy,
    d: Data,
    model: nn.Module,
    page: leakage.LeakageReport,
    next_perplexity: Sequence[np.ndarray],
) -> dict[str, float]:
    """Held-out accuracy among three guesses. With ``detail`` also what an interface costs that does
    not answer above a perplexity, and the share of unique sequences that remain."""
    held = leakage.tokenise_documents(d.heldout, d.tokenizer)
    scores, next_perplexity_of_held = mitigations.score_with_next_perplexity(
        model, held, bos=d.tokenizer.bos
    )
    ranks = np.concatenate(scores.ranks)
    facts = {"acc_top_3": float((ranks[ranks != leakage.NO_CONTEXT_RANK] < 3).mean())}
    if not study.detail:
        return facts
    left, cost = (
        mitigations.harden_interface(
            texts, text_scores, perplexity, k=1, thresholds=THRESHOLDS
        ).set_index("threshold")
        for texts, text_scores, perplexity in (
            (page.documents, page.scores, next_perplexity),
            (held, scores, next_perplexity_of_held),
        )
    )
    for line in THRESHOLDS:
        facts[f"acc_above_threshold_{line:g}"] = cost.accuracy[line]
        if left.unique[np.inf]:
            facts[f"share_above_threshold_{line:g}"] = left.unique[line] / left.unique[np.inf]
    return facts


def end_at_snapshot(study: LeakageStudy, epoch: int) -> LeakageStudy:
    """The same training, but ending at a snapshot, so that its model there is kept."""
    if epoch == study.epochs:
        return study
    return replace(study, epochs=epoch, snapshots=(epoch,), left_out=False)


def make_report_without_owners(
    study: LeakageStudy, d: Data, model: nn.Module, page: leakage.LeakageReport, device: str = "cpu"
) -> leakage.LeakageReport | None:
    """The report against a model that was trained without the owners of unique sequences, as in
    Table 4 of Inan et al.; None where there is no owner, or nobody else."""
    owners = page.owners()
    if not owners or owners == {p.user for p in d.points}:
        return None
    return make_report(
        study, d, model, leave_users_out(make_plain_trainer(study, d, device), d.points, owners)
    )


def _measure_without_owners(
    study: LeakageStudy, d: Data, model: nn.Module, page: leakage.LeakageReport, device: str
) -> dict[str, float | None]:
    """The metrics of :func:`make_report_without_owners`."""
    facts: dict[str, float | None] = {
        "left_out_users": len(page.owners()) / len({p.user for p in d.points})
    }
    if compared := make_report_without_owners(study, d, model, page, device):
        metrics = leakage.leakage_metrics(compared.sequences, study.threshold)
        facts |= {f"left_out_{k}": v for k, v in metrics.items()}
    return facts
