"""Collect the parts of a certificate from the record, the files' sources and earlier spending."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide import spending
from confide.promise_kinds import BAYESIAN_KIND
from confide.release import file_sources
from confide.release.assumptions import (
    assume_of_earlier_models,
    assume_of_earlier_texts,
    assume_of_labels,
    assume_of_models_from_outside,
    state_assumptions,
)
from confide.release.certifiable_run import CertifiableRun
from confide.release.composed_promise import ComposedPromise, FloatPair, pair_as_json
from confide.release.evidence import declare_report_counts
from confide.release.limits import judge_limits
from confide.release.rate_bounds import recompute_bound
from confide.release.source_fold import FilesPromise
from confide.release.void_reasons import list_void_reasons
from confide.reports import small_groups
from confide.reports.sentences import NO_PROMISE, NOTHING_PROMISED
from crtlib import outputs
from crtlib.checks import plain_name
from crtlib.intervals import exchangeable_rate, round_up_to_figures

SECRETS_PER_PERSON = (5, 20)


FLOATING_POINT_NOTE = "noise in floating point; attacks on its gaps are outside of the proof"
CUT_CONVERSATIONS_NOTE = (
    "a conversation of several people as a whole, where it was cut into what each of them said"
)
NOT_PROMISED = (
    "that a secret stays unknown if the rest of the text, or the world, gives it away",
    "anything about what nobody labelled as a secret",
    "protection from anyone who has the text, the records of this training or its other models",
    "anything across other versions of this text",
    "safety from attacks on floating-point noise",
    "that whoever signed told the truth: the signature shows edits by others",
)

EXACT_COUNTS_NOTE = (
    "dates, exact numbers of messages, conversations, people, public points and labels, and how "
    "far two readers agree, where they appear here or in another file of the release"
)
SETTINGS_NOTE = (
    "the settings of the training (policies, unit, model, noise, steps, what is learned), and that "
    "this model was taken, whatever somebody, or 'crtlib advise', based these choices on"
)
ALWAYS_KNOWN = (EXACT_COUNTS_NOTE, SETTINGS_NOTE)
"""What every promise treats as known: a setting chosen by looking at the text reveals some of
it."""
EARLIER_REPORTS_NOTE = "what reports on it counted on the text, where any were shown"
"""Treated as known of each earlier model: its own certificate declares these counts, but no
odometer line has them."""
OF_AN_EARLIER_MODEL = ", of an earlier model"
"""The ending of the name of a value that was declared for an earlier model."""
REMOVAL_RELATION_NOTE = (
    "that epsilon for exchanging a secret: as in the paper, it is for leaving a message out"
)


def collect_certificate_parts(
    trained: CertifiableRun,
    *,
    name: str | None = None,
    secrets_per_person: Sequence[int] = SECRETS_PER_PERSON,
    evidence: Mapping[str, Any] | None = None,
    require: Sequence[str] = (),
) -> dict[str, Any]:
    """Collect the parts of a certificate, for
    :func:`confide.reports.certificate_pages.assemble_certificate` to seal.

    Args:
        trained: The training, with its record and what was spent before it.
        name: The model's name; None: its folder's name.
        secrets_per_person: For each of these numbers, the certificate has a row of guesses about a
            person with that many secrets, or about a value that occurs that often.
        evidence: What an audit and a report found (:func:`confide.release.evidence.read_evidence`).
        require: Limits that the certificate is judged against.

    Returns:
        The parts, as JSON values. Every number that people read is computed here or in
        :class:`ComposedPromise`; pages and cards only render it.

    Raises:
        ValueError: For a limit that is malformed.

    Guarantee:
        All files state the same numbers, each beside what it rests on. A certificate that would
        allow every guess to be right does not hold. Tests: ``tests/release/test_one_number.py``,
        ``tests/release/test_what_is_assumed.py::
        test_every_word_of_a_promise_with_earlier_texts_carries_its_condition``,
        ``tests/release/test_limits.py::test_what_lets_every_guess_be_right_promises_nothing``.
    """
    record, spent = trained.record, trained.spent or spending.SpentBudget(())
    promise, key = trained.promise(), bytes.fromhex(record["key"])
    void_because = list_void_reasons(trained, promise, promise.missed_bound()[0])
    verdict = (
        "void" if void_because else "none" if trained.files_promise.kind == "none" else "holds"
    )
    guesses: dict[str, Any] = {"right_guess": [], "value_guess": []}
    if verdict == "holds":
        guesses = promise.guesses(secrets_per_person, average_rates(promise, record))
        if is_every_guess_right(guesses):
            verdict, void_because = "none", [NOTHING_PROMISED]
    rests_on_labels = promise.kind == BAYESIAN_KIND
    assumed = [
        *trained.files_promise.assumed,
        *assume_of_models_from_outside(trained.files_promise),
        *assume_of_earlier_models(spent, record["corpus"]["sha256"]),
        *assume_of_earlier_texts(spent.private, record["corpus"]["sha256"]),
        *(assume_of_labels(record) if rests_on_labels else ()),
    ]
    content = {
        "software": record["software"],
        "verdict": verdict,
        "void_because": void_because,
        "model": {"name": plain_name(name or trained.folder.resolve().name), **record["model"]},
        "corpus": outputs.with_keyed_hashes(record["corpus"], key),
        "unit": record["unit"],
        "method": record["method"],
        "guarantee": promise.guarantee(),
        **guesses,
        "mechanism": {
            "phases": record["phases"],
            "randomness": record["randomness"],
            "floating_point": FLOATING_POINT_NOTE,
            **({"processes": record["processes"]} if "processes" in record else {}),
        },
        "rates": small_groups.show_rates_by_kind(
            record["rates"], (record["labels"] or {}).get("unread", 0)
        ),
        "labels": outputs.with_keyed_hashes(record["labels"] if rests_on_labels else None, key),
        "policies": outputs.with_keyed_hashes(record["policies"], key),
        "treated_as_public": _list_treated_as_public(record, spent, promise),
        "declared": [
            *declarations_as_json(
                (*trained.files_promise.declared, *declare_report_counts(evidence))
            ),
            *declare_of_earlier_models(spent),
        ],
        "assumed": state_assumptions(assumed),
        "searched": {"trials": record["searched"]["trials"], "charged": True},
        "canaries": {n: record["canaries"][n] for n in ("planted", "copies")},
        "spent_before": _describe_spending(trained, spent, promise, key),
        "not_promised": list_not_promised(record["unit"], trained.files_promise),
        "evidence": dict(evidence or {}),
    }
    return content | ({"limits": judge_limits(content, require)} if require else {})


def is_every_guess_right(guesses: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether every bound on a right guess, as printed, is so high that it promises nothing.

    >>> is_every_guess_right({"right_guess": [{"at_most": 1.0}], "value_guess": [{"at_most": 1.0}]})
    True
    >>> is_every_guess_right({"right_guess": [{"at_most": 1.0}], "value_guess": [{"at_most": 0.3}]})
    False
    """
    return all(row["at_most"] >= NO_PROMISE for rows in guesses.values() for row in rows)


def list_not_promised(unit: str, files_promise: FilesPromise) -> list[str]:
    """What no promise for this unit, and of the kind of these files, covers, a clause each. The
    note on the relation of epsilon is left out for a plan: it has no epsilon, and its promise is
    about exchanging a secret whatever its relation."""
    is_of_removal = (
        files_promise.neighbouring_relation == "add_or_remove" and files_promise.plan is None
    )
    return [
        *NOT_PROMISED,
        *([CUT_CONVERSATIONS_NOTE] if unit == "dialogue" else []),
        *([REMOVAL_RELATION_NOTE] if is_of_removal else []),
    ]


def _list_treated_as_public(
    record: Mapping[str, Any], spent: spending.SpentBudget, promise: ComposedPromise
) -> list[str]:
    """What the promise treats as known about this model and the earlier ones.

    Guarantee:
        Every setting that depends on the text is either declared or stated to be known. Test:
        ``tests/release/test_advise.py::test_a_choice_that_reads_the_text_is_treated_as_known``.
    """
    public_facts = [*record["treated_as_public"], *ALWAYS_KNOWN]
    public_facts += list_known_of_earlier_models(spent, public_facts, record["corpus"]["sha256"])
    if max(promise.groups, default=1) > 1:
        public_facts.append(f"how many messages one {record['unit']} holds")
    return public_facts


def _describe_spending(
    trained: CertifiableRun, spent: spending.SpentBudget, promise: ComposedPromise, key: bytes
) -> dict[str, Any]:
    """What the runs before this one spent. ``alone`` is the promise of this model together with
    those that it started from, of the same kind as the whole promise. Hashes of odometer lines are
    keyed: a plain one reveals something about the text to anybody who knows the rest of the line.
    """
    promise_alone = replace(trained, spent=spent.of_ancestors()).promise()
    if promise.kind == BAYESIAN_KIND:  # as in the sentence that prints it
        bound_alone = promise_alone.random_secret_bound()
    else:
        bound_alone = promise_alone.missed_bound()
    return {
        "alone": pair_as_json(bound_alone),
        "unprotected": spent.unprotected_run_count,
        "runs": spent.protected_run_count,
        "elsewhere": len(spent.runs_on_other_texts),
        "struck": spent.excluded_runs,
        "forgotten": int(trained.record["odometer"].get("forgotten", 0)),
        "gamma": promise.gamma,
        "delta2": promise.delta2,
        "entries": outputs.with_keyed_hashes([e.entry for e in spent.entries], key),
    }


def declarations_as_json(
    declarations: Iterable[file_sources.DeclaredSource | file_sources.StoppedSource],
) -> list[dict[str, Any]]:
    """Values that are declared public, as a certificate lists them."""
    return [
        {"of": d.of, "value": d.value, "bits": float(round_up_to_figures(d.bits))}
        for d in declarations
    ]


def declare_of_earlier_models(spent: spending.SpentBudget) -> list[dict[str, Any]]:
    """What was declared public for the earlier models that the promise covers. Each declaration
    counts, even if two have the same value."""
    declarations = (row for e in spent.private for row in e.declared)
    return [{**row, "of": row["of"] + OF_AN_EARLIER_MODEL} for row in declarations]


def list_known_of_earlier_models(
    spent: spending.SpentBudget, own_facts: Sequence[str], corpus: str
) -> list[str]:
    """What the earlier models that the promise covers treated as known, except what this model
    treats as known too (``own_facts``) if they read the same text.

    Guarantee:
        What a report on an earlier model revealed about the text is listed as known, although the
        model's odometer line does not mention it. Test: ``tests/release/test_earlier_runs.py::
        test_the_reports_on_earlier_models_are_treated_as_known``.
    """
    facts = [
        fact
        for e in spent.private
        for fact in (*e.treated_as_public, EARLIER_REPORTS_NOTE)
        if fact not in own_facts or e.corpus != corpus
    ]
    return list(dict.fromkeys(f"of an earlier model: {fact}" for fact in facts))


def average_rates(promise: ComposedPromise, record: Mapping[str, Any]) -> FloatPair | None:
    """The trace and the public rate averaged over the draw of the labels
    (:func:`crtlib.intervals.exchangeable_rate`). None if the labels were not drawn at random, if
    nobody is left who was neither read nor chosen from, if an earlier search adds to the rates of
    this one, if a bound does not follow from its counts, if turns were read twice, or if an average
    is 1, which would void what the other bounds promise."""
    labels = record["labels"] or {}
    trace, public = (record["rates"][name] for name in ("trace", "public"))
    is_alone = (
        promise.gamma == promise.files_promise.gamma == trace["upper"]
        and promise.delta2 == promise.files_promise.delta2
    )
    follows_from_counts = all(
        recompute_bound(row, labels) == row["upper"] for row in (trace, public)
    )
    is_alone &= follows_from_counts and "again" not in trace  # no turn was read twice
    if labels.get("drawn") != "at_random" or not labels.get("others") or not is_alone:
        return None
    mean_rates = [
        exchangeable_rate(row["count"], row["of"], policy_pairs=labels["judged"])
        for row in (trace, public)
    ]
    pair = mean_rates[0], mean_rates[1] if promise.delta2 else 0.0
    return None if 1.0 in pair else pair
