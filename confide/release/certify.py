"""From a release to its certificate: the fold over the sources of its files, composed with what was
spent before, sealed, written as a page and as JSON, and verified again.

>>> round_bound_up(0.44012), round_bound_up(float("inf")), round_bound_up(0.0)
(0.441, 'inf', 0.0)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jsonschema.exceptions import best_match
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from confide import odometer, odometer_lines, spending, text_registry
from confide.labels import registry
from confide.release import file_sources, gate, seal, source_fold
from confide.release.assumptions import assume_of_earlier_texts, assume_of_labels
from confide.release.limits import judge_limits
from confide.release.source_fold import FilesPromise
from confide.reports import bands, certificate_pages, model_card
from crtlib import files, outputs
from crtlib.accounting import confidentiality, guess_bounds, ledger
from crtlib.accounting.accountants import PrivacyProfile
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_choice
from crtlib.files import StrPath
from crtlib.intervals import at_most, exchangeable_rate, round_up_to_figures
from crtlib.screening.rates import RATES_ALPHA, rate_upper_bound

RECORD_FILE = "record.json"
BAYESIAN_KIND, SECRET_PLAN_KIND = "bayesian_confidentiality", "secret_protection"
SpentOrHistory = TypeVar("SpentOrHistory", spending.SpentBudget, spending.SpendingHistory)
FloatPair = tuple[float, float]
"""Epsilon and delta; or two rates, or a prior and a chance."""
COPY_COUNTS = (5, 20)
GUESS_PRIORS = (1e-6, 1e-3)
PROFILE_EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
PROFILE_DELTAS = tuple(10.0**-k for k in range(4, 13))
AUDIENCES = ("officer", "engineer", "both")
FLOATING_POINT_NOTE = "noise in floating point; attacks on its gaps are outside of the proof"
CUT_THREADS_NOTE = (
    "a thread of several people as a whole, where it was cut into what each of them said"
)
NOT_PROMISED = (
    "that a secret stays unknown which the rest of the text, or the world, gives away",
    "anything about what nobody labelled as a secret",
    "protection from who has the text, the records of this training or its other models",
    "anything across other versions of this text",
    "safety from attacks on floating-point noise",
    "that who signed told the truth: the signature shows edits by others",
)

EXACT_COUNTS_NOTE = (
    "dates, exact numbers of messages, conversations, people, public points and labels, and how "
    "far two readers agree, where they stand here or in another file of the release"
)
OF_AN_EARLIER_MODEL = ", of an earlier model"
"""What ends the name of a value that was declared of one."""
REMOVAL_RELATION_NOTE = (
    "that epsilon for exchanging a secret: as in the paper, it is for leaving a message out"
)

UNCOUNTED_REPEATS_NOTE = "which counted no trace of a secret whose message stands twice"
STRIKE_UNSEEN = (
    "strike it if nobody ever saw its model: crtlib account --odometer FOLDER --strike ENTRY "
    "--because WHY."
)
REPORT_COUNTS = {
    "completed": "passages that a report found completed",
    "unique": "passages of one person only that it found completed",
}
"""What stands on the sheet of a report that was made of the text: bands of exact counts."""


def round_bound_up(value: float) -> float | str:
    """A bound as the certificate writes it: three figures, rounded upwards."""
    return "inf" if math.isinf(value) else float(round_up_to_figures(value))


# --------------------------------------------------------------------------- what is read
class TrainingRecord(BaseModel):
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
class CertifiableRun:
    """The folder of a training, its record, the promise of its files alone, and what was spent
    before it on the same text. ``problems``: what voids it. ``spent`` is None where the odometer
    cannot be read; ``key`` is that beside it."""

    folder: Path
    record: Mapping[str, Any]
    own: FilesPromise
    spent: spending.SpentBudget | None
    problems: tuple[str, ...] = ()
    key: Ed25519PrivateKey | None = None

    def promise(self) -> ComposedPromise:
        """What its files promise together with what was spent before."""
        terms = self.record
        return compose_promise(
            self.own, self.spent, delta=terms["delta"], accountant=terms["accountant"],
            trials=terms["searched"]["trials"],
            law=odometer_lines.draw_law(terms.get("labels")),
        )  # fmt: skip


def read_certifiable_run(
    run: StrPath,
    *,
    place: StrPath | None = None,
    replaced: Sequence[Path] = (),
) -> CertifiableRun:
    """The training in the folder ``run``, with its record in ``run.work``, beside it; its odometer
    is in ``place``, or where the record says. The files that are ``replaced`` now are no change of
    the release; what one who was killed left beside them is removed. Raises ``ValueError`` where
    there is no record, or it was changed after it was signed."""
    folder = Path(run)
    choices = [folder / RECORD_FILE, folder.with_name(folder.name + ".work") / RECORD_FILE]
    path = next((p for p in choices if p.is_file()), None)
    if path is None:
        raise ValueError(f"{folder}: holds no {RECORD_FILE}; it was not made by 'crtlib train'")
    record = seal.read_signed(path)
    try:
        TrainingRecord.model_validate(record)
        bytes.fromhex(record["key"])
    except (ValidationError, ValueError):
        raise ValueError(f"{path}: is damaged, or of another version of crtlib") from None
    ours, public = record["odometer"], str(record["public_key"])
    own, problems = FilesPromise("none"), []
    mine = {p.resolve() for p in replaced}
    for written in mine:
        files.remove_stale_parts(written)
    try:
        released = gate.read_release(folder)
        altered = [n for n in released.altered if folder.resolve() / n not in mine]
        own = source_fold.combine_sources(released.sources, altered)
        if own.screening == outputs.with_keyed_hashes(
            ours["screening"], bytes.fromhex(record["key"])
        ):
            own = replace(own, screening=ours["screening"])  # as the odometer calls it
        if (released.run, released.key) != (ours["run"], public):
            problems.append("The files are of another run than the record.")
    except ValueError as error:
        problems.append(f"What was released is not known ({str(error).rpartition('/')[2]}).")
    home = Path(place) if place is not None else Path(ours["folder"])
    corpus, registry = (
        record["corpus"]["sha256"],
        text_registry.Registry(text_registry.registry_home()),
    )
    spent = key = None
    try:
        entries = odometer.read_entries(home)
        odometer.check_odometer_corpus(home, entries, corpus)
        if ours["entry"] not in {e.entry for e in entries}:
            raise ValueError("odometer: the entries of this run are missing")
        known = spending.read_history(home, registry, ours["run"])
        spent = known.spent(ours["run"])
        if set(ours.get("before", "").split()) - {e.run for e in known.entries}:
            problems.append("Earlier runs that were known when it was trained are not known here.")
        lines = [e for e in (*registry.entries(), *entries) if e.run == ours["run"]]
        problems += _check_odometer_lines(lines, own, record)
        key = seal.ensure_signing_key(home) if (home / seal.SIGNING_KEY_FILE).is_file() else None
        if key is None or key.public_key().public_bytes_raw().hex() != public:
            problems.append("The record is not signed by the key beside the odometer.")
    except (ValueError, OSError) as error:
        text = str(error) if isinstance(error, ValueError) else "odometer: cannot be read"
        problems.append(f"What was spent before is not known ({text.replace(f'{home} ', '')}).")
    return CertifiableRun(folder, record, own, spent, tuple(problems), key)


def _check_odometer_lines(
    lines: Sequence[odometer_lines.OdometerEntry], own: FilesPromise, record: Mapping[str, Any]
) -> list[str]:
    """Where the last of the lines of a run, or the model in any, is another than the files and the
    record say."""
    line, one = lines[-1], record["model"]["sha256"]
    if line.leaves_out_repeats and own.kind != "none":
        return [f"It was trained by crtlib 0.3, {UNCOUNTED_REPEATS_NOTE}: train it again."]
    other = [e.model for e in lines if e.state == "finished" and e.model != one]
    same: list[tuple[str, Any, Any]] = [("model", [line.model, *other], [one])]
    same += [("trials", line.trials, record["searched"]["trials"])]
    if own.events and line.events is not None:
        same += [("events", line.events, own.events), ("unit", line.unit, own.unit),
                 ("relation", line.relation, own.relation),
                 ("trace rate", line.gamma, own.gamma)]  # fmt: skip
        same += [("public rate", line.delta2, own.delta2)] if own.delta2 else []
    return [f"The odometer has other {name} of this run." for name, a, b in same if a != b]


def with_current_label_counts(trained: CertifiableRun, judged: int | None = None) -> CertifiableRun:
    """The training with bounds of its rates for so many pairs as its labels have judged until now,
    of which this one was chosen, where they were fewer when it began."""
    told, rates = trained.record["labels"], dict(trained.record["rates"])
    sha = trained.record["corpus"]["sha256"]
    if told:
        judged = judged or registry.register_judged_pairs({"labels": told["sha256"]}, sha)
        told = {**told, "judged": max(judged, told["judged"])}
    if trained.spent:
        trained = replace(trained, spent=with_current_bounds(trained.spent, told, sha))
    if not told or told["judged"] == trained.record["labels"]["judged"]:
        return trained

    def again(rows: Mapping[str, Any]) -> dict[str, Any]:
        return {name: {**row, "upper": _recompute_bound(row, told)} for name, row in rows.items()}

    kinds = {kind: again(rows) for kind, rows in rates.pop("by_kind").items()}
    rates, own = again(rates), trained.own
    trace, public = (rates[name]["upper"] for name in ("trace", "public"))
    own = replace(own, gamma=max(own.gamma, trace), delta2=own.delta2 and max(own.delta2, public))
    record = {**trained.record, "labels": told, "rates": {**rates, "by_kind": kinds}}
    return replace(trained, record=record, own=own)


def with_current_bounds(
    spent: SpentOrHistory, told: Mapping[str, Any] | None = None, corpus: str = ""
) -> SpentOrHistory:
    """What was spent before with bounds of its rates for as many pairs as their labels have judged
    by now. Of those that judge this run too, and of all of its corpus, ``told`` says how many: they
    hold together with those of this run."""

    def later(e: odometer_lines.OdometerEntry, name: str, upper: float) -> float:
        if name not in e.counted:
            return upper
        (count, of, *again), by = e.counted[name], e.counted["labels"]
        if told and (e.corpus == corpus or by == told["sha256"]):
            ours = told
        else:
            judged = registry.register_judged_pairs({"labels": by}, e.corpus)
            ours = {"alpha": RATES_ALPHA, "judged": max(1, judged)}
        row = {"count": count, "of": of, "again": again, "how": "one_per_cluster"}
        return max(upper, _recompute_bound(row, ours))

    entries = (
        replace(e, gamma=later(e, "trace", e.gamma), delta2=later(e, "public", e.delta2))
        for e in spent.entries
    )
    return replace(spent, entries=tuple(entries))


# --------------------------------------------------------------------------- the promise
@dataclass(frozen=True)
class ComposedPromise:
    """All that composes to a guarantee: what the files say, the events of this run and of those
    before, how many of their points one unit holds, and the rates of all their screenings
    together."""

    fold: FilesPromise
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
        return self.fold.kind not in ("none", SECRET_PLAN_KIND)

    @property
    def kind(self) -> str:
        """What is promised; an earlier run may leave less than the files say."""
        return (
            source_fold.classify_promise(self.gamma, self.delta2)
            if self.bounded
            else self.fold.kind
        )

    @property
    def curve(self) -> PrivacyProfile:
        """The profile of a secret that is in clear."""
        return ledger.privacy_profile(self.events, self.accountant, self.fold.relation, self.groups)

    def missed(self) -> FloatPair:
        """(epsilon, delta) of one that the search passed over."""
        return (self.curve(self.delta), self.delta) if self.bounded else (math.inf, 1.0)

    def secret(self) -> FloatPair:
        """(epsilon, delta) of one drawn at random (Theorem 8.3, delta2 added in full)."""
        if self.kind != BAYESIAN_KIND:
            return self.missed()
        delta = min(1.0, self.delta + self.delta2)
        return confidentiality.amplified_epsilon(
            self.curve, delta=self.delta, gamma=self.gamma
        ), delta

    def right(self, copies: int, trace_rate: float, public_rate: float) -> float:
        """How often a guess is right, whether a secret in so many messages stood there or was
        blacked out: for replacement, whatever the relation of the epsilon."""
        gained = guess_bounds.guess_advantage(
            self.events, copies=copies, trace_rate=trace_rate, public_rate=public_rate,
            neighbouring_relation="replace", group=self.groups,
        )  # fmt: skip
        return guess_bounds.right_guess_rate(gained)

    def right_guesses(
        self, copies: Sequence[int], average: FloatPair | None = None
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
        bayes = self.kind == BAYESIAN_KIND
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

    def value_guesses(self) -> list[FloatPair]:
        """Priors, and chances to name a value: a prior is that among the values which the policies
        would treat alike (:func:`crtlib.accounting.guess_bounds.value_guess_rate`). One in place of
        another is replacement, whatever the relation of the epsilon; a plan says it itself.

        Guarantee:
            Whether a value is learned with noise depends on it, so a chance among all values may
            be smaller than that which is promised of. Test:
            ``tests/release/test_what_is_assumed.py::test_the_chance_of_a_value_is_among_those_that_are_treated_alike``.
        """
        if plan := self.fold.plan:
            return list(plan.guesses)
        epsilon = ledger.privacy_profile(self.events, self.accountant, "replace", self.groups)(
            self.delta
        )
        return [
            (p, guess_bounds.value_guess_rate(epsilon, delta=self.delta, prior=p))
            for p in GUESS_PRIORS
        ]

    def guarantee(self) -> dict[str, Any]:
        """As the certificate has it."""
        plan, accountant, charged = self.fold.plan, self.accountant, 0.0
        if self.bounded:
            accountant = self.curve.answer(self.delta).accountant
            charged = float(round_up_to_figures(self.curve.charged(self.delta)))
        return {
            "kind": self.kind,
            "secret": _pair_as_json(self.secret()),
            "missed": _pair_as_json(self.missed()),
            "relation": self.fold.relation,
            "accountant": "KL divergence" if plan else accountant,
            "proved": True,  # the antipodal pair is the worst one: a theorem
            "error_charged": charged,
            "conjectured": None,
            "plan": plan and plan.plan,
        }

    def guesses(self, copies: Sequence[int], average: FloatPair | None = None) -> dict[str, Any]:
        """As the certificate has them, rounded upwards."""
        return {
            "right_guess": [
                {"who": who, "copies": k, "prior": 0.5, "at_most": _round_chance_up(p)}
                for who, k, p in self.right_guesses(copies, average)
            ],
            "value_guess": [
                {"prior": p, "at_most": _round_chance_up(q)} for p, q in self.value_guesses()
            ],
        }


def compose_promise(
    own: FilesPromise,
    spent: spending.SpentBudget | None,
    *,
    delta: float,
    accountant: str = "pld",
    trials: int = 1,
    law: str | None = None,
) -> ComposedPromise:
    """What this run and those of ``spent`` promise together. Each of the ``trials`` among which it
    was chosen is charged as it is, as for a search of a fixed size. ``law``: of the labels that
    bound its rates (:func:`confide.odometer_lines.draw_law`)."""
    before = spent or spending.SpentBudget(())
    events = tuple(replace(e, steps=e.steps * trials) for e in own.events)
    gamma, delta2 = before.rates(own.screening, own.gamma, own.delta2, law)
    groups = (1,) * len(events) + before.groups(own.unit, own.holds)
    exact = accountant if max(groups, default=1) == 1 else "pld"
    earlier = [e.moves_copies for e in before.private for _ in e.events or ()]
    if any(size > 1 and moves for size, moves in zip(groups[len(events) :], earlier, strict=True)):
        gamma = 1.0  # what one unit is here was several messages there, masked together
    return ComposedPromise(
        own,
        events=events + before.events,
        groups=groups,
        gamma=gamma,
        delta2=delta2,
        accountant=exact,
        delta=delta,
        moves_copies=own.hides_copies or any(earlier),
    )


def list_void_reasons(trained: CertifiableRun, own: ComposedPromise, epsilon: float) -> list[str]:
    """Why the certificate is void, a sentence each; none for a method without noise."""
    record, fold, spent = trained.record, trained.own, trained.spent
    if fold.kind == "none" and not trained.problems:
        return []
    known = record["rates"]["public"]["how"] != "unknown"
    plan, before = fold.plan, spent or spending.SpentBudget(())
    law = odometer_lines.draw_law(record.get("labels"))
    elsewhere = any(e.delta2 > 0 for e in before.elsewhere)
    other_law = any(e.delta2 > 0 for e in before.of_another_law(fold.screening, law))
    unbounded = plan is None and known and own.delta + own.delta2 >= 1
    checks = [
        (
            spent is not None and spent.struck,
            "Its run was struck from the odometer, as of a model that nobody ever saw.",
        ),
        (
            spent is not None and spent.bare,
            "It started from a model that had learned this text without protection, or with a "
            "promise that is void.",
        ),
        (
            spent is not None and spent.leaving_out_repeats > 0,
            f"An earlier run on this text was of crtlib 0.3, {UNCOUNTED_REPEATS_NOTE}; "
            f"{STRIKE_UNSEEN}",
        ),
        (
            not record["protects_all"],
            "What the policy passes over is learned without noise, so nothing bounds it.",
        ),
        (
            record["oracle_on_real_text"],
            "A policy read the labels themselves, which the rest of the text does not have.",
        ),
        (not known, "Nothing is known of the secrets that were learned without noise: label some."),
        (plan is not None and not plan.keeps, "Some secrets are above what the plan promised."),
        (
            plan is not None
            and spent is not None
            and any(x.events is not None or x.method == "lp_weighted" for x in spent.entries),
            "What earlier models on this text spent was counted for messages, not for each secret.",
        ),
        (
            plan is not None and record["searched"]["trials"] > 1,
            "Several trainings were compared, and what a plan promises is of one.",
        ),
        (
            plan is None and fold.relation == "add_or_remove",
            "Who is held out follows from how many people there are, so that one point more "
            "changes "
            "others: train with --neighbouring replace.",
        ),
        (plan is None and math.isinf(epsilon), "The accountant shows no epsilon."),
        (
            unbounded and elsewhere,
            "An earlier run on other text learned without noise what its search passed over, which "
            "may be just the secrets of this text: what was measured there bounds nothing here. "
            "Screen and train on one text that holds both, or leave nothing without noise there "
            f"(--conservative everything, or dpsgd); {STRIKE_UNSEEN}",
        ),
        (
            unbounded and other_law,
            "The labels that judged an earlier run on this text were drawn by another law than "
            "those that judged this one, or a further one, so their rates do not add: judge all by "
            f"labels of one draw; {STRIKE_UNSEEN}",
        ),
        (
            unbounded and not (elsewhere or other_law),
            "Delta is 1: nothing bounds what this run, or one before it, learned without noise.",
        ),
    ]
    return [*trained.problems, *fold.void, *(text for applies, text in checks if applies)]


def collect_certificate_parts(
    trained: CertifiableRun,
    *,
    name: str | None = None,
    copies: Sequence[int] = COPY_COUNTS,
    evidence: Mapping[str, Any] | None = None,
    require: Sequence[str] = (),
) -> dict[str, Any]:
    """The parts of a certificate (:func:`confide.reports.certificate_pages.assemble_certificate`
    seals them)."""
    record, fold, spent = trained.record, trained.own, trained.spent or spending.SpentBudget(())
    own, alone = trained.promise(), replace(trained, spent=spent.of_ancestors()).promise()
    why = list_void_reasons(trained, own, own.missed()[0])
    verdict = "void" if why else "none" if fold.kind == "none" else "holds"
    corpus = record["corpus"]["sha256"]
    known = [*record["treated_as_public"], EXACT_COUNTS_NOTE]
    known += public_of_earlier(spent, known, corpus)
    key = bytes.fromhex(record["key"])
    if max(own.groups, default=1) > 1:
        known.append(f"how many messages one {record['unit']} holds")
    guesses: dict[str, Any] = {"right_guess": [], "value_guess": []}
    if verdict == "holds":
        guesses = own.guesses(copies, average_rates(own, record))
    content = {
        "software": record["software"],
        "verdict": verdict,
        "void_because": why,
        "model": {"name": name or trained.folder.resolve().name, **record["model"]},
        "corpus": outputs.with_keyed_hashes(record["corpus"], key),
        "unit": record["unit"],
        "method": record["method"],
        "guarantee": own.guarantee(),
        **guesses,
        "mechanism": {
            "phases": record["phases"],
            "randomness": record["randomness"],
            "floating_point": FLOATING_POINT_NOTE,
            **{n: record[n] for n in ("processes",) if n in record},
        },
        "rates": record["rates"],
        "labels": outputs.with_keyed_hashes(
            record["labels"] if own.kind == BAYESIAN_KIND else None, key
        ),
        "policies": outputs.with_keyed_hashes(record["policies"], key),
        "treated_as_public": known,
        "declared": [
            *declared_as_json((*fold.declared, *declare_report_counts(evidence))),
            *declared_of_earlier(spent),
        ],
        "assumed": [
            *fold.assumed,
            *assumed_of_outside(fold),
            *assumed_of_earlier(spent, corpus),
            *assume_of_earlier_texts(spent.private, record["corpus"]["sha256"]),
            *(assume_of_labels(record) if own.kind == BAYESIAN_KIND else ()),
        ],
        "searched": {"trials": record["searched"]["trials"], "charged": True},
        "canaries": {n: record["canaries"][n] for n in ("planted", "copies")},
        # A line's own hash tells of the text to who knows the rest of it: it leaves keyed.
        "spent_before": {
            "alone": _pair_as_json(alone.secret()),
            "unprotected": spent.unprotected,
            "runs": spent.runs,
            "elsewhere": len(spent.elsewhere),
            "struck": spent.left,
            "forgotten": int(record["odometer"].get("forgotten", 0)),
            "gamma": own.gamma,
            "delta2": own.delta2,
            "entries": outputs.with_keyed_hashes([e.entry for e in spent.entries], key),
        },
        "not_promised": [
            *NOT_PROMISED,
            *([CUT_THREADS_NOTE] if record["unit"] == "dialogue" else []),
            *([REMOVAL_RELATION_NOTE] if fold.relation == "add_or_remove" else []),
        ],
        "evidence": dict(evidence or {}),
    }
    return content | ({"limits": judge_limits(content, require)} if require else {})


def assumed_of_outside(fold: FilesPromise) -> list[str]:
    """What is assumed of a model from outside that was trained with noise: that no text of a batch
    decides what another adds (:func:`crtlib.training.probe.refuse_mixing` tries it)."""
    ending = " had not read this text"
    apart = "apart from the earlier models that are counted, "
    names = [
        said.removesuffix(ending).removeprefix(apart)
        for said in fold.assumed
        if said.endswith(ending)
    ]
    if not (fold.events or fold.plan):
        return []
    return [f"{name} reads each text alone, as was tried on random texts" for name in names]


def declared_as_json(every: Iterable[file_sources.DeclaredSource]) -> list[dict[str, Any]]:
    """Values that are declared public, as a certificate has them."""
    return [
        {"of": d.of, "value": d.value, "bits": float(round_up_to_figures(d.bits))} for d in every
    ]


def declared_of_earlier(spent: spending.SpentBudget) -> list[dict[str, Any]]:
    """What was declared public of the earlier models that the promise covers: it counts for each,
    also where two have one value."""
    every = (row for e in spent.private for row in e.declared)
    return [{**row, "of": row["of"] + OF_AN_EARLIER_MODEL} for row in every]


def assumed_of_earlier(spent: spending.SpentBudget, corpus: str) -> list[str]:
    """What is assumed of the earlier models that the promise covers. What the last one assumes is
    said again: a file, or a model, may have had the same name.

    Guarantee:
        A promise of several models together stands on the conditions of each. Test:
        ``tests/release/test_earlier_runs.py::test_the_conditions_of_earlier_runs_are_conditions_of_all``.
    """
    return list(dict.fromkeys(
        file_sources.assumption_of_earlier(sentence, same_text=e.corpus == corpus)
        for e in spent.private
        for sentence in e.assumed
    ))  # fmt: skip


def public_of_earlier(spent: spending.SpentBudget, own: Sequence[str], corpus: str) -> list[str]:
    """What the earlier models that the promise covers treated as known, but for what its ``own``
    model does on the same text."""
    return list(dict.fromkeys(
        f"of an earlier model: {fact}"
        for e in spent.private
        for fact in e.treated_as_public
        if fact not in own or e.corpus != corpus
    ))  # fmt: skip


def _round_chance_up(value: float) -> float:
    return min(1.0, float(round_up_to_figures(value)))


def _pair_as_json(pair: FloatPair) -> dict[str, Any]:
    return {"epsilon": round_bound_up(pair[0]), "delta": _round_chance_up(pair[1])}


def average_rates(own: ComposedPromise, record: Mapping[str, Any]) -> FloatPair | None:
    """The trace and the public rate on average over the draw of the labels
    (:func:`crtlib.intervals.exchangeable_rate`); None where nobody drew them, all were read or
    chosen from, an earlier search adds to the rates of this one, its bounds are not of its counts,
    turns were read twice, or a rate is charged up to 1, which would void what the others
    promise."""
    labels = record["labels"] or {}
    trace, public = (record["rates"][name] for name in ("trace", "public"))
    alone = own.gamma == own.fold.gamma == trace["upper"] and own.delta2 == own.fold.delta2
    counted = all(_recompute_bound(row, labels) == row["upper"] for row in (trace, public))
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
def tabulate_privacy_profile(own: ComposedPromise) -> dict[str, Any]:
    """What stands on the engineer's page beyond the certificate: delta at some epsilons and back,
    under both relations, and the trade-off curves (type I, type II) of a secret."""
    relations = ("add_or_remove", "replace")
    curves = {r: ledger.privacy_profile(own.events, "pld", r, own.groups) for r in relations}
    grid = [i / 80 for i in range(81)]
    rates = {"missed": (1.0, 0.0)}
    rates |= {"secret": (own.gamma, own.delta2)} if own.kind == BAYESIAN_KIND else {}
    drawn = {
        name: guess_bounds.tradeoff_curve(
            own.events, grid, neighbouring_relation="replace", group=own.groups,
            trace_rate=gamma, public_rate=delta2,
        ).tolist()
        for name, (gamma, delta2) in rates.items()
    }  # fmt: skip
    return {
        "delta_at": [
            {"epsilon": e} | {r: c.delta(e) for r, c in curves.items()} for e in PROFILE_EPSILONS
        ],
        "epsilon_at": [{"delta": d} | {r: c(d) for r, c in curves.items()} for d in PROFILE_DELTAS],
        "curves": {name: list(zip(grid, line, strict=True)) for name, line in drawn.items()},
    }


# --------------------------------------------------------------------------- evidence
def read_evidence(
    run: StrPath,
    text: str,
    audit: StrPath | None,
    report: StrPath | None,
) -> dict[str, Any]:
    """What ``audit.json`` and the folder of a leakage report say of the model in ``run``, for the
    certificate. Raises ``ValueError`` where they are of another one, or name none, or the report is
    of another corpus than that with the hash ``text``.

    The numbers of an audit are functions of the model, of the noise that was accounted and of
    canaries that were invented, so they tell nothing of the text that the model does not. Those of
    a report are counts on the text itself: :func:`declare_report_counts` declares them."""
    attached: dict[str, Any] = {}
    other = "is of another model, or names none; make it again"
    if audit is not None:
        a = _read_json_object(Path(audit))
        outputs.require_marker(Path(audit).parent, [Path(audit).name])
        if a.get("model") != outputs.hash_file(Path(run) / "model.safetensors"):
            raise ValueError(f"--audit: {audit} {other}")
        if a.get("claimed"):
            raise ValueError(f"--audit: {audit} tests a claim; audit without --claim")
        proved = a["proved"] if a["proved"] == "inf" else round_bound_up(a["proved"])
        lower = math.floor(1000 * a["epsilon_lower"]) / 1000
        attached["audit"] = {"lower": lower, "epsilon": proved} | {
            name: a[name] for name in ("confidence", "canaries", "guessed", "right", "power")
        }
    if report is not None:
        marked = outputs.require_marker(report)
        read, key = marked["inputs"], outputs.load_or_make_key(outputs.key_path_beside(report))
        if marked["options"].get("reveal"):
            raise ValueError(f"--report: {report} is in clear; a redacted one may be shown")
        if read.get("model") != outputs.hash_tree(run):
            raise ValueError(f"--report: {report} {other}")
        if read.get("text") != outputs.with_keyed_hashes(text, key):
            raise ValueError(f"--report: {report} is of another text than the model was trained on")
        if marked["options"]["min_length"] > 1:
            raise ValueError(f"--report: {report} leaves short passages out (--min-length)")
        r = _read_json_object(Path(report) / "report.json")["summary"]
        attached["report"] = {"completed": r["runs"], "unique": r["unique"], "top_k": r["top_k"]}
    return attached


def declare_report_counts(
    evidence: Mapping[str, Any] | None,
) -> tuple[file_sources.DeclaredSource, ...]:
    """What the leakage report in the ``read_evidence`` of a certificate tells of the private text
    outside of the promise: no noise is in its counts, and one message may move one to the next
    band. Raises ``ValueError`` for what is no band.

    >>> [
    ...     (d.value, round(d.bits, 2))
    ...     for d in declare_report_counts({"report": {"completed": "5 to 9"}})
    ... ]
    [('5 to 9', 9.85)]
    """
    report = (evidence or {}).get("report") or {}
    return tuple(
        file_sources.DeclaredSource(of, report[name], bands.list_band_names())
        for name, of in REPORT_COUNTS.items()
        if name in report
    )


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        return dict(seal.load_strict_json(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (ValueError, TypeError):
        raise ValueError(f"{path}: is no JSON object of ours") from None


# --------------------------------------------------------------------------- writing
def write_certificate(
    run: StrPath,
    out: StrPath,
    *,
    name: str | None = None,
    audience: str = "both",
    audit: StrPath | None = None,
    report: StrPath | None = None,
    place: StrPath | None = None,
    copies: Sequence[int] = COPY_COUNTS,
    require: Sequence[str] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Write the page ``out`` and, of the same name, the JSON; the certificate, sealed.

    Both are public files (0644, less the umask) where the verdict is "holds", else private ones.
    ``require``: limits (:func:`judge_limits`), whose verdict the certificate gives. Raises
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
        outputs.check_output_file(path, force=force)
    if both[1].is_file() and "void_because" not in _read_json_object(both[1]):  # such as model.json
        raise ValueError(f"--out: {both[1]} is there and no certificate; take another name")
    trained = read_certifiable_run(
        run, place=place, replaced=(*both, Path(run) / seal.RELEASE_FILE)
    )
    trained = with_current_label_counts(trained)
    attached = read_evidence(run, trained.record["corpus"]["sha256"], audit, report)
    content = collect_certificate_parts(
        trained, name=name, copies=copies, evidence=attached, require=require
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    value = certificate_pages.assemble_certificate(content, issued=now.replace("+00:00", "Z"))
    value = seal.sign_value(value, trained.key) if trained.key else value
    certificate_pages.certificate_validator().validate(value)
    texts = {page.with_suffix(".json"): json.dumps(value, indent=1, allow_nan=False) + "\n",
             page: _render_certificate(value, trained, audience, page.name)}  # fmt: skip
    mode = outputs.PUBLIC_FILE_MODE if value["verdict"] == "holds" else outputs.PRIVATE_FILE_MODE
    for path, text in texts.items():
        files.write_text(path, text, mode)
    inside = Path(run).resolve() in page.resolve().parents
    if inside and trained.key and (Path(run) / seal.RELEASE_FILE).is_file():
        gate.extend_release(Path(run), [p.resolve() for p in texts], trained.key)
    return value


def _render_certificate(
    value: Mapping[str, Any], trained: CertifiableRun, audience: str, name: str
) -> str:
    """The page for an audience, which has this name."""
    own, numbers = trained.promise(), None
    if value["verdict"] == "holds" and audience != "officer" and own.bounded:
        numbers = tabulate_privacy_profile(own)
    command = f"crtlib certify {trained.folder.resolve().name} --out {name}"
    return certificate_pages.render_certificate_pages(
        value, audience, profile=numbers, command=command
    )


def summarise_certificate(value: Mapping[str, Any]) -> str:
    """One line for a terminal."""
    if beyond := [row["limit"] for row in value.get("limits", ()) if not row["met"]]:
        return f"does not meet your limits: {', '.join(beyond)}; {_verdict_line(value)}"
    return (
        f"meets your limits; {_verdict_line(value)}"
        if value.get("limits")
        else _verdict_line(value)
    )


def _verdict_line(value: Mapping[str, Any]) -> str:
    if value["verdict"] != "holds":
        return " ".join(value["void_because"]) or "no promise: the method adds no noise"
    g, before = value["guarantee"], value["spent_before"]["runs"]
    if g["kind"] == SECRET_PLAN_KIND:
        worst = max(row["at_most"] for row in value["value_guess"])
        return f"holds; a protected value is guessed with a chance of at most {at_most(worst, 3)}"
    earlier = f"; with {before} earlier" if before else ""
    pairs = [f"({x['epsilon']}, {at_most(x['delta'], 3)})" for x in (g["secret"], g["missed"])]
    who = (
        f"a secret at random {pairs[0]}, one passed over"
        if g["kind"] == BAYESIAN_KIND
        else "any one"
    )
    return f"holds; {who} {pairs[1]}{earlier}; id {value['id'][:12]}"


# --------------------------------------------------------------------------- verifying
def verify_certificate(
    run: StrPath,
    out: StrPath,
    *,
    place: StrPath | None = None,
) -> tuple[str | None, dict[str, Any]]:
    """The first difference between a certificate and what its run gives again (None: there is
    none), and the certificate. Schema, id, bounds of the rates, hash of the model, every number
    from the ledger and the page are compared.

    Raises ``ValueError`` where there is nothing to verify.
    """
    page = Path(out).with_suffix(".html")
    value = _read_json_object(page.with_suffix(".json"))
    if "id" not in value or "verdict" not in value:
        raise ValueError(f"{page.with_suffix('.json')}: is no certificate")
    return next(_certificate_differences(value, run, place, page), None), value


def _certificate_differences(
    value: dict[str, Any],
    run: StrPath,
    place: StrPath | None,
    page: Path,
) -> Iterator[str]:
    if error := best_match(certificate_pages.certificate_validator().iter_errors(value)):
        yield f"{error.json_path}: is not what the schema allows"
    if certificate_pages.hash_certificate(value) != value["id"]:
        yield "id: is not that of this content; it was changed"
    trained = read_certifiable_run(run, place=place)
    try:
        if trained.key:
            seal.check_signature(
                value, "signature", trained.key.public_key().public_bytes_raw().hex()
            )
    except ValueError as error:
        yield str(error)
    trained = with_current_label_counts(trained, value["labels"] and value["labels"]["judged"])
    for name, rate in value["rates"].items():
        if name != "by_kind" and _recompute_bound(rate, value["labels"]) != rate["upper"]:
            yield f"rates.{name}.upper: does not follow from its counts"
    weights = Path(run) / "model.safetensors"
    if weights.is_file() and outputs.hash_file(weights) != value["model"]["sha256"]:
        yield "model.sha256: the model is another one"
    again = collect_certificate_parts(
        trained, name=value["model"]["name"], evidence=value.get("evidence"),
        copies=[row["copies"] for row in value["right_guess"] if row["who"] == "user"],
        require=[row["limit"] for row in value.get("limits", ())],
    )  # fmt: skip
    told, made = {n: v for n, v in value.items() if n in again}, json.loads(json.dumps(again))
    if told != made:
        one, two = dict(model_card.flatten_fields(told)), dict(model_card.flatten_fields(made))
        where = (path for path in one | two if one.get(path) != two.get(path))
        yield f"{next(where, 'a part')}: is another when it is made again"
    text = page.read_bytes() if page.is_file() else b""
    if not any(
        _render_certificate(value, trained, a, page.name).encode() == text for a in AUDIENCES
    ):
        yield f"{page}: the page differs from its certificate"


def _recompute_bound(rate: Mapping[str, Any], labels: Mapping[str, Any] | None) -> float:
    """The bound of a rate from its counts, where it was counted."""
    if rate["how"] != "one_per_cluster" or not labels:
        return float(rate["upper"])
    alpha = labels["alpha"] / (2 * labels["judged"])
    return rate_upper_bound(rate["count"], rate["of"], rate.get("again"), alpha=alpha)
