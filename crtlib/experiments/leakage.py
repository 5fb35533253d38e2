"""Runs of the leakage chapters: one frozen setting, trained once, its report as rows.

>>> import tempfile
>>> tiny = Setting(method="sgd", seed=0, dialogues=6, heldout=4, public=12, public_epochs=1,
...                epochs=2, snapshots=(1, 2), embedding=8, hidden=8, canaries=1, copies=2)
>>> table = sweep([tiny], results.Store(tempfile.mkdtemp()), profile="doctest")
>>> table[table.metric == "unique"].epoch.tolist()
[1, 2]
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from scipy import sparse
from torch import nn

from crtlib.accounting import ledger
from crtlib.accounting import secrets as secrets_module
from crtlib.accounting.secrets import Plan
from crtlib.attacks import leakage, mitigations
from crtlib.experiments import data as data_studies
from crtlib.experiments import public_models, trials
from crtlib.experiments import settings as settings_studies
from crtlib.experiments import store as store_studies
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.screening import policies
from crtlib.screening.prepare import Dedup, Prepared, prepare
from crtlib.screening.redact import redact
from crtlib.text import corpora, customersim, units
from crtlib.text.canaries import USER, insert, make
from crtlib.text.records import Corpus, Dialogue, Point, Turn
from crtlib.text.tokenizer import Bpe, train_bpe
from crtlib.training import methods, weighted
from crtlib.training.loop import Run, train
from crtlib.training.phases import Phase

epsilon = functools.lru_cache(ledger.epsilon)
METHODS = ("sgd", "dpsgd", "crt", "lp_weighted", "public")
POLICIES = ("none", "regex", "rare")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything that decides one run; JSON-safe.

    ``unit="user"``: a point is all that a user said, so epsilon is that of a person. ``public``
    dialogues of other, simulated people give the vocabulary, the start of ``init="public"``, and
    the public model. Each of ``canaries`` users says a secret of their own ``copies`` times; each
    of ``bots`` a long sentence. ``method="public"`` reads nothing but public text.
    ``left_out`` compares with a model trained without the owners of unique sequences; ``detail``
    keeps length and perplexity of each unique sequence.
    """

    method: str
    seed: int
    corpus: str = data_studies.SIMULATED
    unit: str = "turn"
    dialogues: int = 60
    heldout: int = 60
    public: int = 150
    public_epochs: int = 6
    canaries: int = 0
    copies: int = 10
    bots: int = 0
    policy: str = "none"
    gamma: float = 0.0
    min_users: int = 5
    dedup: bool = False
    init: str = "random"
    kind: str = "gru"
    embedding: int = 32
    hidden: int = 48
    layers: int = 1
    vocab_size: int = 400
    epochs: int = 12
    snapshots: tuple[int, ...] = (12,)
    batch_size: int = 32
    learning_rate: float = 1e-2
    pub_passes: int = 3
    private_learning_rate: float = 1e-2
    sampling_probability: float = 0.1
    noise_multiplier: float = 1.0
    clip_norm: float = 0.1
    delta: float = 8e-5
    prior: float = 1e-3
    posterior: float = 0.1
    threshold: float = 2.0
    left_out: bool = False
    detail: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshots", tuple(self.snapshots))
        allowed = {"method": METHODS, "policy": POLICIES, "unit": ("turn", "user")}
        for name, values in (allowed | {"init": ("random", "public")}).items():
            if getattr(self, name) not in values:
                found = getattr(self, name)
                raise ValueError(f"{name}={found!r}: must be one of {', '.join(values)}")

    @property
    def key(self) -> str:
        """Hash that names the run."""
        told = json.dumps([store_studies.STORE_VERSION, "leakage", asdict(self)], sort_keys=True)
        if self.corpus != data_studies.SIMULATED:
            told += corpora.fingerprint(self.corpus)
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def shape(self, tokenizer: Bpe) -> ModelSpec:
        """The model's shape."""
        names = ("kind", "embedding", "hidden", "layers")
        return ModelSpec(vocab_size=tokenizer.vocab_size, **{n: getattr(self, n) for n in names})


@dataclass(frozen=True)
class Data:
    """Raw training and held-out points, and the public text with the vocabulary learned from it."""

    points: tuple[Point, ...]
    heldout: tuple[Point, ...]
    public: tuple[Point, ...]
    tokenizer: Bpe


def data(s: Setting) -> Data:
    """What a run reads; each part follows from the seed."""
    split = data_studies.splits(s.corpus, "paper", s.dialogues, s.heldout, s.seed)
    other = customersim.simulate(s.public, 10**6 + s.seed, "rich", database_seed=1)
    secrets = make(s.canaries, seed=s.seed) if s.canaries else ()
    planted = insert(split.train, secrets, copies=s.copies, seed=s.seed)
    planted = _with_bots(planted, other, s)
    public = units.points(other, "turn")
    tokenizer = train_bpe((p.text for p in public), vocab_size=s.vocab_size)
    return Data(_points(planted, s.unit), _points(split.valid, s.unit), public, tokenizer)


def _with_bots(corpus: Corpus, words: Corpus, s: Setting) -> Corpus:
    """Users who say one long sentence again and again, as the bots of the paper's Reddit do."""
    vocabulary = sorted({w for t in words.turns() if not t.secrets for w in t.text.split()})
    rng = np.random.default_rng([s.seed, 3])
    said = [Turn("USR", " ".join(rng.choice(vocabulary, 20))) for _ in range(s.bots)]
    bots = [
        Dialogue(f"bot{k}-{c}", f"bot{k}", (t,))
        for k, t in enumerate(said)
        for c in range(s.copies)
    ]
    return replace(corpus, dialogues=(*corpus.dialogues, *bots))


def _points(corpus: Corpus, unit: str) -> tuple[Point, ...]:
    if unit == "turn":
        return units.points(corpus, "turn")
    said: dict[str, list[Turn]] = {}
    for d in corpus.dialogues:
        said.setdefault(d.user, []).extend(d.turns)
    merged = tuple(Dialogue(user, user, tuple(turns)) for user, turns in said.items())
    return units.points(replace(corpus, dialogues=merged), "dialogue")


def prepared(s: Setting, points: Sequence[Point]) -> Prepared:
    """The points as the method reads them: redacted and deduplicated where it does that."""
    policy = {
        "none": policies.none,
        "regex": policies.miss(policies.regex(), s.gamma, s.seed),
        "rare": mitigations.rare_words(s.min_users),
    }[s.policy]
    careful = policies.regex() if s.method == "crt" else policies.none
    scope: Dedup = "all" if s.dedup else "none"
    return prepare(points, policy(points), careful(points), dedup=scope, duplicates="drop")


# --------------------------------------------------------------------------- training
@functools.lru_cache(maxsize=4)
def _public(shape, tokenizer, seed, dialogues, epochs) -> nn.Module:
    text = customersim.simulate(dialogues, 10**6 + seed, "rich", database_seed=1)
    plan = methods.sgd(epochs=epochs, batch_size=32, learning_rate=1e-2)
    learn = public_models.trainer(shape, tokenizer, phases=plan, seed=seed)
    return learn(units.points(text, "turn"))


def public_model(s: Setting, d: Data) -> nn.Module:
    """The model of other people's text: a copy, so that it can be trained on."""
    shape = s.shape(d.tokenizer)
    return copy.deepcopy(_public(shape, d.tokenizer, s.seed, s.public, s.public_epochs))


def plain(s: Setting, d: Data) -> public_models.TrainModel:
    """Ordinary training of the run's shape on any points, to leave users out."""
    plan = methods.sgd(epochs=s.epochs, batch_size=s.batch_size, learning_rate=s.learning_rate)
    return public_models.trainer(s.shape(d.tokenizer), d.tokenizer, phases=plan, seed=s.seed)


def schedule(s: Setting, ready: Prepared) -> list[Phase]:
    """The phases of a run."""
    if s.method == "sgd":
        return methods.sgd(epochs=s.epochs, batch_size=s.batch_size, learning_rate=s.learning_rate)
    if s.method == "lp_weighted":
        rounds = s.epochs * max(1, round(1 / s.sampling_probability))
        made = secret_plan(s, ready.all, rounds)
        return weighted.phases(
            made, epochs=s.epochs, clip_norm=s.clip_norm, learning_rate=s.private_learning_rate
        )
    size = s.dialogues * (1 if s.unit == "user" else 8)  # public: about eight turns a dialogue
    private = methods.Private(
        sampling_probability=s.sampling_probability,
        noise_multiplier=s.noise_multiplier,
        clip_norm=s.clip_norm,
        normaliser=s.sampling_probability * size,
        learning_rate=s.private_learning_rate,
    )
    if s.method == "dpsgd":
        return methods.dpsgd(epochs=s.epochs, private=private)
    return methods.crt(
        epochs=s.epochs,
        pub_passes=s.pub_passes,
        public_batch_size=s.batch_size,
        public_learning_rate=s.learning_rate,
        private=private,
        has_public=bool(ready.public),
    )


def secret_plan(s: Setting, points: Sequence[Point], steps: int) -> Plan:
    """Secret protection (Hush!): which point holds which labelled value, and what follows."""
    values = [{p.text[a.start : a.end] for a in p.secrets} for p in points]
    held = [(value, i) for i, said in enumerate(values) for value in sorted(said)]
    rows, _ = pd.factorize(np.array([v for v, _ in held], dtype=object))
    where = (rows, [i for _, i in held])
    matrix = sparse.csr_array((np.ones(len(held)), where), shape=(rows.max() + 1, len(points)))
    size = s.sampling_probability * len(points)
    return secrets_module.plan(
        matrix, s.prior, s.posterior, steps=steps, batch_size=size, scale=1.0
    )


# --------------------------------------------------------------------------- one run
def run(s: Setting) -> tuple[trials.Fitted, list[store_studies.Row]]:
    """Train, and make the report on the raw training text at each snapshot."""
    d = data(s)
    public, rows = public_model(s, d), []
    ready = prepared(s, d.points)
    phases = [] if s.method == "public" else schedule(s, ready)

    def look(epoch: int, model: nn.Module) -> dict[str, float]:
        if epoch in s.snapshots:
            done = [p for p in phases if p.epoch <= epoch]
            rows.extend(_measured(s, d, model, public, epoch, done))
        return {}

    if s.method == "public":
        fitted = Run(public)
        look(s.epochs, public)
    else:
        start = build(s.shape(d.tokenizer), s.seed)
        noisy = s.method in ("dpsgd", "lp_weighted")
        kept = {"private": ready.all} if noisy else {k: getattr(ready, k) for k in PARTS}
        parts = {k: d.tokenizer.encode(p.text for p in v) for k, v in kept.items()}
        model = public_model(s, d) if s.init == "public" else start
        fitted = train(model, phases, parts, seed=s.seed, on_epoch=look)
    return trials.Fitted(fitted, d, phases, s.shape(d.tokenizer)), rows


PARTS = ("public", "private")


def report(s: Setting, d: Data, model: nn.Module, public: nn.Module) -> leakage.Leakage:
    """The tab attack on the training text, compared with a public model."""
    return leakage.leakage(model, d.tokenizer, d.points, k=1, public=public)


def _measured(s, d, model, public, epoch: int, done: list) -> list[store_studies.Row]:
    found = report(s, d, model, public)
    alone = found.unique()
    clean = s.policy == "none" and s.method != "crt"
    texts = (p if clean else redact(p, p.secrets) for p in d.heldout)
    facts = trials.utility(model, d.tokenizer, Counter(replace(p, id="", user="") for p in texts))
    facts["train_ppl"] = float(np.exp(-np.nanmean(np.concatenate(found.scores.logprobs))))
    facts["runs"] = len(found.runs)
    facts["longest"] = int(alone.length.max()) if len(alone) else 0
    facts["unique_secrets"] = sum(map(bool, alone.kinds))  # sequences with a whole labelled secret
    facts |= leakage.metrics(found.sequences, s.threshold)
    if s.method != "lp_weighted" and (event := methods.events(done)):
        facts["epsilon"] = epsilon(event, delta=s.delta)
    planted = {p.user for p in d.points if p.user.startswith(USER)}
    if planted:
        told = leakage.report_recall(model, found, bos=d.tokenizer.bos, users=planted)
        facts |= {f"canaries_{k}": v for k, v in asdict(told).items()}
    if s.left_out and epoch == s.epochs:
        owners, everyone = found.owners(), {p.user for p in d.points}
        facts["left_out_users"] = len(owners) / len(everyone)
        if owners and owners < everyone:
            other = public_models.leave_users_out(plain(s, d), d.points, owners)
            compared = leakage.metrics(report(s, d, model, other).sequences, s.threshold)
            facts |= {f"left_out_{k}": v for k, v in compared.items()}
    rows = [(k, epoch, 0, float(v)) for k, v in facts.items() if v is not None]
    if s.detail:
        values = [min(v) for v in alone.perplexities]
        rows += [("unique_length", epoch, k, float(v)) for k, v in enumerate(alone.length)]
        rows += [("unique_perplexity", epoch, k, float(v)) for k, v in enumerate(values)]
    return rows


def sweep(
    settings: Iterable[Setting], store: store_studies.Store, *, profile: str = "custom"
) -> pd.DataFrame:
    """Run what the store does not hold, keep its model, and return the long table of all."""

    def measure(key: str, setting: Setting) -> list[store_studies.Row]:
        fitted, rows = run(setting)
        trials.save(fitted, store.model(key))
        return rows

    with store.alone():
        return store_studies.collect({s.key: s for s in settings}, measure, store, profile=profile)


# --------------------------------------------------------------------------- the chapters' grids
def shared(settings: SimpleNamespace, shape: str, **changes: object) -> dict:
    """The fields of a setting that a profile's section and one of its shapes give; a shape that
    is called like a corpus holds what is different there."""
    given = vars(settings) | settings.shapes[shape]
    given |= settings.shapes.get(changes.get("corpus"), {}) | changes
    return {k: v for k, v in given.items() if k in Setting.__dataclass_fields__}


def table_2(settings: SimpleNamespace, corpus: str, seed: int) -> list[Setting]:
    """Rows of Table 2: private, DP from two starts, public; a point is all that a user said."""
    base = shared(settings, "table", corpus=corpus, unit="user", seed=seed) | {"gamma": 0.0}
    last = {"snapshots": (base["epochs"],)}
    return [
        Setting(method="sgd", **base | last, left_out=True),
        Setting(method="dpsgd", **base, left_out=True),
        Setting(method="dpsgd", init="public", **base, left_out=True),
        Setting(method="public", init="public", **base | last),
    ]


def one_table(settings: SimpleNamespace, seed: int) -> dict[str, Setting]:
    """Non-private, DP-SGD, CRT and LP-weighted models of the same turns of CustomerSim."""
    base = shared(settings, "methods", unit="turn", seed=seed)
    raw, masked = base | {"gamma": 0.0}, base | {"policy": "regex"}
    return {
        "non-private": Setting(method="sgd", **raw),
        "non-private, masked": Setting(method="sgd", **masked),
        "DP-SGD": Setting(method="dpsgd", **raw),
        "LP-weighted": Setting(method="lp_weighted", **raw),
        "CRT": Setting(method="crt", dedup=True, **masked),
    }


def figure_5(settings: SimpleNamespace, seed: int, corpus: str) -> dict[str, Setting]:
    """The run of Figure 5, and the same with one thing done to its text."""
    base = shared(settings, "lstm", unit="turn", seed=seed, corpus=corpus)
    last = base | {"snapshots": (base["epochs"],)}
    return {
        "as it is": Setting(method="sgd", detail=True, **base),
        "deduplicated": Setting(method="sgd", detail=True, dedup=True, **last),
        "scrubbed": Setting(method="sgd", detail=True, policy="regex", **last),
        "rare words masked": Setting(method="sgd", detail=True, policy="rare", **last),
    }


def chapters(profile: str) -> list[tuple[str, str, Setting]]:
    """All runs of both chapters at a profile's sizes: where each is shown, its name there, and
    the run. Of Figure 5's mitigations, those on simulated text."""
    tables, training = (
        settings_studies.parameters({"profile": profile}, f"leakage_{name}")
        for name in ("report", "training")
    )
    runs = []
    for seed in range(tables.seeds):
        for corpus in tables.corpora:
            runs += [("table 2", s.method, s) for s in table_2(tables, corpus, seed)]
        runs += [("one table", name, s) for name, s in one_table(tables, seed).items()]
    for seed, corpus in itertools.product(range(training.seeds), training.corpora):
        for name, s in figure_5(training, seed, corpus).items():
            if corpus == data_studies.SIMULATED or name == "as it is":
                runs.append(("figure 5", name, s))
    return runs


def record(profile: str, store: store_studies.Store, path: str | Path) -> None:
    """Write the table of :func:`chapters`, with where each row is ``shown`` and its ``name``."""
    runs = {s.key: (shown, name) for shown, name, s in chapters(profile)}
    table = sweep((s for *_, s in chapters(profile)), store, profile=profile)
    table["shown"], table["name"] = zip(*table.run.map(runs), strict=True)
    store_studies.record(table, path)
