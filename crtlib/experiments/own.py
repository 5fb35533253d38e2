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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crtlib import files
from crtlib.accounting.guarantees import Guarantee
from crtlib.experiments import crt, data, record, tables
from crtlib.experiments.crt import CrtStudy, Fitted
from crtlib.experiments.spine import device_by_name
from crtlib.experiments.store import Row
from crtlib.screening.corpus import fitting
from crtlib.text import corpora, screened
from crtlib.training import kept, methods

LEAST = 12
"""Dialogues that a corpus needs at least, so that some can be held out."""


@dataclass(frozen=True)
class Trained:
    """A model of one's own corpus: the study that made it, its measurements, and its promise."""

    study: CrtStudy
    fitted: Fitted
    rows: list[Row]
    guarantee: Guarantee | None
    promise: str
    provenance: dict[str, str | float]


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
    chosen |= {"canaries": 0, "neighbouring_relation": "replace"} | settings
    return CrtStudy(
        corpus=str(Path(corpus).resolve()),
        dialogues=size - 2 * heldout - labelled,
        heldout=heldout,
        **chosen,
    )


def _fitted(corpus: str | os.PathLike[str], settings: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with what the corpus decides: its policy, or how it was screened."""
    method = methods.by_name(settings.get("method", "crt"))
    if not screened.is_screened(corpus):
        settings.setdefault("unit", "turn")
        if "policy" not in settings and "policy" in method.reads:
            settings["policy"] = fitting(corpus)
        return {"conservative": settings.get("policy", "everything")} | settings
    if method.reads_raw or method.flags_tokens:
        raise ValueError(f"--method {method.name}: reads the raw text; give the corpus, not it")
    before = screened.summary(corpus)
    own = {"policy": "none", "conservative": f"screened:{Path(corpus).resolve()}"}
    own |= {"unit": before["unit"], "dedup": "none", "canaries": 0, "gamma": 0.0, "labelled": 0}
    for name, value in settings.items():
        if name in own and value not in (own[name], 0):
            raise ValueError(f"{name}={value!r}: {corpus} is screened already; screen it anew")
    return settings | own


def train_on(
    corpus: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    repeatable_noise: bool = False,
    odometer: str | os.PathLike[str] | None = None,
    trials: int = 1,
    progress: bool = False,
    **settings: Any,
) -> Trained:
    """Screen and train on a corpus, attack the model, and say what it promises.

    Noise and batches come from the operating system's generator, unless ``repeatable_noise``: then
    they follow from ``seed``, which is right for an experiment and wrong for a release. The run is
    entered in the odometer of the corpus (:mod:`crtlib.accounting.odometer`), in the folder
    ``odometer`` or beside it, before its first step; ``trials`` is how many trainings saw the text
    before this one was chosen. ``out``
    names the folder for :func:`write`; an unfinished training goes on from there. The other
    ``settings`` are fields of :class:`CrtStudy`, such as ``unit``, ``method``, ``policy``,
    ``epsilon``.
    """
    study = study_of(corpus, **settings)
    device = device_by_name(device)
    prepared = data.data(study)  # refuses what can be refused before anything is written
    if out is not None:
        files.check_writable(out)  # shows now, not after hours
    mark = None if out is None else Path(out) / "unfinished.run"
    same = {"place": odometer, "mark": mark, "repeatable_noise": repeatable_noise}
    meter = record.meter(study.ready(), prepared, **same)
    fitted = crt.fit(
        study,
        prepared=prepared,
        checkpoint=None if out is None else Path(out) / "unfinished.pt",
        device=device,
        secure=not repeatable_noise,
        on_start=meter.start,
        progress=progress,
    )
    rows = crt.measure(study, fitted)
    guarantee = fitted.guarantee(study)
    origin = tables.provenance(profile="custom", device=device, seconds=fitted.run.seconds)
    promise = _promise(guarantee, repeatable_noise)
    trained = Trained(study.ready(), fitted, rows, guarantee, promise, origin)
    if out is None:
        meter.finish(None)
    else:
        write(trained, out)
        record.write(trained, meter, Path(out) / "model.safetensors", out, trials=trials)
    return trained


def _promise(guarantee: Guarantee | None, repeatable_noise: bool) -> str:
    """The guarantee in words, with what makes it void."""
    if guarantee is None:
        return "no guarantee: this method adds no noise"
    text = str(guarantee)
    if guarantee.delta >= 1:
        text += (
            "; void, as delta is 1: no labelled secret tells what the policies miss. Label some "
            "turns, or use --conservative everything"
        )
    if repeatable_noise:
        text += "; noise and batches follow from a known seed: an experiment, not a release"
    return text


def write(trained: Trained, folder: str | os.PathLike[str]) -> None:
    """Write the model, the study, the promise and the measurements; those of an earlier run never
    stand beside this model."""
    folder = Path(folder)
    for name in ("guarantee.txt", "results.json", record.NAME):
        (folder / name).unlink(missing_ok=True)
    fitted, study = trained.fitted, asdict(trained.study)
    study["corpus"] = Path(study["corpus"]).name  # no path of this machine
    kept.save(fitted.run, fitted.data.tokenizer, fitted.spec, folder)
    files.write_text(folder / "experiment.json", json.dumps(study, indent=1) + "\n")
    files.write_text(folder / "guarantee.txt", trained.promise + "\n")
    cell = {"guarantee": trained.promise, "rows": trained.rows, **trained.provenance}
    files.write_text(folder / "results.json", json.dumps(cell, indent=1) + "\n")
    (folder / "unfinished.pt").unlink(missing_ok=True)
