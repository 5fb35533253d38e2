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
from crtlib.experiments import SIMULATED, Experiment, schedule
from crtlib.prepare import Prepared, prepare, redact
from crtlib.records import MASK, Corpus, Point, Secret
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
    if corpus == SIMULATED:
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
    valid: dict[Point, int]
    test: dict[Point, int]

    def misses(self, flagged: list[tuple[Secret, ...]]) -> ledger.MissRate:
        """Miss rate of a policy's spans, counted on the corpus' own labelled secrets.

        Canaries do not count: we planted them, and a policy is easily right about twenty copies.
        Bounds are at 97.5 %, so that those of two policies hold together with 95 %. Where nothing
        is labelled nothing is known, and the rate is 1.
        """
        from crtlib import ledger

        own = [k for k, p in enumerate(self.points) if not p.user.startswith(canaries.USER)]
        overall = screen.recall([self.points[k] for k in own], [flagged[k] for k in own]).loc["all"]
        n = int(overall["secrets"])
        if n == 0:
            return ledger.MissRate(1.0)
        return ledger.MissRate.measured(n - int(overall["caught"]), n, confidence=0.975)


def data(e: Experiment) -> Data:
    """Corpus with canaries, screened and split as the method asks; tokenizer; held-out texts.

    Raises ``ValueError`` for the policy "oracle" on a corpus without labels: it would find nothing.
    Every source of randomness (people, canaries, misses) follows from ``e.seed``, so that error
    bars over seeds cover all of them.
    """
    base, valid, test = splits(e.corpus, e.variety, e.dialogues, e.heldout, e.seed)
    if "oracle" in (e.policy, e.conservative) and not any(t.secrets for t in base.turns()):
        raise ValueError("policy='oracle': needs labelled secrets, this corpus has none")
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
        valid=_heldout(valid, e),
        test=_heldout(test, e),
    )


def _tokenizer(corpus: Corpus, cautious: screen.Policy, vocab_size: int) -> tokens.Bpe:
    """BPE on the turns that are public for every unit, gamma and neighbouring dataset: those on
    which ``pi_c`` is silent and which hold no ``<MASK>`` (one may stand for a secret)."""
    turns = corpora.points(corpus, unit="turn")
    labels = cautious(turns)
    silent = [
        p.text for p, spans in zip(turns, labels, strict=True) if not spans and MASK not in p.text
    ]
    return tokens.train_bpe(silent, vocab_size=vocab_size)


def _heldout(corpus: Corpus, e: Experiment) -> dict[Point, int]:
    """Unique held-out points and how often each occurs: scored once, weighted.

    Perfectly redacted, as a model that trained on redacted text will be used; raw for DP-SGD,
    which has never read ``<MASK>``.
    """
    count: dict[Point, int] = {}
    for point in corpora.points(corpus, unit=e.unit):
        done = point if e.method == "dpsgd" else redact(point, point.secrets)
        done = replace(done, id="", user="")
        count[done] = count.get(done, 0) + 1
    return count


def perplexity(model, tokenizer: tokens.Bpe, points: dict[Point, int]) -> dict[str, float]:
    """Perplexity per token of weighted points: over all tokens (``ppl``), and over those that are
    neither ``<MASK>`` nor part of a labelled secret (``ppl_words``).

    Only the second compares a model of raw text with one of redacted text: each reads the text in
    the form that it was trained on, and both are scored on the same words.
    """
    sequences, secret = tokenizer.encode_marked(points)
    scores = models.token_logprobs(model, sequences)
    nll, words = np.zeros(2), np.zeros(2)
    for logprobs, hidden, weight in zip(scores, secret, points.values(), strict=True):
        plain = ~np.array(hidden[1:])
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

        gamma and delta2 are the misses counted on labels, as upper bounds of what was measured,
        not the rates that were hoped for; delta2 is 0 for the policy that flags everything.
        """
        from crtlib import confidentiality, ledger

        event = methods.events(self.schedule)
        if event is None or event.noise_multiplier == 0:
            return None
        known = "the number of private points"
        options = {"accountant": e.accountant, "neighbouring_relation": e.neighbouring_relation}
        if e.method == "dpsgd":
            return ledger.Guarantee(
                ledger.epsilon(event, delta=e.delta, **options),
                delta=e.delta,
                unit=f"one {e.unit}",
                neighbours=e.neighbouring_relation,
                accountant=e.accountant,
                public=f"{known}, and the vocabulary, learned from turns without a find of pi_c",
            )
        if e.dedup != "none":
            known += ", and which points are second occurrences"
        certain = e.conservative == "everything"
        return confidentiality.crt_guarantee(
            event,
            gamma=self.data.misses(self.data.pi),
            delta2=ledger.MissRate(0.0) if certain else self.data.misses(self.data.pi_c),
            delta=e.delta,
            unit=e.unit,
            public=known,
            **options,
        )


def fit(
    e: Experiment,
    *,
    prepared: Data | None = None,
    checkpoint: str | os.PathLike | None = None,
    device: str = "cpu",
    secure: bool = False,
    progress: bool = False,
) -> Fitted:
    """Prepare the data and train; perplexity on the validation texts after each epoch.

    ``e`` must be calibrated (:func:`calibrate`): no accountant is imported here. ``prepared`` is
    ``data(e)`` where the caller has it already.
    """
    e = e.canonical()
    if e.noise_multiplier is None:
        raise ValueError("noise_multiplier=None: calibrate the experiment before it runs")
    d = prepared or data(e)
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
        secure=secure,
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
