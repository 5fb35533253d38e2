"""Experiments as frozen, hashable values; a sweep runs those that the store does not hold.

>>> a = Experiment(method="crt", model="lstm", gamma=0.1, seed=0, noise_multiplier=2.0)
>>> b = Experiment(method="sgd", model="lstm", gamma=0.1, seed=0, noise_multiplier=2.0)
>>> a.key == replace(a, seed=1).key, b.canonical().noise_multiplier
(False, 0.0)
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from crtlib import canaries, corpora, exposure, methods, models, results, screen, tokens
from crtlib.prepare import Prepared, prepare, redact
from crtlib.profiles import check
from crtlib.records import Corpus
from crtlib.train import train


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One training run and its measurements; every field is JSON-safe and part of its hash.

    ``gamma`` is the miss rate given to the redaction policy ``policy``; ``conservative`` decides
    what else is private. ``epsilon`` and ``delta`` are the target of DP-SGD (epsilon' of the
    paper), from which ``noise_multiplier`` is calibrated before the run: see :func:`calibrate`.
    ``sampling_probability``, ``epochs`` and ``normaliser`` are public constants.
    """

    method: str
    model: str
    gamma: float
    seed: int
    # data
    corpus: str = "customersim"
    variety: str = "paper"
    dialogues: int = 300
    heldout: int = 200
    unit: str = "turn"
    policy: str = "regex"
    conservative: str = "regex"
    per: str = "occurrence"
    duplicates: str = "drop"
    dedup: str = "all"
    canaries: int = 10
    copies: int = 20
    vocab_size: int = 512
    # model
    embedding: int = 64
    hidden: int = 64
    layers: int = 1
    heads: int = 4
    context: int = 256
    # training
    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-2
    pub_passes: int = 10
    private_learning_rate: float = 5e-3
    sampling_probability: float = 0.1
    clip_norm: float = 0.1
    normaliser: float = 256.0
    # guarantee
    epsilon: float = 3.0
    delta: float = 8e-5
    accountant: str = "pld"
    neighbouring_relation: str = "add_or_remove"
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        check(method=self.method, model=self.model, gamma=self.gamma, seed=self.seed)
        check(epsilon=self.epsilon, delta=self.delta, dialogues=self.dialogues)

    @property
    def private(self) -> bool:
        """True where a part of the training is DP-SGD."""
        return self.method in ("dpsgd", "crt", "crt_sigma0")

    def canonical(self) -> Experiment:
        """The same run with the fields that it does not read set to fixed values.

        So DP-SGD, which trains on raw text and knows no gamma, is one cell for all gammas.
        """
        base = {f.name: f.default for f in fields(self)}
        unread: dict = {}
        if not self.private:
            names = ("private_learning_rate", "sampling_probability", "clip_norm", "normaliser")
            names += ("epsilon", "delta", "accountant", "neighbouring_relation", "pub_passes")
            unread = {n: base[n] for n in names} | {"noise_multiplier": 0.0}
        if self.method == "dpsgd":
            unread = {n: base[n] for n in ("batch_size", "learning_rate", "pub_passes")}
            unread |= {"gamma": 0.0, "per": base["per"]}
        if self.method == "crt_sigma0":
            unread = {n: base[n] for n in ("epsilon", "delta")} | {"noise_multiplier": 0.0}
        if self.method in ("sgd", "dpsgd"):
            unread["dedup"] = "none"
        return replace(self, **unread)

    @property
    def key(self) -> str:
        """Hash that names the result: equal for equal runs, whatever the order of the fields."""
        told = json.dumps([results.STORE_VERSION, asdict(self.canonical())], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def shape(self) -> models.ModelSpec:
        """The model's shape, without its vocabulary."""
        names = ("embedding", "hidden", "layers", "heads", "context")
        return models.ModelSpec(
            kind=self.model, vocab_size=self.vocab_size, **{n: getattr(self, n) for n in names}
        )


@functools.cache
def _sigma(epsilon, delta, sampling_probability, steps, accountant, relation) -> float:
    from crtlib import ledger

    return ledger.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=sampling_probability,
        steps=steps,
        accountant=accountant,
        neighbouring_relation=relation,
    )


def calibrate(experiment: Experiment) -> Experiment:
    """The canonical experiment with ``noise_multiplier`` filled in from epsilon and delta."""
    experiment = experiment.canonical()
    if experiment.noise_multiplier is not None:
        return experiment
    steps = methods.events(schedule(replace(experiment, noise_multiplier=1.0))).steps
    e = experiment
    sigma = _sigma(
        e.epsilon, e.delta, e.sampling_probability, steps, e.accountant, e.neighbouring_relation
    )
    return replace(experiment, noise_multiplier=sigma)


def schedule(e: Experiment, *, has_public: bool = True) -> list:
    """The phases of an experiment: public constants only."""
    if not e.private:
        return methods.sgd(epochs=e.epochs, batch_size=e.batch_size, learning_rate=e.learning_rate)
    private = methods.Private(
        sampling_probability=e.sampling_probability,
        noise_multiplier=e.noise_multiplier,
        clip_norm=e.clip_norm,
        normaliser=e.normaliser,
        learning_rate=e.private_learning_rate,
    )
    if e.method == "dpsgd":
        return methods.dpsgd(epochs=e.epochs, private=private)
    return methods.crt(
        epochs=e.epochs,
        pub_passes=e.pub_passes,
        public_batch_size=e.batch_size,
        public_learning_rate=e.learning_rate,
        private=private,
        has_public=has_public,
    )


# --- data ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def corpus_of(corpus: str, variety: str, dialogues: int, seed: int) -> Corpus:
    """The simulated corpus, or the first ``dialogues`` dialogues of a JSONL file."""
    if corpus == "customersim":
        from crtlib import customersim

        return customersim.simulate(dialogues, seed, variety)
    loaded = corpora.read_jsonl(corpus)
    return replace(loaded, dialogues=loaded.dialogues[seed * dialogues :][:dialogues])


@dataclass(frozen=True)
class Data:
    """What a run reads: the parts, the tokenizer and the held-out texts (perfectly redacted)."""

    prepared: Prepared
    tokenizer: tokens.Bpe
    canaries: tuple[str, ...]
    recall: float
    valid: dict[str, int]
    test: dict[str, int]


def data(e: Experiment) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    Every source of randomness (people, canaries, misses) follows from ``e.seed``, so that error
    bars over seeds cover all of them. Held-out dialogues come from other seeds than training.
    """
    splits = [
        corpus_of(e.corpus, e.variety, n, 3 * e.seed + k)
        for k, n in enumerate((e.dialogues, e.heldout, e.heldout))
    ]
    secrets = canaries.make(e.canaries, seed=e.seed)
    planted = canaries.insert(splits[0], secrets, copies=e.copies, seed=e.seed)
    points = corpora.points(planted, unit=e.unit)
    everything = screen.everything()
    cautious = screen.policy_by_name(e.conservative)
    pi = screen.miss(screen.policy_by_name(e.policy), e.gamma, e.seed, per=e.per)
    if e.method == "dpsgd":  # raw text, all of it private
        prepared = prepare(points, None, everything, dedup="none")
    elif e.method == "sgd":
        prepared = prepare(points, pi, cautious, dedup="none")
    else:
        prepared = prepare(points, pi, cautious, dedup=e.dedup, duplicates=e.duplicates)
    labels = pi(points)
    overall = screen.recall(points, labels)
    return Data(
        prepared=prepared,
        tokenizer=_tokenizer(planted, cautious, e.vocab_size),
        canaries=secrets,
        recall=float(overall.loc["all", "recall"]),
        valid=_redacted(splits[1], e.unit),
        test=_redacted(splits[2], e.unit),
    )


def _tokenizer(corpus: Corpus, cautious: screen.Policy, vocab_size: int) -> tokens.Bpe:
    """BPE on the turns on which ``pi_c`` is silent: public for every unit and every gamma."""
    turns = corpora.points(corpus, unit="turn")
    silent = [p.text for p, spans in zip(turns, cautious(turns), strict=True) if not spans]
    return tokens.train_bpe(silent, vocab_size=vocab_size)


def _redacted(corpus: Corpus, unit: str) -> dict[str, int]:
    """Unique perfectly redacted texts and how often each occurs: scored once, weighted."""
    count: dict[str, int] = {}
    for point in corpora.points(corpus, unit=unit):
        text = redact(point, point.secrets).text
        count[text] = count.get(text, 0) + 1
    return count


# --- one run ------------------------------------------------------------------------------------


def perplexity(model, tokenizer: tokens.Bpe, texts: dict[str, int]) -> dict[str, float]:
    """Perplexity per token of weighted texts: over all tokens, and over those not ``<MASK>``.

    A model that trained on raw text has never seen ``<MASK>``, so only the second compares it
    with the others.
    """
    sequences = tokenizer.encode(texts)
    scores = models.token_logprobs(model, sequences)
    nll, words = np.zeros(2), np.zeros(2)
    for sequence, logprobs, weight in zip(sequences, scores, texts.values(), strict=True):
        plain = np.array(sequence[1:]) != tokenizer.mask
        for k, kept in enumerate((np.ones_like(plain), plain)):
            nll[k] -= weight * logprobs[kept].sum()
            words[k] += weight * kept.sum()
    return dict(zip(("ppl", "ppl_words"), np.exp(nll / words).tolist(), strict=True))


def run(
    experiment: Experiment, *, checkpoint: str | os.PathLike | None = None, device: str = "cpu"
) -> tuple[list[results.Row], float]:
    """Train, attack, measure: the rows of the long table, and the seconds of training.

    ``experiment`` must be calibrated (:func:`calibrate`): no accountant is imported here.
    """
    e = experiment.canonical()
    if e.noise_multiplier is None:
        raise ValueError("noise_multiplier=None: calibrate the experiment before it runs")
    d = data(e)
    tokenizer = d.tokenizer
    parts = {
        "public": tokenizer.encode(p.text for p in d.prepared.public),
        "private": tokenizer.encode(p.text for p in d.prepared.private),
    }
    model = models.build(replace(e.shape(), vocab_size=tokenizer.vocab_size), e.seed).to(device)
    done = train(
        model,
        schedule(e, has_public=bool(parts["public"])),
        parts,
        seed=e.seed,
        on_epoch=lambda _, m: perplexity(m, tokenizer, d.valid),
        checkpoint=checkpoint,
    )
    rows: list[results.Row] = [
        (f"valid_{name}", h["epoch"], 0, h[name])
        for h in done.history
        for name in ("ppl", "ppl_words")
    ]
    facts = {f"test_{k}": v for k, v in perplexity(model, tokenizer, d.test).items()}
    facts |= {"n_public": len(parts["public"]), "n_private": len(parts["private"])}
    facts |= {"duplicates": d.prepared.duplicates, "missed_secrets": d.prepared.missed_secrets}
    facts |= {"recall": d.recall, "steps": sum(event.steps for event in done.events)}
    rows += [(name, e.epochs, 0, float(value)) for name, value in facts.items()]
    if d.canaries:
        exposed = exposure.canary_exposure(model, tokenizer, d.canaries)
        rows += [("exposure", e.epochs, k, float(x)) for k, x in enumerate(exposed)]
    return rows, done.seconds


# --- a sweep ------------------------------------------------------------------------------------


def _cell(experiment: Experiment, checkpoint: str | None, device: str, profile: str):
    torch.set_num_threads(1)  # two processes beat two threads at these sizes
    rows, seconds = run(experiment, checkpoint=checkpoint, device=device)
    return rows, results.provenance(profile=profile, device=device, seconds=seconds)


def sweep(
    experiments: Iterable[Experiment],
    store: results.Store,
    *,
    profile: str = "custom",
    workers: int = 2,
    executor: Executor | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> pd.DataFrame:
    """Run what the store does not hold yet, then return the table of all of ``experiments``.

    Each finished run is written atomically by this process, whatever the executor, so a kill
    loses at most the runs in flight, and those go on from their checkpoints. Any
    ``concurrent.futures.Executor`` serves (a Dask client's too); by default ``workers`` processes.
    """
    wanted = {e.key: e for e in map(calibrate, experiments)}
    missing = {key: e for key, e in wanted.items() if not store.has(key)}
    if missing:
        own = None
        if executor is None:
            context = multiprocessing.get_context("spawn")
            executor = own = ProcessPoolExecutor(workers, mp_context=context)
        bar = tqdm(total=len(missing), desc="runs", unit="run", disable=not progress)
        try:
            futures = {}
            for key, e in sorted(missing.items(), key=lambda item: -_cost(item[1])):
                checkpoint = str(store.checkpoint(key))
                futures[executor.submit(_cell, e, checkpoint, device, profile)] = key
            for future in as_completed(futures):
                key = futures[future]
                rows, provenance = future.result()
                store.write(key, asdict(missing[key]), provenance, rows)
                store.checkpoint(key).unlink(missing_ok=True)
                bar.update()
        finally:
            bar.close()
            if own:
                own.shutdown(cancel_futures=True)
    return store.table(list(wanted))


def _cost(e: Experiment) -> float:
    """Rough relative cost, so that the long runs start first."""
    return e.dialogues * e.epochs * e.hidden * e.layers * (3 if e.model == "gpt2" else 1)
