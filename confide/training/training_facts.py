"""Facts about the text of a training: its labels, rates and policies, and where they come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import crtlib
from crtlib.screening import policy_digests, policy_names
from crtlib.screening.rate_values import RATES_ALPHA, PolicyRates, Rate, assumed_rate
from crtlib.screening.taught_text import count_teaching_people
from crtlib.studies.crt_study import CrtStudy
from crtlib.studies.study_data import PreparedData
from crtlib.text import corpora

SEEDED_NOISE_REASON = (
    "The noise follows from a known seed, so whoever knows the seed can remove the noise"
)
RAW_TEXT_RATES = PolicyRates(assumed_rate(1.0), assumed_rate(1.0), Rate(0, 0, 0.0, "policy"))
"""The rates of a method that reads raw text: nothing is redacted, and all of it is private."""
PROTECTING_KINDS = {"differential privacy", "Bayesian confidentiality"}
"""The kinds of promise that also cover what a policy passes over."""
PERPLEXITY_NAMES = {True: "held-out perplexity", False: "perplexity of other text"}
"""The name of a perplexity, by whether its text was held out of the corpus."""

TrainingFacts = Mapping[str, Any]
CardWriter = Callable[[TrainingFacts], str]


def _json_sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def policy_hash(name: str) -> str:
    """SHA-256 over what defines a policy: this version of crtlib, its name, the files that it
    reads, and its code if another package supplies it."""
    return _json_sha256([crtlib.__version__, policy_digests.policy_digest(name)])


def hash_screening(study: CrtStudy, corpus: str) -> str:
    """Hash what decides which secrets stay in the text: equal for runs that read the same
    redactions."""
    if study.training_method.reads_raw:
        return _json_sha256([corpus, "raw"])
    if screening := study.screening:
        names = ("policy_sha256", "conservative_sha256", "unit", "gamma", "seed")
        return _json_sha256([corpus, *(screening[name] for name in names)])
    dial = [study.gamma, study.per, study.seed, study.dialogues] if study.gamma else []
    policies = [policy_hash(study.policy), policy_hash(study.conservative), study.labelled]
    words = ["own words"] if study.template != "speaker" else []  # what the policies were shown
    return _json_sha256([corpus, study.unit, *policies, dial, *words])


def count_private_points(study: CrtStudy, prepared: PreparedData) -> int:
    """How many private points a training draws from; with noise by user, how many people."""
    points = prepared.prepared.private
    return len({p.user for p in points}) if study.training_method.by_user else len(points)


def find_training_rates(study: CrtStudy, prepared: PreparedData) -> PolicyRates:
    """The rates of the policies by which a training read its text; for a training on raw text,
    :data:`RAW_TEXT_RATES`."""
    return RAW_TEXT_RATES if study.training_method.reads_raw else prepared.rates


def masks_copies(study: CrtStudy) -> bool:
    """Whether second occurrences of a message were masked or left out, here or by screening."""
    screened = study.screening
    if screened is not None and not study.training_method.reads_raw:
        return bool(screened["dedup"] != "none")
    return study.repeats_are_hidden


def user_files_of_study(study: CrtStudy) -> tuple[str, ...]:
    """The files from the user that decide how the text is read, by names that may be shown: those
    of the study's policies, or of the policies that screened its folder, and a custom template.

    Guarantee:
        The certificate, its page and ``guarantee.txt`` state what is assumed about each. Test:
        ``tests/release/test_what_is_assumed.py::test_a_policy_of_a_file_was_not_made_from_the_text``.
    """
    settings = study.screening or vars(study)
    reads_policies = study.screening is not None or not study.training_method.reads_raw
    policies = [settings["policy"], settings["conservative"]] if reads_policies else []
    names = [part for policy in policies for part in policy_names.user_supplied_parts(policy)]
    if study.template.endswith((".j2", ".jinja")):
        names.append(Path(study.template).name)
    return tuple(dict.fromkeys(names))


def has_tagger(study: CrtStudy) -> bool:
    """Whether a policy taught by labelled text decided how the text is read."""
    settings = study.screening or vars(study)
    is_named = any(names_a_tagger(settings[name]) for name in ("policy", "conservative"))
    return not study.training_method.reads_raw and is_named


def names_a_tagger(policy: str) -> bool:
    """Whether a part of a policy, by its name, was taught by labelled text."""
    return any(part.partition(":")[0] in policy_names.TAGGER_KINDS for part in policy.split("+"))


def count_teachers(study: CrtStudy, prepared: PreparedData) -> int | None:
    """How many people of the text taught a policy; None if unknown, as for a folder that an older
    crtlib screened."""
    if study.screening is not None:
        return study.screening.get("taught_people")
    path = Path(study.corpus)
    every = corpora.read_dialogues(path) if path.exists() else prepared.corpus.dialogues
    policies = (prepared.policy, prepared.conservative_policy)
    return count_teaching_people(policies, ((t.user, t.id) for t in every))


def find_judging_labels(study: CrtStudy, prepared: PreparedData) -> dict[str, Any]:
    """The labels that judged the policies: those of the screening, those that people made for this
    training, or else those that the corpus came with, which were not drawn for this purpose."""
    counts = prepared.rates.labels_json()
    screening = study.screening
    if screening:
        counts = screening["labels"]
        inline = _json_sha256(["labels of the corpus", screening["corpus_sha256"]])
        # Pairs that were judged since then count too.
        facts = {"judged": prepared.rates.policy_pairs, "sha256": counts["sha256"] or inline}
    elif prepared.labels is not None:
        facts = dict(prepared.labels)
    else:
        spans = [
            [point.id, [[s.kind, s.start, s.end] for s in point.secrets]]
            for point in prepared.judged.points
        ]
        facts = {"sha256": _json_sha256(spans), "drawn": "given", "agreement": None}
    labels = {**counts, **facts, "alpha": RATES_ALPHA}  # for both bounds together
    return {name: value for name, value in labels.items() if name != "left_out"}
