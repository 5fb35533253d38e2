"""Secret protection for a corpus of one's own: who holds which secret, the plan, the training.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate(20, 0), home / "c.jsonl")
>>> made = make(home / "c.jsonl", home / "plan", policy="regex:customersim", by="user",
...             posterior=0.1, scales=(5.0,), steps=20, batch_size=8)
>>> made.summary["secrets"], made.summary["by"]
(20, 'user')
>>> trained = train_with(home / "c.jsonl", home / "plan", out=home / "model", epochs=1)
>>> bool((trained.secrets.posterior <= trained.secrets.promised).all())
True
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets as operating_system
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from torch import nn

from crtlib import files, outputs
from crtlib.accounting import secrets
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secrets import Plan
from crtlib.checks import check
from crtlib.experiments import record
from crtlib.experiments.own import work
from crtlib.experiments.record import Meter
from crtlib.models import pretrained
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.release import gate
from crtlib.screening import holders
from crtlib.screening.by_name import digest, plain, policy_by_name
from crtlib.screening.corpus import batches
from crtlib.screening.holders import By, Holders
from crtlib.screening.rates import Rate, assumed
from crtlib.text import corpora, units
from crtlib.text.records import Corpus, Point
from crtlib.text.tokenizer import Bpe, adapt, train_bpe
from crtlib.training import kept, methods
from crtlib.training.devices import device_by_name
from crtlib.training.loop import Run, train
from crtlib.training.methods import Constants

BATCH, EPOCHS = 64, 8
"""Batch size and passes over the text of a plan, where they are not given."""
PUBLIC = ("plan.json", "weights.parquet")
KNOWN = "which points hold which secret, and the weights"


@dataclass(frozen=True)
class Made:
    """A plan of a corpus: its ``summary`` without names, and the ``table`` of all that were tried,
    with what ``why`` the one was taken for."""

    plan: Plan
    summary: dict[str, Any]
    table: pd.DataFrame
    why: str

    def text(self) -> str:
        """For a terminal."""
        shown = self.table.to_string(index=False, float_format="{:.4g}".format)
        lines = [
            f"secrets {self.summary['secrets']:,} ({self.summary['by']}s) · "
            f"{self.summary['held']:,} of {self.summary['examples']:,} points hold one",
            *([shown, self.why] if len(self.table) > 1 else []),
            f"noise {self.plan.noise_multiplier:.4g} · {self.plan.steps:,} steps of about "
            f"{self.plan.batch_size:g} · {100 * self.plan.kept:.1f} % of the text is kept",
        ]
        if self.summary["unseen"]:
            lines.append(f"note: {self.summary['unseen']:,} secrets stand nowhere in the text")
        return "\n".join(lines)


def make(
    corpus: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    table: str | os.PathLike[str] | None = None,
    policy: str | None = None,
    by: By = "value",
    unit: str = "turn",
    prior: float = 0.001,
    posterior: float | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
    scales: Sequence[float] = (2.0, 5.0, 10.0, math.inf),
    take: float | None = None,
    targets: str = "sqrt",
    accounting: str = "kl",
    neighbouring_relation: str = "reference",
    force: bool = False,
) -> Made | None:
    """Who holds which secret in ``corpus``, and the plan under which each keeps its promise, in the
    folder ``out``; None where it is there already, made of the same.

    The secrets are the values of ``table`` (``user,secret[,kind][,p][,r]``) or what ``policy``
    flags; ``by`` says what gets one promise. Of several ``scales`` the one that ``take`` names is
    written, or else that which keeps most text for its noise. ``plan.json`` and
    ``weights.parquet`` (with pseudonyms) are public files, all others private.
    """
    if (table is None) == (policy is None):
        raise ValueError("--secrets, --from-policy: give exactly one of the two")
    inputs = {"corpus": corpus} | ({"secrets": table} if table is not None else {})
    named = {"policy": plain(policy), "policy_sha256": digest(policy)} if policy else {}
    options: dict[str, Any] = {**named, "by": by, "unit": unit, "prior": prior}
    options |= {"posterior": posterior, "steps": steps, "batch_size": batch_size}
    options |= {"scales": [str(s) for s in scales], "take": str(take), "targets": targets}
    options |= {"accounting": accounting, "neighbouring_relation": neighbouring_relation}
    recipe: dict[str, Any] = {"command": "protect", "options": options, "inputs": inputs,
                              "key": "key"}  # fmt: skip
    if outputs.up_to_date(out, **recipe):
        return None
    outputs.check_folder(out, inputs=list(inputs.values()), force=force)
    found = _holders(corpus, table, policy, by, unit, prior, posterior)
    matrix, n = found.matrix(), len(found.examples)
    batch = min(BATCH, max(1, n // 10)) if batch_size is None else batch_size
    count = max(1, math.ceil(EPOCHS * n / batch)) if steps is None else steps
    check("steps", count, count >= 1, "at least 1")
    how: dict[str, Any] = {"steps": count, "batch_size": batch, "targets": targets}
    how |= {"accounting": accounting, "neighbouring_relation": neighbouring_relation}
    plans = [
        secrets.plan(matrix, np.array(found.prior), np.array(found.posterior), scale=s, **how)
        for s in scales
    ]
    chosen, why = _taken(plans, take)
    summary = _summary(chosen, found, matrix) | {"unit": unit, "by": by}
    summary["corpus_sha256"] = corpora.corpus_hash(corpus)
    with outputs.staged(out, public=PUBLIC, force=force, **recipe) as part:
        _write(part, chosen, found, summary, outputs.key_in(part / "key"))
    return Made(chosen, summary, secrets.compared(plans), why)


def _holders(
    corpus: str | os.PathLike[str],
    table: str | os.PathLike[str] | None,
    policy: str | None,
    by: By,
    unit: str,
    prior: float,
    posterior: float | None,
) -> Holders:
    points = _points(corpus, unit)
    if table is not None:
        return holders.of_file(points, table, by=by, prior=prior, posterior=posterior)
    if posterior is None:
        raise ValueError("--posterior: must be given with --from-policy")
    pi = policy_by_name(policy or "")
    return holders.of_policy(points, pi, by=by, prior=prior, posterior=posterior)


def _points(corpus: str | os.PathLike[str], unit: str) -> Iterator[tuple[Point, ...]]:
    for batch in batches(corpora.dialogues(corpus)):
        yield units.points(Corpus("", tuple(batch)), unit)


def _taken(plans: Sequence[Plan], take: float | None) -> tuple[Plan, str]:
    """The plan that is written, and why."""
    if take is not None:
        chosen = next((p for p in plans if p.scale == take), None)
        if chosen is None:
            scales = ", ".join(f"{p.scale:g}" for p in plans)
            raise ValueError(f"--take: {take:g} must be one of {scales}")
        return chosen, f"take {take:g}: as you say"
    best = max(plans, key=lambda p: p.kept / p.noise_multiplier)
    most = max(plans, key=lambda p: p.scale)
    noise = best.noise_multiplier / most.noise_multiplier
    lost = 100 * (most.kept - best.kept)
    return best, (
        f"take {best.scale:g}: {noise:.2g} times the noise of {most.scale:g} for {lost:.1f} % of "
        "the text; --take names another"
    )


def _summary(plan: Plan, found: Holders, matrix: sparse.csr_array) -> dict[str, Any]:
    held = int((np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0).sum())
    plain = {k: v if v != math.inf else "inf" for k, v in plan.summary().items()}
    rename = {"rounds": "steps", "certified_gap": "gap"}
    plain = {rename.get(k, k): v for k, v in plain.items()}
    pairs = sorted({(float(p), float(r)) for p, r in zip(plan.prior, plan.promised, strict=True)})
    return {"schema": "crtlib/plan/1", **plain, "binding": len(plan.binding), "held": held,
            "unseen": found.unseen, "promises": pairs}  # fmt: skip


def _name(key: bytes, kind: str, value: str) -> str:
    digest = hmac.new(key, f"{kind}:{value}".encode(), hashlib.sha256).hexdigest()[:16]
    return {"id": "p", "secret": "s"}[kind] + digest


def _write(part: Path, plan: Plan, found: Holders, summary: dict[str, Any], key: bytes) -> None:
    examples = [_name(key, "id", e) for e in found.examples]
    names = [_name(key, "secret", s) for s in found.secrets]
    tables = plan.tables(examples, names)
    weights = tables["weights"].sort_values("example")
    weights.to_parquet(part / "weights.parquet", index=False)
    columns = {"prior": "p", "promised": "r", "posterior_kl": "posterior"}
    told = tables["secrets"].rename(columns=columns)[["secret", "p", "r", "posterior", "examples"]]
    told.to_parquet(part / "secrets.parquet", index=False)
    pairs = [(names[k], examples[i]) for k, i in found.pairs]
    holds = pd.DataFrame(pairs, columns=["secret", "example"])
    holds.to_parquet(part / "holders.parquet", index=False)
    clear = pd.DataFrame({"secret": names, "name": found.secrets})
    clear.to_parquet(part / "names.parquet", index=False)
    text = json.dumps(outputs.keyed(summary, key), indent=1, allow_nan=False) + "\n"
    (part / "plan.json").write_text(text, encoding="utf-8")


# --------------------------------------------------------------------------- training with it
@dataclass(frozen=True)
class Trained:
    """A model trained by a plan. ``secrets`` has a row each: what was promised, and the
    ``posterior`` that was accounted for what was done; it names them by pseudonym."""

    run: Run
    plan: Plan
    summary: dict[str, Any]
    secrets: pd.DataFrame

    @property
    def holds(self) -> bool:
        """Whether every promise is kept; training that was cut short may have spent more."""
        return bool((self.secrets.posterior <= self.secrets.promised).all())

    @property
    def promise(self) -> str:
        """In words, for all secrets together."""
        if not self.holds:
            broken = int((self.secrets.posterior > self.secrets.promised).sum())
            return f"void: {broken} secrets are above their promise"
        label: Any = (self.secrets.posterior / self.secrets.promised).idxmax()
        worst = self.secrets.loc[label]
        what = {"value": "a protected value", "user": "the protected values of a user"}
        return (
            f"{what[self.summary['by']]}, which is guessed with a chance of {worst.prior:.4g} "
            f"without the model, is guessed with a chance of at most {worst.posterior:.4g} with it "
            f"(promised: {worst.promised:.4g}); this is the one nearest to its promise of "
            f"{len(self.secrets):,}, and all are kept; unit: all points that hold it; "
            f"{self.plan.steps} steps with noise multiplier {self.plan.noise_multiplier:.6g}; "
            f"accountant: KL divergence; neighbours: {self.plan.neighbouring_relation}; "
            f"treated as public: {KNOWN}"
        )


def read(folder: str | os.PathLike[str], points: Sequence[Point]) -> tuple[Plan, dict[str, Any]]:
    """The plan that :func:`make` wrote, for these points, and its summary."""
    home = Path(folder)
    outputs.demand(home)
    summary = json.loads((home / "plan.json").read_bytes())
    key = (home / "key").read_bytes()
    weights = pd.read_parquet(home / "weights.parquet").set_index("example")
    names = [_name(key, "id", p.id) for p in points]
    if sorted(names) != weights.index.tolist():
        raise ValueError("--plan: was made for other points; make it again with 'crtlib protect'")
    told, holds = (pd.read_parquet(home / f"{n}.parquet") for n in ("secrets", "holders"))
    place = {name: i for i, name in enumerate(names)}
    number = {name: k for k, name in enumerate(told.secret)}
    where = (holds.secret.map(number).to_numpy(), holds.example.map(place).to_numpy())
    matrix = sparse.csr_array((np.ones(len(holds)), where), shape=(len(told), len(names)))
    weights = weights.loc[names]
    kept_weight = float(weights.weight.sum())
    return Plan(
        incidence=matrix,
        prior=told.p.to_numpy(),
        promised=told.r.to_numpy(),
        weights=weights.weight.to_numpy(),
        bound=kept_weight / (1 - summary["gap"]),
        probabilities=weights.sampling_probability.to_numpy(),
        certain=summary["in_every_batch"],
        noise_multiplier=summary["noise_multiplier"],
        binding=np.arange(0),
        steps=summary["steps"],
        batch_size=summary["batch_size"],
        scale=float(summary["scale"]),
        targets=summary["targets"],
        neighbouring_relation=summary["neighbouring_relation"],
        accounting=summary["accounting"],
    ), summary


def train_with(
    corpus: str | os.PathLike[str],
    plan: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str = "lstm",
    init: str = "random",
    epochs: int = EPOCHS,
    hidden: int = 64,
    context: int = 256,
    clip_norm: float = 0.1,
    learning_rate: float = 5e-3,
    seed: int = 0,
    device: str = "auto",
    repeatable_noise: bool = False,
    odometer: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Trained:
    """Train on ``corpus`` as the folder ``plan`` says, and account what was done for every secret.

    The run is entered in the corpus' odometer. Its noise is counted for secrets, not for points, so
    to certificates of other runs it is one without protection. All of the text is trained on.
    Writes the model with ``guarantee.txt``, and
    ``secrets.parquet`` into the private folder ``OUT.work``. Raises ``ValueError`` where the plan
    was made for another corpus.
    """
    text, sha = corpora.load(corpus), corpora.corpus_hash(corpus)
    points = units.points(text, _unit(plan, sha))
    made, summary = read(plan, points)
    if outputs.check_folder(out, inputs=[corpus, plan]).exists():
        files.check_writable(out)
    shape = {"embedding": hidden, "hidden": hidden, "context": context}
    net, tokenizer, spec = _model(model, init, shape, seed)
    rates: dict[str, Any] = dict.fromkeys(("learning_rate", "private_learning_rate"), learning_rate)
    most = min(epochs, made.steps)
    constants = Constants(epochs=most, batch_size=1, clip_norm=clip_norm, plan=made, **rates)
    facts = {"unit": summary["unit"], "method": "lp_weighted", "holds": {}, "screening": sha}
    facts |= {"relation": summary["neighbouring_relation"], "gamma": 1.0, "delta2": 1.0}
    meter = record.opened(
        corpus, facts, place=odometer, init=init, secret=not repeatable_noise, protects=False
    )
    meter.mark = work(out) / "unfinished.run"
    run = train(
        net.to(device_by_name(device)),
        methods.by_name("lp_weighted").phases(constants),
        {"private": tokenizer.encode(p.text for p in points)},
        seed=seed,
        secure=not repeatable_noise,
        on_start=meter.start,
        checkpoint=work(out) / "unfinished.pt",
        progress=progress,
    )
    trained = Trained(run, made, summary, _accounted(run, made, plan))
    secret = operating_system.token_bytes(32)
    options = {"method": "lp_weighted", "init": Path(init).name, "model": model, "seed": seed}
    recurrent = spec if spec is not None and spec.recurrent else None
    public = ("*",) if trained.holds and not repeatable_noise else ()
    inputs = outputs.keyed(outputs.hashed({"corpus": corpus, "plan": plan}), secret)
    released: list[gate.Release] = []
    with outputs.staged(
        out, command="train", options=options, inputs=inputs, public=public,
        seal=lambda _: released[0].close(meter.key, meter.run),
    ) as part:  # fmt: skip
        made_here = part / ".made"
        kept.save(run, tokenizer, recurrent, made_here, record=work(out) / "run.json",
                  base=pretrained.base(init))  # fmt: skip
        weights = str(meter.finish(made_here / "model.safetensors").model)
        head = record.head(secret, run.model, weights, init)
        head |= {"corpus": record.about(corpus, text, sha)}
        told = head | _record(trained, meter, plan, clip_norm)
        guesses = tuple((p, q) for p, q in told["plan"]["guesses"])
        known = [
            gate.Planned(meter.run, told["plan"]["sha256"], summary["neighbouring_relation"],
                         guesses, trained.holds),
            gate.Constant("settings and sizes"), *meter.origin(init),
        ]  # fmt: skip
        texts = {"guarantee.txt": trained.promise + "\n"}
        released.append(record.release(part, made_here, texts, known))
        record.save(told, work(out), meter)
    _write_secrets(trained, work(out))
    meter.done()
    return trained


def _write_secrets(trained: Trained, aside: Path) -> None:
    """What is promised of each secret, for the owner of the text alone."""
    with files.replacing(aside / "secrets.parquet", mode=0o600) as table:
        trained.secrets.to_parquet(table, index=False)
    (aside / "unfinished.pt").unlink(missing_ok=True)


def _model(
    kind: str, init: str, shape: dict[str, Any], seed: int
) -> tuple[nn.Module, Bpe, ModelSpec | None]:
    """The model before it reads, and its vocabulary, which is that of ``init`` or single bytes: a
    point that holds no secret for the plan may hold one that its policy missed."""
    if init != "random":
        tokenizer = adapt(pretrained.place(init))
        return pretrained.pretrained(pretrained.place(init), tokenizer), tokenizer, None
    tokenizer = train_bpe([], vocab_size=512)
    spec = ModelSpec(kind, tokenizer.vocab_size, **shape)
    return build(spec, seed), tokenizer, spec


def _record(
    trained: Trained, meter: Meter, plan: str | os.PathLike[str], clip_norm: float
) -> dict[str, Any]:
    """What a certificate says of a training with a plan: of each prior with its promise, the chance
    that was accounted for the secret that is nearest to it."""
    events = [e for e in trained.run.events if isinstance(e, WeightedGaussian)]
    groups = trained.secrets.groupby(["prior", "promised"]).posterior.max().reset_index()
    given = (outputs.marker(plan) or {})["options"]
    policy = {"name": given.get("policy", "a list of secrets"), "taught_by": None,
              "sha256": outputs.sha256(Path(plan) / "plan.json")}  # fmt: skip
    rates = {"miss": assumed(1.0), "trace": assumed(1.0), "public": Rate(0, 0, 0.0, "policy")}
    return {
        "unit": trained.summary["unit"],
        "method": {"name": "lp_weighted", "label": methods.by_name("lp_weighted").label},
        "protects_all": True,
        "accountant": "KL divergence",
        "delta": 1.0,
        "randomness": "operating_system" if meter.secret else "seed",
        "phases": [
            {"kind": "private", "points": len(trained.plan.weights), "steps": e.steps,
             "noise_multiplier": e.noise_multiplier, "clip_norm": clip_norm}
            for e in events
        ],
        "plan": {"sha256": policy["sha256"], "kept": trained.holds,
                 "guesses": groups[["prior", "posterior"]].to_numpy().tolist()},
        "rates": {name: rate.to_json() for name, rate in rates.items()} | {"by_kind": {}},
        "labels": None,
        "policies": {"pi": policy, "pi_c": policy},
        "oracle_on_real_text": False,
        "treated_as_public": [KNOWN],
        "searched": {"trials": 1, "charged": False},
        "canaries": {"planted": 0, "copies": 0},
        "odometer": meter.told(),
    }  # fmt: skip


def _unit(folder: str | os.PathLike[str], corpus: str) -> str:
    """The unit of a plan; refuses what is none, and one of another corpus."""
    if outputs.demand(folder, names=["plan.json"])["command"] != "protect":
        raise ValueError(f"--plan: {folder} is no plan of 'crtlib protect'")
    summary = json.loads((Path(folder) / "plan.json").read_bytes())
    made_for = summary.get("corpus_hmac")
    if made_for is None:
        raise ValueError(f"--plan: {folder} was made of a table, for no corpus that is known")
    this = outputs.keyed(corpus, outputs.key_in(Path(folder) / "key"))
    if made_for != this:
        raise ValueError(f"--plan: made for corpus {made_for[:4]}…, this is {this[:4]}…")
    return str(summary["unit"])


def _accounted(run: Run, plan: Plan, folder: str | os.PathLike[str]) -> pd.DataFrame:
    """What was promised of each secret, and what was done, from the events of the run."""
    names = pd.read_parquet(Path(folder) / "secrets.parquet").secret
    events = [e for e in run.events if isinstance(e, WeightedGaussian)]
    bound, _ = secrets.guarantees(
        events, plan.incidence, prior=plan.prior, neighbouring_relation=plan.neighbouring_relation
    )
    # A plan meets its promises to 1e-9: the last digits of a binding one are no broken promise.
    held = np.where(bound <= plan.promised * (1 + 1e-9), np.minimum(bound, plan.promised), bound)
    table = {"secret": names, "prior": plan.prior, "promised": plan.promised, "posterior": held}
    return pd.DataFrame(table).assign(examples=np.diff(plan.incidence.indptr))
