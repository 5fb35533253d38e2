"""Judge a pair of policies by labels: those that were drawn and read, or those of the text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from confide import text_registry
from confide.labels import adjudication, judged_turns, label_tasks, registry
from crtlib.arguments import argument, argument_error
from crtlib.files import StrPath
from crtlib.screening import (
    rates,
)
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.policy import Policy, check_reads_no_label
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import (
    is_from_file,
    strip_paths,
)
from crtlib.screening.rate_values import PolicyRates, Rate, map_rates
from crtlib.screening.teaching_digests import digest_teaching_person
from crtlib.text import corpora, data_points
from crtlib.text.records import Dialogue, Point, Turn


@dataclass(frozen=True)
class PolicyPair:
    """The policy and the conservative policy as labels judge them: their names, the ``unit`` of the
    points, and ``miss_setting``, the misses that were planted in the first
    (:func:`crtlib.screening.policy_changes.describe_planted_misses`)."""

    policies: tuple[Policy, Policy]
    names: tuple[str, str]
    unit: str = "turn"
    miss_setting: str = ""

    def pair_identity(self) -> tuple[str, str]:
        """What identifies a pair to labels: hashes of both policies, with whatever else decides
        their rates. The unit is part of it: on other points a pair has other rates, and whoever
        tries both could choose."""
        digest, conservative_digest = map(policy_digest, self.names)
        points = "" if self.unit == "turn" else f" by {self.unit}"
        return f"{digest} {self.miss_setting}".strip() + points, conservative_digest + points


def judge_policies(
    corpus: StrPath,
    folder: StrPath,
    pair: PolicyPair,
    *,
    texts: TextCounts | None,
    write: Callable[[Dialogue, Sequence[Turn], str], Point] = data_points.join_with_speakers,
) -> tuple[rates.RateCounter, dict[str, Any]]:
    """Judge a pair of policies by the judging part of a folder of labels. That these labels judged
    the pair is noted in the folder.

    Every turn that was drawn is treated in exactly one way. Turns of people who had been asked
    before a policy from a file was sealed are left out, whatever they said, and the rates are then
    about the other people; but if most people had been asked, nobody is left out. Of the remaining
    turns, those with words that had been drawn before the seal, secrets in words that taught a
    policy, and turns that nobody read count as failing. All others are judged.

    Args:
        corpus: The text, a file or a folder.
        folder: The labels.
        pair: The policies.
        texts: How often each text occurs in the corpus
            (:func:`confide.screening.dialogue_batches.count_texts`), so that a secret in a repeated
            message counts as a trace; None if the corpus is not deduplicated.
        write: Makes a text from turns, as training reads it.

    Returns:
        The counted outcomes, and what a certificate states about these labels.

    Raises:
        ValueError: For a policy from a file that may have been made from these labels, since it was
            not sealed when they were drawn, and for one that reads the labels themselves.
    """
    check_reads_no_label(*pair.policies)
    facts = label_tasks.read_label_facts(folder)
    if pair.unit == "user" and facts["by"] == "dialogue":
        by_user = f"{argument('unit', 'user')} needs a draw by user"
        raise argument_error("labels", f"were drawn by conversation; {by_user}")
    drawn_tasks = [t for t in label_tasks.read_tasks(folder) if t.part == "judge"]
    before = _read_before_seal(folder, pair, facts, drawn_tasks)
    asked = before.people
    apart = {t.task for t in drawn_tasks if _is_asked(t.user, t.id, facts, asked)}
    if 2 * len(apart) > len(drawn_tasks):  # only draws decide this, so nobody can choose it
        apart, asked = set(), frozenset()
    read_before = before.tasks - apart
    counter = rates.RateCounter(
        *pair.policies,
        cluster=facts["by"],
        seed=facts["seed"],
        kinds=facts["kinds"],
        texts=texts,
        find_values_in_whole_point=True,
        one_message=True,
    )
    read = partial(
        judged_turns.read_labelled_points,
        corpus,
        folder,
        part="judge",
        unit=pair.unit,
        without=read_before | apart,
        write=write,
    )
    counter.leave_out(label_tasks.points_of_tasks([t for t in drawn_tasks if t.task in apart]))
    counter.left_out_clusters |= _find_people_apart(corpus, pair, facts, asked)
    labelled = {t.task for t, _ in adjudication.read_labelled_turns(folder, part="judge")}
    if failing := read_before & labelled:
        others = {t.task for t in label_tasks.read_tasks(folder)} - failing
        counter.add_failing(read(without=others))
    undisputed, second_reader = None, None
    if "second" in facts:
        undisputed = {(p.id, s.start) for p in read(undisputed=True) for s in p.secrets}
        second_reader = adjudication.compare_second_reader(folder)
    counter.add(read(), undisputed=undisputed, second_reader=second_reader)
    unread = [t for t in adjudication.list_unread_tasks(folder) if t.task not in apart]
    counter.add_unread(label_tasks.points_of_tasks(unread))
    identity, conservative_identity = pair.pair_identity()
    text_registry.register_text(corpus)
    policy_pairs = judged_turns.record_judged_pair(
        folder, pi=identity, pi_c=conservative_identity, corpus_sha256=facts["corpus"]
    )
    return counter, _describe_labels(folder, facts, counter, policy_pairs, len(unread))


def _read_before_seal(
    folder: StrPath,
    pair: PolicyPair,
    facts: Mapping[str, Any],
    drawn_tasks: Sequence[label_tasks.LabelTask],
) -> registry.ReadBeforeSeal:
    """What was drawn before the policies of a pair that come from files were sealed.

    Args:
        folder: The labels.
        pair: The policies.
        facts: The facts of the labels.
        drawn_tasks: The turns that were drawn to judge.

    Raises:
        ValueError: If one of these policies was not sealed, or every judging turn was drawn before:
            it may have been made from the labels.
    """
    own_policies = {
        policy_digest(part): part
        for name in pair.names
        for part in name.split("+")
        if is_from_file(part)
    }
    unsealed = set(own_policies) - set(facts.get("sealed", ()))
    before = registry.read_before_seal(folder, list(own_policies))
    if unsealed or before.tasks >= {t.task for t in drawn_tasks}:
        policy = strip_paths(own_policies[min(unsealed or own_policies)])
        raise argument_error(
            "labels",
            f"{policy} may have been made from them; only a policy sealed before they are read is "
            "judged: crtlib label sample --seal",
        )
    return before


def _describe_labels(
    folder: StrPath,
    facts: Mapping[str, Any],
    counter: rates.RateCounter,
    policy_pairs: int,
    unread_turns: int,
) -> dict[str, Any]:
    """What a certificate states about drawn labels.

    Args:
        folder: The labels.
        facts: Their facts.
        counter: The outcomes that were counted on them.
        policy_pairs: How many pairs of policies they have judged.
        unread_turns: How many turns that were drawn to judge nobody read.
    """
    described = {
        "judged": policy_pairs,
        "drawn": "at_random",
        "sha256": facts["labels"],
        "reading_sha256": judged_turns.hash_reading(folder),
    }
    is_only_set = not registry.count_other_sets(facts["labels"], facts["corpus"])
    if is_only_set and "others" in facts:  # else it is unknown how many nobody read
        described["others"] = facts["others"]
    if unread_turns:
        described["unread"] = unread_turns
    if replaced := registry.count_replaced_turns(facts["labels"]):
        described["replaced"] = replaced
    if "second" in facts:
        described["read_twice"] = _describe_second_reading(folder, facts, counter)
    return described | {"agreement": (facts.get("agreement") or {}).get("f1")}


def _describe_second_reading(
    folder: StrPath, facts: Mapping[str, Any], counter: rates.RateCounter
) -> dict[str, int]:
    """How many turns a second reader read, how many of the failures rest on one reader alone, and
    what a third reader decided, if one did."""
    disputed_traces = counter.count_disputed_failures("trace")
    turns = facts["readers"][facts["second"]]["read"]
    described = {"turns": turns, "doubted": disputed_traces}
    decided, dropped = adjudication.count_decided_turns(folder)
    return described | ({"decided": decided, "dropped": dropped} if decided else {})


def _is_asked(user: str, dialogue_id: str, facts: Mapping[str, Any], asked: frozenset[str]) -> bool:
    """Whether a person (or conversation, if these were drawn) is among those who were ``asked``, by
    the hashes of :func:`confide.labels.registry.hash_asked_people`."""
    names = registry.hash_asked_people(facts["corpus"], user, dialogue_id)
    return names[0 if facts["by"] == "user" else -1] in asked


def _find_people_apart(
    corpus: StrPath, pair: PolicyPair, facts: Mapping[str, Any], asked: frozenset[str]
) -> set[str]:
    """All people of a text (or conversations, if these were drawn) that the rates are not about:
    those who were ``asked`` before a seal, and those with a turn that taught one of the
    policies."""
    teachers = [t.people for policy in pair.policies for t in policy.taught_by]
    if not (asked or any(teachers)):
        return set()
    return {
        label_tasks.cluster_of_turn(facts["by"], d.user, d.id)
        for d in corpora.read_dialogues(corpus)
        if _is_asked(d.user, d.id, facts, asked)
        or any(digest_teaching_person(d.user, d.id) in people for people in teachers)
    }


def count_corpus_labels(
    counter: rates.RateCounter, corpus_sha256: str, pair: PolicyPair
) -> PolicyRates:
    """Note in the registry that the counted labels, which the text with this hash came with, judge
    a pair of policies. Returns the rates, with bounds for all pairs that were judged on this text
    so far, including this one. The text must already be in the registry."""
    turns = sorted(counter.judged_turns)  # edited labels judge again
    labels_name = f"given {hashlib.sha256(json.dumps(turns).encode()).hexdigest()}"
    turn_names = (f"given {turn}" for turn, _ in turns)  # a growing text keeps most of these
    policy_pairs = registry.register_judged_pairs(
        {"labels": labels_name}, corpus_sha256, [pair.pair_identity()], turn_names
    )
    return without_bounds_if_from_file(counter.rates(policy_pairs=policy_pairs), pair.names)


def without_bounds_if_from_file(counted: PolicyRates, names: Sequence[str]) -> PolicyRates:
    """Rates that were counted on labels that nobody drew, without their bounds if one of the
    policies with these ``names`` is a custom file: then the labels may have taught it."""
    if not any(is_from_file(part) for name in names for part in name.split("+")):
        return counted

    def without_bound(rate: Rate) -> Rate:
        if rate.origin != "one_per_cluster":
            return rate
        return replace(rate, upper_bound=1.0, origin="unknown")

    return replace(counted, **map_rates(vars(counted), without_bound))
