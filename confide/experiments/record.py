"""What a training leaves: the model, its line in the odometer, and ``record.json``.

The record is private (0600) and signed. It holds what :mod:`confide.release.certify` says beside
the promise, which is that of the released files: rates with bounds, hashes of the text, the labels,
the policies and the model, what was planted, the versions. It holds no text.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import crtlib
from confide import odometer
from confide.release import certify, gate
from confide.screening.corpus import by_likeness
from crtlib import files, outputs
from crtlib.accounting.guarantees import Guarantee, MissRate
from crtlib.accounting.ledger import SampledGaussian
from crtlib.experiments.crt import CrtStudy, Data, Fitted, Row
from crtlib.files import Named
from crtlib.models import folder as model_folder
from crtlib.models.folder import tensors
from crtlib.models.pretrained import base, fingerprint
from crtlib.screening import policies
from crtlib.screening.rates import ALPHA, UNKNOWN, Rate, Rates, assumed
from crtlib.screening.redaction import CERTIFIABLE
from crtlib.text import corpora, folders
from crtlib.text.canaries import USER
from crtlib.text.records import Corpus, Point
from crtlib.training.loop import Run
from crtlib.training.methods import Terms
from crtlib.training.phases import Event, PrivatePhase, PublicPhase, SelectivePhase

SCHEMA = "crtlib/run/2"
NAME = "record.json"
PERPLEXITIES = tuple(2.0**k for k in range(1, 13))
"""Bounds between which a model card says that the perplexity on held-out text lies."""
SEEDED = "The noise follows from a known seed, so who knows it can take the noise away"
RAW = Rates(assumed(1.0), assumed(1.0), Rate(0, 0, 0.0, "policy"))
"""The rates of who reads raw text: nothing is redacted, and all of it is private."""
KINDS = {"differential privacy", "Bayesian confidentiality"}
"""Promises of what a policy passes over, too."""

Facts = Mapping[str, Any]
Card = Callable[[Facts], str]


def _sha(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def policy_hash(name: str) -> str:
    """SHA-256 of what a policy is: this version, its name, the files that it reads, and its code,
    where that is another package's."""
    return _sha([crtlib.__version__, policies.digest(name)])


@dataclass(frozen=True)
class Trained:
    """A finished training of any method: its model, what it promises, and what is said of it.

    ``promise`` is that of its certificate at the end of the training, in words, and ``holds``
    whether it does. ``facts`` are for ``--json`` and a model card, ``lines`` for a person;
    ``settings`` say how it was made, without paths of this machine. ``saved`` lies beside the
    weights; all that leaves may know the ``sources``. ``record`` is what a certificate says of how
    it was done.

    Of a study there are its ``rows`` of measurements. Of a plan, ``secrets`` has a row each, by
    pseudonym: what was promised, and the ``posterior`` that was accounted for what was done;
    ``kept``: each is within its promise. Training that was cut short may have spent more.
    """

    run: Run
    facts: Facts
    settings: Facts
    saved: Facts
    sources: Sequence[gate.Source]
    record: Facts
    promise: str = ""
    holds: bool = False
    lines: Sequence[str] = ()
    study: CrtStudy | None = None
    fitted: Fitted | None = None
    rows: Sequence[Row] = ()
    secrets: pd.DataFrame | None = None
    kept: bool = True


# --------------------------------------------------------------------------- the odometer
@dataclass
class Meter:
    """Enters one training into the odometer of its corpus and the registry: :meth:`start` before
    its first step, :meth:`finish` after. ``mark`` is a file beside the checkpoint that names the
    run and its place, so that one that goes on there is not counted twice. ``init``: what the model
    starts from. ``secret``: nobody knows the noise; ``protects``: there is some. ``salt``: the key
    of hashes in what is shown."""

    folder: Path
    facts: dict[str, Any]
    init: str
    secret: bool
    protects: bool
    mark: Path | None = None
    run: str = ""
    entry: odometer.Entry = field(init=False, repr=False)
    registry: odometer.Registry = field(default_factory=lambda: odometer.Registry(odometer.home()))
    salt: bytes = field(default_factory=partial(secrets.token_bytes, 32), repr=False)

    def start(self, events: Sequence[Event], resumed: bool) -> None:
        """Enter the run with all that it may spend. One that goes on replaces what it had entered;
        one that was killed before its first checkpoint counts, as it may have taken steps, and so
        does one whose checkpoint was copied from elsewhere."""
        every = [e for e in events if isinstance(e, SampledGaussian)]
        self.run = secrets.token_hex(16)
        if self.mark:
            place = self.mark.resolve()
            if resumed and self.mark.exists():
                name, _, marked = self.mark.read_text().partition(" ")
                self.run = name if marked == f"{place}\n" else self.run
            files.write_text(self.mark, f"{self.run} {place}\n")  # first: a kill is no second run
        self.entry = odometer.add(
            self.folder, registry=self.registry, run=self.run, state="started",
            events=every if self.protects else None, **self.facts,
        )  # fmt: skip

    def finish(self, model: Path | None) -> None:
        """Enter that the run is over, and the hashes of its model, whose weights are a file."""
        hashes = {"model": outputs.sha256(model), "tensors": tensors(model.parent)} if model else {}
        self.entry = odometer.again(
            self.folder, self.entry, registry=self.registry, state="finished", **hashes
        )

    @property
    def spent(self) -> odometer.Spent:
        """What was spent before on this text, and whether what it started from had learned it."""
        run = self.run or None
        bases = () if run else {self.facts["base"], self.facts["base_tensors"]} - {None}
        return odometer.history(self.folder, self.registry, run).spent(run, bases)

    def origin(self) -> list[gate.Source]:
        """What is known of the noise, and of the model that it started from: one of crtlib is in a
        ledger here. What that one assumed of its own start is assumed here."""
        known: list[gate.Source] = [] if self.secret else [gate.Raw(SEEDED)]
        if not Path(self.init).is_dir():
            return known if self.init == "random" else [*known, gate.Base(self.init, "outside")]
        lines = [*odometer.read(self.folder), *self.registry.entries()]
        hashes = {self.facts["base"], self.facts["base_tensors"]} - {None}
        name = Path(self.init).name
        if not any({e.model, e.tensors} & hashes for e in lines):
            ours = (outputs.marker(self.init) or {}).get("command") == "train"
            return [*known, gate.Base(name, "unknown" if ours else "outside")]
        before: list[gate.Source] = [gate.Base(f"what {name} started from", "outside")]
        with contextlib.suppress(ValueError):  # of weights that were copied nothing else is here
            if not (released := gate.read(self.init)).altered:
                before = [s for s in released.sources if isinstance(s, gate.Base)]
        known.append(gate.Base(name, "known"))
        return [*known, *(s for s in before if s != gate.Base(name, "known"))]

    def told(self) -> dict[str, str]:
        """Where the run is entered, for its record."""
        return {"folder": str(self.folder.resolve()), "run": self.run,
                "entry": self.entry.entry, "screening": self.entry.screening,
                "before": " ".join(sorted({e.run for e in self.spent.entries})),
                "forgotten": str(self.registry.forgotten(self.facts["corpus"]))}  # fmt: skip


def opened(
    corpus: Named,
    facts: Facts,
    *,
    init: str,
    protects: bool,
    place: Named | None = None,
    secret: bool = True,
    trials: int = 1,
) -> Meter:
    """The odometer of a training, in ``place`` or beside its corpus, made where there is none; the
    registry knows the corpus then. ``facts`` go into every line. Noise that is not ``secret``, as
    it follows from a known seed, protects nobody.

    Raises ``ValueError`` for the odometer of another corpus or a broken one, and where it cannot be
    written.
    """
    sha = corpora.corpus_hash(corpus)
    beside = odometer.find(corpus, sha)
    home = Path(place) if place is not None else beside
    if (beside / odometer.LEDGER).is_file() and beside.resolve() != home.resolve():
        raise ValueError(f"--odometer: {place}: this text has one already, {beside}; name that")
    weights = Path(init) / "model.safetensors"
    ours = {
        "corpus": sha,
        "base": outputs.sha256(weights) if weights.is_file() else None,
        "base_tensors": tensors(init),
        "about": corpora.sizes(corpus),
        "trials": trials,
        **facts,
    }
    meter = Meter(home, ours, init, secret, protects and secret)
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


def entered(study: CrtStudy, prepared: Data) -> dict[str, Any]:
    """What the line of a study says (:func:`opened`)."""
    rates = _rates(study, prepared)
    both = {"trace": rates.trace, "public": rates.public}
    counted = {
        n: (r.count, r.of, *(r.again or ())) for n, r in both.items() if r.how == "one_per_cluster"
    }
    unit = "user" if study.how.by_user else study.unit
    return {
        "counted": {"labels": _labels(study, prepared)["sha256"], **counted} if counted else {},
        "unit": unit,
        "method": study.method,
        "relation": study.neighbouring_relation,
        "screening": _screening(study, corpora.corpus_hash(study.corpus)),
        "gamma": rates.gamma,
        "delta2": rates.delta2,
        "holds": {} if unit == "turn" else corpora.sizes(study.corpus)[unit],
        "repeats_counted": True,
        "hides_copies": hides_copies(study),
        "brought": brought(study),
    }


def protects(study: CrtStudy) -> bool:
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


def _rates(study: CrtStudy, prepared: Data) -> Rates:
    return RAW if study.how.reads_raw else prepared.rates


# --------------------------------------------------------------------------- the record
def judged(
    content: Facts, sources: Sequence[gate.Source], meter: Meter, spent: odometer.Spent
) -> tuple[certify.Promise, list[str]]:
    """What a certificate of a training would promise, and why it would be void: one with this
    ``content`` of its record, whose files know these ``sources``."""
    told = {**content, "searched": {"trials": meter.facts["trials"]}}
    trained = certify.Trained(Path(), told, _fold(sources, meter), spent)
    promise = trained.promise()
    return promise, certify.reasons(trained, promise, promise.missed()[0])


def certified(trained: Trained, meter: Meter) -> dict[str, Any]:
    """The parts of the certificate that ``crtlib certify`` would make of a training now, at the end
    of it; the hash of its weights, which are not written yet, is missing."""
    content = record(trained, meter)
    now = certify.Trained(Path(), content, _fold(trained.sources, meter), meter.spent)
    return certify.parts(certify.recounted(now), name=trained.facts["name"], copies=())


def _fold(sources: Sequence[gate.Source], meter: Meter) -> gate.Fold:
    """What these sources promise, of a screening that is named as the odometer names it."""
    fold = gate.fold(sources)
    return replace(fold, screening=fold.screening and meter.facts["screening"])


def record(trained: Trained, meter: Meter) -> dict[str, Any]:
    """All that a certificate says of a finished training: how it was done, versions, the model,
    and where it is entered."""
    facts, entered = trained.facts, meter.facts
    known = meter.init != "random"
    return {
        "schema": SCHEMA,
        "key": meter.salt.hex(),
        "software": {"crtlib": crtlib.__version__, "python": platform.python_version(),
                     "torch": torch.__version__},
        "model": {"sha256": meter.entry.model, "parameters": facts["parameters"],
                  "trained_parameters": facts["trained_parameters"],
                  "base": {"name": Path(meter.init).name, "sha256": fingerprint(meter.init)}
                  if known else None},
        "unit": entered["unit"],
        "method": facts["method"],
        "randomness": "operating_system" if meter.secret else "seed",
        "searched": {"trials": entered["trials"], "charged": "plan" not in trained.record},
        "odometer": meter.told(),
        **({"processes": n} if (n := trained.run.processes) > 1 else {}),  # that trained together
        **trained.record,
    }  # fmt: skip


def of_study(
    study: CrtStudy, fitted: Fitted, promise: Guarantee | None, meter: Meter
) -> dict[str, Any]:
    """How the training of a study was done, for :func:`record`."""
    d = fitted.data
    rates = _rates(study, d)
    return {
        "corpus": about(study.corpus, d.corpus, meter.facts["corpus"]),
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


def sources(study: CrtStudy, fitted: Fitted, meter: Meter) -> list[gate.Source]:
    """What a finished training, with its vocabulary and all that is said of it, may know of the
    text: of each kind of steps that ran, and of what the model started from."""
    run, how, facts = fitted.run, study.how, meter.facts
    name = outputs.keyed(facts["screening"], meter.salt)  # a plain hash would tell of the text
    screening = gate.Screening(name, facts["gamma"], facts["delta2"])
    redacted: gate.Source = gate.Redacted("redacted text", screening)
    raw = gate.Raw("The weights were learned from raw text without noise")
    read = raw if how.reads_raw else redacted
    every: list[gate.Source] = [gate.Constant("settings and sizes")]
    events = tuple(e for e in run.events if isinstance(e, SampledGaussian))
    if events and all(e.noise_multiplier for e in events):
        seen, holds = None if how.reads_raw else screening, tuple(facts["holds"].items())
        every.append(
            gate.Noised(
                meter.run, facts["unit"], facts["relation"], events, seen, holds,
                facts["hides_copies"],
            )
        )  # fmt: skip
        count = private(study, fitted.data)
        every.append(gate.declare("number of private points", count, gate.POINTS))
    elif run.updates["private"]:
        every.append(read)
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
    every += map(gate.Brought, brought(study))
    if not how.reads_raw:
        every += map(gate.Raw, _decided_by_one_message(study))
    if study.conservative == "everything" and not study.brings_vocabulary:
        every.append(gate.Constant("a vocabulary of single bytes"))
    elif not study.brings_vocabulary:  # what reads raw text has no rate of what screening let pass
        let = gate.Raw("The vocabulary was learned from what the policies let pass, unmeasured")
        every.append(let if how.reads_raw else gate.Screened("vocabulary", screening))
    return every + meter.origin()


def hides_copies(study: CrtStudy) -> bool:
    """Whether second occurrences of a message were masked or left out, here or by screening."""
    screened = study.screening
    if screened is not None and not study.how.reads_raw:
        return bool(screened["dedup"] != "none")
    return study.repeats_are_hidden


def brought(study: CrtStudy) -> tuple[str, ...]:
    """What the user brought that decides how the text is read, by names that may be shown: the
    policies of a study, or those that screened its folder, and a template of his own.

    Guarantee:
        Of each the certificate, its page and ``guarantee.txt`` say what is assumed. Test:
        ``tests/release/test_what_is_assumed.py::test_a_policy_of_a_file_was_not_made_from_the_text``.
    """
    said = study.screening or vars(study)
    read = study.screening is not None or not study.how.reads_raw
    names = [said["policy"], said["conservative"]] if read else []
    found = [part for name in names for part in policies.brought(name)]
    if study.template.endswith((".j2", ".jinja")):
        found.append(Path(study.template).name)
    return tuple(dict.fromkeys(found))


def _decided_by_one_message(study: CrtStudy) -> list[str]:
    """Why one message may decide how others are read, a clause each: what no noise covers."""
    screened = study.screening
    clauses = (
        (study.repeats_are_hidden and study.duplicates not in CERTIFIABLE,
         "Second occurrences were left out of the private points too, so a found secret in a "
         "repeated message decides how many points there are"),
        (study.repeats_are_hidden and study.coin == "point" and study.gamma > 0,
         "What was missed on purpose was drawn for each message by its name, so copies of one text "
         "were read in two ways"),
        (screened is not None and by_likeness(screened),
         "What is a duplicate was decided by likeness, so one message may decide whether any "
         "number of others is read"),
    )  # fmt: skip
    return [clause for applies, clause in clauses if applies]


def about(corpus: Named, read: Corpus, sha: str) -> dict[str, Any]:
    """What a certificate says of a corpus of which ``read`` was trained on, without canaries; the
    hash is that of it all."""
    users = {d.user for d in read.dialogues}
    if folders.is_screened(corpus):  # a point is a dialogue, and may stand for several turns
        before, said = folders.summary(corpus), folders.turns(corpus)
        name, turns = before["corpus"], sum(said[d.id] for d in read.dialogues)
        dates = {name: before["about"][name] for name in ("users_are", "from", "to")}
    else:
        facts = folders.facts(corpus) if Path(corpus).is_dir() else None
        users_are = "unknown" if "" in users else facts.users_are if facts else "column"
        if users_are == "column" and any(d.user == d.id for d in read.dialogues):
            users_are = "thread"
        name, turns = Path(corpus).name, sum(len(d.turns) for d in read.dialogues)
        dates = {"users_are": users_are, "from": facts and facts.first, "to": facts and facts.last}
    return {"name": name, "sha256": sha, "turns": turns, "users": len(users), **dates}


def _phases(study: CrtStudy, fitted: Fitted) -> list[dict[str, Any]]:
    """The public steps and the private ones. How many gradients were no finite number is exact
    and private: it is not told here."""
    prepared, phases = fitted.data.prepared, list[dict[str, Any]]()
    if n := fitted.run.updates["public"]:
        parts = {phase.part for phase in fitted.schedule if isinstance(phase, PublicPhase)}
        read = prepared.public if parts == {"public"} else prepared.all
        phases.append({"kind": "public", "points": len(read), "steps": n})
    steps = Counter[tuple[float, float]]()
    for e in fitted.run.events:
        if isinstance(e, SampledGaussian):
            steps[e.noise_multiplier, e.sampling_probability] += e.steps
    count = gate.rounded(private(study, fitted.data))
    return phases + [
        {"kind": "private", "points": count, "steps": n, "noise_multiplier": noise,
         "sampling_probability": probability, "clip_norm": study.clip_norm}
        for (noise, probability), n in steps.items()
    ]  # fmt: skip


def _labels(study: CrtStudy, d: Data) -> dict[str, Any]:
    """The labels that judged: those of the screening, those that people made for this training, or
    those of the corpus itself, which nobody drew for this."""
    counts, before = d.rates.labels_json(), study.screening
    if before:
        counts = before["labels"]
        inline = _sha(["labels of the corpus", before["corpus_sha256"]])
        told = {"judged": d.rates.judged, "sha256": counts["sha256"] or inline}  # since then
    elif d.labels is not None:
        told = dict(d.labels)
    else:
        spans = [[p.id, [[s.kind, s.start, s.end] for s in p.secrets]] for p in d.checked[0]]
        told = {"sha256": _sha(spans), "drawn": "given", "agreement": None}
    every = {**counts, **told, "alpha": ALPHA}  # that of both bounds together
    return {name: value for name, value in every.items() if name != "left_out"}


def _policies(study: CrtStudy, d: Data) -> dict[str, Any]:
    """Both policies; of a screened folder those that screened it."""
    before, rows, names = study.screening, {}, {"pi": "policy", "pi_c": "conservative"}
    for (key, name), policy in zip(names.items(), d.policies, strict=True):
        if before:
            told = before[name], before[f"{name}_sha256"], before["taught_by"][name]
        else:
            called = getattr(study, name)
            told = policies.plain(called), policy_hash(called), policy.teachers
        rows[key] = dict(zip(("name", "sha256", "taught_by"), told, strict=True))
    return rows


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
    planted = [(p.user.removeprefix(USER), p.text) for p in d.points if p.user.startswith(USER)]

    def read(part: Sequence[Point]) -> list[int]:
        texts = {p.text for p in part}
        return sorted({int(number) for number, text in planted if text in texts})

    return {
        "planted": len(d.canaries),
        "copies": study.copies if d.canaries else 0,
        "seed": study.seed,
        "in_public": read(d.prepared.public),
        "in_private": read(d.prepared.private),
    }


# --------------------------------------------------------------------------- writing
def work(out: Named) -> Path:
    """The private folder beside a model, not for release: what is unfinished, exact scores."""
    place = Path(out).absolute()
    folder = place.with_name(f"{place.name}.work")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write(
    trained: Trained,
    out: Path,
    inputs: Mapping[str, str],
    meter: Meter,
    card: Card | None,
    device: str,
) -> None:
    """Write the model as a folder that ``transformers`` loads (a recurrent one as
    :mod:`crtlib.models.folder` does), with its promise; the marker comes last. What is private
    goes into :func:`work`, for its owner alone. Others may read the model if it carries a promise.
    The run is finished in the odometer before the weights take their place."""
    aside, key, run = work(out), gate.key_in(meter.folder), trained.run
    with outputs.staged(
        out,
        command="train",
        options=trained.settings,
        inputs=outputs.keyed(inputs, meter.salt),
        public=("*",) if trained.holds else (),
        seal=lambda _: release.close(key, meter.run),
    ) as part:
        made, release = part / ".made", gate.Release(part)
        spec = trained.saved["spec"]
        saved = {**trained.saved, "spec": spec if spec and spec.recurrent else None}
        model_folder.save(run.model, folder=made, base=base(meter.init), **saved)
        meter.finish(made / "model.safetensors")
        release.adopt(made, *trained.sources)
        shutil.rmtree(made)
        texts = {"guarantee.txt": gate.Value.text(trained.promise + "\n")}
        kept = {NAME: gate.signed(record(trained, meter), key)}
        if trained.study:
            texts |= _texts(trained.settings, trained.facts, card)
            done = {"device": device, "seconds": round(run.seconds, 2)}
            kept["results.json"] = {"guarantee": trained.promise, "rows": trained.rows, **done}
        known = frozenset(trained.sources).union(*(text.sources for text in texts.values()))
        for name, text in texts.items():
            release.write(name, gate.Value(text.content, known))
        # Before the model takes its place: a run that is killed after that is not done again.
        for name, content in kept.items():
            files.write_text(aside / name, json.dumps(content, indent=1) + "\n", mode=0o600)
        if trained.secrets is not None:
            with files.replacing(aside / "secrets.parquet", mode=0o600) as file:
                trained.secrets.to_parquet(file, index=False)


def _texts(settings: Facts, facts: Facts, card: Card | None) -> dict[str, gate.Value]:
    texts = {"experiment.json": gate.Value.text(json.dumps(settings, indent=1) + "\n")}
    if card:
        heard = gate.declare("held-out perplexity", facts["perplexity"], PERPLEXITIES)
        said = card({**facts, "perplexity": heard.value})
        texts["README.md"] = gate.Value.text(said, heard)
    return texts
