"""What a training leaves for its certificate: its line in the odometer, and ``record.json``.

The record is private (0600) and signed. It holds what :mod:`crtlib.release.certify` says beside the
promise, which is that of the released files: rates with bounds, hashes of the text, the labels, the
policies and the model, what was planted, the versions. It holds no text.

>>> policy_hash("oracle") == policy_hash("oracle"), policy_hash("oracle") == policy_hash("none")
(True, False)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
import secrets
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import crtlib
from crtlib import files, outputs
from crtlib.accounting import odometer
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.accounting.ledger import SampledGaussian
from crtlib.experiments import crt
from crtlib.experiments.crt import CrtStudy, Data, Fitted
from crtlib.files import Named
from crtlib.models.folder import tensors
from crtlib.models.pretrained import fingerprint
from crtlib.release import gate
from crtlib.screening import policies
from crtlib.screening.rates import ALPHA, UNKNOWN, Rate, Rates, assumed
from crtlib.text import corpora, folders
from crtlib.text.canaries import USER
from crtlib.text.records import Corpus
from crtlib.training import methods
from crtlib.training.loop import Run
from crtlib.training.methods import Terms
from crtlib.training.phases import Event, PrivatePhase, PublicPhase, SelectivePhase

SCHEMA = "crtlib/run/2"
NAME = "record.json"
SEEDED = "The noise follows from a known seed, so who knows it can take the noise away"
RAW = Rates(assumed(1.0), assumed(1.0), Rate(0, 0, 0.0, "policy"))
"""The rates of who reads raw text: nothing is redacted, and all of it is private."""
KINDS = {"differential privacy": "dp", "Bayesian confidentiality": "bayesian_confidentiality"}


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def policy_hash(name: str) -> str:
    """SHA-256 of what a policy is: this version, its name, the files that it reads, and its code,
    where that is another package's."""
    return _sha([crtlib.__version__, policies.digest(name)])


# --------------------------------------------------------------------------- the odometer
@dataclass
class Meter:
    """Enters one training into the odometer of its corpus and the registry: :meth:`start` before
    its first step, :meth:`finish` after, :meth:`done` when its model is where it belongs. ``mark``
    is a file beside the checkpoint that names the run and its place, so that one that goes on
    there is not counted twice. ``secret``: nobody knows the noise; ``protects``: there is some."""

    folder: Path
    facts: dict[str, Any]
    secret: bool
    protects: bool
    mark: Path | None = None
    entry: odometer.Entry | None = None
    registry: odometer.Registry = field(default_factory=lambda: odometer.Registry(odometer.home()))

    def start(self, events: Sequence[Event], resumed: bool) -> None:
        """Enter the run with all that it may spend. One that goes on replaces what it had entered;
        one that was killed before its first checkpoint counts, as it may have taken steps, and so
        does one whose checkpoint was copied from elsewhere."""
        every = [e for e in events if isinstance(e, SampledGaussian)]
        run = secrets.token_hex(16)
        if self.mark:
            place = self.mark.resolve()
            if resumed and self.mark.exists():
                name, _, marked = self.mark.read_text().partition(" ")
                run = name if marked == f"{place}\n" else run
            files.write_text(self.mark, f"{run} {place}\n")  # first: a kill is no second run
        self.entry = odometer.add(
            self.folder, registry=self.registry, run=run, state="started",
            events=every if self.protects else None, **self.facts,
        )  # fmt: skip

    def finish(self, model: Path | None) -> odometer.Entry:
        """Enter that the run is over, and the hashes of its model, whose weights are a file."""
        assert self.entry is not None  # training has begun
        hashes = {"model": outputs.sha256(model), "tensors": tensors(model.parent)} if model else {}
        self.entry = odometer.again(
            self.folder, self.entry, registry=self.registry, state="finished", **hashes
        )
        return self.entry

    def done(self) -> None:
        """Forget how the run is called: its model is where it belongs."""
        if self.mark:
            self.mark.unlink(missing_ok=True)

    @property
    def spent(self) -> odometer.Spent:
        """What was spent before on this text, and whether what it started from had learned it."""
        run = self.entry.run if self.entry else None
        bases = {self.facts["base"], self.facts["base_tensors"]} - {None} if run is None else ()
        return odometer.history(self.folder, self.registry, run).spent(run, bases)

    @property
    def key(self) -> Ed25519PrivateKey:
        """That of what it signs."""
        return gate.key_in(self.folder)

    @property
    def run(self) -> str:
        """How the run is called in the odometer."""
        assert self.entry is not None  # training has begun
        return self.entry.run

    def origin(self, init: str) -> list[gate.Source]:
        """What is known of the noise, and of the model that it started from: one of crtlib is in a
        ledger here. What that one assumed of its own start is assumed here."""
        if not self.secret:
            return [gate.Raw(SEEDED), *replace(self, secret=True).origin(init)]
        if not Path(init).is_dir():
            return [] if init == "random" else [gate.Base(init, "outside")]
        lines = [*odometer.read(self.folder), *self.registry.entries()]
        hashes = {self.facts["base"], self.facts["base_tensors"]} - {None}
        name = Path(init).name
        if not any({e.model, e.tensors} & hashes for e in lines):
            ours = (outputs.marker(init) or {}).get("command") == "train"
            return [gate.Base(name, "unknown" if ours else "outside")]
        before: list[gate.Source] = [gate.Base(f"what {name} started from", "outside")]
        with contextlib.suppress(ValueError):  # of weights that were copied nothing else is here
            if not (released := gate.read(init)).altered:
                before = [s for s in released.sources if isinstance(s, gate.Base)]
        return [gate.Base(name, "known"), *(s for s in before if s != gate.Base(name, "known"))]

    def told(self) -> dict[str, str]:
        """Where the run is entered, for its record."""
        assert self.entry is not None
        return {"folder": str(self.folder.resolve()), "run": self.entry.run,
                "entry": self.entry.entry, "screening": self.entry.screening,
                "before": " ".join(sorted({e.run for e in self.spent.entries})),
                "forgotten": str(self.registry.forgotten(self.facts["corpus"]))}  # fmt: skip


def opened(
    corpus: Named,
    facts: Mapping[str, Any],
    *,
    place: Named | None,
    init: str,
    secret: bool,
    protects: bool,
) -> Meter:
    """The odometer of a training, in ``place`` or beside its corpus, made where there is none; the
    registry knows the corpus then. ``facts`` go into every line.

    Raises ``ValueError`` for the odometer of another corpus or a broken one, and where it cannot be
    written.
    """
    sha = corpora.corpus_hash(corpus)
    beside = odometer.find(corpus, sha)
    home = Path(place) if place is not None else beside
    if (beside / odometer.LEDGER).is_file() and beside.resolve() != home.resolve():
        raise ValueError(f"--odometer: {place}: this text has one already, {beside}; name that")
    weights = Path(init) / "model.safetensors"
    base = {"base": outputs.sha256(weights) if weights.is_file() else None,
            "base_tensors": tensors(init)}  # fmt: skip
    ours = {"corpus": sha, **base, "about": corpora.sizes(corpus), **facts}
    meter = Meter(home, ours, secret=secret, protects=protects)
    try:
        if home.is_dir():
            odometer.reserve(home, sha, meter.registry)
        files.check_writable(
            next(p for p in (home.absolute(), *home.absolute().parents) if p.is_dir())
        )
        meter.registry.register(sha, corpora.units(corpus))
    except OSError as error:
        where = meter.registry.folder if str(meter.registry.folder) in str(error) else home
        raise ValueError(f"odometer: {where} cannot be written; name a folder that can") from None
    if home.is_dir():  # else it is made with its first line: what is refused before leaves none
        odometer.check_corpus(home, odometer.read(home), sha)
    return meter


def meter(
    study: CrtStudy,
    prepared: Data,
    *,
    place: Named | None = None,
    repeatable_noise: bool = False,
    trials: int = 1,
) -> Meter:
    """That of a study (:func:`opened`). Noise that follows from a known seed protects nobody, so
    such a run counts as one without."""
    rates = _rates(study, prepared)
    both = {"trace": rates.trace, "public": rates.public}
    counted = {
        n: (r.count, r.of, *(r.again or ())) for n, r in both.items() if r.how == "one_per_cluster"
    }
    facts = {
        "counted": {"labels": _labels(study, prepared)["sha256"], **counted} if counted else {},
        "unit": _unit(study),
        "method": study.method,
        "relation": study.neighbouring_relation,
        "screening": _screening(study, corpora.corpus_hash(study.corpus)),
        "gamma": rates.gamma,
        "delta2": rates.delta2,
        "holds": _holds(study),
        "trials": trials,
    }
    secret = not repeatable_noise
    protects = _protects(study) and secret
    return opened(
        study.corpus, facts, place=place, init=study.init, secret=secret, protects=protects
    )


def _protects(study: CrtStudy) -> bool:
    """Whether there is a bound for what a policy passes over: what the method promises where one
    secret in two is, is asked for a step with much noise."""
    if not study.noise_multiplier:
        return False
    half = MissRate(0.5)
    terms = Terms(
        gamma=half, delta2=MissRate(0.0), delta=1e-3, unit=study.unit, accountant="rdp",
        neighbouring_relation="replace", public="",
    )  # fmt: skip
    promise = study.how.promise((SampledGaussian(0.1, 5.0, 1),), terms)
    return promise is not None and promise.kind in KINDS and promise.epsilon < math.inf


def _unit(study: CrtStudy) -> str:
    return "user" if study.how.by_user else study.unit


def _screening(study: CrtStudy, corpus: str) -> str:
    """What decides which secrets stay in the text: equal for runs that read the same redactions."""
    if study.how.reads_raw:
        return _sha([corpus, "raw"])
    if before := study.screening:
        names = ("policy_sha256", "conservative_sha256", "unit", "gamma", "seed")
        return _sha([corpus, *(before[name] for name in names)])
    dial = [study.gamma, study.per, study.seed, study.dialogues] if study.gamma else []
    read = [policy_hash(study.policy), policy_hash(study.conservative), study.labelled]
    words = ["own words"] if study.template != "speaker" else []  # what the policies were shown
    return _sha([corpus, study.unit, *read, dial, *words])


def private(study: CrtStudy, prepared: Data) -> int:
    """How many private points a training draws from: persons, where the noise is theirs."""
    points = prepared.prepared.private
    return len({p.user for p in points}) if study.how.by_user else len(points)


def _holds(study: CrtStudy) -> dict[str, int]:
    """How many points of a smaller unit one of this unit holds at the most."""
    if _unit(study) == "turn":
        return {}
    return corpora.sizes(study.corpus)[_unit(study)]


def _rates(study: CrtStudy, prepared: Data) -> Rates:
    return RAW if study.how.reads_raw else prepared.rates


# --------------------------------------------------------------------------- the record
def record(
    how: Mapping[str, Any], run: Run, init: str, meter: Meter, key: bytes, model: str
) -> dict[str, Any]:
    """All that a certificate says of a finished training: ``how`` it was done, versions, the model,
    whose weights have the SHA-256 ``model``, and where it is entered. ``key``: that of hashes in
    what is shown."""
    weights = list(run.model.parameters())
    base = None if init == "random" else {"name": Path(init).name, "sha256": fingerprint(init)}
    facts, plan = meter.facts, "plan" in how
    return {
        "schema": SCHEMA,
        "key": key.hex(),
        "software": {"crtlib": crtlib.__version__, "python": platform.python_version(),
                     "torch": torch.__version__},
        "model": {"sha256": model, "parameters": sum(p.numel() for p in weights),
                  "trained_parameters": sum(p.numel() for p in weights if p.requires_grad),
                  "base": base},
        "unit": facts["unit"],
        "method": {"name": facts["method"], "label": methods.by_name(facts["method"]).label},
        "randomness": "operating_system" if meter.secret else "seed",
        "searched": {"trials": facts["trials"], "charged": not plan},
        "odometer": meter.told(),
        **({"processes": run.processes} if run.processes > 1 else {}),  # that trained together
        **how,
    }  # fmt: skip


def of_study(
    study: CrtStudy, fitted: Fitted, promise: Guarantee | None, meter: Meter
) -> dict[str, Any]:
    """How the training of a study was done, for :func:`record`."""
    d = fitted.data
    rates = _rates(study, d)
    return {
        "corpus": _corpus(study, meter.facts["corpus"]),
        "protects_all": promise is None or promise.kind in KINDS,
        "accountant": study.accountant,
        "delta": study.delta,
        "phases": _phases(study, fitted),
        "rates": rates.to_json(),
        "labels": None if rates is RAW or rates.trace.how == UNKNOWN.how else _labels(study, d),
        "policies": _policies(study, d),
        "oracle_on_real_text": oracle(study),
        "treated_as_public": [promise.public] if promise and promise.public else [],
        "canaries": _canaries(study, d),
        "settings": asdict(study) | {"corpus": Path(study.corpus).name},
    }


def sources(study: CrtStudy, fitted: Fitted, meter: Meter, key: bytes) -> list[gate.Source]:
    """What a finished training, with its vocabulary and all that is said of it, may know of the
    text: of each kind of steps that ran, and of what the model started from."""
    run, how, facts = fitted.run, study.how, meter.facts
    name = outputs.keyed(facts["screening"], key)  # a plain hash would tell of the text
    screening = gate.Screening(name, facts["gamma"], facts["delta2"])
    redacted = gate.Redacted("redacted text", screening)
    raw = gate.Raw("The weights were learned from raw text without noise")
    every: list[gate.Source] = [gate.Constant("settings and sizes")]
    events = tuple(e for e in run.events if isinstance(e, SampledGaussian))
    if events and all(e.noise_multiplier for e in events):
        holds = tuple(facts["holds"].items())
        read = None if how.reads_raw else screening
        every.append(gate.Noised(meter.run, facts["unit"], facts["relation"], events, read, holds))
        count = private(study, fitted.data)
        every.append(gate.declare("number of private points", count, gate.POINTS))
    elif run.updates["private"]:
        every.append(raw if how.reads_raw else redacted)
    if (trials := facts["trials"]) > 1:  # by what is held out, which no noise protects
        among = ("this one", *(f"another, {k}" for k in range(1, trials)))
        every.append(gate.Declared("the choice among those compared", among[0], among))
    for phase in fitted.schedule:  # what ran, whatever its method says of itself
        if type(phase) not in (PublicPhase, PrivatePhase, SelectivePhase):
            every.append(gate.Raw("A phase of another package: what it does is not known here"))
        elif "public" in phase.rates():
            apart = phase.part == "public"
            clean = phase.reads_flags or (apart and how.reads_redacted)
            passed = gate.Screened("public steps", screening) if apart else redacted
            every.append(redacted if clean else raw if how.reads_raw else passed)
    if study.conservative == "everything" and not study.brings_vocabulary:
        every.append(gate.Constant("a vocabulary of single bytes"))
    elif not study.brings_vocabulary:  # what reads raw text has no rate of what screening let pass
        let = gate.Raw("The vocabulary was learned from what the policies let pass, unmeasured")
        every.append(let if how.reads_raw else gate.Screened("vocabulary", screening))
    return every + meter.origin(study.init)


def release(
    part: Path,
    made: Path,
    texts: Mapping[str, gate.Value],
    known: Sequence[gate.Source],
) -> gate.Release:
    """The folder ``part`` as it is to be released: the files of a model, which lie in the private
    folder ``made``, which may know what is ``known``, and ``texts``, which may know more."""
    out = gate.Release(part)
    out.adopt(made, *known)
    shutil.rmtree(made)
    every = frozenset(known).union(*(text.sources for text in texts.values()))
    for name, text in texts.items():
        out.write(name, gate.Value(text.content, every))
    return out


def save(content: Mapping[str, Any], folder: Named, meter: Meter) -> None:
    """Write ``record.json`` (0600), signed by the key beside the odometer."""
    text = json.dumps(gate.signed(content, meter.key), indent=1, allow_nan=False)
    files.write_text(Path(folder) / NAME, text + "\n", mode=0o600)


def _corpus(study: CrtStudy, sha: str) -> dict[str, Any]:
    """What was read of the corpus: the part that trained, without canaries; the hash of it all."""
    read: Corpus = crt.splits(
        study.corpus, study.variety, study.dialogues, study.heldout, study.seed, study.labelled
    ).train
    if before := study.screening:  # a point is a dialogue there, and may stand for several turns
        known = before["about"]
        dates = {name: known[name] for name in ("users_are", "from", "to")}
        said = folders.turns(study.corpus)
        turns = sum(said[d.id] for d in read.dialogues)
        name = before["corpus"]
        users = len({d.user for d in read.dialogues})
        return {"name": name, "sha256": sha, "turns": turns, "users": users, **dates}
    return about(study.corpus, read, sha)


def about(corpus: Named, read: Corpus, sha: str) -> dict[str, Any]:
    """What a certificate says of a corpus of which ``read`` was trained on."""
    users = {d.user for d in read.dialogues}
    facts = folders.facts(corpus) if Path(corpus).is_dir() else None
    users_are = "unknown" if "" in users else facts.users_are if facts else "column"
    if users_are == "column" and any(d.user == d.id for d in read.dialogues):
        users_are = "thread"
    return {
        "name": Path(corpus).name,
        "sha256": sha,
        "turns": sum(len(d.turns) for d in read.dialogues),
        "users": len(users),
        "users_are": users_are,
        "from": facts.first if facts else None,
        "to": facts.last if facts else None,
    }


def _phases(study: CrtStudy, fitted: Fitted) -> list[dict[str, Any]]:
    """The public steps and the private ones. How many gradients were no finite number is exact
    and private: it is not told here."""
    run, prepared = fitted.run, fitted.data.prepared
    every = len(prepared.public) + len(prepared.private)
    parts = {phase.part for phase in fitted.schedule if isinstance(phase, PublicPhase)}
    phases: list[dict[str, Any]] = []
    if run.updates["public"]:
        points = len(prepared.public) if parts == {"public"} else every
        phases.append({"kind": "public", "points": points, "steps": run.updates["public"]})
    events = [e for e in run.events if isinstance(e, SampledGaussian)]
    steps = Counter[tuple[float, float]]()
    for e in events:
        steps[e.noise_multiplier, e.sampling_probability] += e.steps
    for (noise, probability), n in steps.items():
        count = gate.rounded(private(study, fitted.data))
        phases.append({"kind": "private", "points": count, "steps": n,
                       "noise_multiplier": noise, "sampling_probability": probability,
                       "clip_norm": study.clip_norm})  # fmt: skip
    return phases


def _labels(study: CrtStudy, d: Data) -> dict[str, Any]:
    """The labels that judged: those of the screening, those that people made for this training, or
    those of the corpus itself, which nobody drew for this."""
    if before := study.screening:
        counts = {k: v for k, v in before["labels"].items() if k != "left_out"}
        inline = _sha(["labels of the corpus", before["corpus_sha256"]])
        counts["judged"] = d.rates.judged  # since it was screened
        return counts | {"sha256": counts["sha256"] or inline, "alpha": ALPHA}
    counts = {k: v for k, v in d.rates.labels_json().items() if k != "left_out"}
    if d.labels is not None:
        return counts | dict(d.labels) | {"alpha": ALPHA}
    points = d.checked[0]
    spans = [[p.id, [[s.kind, s.start, s.end] for s in p.secrets]] for p in points]
    same: dict[str, Any] = {"sha256": _sha(spans), "drawn": "given", "agreement": None}
    return counts | same | {"alpha": ALPHA}  # that of both bounds together


def _policies(study: CrtStudy, d: Data) -> dict[str, Any]:
    """Both policies; of a screened folder those that screened it."""
    said = study.screening or {
        "policy": policies.plain(study.policy),
        "policy_sha256": policy_hash(study.policy),
        "conservative": policies.plain(study.conservative),
        "conservative_sha256": policy_hash(study.conservative),
        "taught_by": {"policy": d.policies[0].teachers, "conservative": d.policies[1].teachers},
    }
    return {
        key: {"name": said[name], "sha256": said[f"{name}_sha256"],
              "taught_by": said["taught_by"][name]}
        for key, name in {"pi": "policy", "pi_c": "conservative"}.items()
    }  # fmt: skip


def oracle(study: CrtStudy) -> bool:
    """Whether a policy reads the labels of text that nobody simulated."""
    said = study.screening
    if said:
        made = said["about"]["simulated"]
    else:
        said = vars(study)
        made = (outputs.marker(study.corpus) or {}).get("command") == "simulate"
    return not made and "oracle" in f"{said['policy']}+{said['conservative']}".split("+")


def _canaries(study: CrtStudy, d: Data) -> dict[str, Any]:
    """What was planted, and which of it training read, in clear, with noise or without."""
    public = {p.text for p in d.prepared.public}
    private = {p.text for p in d.prepared.private}
    values: dict[str, str] = {
        p.user.removeprefix(USER): p.text for p in d.points if p.user.startswith(USER)
    }
    return {
        "planted": len(d.canaries),
        "copies": study.copies if d.canaries else 0,
        "seed": study.seed,
        "in_public": sorted(int(k) for k, text in values.items() if text in public),
        "in_private": sorted(int(k) for k, text in values.items() if text in private),
    }
