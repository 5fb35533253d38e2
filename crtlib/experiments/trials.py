"""One trial: the training of an experiment, the measurements, and what is kept.

>>> from crtlib.experiments.crt import Experiment
>>> e = Experiment(method="sgd", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10,
...                epochs=1, canaries=0, embedding=8, hidden=8).canonical()
>>> sorted(m for m, epoch, item, value in measure(e, fit(e)) if m.startswith("test_"))
['test_acc', 'test_acc_words', 'test_ppl', 'test_ppl_words']
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.torch import load_model, save_model
from torch import nn

from crtlib import files
from crtlib.accounting import selective
from crtlib.accounting.events import SampledGaussian
from crtlib.attacks import exposure, membership
from crtlib.experiments import data as data_studies
from crtlib.experiments import store
from crtlib.experiments.crt import Experiment, schedule
from crtlib.experiments.data import Data
from crtlib.models import scoring
from crtlib.models.build import build, pretrained
from crtlib.models.spec import ModelSpec
from crtlib.text import corpora, units
from crtlib.text import tokenizer as tokenizer_module
from crtlib.text.records import Point
from crtlib.text.tokenizer import Bpe
from crtlib.training import methods
from crtlib.training.loop import Run, train
from crtlib.training.phases import Phase

if TYPE_CHECKING:
    from crtlib.accounting.guarantees import Guarantee


def utility(model, tokenizer: Bpe, points: dict[Point, int]) -> dict[str, float]:
    """Perplexity and top-1 accuracy per token of weighted points: over all tokens (``ppl``,
    ``acc``), and over those that are neither ``<MASK>`` nor part of a labelled secret
    (``ppl_words``, ``acc_words``).

    Only the second kind compares a model of raw text with one of redacted text: each reads the
    text in the form that it was trained on, and both are scored on the same words.
    """
    sequences, secret = tokenizer.encode_marked(points)
    scores = scoring.token_scores(model, sequences)
    sums = np.zeros((2, 3))  # negative log-likelihood, right guesses, tokens
    for logprobs, ranks, hidden, weight in zip(*scores, secret, points.values(), strict=True):
        plain = ~np.array(hidden[1:])
        for total, kept in zip(sums, (np.ones_like(plain), plain), strict=True):
            right = (ranks[kept] == 0).sum()
            total += weight * np.array([-logprobs[kept].sum(), right, kept.sum()])
    (ppl, ppl_words), (acc, acc_words) = np.exp(sums[:, 0] / sums[:, 2]), sums[:, 1] / sums[:, 2]
    named = {"ppl": ppl, "ppl_words": ppl_words, "acc": acc, "acc_words": acc_words}
    return {name: float(value) for name, value in named.items()}


UTILITY = ("ppl", "ppl_words", "acc", "acc_words")


@dataclass(frozen=True)
class Fitted:
    """A trained model with what it read and what was done."""

    run: Run
    data: Data
    schedule: list[Phase]
    shape: ModelSpec

    def guarantee(self, e: Experiment) -> Guarantee | None:
        """The Bayesian confidentiality of CRT, the privacy of DP-SGD, or None without noise.

        gamma and delta2 are the misses counted on labels, as upper bounds of what was measured,
        not the rates that were hoped for; delta2 is 0 for the policy that flags everything.
        """
        from crtlib.accounting import confidentiality, ledger
        from crtlib.accounting.guarantees import Guarantee, MissRate

        event = self.run.events  # what ran: a secure phase that was run again counts twice
        if not event or not all(x.noise_multiplier for x in event):
            return None
        if e.method == "selective":
            return selective.guarantee(
                event, gamma=self.data.misses("pi"), delta=e.delta, unit=e.unit
            )
        known = "the number of private points"
        options = {"accountant": e.accountant, "neighbouring_relation": e.neighbouring_relation}
        if e.method == "dpsgd":
            return Guarantee(
                ledger.epsilon(event, delta=e.delta, **options),
                delta=e.delta,
                unit=f"one {e.unit}",
                neighbours=e.neighbouring_relation,
                accountant=e.accountant,
                public=f"{known}, and the vocabulary, learned from turns that screening let pass",
            )
        if e.dedup != "none":
            known += ", and which points are second occurrences"
        if e.learned:
            known += (
                "; besides, the text that taught the policies; assumed: masking a secret changes "
                "no label elsewhere (tagger.label_stability counts how often it does)"
            )
        certain = e.conservative == "everything"
        return confidentiality.crt_guarantee(
            event,
            gamma=self.data.misses("pi"),
            delta2=MissRate(0.0) if certain else self.data.misses("pi_c"),
            delta=e.delta,
            unit=e.unit,
            public=known,
            **options,
        )


PUBLIC_DIALOGUES = 1000
"""At most so many dialogues of a public corpus initialise a model."""


def _initial(e: Experiment, tokenizer: Bpe) -> tuple[nn.Module, ModelSpec]:
    """The model before it reads the corpus: random weights, those of a pre-trained model, or
    weights that were trained here on public text."""
    if e.brings_vocabulary:
        model, shape = pretrained(e.init, vocab_size=tokenizer.vocab_size)
        if shape.kind != e.model:
            raise ValueError(f"model={e.model!r}: init={e.init!r} is a {shape.kind}")
        return model, shape
    shape = replace(e.shape(), vocab_size=tokenizer.vocab_size)
    model = build(shape, e.seed)
    if e.init != "random":
        model.load_state_dict(_pretrained(e.init, e.init_epochs, shape, e.seed, tokenizer))
    return model, shape


@functools.lru_cache(maxsize=4)
def _pretrained(corpus: str, epochs: int, shape: ModelSpec, seed: int, tokenizer):
    """Weights after ordinary training on a public corpus, read with the run's own vocabulary."""
    public = corpora.load(corpus, limit=PUBLIC_DIALOGUES)
    texts = (p.text for p in units.points(public, unit="turn"))
    sequences = [ids[: shape.context] for ids in tokenizer.encode(texts)]
    rate = {"gpt2": 3e-3}.get(shape.kind, 1e-2)
    phases = methods.sgd(epochs=epochs, batch_size=32, learning_rate=rate)
    model = build(shape, seed)
    return train(model, phases, {"public": sequences}, seed=seed).model.state_dict()


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
    ``inputs.data(e)`` where the caller has it already.
    """
    e = e.canonical()
    if e.noise_multiplier is None:
        raise ValueError("noise_multiplier=None: calibrate the experiment before it runs")
    d = prepared or data_studies.data(e)
    parts = {
        "public": d.tokenizer.encode(p.text for p in d.prepared.public),
        "private": d.tokenizer.encode(p.text for p in d.prepared.private),
    }
    if e.private and not parts["private"]:
        raise ValueError(
            f"policy={e.policy!r}: no point is private, so there is nothing to train on with noise"
        )
    flags = None
    if e.method == "selective":  # what pi finds is private, token by token; the text stays raw
        found = [replace(p, secrets=spans) for p, spans in zip(d.points, d.pi, strict=True)]
        flags = {"private": d.tokenizer.encode_marked(found)[1]}
    model, shape = _initial(e, d.tokenizer)
    phases = schedule(e, has_public=bool(parts["public"]))
    done = train(
        model.to(device),
        phases,
        parts,
        flags=flags,
        seed=e.seed,
        secure=secure,
        progress=progress,
        on_epoch=lambda _, m: utility(m, d.tokenizer, d.valid),
        checkpoint=checkpoint,
    )
    return Fitted(done, d, phases, shape)


def measure(e: Experiment, fitted: Fitted) -> list[store.Row]:
    """Utility, sizes, membership inference and the canary attack: rows of the long table."""
    d, model = fitted.data, fitted.run.model
    rows: list[store.Row] = [
        (f"valid_{name}", int(h["epoch"]), 0, h[name])
        for h in fitted.run.history
        for name in UTILITY
    ]
    facts = {f"test_{k}": v for k, v in utility(model, d.tokenizer, d.test).items()}
    facts |= {"n_public": len(d.prepared.public), "n_private": len(d.prepared.private)}
    facts |= {"duplicates": d.prepared.duplicates, "missed_secrets": d.prepared.missed_secrets}
    facts |= {"steps": sum(event.steps for event in fitted.run.events)}
    facts |= {"private_updates": fitted.run.updates["private"]}
    for policy in ("pi", "pi_c"):
        rate = d.misses(policy)
        facts |= {f"{policy}_misses": rate.misses or 0, f"{policy}_labelled": rate.labelled or 0}
    rows += [(name, e.epochs, 0, float(value)) for name, value in facts.items()]
    if not np.isfinite(facts["test_ppl"]):
        return rows  # it diverged: no attack has anything to ask
    attacked = membership.probe(d.points, d.read, d.others, seed=e.seed)
    inferred = membership.measure(model, d.tokenizer, attacked, seed=e.seed)
    rows += [(name, e.epochs, 0, value) for name, value in inferred]
    if d.canaries:
        exposed = exposure.canary_exposure(model, d.tokenizer, d.canaries)
        rows += [("exposure", e.epochs, k, float(x)) for k, x in enumerate(exposed)]
    return rows


def save(fitted: Fitted, folder: str | os.PathLike) -> None:
    """Write model, shape, tokenizer and what was done, each atomically, for :func:`load` and
    :func:`restore`; ``run.json`` comes last, so where it stands the folder is whole."""
    folder, run = Path(folder), fitted.run
    (folder / "run.json").unlink(missing_ok=True)  # of an earlier model: not whole any more
    with files.replacing(folder / "model.safetensors") as part:
        save_model(run.model, str(part))
    fitted.data.tokenizer.save(folder / "tokenizer.json")
    files.write_text(folder / "model.json", json.dumps(asdict(fitted.shape), indent=1) + "\n")
    done = {"events": [asdict(e) for e in run.events], "history": run.history}
    done |= {"updates": dict(run.updates), "seconds": run.seconds}
    files.write_text(folder / "run.json", json.dumps(done) + "\n")


def load(folder: str | os.PathLike) -> tuple[nn.Module, Bpe]:
    """A model and its tokenizer, as written by :func:`save`."""
    folder = Path(folder)
    shape = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    model = build(ModelSpec(**shape), 0)
    load_model(model, str(folder / "model.safetensors"))
    return model, tokenizer_module.load(folder / "tokenizer.json")


def restore(e: Experiment, folder: str | os.PathLike) -> Fitted | None:
    """The finished training of ``e`` that :func:`save` wrote to ``folder``, or None."""
    folder = Path(folder)
    if not (folder / "run.json").exists():
        return None
    done = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    model, tokenizer = load(folder)
    d = data_studies.data(e)
    if tokenizer.fingerprint != d.tokenizer.fingerprint:
        raise ValueError(f"{folder}: its tokenizer is not the one of this experiment's data")
    events = [SampledGaussian(**event) for event in done["events"]]
    kept = {"history": done["history"], "seconds": done["seconds"]}
    run = Run(model, events, updates=Counter(done["updates"]), **kept)
    phases = schedule(e, has_public=bool(d.prepared.public))
    shape = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    return Fitted(run, d, phases, ModelSpec(**shape))
