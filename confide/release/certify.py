"""From a release to its certificate, and whether it keeps what somebody demands.

What somebody demands of a model, and whether its certificate keeps it.

>>> certificate = {"verdict": "holds", "rates": {"public": {"upper": 0.0377}},
...                "right_guess": [{"who": "random", "at_most": 0.524}]}
>>> for row in judged(certificate, ["public <= 1%", "guess <= 55"]):
...     print(row)
{'limit': 'public <= 1%', 'certified': 0.0377, 'met': False}
{'limit': 'guess <= 55', 'certified': 52.4, 'met': True}

From a release to its certificate: the fold over the sources of its files, composed with what was
spent before, sealed, written as a page and as JSON, and verified again.

>>> up(0.44012), up(float("inf")), up(0.0)
(0.441, 'inf', 0.0)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from confide import odometer
from confide.release import gate
from confide.release.gate import Fold
from confide.reports import bands, pages
from confide.text import labels
from crtlib import files, outputs
from crtlib.accounting import guarantees, ledger
from crtlib.accounting.accountants import Profile
from crtlib.accounting.ledger import SampledGaussian
from crtlib.checks import check_choice
from crtlib.files import Named
from crtlib.intervals import at_most, exactly, exchangeable_rate, upwards
from crtlib.screening.rates import ALPHA, bound

NAMES = {
    "guess": "right guesses of 100, about a secret drawn at random",
    "missed": "right guesses of 100, about a secret that the search passed over",
    "value": "chance in 100 to name a protected value, or one of a thousand that are as likely and "
    "that the search would pass over and noise cover as well",
    "epsilon": "epsilon of a secret drawn at random",
    "delta": "its delta",
    "epsilon_missed": "epsilon of a secret that the search passed over",
    "miss": "share of secrets that the search did not find",
    "trace": "share of secrets of which something is left",
    "public": "share of secrets that are trained on without noise",
}
"""What a limit may be about; each is a bound that stands in the certificate."""
OF_100 = ("guess", "missed", "value")


def _limit(text: str) -> tuple[str, Decimal]:
    found = re.fullmatch(r"\s*(\w+)\s*<=\s*([0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?)\s*(%?)\s*", text)
    name = found[1] if found else ""
    if not found or name not in NAMES or (found[3] and name.startswith(("epsilon", "delta"))):
        raise ValueError(
            f"--require: {text!r} must be NAME <= NUMBER, such as 'public <= 1%' or 'guess <= 55'; "
            f"a name is one of {', '.join(NAMES)}"
        )
    number = Decimal(found[2])
    return name, number / 100 if found[3] and name not in OF_100 else number


def _certified(c: Mapping[str, Any], name: str) -> Decimal | None:
    """The bound; of times in 100, in these. None where the certificate has none."""
    if name in ("miss", "trace", "public"):
        before = {"trace": "gamma", "public": "delta2"}.get(name, "")  # with earlier searches
        both = c["rates"].get(name, {}).get("upper"), c.get("spent_before", {}).get(before, 0.0)
        found = None if both[0] is None else max(both)
    elif name in OF_100:
        who = {"guess": "random", "missed": "missed"}.get(name)
        rows = c["right_guess"] if who else c["value_guess"]
        each = [row["at_most"] for row in rows if who is None or row["who"] == who]
        found = max(each) if each else None
    else:
        pair = c["guarantee"]["missed" if name == "epsilon_missed" else "secret"]
        found = pair["delta" if name == "delta" else "epsilon"]
    if found is None or found == "inf":
        return None
    return exactly(found) * (100 if name in OF_100 else 1)


def judged(certificate: Mapping[str, Any], limits: Sequence[str]) -> list[dict[str, Any]]:
    """Of each limit what is ``certified``, None where nothing is, and whether it is ``met``: one of
    a certificate that does not hold never is.

    Args:
        certificate: Its parts, as JSON gives them.
        limits: Such as "public <= 1%" or "guess <= 55", of :data:`NAMES`; guesses: times in 100.

    Raises:
        ValueError: For a limit that is none of these.
    """
    out = []
    for text in limits:
        name, most = _limit(text)
        found = _certified(certificate, name) if certificate["verdict"] == "holds" else None
        told = None if found is None else float(found)
        assert told is None or math.isfinite(told)
        out.append({"limit": " ".join(text.split()), "certified": told,
                    "met": found is not None and found <= most})  # fmt: skip
    return out


RECORD = "record.json"
BAYES, PLAN = "bayesian_confidentiality", "secret_protection"
Known = TypeVar("Known", odometer.Spent, odometer.History)
Pair = tuple[float, float]
"""Epsilon and delta; or two rates, or a prior and a chance."""
COPIES = (5, 20)
PRIORS = (1e-6, 1e-3)
EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
DELTAS = tuple(10.0**-k for k in range(4, 13))
AUDIENCES = ("officer", "engineer", "both")
FLOATING_POINT = "noise in floating point; attacks on its gaps are outside of the proof"
PARTS = "a thread of several people as a whole, where it was cut into what each of them said"
NOT_PROMISED = (
    "that a secret stays unknown which the rest of the text, or the world, gives away",
    "anything about what nobody labelled as a secret",
    "protection from who has the text, the records of this training or its other models",
    "anything across other versions of this text",
    "safety from attacks on floating-point noise",
    "that who signed told the truth: the signature shows edits by others",
)

COUNTS = (
    "dates, exact numbers of messages, conversations, people, public points and labels, and how "
    "far two readers agree, where they stand here or in another file of the release"
)
PAPER = "that epsilon for exchanging a secret: as in the paper, it is for leaving a message out"


def up(value: float) -> float | str:
    """A bound as the certificate writes it: three figures, rounded upwards."""
    return "inf" if math.isinf(value) else float(upwards(value))


# --------------------------------------------------------------------------- what is read
class Record(BaseModel):
    """``record.json``, as far as a certificate reads it; what stands deeper the signature holds."""

    model_config = ConfigDict(strict=True)
    schema_: Literal["crtlib/run/2"] = Field(alias="schema")
    key: str
    software: dict[str, str]
    model: dict[str, Any]
    corpus: dict[str, Any]
    unit: Literal["turn", "dialogue", "user"]
    method: dict[str, str]
    protects_all: bool
    accountant: str
    delta: float
    randomness: Literal["operating_system", "seed"]
    phases: list[dict[str, Any]]
    rates: dict[str, dict[str, Any]]
    labels: dict[str, Any] | None
    policies: dict[str, dict[str, Any]]
    oracle_on_real_text: bool
    treated_as_public: list[str]
    searched: dict[str, Any]
    canaries: dict[str, Any]
    odometer: dict[str, str]


@dataclass(frozen=True)
class Trained:
    """The folder of a training, its record, the promise of its files alone, and what was spent
    before it on the same text. ``problems``: what voids it. ``spent`` is None where the odometer
    cannot be read; ``key`` is that beside it."""

    folder: Path
    record: Mapping[str, Any]
    own: Fold
    spent: odometer.Spent | None
    problems: tuple[str, ...] = ()
    key: Ed25519PrivateKey | None = None

    def promise(self) -> Promise:
        """What its files promise together with what was spent before."""
        terms = self.record
        return promise(
            self.own, self.spent, delta=terms["delta"], accountant=terms["accountant"],
            trials=terms["searched"]["trials"],
        )  # fmt: skip


def read(
    run: Named,
    *,
    place: Named | None = None,
    replaced: Sequence[Path] = (),
) -> Trained:
    """The training in the folder ``run``, with its record in ``run.work``, beside it; its odometer
    is in ``place``, or where the record says. The files that are ``replaced`` now are no change of
    the release; what one who was killed left beside them is removed. Raises ``ValueError`` where
    there is no record, or it was changed after it was signed."""
    folder = Path(run)
    choices = [folder / RECORD, folder.with_name(folder.name + ".work") / RECORD]
    path = next((p for p in choices if p.is_file()), None)
    if path is None:
        raise ValueError(f"{folder}: holds no {RECORD}; it was not made by 'crtlib train'")
    record = gate.read_signed(path)
    try:
        Record.model_validate(record)
        bytes.fromhex(record["key"])
    except (ValidationError, ValueError):
        raise ValueError(f"{path}: is damaged, or of another version of crtlib") from None
    ours, public = record["odometer"], str(record["public_key"])
    own, problems = Fold("none"), []
    mine = {p.resolve() for p in replaced}
    for written in mine:
        files.sweep(written)
    try:
        released = gate.read(folder)
        altered = [n for n in released.altered if folder.resolve() / n not in mine]
        own = gate.fold(released.sources, altered)
        if own.screening == outputs.keyed(ours["screening"], bytes.fromhex(record["key"])):
            own = replace(own, screening=ours["screening"])  # as the odometer calls it
        if (released.run, released.key) != (ours["run"], public):
            problems.append("The files are of another run than the record.")
    except ValueError as error:
        problems.append(f"What was released is not known ({str(error).rpartition('/')[2]}).")
    home = Path(place) if place is not None else Path(ours["folder"])
    corpus, registry = record["corpus"]["sha256"], odometer.Registry(odometer.home())
    spent = key = None
    try:
        entries = odometer.read(home)
        odometer.check_corpus(home, entries, corpus)
        if ours["entry"] not in {e.entry for e in entries}:
            raise ValueError("odometer: the entries of this run are missing")
        known = odometer.history(home, registry, ours["run"])
        spent = known.spent(ours["run"])
        if set(ours.get("before", "").split()) - {e.run for e in known.entries}:
            problems.append("Earlier runs that were known when it was trained are not known here.")
        lines = [e for e in (*registry.entries(), *entries) if e.run == ours["run"]]
        problems += _line(lines, own, record)
        key = gate.key_in(home) if (home / gate.KEY).is_file() else None
        if key is None or key.public_key().public_bytes_raw().hex() != public:
            problems.append("The record is not signed by the key beside the odometer.")
    except (ValueError, OSError) as error:
        text = str(error) if isinstance(error, ValueError) else "odometer: cannot be read"
        problems.append(f"What was spent before is not known ({text.replace(f'{home} ', '')}).")
    return Trained(folder, record, own, spent, tuple(problems), key)


REPEATS = "which counted no trace of a secret whose message stands twice"


def _line(lines: Sequence[odometer.Entry], own: Fold, record: Mapping[str, Any]) -> list[str]:
    """Where the last of the lines of a run, or the model in any, is another than the files and the
    record say."""
    line, one = lines[-1], record["model"]["sha256"]
    if line.leaves_out_repeats and own.kind != "none":
        return [f"It was trained by crtlib 0.3, {REPEATS}: train it again."]
    other = [e.model for e in lines if e.state == "finished" and e.model != one]
    same: list[tuple[str, Any, Any]] = [("model", [line.model, *other], [one])]
    same += [("trials", line.trials, record["searched"]["trials"])]
    if own.events and line.events is not None:
        same += [("events", line.events, own.events), ("unit", line.unit, own.unit),
                 ("relation", line.relation, own.relation),
                 ("trace rate", line.gamma, own.gamma)]  # fmt: skip
        same += [("public rate", line.delta2, own.delta2)] if own.delta2 else []
    return [f"The odometer has other {name} of this run." for name, a, b in same if a != b]


def recounted(trained: Trained, judged: int | None = None) -> Trained:
    """The training with bounds of its rates for so many pairs as its labels have judged until now,
    of which this one was chosen, where they were fewer when it began."""
    told, rates = trained.record["labels"], dict(trained.record["rates"])
    sha = trained.record["corpus"]["sha256"]
    if told:
        judged = judged or labels.judged_pairs({"labels": told["sha256"]}, sha)
        told = {**told, "judged": max(judged, told["judged"])}
    if trained.spent:
        trained = replace(trained, spent=family(trained.spent, told, sha))
    if not told or told["judged"] == trained.record["labels"]["judged"]:
        return trained

    def again(rows: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {**row, "upper": _bound(row, told)} for name, row in rows.items()}

    kinds = {kind: again(rows) for kind, rows in rates.pop("by_kind").items()}
    rates, own = again(rates), trained.own
    trace, public = (rates[name]["upper"] for name in ("trace", "public"))
    own = replace(own, gamma=max(own.gamma, trace), delta2=own.delta2 and max(own.delta2, public))
    record = {**trained.record, "labels": told, "rates": {**rates, "by_kind": kinds}}
    return replace(trained, record=record, own=own)


def family(spent: Known, told: Mapping[str, Any] | None = None, corpus: str = "") -> Known:
    """What was spent before with bounds of its rates for as many pairs as their labels have judged
    by now. Of those that judge this run too, and of all of its corpus, ``told`` says how many: they
    hold together with those of this run."""

    def later(e: odometer.Entry, name: str, upper: float) -> float:
        if name not in e.counted:
            return upper
        (count, of, *again), by = e.counted[name], e.counted["labels"]
        if told and (e.corpus == corpus or by == told["sha256"]):
            ours = told
        else:
            judged = labels.judged_pairs({"labels": by}, e.corpus)
            ours = {"alpha": ALPHA, "judged": max(1, judged)}
        row = {"count": count, "of": of, "again": again, "how": "one_per_cluster"}
        return max(upper, _bound(row, ours))

    entries = (
        replace(e, gamma=later(e, "trace", e.gamma), delta2=later(e, "public", e.delta2))
        for e in spent.entries
    )
    return replace(spent, entries=tuple(entries))


# --------------------------------------------------------------------------- the promise
@dataclass(frozen=True)
class Promise:
    """All that composes to a guarantee: what the files say, the events of this run and of those
    before, how many of their points one unit holds, and the rates of all their screenings
    together."""

    fold: Fold
    events: tuple[SampledGaussian, ...]
    groups: tuple[int, ...]
    gamma: float
    delta2: float
    accountant: str
    delta: float
    moves_copies: bool = True
    """Whether several messages that are masked together may become copies of each other."""

    @property
    def bounded(self) -> bool:
        """Whether noise that an accountant knows protects each point."""
        return self.fold.kind not in ("none", PLAN)

    @property
    def kind(self) -> str:
        """What is promised; an earlier run may leave less than the files say."""
        return gate.kind_of(self.gamma, self.delta2) if self.bounded else self.fold.kind

    @property
    def curve(self) -> Profile:
        """The profile of a secret that is in clear."""
        return ledger.profile(self.events, self.accountant, self.fold.relation, self.groups)

    def missed(self) -> Pair:
        """(epsilon, delta) of one that the search passed over."""
        return (self.curve(self.delta), self.delta) if self.bounded else (math.inf, 1.0)

    def secret(self) -> Pair:
        """(epsilon, delta) of one drawn at random (Theorem 8.3, delta2 added in full)."""
        if self.kind != BAYES:
            return self.missed()
        delta = min(1.0, self.delta + self.delta2)
        return guarantees.amplified_at(self.curve, delta=self.delta, gamma=self.gamma), delta

    def right(self, copies: int, trace_rate: float, public_rate: float) -> float:
        """How often a guess is right, whether a secret in so many messages stood there or was
        blacked out: for replacement, whatever the relation of the epsilon."""
        gained = guarantees.advantage(
            self.events, copies=copies, trace_rate=trace_rate, public_rate=public_rate,
            neighbouring_relation="replace", group=self.groups,
        )  # fmt: skip
        return guarantees.right_guess(gained)

    def right_guesses(
        self, copies: Sequence[int], average: Pair | None = None
    ) -> list[tuple[str, int, float]]:
        """About whom, in how many messages, and how often a guess is right: the rows of a
        certificate, unrounded. A plan has none.

        Guarantee:
            Of a person, or a value, in k messages each of these may change a private point though
            none leaves a trace alone: masked, they may be copies of each other. So where copies are
            hidden no trace rate is counted on for k > 1. Test:
            ``tests/release/test_repeated_messages.py::test_messages_of_one_template_that_are_masked_together``.
        """
        if not self.bounded:
            return []
        bayes = self.kind == BAYES
        gamma, delta2 = (self.gamma, self.delta2) if bayes else (1.0, self.delta2)
        rows = [("missed", 1, self.right(1, 1.0, 0.0))]
        if bayes:
            rows.insert(0, ("random", 1, self.right(1, gamma, delta2)))
            rows += [("other", 1, self.right(1, *average))] if average else []
        if delta2 > 0:
            rows.append(("public", 1, 1.0))
        together = 1.0 if self.moves_copies else gamma
        return rows + [
            ("user", k, self.right(k, gamma if k == 1 else together, delta2)) for k in copies
        ]

    def value_guesses(self) -> list[Pair]:
        """Priors, and chances to name a value: a prior is that among the values which the policies
        would treat alike (:func:`crtlib.accounting.guarantees.value_guess`). One in place of
        another is replacement, whatever the relation of the epsilon; a plan says it itself.

        Guarantee:
            Whether a value is learned with noise depends on it, so a chance among all values may
            be smaller than that which is promised of. Test:
            ``tests/release/test_what_is_assumed.py::test_the_chance_of_a_value_is_among_those_that_are_treated_alike``.
        """
        if plan := self.fold.plan:
            return list(plan.guesses)
        epsilon = ledger.profile(self.events, self.accountant, "replace", self.groups)(self.delta)
        return [(p, guarantees.value_guess(epsilon, delta=self.delta, prior=p)) for p in PRIORS]

    def guarantee(self) -> dict[str, Any]:
        """As the certificate has it."""
        plan, accountant, charged = self.fold.plan, self.accountant, 0.0
        if self.bounded:
            accountant = self.curve.answer(self.delta).accountant
            charged = float(upwards(self.curve.charged(self.delta)))
        return {
            "kind": self.kind,
            "secret": _pair(self.secret()),
            "missed": _pair(self.missed()),
            "relation": self.fold.relation,
            "accountant": "KL divergence" if plan else accountant,
            "proved": True,  # the antipodal pair is the worst one: a theorem
            "error_charged": charged,
            "conjectured": None,
            "plan": plan and plan.plan,
        }

    def guesses(self, copies: Sequence[int], average: Pair | None = None) -> dict[str, Any]:
        """As the certificate has them, rounded upwards."""
        return {
            "right_guess": [
                {"who": who, "copies": k, "prior": 0.5, "at_most": _share(p)}
                for who, k, p in self.right_guesses(copies, average)
            ],
            "value_guess": [{"prior": p, "at_most": _share(q)} for p, q in self.value_guesses()],
        }


def promise(
    own: Fold,
    spent: odometer.Spent | None,
    *,
    delta: float,
    accountant: str = "pld",
    trials: int = 1,
) -> Promise:
    """What this run and those of ``spent`` promise together. Each of the ``trials`` among which it
    was chosen is charged as it is, as for a search of a fixed size
    (:func:`crtlib.accounting.searches.fixed`)."""
    before = spent or odometer.Spent(())
    events = tuple(replace(e, steps=e.steps * trials) for e in own.events)
    gamma, delta2 = before.rates(own.screening, own.gamma, own.delta2)
    groups = (1,) * len(events) + before.groups(own.unit, own.holds)
    exact = accountant if max(groups, default=1) == 1 else "pld"
    earlier = [e.moves_copies for e in before.private for _ in e.events or ()]
    if any(size > 1 and moves for size, moves in zip(groups[len(events) :], earlier, strict=True)):
        gamma = 1.0  # what one unit is here was several messages there, masked together
    return Promise(own, events=events + before.events, groups=groups, gamma=gamma, delta2=delta2,
                   accountant=exact, delta=delta,
                   moves_copies=own.hides_copies or any(earlier))  # fmt: skip


def reasons(trained: Trained, own: Promise, epsilon: float) -> list[str]:
    """Why the certificate is void, a sentence each; none for a method without noise."""
    record, fold, spent = trained.record, trained.own, trained.spent
    if fold.kind == "none" and not trained.problems:
        return []
    known = record["rates"]["public"]["how"] != "unknown"
    plan = fold.plan
    checks = [
        (spent is not None and spent.struck,
         "Its run was struck from the odometer, as of a model that nobody ever saw."),
        (spent is not None and spent.bare,
         "It started from a model that had learned this text without protection."),
        (spent is not None and any(e.leaves_out_repeats for e in spent.private),
         f"An earlier run on this text was of crtlib 0.3, {REPEATS}; strike it if nobody ever saw "
         "its model: crtlib account --odometer FOLDER --strike ENTRY --because WHY."),
        (not record["protects_all"],
         "What the policy passes over is learned without noise, so nothing bounds it."),
        (record["oracle_on_real_text"],
         "A policy read the labels themselves, which the rest of the text does not have."),
        (not known, "Nothing is known of the secrets that were learned without noise: label some."),
        (plan is not None and not plan.keeps, "Some secrets are above what the plan promised."),
        (plan is not None and spent is not None
         and any(x.events is not None or x.method == "lp_weighted" for x in spent.entries),
         "What earlier models on this text spent was counted for messages, not for each secret."),
        (plan is not None and record["searched"]["trials"] > 1,
         "Several trainings were compared, and what a plan promises is of one."),
        (plan is None and fold.relation == "add_or_remove",
         "Who is held out follows from how many people there are, so that one point more changes "
         "others: train with --neighbouring replace."),
        (plan is None and math.isinf(epsilon), "The accountant shows no epsilon."),
        (plan is None and known and own.delta + own.delta2 >= 1,
         "Delta is 1: nothing bounds what this run, or one before it, learned without noise."),
    ]  # fmt: skip
    return [*trained.problems, *fold.void, *(text for applies, text in checks if applies)]


def parts(
    trained: Trained,
    *,
    name: str | None = None,
    copies: Sequence[int] = COPIES,
    evidence: Mapping[str, Any] | None = None,
    require: Sequence[str] = (),
) -> dict[str, Any]:
    """The parts of a certificate (:func:`confide.reports.pages.certificate` seals them)."""
    record, fold, spent = trained.record, trained.own, trained.spent or odometer.Spent(())
    own, alone = trained.promise(), replace(trained, spent=None).promise()
    why = reasons(trained, own, own.missed()[0])
    verdict = "void" if why else "none" if fold.kind == "none" else "holds"
    known = [*record["treated_as_public"], COUNTS]
    key = bytes.fromhex(record["key"])
    if max(own.groups, default=1) > 1:
        known.append(f"how many messages one {record['unit']} holds")
    guesses: dict[str, Any] = {"right_guess": [], "value_guess": []}
    if verdict == "holds":
        guesses = own.guesses(copies, average(own, record))
    content = {
        "software": record["software"],
        "verdict": verdict,
        "void_because": why,
        "model": {"name": name or trained.folder.resolve().name, **record["model"]},
        "corpus": outputs.keyed(record["corpus"], key),
        "unit": record["unit"],
        "method": record["method"],
        "guarantee": own.guarantee(),
        **guesses,
        "mechanism": {"phases": record["phases"], "randomness": record["randomness"],
                      "floating_point": FLOATING_POINT,
                      **{n: record[n] for n in ("processes",) if n in record}},
        "rates": record["rates"],
        "labels": outputs.keyed(record["labels"] if own.kind == BAYES else None, key),
        "policies": outputs.keyed(record["policies"], key),
        "treated_as_public": known,
        "declared": [{"of": d.of, "value": d.value, "bits": float(upwards(d.bits))}
                     for d in (*fold.declared, *of_report(evidence))],
        "assumed": [*fold.assumed, *of_earlier(spent)],
        "searched": {"trials": record["searched"]["trials"], "charged": True},
        "canaries": {n: record["canaries"][n] for n in ("planted", "copies")},
        # A line's own hash tells of the text to who knows the rest of it: it leaves keyed.
        "spent_before": {
            "alone": _pair(alone.secret()), "unprotected": spent.unprotected, "runs": spent.runs,
            "struck": spent.left, "forgotten": int(record["odometer"].get("forgotten", 0)),
            "gamma": own.gamma, "delta2": own.delta2,
            "entries": outputs.keyed([e.entry for e in spent.entries], key),
        },
        "not_promised": [*NOT_PROMISED, *([PARTS] if record["unit"] == "dialogue" else []),
                         *([PAPER] if fold.relation == "add_or_remove" else [])],
        "evidence": dict(evidence or {}),
    }  # fmt: skip
    return content | ({"limits": judged(content, require)} if require else {})


def of_earlier(spent: odometer.Spent) -> list[str]:
    """What is assumed of the earlier models that the promise covers: that what somebody brought to
    screen their text was not made from it."""
    names = dict.fromkeys(name for e in spent.private for name in e.brought)
    return [gate.not_made_from(name, "the text of an earlier model that it screened")
            for name in names]  # fmt: skip


def _share(value: float) -> float:
    return min(1.0, float(upwards(value)))


def _pair(pair: Pair) -> dict[str, Any]:
    return {"epsilon": up(pair[0]), "delta": _share(pair[1])}


def average(own: Promise, record: Mapping[str, Any]) -> Pair | None:
    """The trace and the public rate on average over the draw of the labels
    (:func:`crtlib.intervals.exchangeable_rate`); None where nobody drew them, all were read or
    chosen from, an earlier search adds to the rates of this one, its bounds are not of its counts,
    turns were read twice, or a rate is charged up to 1, which would void what the others
    promise."""
    labels = record["labels"] or {}
    trace, public = (record["rates"][name] for name in ("trace", "public"))
    alone = own.gamma == own.fold.gamma == trace["upper"] and own.delta2 == own.fold.delta2
    counted = all(_bound(row, labels) == row["upper"] for row in (trace, public))
    alone &= counted and "again" not in trace  # no turn was read twice
    if labels.get("drawn") != "at_random" or not labels.get("others") or not alone:
        return None
    means = [
        exchangeable_rate(row["count"], row["of"], judged=labels["judged"])
        for row in (trace, public)
    ]
    pair = means[0], means[1] if own.delta2 else 0.0
    return None if 1.0 in pair else pair


# --------------------------------------------------------------------------- the engineer's numbers
def profile(own: Promise) -> dict[str, Any]:
    """What stands on the engineer's page beyond the certificate: delta at some epsilons and back,
    under both relations, and the trade-off curves (type I, type II) of a secret."""
    relations = ("add_or_remove", "replace")
    curves = {r: ledger.profile(own.events, "pld", r, own.groups) for r in relations}
    grid = [i / 80 for i in range(81)]
    rates = {"missed": (1.0, 0.0)}
    rates |= {"secret": (own.gamma, own.delta2)} if own.kind == BAYES else {}
    drawn = {
        name: guarantees.tradeoff(
            own.events, grid, neighbouring_relation="replace", group=own.groups,
            trace_rate=gamma, public_rate=delta2,
        ).tolist()
        for name, (gamma, delta2) in rates.items()
    }  # fmt: skip
    return {
        "delta_at": [{"epsilon": e} | {r: c.delta(e) for r, c in curves.items()} for e in EPSILONS],
        "epsilon_at": [{"delta": d} | {r: c(d) for r, c in curves.items()} for d in DELTAS],
        "curves": {name: list(zip(grid, line, strict=True)) for name, line in drawn.items()},
    }


# --------------------------------------------------------------------------- evidence
def evidence(
    run: Named,
    text: str,
    audit: Named | None,
    report: Named | None,
) -> dict[str, Any]:
    """What ``audit.json`` and the folder of a leakage report say of the model in ``run``, for the
    certificate. Raises ``ValueError`` where they are of another one, or name none, or the report is
    of another corpus than that with the hash ``text``.

    The numbers of an audit are functions of the model, of the noise that was accounted and of
    canaries that were invented, so they tell nothing of the text that the model does not. Those of
    a report are counts on the text itself: :func:`of_report` declares them."""
    attached: dict[str, Any] = {}
    other = "is of another model, or names none; make it again"
    if audit is not None:
        a = _json(Path(audit))
        outputs.demand(Path(audit).parent, [Path(audit).name])
        if a.get("model") != outputs.sha256(Path(run) / "model.safetensors"):
            raise ValueError(f"--audit: {audit} {other}")
        if a.get("claimed"):
            raise ValueError(f"--audit: {audit} tests a claim; audit without --claim")
        proved = a["proved"] if a["proved"] == "inf" else up(a["proved"])
        lower = math.floor(1000 * a["epsilon_lower"]) / 1000
        attached["audit"] = {"lower": lower, "epsilon": proved} | {
            name: a[name] for name in ("confidence", "canaries", "guessed", "right", "power")
        }
    if report is not None:
        marked = outputs.demand(report)
        read, key = marked["inputs"], outputs.key_in(outputs.beside_key(report))
        if marked["options"].get("reveal"):
            raise ValueError(f"--report: {report} is in clear; a redacted one may be shown")
        if read.get("model") != outputs.content(run):
            raise ValueError(f"--report: {report} {other}")
        if read.get("text") != outputs.keyed(text, key):
            raise ValueError(f"--report: {report} is of another text than the model was trained on")
        if marked["options"]["min_length"] > 1:
            raise ValueError(f"--report: {report} leaves short passages out (--min-length)")
        r = _json(Path(report) / "report.json")["summary"]
        attached["report"] = {"completed": r["runs"], "unique": r["unique"], "top_k": r["top_k"]}
    return attached


COUNTED = {
    "completed": "passages that a report found completed",
    "unique": "passages of one person only that it found completed",
}
"""What stands on the sheet of a report that was made of the text: bands of exact counts."""


def of_report(evidence: Mapping[str, Any] | None) -> tuple[gate.Declared, ...]:
    """What the leakage report in the ``evidence`` of a certificate tells of the private text
    outside of the promise: no noise is in its counts, and one message may move one to the next
    band. Raises ``ValueError`` for what is no band.

    >>> [(d.value, round(d.bits, 2)) for d in of_report({"report": {"completed": "5 to 9"}})]
    [('5 to 9', 9.85)]
    """
    report = (evidence or {}).get("report") or {}
    return tuple(
        gate.Declared(of, report[name], bands.names())
        for name, of in COUNTED.items()
        if name in report
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(gate.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, TypeError):
        raise ValueError(f"{path}: is no JSON object of ours") from None


# --------------------------------------------------------------------------- writing
def write(
    run: Named,
    out: Named,
    *,
    name: str | None = None,
    audience: str = "both",
    audit: Named | None = None,
    report: Named | None = None,
    place: Named | None = None,
    copies: Sequence[int] = COPIES,
    require: Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Write the page ``out`` and, of the same name, the JSON; the certificate, sealed.

    Both are public files (0644, less the umask) where the verdict is "holds", else private ones.
    ``require``: limits (:func:`judged`), whose verdict the certificate gives. Raises
    ``ValueError`` where the run has no record, or the files exist and not ``force``.
    """
    check_choice("for", audience, AUDIENCES)
    page = Path(out)
    if page.suffix != ".html":
        raise ValueError(f"--out: {page} must end in .html; its JSON has the same name")
    both = page, page.with_suffix(".json")
    for path in both:
        if path.is_symlink():
            raise ValueError(f"--out: {path} is a link; name the file itself")
        outputs.check_file(path, force=force)
    if both[1].is_file() and "void_because" not in _json(both[1]):  # such as model.json
        raise ValueError(f"--out: {both[1]} is there and no certificate; take another name")
    trained = read(run, place=place, replaced=(*both, Path(run) / gate.NAME))
    trained = recounted(trained)
    attached = evidence(run, trained.record["corpus"]["sha256"], audit, report)
    content = parts(trained, name=name, copies=copies, evidence=attached, require=require)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    value = pages.certificate(content, issued=now.replace("+00:00", "Z"))
    value = gate.signed(value, trained.key) if trained.key else value
    pages.validator().validate(value)
    texts = {page.with_suffix(".json"): json.dumps(value, indent=1, allow_nan=False) + "\n",
             page: _page(value, trained, audience, page.name)}  # fmt: skip
    mode = outputs.PUBLIC if value["verdict"] == "holds" else outputs.PRIVATE
    for path, text in texts.items():
        files.write_text(path, text, mode)
    inside = Path(run).resolve() in page.resolve().parents
    if inside and trained.key and (Path(run) / gate.NAME).is_file():
        gate.extend(Path(run), [p.resolve() for p in texts], trained.key)
    return value


def _page(value: Mapping[str, Any], trained: Trained, audience: str, name: str) -> str:
    """The page for an audience, which has this name."""
    own, numbers = trained.promise(), None
    if value["verdict"] == "holds" and audience != "officer" and own.bounded:
        numbers = profile(own)
    command = f"crtlib certify {trained.folder.resolve().name} --out {name}"
    return pages.pages(value, audience, profile=numbers, command=command)


def summary(value: Mapping[str, Any]) -> str:
    """One line for a terminal."""
    if beyond := [row["limit"] for row in value.get("limits", ()) if not row["met"]]:
        return f"does not meet your limits: {', '.join(beyond)}; {_told(value)}"
    return f"meets your limits; {_told(value)}" if value.get("limits") else _told(value)


def _told(value: Mapping[str, Any]) -> str:
    if value["verdict"] != "holds":
        return " ".join(value["void_because"]) or "no promise: the method adds no noise"
    g, before = value["guarantee"], value["spent_before"]["runs"]
    if g["kind"] == PLAN:
        worst = max(row["at_most"] for row in value["value_guess"])
        return f"holds; a protected value is guessed with a chance of at most {at_most(worst, 3)}"
    earlier = f"; with {before} earlier" if before else ""
    pairs = [f"({x['epsilon']}, {at_most(x['delta'], 3)})" for x in (g["secret"], g["missed"])]
    who = f"a secret at random {pairs[0]}, one passed over" if g["kind"] == BAYES else "any one"
    return f"holds; {who} {pairs[1]}{earlier}; id {value['id'][:12]}"


# --------------------------------------------------------------------------- verifying
def verify(
    run: Named,
    out: Named,
    *,
    place: Named | None = None,
) -> tuple[str | None, dict[str, Any]]:
    """The first difference between a certificate and what its run gives again (None: there is
    none), and the certificate. Schema, id, bounds of the rates, hash of the model, every number
    from the ledger and the page are compared.

    Raises ``ValueError`` where there is nothing to verify.
    """
    page = Path(out).with_suffix(".html")
    value = _json(page.with_suffix(".json"))
    if "id" not in value or "verdict" not in value:
        raise ValueError(f"{page.with_suffix('.json')}: is no certificate")
    return next(_wrong(value, run, place, page), None), value


def _wrong(
    value: dict[str, Any],
    run: Named,
    place: Named | None,
    page: Path,
) -> Iterator[str]:
    if error := best_match(pages.validator().iter_errors(value)):
        yield f"{error.json_path}: is not what the schema allows"
    if pages.identity(value) != value["id"]:
        yield "id: is not that of this content; it was changed"
    trained = read(run, place=place)
    try:
        if trained.key:
            gate.check(value, "signature", trained.key.public_key().public_bytes_raw().hex())
    except ValueError as error:
        yield str(error)
    trained = recounted(trained, value["labels"] and value["labels"]["judged"])
    for name, rate in value["rates"].items():
        if name != "by_kind" and _bound(rate, value["labels"]) != rate["upper"]:
            yield f"rates.{name}.upper: does not follow from its counts"
    weights = Path(run) / "model.safetensors"
    if weights.is_file() and outputs.sha256(weights) != value["model"]["sha256"]:
        yield "model.sha256: the model is another one"
    again = parts(
        trained, name=value["model"]["name"], evidence=value.get("evidence"),
        copies=[row["copies"] for row in value["right_guess"] if row["who"] == "user"],
        require=[row["limit"] for row in value.get("limits", ())],
    )  # fmt: skip
    told, made = {n: v for n, v in value.items() if n in again}, json.loads(json.dumps(again))
    if told != made:
        one, two = dict(pages.fields(told)), dict(pages.fields(made))
        where = (path for path in one | two if one.get(path) != two.get(path))
        yield f"{next(where, 'a part')}: is another when it is made again"
    text = page.read_bytes() if page.is_file() else b""
    if not any(_page(value, trained, a, page.name).encode() == text for a in AUDIENCES):
        yield f"{page}: the page differs from its certificate"


def _bound(rate: Mapping[str, Any], labels: Mapping[str, Any] | None) -> float:
    """The bound of a rate from its counts, where it was counted."""
    if rate["how"] != "one_per_cluster" or not labels:
        return float(rate["upper"])
    alpha = labels["alpha"] / (2 * labels["judged"])
    return bound(rate["count"], rate["of"], rate.get("again"), alpha=alpha)
