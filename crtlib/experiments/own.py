"""A corpus of one's own: screen it, train on it, attack the model, and say what is promised.

>>> import tempfile
>>> from pathlib import Path
>>> from crtlib.text import customersim, records
>>> folder = Path(tempfile.mkdtemp())
>>> records.write_jsonl(customersim.simulate(20, 0, "paper"), folder / "dialogues.jsonl")
>>> trained = train(folder / "dialogues.jsonl", unit="turn", method="sgd", epochs=1)
>>> trained.promise
'no guarantee: this method adds no noise'
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from crtlib import files, outputs
from crtlib import recipe as recipes
from crtlib.accounting import ledger
from crtlib.accounting.guarantees import Guarantee
from crtlib.accounting.ledger import WeightedGaussian
from crtlib.experiments import crt, record
from crtlib.experiments.crt import CrtStudy, Data, Fitted, Row
from crtlib.files import Named
from crtlib.models import folder as model_folder
from crtlib.models import pretrained
from crtlib.models.networks import ModelSpec, build
from crtlib.recipe import Language, Recipe, SecretPlan
from crtlib.release import certify, gate
from crtlib.screening import policies
from crtlib.screening.corpus import Pair, fitting, given, judge, unproved
from crtlib.screening.policy import spoken
from crtlib.screening.rates import RateCounter
from crtlib.text import canaries, corpora, folders, records
from crtlib.text.tokenizer import adapt, train_bpe
from crtlib.training import loop, methods, parallel
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

SPEED = {"cpu": 4e10, "cuda": 2e13}
"""Operations a second that the hours of a training are reckoned with: those of one core, measured
with SmolLM2 and with LSTMs of 64 and 512 units, and a cautious guess for a GPU."""

SHAPE = {"init", "model", "width", "layers", "vocab_size", "lora"}
"""Options that say which model is trained."""

Facts = Mapping[str, Any]
Card = Callable[[Facts], str]


@dataclass(frozen=True)
class Trained:
    """A finished training of any method: its model, what it promises, and what is said of it.

    ``facts`` are for ``--json`` and a model card, ``lines`` for a person; ``settings`` say how it
    was made, without paths of this machine. ``saved`` lies beside the weights, ``texts`` are
    released with them; all of it may know the ``sources``. ``record`` is what a certificate says,
    ``private`` are files for the owner of the text alone. ``key`` is that of hashes in what is
    shown.

    Of a study there are its ``rows`` of measurements. Of a plan, ``secrets`` has a row each, by
    pseudonym: what was promised, and the ``posterior`` that was accounted for what was done;
    ``kept``: each is within its promise. Training that was cut short may have spent more.
    """

    run: Run
    promise: str
    holds: bool
    facts: Facts
    lines: Sequence[str]
    settings: Facts
    saved: Facts
    sources: Sequence[gate.Source]
    record: Facts
    private: Mapping[str, str | pd.DataFrame]
    key: bytes = field(repr=False)
    texts: Mapping[str, gate.Value] = field(default_factory=dict)
    study: CrtStudy | None = None
    fitted: Fitted | None = None
    rows: Sequence[Row] = ()
    guarantee: Guarantee | None = None
    secrets: pd.DataFrame | None = None
    kept: bool = True


@dataclass(frozen=True)
class Job:
    """A training that can begin: all that can be refused has been. ``fit`` trains, ``finish`` says
    what came of it."""

    fit: Callable[..., Any]
    meter: Callable[[], record.Meter]
    finish: Callable[[Any, record.Meter, bytes], Trained]


def study_of(corpus: Named, **settings: Any) -> CrtStudy:
    """The study that trains on a corpus of one's own: a tenth of it validates, a tenth tests.

    ``settings`` are fields of :class:`CrtStudy`; None is one that is not given. The policy is then
    the corpus' own, and the conservative one the same. A screened folder is read as it was
    screened. Raises ``ValueError`` for a corpus that is too small, and where no policy is known to
    fit.
    """
    settings = _fitted(corpus, {k: v for k, v in settings.items() if v is not None})
    size = len(corpora.load(corpus))
    heldout = max(1, size // 10)
    if size < LEAST:
        raise ValueError(
            f"{corpus}: has {size} dialogues, at least {LEAST} are needed to hold some out"
        )
    chosen: dict[str, Any] = {"method": "crt", "model": "lstm", "gamma": 0.0, "seed": 0}
    chosen |= {"canaries": 0, "neighbouring_relation": "replace"}
    init = settings.get("init", "random")
    if init != "random":
        if crt.is_corpus(init):  # which may be this very text
            raise ValueError(f"init={init!r}: must be random or a model, and is a corpus")
        plain = folders.is_screened(corpus) or not canaries.chat_template(pretrained.place(init))
        chosen |= {"context": CONTEXT, "template": "speaker" if plain else "chat"}
        settings["model"] = "pretrained"
    return CrtStudy(
        corpus=str(Path(corpus).resolve()),
        dialogues=size - 2 * heldout,
        heldout=heldout,
        **chosen | settings,
    )


def usual(parameters: int, *, adapters: bool) -> dict[str, Any]:
    """What nobody names, by the number of parameters, and whether adapters alone are trained: a
    model that has read the internet is not trained at the rate of one that has read nothing.
    Learning rates (Adam) of public and private steps, epochs, points of a batch.

    >>> [usual(n, adapters=False)["learning_rate"] for n in (50_000, 135_000_000)]
    [0.01, 2e-05]
    """
    names = ("learning_rate", "private_learning_rate", "epochs", "batch_size")
    if adapters:
        values = (2e-4, 5e-4, 4, 512)
    elif parameters < 5_000_000:
        values = (1e-2, 5e-3, 8, 64)
    else:
        values = (1e-3, 1e-3, 4, 256) if parameters < 50_000_000 else (2e-5, 1e-4, 4, 512)
    return dict(zip(names, values, strict=True))


def within(hours: float, turns: int, device: str, epochs: int | None = None) -> dict[str, Any]:
    """The model that is trained on so many turns (30 tokens each) in so many hours: SmolLM2 with
    adapters where it can be read here and they suffice, else the widest LSTM for which they do, of
    64 units at least. No clock is read, so that a training can go on elsewhere. Of the turns
    the rounded number counts alone: the choice leaves with the model.

    >>> [within(hours, 10**6, "cpu")["width"] for hours in (0.01, 5, 50)]
    [64, 128, 1024]
    """
    most = hours * 3600 * SPEED[device.partition(":")[0]] / (6 * 30 * gate.rounded(turns))

    def fits(parameters: int, *, adapters: bool = False) -> bool:
        return parameters * (epochs or usual(parameters, adapters=adapters)["epochs"]) <= most

    if not pretrained.lacking() and fits(pretrained.SIZE, adapters=True):
        return {"init": pretrained.SMOLLM2, "lora": 8}
    return {"width": max((w for w in (128, 256, 512, 1024) if fits(8 * w * (w + 128))), default=64)}


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
    most = rule.pop("batch_size")
    exact = record.private(study, prepared)
    count = gate.rounded(exact)
    points = count if exact else len(prepared.prepared.all)
    size = given.get("batch_size") or max(1, min(most, points // 10))
    q = given.get("sampling_probability") or min(1.0, size / count)
    bound = max(1, 5 * count // 4)  # the exact number is no larger
    fixed = rule | {
        "delta": float(f"1e-{math.ceil(math.log10(10 * bound))}"),
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
    if not folders.is_screened(corpus):
        settings.setdefault("unit", "turn")
        if method.reads_raw and "policy" not in method.reads:  # all of it is private, tokens too
            settings |= {"conservative": "everything"}
        if "policy" not in settings and "policy" in method.reads:
            settings["policy"] = fitting(corpus, "none" if method.name == "sgd" else "")
        return {"conservative": settings.get("policy", "everything")} | settings
    if method.reads_raw or method.flags_tokens:
        raise ValueError(f"--method {method.name}: reads the raw text; give the corpus, not it")
    before = folders.summary(corpus)
    own: dict[str, Any] = {"policy": "none", "conservative": f"screened:{Path(corpus).resolve()}"}
    own |= {"unit": before["unit"], "dedup": "none", "canaries": 0, "gamma": 0.0}
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
        card: Makes the model's README.md of ``Trained.facts``.
        study: Fields of :class:`CrtStudy` that no recipe has, for experiments.

    Returns:
        :class:`Trained`; None in a process that does not lead.

    Raises:
        ValueError: For what cannot be trained on; nothing is written then, and nothing spent.
    """
    recipe = what if isinstance(what, Recipe) else recipes.make({"corpus": what, **names})
    if recipe.workers is not None:
        torch.set_num_threads(recipe.workers)
    device = device_by_name(recipe.device)
    if ":" in device and parallel.crew().size > 1:  # each takes the GPU of its own number
        raise ValueError(f"device={device!r}: must be auto, cpu or cuda for several processes")
    if isinstance(recipe, Language) and not study:
        recipe = _chosen(recipe, device)
    inputs = {n: path for n in ("corpus", "plan") if (path := getattr(recipe, n, None))}
    before = outputs.hashed(inputs)
    crt.forget()
    if isinstance(recipe, SecretPlan):
        job = _planned(recipe, device)
    else:
        job = _studied(recipe, device, study or {}, card)
    aside = None if recipe.out is None else work(recipe.out)
    repeatable = getattr(recipe, "repeatable_noise", False)
    fit = partial(
        job.fit, checkpoint=aside and aside / "unfinished.pt", secure=not repeatable,
        memory=recipe.memory, progress=progress,
    )  # fmt: skip
    if not parallel.crew().leads:
        fit()
        return None
    taken = f"--out: {aside} is in use by another training"  # two of them would be one run
    with files.locked(aside, taken) if aside else contextlib.nullcontext():
        try:
            meter = job.meter()
            meter.mark = aside and aside / "unfinished.run"
            outputs.check_same(inputs, before)  # now, while nothing is spent
            trained = job.finish(fit(on_start=meter.start), meter, secrets.token_bytes(32))
            outputs.check_same(inputs, before)
            if aside is None or recipe.out is None:
                meter.finish(None)
            else:
                write(trained, recipe, before, meter)
                meter.done()
            return trained
        finally:
            if aside:
                with contextlib.suppress(OSError):  # it holds what goes on later, or results
                    aside.rmdir()


def _chosen(recipe: Language, device: str) -> Recipe:
    """The recipe with the model that its hours allow, where none is named."""
    given = recipe.model_dump(exclude_unset=True)
    hours = given.pop("core_hours", None)
    if named := sorted(SHAPE & given.keys()):
        if hours is not None:
            raise recipes.Refused(
                "core_hours", f"chooses the model, and {named[0]} is given", str(hours)
            )
        return recipe
    if hours is None and (device == "cpu" or pretrained.lacking()):
        return recipe
    turns = sum(len(d.turns) for d in corpora.dialogues(recipe.corpus))
    chosen = within(hours or 1.0, turns, device, recipe.epochs)
    return recipes.make({"method": recipe.method} | given | chosen)


def _studied(recipe: Recipe, device: str, fixed: Facts, card: Card | None) -> Job:
    """A training of a study, with the fields of it that are ``fixed``."""
    r: Any = recipe
    ablated = {"method"} if fixed.get("method") in ("dedup", "crt_sigma0") else set()
    if both := sorted({*dict(recipe)} & {*fixed} - ablated):
        raise ValueError(f"study={both[0]!r}: is an option of the training; give it as one")
    precision = "float32" if device == "cpu" else "bfloat16"
    same = dict(recipe) | {
        "embedding": r.width, "hidden": r.width,
        "neighbouring_relation": getattr(r, "neighbouring", None),
        "precision": precision if r.dtype == "auto" else r.dtype,
    }  # fmt: skip
    if auto := r.canaries == "auto":
        from crtlib.attacks.run_audit import LEAST

        same["canaries"] = LEAST
    if r.canaries and (auto or r.copies == 1):
        same |= {"audited": True, "copies": 1}
    shared = same.keys() & {f.name for f in fields(CrtStudy)} - {"corpus"}
    named = {n: same[n] for n in shared if same[n] is not None} | dict(fixed)
    study = study_of(recipe.corpus, **named)
    digests = {name: policies.digest(name) for name in (study.policy, study.conservative)}
    prepared = _read(study)  # refuses what can be refused before anything is written
    study = sized(study, prepared, named)
    if auto:
        study = replace(study, canaries=_enough(study.ready(), r.power))
        prepared = _read(study)
        study = sized(study, prepared, named)
    _check(recipe, [recipe.corpus])
    prepared = _judged(study, prepared, getattr(r, "labels", None))

    def finish(fitted: Fitted, meter: record.Meter, key: bytes) -> Trained:
        policies.check_same(digests, digests.values())
        done = study.ready()
        rows, guarantee = crt.measure(study, fitted), fitted.guarantee(done)
        promise = "no guarantee: this method adds no noise"
        if done.policy == "none" and not folders.is_screened(recipe.corpus):
            promise += ", and it read the text as it is"
        facts = _facts(done, fitted, rows) | {"settings": _settings(done)}
        made = Trained(
            run=fitted.run, promise=str(guarantee or promise), holds=guarantee is not None,
            facts=facts, lines=_lines(done, fitted, rows, facts), settings=facts["settings"],
            saved={"tokenizer": fitted.data.tokenizer, "spec": fitted.spec,
                   "base": pretrained.base(done.init), "template": fitted.data.template.source},
            sources=record.sources(done, fitted, meter, key), private={}, key=key,
            record=record.of_study(done, fitted, guarantee, meter),
            study=done, fitted=fitted, rows=rows, guarantee=guarantee,
        )  # fmt: skip
        made = _promised(made, recipe, meter)
        kind = record.KINDS.get(guarantee.kind) if made.holds and guarantee else None
        facts = {**made.facts, "kind": kind}
        origin = {"device": device, "seconds": round(fitted.run.seconds, 2)}
        results = json.dumps({"guarantee": made.promise, "rows": rows, **origin}, indent=1) + "\n"
        return replace(
            made,
            facts=facts,
            private={"results.json": results},
            texts=_texts(made.settings, facts, card),
        )

    return Job(
        partial(
            crt.fit, study, prepared=prepared, device=device, before=True,
            gradient_checkpointing=r.gradient_checkpointing,
        ),
        lambda: record.meter(
            study.ready(), prepared, place=recipe.odometer, trials=getattr(r, "trials", 1),
            repeatable_noise=getattr(r, "repeatable_noise", False),
        ),
        finish,
    )  # fmt: skip


def _settings(study: CrtStudy) -> dict[str, Any]:
    """The fields of a study, without paths of this machine."""
    each = asdict(study) | {"corpus": Path(study.corpus).name}
    if study.brings_vocabulary:
        each["init"] = pretrained.base(study.init)
    if study.template not in canaries.CANDIDATES:
        each["template"] = "chat"  # of the folder that is written
    return each | {n: policies.plain(each[n]) for n in ("policy", "conservative")}


def _facts(study: CrtStudy, fitted: Fitted, rows: Sequence[Row]) -> dict[str, Any]:
    every = [*fitted.run.model.parameters()]
    return {
        "parameters": sum(p.numel() for p in every),
        "trained_parameters": sum(p.numel() for p in every if p.requires_grad),
        "base": pretrained.base(study.init) if study.brings_vocabulary else None,
        "recurrent": fitted.spec is not None and fitted.spec.recurrent,
        "adapters": bool(study.lora),
        "corpus": {"name": Path(study.corpus).name, "points": len(fitted.data.points)},
        "perplexity": (ppl := next(x for name, _, _, x in rows if name == "test_ppl")),
        "vocabulary": fitted.data.tokenizer.vocab_size,
        "bits_per_character": math.log2(ppl) * _tokens_a_character(study, fitted.data),
    }


def _tokens_a_character(study: CrtStudy, d: Data) -> float:
    """Of the test texts, counted as their perplexity is."""
    if study.template == "speaker":
        counts = [len(tokens) - 1 for tokens in d.tokenizer.encode_marked([*d.test])[0]]
    else:
        counts = [int(own.sum()) for own in canaries.own_tokens([*d.test], d.tokenizer)]
    letters = [sum(b - a for a, b in spoken(p)) for p in d.test]
    weighed = [
        sum(n * w for n, w in zip(some, d.test.values(), strict=True)) for some in (counts, letters)
    ]
    return weighed[0] / weighed[1]


def _texts(settings: Facts, facts: Facts, card: Card | None) -> dict[str, gate.Value]:
    texts = {"experiment.json": gate.Value.text(json.dumps(settings, indent=1) + "\n")}
    if card:
        heard = gate.declare("held-out perplexity", facts["perplexity"], PERPLEXITIES)
        said = card({**facts, "perplexity": heard.value})
        texts["README.md"] = gate.Value.text(said, heard)
    return texts


def _lines(study: CrtStudy, fitted: Fitted, rows: Sequence[Row], facts: Facts) -> list[str]:
    """Sizes, noise, perplexity, the attack."""
    run, lines = fitted.run, []
    n = {name: value for name, _, _, value in rows}
    if run.events:
        steps = sum(event.steps for event in run.events)
        lines.append(
            f"private {n['n_private']:,.0f} points · noise {study.noise_multiplier:.4g} · "
            f"{steps:,} steps of about {study.normaliser:.0f} · q {study.sampling_probability:.4g}"
        )
    public = f"public  {n['n_public']:,.0f} points · {run.updates['public']:,} steps"
    if study.lora:
        public += (
            f" · LoRA {study.lora}: {facts['trained_parameters']:,} of {facts['parameters']:,}"
        )
    before = fitted.before.get("ppl")
    start = "" if before is None else f"{before:.4g} before, "
    lines += [
        public,
        f"held-out perplexity {start}{facts['perplexity']:.4g} after, of {facts['vocabulary']:,} "
        f"tokens: {facts['bits_per_character']:.3g} bits a character, "
        "which alone compares vocabularies",
    ]
    for metric, how in (("exposure", ""), ("exposure_sampled", " (sampled: at most 10)")):
        if bits := [value for name, _, _, value in rows if name == metric]:
            each = " ".join(f"{x:.1f}" for x in bits)
            lines.append(f"exposure of {len(bits)} canaries, in bits{how}: {each}")
    return lines


def _enough(study: CrtStudy, power: float) -> int:
    """Canaries for an audit of this power, of a point's noise."""
    from crtlib.attacks import run_audit

    event = methods.events(crt.schedule(study))
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
    from crtlib.experiments import plans

    if parallel.launched() > 1:
        raise ValueError("--plan: must be trained in one process, without torchrun")
    sha = corpora.corpus_hash(recipe.corpus)
    text = corpora.load(recipe.corpus)
    points = records.points(text, plans.unit_of(recipe.plan, corpora.read_hash(recipe.corpus)))
    plan, summary = plans.read(recipe.plan, points)
    named = (outputs.marker(recipe.plan) or {})["options"]
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

    def finish(run: Run, meter: record.Meter, key: bytes) -> Trained:
        table = plans.accounted(run.events, plan, recipe.plan)
        broken = int((table.posterior > table.promised).sum())
        groups = table.groupby(["prior", "promised"]).posterior.max().reset_index()
        guesses: list[list[float]] = groups[["prior", "posterior"]].to_numpy().tolist()
        sha = outputs.sha256(recipe.plan / "plan.json")
        noised = gate.Planned(
            meter.run, sha, summary["neighbouring_relation"], tuple((p, q) for p, q in guesses),
            not broken,
        )  # fmt: skip
        policy = {
            "name": named.get("policy", "a list of secrets"),
            "taught_by": None,
            "sha256": sha,
        }
        events = [e for e in run.events if isinstance(e, WeightedGaussian)]
        how = {
            "corpus": record.about(recipe.corpus, text, meter.facts["corpus"]),
            "protects_all": True,
            "accountant": "KL divergence",
            "delta": 1.0,
            "phases": [
                {"kind": "private", "points": len(points), "steps": e.steps,
                 "noise_multiplier": e.noise_multiplier, "clip_norm": CLIP_NORM}
                for e in events
            ],
            "plan": {"sha256": sha, "kept": not broken, "guesses": guesses},
            "rates": record.RAW.to_json(),
            "labels": None,
            "policies": {"pi": policy, "pi_c": policy},
            "oracle_on_real_text": False,
            "treated_as_public": [plans.KNOWN],
            "canaries": {"planted": 0, "copies": 0},
        }  # fmt: skip
        made = Trained(
            run=run, promise=plans.promise(plan, summary, table), holds=True,
            facts={"secrets": len(table), "kept": not broken}, lines=[],
            settings={"method": PLANNED.name, "init": Path(recipe.init).name,
                      "model": recipe.model, "seed": recipe.seed},
            saved={"tokenizer": tokenizer, "spec": spec, "base": pretrained.base(recipe.init)},
            sources=[noised, gate.Constant("settings and sizes"), *meter.origin(recipe.init)],
            key=key, record=how, private={"secrets.parquet": table}, secrets=table,
            kept=not broken,
        )  # fmt: skip
        return _promised(made, recipe, meter)

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
    prepared = crt.data(study)
    if study.unit == "turn" or study.how.reads_raw or study.brings_vocabulary:
        return prepared
    texts = [p.text for p in prepared.prepared.public]
    return replace(prepared, tokenizer=train_bpe(texts, vocab_size=study.vocab_size))


def _judged(study: CrtStudy, prepared: Data, labels: Named | None) -> Data:
    """What a run reads, with the rates of its policies as a folder of labels, if any, judges
    them."""
    if labels is None and folders.is_screened(study.corpus):
        return prepared
    named = (study.policy, study.conservative)
    misses = f"misses {study.gamma} per {study.per}, seed {study.seed}" if study.gamma else ""
    dial = misses + (", own words" if study.template != "speaker" else "")
    pair = Pair(prepared.policies, named, study.unit, dial)
    if labels is None and study.how.reads_raw:
        return replace(prepared, known=unproved(prepared.rates, named))
    if labels is None:
        points, flags, cautious = prepared.checked
        counter = RateCounter(*prepared.policies)
        counter.add(points, flags=flags, cautious_flags=cautious)
        return replace(prepared, known=given(counter, corpora.corpus_hash(study.corpus), pair))
    if study.how.reads_raw:
        raise ValueError(f"--labels: {study.method} redacts nothing that they could judge")
    if folders.is_screened(study.corpus):
        raise ValueError("--labels: the corpus is screened already; give them to 'crtlib screen'")
    counter, about = judge(study.corpus, labels, pair)
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


def _promised(made: Trained, recipe: Recipe, meter: record.Meter) -> Trained:
    """What came of a training of any method; of one that ``holds``, whether its certificate now
    does, and what is said beside the promise: why it is void, and what the certificate adds."""
    holds, promise = made.holds, made.promise
    if holds:
        spent, trials, fold = meter.spent, meter.facts["trials"], gate.fold(made.sources)
        fold = replace(fold, screening=fold.screening and meter.facts["screening"])
        told = {**made.record, "searched": {"trials": trials}}
        trained = certify.Trained(Path(), told, fold, spent)
        own = trained.promise()
        why = certify.reasons(trained, own, own.missed()[0])
        added = {
            f"{len(spent.entries)} earlier on this text": len(spent.entries),
            f"{trials - 1} that were compared with it": trials - 1,
        }
        beside = " and ".join(text for text, number in added.items() if number)
        promise += "".join(f"; void: {text}" for text in why)
        promise += beside and f"; of this model alone: its certificate adds {beside}"
        holds = not why and fold.kind != "none"
    method = methods.by_name(meter.facts["method"])
    facts = {
        **made.facts,
        "name": recipe.out.name if recipe.out else "",
        "method": {"name": method.name, "label": method.label},
        "promise": promise,
    }
    return replace(made, promise=promise, holds=holds, facts=facts, lines=[*made.lines, promise])


def write(trained: Trained, recipe: Recipe, inputs: Mapping[str, str], meter: record.Meter) -> None:
    """Write the model as a folder that ``transformers`` loads (a recurrent one as
    :mod:`crtlib.models.folder` does), with its promise; the marker comes last. What is private
    goes into :func:`work`, for its owner alone. Others may read the model if it carries a promise.
    The run is finished in the odometer before the weights take their place."""
    folder = recipe.out
    assert folder is not None
    aside = work(folder)
    releases: list[gate.Release] = []
    with outputs.staged(
        folder,
        command="train",
        options=trained.settings,
        inputs=outputs.keyed(inputs, trained.key),
        public=("*",) if trained.holds else (),
        seal=lambda _: releases[0].close(meter.key, meter.run),
    ) as part:
        made = part / ".made"
        saved = dict(trained.saved)
        if not (saved["spec"] and saved["spec"].recurrent):
            saved["spec"] = None  # transformers reads it
        model_folder.save(trained.run.model, folder=made, **saved)
        model = str(meter.finish(made / "model.safetensors").model)
        promise = gate.Value.text(trained.promise + "\n")
        texts = {"guarantee.txt": promise, **trained.texts}
        releases.append(record.release(part, made, texts, trained.sources))
        content = record.record(trained.record, trained.run, recipe.init, meter, trained.key, model)
        record.save(content, aside, meter)
        # Before the model takes its place: a run that is killed after that is not done again.
        for name, kept in trained.private.items():
            with files.replacing(aside / name, mode=0o600) as file:
                if isinstance(kept, str):
                    file.write_text(kept, encoding="utf-8")
                else:
                    kept.to_parquet(file, index=False)
    (aside / "unfinished.pt").unlink(missing_ok=True)
