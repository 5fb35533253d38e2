"""A corpus of one's own: screen it, train on it, attack the model, and say what is promised.

>>> import tempfile
>>> from pathlib import Path
>>> from crtlib.text import customersim, jsonl
>>> folder = Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate(20, 0, "paper"), folder / "dialogues.jsonl")
>>> trained = train(folder / "dialogues.jsonl", unit="turn", method="sgd", epochs=1)
>>> trained.promise
'no guarantee: this method adds no noise'
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from crtlib import files, outputs
from crtlib import recipe as recipes
from crtlib.accounting import ledger
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.guarantees import Guarantee
from crtlib.accounting.secrets import Plan
from crtlib.attacks import run_audit
from crtlib.experiments import crt, data, plans, record
from crtlib.experiments.crt import CrtStudy, Fitted
from crtlib.experiments.data import Data
from crtlib.experiments.study import Row, provenance
from crtlib.files import Named
from crtlib.intervals import at_most, upwards
from crtlib.models import pretrained
from crtlib.models.build import build
from crtlib.models.spec import ModelSpec
from crtlib.recipe import Recipe, SecretPlan
from crtlib.release import gate
from crtlib.screening.corpus import fitting, given, judge, unproved
from crtlib.screening.rates import Counter, Rate, assumed
from crtlib.text import corpora, screened, templates, units
from crtlib.text.records import Corpus
from crtlib.text.tokenizer import Bpe, adapt, train_bpe
from crtlib.training import loop, methods, parallel, schedules, state
from crtlib.training.devices import device_by_name
from crtlib.training.loop import Run
from crtlib.training.methods import LP_WEIGHTED as PLANNED
from crtlib.training.methods import Constants

LEAST = 12
"""Dialogues that a corpus needs at least, so that some can be held out."""

CONTEXT = 1024
"""Tokens that a pre-trained model reads at once, at most, where nobody says how many."""

PERPLEXITIES = tuple(2.0**k for k in range(1, 13))
"""Bounds between which a model card says that the perplexity on held-out text lies."""

CLIP_NORM = 0.1
"""Largest norm of a point's gradient in a training with a plan."""

NO_LABELS = (
    "; void, as delta is 1: no labelled secret tells what the policies miss. Label some turns, or "
    "use --conservative everything"
)

Facts = Mapping[str, Any]
Card = Callable[[Facts], str]


@dataclass(frozen=True)
class Studied:
    """A model of one's own corpus: the study that made it, its measurements, and its promise."""

    study: CrtStudy
    fitted: Fitted
    rows: list[Row]
    guarantee: Guarantee | None
    promise: str
    provenance: dict[str, str | float]
    secure: bool = True
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def run(self) -> Run:
        return self.fitted.run

    @property
    def holds(self) -> bool:
        g = self.guarantee
        return self.secure and g is not None and g.delta < 1 and g.epsilon < float("inf")

    def value(self, metric: str) -> float:
        """A measurement that there is one of."""
        return next(value for name, _, _, value in self.rows if name == metric)

    def facts(self, name: str) -> Facts:
        study, model = self.study, self.fitted.run.model
        every = [p.numel() for p in model.parameters()]
        kind = self.guarantee.kind if self.holds and self.guarantee else ""
        learning = [p.numel() for p in model.parameters() if p.requires_grad]
        return {
            "name": name,
            "parameters": sum(every),
            "trained_parameters": sum(learning),
            "base": pretrained.base(study.init) if study.brings_vocabulary else None,
            "recurrent": self.fitted.spec is not None and self.fitted.spec.recurrent,
            "adapters": bool(study.lora),
            "method": {"name": study.method, "label": study.how.label},
            "corpus": {"name": Path(study.corpus).name, "points": len(self.fitted.data.points)},
            "settings": self.settings(),
            "perplexity": self.value("test_ppl"),
            "promise": self.promise,
            "kind": record.KINDS.get(kind),
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Sizes, noise, perplexity, the attack, the promise."""
        study, n = self.study, self.value
        events = self.fitted.run.events
        lines = []
        if events:
            steps = sum(event.steps for event in events)
            q = study.sampling_probability
            lines.append(
                f"private {n('n_private'):,.0f} points · noise {study.noise_multiplier:.4g} · "
                f"{steps:,} steps of about {study.normaliser:.0f} · q {q:.4g}"
            )
        public = (
            f"public  {n('n_public'):,.0f} points · {self.fitted.run.updates['public']:,} steps"
        )
        if study.lora:
            f = self.facts("")
            public += f" · LoRA {study.lora}: {f['trained_parameters']:,} of {f['parameters']:,}"
        before = self.fitted.before.get("ppl")
        start = "" if before is None else f"{before:.4g} before, "
        lines += [public, f"held-out perplexity {start}{n('test_ppl'):.4g} after"]
        for metric, how in (("exposure", ""), ("exposure_sampled", " (sampled: at most 10)")):
            if bits := [value for name, _, _, value in self.rows if name == metric]:
                each = " ".join(f"{x:.1f}" for x in bits)
                lines.append(f"exposure of {len(bits)} canaries, in bits{how}: {each}")
        return [*lines, self.promise]

    def settings(self) -> dict[str, Any]:
        """The fields of the study."""
        study = self.study
        each = asdict(study) | {"corpus": Path(study.corpus).name}
        if study.brings_vocabulary:
            each["init"] = pretrained.base(study.init)
        if study.template not in templates.CANDIDATES:
            each["template"] = "chat"  # of the folder that is written
        for name in ("policy", "conservative"):
            each[name] = re.sub(r"[^+:]*/", "", each[name])
        return each

    def model(self) -> dict[str, Any]:
        d, spec = self.fitted.data, self.fitted.spec
        base = pretrained.base(self.study.init)
        return {"tokenizer": d.tokenizer, "spec": spec, "base": base, "template": d.template.source}

    def sources(self, meter: record.Meter) -> list[gate.Source]:
        return record.sources(self, meter)

    def texts(self, facts: Facts, card: Card | None) -> dict[str, gate.Value]:
        texts = {"experiment.json": gate.Value.text(json.dumps(self.settings(), indent=1) + "\n")}
        if card:
            heard = gate.declare("held-out perplexity", self.value("test_ppl"), PERPLEXITIES)
            said = card({**facts, "perplexity": heard.value})
            texts["README.md"] = gate.Value.text(said, heard)
        return texts

    def record(self, meter: record.Meter, model: str) -> dict[str, Any]:
        return record.record(self, meter, model)

    def keep(self, aside: Path) -> None:
        cell = {"guarantee": self.promise, "rows": self.rows, **self.provenance}
        with files.replacing(aside / "results.json", mode=0o600) as results:
            results.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Planned:
    """A model trained by a plan. ``secrets`` has a row each: what was promised, and the
    ``posterior`` that was accounted for what was done; it names them by pseudonym."""

    recipe: SecretPlan
    run: Run
    plan: Plan
    summary: dict[str, Any]
    secrets: pd.DataFrame
    tokenizer: Bpe
    spec: ModelSpec | None
    text: Corpus
    void: str
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def kept(self) -> bool:
        """Whether every promise is kept; training that was cut short may have spent more."""
        return bool((self.secrets.posterior <= self.secrets.promised).all())

    @property
    def holds(self) -> bool:
        return self.kept and not self.void

    @property
    def promise(self) -> str:
        """In words, for all secrets together."""
        if not self.kept:
            broken = int((self.secrets.posterior > self.secrets.promised).sum())
            return f"void: {broken} secrets are above their promise"
        label: Any = (self.secrets.posterior / self.secrets.promised).idxmax()
        worst = self.secrets.loc[label]
        prior = (-upwards(-worst.prior, 4)).normalize()
        what = {"value": "a protected value", "user": "the protected values of a user"}
        return (
            f"{what[self.summary['by']]}, which is guessed with a chance of {prior:f} "
            f"without the model, is guessed with a chance of at most {at_most(worst.posterior)} "
            f"with it (promised: {at_most(worst.promised)}); this is the one nearest to its "
            f"promise of {len(self.secrets):,}, and all are kept; unit: all points in "
            "which the search found it; "
            f"{self.plan.steps} steps with noise multiplier {self.plan.noise_multiplier:.6g}; "
            f"accountant: KL divergence; neighbours: {self.plan.neighbouring_relation}; "
            f"treated as public: {plans.KNOWN}{self.void}"
        )

    def facts(self, name: str) -> Facts:
        method = {"name": PLANNED.name, "label": PLANNED.label}
        facts = {"name": name, "method": method, "secrets": len(self.secrets), "kept": self.kept}
        return facts | {"promise": self.promise}

    def lines(self) -> list[str]:
        return [self.promise]

    def settings(self) -> dict[str, Any]:
        r = self.recipe
        return {
            "method": "lp_weighted",
            "init": Path(r.init).name,
            "model": r.model,
            "seed": r.seed,
        }

    def model(self) -> dict[str, Any]:
        base = pretrained.base(self.recipe.init)
        return {"tokenizer": self.tokenizer, "spec": self.spec, "base": base}

    @property
    def guesses(self) -> list[list[float]]:
        """Of each prior with its promise: it, and the chance that was accounted for the secret that
        is nearest to its promise."""
        groups = self.secrets.groupby(["prior", "promised"]).posterior.max().reset_index()
        pairs: list[list[float]] = groups[["prior", "posterior"]].to_numpy().tolist()
        return pairs

    def sources(self, meter: record.Meter) -> list[gate.Source]:
        noised = gate.Planned(
            meter.run,
            outputs.sha256(self.recipe.plan / "plan.json"),
            self.summary["neighbouring_relation"],
            tuple((p, q) for p, q in self.guesses),
            self.kept,
        )
        return [noised, gate.Constant("settings and sizes"), *meter.origin(self.recipe.init)]

    def texts(self, facts: Facts, card: Card | None) -> dict[str, gate.Value]:
        return {}

    def record(self, meter: record.Meter, model: str) -> dict[str, Any]:
        events = [e for e in self.run.events if isinstance(e, WeightedGaussian)]
        given = (outputs.marker(self.recipe.plan) or {})["options"]
        policy = {"name": given.get("policy", "a list of secrets"), "taught_by": None,
                  "sha256": outputs.sha256(self.recipe.plan / "plan.json")}  # fmt: skip
        rates = {"miss": assumed(1.0), "trace": assumed(1.0), "public": Rate(0, 0, 0.0, "policy")}
        return {
            **record.head(self.key, self.run.model, model, self.recipe.init),
            "corpus": record.about(self.recipe.corpus, self.text, meter.facts["corpus"]),
            "unit": self.summary["unit"],
            "method": {"name": "lp_weighted", "label": methods.by_name("lp_weighted").label},
            "protects_all": True,
            "accountant": "KL divergence",
            "delta": 1.0,
            "randomness": "operating_system" if meter.secret else "seed",
            "phases": [
                {"kind": "private", "points": len(self.plan.weights), "steps": e.steps,
                 "noise_multiplier": e.noise_multiplier, "clip_norm": CLIP_NORM}
                for e in events
            ],
            "plan": {"sha256": policy["sha256"], "kept": self.kept, "guesses": self.guesses},
            "rates": {name: rate.to_json() for name, rate in rates.items()} | {"by_kind": {}},
            "labels": None,
            "policies": {"pi": policy, "pi_c": policy},
            "oracle_on_real_text": False,
            "treated_as_public": [plans.KNOWN],
            "searched": {"trials": meter.facts["trials"], "charged": False},
            "canaries": {"planted": 0, "copies": 0},
            "odometer": meter.told(),
        }  # fmt: skip

    def keep(self, aside: Path) -> None:
        """What is promised of each secret, for the owner of the text alone."""
        with files.replacing(aside / "secrets.parquet", mode=0o600) as table:
            self.secrets.to_parquet(table, index=False)


Trained = Studied | Planned
"""What a training of any method has made: its promise, and what is written of it. ``key`` is that
of hashes in what is shown, ``facts`` are for ``--json`` and a model card, ``lines`` for a person,
``settings`` say how it was made, without paths of this machine; ``keep`` writes what is private."""


@dataclass(frozen=True)
class Job:
    """A training that can begin: all that can be refused has been. ``fit`` trains, ``finish`` says
    what came of it; of a process that does not lead, with None."""

    fit: Callable[..., Any]
    meter: Callable[[], record.Meter]
    finish: Callable[[Any, record.Meter | None], Trained]


def study_of(corpus: Named, **settings: Any) -> CrtStudy:
    """The study that trains on a corpus of one's own: a tenth of it validates, a tenth tests.

    ``settings`` are fields of :class:`CrtStudy`; None is one that is not given. The policy is then
    the corpus' own, and the conservative one the same. A screened folder is read as it was
    screened. Raises ``ValueError`` for a corpus that is too small, or of which too little would be
    left to train on, and where no policy is known to fit.
    """
    settings = _fitted(corpus, {k: v for k, v in settings.items() if v is not None})
    size = len(corpora.load(corpus))
    heldout = max(1, size // 10)
    if size < LEAST:
        raise ValueError(
            f"{corpus}: has {size} dialogues, at least {LEAST} are needed to hold some out"
        )
    labelled = settings.get("labelled", 0)
    most = size - 2 * heldout - 10
    if labelled > most:
        raise ValueError(f"labelled={labelled}: must be at most {most}, to leave some to train on")
    chosen: dict[str, Any] = {"method": "crt", "model": "lstm", "gamma": 0.0, "seed": 0}
    chosen |= {"canaries": 0, "neighbouring_relation": "replace"}
    init = settings.get("init", "random")
    if init != "random":
        if data.is_corpus(init):  # which may be this very text
            raise ValueError(f"init={init!r}: must be random or a model, and is a corpus")
        plain = screened.is_screened(corpus) or not templates.chat_template(pretrained.place(init))
        chosen |= {"context": CONTEXT, "template": "speaker" if plain else "chat"}
        settings["model"] = "pretrained"
    return CrtStudy(
        corpus=str(Path(corpus).resolve()),
        dialogues=size - 2 * heldout - labelled,
        heldout=heldout,
        **chosen | settings,
    )


@dataclass(frozen=True)
class Usual:
    """Learning rates (Adam) of public and private steps, epochs, points of a batch."""

    learning_rate: float
    private_learning_rate: float
    epochs: int
    batch_size: int


def usual(parameters: int, *, adapters: bool) -> Usual:
    """What nobody names, by the number of parameters, and whether adapters alone are trained: a
    model that has read the internet is not trained at the rate of one that has read nothing.

    >>> [usual(n, adapters=False).learning_rate for n in (50_000, 135_000_000)]
    [0.01, 2e-05]
    """
    if adapters:
        return Usual(2e-4, 5e-4, 4, 512)
    if parameters < 5_000_000:
        return Usual(1e-2, 5e-3, 8, 64)
    return Usual(1e-3, 1e-3, 4, 256) if parameters < 50_000_000 else Usual(2e-5, 1e-4, 4, 512)


def sized(study: CrtStudy, prepared: Data, given: Facts) -> CrtStudy:
    """The study with what was not ``given`` chosen by the sizes of its model and of its text. A
    batch has a tenth of the points at most; delta is the largest power of ten that is at most a
    tenth of one over the private points.

    Private batches are Poisson samples of ``batch_size`` points in expectation, or up to a quarter
    more, or of the share ``sampling_probability``; public ones have as many. All that is chosen
    leaves, so of the number of private points it may know the rounded one alone.
    """
    if study.brings_vocabulary:
        parameters = pretrained.parameters(pretrained.config_of(pretrained.place(study.init)))
    else:
        parameters = sum(p.numel() for p in build(study.shape(), 0).parameters())
    rule = usual(parameters, adapters=study.lora > 0)
    exact = record.private(study, prepared)
    count = gate.rounded(exact)
    points = count if exact else len(prepared.prepared.all)
    size = given.get("batch_size") or max(1, min(rule.batch_size, points // 10))
    q = given.get("sampling_probability") or min(1.0, size / count)
    most = max(1, 5 * count // 4)  # the exact number is no larger
    fixed = {
        "learning_rate": rule.learning_rate,
        "private_learning_rate": rule.private_learning_rate,
        "epochs": rule.epochs,
        "delta": float(f"1e-{math.ceil(math.log10(10 * most))}"),
        "clip_norm": 1.0,
        "pub_passes": max(1, min(10, count // max(1, len(prepared.prepared.public)))),
    }
    chosen = fixed | {k: v for k, v in given.items() if k in fixed}
    return replace(
        study, **chosen, batch_size=size, sampling_probability=q, normaliser=max(1.0, q * count)
    )


def _fitted(corpus: Named, settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with what the corpus decides: its policy, or how it was screened."""
    method = methods.by_name(settings.get("method", "crt"))
    if not screened.is_screened(corpus):
        settings.setdefault("unit", "turn")
        if method.reads_raw and "policy" not in method.reads:  # all of it is private, tokens too
            settings |= {"conservative": "everything"}
        if "policy" not in settings and "policy" in method.reads:
            settings["policy"] = fitting(corpus)
        return {"conservative": settings.get("policy", "everything")} | settings
    if method.reads_raw or method.flags_tokens:
        raise ValueError(f"--method {method.name}: reads the raw text; give the corpus, not it")
    before = screened.summary(corpus)
    own: dict[str, Any] = {"policy": "none", "conservative": f"screened:{Path(corpus).resolve()}"}
    own |= {"unit": before["unit"], "dedup": "none", "canaries": 0, "gamma": 0.0, "labelled": 0}
    for name, value in settings.items():
        if name in own and value not in (own[name], 0, "all"):
            raise ValueError(f"{name}={value!r}: {corpus} is screened already; screen it anew")
    return settings | own


def train(
    what: Recipe | Named,
    /,
    *,
    card: Card | None = None,
    progress: bool = False,
    study: Facts | None = None,
    **names: Any,
) -> Any:
    """Train on a corpus as a recipe says, attack the model, and say what it promises.

    Batches, and a key for the noise of each step, come from the operating system, unless the noise
    is to be repeatable: then they follow from the seed, which is right for an experiment and wrong
    for a release. The run is entered in the odometer of the corpus
    (:mod:`crtlib.accounting.odometer`) before its first step. An unfinished training goes on from
    the folder ``OUT.work`` beside its model. Of several processes
    (:mod:`crtlib.training.parallel`) all call it; the first one alone enters the run, attacks the
    model, promises and writes.

    Args:
        what: A recipe (:mod:`crtlib.recipe`), or a corpus and the names of a recipe's fields.
        card: Makes the model's README.md of :meth:`Trained.facts`.
        study: Fields of :class:`CrtStudy` that no recipe has, for experiments.

    Returns:
        :class:`Studied`, or :class:`Planned` for the method "plan".

    Raises:
        ValueError: For what cannot be trained on; nothing is written then, and nothing spent.
    """
    recipe = what if isinstance(what, Recipe) else recipes.make({"corpus": what, **names})
    if recipe.workers is not None:
        torch.set_num_threads(recipe.workers)
    device = device_by_name(recipe.device)
    if ":" in device and parallel.crew().size > 1:  # each takes the GPU of its own number
        raise ValueError(f"device={device!r}: must be auto, cpu or cuda for several processes")
    inputs = {n: path for n in ("corpus", "plan") if (path := getattr(recipe, n, None))}
    before = outputs.hashed(inputs)
    data.forget()
    if isinstance(recipe, SecretPlan):
        job = _planned(recipe, device)
    else:
        job = _studied(recipe, device, study or {})
    aside = None if recipe.out is None else work(recipe.out)
    repeatable = getattr(recipe, "repeatable_noise", False)
    fit = partial(
        job.fit, checkpoint=aside and aside / "unfinished.pt", secure=not repeatable,
        memory=recipe.memory, progress=progress,
    )  # fmt: skip
    if not parallel.crew().leads:
        return job.finish(fit(), None)
    taken = f"--out: {aside} is in use by another training"  # two of them would be one run
    with files.locked(aside, taken) if aside else contextlib.nullcontext():
        meter = job.meter()
        meter.mark = aside and aside / "unfinished.run"
        outputs.check_same(inputs, before)  # now, while nothing is spent
        trained = job.finish(fit(on_start=meter.start), meter)
        outputs.check_same(inputs, before)
        if aside is None or recipe.out is None:
            meter.finish(None)
        else:
            write(trained, recipe.out, before, meter, card)
            meter.done()
        return trained


def _studied(recipe: Recipe, device: str, fixed: Facts) -> Job:
    """A training of a study, with the fields of it that are ``fixed``."""
    r = dict(recipe)
    how = {n: r.pop(n, None) for n in (
        "out", "device", "workers", "memory", "odometer", "labels", "trials",
        "repeatable_noise", "dtype", "gradient_checkpointing",
    )}  # fmt: skip
    r["embedding"] = r["hidden"] = r.pop("width")
    power, auto = r.pop("power"), r["canaries"] == "auto"
    if r["canaries"] and (auto or r["copies"] == 1):
        r |= {"audited": True, "copies": 1}
    if auto:
        r["canaries"] = run_audit.LEAST
    r["neighbouring_relation"] = r.pop("neighbouring", None)
    ablated = {"method"} if fixed.get("method") in ("dedup", "crt_sigma0") else set()
    if both := sorted({*dict(recipe)} & {*fixed} - ablated):
        raise ValueError(f"study={both[0]!r}: is an option of the training; give it as one")
    given = {k: v for k, v in {**r, **fixed}.items() if v is not None}
    corpus = given.pop("corpus")
    precision = how["dtype"]
    if precision == "auto":  # that of products
        precision = "float32" if device == "cpu" else "bfloat16"
    study = study_of(corpus, **given, precision=precision)
    prepared = _read(study)  # refuses what can be refused before anything is written
    study = sized(study, prepared, given)
    if auto:
        study = replace(study, canaries=_enough(study.ready(), power))
        prepared = _read(study)
        study = sized(study, prepared, given)
    _check(recipe, [corpus])
    prepared = _judged(study, prepared, how["labels"])
    repeatable = bool(how["repeatable_noise"])

    def finish(fitted: Fitted, meter: record.Meter | None) -> Trained:
        done = study.ready()
        if meter is None:
            return Studied(done, fitted, [], None, "", {}, secure=False)
        rows, guarantee = crt.measure(study, fitted), fitted.guarantee(done)
        origin = provenance(profile="custom", device=device, seconds=fitted.run.seconds)
        void, beside = _void(meter, study.init, record.oracle(study))
        promise = "no guarantee: this method adds no noise"
        if guarantee is not None:
            blind = NO_LABELS if guarantee.delta >= 1 else ""
            promise = f"{guarantee}{blind}{void}{beside}"
        return Studied(done, fitted, rows, guarantee, promise, origin, secure=not void)

    return Job(
        partial(
            crt.fit, study, prepared=prepared, device=device, before=True,
            gradient_checkpointing=bool(how["gradient_checkpointing"]),
        ),
        lambda: record.meter(
            study.ready(), prepared, place=recipe.odometer, repeatable_noise=repeatable,
            trials=how["trials"] or 1,
        ),
        finish,
    )  # fmt: skip


def _enough(study: CrtStudy, power: float) -> int:
    """Canaries for an audit of this power, of a point's noise."""
    event = schedules.events(crt.schedule(study))
    if event is None or not event.noise_multiplier:
        return run_audit.LEAST
    spent = partial(
        ledger.epsilon, delta=study.delta, accountant=study.accountant,
        neighbouring_relation="replace",
    )  # fmt: skip
    half = replace(event, noise_multiplier=event.noise_multiplier / 2)
    return run_audit.enough(spent(event), spent(half), delta=study.delta, power=power)


def _planned(recipe: SecretPlan, device: str) -> Job:
    """A training with a plan of ``crtlib protect``: all of the text, and noise by secret.

    Its noise is counted for secrets, not for points, so to certificates of other runs it is one
    without protection. The vocabulary is that of ``init`` or single bytes: a point that holds no
    secret for the plan may hold one that its policy missed.
    """
    if parallel.launched() > 1:
        raise ValueError("--plan: must be trained in one process, without torchrun")
    sha = corpora.corpus_hash(recipe.corpus)
    text = corpora.load(recipe.corpus)
    points = units.points(text, plans.unit(recipe.plan, sha))
    plan, summary = plans.read(recipe.plan, points)
    _check(recipe, [recipe.corpus, recipe.plan])
    if recipe.init != "random":
        tokenizer, spec = adapt(pretrained.place(recipe.init)), None
        net: nn.Module = pretrained.pretrained(pretrained.place(recipe.init), tokenizer)
    else:
        tokenizer = train_bpe([], vocab_size=512)
        shape: Any = {"embedding": recipe.width, "hidden": recipe.width, "context": recipe.context}
        spec = ModelSpec(recipe.model, tokenizer.vocab_size, **shape)
        net = build(spec, recipe.seed)
    rate, most = recipe.private_learning_rate, min(recipe.epochs, plan.steps)
    constants = Constants(
        epochs=most, batch_size=1, clip_norm=CLIP_NORM, plan=plan, learning_rate=rate,
        private_learning_rate=rate,
    )  # fmt: skip
    facts = {"unit": summary["unit"], "method": "lp_weighted", "holds": {}, "screening": sha}
    facts |= {"relation": summary["neighbouring_relation"], "gamma": 1.0, "delta2": 1.0}
    facts |= {"trials": recipe.trials}

    def finish(run: Run, meter: record.Meter | None) -> Trained:
        accounted = plans.accounted(run.events, plan, recipe.plan)
        void = _void(meter, recipe.init, planned=True)[0] if meter else ""
        return Planned(recipe, run, plan, summary, accounted, tokenizer, spec, text, void)

    return Job(
        partial(
            loop.train, net.to(device), PLANNED.phases(constants),
            {"private": tokenizer.encode(p.text for p in points)}, seed=recipe.seed,
        ),
        lambda: record.opened(
            recipe.corpus, facts, place=recipe.odometer, init=recipe.init,
            secret=not recipe.repeatable_noise, protects=False,
        ),
        finish,
    )  # fmt: skip


def _read(study: CrtStudy) -> Data:
    """What the run reads. Where points are more than turns the vocabulary is that of the public
    points: a silent turn of a private one may hold a secret that no rate counts as public."""
    prepared = data.data(study)
    if study.unit == "turn" or study.how.reads_raw or study.brings_vocabulary:
        return prepared
    texts = [p.text for p in prepared.prepared.public]
    return replace(prepared, tokenizer=train_bpe(texts, vocab_size=study.vocab_size))


def _judged(study: CrtStudy, prepared: Data, labels: Named | None) -> Data:
    """What a run reads, with the rates of its policies as a folder of labels, if any, judges
    them."""
    if labels is None and screened.is_screened(study.corpus):
        return prepared
    named = (study.policy, study.conservative)
    misses = f"misses {study.gamma} per {study.per}, seed {study.seed}" if study.gamma else ""
    dial = misses + (", own words" if study.template != "speaker" else "")
    if labels is None and study.how.reads_raw:
        return replace(prepared, known=unproved(prepared.rates, named))
    if labels is None:
        points, flags, cautious = prepared.checked
        counter = Counter(*prepared.policies)
        counter.add(points, flags=flags, cautious_flags=cautious)
        sha = corpora.corpus_hash(study.corpus)
        judged = given(counter, sha, names=named, unit=study.unit, dial=dial)
        return replace(prepared, known=unproved(counter.rates(judged=judged), named))
    if study.how.reads_raw:
        raise ValueError(f"--labels: {study.method} redacts nothing that they could judge")
    if study.labelled:
        raise ValueError("--labels: teach the tagger by 'crtlib tagger --labels', not --labelled")
    if screened.is_screened(study.corpus):
        raise ValueError("--labels: the corpus is screened already; give them to 'crtlib screen'")
    counter, about = judge(
        study.corpus, labels, prepared.policies, names=named, unit=study.unit, dial=dial
    )
    return replace(prepared, known=counter.rates(judged=about["judged"]), labels=about)


def _check(recipe: Recipe, inputs: list[Any]) -> None:
    """Refuse a place for a model that holds something, or cannot be written: now, not later. The
    key beside an odometer must not leave with the model."""
    out, meter = recipe.out, recipe.odometer
    if out is None:
        return
    places = [Path(p).resolve() for p in (out, meter or out)]
    if meter and any(a in (b, *b.parents) for a, b in (places, places[::-1])):
        raise ValueError(f"--odometer: {meter} must lie outside of --out, {out}")
    if outputs.marker(out) is not None:
        for name in ("unfinished.pt", "unfinished.run"):  # killed when it was done
            (work(out) / name).unlink(missing_ok=True)
        raise ValueError(f"--out: {out} is a finished model; train into another folder")
    if outputs.check_folder(out, inputs=inputs).exists():
        files.check_writable(out)


def work(out: Named) -> Path:
    """The private folder beside a model, not for release: what is unfinished, exact scores."""
    place = Path(out).absolute()
    folder = place.with_name(f"{place.name}.work")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _void(
    meter: record.Meter, init: str, oracle: bool = False, planned: bool = False
) -> tuple[str, str]:
    """What makes a promise void whatever its numbers are, nothing where it stands; and what of the
    certificate it leaves out."""
    spent, trials = meter.spent, meter.facts["trials"]
    bases = [s for s in meter.origin(init) if isinstance(s, gate.Base)]
    said = {
        "; void, as noise and batches follow from a known seed: an experiment, not a release":
            not meter.secret,
        "; void, as a policy read the labels themselves": oracle,
        "; void, as it started from a model that had learned this text without protection":
            spent.bare,
        "; void, as nobody knows what the model that it started from has read":
            any(base.lineage == "unknown" for base in bases),
        "; void, as one person more moves who is held out: neighbouring must be replace":
            meter.protects and meter.facts["relation"] == "add_or_remove",
        "; void, as a plan promises of one training, and this is not the only one":
            planned and (trials > 1 or any(
                e.events is not None or e.method == "lp_weighted" for e in spent.entries)),
    }  # fmt: skip
    added = {
        f"{spent.runs + spent.unprotected} earlier on this text": spent.runs + spent.unprotected,
        f"{trials - 1} that were compared with it": trials - 1,
    }
    beside = " and ".join(text for text, number in added.items() if number)
    beside = beside and f"; of this model alone: its certificate adds {beside}"
    return "".join(text for text, applies in said.items() if applies), beside


def write(
    trained: Trained,
    folder: Path,
    inputs: Mapping[str, str],
    meter: record.Meter,
    card: Card | None,
) -> None:
    """Write the model as a folder that ``transformers`` loads (a recurrent one as
    :mod:`crtlib.models.folder` does), with its promise; the marker comes last. What is private
    goes into :func:`work`, for its owner alone. Others may read the model if it carries a promise.
    The run is finished in the odometer before the weights take their place."""
    aside, parts = work(folder), trained.model()
    spec = parts.pop("spec")
    releases: list[gate.Release] = []
    with outputs.staged(
        folder,
        command="train",
        options=trained.settings(),
        inputs=outputs.keyed(inputs, trained.key),
        public=("*",) if trained.holds else (),
        seal=lambda _: releases[0].close(meter.key, meter.run),
    ) as part:
        made = part / ".made"
        state.save(
            trained.run, parts.pop("tokenizer"), spec if spec and spec.recurrent else None, made,
            record=aside / "run.json", **parts,
        )  # fmt: skip
        model = str(meter.finish(made / "model.safetensors").model)
        texts = {"guarantee.txt": gate.Value.text(trained.promise + "\n")}
        texts |= trained.texts(trained.facts(folder.name), card)
        releases.append(record.release(part, made, texts, trained.sources(meter)))
        record.save(trained.record(meter, model), aside, meter)
        # Before the model takes its place: a run that is killed after that is not done again.
        trained.keep(aside)
    (aside / "unfinished.pt").unlink(missing_ok=True)
