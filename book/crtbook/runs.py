"""Studies: trainings by CRT or by what it is compared with, and counts of what policies miss.

>>> from dataclasses import replace
>>> study = CrtStudy(method="sgd", model="lstm", gamma=0.0, seed=0, dialogues=20, heldout=10)
>>> noisy = replace(study, method="crt", noise_multiplier=2.0)
>>> noisy.key == replace(noisy, seed=1).key, replace(study, noise_multiplier=2.0).key == study.key
(False, True)

A finished training is kept in a folder: the model, and what was done to private points.

>>> import tempfile
>>> from crtlib.accounting.events import SampledGaussian
>>> from crtlib.models.construction import build_model
>>> from crtlib.text.tokenizer import train_bpe
>>> bpe = train_bpe(["hello"], vocab_size=270)
>>> spec = ModelSpec("lstm", bpe.vocab_size, embedding=4, hidden=4)
>>> folder = tempfile.mkdtemp()
>>> save_run(TrainingRun(build_model(spec, 0), [SampledGaussian(0.1, 1.0, 20)]), bpe, spec, folder)
>>> load_run(folder)[0].events
[SampledGaussian(sampling_probability=0.1, noise_multiplier=1.0, steps=20)]
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pandas as pd

from crtbook.study import Desk, Row, Study, make_rows
from crtlib import files, outputs
from crtlib.attacks import attack_registry
from crtlib.files import StrPath
from crtlib.models import model_folder, pretrained, smollm2
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, policy_names, rates, tagger
from crtlib.screening.policy import Policy
from crtlib.screening.rate_values import RATE_NAMES
from crtlib.studies import crt_study, study_data, study_run
from crtlib.studies.study_run import TrainedStudy
from crtlib.text import corpora, data_points
from crtlib.text.tokenizer import BpeTokenizer
from crtlib.training.run_state import EVENT_CLASSES, TrainingRun
from crtlib.values import NonEmptyStr, NonNegativeInt, PositiveInt, checked_dataclass


@checked_dataclass
class CrtStudy(crt_study.CrtStudy, Study):
    """A :class:`crtlib.studies.crt_study.CrtStudy` that a sweep can run."""

    LATER = frozenset(
        [
            "optimizer",
            "long",
            "lora",
            "lora_alpha",
            "lora_targets",
            "precision",
            "template",
            "search_block",
            "audited",
            "coin",
            "split",
        ]
    )

    def reads(self) -> Iterable[str]:
        """Fingerprints of the corpora, the starting point and the policies' folders, and the names
        of attacks from other packages: a run that was stored without these lacks their rows."""
        built_in = {attack.name for attack in attack_registry.BUILT_IN_ATTACKS}
        yield from (
            f"attack {name}" for name in attack_registry.all_attacks() if name not in built_in
        )
        yield corpora.corpus_fingerprint(self.corpus)
        if crt_study.is_corpus(self.init):
            yield corpora.corpus_fingerprint(self.init)
        elif self.init != "random":
            yield pretrained.model_fingerprint(self.init)
        if Path(self.template).is_file():
            yield Path(self.template).read_text(encoding="utf-8")
        for name in (self.policy, self.conservative):
            if ":" in name:
                yield pretrained.model_fingerprint(name.partition(":")[2])

    def lacks(self) -> str | None:
        """The corpus, where it is missing or not large enough; the missing packages of a model."""
        if self.init == smollm2.SMOLLM2_NAME and (lacking := smollm2.missing_smollm2_packages()):
            return f"{self.init}: {lacking}"
        size = self.dialogues + 2 * self.heldout
        missing_start = describe_missing_data(self.init) if crt_study.is_corpus(self.init) else None
        missing_corpus = describe_missing_data(self.corpus, size, self.labelled, self.search_block)
        return missing_corpus or missing_start

    def cost(self) -> float:
        """CPU seconds, from runs measured on one core: an LSTM of 200 reads 1,000 dialogues in ten
        seconds, one of 64 in three; a small GPT-2 takes three times as long. Adapters of a model of
        135 M parameters read five dialogues in six seconds, and attacks on it take half a minute.
        """
        if self.model == "pretrained":
            return 30 + 1.2 * self.epochs * (self.dialogues + self.canaries * self.copies / 9)
        width = 1e-3 * (2 + 8 * math.pow(self.hidden / 200, 1.5)) * self.layers
        passes = self.epochs * (1 + 0.5 * self.training_method.private) + 4
        return self.dialogues * passes * width * (3 if self.model == "gpt2" else 1)

    def memory(self) -> float:
        """GiB: the points and their scores, and the model with Adam's moments, twice. One of 135 M
        parameters with adapters was measured at 3.5."""
        if self.model == "pretrained":
            return 3.5
        return 0.6 + self.dialogues / 8e3 + 4e-9 * 16 * self.layers * self.hidden**2 * 8

    def run(self, desk: Desk) -> list[Row]:
        """Train, unless the desk has the model already; then measure."""
        fitted = restore_training(self, desk.model) if desk.model else None
        if fitted is None:
            fitted = study_run.fit_study(self, checkpoint=desk.checkpoint, device=desk.device)
            if desk.model:
                save_run(fitted.run, fitted.data.tokenizer, fitted.spec, desk.model)
        return study_run.measure_study(self, fitted)


def restore_training(study: CrtStudy, folder: StrPath) -> TrainedStudy | None:
    """The finished training of ``study`` that is stored in ``folder``, or None."""
    loaded = load_run(folder)
    if loaded is None:
        return None
    run, tokenizer, spec = loaded
    d = study_data.prepare_data(study)
    if tokenizer.fingerprint != d.tokenizer.fingerprint:
        raise ValueError(f"{folder}: its tokenizer is not the one of this study's data")
    phases = crt_study.schedule_phases(study, has_public=bool(d.prepared.public))
    return TrainedStudy(run, d, phases, spec)


def describe_missing_data(
    corpus: str, dialogues: int = 0, labelled: int = 0, search_block: int = 0
) -> str | None:
    """What is missing here to read ``dialogues`` dialogues of this corpus, ``labelled`` more that
    teach a policy, and those that only the search reads: ``search_block``, or as many as this run
    if it is 0. None if nothing is."""
    if not corpora.is_corpus_available(corpus):
        return f"{corpus}: is not here; CRTLIB_DATA must name a folder that holds it"
    if not corpora.is_corpus_available(corpus, "train"):
        return f"{corpus}: its training split is not here"
    if corpora.find_source(corpus).draw or not dialogues:
        return None
    reserve = (search_block or dialogues) if crt_study.is_corpus(corpus) else 0
    needed = dialogues + reserve + labelled
    size = _count_dialogues(corpus, needed)
    if size < needed:
        return f"{corpus}: has {size} dialogues here, {needed} are needed"
    return None


@functools.lru_cache(maxsize=64)
def _count_dialogues(corpus: str, needed: int) -> int:
    """The number of dialogues of a corpus, counted up to ``needed``: reading all takes seconds."""
    return len(corpora.load_corpus(corpus, limit=needed))


# --------------------------------------------------------------------------- models that are kept
def save_run(
    run: TrainingRun,
    tokenizer: BpeTokenizer,
    spec: ModelSpec | None,
    folder: StrPath,
) -> None:
    """Write model, shape, tokenizer and what was done, each atomically. ``run.json`` comes last and
    holds the SHA-256 of the others, so if it is there and agrees, the folder is complete. Without a
    ``spec`` the folder is one of ``transformers``."""
    folder = Path(folder)
    record = folder / "run.json"
    record.unlink(missing_ok=True)  # an earlier model in this folder is no longer complete
    names = model_folder.save_model(run.model, tokenizer, spec, folder)
    summary = {
        **run.facts(),
        "sha256": {name: outputs.hash_file(folder / name) for name in names},
    }
    files.write_text(record, json.dumps(summary) + "\n", mode=0o600)


def load_run(folder: StrPath) -> tuple[TrainingRun, BpeTokenizer, ModelSpec | None] | None:
    """What :func:`save_run` wrote to ``folder``; None where nothing is there, or it is damaged."""
    folder = Path(folder)
    try:
        summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if any(outputs.hash_file(folder / name) != sha for name, sha in summary["sha256"].items()):
            return None
        model, tokenizer, spec = model_folder.load_saved_model(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    events = [EVENT_CLASSES[event.pop("type")](**event) for event in summary["events"]]
    run = TrainingRun(
        model, events, summary["history"], summary["seconds"], Counter(summary["updates"])
    )
    return run, tokenizer, spec


# --- what policies miss ---------------------------------------------------------------------------
TAUGHT = ("tagger", "tagger_conservative")
"""Policies that a study teaches itself, from the labelled part of its corpus."""


@checked_dataclass
class ScreeningStudy(Study):
    """What a pair of policies misses: the three rates that the theorem needs, with ``policy`` as pi
    and ``conservative`` as pi_c, on ``heldout`` dialogues of each of two parts that taught no
    policy; ``labelled`` other dialogues teach the tagger. Each point is judged alone: which
    messages are repeated depends on the text that is trained on, and here there is none.

    >>> study = ScreeningStudy(seed=0, policy="regex:customersim", heldout=20)
    >>> found = {name: number for name, _, _, number in study.run(Desk())}
    >>> found["trace_count"], found["trace_of"], found["trace_upper"] < 0.1
    (0.0, 40.0, True)
    """

    policy: NonEmptyStr
    conservative: NonEmptyStr = "everything"
    corpus: NonEmptyStr = crt_study.DEFAULT_CORPUS
    unit: Literal["turn", "dialogue"] = "turn"
    labelled: NonNegativeInt = 0
    heldout: PositiveInt = 100

    def reads(self) -> Iterable[str]:
        """Fingerprints of the corpus and of the policies' folders."""
        yield corpora.corpus_fingerprint(self.corpus)
        for name in (self.policy, self.conservative):
            if name.startswith(("tagger:", "tagger_conservative:", "list:")):
                yield pretrained.model_fingerprint(name.partition(":")[2])

    def lacks(self) -> str | None:
        """The corpus, where it is missing or not large enough."""
        return describe_missing_data(self.corpus, 1 + 2 * self.heldout, self.labelled)

    def cost(self) -> float:
        """CPU seconds: teaching takes most of it."""
        parts = f"{self.policy}+{self.conservative}".split("+")
        taught_parts = sum(part in TAUGHT for part in parts)
        return 2 + 0.02 * self.heldout + 0.15 * self.labelled * taught_parts

    def run(self, desk: Desk) -> list[Row]:
        """The count, the number judged, the rate and the upper bound of each rate, and the share
        of points that pi flags."""
        split = study_data.split_corpus(
            self.corpus, "paper", 1, self.heldout, self.seed, self.labelled
        )
        points = tuple(
            p
            for part in (split.valid, split.test)
            for p in data_points.make_points(part, self.unit)
        )
        pi, pi_c = (self._policy(name) for name in (self.policy, self.conservative))
        flags, conservative_flags = pi(points), pi_c(points)
        counter = rates.RateCounter(pi, pi_c)
        counter.add(points, flags=flags, conservative_flags=conservative_flags)
        measured = counter.rates()
        either = [bool(f or c) for f, c in zip(flags, conservative_flags, strict=True)]
        metrics: dict[str, float] = {"points": len(points), "private": sum(either) / len(points)}
        metrics["flagged"] = sum(map(bool, flags)) / len(points)
        for name in RATE_NAMES:
            rate = getattr(measured, name)
            metrics |= {f"{name}_count": rate.failures, f"{name}_of": rate.judged_secrets}
            metrics |= {f"{name}_rate": rate.rate or 0.0, f"{name}_upper": rate.upper_bound}
        return make_rows(metrics)

    def _policy(self, name: str) -> Policy:
        parts = [self._part(part) for part in name.split("+")]
        return parts[0] if len(parts) == 1 else policy_changes.union_policy(*parts)

    def _part(self, name: str) -> Policy:
        if name not in TAUGHT:
            return policy_names.policy_by_name(name, self.corpus)
        split = study_data.split_corpus(
            self.corpus, "paper", 1, self.heldout, self.seed, self.labelled
        )
        trained = tagger.train_tagger(
            data_points.make_points(split.labelled, unit=self.unit), seed=self.seed
        )
        return (tagger.tagger_policy if name == "tagger" else tagger.conservative_tagger_policy)(
            trained
        )


def tabulate_by_pair(table: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds: one row for each corpus and pair of policies, one column per metric."""
    keys = ["corpus", "policy", "conservative"]
    return table.pivot_table(index=keys, columns="metric", values="value", sort=False).reset_index()
