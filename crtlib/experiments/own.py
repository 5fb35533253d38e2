"""A corpus of one's own: screen it, train on it, attack the model, and say what is promised.

>>> import tempfile
>>> from pathlib import Path
>>> from crtlib.text import customersim, jsonl
>>> folder = Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate(20, 0, "paper"), folder / "dialogues.jsonl")
>>> trained = train_on(folder / "dialogues.jsonl", unit="turn", method="sgd", epochs=1, canaries=0)
>>> trained.promise
'no guarantee: this method adds no noise'
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from crtlib import files, outputs
from crtlib.accounting.guarantees import Guarantee
from crtlib.checks import check, check_choice
from crtlib.experiments import crt, data, record, sizes
from crtlib.experiments.crt import CrtStudy, Fitted
from crtlib.experiments.data import Data
from crtlib.experiments.study import Row, provenance
from crtlib.models import pretrained
from crtlib.release import gate
from crtlib.screening.corpus import fitting, judge
from crtlib.text import corpora, screened, templates
from crtlib.text.tokenizer import train_bpe
from crtlib.training import kept, methods, parallel
from crtlib.training.devices import device_by_name

LEAST = 12
"""Dialogues that a corpus needs at least, so that some can be held out."""

CONTEXT = 1024
"""Tokens that a pre-trained model reads at once, at most, where nobody says how many."""

PERPLEXITIES = tuple(2.0**k for k in range(1, 13))
"""Bounds between which a model card says that the perplexity on held-out text lies."""

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Trained:
    """A model of one's own corpus: the study that made it, its measurements, and its promise.
    ``key`` is that of the corpus' hash in what is shown (:func:`crtlib.outputs.keyed`)."""

    study: CrtStudy
    fitted: Fitted
    rows: list[Row]
    guarantee: Guarantee | None
    promise: str
    provenance: dict[str, str | float]
    secure: bool = True
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    @property
    def holds(self) -> bool:
        """Whether the model carries a promise, so that it may be shown."""
        g = self.guarantee
        return self.secure and g is not None and g.delta < 1 and g.epsilon < float("inf")

    def value(self, metric: str) -> float:
        """A measurement that there is one of."""
        return next(value for name, _, _, value in self.rows if name == metric)

    def facts(self, name: str) -> Facts:
        """What a model card says of it."""
        study, model = self.study, self.fitted.run.model
        every = [p.numel() for p in model.parameters()]
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
            "settings": _settings(study),
            "perplexity": self.value("test_ppl"),
            "promise": self.promise,
        }  # fmt: skip

    def told(self) -> list[str]:
        """What a person is told at the end: sizes, noise, perplexity, the attack, the promise."""
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


def study_of(corpus: str | os.PathLike[str], **settings: Any) -> CrtStudy:
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
    if init != "random" and not data.is_corpus(init):
        plain = screened.is_screened(corpus) or not templates.chat_template(pretrained.place(init))
        chosen |= {"context": CONTEXT, "template": "speaker" if plain else "chat"}
        settings["model"] = "pretrained"
    return CrtStudy(
        corpus=str(Path(corpus).resolve()),
        dialogues=size - 2 * heldout - labelled,
        heldout=heldout,
        **chosen | settings,
    )


def sized(study: CrtStudy, prepared: Data, given: Facts) -> CrtStudy:
    """The study with what was not ``given`` chosen by the sizes of its model and of its text
    (:mod:`crtlib.experiments.sizes`).

    Private batches are Poisson samples of ``batch_size`` points in expectation, or of the share
    ``sampling_probability``; public ones have as many.
    """
    usual = sizes.usual(sizes.parameters(study), adapters=study.lora > 0)
    private = prepared.prepared.private
    count = len({p.user for p in private}) if study.how.by_user else len(private)
    every = len(prepared.prepared.all)
    size = given.get("batch_size") or sizes.batch(usual.batch_size, count or every)
    q = given.get("sampling_probability") or min(1.0, size / max(1, count))
    fixed = {
        "learning_rate": usual.learning_rate,
        "private_learning_rate": usual.private_learning_rate,
        "epochs": usual.epochs,
        "delta": sizes.delta(count),
        "clip_norm": 1.0,
        "pub_passes": max(1, min(10, count // max(1, len(prepared.prepared.public)))),
    }
    chosen = fixed | {k: v for k, v in given.items() if k in fixed}
    return replace(
        study, **chosen, batch_size=size, sampling_probability=q, normaliser=max(1.0, q * count)
    )


def _fitted(corpus: str | os.PathLike[str], settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with what the corpus decides: its policy, or how it was screened."""
    method = methods.by_name(settings.get("method", "crt"))
    if not screened.is_screened(corpus):
        settings.setdefault("unit", "turn")
        if method.reads_raw and "policy" not in method.reads:  # all of it is private, tokens too
            for name in ("policy", "conservative"):
                if settings.get(name, "everything") != "everything":
                    raise ValueError(
                        f"--{name}: {method.name} does not read it; a vocabulary learned from "
                        "what a policy lets pass would be outside of its promise"
                    )
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


def train_on(
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    workers: int | None = None,
    repeatable_noise: bool = False,
    memory: float | None = None,
    gradient_checkpointing: bool = False,
    odometer: str | os.PathLike[str] | None = None,
    trials: int = 1,
    labels: str | os.PathLike[str] | None = None,
    card: Callable[[Facts], str] | None = None,
    progress: bool = False,
    **settings: Any,
) -> Trained:
    """Screen and train on a corpus, attack the model, and say what it promises.

    Batches, and a key for the noise of each step, come from the operating system, unless
    ``repeatable_noise``: then they follow from ``seed``, which is right for an experiment and wrong
    for a release. The run is
    entered in the odometer of the corpus (:mod:`crtlib.accounting.odometer`), in the folder
    ``odometer`` or beside it, before its first step; ``trials`` is how many trainings saw the text
    before this one was chosen. ``labels`` is a folder of ``crtlib label``: its judging part gives
    the three rates, in place of the labels that the corpus came with. ``out`` names the folder for
    :func:`write`, with a README.md by ``card``; an unfinished training goes on from the folder
    ``OUT.work`` beside it. ``dtype`` "auto" is bfloat16 on a GPU; ``workers`` are threads of the
    CPU; ``memory`` (GiB) bounds one pass, and ``gradient_checkpointing`` makes it need less, for
    more time. The other ``settings`` are fields of :class:`CrtStudy`, such as ``unit``, ``method``,
    ``policy``, ``epsilon``; those not given or None follow from model and text (:func:`sized`).

    Of several processes (:mod:`crtlib.training.parallel`) all call it; the first one alone enters
    the run, attacks the model, promises and writes.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    device = _device(device, workers)
    study = study_of(corpus, **given, precision=_precision(dtype, device))
    if gradient_checkpointing and study.recurrent:
        raise ValueError("gradient_checkpointing=True: must be False for a recurrent model")
    prepared = _read(study)  # refuses what can be refused before anything is written
    study = sized(study, prepared, given)
    _check(out, corpus)
    prepared = _judged(study, prepared, labels)
    fit = partial(
        crt.fit,
        study,
        prepared=prepared,
        checkpoint=None if out is None else work(out) / "unfinished.pt",
        device=device,
        secure=not repeatable_noise,
        memory=memory,
        before=True,
        gradient_checkpointing=gradient_checkpointing,
        progress=progress,
    )
    if not parallel.crew().leads:
        return Trained(study.ready(), fit(), [], None, "", {}, secure=False)
    meter = record.meter(study.ready(), prepared, place=odometer, repeatable_noise=repeatable_noise)
    meter.mark = None if out is None else work(out) / "unfinished.run"
    fitted = fit(on_start=meter.start)
    rows = crt.measure(study, fitted)
    guarantee = fitted.guarantee(study.ready())
    origin = provenance(profile="custom", device=device, seconds=fitted.run.seconds)
    promise = _promise(guarantee, void := _void(study, meter, repeatable_noise))
    trained = Trained(study.ready(), fitted, rows, guarantee, promise, origin, secure=not void)
    if out is None:
        meter.finish(None)
    else:
        write(trained, out, meter, card=card, trials=trials)
        meter.done()
    return trained


def _read(study: CrtStudy) -> Data:
    """What the run reads. Where points are more than turns the vocabulary is that of the public
    points: a silent turn of a private one may hold a secret that no rate counts as public."""
    prepared = data.data(study)
    if study.unit == "turn" or study.how.reads_raw or study.brings_vocabulary:
        return prepared
    texts = [p.text for p in prepared.prepared.public]
    return replace(prepared, tokenizer=train_bpe(texts, vocab_size=study.vocab_size))


def _judged(study: CrtStudy, prepared: Data, labels: str | os.PathLike[str] | None) -> Data:
    """What a run reads, with the rates of its policies as a folder of labels, if any, judges
    them."""
    if labels is None:
        return prepared
    if study.how.reads_raw:
        raise ValueError(f"--labels: {study.method} redacts nothing that they could judge")
    if study.labelled:
        raise ValueError("--labels: teach the tagger by 'crtlib tagger --labels', not --labelled")
    if screened.is_screened(study.corpus):
        raise ValueError("--labels: the corpus is screened already; give them to 'crtlib screen'")
    counter, given = judge(
        study.corpus, labels, prepared.policies,
        names=(study.policy, study.conservative), unit=study.unit,
    )  # fmt: skip
    return replace(prepared, known=counter.rates(judged=given["judged"]), labels=given)


def _device(name: str, workers: int | None) -> str:
    """The device of this name, and so many threads of the CPU, as it is where None; of several
    processes each takes the GPU of its own number."""
    if workers is not None:
        check("workers", workers, 1 <= workers <= 1024, "in [1, 1024]")
        torch.set_num_threads(workers)
    device = device_by_name(name)
    if ":" in device and parallel.crew().size > 1:
        raise ValueError(f"device={device!r}: must be auto, cpu or cuda for several processes")
    return device


def _precision(dtype: str, device: str) -> str:
    """That of products: by name, or bfloat16 on a GPU."""
    check_choice("dtype", dtype, ("auto", "float32", "bfloat16"))
    if dtype == "auto":
        return "float32" if device == "cpu" else "bfloat16"
    return dtype


def _check(out: str | os.PathLike[str] | None, corpus: str | os.PathLike[str]) -> None:
    """Refuse a place for a model that holds something, or cannot be written: now, not later."""
    if out is None:
        return
    if outputs.marker(out) is not None:
        for name in ("unfinished.pt", "unfinished.run"):  # killed when it was done
            (work(out) / name).unlink(missing_ok=True)
        raise ValueError(f"--out: {out} is a finished model; train into another folder")
    if outputs.check_folder(out, inputs=[corpus]).exists():
        files.check_writable(out)


def work(out: str | os.PathLike[str]) -> Path:
    """The private folder beside a model, not for release: what is unfinished, exact scores."""
    place = Path(out).absolute()
    folder = place.with_name(f"{place.name}.work")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _void(study: CrtStudy, meter: record.Meter, repeatable_noise: bool) -> str:
    """What makes a promise void whatever its numbers are; nothing where it stands."""
    said = {
        "; noise and batches follow from a known seed: an experiment, not a release":
            repeatable_noise,
        "; void, as a policy read the labels themselves": record.oracle(study),
        "; void, as it started from a model that had learned this text without protection":
            meter.bare,
    }  # fmt: skip
    return "".join(text for text, applies in said.items() if applies)


def _promise(guarantee: Guarantee | None, void: str) -> str:
    """The guarantee in words, with what makes it ``void``."""
    if guarantee is None:
        return "no guarantee: this method adds no noise"
    text = str(guarantee)
    if guarantee.delta >= 1:
        text += (
            "; void, as delta is 1: no labelled secret tells what the policies miss. Label some "
            "turns, or use --conservative everything"
        )
    return text + void


def _settings(study: CrtStudy) -> dict[str, Any]:
    """The fields of a study without paths of this machine."""
    each = asdict(study) | {"corpus": Path(study.corpus).name}
    if study.brings_vocabulary:
        each["init"] = pretrained.base(study.init)
    if study.template not in templates.CANDIDATES:
        each["template"] = "chat"  # of the folder that is written
    for name in ("policy", "conservative"):
        each[name] = re.sub(r"[^+:]*/", "", each[name])
    return each


def write(
    trained: Trained,
    folder: str | os.PathLike[str],
    meter: record.Meter,
    *,
    card: Callable[[Facts], str] | None = None,
    trials: int = 1,
) -> None:
    """Write the model as a folder that ``transformers`` loads (a recurrent one as
    :mod:`crtlib.models.folder` does), with the study and the promise, through the gate
    (:mod:`crtlib.release.gate`); the marker comes last. What was measured goes into :func:`work`,
    for its owner alone. Others may read the model if it carries a promise. The run is finished in
    its odometer before the model takes its place; ``trials`` are for its record."""
    folder, fitted, study = Path(folder), trained.fitted, trained.study
    settings, aside = _settings(study), work(folder)
    spec = fitted.spec if fitted.spec is not None and fitted.spec.recurrent else None
    heard = gate.declare("held-out perplexity", trained.value("test_ppl"), PERPLEXITIES)
    known: list[gate.Source] = record.sources(trained, meter)
    released: list[gate.Release] = []
    with outputs.staged(
        folder,
        command="train",
        options=settings,
        inputs={"corpus": outputs.keyed(outputs.content(study.corpus), trained.key)},
        public=("*",) if trained.holds else (),
        seal=lambda _: released[0].close(meter.key, meter.run),
    ) as part:
        made = part / ".made"
        base = pretrained.base(study.init)
        kept.save(
            fitted.run, fitted.data.tokenizer, spec, made, record=aside / "run.json", base=base,
            template=fitted.data.template.source,
        )  # fmt: skip
        texts = {"experiment.json": json.dumps(settings, indent=1) + "\n"}
        texts["guarantee.txt"] = trained.promise + "\n"
        if card:
            facts = {**trained.facts(folder.name), "perplexity": heard.value}
            texts["README.md"] = card(facts)
            known.append(heard)
        weights = meter.finish(made / "model.safetensors").model
        saved = record.record(trained, meter, str(weights), trials=trials)
        released.append(record.release(part, made, texts, known))
        record.save(saved, aside, meter)
        # Before the model takes its place: a run that is killed after that is not done again.
        cell = {"guarantee": trained.promise, "rows": trained.rows, **trained.provenance}
        with files.replacing(aside / "results.json", mode=0o600) as results:
            results.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")
    (aside / "unfinished.pt").unlink(missing_ok=True)
