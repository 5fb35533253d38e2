"""One trial: the data of an experiment, the training, the measurements, and what is kept.

>>> from crtlib.experiments import Experiment
>>> d = data(Experiment(method="crt", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10))
>>> len(d.canaries), d.misses(d.pi).misses, MASK in "".join(p.text for p in d.prepared.public)
(10, 0, False)
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.torch import load_model, save_model
from torch import nn

from crtlib import (
    canaries,
    corpora,
    exposure,
    methods,
    models,
    results,
    screen,
    storage,
    tokens,
)
from crtlib.experiments import Experiment, schedule
from crtlib.prepare import Prepared, prepare, redact
from crtlib.records import Corpus, Point, Secret
from crtlib.train import Phase, Run, train

if TYPE_CHECKING:
    from crtlib import ledger


@functools.lru_cache(maxsize=2)
def splits(corpus: str, variety: str, dialogues: int, heldout: int, seed: int) -> list[Corpus]:
    """Training, validation and test dialogues: simulated, or cut from a JSONL file in its order.

    Simulated splits differ with the seed; those of a file do not. Raises ``ValueError`` where the
    file is too short.
    """
    sizes = (dialogues, heldout, heldout)
    if corpus == "customersim":
        from crtlib import customersim

        return [customersim.simulate(n, 3 * seed + k, variety) for k, n in enumerate(sizes)]
    whole = corpora.read_jsonl(corpus)
    if len(whole) < sum(sizes):
        raise ValueError(
            f"dialogues={dialogues}: with {2 * heldout} held out, {corpus!r} must have at least "
            f"{sum(sizes)} dialogues, it has {len(whole)}"
        )
    ends = np.cumsum(sizes)
    return [
        replace(whole, dialogues=whole.dialogues[end - n : end])
        for n, end in zip(sizes, ends, strict=True)
    ]


@dataclass(frozen=True)
class Data:
    """What a run reads: the parts, the tokenizer and the held-out texts (perfectly redacted)."""

    points: tuple[Point, ...]
    pi: list[tuple[Secret, ...]]
    pi_c: list[tuple[Secret, ...]]
    prepared: Prepared
    tokenizer: tokens.Bpe
    canaries: tuple[str, ...]
    valid: dict[str, int]
    test: dict[str, int]

    def misses(self, flagged: list[tuple[Secret, ...]]) -> ledger.MissRate:
        """Miss rate of a policy's spans, counted on the labelled secrets of the points."""
        from crtlib import ledger

        overall = screen.recall(self.points, flagged).loc["all"]
        n = int(overall["secrets"])
        if n == 0:  # nothing is labelled, so nothing is known
            return ledger.MissRate(1.0)
        return ledger.MissRate.measured(n - int(overall["caught"]), n)


def data(e: Experiment) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    Every source of randomness (people, canaries, misses) follows from ``e.seed``, so that error
    bars over seeds cover all of them.
    """
    base, valid, test = splits(e.corpus, e.variety, e.dialogues, e.heldout, e.seed)
    secrets = canaries.make(e.canaries, seed=e.seed) if e.canaries else ()
    planted = canaries.insert(base, secrets, copies=e.copies, seed=e.seed)
    points = corpora.points(planted, unit=e.unit)
    conservative = screen.policy_by_name(e.conservative)
    pi = screen.miss(screen.policy_by_name(e.policy), e.gamma, e.seed, per=e.per)
    flagged, cautious = pi(points), conservative(points)
    if e.method == "dpsgd":  # raw text, all of it private
        prepared = prepare(points, None, screen.everything(), dedup="none")
    else:
        dedup = "none" if e.method == "sgd" else e.dedup
        prepared = prepare(
            points, lambda _: flagged, lambda _: cautious, dedup=dedup, duplicates=e.duplicates
        )
    return Data(
        points=points,
        pi=flagged,
        pi_c=cautious,
        prepared=prepared,
        tokenizer=_tokenizer(planted, conservative, e.vocab_size),
        canaries=secrets,
        valid=_redacted(valid, e.unit),
        test=_redacted(test, e.unit),
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


@dataclass(frozen=True)
class Fitted:
    """A trained model with what it read and what was done."""

    run: Run
    data: Data
    schedule: list[Phase]
    shape: models.ModelSpec

    def guarantee(self, e: Experiment) -> ledger.Guarantee | None:
        """The Bayesian confidentiality of CRT, the privacy of DP-SGD, or None without noise.

        gamma and delta2 are the misses counted on the labels of ``self.data``, as the 95 % upper
        bounds of what was measured, not the rates that were hoped for.
        """
        from crtlib import ledger

        event = methods.events(self.schedule)
        if event is None or event.noise_multiplier == 0:
            return None
        options = {
            "accountant": e.accountant,
            "neighbouring_relation": e.neighbouring_relation,
        }
        told = {"delta": e.delta, "accountant": e.accountant}
        told |= {"unit": f"point ({e.unit})", "neighbours": e.neighbouring_relation}
        known = "the number of private points"
        if e.method == "dpsgd":
            spent = ledger.epsilon(event, delta=e.delta, **options)
            return ledger.Guarantee(spent, public=known, **told)
        gamma, delta2 = self.data.misses(self.data.pi), self.data.misses(self.data.pi_c)
        bound = min(1.0, gamma.upper_bound)
        spent = ledger.bayes_at_fixed_delta(event, gamma=bound, delta=e.delta, **options)
        if e.dedup != "none":
            known += ", and which points are second occurrences"
        # delta2 is added in full: what both policies miss is learned without noise.
        told["delta"] = e.delta + delta2.upper_bound
        return ledger.Guarantee(
            spent,
            kind="Bayesian confidentiality",
            gamma=gamma,
            delta2=delta2,
            public=known,
            **told,
        )


def fit(
    e: Experiment,
    *,
    checkpoint: str | os.PathLike | None = None,
    device: str = "cpu",
    secure_noise: bool = False,
    progress: bool = False,
) -> Fitted:
    """Prepare the data and train; perplexity on the validation texts after each epoch.

    ``e`` must be calibrated (:func:`calibrate`): no accountant is imported here.
    """
    e = e.canonical()
    if e.noise_multiplier is None:
        raise ValueError("noise_multiplier=None: calibrate the experiment before it runs")
    d = data(e)
    parts = {
        "public": d.tokenizer.encode(p.text for p in d.prepared.public),
        "private": d.tokenizer.encode(p.text for p in d.prepared.private),
    }
    shape = replace(e.shape(), vocab_size=d.tokenizer.vocab_size)
    model = models.build(shape, e.seed)
    phases = schedule(e, has_public=bool(parts["public"]))
    done = train(
        model.to(device),
        phases,
        parts,
        seed=e.seed,
        secure_noise=secure_noise,
        progress=progress,
        on_epoch=lambda _, m: perplexity(m, d.tokenizer, d.valid),
        checkpoint=checkpoint,
    )
    return Fitted(done, d, phases, shape)


def measure(e: Experiment, fitted: Fitted) -> list[results.Row]:
    """Utility, sizes and the canary attack: rows of the long table."""
    d, model = fitted.data, fitted.run.model
    rows: list[results.Row] = [
        (f"valid_{name}", int(h["epoch"]), 0, h[name])
        for h in fitted.run.history
        for name in ("ppl", "ppl_words")
    ]
    facts = {f"test_{k}": v for k, v in perplexity(model, d.tokenizer, d.test).items()}
    facts |= {"n_public": len(d.prepared.public), "n_private": len(d.prepared.private)}
    facts |= {"duplicates": d.prepared.duplicates, "missed_secrets": d.prepared.missed_secrets}
    facts |= {"steps": sum(event.steps for event in fitted.run.events)}
    facts |= {"gamma_measured": d.misses(d.pi).rate, "delta2_measured": d.misses(d.pi_c).rate}
    rows += [(name, e.epochs, 0, float(value)) for name, value in facts.items()]
    if d.canaries:
        exposed = exposure.canary_exposure(model, d.tokenizer, d.canaries)
        rows += [("exposure", e.epochs, k, float(x)) for k, x in enumerate(exposed)]
    return rows


def save(fitted: Fitted, folder: str | os.PathLike) -> None:
    """Write model, shape and tokenizer, each atomically, for :func:`load`."""
    folder = Path(folder)
    with storage.replacing(folder / "model.safetensors") as part:
        save_model(fitted.run.model, str(part))
    fitted.data.tokenizer.save(folder / "tokenizer.json")
    storage.write_text(folder / "model.json", json.dumps(asdict(fitted.shape), indent=1) + "\n")


def load(folder: str | os.PathLike) -> tuple[nn.Module, tokens.Bpe]:
    """A model and its tokenizer, as written by :func:`save`."""
    folder = Path(folder)
    shape = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    model = models.build(models.ModelSpec(**shape), 0)
    load_model(model, str(folder / "model.safetensors"))
    return model, tokens.load(folder / "tokenizer.json")
