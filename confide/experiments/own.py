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
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from confide import recipe as recipes
from confide.experiments import record
from confide.experiments.record import Card, Facts, Meter, Trained, work
from confide.recipe import Language, Recipe, SecretPlan
from confide.release import gate
from confide.reports import pages
from confide.screening.corpus import Pair, fitting, given, judge, known_rates, unproved
from crtlib import files, outputs
from crtlib.accounting import ledger
from crtlib.accounting.ledger import WeightedGaussian
from crtlib.experiments import crt
from crtlib.experiments.crt import CrtStudy, Data, Fitted, Row
from crtlib.files import Named
from crtlib.models import pretrained
from crtlib.models.networks import ModelSpec, build
from crtlib.screening import policies
from crtlib.screening.policy import spoken
from crtlib.text import canaries, corpora, folders
from crtlib.text.tokenizer import adapt, train_bpe
from crtlib.training import loop, methods, parallel
from crtlib.training.devices import device_by_name
from crtlib.training.loop import Run

LEAST = 12
"""Dialogues that a corpus needs at least, so that some can be held out."""

CONTEXT = 1024
"""Tokens that a pre-trained model reads at once, at most, where nobody says how many."""

CLIP_NORM = 0.1
"""Largest norm of a point's gradient in a training with a plan."""

SPEED = {"cpu": 4e10, "cuda": 2e13}
"""Operations a second that the hours of a training are reckoned with: those of one core, measured
with SmolLM2 and with LSTMs of 64 and 512 units, and a cautious guess for a GPU."""

SHAPE = {"init", "model", "width", "layers", "vocab_size", "lora"}
"""Options that say which model is trained."""

UNFINISHED = ("unfinished.pt", "unfinished.run")
"""What an unfinished training has in the folder beside its model: a checkpoint, and its name."""


@dataclass(frozen=True)
class Job:
    """A training that can begin: all that can be refused has been. ``fit`` trains, ``entered`` is
    what the odometer says of it, ``finish`` says what came of it. ``protects``: its noise, for
    each point."""

    fit: Callable[..., Any]
    entered: dict[str, Any]
    protects: bool
    finish: Callable[[Any, Meter], Trained]


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
    chosen |= {"duplicates": "mask_private", "coin": "text"}
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
    own |= {"duplicates": "mask_private"}
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
    (:mod:`confide.odometer`) before its first step. An unfinished training goes on from
    the folder ``OUT.work`` beside its model. Of several processes
    (:mod:`crtlib.training.parallel`) all call it; the first one alone enters the run, attacks the
    model, promises and writes.

    Args:
        what: A recipe (:mod:`confide.recipe`), or a corpus and the names of a recipe's fields.
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
    _check(recipe, inputs.values())
    if isinstance(recipe, SecretPlan):
        job = _planned(recipe, device)
    else:
        job = _studied(recipe, device, study or {})
    aside = None if recipe.out is None else work(recipe.out)
    secret = not getattr(recipe, "repeatable_noise", False)
    checkpoint, mark = (aside / name if aside else None for name in UNFINISHED)
    fit = partial(
        job.fit, checkpoint=checkpoint, secure=secret, memory=recipe.memory, progress=progress
    )
    if not parallel.crew().leads:
        fit()
        return None
    taken = f"--out: {aside} is in use by another training"  # two of them would be one run
    with files.locked(aside, taken) if aside else contextlib.nullcontext():
        try:
            meter = record.opened(
                recipe.corpus, job.entered, init=recipe.init, protects=job.protects,
                place=recipe.odometer, secret=secret, trials=getattr(recipe, "trials", 1),
            )  # fmt: skip
            meter.mark = mark
            outputs.check_same(inputs, before)  # now, while nothing is spent
            made = job.finish(fit(on_start=meter.start), meter)
            trained = _promised(made, recipe, meter)
            outputs.check_same(inputs, before)
            if recipe.out is None:
                meter.finish(None)
            else:
                record.write(trained, recipe.out, before, meter, card, device)
                _finished(recipe.out)
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


def _studied(recipe: Recipe, device: str, fixed: Facts) -> Job:
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
    prepared = _data(study)  # refuses before anything is written
    study = sized(study, prepared, named)
    if auto:
        study = replace(study, canaries=_enough(study.ready(), r.power))
        prepared = _data(study)
        study = sized(study, prepared, named)
    prepared = _judged(study, prepared, getattr(r, "labels", None))

    def finish(fitted: Fitted, meter: Meter) -> Trained:
        policies.check_same(digests, digests.values())
        rows, guarantee = crt.measure(study, fitted), fitted.guarantee(done)
        settings = _settings(done)
        facts = _facts(done, fitted, rows) | {"settings": settings}
        return Trained(
            run=fitted.run, facts=facts, lines=_lines(done, fitted, rows, facts), settings=settings,
            saved={"tokenizer": fitted.data.tokenizer, "spec": fitted.spec,
                   "template": fitted.data.template.source},
            sources=record.sources(done, fitted, meter),
            record=record.of_study(done, fitted, guarantee, meter),
            study=done, fitted=fitted, rows=rows,
        )  # fmt: skip

    fit = partial(
        crt.fit, study, prepared=prepared, device=device, before=True,
        gradient_checkpointing=r.gradient_checkpointing,
    )  # fmt: skip
    done = study.ready()
    return Job(fit, record.entered(done, prepared), record.protects(done), finish)


def _settings(study: CrtStudy) -> dict[str, Any]:
    """The fields of a study, without paths of this machine."""
    each = asdict(study) | {"corpus": Path(study.corpus).name}
    if study.brings_vocabulary:
        each["init"] = pretrained.base(study.init)
    if study.template not in canaries.CANDIDATES:
        each["template"] = "chat"  # of the folder that is written
    return each | {n: policies.plain(each[n]) for n in ("policy", "conservative")}


def _parameters(model: nn.Module) -> dict[str, int]:
    every = [*model.parameters()]
    return {
        "parameters": sum(p.numel() for p in every),
        "trained_parameters": sum(p.numel() for p in every if p.requires_grad),
    }


def _facts(study: CrtStudy, fitted: Fitted, rows: Sequence[Row]) -> dict[str, Any]:
    d = fitted.data
    ppl = next(x for name, _, _, x in rows if name == "test_ppl")
    sequences, _ = d.tokenizer.encode_marked(d.test)
    own_words = study.template != "speaker"
    counted = crt.predicted([*d.test], sequences, d.tokenizer, own_words=own_words)
    tokens = sum(w * int(n.sum()) for w, n in zip(d.test.values(), counted, strict=True))
    letters = sum(w * (b - a) for p, w in d.test.items() for a, b in spoken(p))
    return {
        **_parameters(fitted.run.model),
        "base": pretrained.base(study.init) if study.brings_vocabulary else None,
        "recurrent": fitted.spec is not None and fitted.spec.recurrent,
        "adapters": bool(study.lora),
        "corpus": {"name": Path(study.corpus).name, "points": len(d.points)},
        "perplexity": ppl,
        "vocabulary": d.tokenizer.vocab_size,
        "bits_per_character": math.log2(ppl) * tokens / letters,
    }


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
    from confide.experiments import plans

    if parallel.launched() > 1:
        raise ValueError("--plan: must be trained in one process, without torchrun")
    text = corpora.load(recipe.corpus)
    plan, summary, points = plans.read(recipe.plan, recipe.corpus, text)
    if recipe.init != "random":
        tokenizer, spec = adapt(pretrained.place(recipe.init)), None
        net: nn.Module = pretrained.pretrained(pretrained.place(recipe.init), tokenizer)
    else:
        tokenizer = train_bpe([], vocab_size=512)
        shape: Any = {"embedding": recipe.width, "hidden": recipe.width, "context": recipe.context}
        spec = ModelSpec(recipe.model, tokenizer.vocab_size, **shape)
        net = build(spec, recipe.seed)
    phases = methods.weighted(
        plan, epochs=min(recipe.epochs, plan.steps), clip_norm=CLIP_NORM,
        learning_rate=recipe.private_learning_rate,
    )  # fmt: skip
    method = methods.LP_WEIGHTED.name
    relation: Any = plan.neighbouring_relation
    entered = {"unit": summary["unit"], "method": method, "holds": {}, "gamma": 1.0,
               "screening": corpora.corpus_hash(recipe.corpus), "delta2": 1.0,
               "relation": relation}  # fmt: skip

    def finish(run: Run, meter: Meter) -> Trained:
        table = plans.accounted(run.events, plan, recipe.plan)
        kept = bool((table.posterior <= table.promised).all())
        groups = table.groupby(["prior", "promised"]).posterior.max().reset_index()
        guesses: list[list[float]] = groups[["prior", "posterior"]].to_numpy().tolist()
        sha = outputs.sha256(recipe.plan / "plan.json")
        pairs = tuple((p, q) for p, q in guesses)
        policy = {"name": summary["policy"], "taught_by": None,
                  "sha256": sha}  # fmt: skip
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
            "plan": {"sha256": sha, "kept": kept, "guesses": guesses},
            "rates": record.RAW.to_json(),
            "labels": None,
            "policies": {"pi": policy, "pi_c": policy},
            "oracle_on_real_text": False,
            "treated_as_public": [plans.KNOWN],
            "canaries": {"planted": 0, "copies": 0},
        }  # fmt: skip
        return Trained(
            run=run,
            facts={**_parameters(run.model), "secrets": len(table), "kept": kept},
            settings={"method": method, "init": Path(recipe.init).name,
                      "model": recipe.model, "seed": recipe.seed},
            saved={"tokenizer": tokenizer, "spec": spec}, record=how, secrets=table, kept=kept,
            sources=[gate.Planned(meter.run, sha, relation, pairs, kept),
                     gate.Constant("settings and sizes"), *meter.origin(),
                     *map(gate.Brought, plans.brought(summary))],
        )  # fmt: skip

    fit = partial(
        loop.train, net.to(device), phases,
        {"private": tokenizer.encode(p.text for p in points)}, seed=recipe.seed,
    )  # fmt: skip
    return Job(fit, entered, False, finish)


def _data(study: CrtStudy) -> Data:
    """The text as it is trained on and released: words from public points, and the rates that
    are known of it."""
    return crt.data(study, public_words=True, known=known_rates(study.corpus))


def _judged(study: CrtStudy, prepared: Data, labels: Named | None) -> Data:
    """What a run reads, with the rates of its policies as a folder of labels, if any, judges
    them."""
    raw, before = study.how.reads_raw, folders.is_screened(study.corpus)
    if labels is None and before:
        return prepared
    named = (study.policy, study.conservative)
    misses = f"misses {study.gamma} per {study.per}, seed {study.seed}" if study.gamma else ""
    dial = misses + (", own words" if study.template != "speaker" else "")
    pair = Pair(prepared.policies, named, study.unit, dial)
    if labels is None:
        found = unproved(prepared.rates, named) if raw else (
            given(prepared.counter, corpora.corpus_hash(study.corpus), pair)
        )  # fmt: skip
        return replace(prepared, known=found)
    if raw:
        raise ValueError(f"--labels: {study.method} redacts nothing that they could judge")
    if before:
        raise ValueError("--labels: the corpus is screened already; give them to 'crtlib screen'")
    write = canaries.writer(prepared.template)
    counter, about = judge(study.corpus, labels, pair, texts=prepared.texts, write=write)
    return replace(prepared, known=counter.rates(judged=about["judged"]), labels=about)


def _check(recipe: Recipe, inputs: Iterable[Named]) -> None:
    """Refuse a place for a model that holds something, or cannot be written: now, not later. The
    key beside an odometer must not leave with the model."""
    out, meter = recipe.out, recipe.odometer
    if out is None:
        return
    places = [Path(p).resolve() for p in (out, meter or out)]
    if meter and any(a in (b, *b.parents) for a, b in (places, places[::-1])):
        raise ValueError(f"--odometer: {meter} must lie outside of --out, {out}")
    if outputs.marker(out) is not None:
        _finished(out)  # killed when it was done
        raise ValueError(f"--out: {out} is a finished model; train into another folder")
    if outputs.check_folder(out, inputs=inputs).exists():
        files.check_writable(out)


def _finished(out: Path) -> None:
    for name in UNFINISHED:
        (work(out) / name).unlink(missing_ok=True)


def _promised(made: Trained, recipe: Recipe, meter: Meter) -> Trained:
    """What came of a training of any method, with what its certificate says now, in words.

    Guarantee:
        The words, which stand in ``guarantee.txt``, on the model's card and in the last line, say
        the numbers of the certificate: ``tests/release/test_one_number.py``.
    """
    method = methods.by_name(meter.facts["method"])
    facts = {
        **made.facts,
        "name": recipe.out.name if recipe.out else "",
        "method": {"name": method.name, "label": method.label},
    }
    certificate = record.certified(replace(made, facts=facts), meter)
    promise, holds = pages.promise(certificate), certificate["verdict"] == "holds"
    facts |= {"promise": promise, "kind": certificate["guarantee"]["kind"] if holds else None}
    return replace(made, promise=promise, holds=holds, facts=facts, lines=[*made.lines, promise])
