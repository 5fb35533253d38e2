"""Screen a corpus on disk, batch by batch: Algorithm 1 in bounded memory.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate_corpus(30, 0), home / "c.jsonl")
>>> options = ScreeningOptions("regex:customersim", "regex:customersim")
>>> outcome = screen_corpus(home / "c.jsonl", home, options, key=b"k" * 32)
>>> outcome.summary["points"], outcome.summary["public_share"], outcome.rates.miss.failures
(252, 0.1786, 0)
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from confide import text_registry
from confide.labels import adjudication, judged_turns, label_tasks, registry
from confide.text import registry_units, text_sizes
from crtlib.checks import check_choice
from crtlib.files import StrPath
from crtlib.intervals import count_of
from crtlib.progress import bar_options
from crtlib.screening import (
    bound_levers,
    deduplication,
    policy_changes,
    policy_names,
    preparation,
    rates,
)
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.policy import Policy, check_reads_no_label, check_text_alone
from crtlib.screening.policy_digests import check_policies_unchanged, policy_digest
from crtlib.screening.policy_names import (
    conservative_policy_by_name,
    is_from_file,
    policy_by_name,
    strip_paths,
)
from crtlib.screening.preparation import (
    DedupScope,
    DuplicateTreatment,
    describe_bare_masks,
    prepare_points,
)
from crtlib.screening.rate_values import RATE_NAMES, PolicyRates, Rate, map_rates, rates_from_json
from crtlib.screening.redaction import FlaggedSpans
from crtlib.screening.taught_text import Shift, count_teaching_people, measure_shift
from crtlib.screening.teaching_digests import digest_teaching_person
from crtlib.text import corpora, corpus_folder, customersim, data_points, screened_folder
from crtlib.text.ordered_map import map_in_order
from crtlib.text.records import Corpus, Dialogue, Point, Secret, Turn
from crtlib.text.shards import Shards

TURNS_PER_BATCH = 10_000
"""About how many turns are in a batch."""
MAP_COLUMNS = 12
"""Columns of the map: one for each of a dialogue's first turns, and one for the rest."""
TWO_READERS_NOTE = (
    "no number for all secrets: two people read, and how many secrets of a message both overlook "
    "is not known; the table is for one secret in each message"
)
EXAMPLE_MARGIN = 60
"""Characters that an example shows on either side."""
NO_POLICY_MESSAGE = (
    "--policy: none fits this text; choose one (list:FILE, names, regex:FILE.toml, tagger:DIR, "
    "presidio) or join them with +"
)
NOTHING_TO_MISS = "is the share missed of what --policy flags, and --policy is none"
"""What is wrong with a gamma together with the policy ``none``."""

ExamplesByKind = dict[str, list[tuple[str, str, str]]]


def default_policy(corpus: StrPath, otherwise: str = "") -> str:
    """The policy that a corpus names as its own, or CustomerSim's if it was simulated here.

    No policy is known to fit other text: then the result is ``otherwise``, or, if that is empty,
    ``ValueError`` is raised.
    """
    path = Path(corpus)
    if screened_folder.is_screened_folder(path):
        raise ValueError(f"{corpus}: is screened already")
    first_dialogue = next(corpora.read_dialogues(path))  # refuses what is not a corpus
    if path.is_dir() and (own_policy := corpus_folder.read_corpus_summary(path).policy):
        return own_policy
    if customersim.SimulationCheck().holds(first_dialogue):
        return "regex:customersim"
    if not otherwise:
        raise ValueError(NO_POLICY_MESSAGE)
    return otherwise


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


@dataclass(frozen=True)
class ScreeningOptions:
    """How a corpus is screened: the options of ``crtlib screen`` that determine the result."""

    policy: str
    conservative: str = "everything"
    unit: str = "turn"
    gamma: float = 0.0
    seed: int = 0
    dedup: DedupScope = "all"
    dedup_by: deduplication.DuplicateMethod = "exact"
    duplicates: DuplicateTreatment = "mask_private"
    keep_ids: bool = False

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, data_points.POINT_UNITS)
        check_choice("dedup", self.dedup, ("all", "flagged", "none"))
        check_choice("dedup_by", self.dedup_by, ("exact", "bloom", "near"))
        if self.gamma and self.policy == "none":
            raise ValueError(f"gamma={self.gamma!r}: {NOTHING_TO_MISS}")
        if self.duplicates == "drop":
            raise ValueError(
                "duplicates='drop': a found secret in a repeated message would decide how many "
                "points there are; must be one of mask_private, mask"
            )
        check_choice("duplicates", self.duplicates, preparation.CERTIFIABLE_TREATMENTS)

    def policy_digests(self) -> tuple[str, str]:
        """Hashes of the current content of the policy and of the conservative policy."""
        return policy_digest(self.policy), policy_digest(self.conservative)

    def pair(self) -> PolicyPair:
        """The policy, with planted misses, and the conservative policy."""
        return PolicyPair(
            _load_policy_pair(self, self.policy_digests()),
            (self.policy, self.conservative),
            self.unit,
            policy_changes.describe_planted_misses(self.gamma, "occurrence", self.seed),
        )

    def recorded(self) -> dict[str, Any]:
        """The options as a marker records them, with policies by name and by content hash."""
        names = {n: strip_paths(getattr(self, n)) for n in ("policy", "conservative")}
        digests = zip((f"{n}_sha256" for n in names), self.policy_digests(), strict=True)
        return asdict(self) | names | dict(digests)


@lru_cache(maxsize=4)
def _load_policy_pair(options: ScreeningOptions, digests: tuple[str, str]) -> tuple[Policy, Policy]:
    """The policies of a pair, checked against their hashes; loaded once by each worker."""
    check_policies_unchanged((options.policy, options.conservative), digests)
    policy = policy_changes.with_misses(policy_by_name(options.policy), options.gamma, options.seed)
    conservative_policy = conservative_policy_by_name(options.conservative)
    if options.dedup != "none":
        check_text_alone(policy, conservative_policy)
    return policy, conservative_policy


@dataclass(frozen=True)
class ScreeningOutcome:
    """What screening a corpus found. ``summary`` holds no text; ``examples`` are in clear, by kind,
    as (before, the span, after); ``private`` is what only the private summary states."""

    summary: dict[str, Any]
    rates: PolicyRates
    notes: list[str]
    examples: ExamplesByKind = field(repr=False)
    private: dict[str, Any] = field(repr=False)


class _ScreeningTally:
    """Counts that are made while screening. A kind outside ``shown_kinds`` is counted as "other".

    For each kind ``reveal`` examples are kept, drawn from all with equal chances.
    """

    def __init__(self, options: ScreeningOptions, reveal: int, shown_kinds: frozenset[str]) -> None:
        self.options, self.reveal, self.shown_kinds = options, reveal, shown_kinds
        self.draw = random.Random(0)
        self.counts, self.kinds = Counter[str](), Counter[str]()
        self.users, self.longest, self.turns = set[int](), 0, [0] * MAP_COLUMNS
        self.places: dict[str, list[int]] = defaultdict(lambda: [0] * MAP_COLUMNS)
        self.examples: ExamplesByKind = defaultdict(list)

    def write(
        self,
        parts: screened_folder.ScreenedWriter,
        points: Sequence[Point],
        flags: FlaggedSpans,
        conservative_flags: FlaggedSpans,
        repeats: Sequence[bool],
    ) -> None:
        """Prepare a batch, write it to the parts, and count it."""
        options = self.options
        prepared = prepare_points(
            points,
            flags,
            conservative_flags,
            dedup=options.dedup,
            duplicates=options.duplicates,
            pattern=repeats,
        )
        for name, part in (("public", prepared.public), ("private", prepared.private)):
            parts.add(name, part)
            self.counts[name] += len(part)
        for p, spans in zip(points, flags, strict=True):
            self.count_point(p, spans)
        rows = (
            (p.id, s.start, s.end, s.kind, policy)
            for p, *both in zip(points, flags, conservative_flags, strict=True)
            for policy, spans in zip(("pi", "pi_c"), both, strict=True)
            for s in spans
        )
        parts.note("spans", rows)
        parts.note("said", ((p.id, len(p.spoken_spans)) for p in points))
        for name in ("points", "duplicates", "redacted_spans", "redacted_points", "missed_secrets"):
            self.counts[name] += getattr(prepared, name)
        self.counts["bare_masks"] += prepared.bare_masks
        self.counts["labelled"] += sum(bool(p.secrets) for p in points)
        self.counts["secrets_in_public"] += sum(len(p.secrets) for p in prepared.public)

    def count_point(self, p: Point, spans: Sequence[Secret]) -> None:
        """Count the spans that the policy flags in a point, by kind and by turn."""
        self.users.add(hash(p.user))
        turn_starts = [start for start, _ in p.spoken_spans] or [0]
        self.longest = max(self.longest, len(turn_starts))
        name = p.id.rpartition("/")[2]
        first = int(name) if self.options.unit == "turn" and name.isdecimal() else 0
        for k in range(len(turn_starts)):
            self.turns[min(first + k, MAP_COLUMNS - 1)] += 1
        spans = [
            s if s.kind in self.shown_kinds else Secret("other", s.start, s.end) for s in spans
        ]
        for turn, kind in {(max(bisect_right(turn_starts, s.start) - 1, 0), s.kind) for s in spans}:
            self.places[kind][min(first + turn, MAP_COLUMNS - 1)] += 1
        for s in spans:
            self._draw_example(p, s)

    def _draw_example(self, p: Point, s: Secret) -> None:
        """Count a span, and keep it as an example if the draw chooses it."""
        self.kinds[s.kind] += 1
        place = self.kinds[s.kind] - 1
        if place >= self.reveal:  # so all have equal chances
            place = self.draw.randrange(place + 1)
        if place < self.reveal:
            before = p.text[max(0, s.start - EXAMPLE_MARGIN) : s.start]
            after = p.text[s.end : s.end + EXAMPLE_MARGIN]
            self.examples[s.kind][place : place + 1] = [(before, p.text[s.start : s.end], after)]


def screen_corpus(
    corpus: StrPath,
    folder: Path,
    options: ScreeningOptions,
    *,
    key: bytes | None,
    judges: StrPath | None = None,
    reveal: int = 0,
    executor: Executor | None = None,
    shards: Shards | None = None,
    progress: bool = False,
) -> ScreeningOutcome:
    """Run Algorithm 1 on a corpus and write the result into ``folder``
    (:mod:`crtlib.text.screened_folder`).

    ``key`` makes the pseudonyms; None keeps ids and users. ``judges`` is a folder of labels whose
    judging part judges the policies; without it, labels that came with the corpus do, if any.
    ``executor`` runs the policies on several batches at a time. What they flag is kept in
    ``shards``, and batches that are already there for this corpus and these policies are not
    flagged again. Near duplicates, and people as units, need all of the text in memory;
    everything else is done in batches. Raises ``ValueError`` for arguments that do not fit.
    """
    pair = options.pair()
    texts = TextCounts() if options.dedup != "none" else None
    counter = rates.RateCounter(*pair.policies, texts=texts, find_values_in_whole_point=True)
    label_facts: dict[str, Any] = {"drawn": "given", "sha256": None, "agreement": None}
    if judges:
        if texts is not None:
            texts = count_texts(corpus, options.unit)
        counter, label_facts = judge_policies(corpus, judges, pair, texts=texts)
    tally = _ScreeningTally(options, reveal, counter.kinds)
    expected_points, mark_seen = 0, None
    if options.dedup_by == "bloom":  # a Bloom filter needs the number of points
        dialogues = corpora.read_dialogues(corpus)
        # users: at most as many as dialogues
        expected_points = sum(len(d.turns) if options.unit == "turn" else 1 for d in dialogues)
    if options.dedup_by != "near":
        mark_seen = deduplication.make_duplicate_filter(options.dedup_by, expected_points)
    teachings = list(dict.fromkeys(t for policy in pair.policies for t in policy.taught_by))
    shifts = [Shift(0.0, 0.0, 0) for _ in teachings]
    in_one_batch = options.dedup_by == "near" or options.unit == "user"
    reading, digests = text_sizes.TextReading(corpus), options.policy_digests()
    batches = batch_dialogues(
        reading.watch(corpora.read_dialogues(corpus)), in_one_batch=in_one_batch
    )
    batches_of_points = (
        data_points.make_points(Corpus("", tuple(batch)), options.unit) for batch in batches
    )
    flag_batch = partial(_flag_batch, options, digests)
    bar = tqdm(desc="screening", unit=" points", **bar_options(progress))
    with screened_folder.ScreenedWriter(folder, key=key) as parts, bar:
        for points, rows in map_in_order(flag_batch, batches_of_points, executor, shards):
            bar.update(len(points))
            flags, conservative_flags = (
                [tuple(Secret(*span) for span in spans) for spans in flagged] for flagged in rows
            )
            repeats = mark_seen(points) if mark_seen else deduplication.mark_repeats(points, "near")
            if not judges:
                counter.add(points, flags=flags, conservative_flags=conservative_flags)
                if texts is not None:
                    texts.add(points)
            tally.write(parts, points, flags, conservative_flags, repeats)
            shifts = [measure_shift(points, *each) for each in zip(teachings, shifts, strict=True)]
        check_policies_unchanged(pair.names, digests)  # as each worker did
        simulations = customersim.SimulationCheck()
        parts.note("units", registry_units.hash_registry_units(corpus, simulations))
        file_hashes = parts.close()
    if judges:
        counted = counter.rates(policy_pairs=label_facts["judged"])
    else:
        units = screened_folder.read_registry_units(folder)
        registry_of_texts = text_registry.Registry(text_registry.registry_folder())
        registry_of_texts.register(reading.sha256, units)
        counted = count_corpus_labels(counter, reading.sha256, pair)
    about_text = _describe_text(corpus, tally, reading) | {"simulated": simulations.all_held}
    summary = _screening_summary(
        corpus, reading.sha256, about_text, tally, counted, shifts, label_facts
    )
    masks, read = tally.counts["bare_masks"], tally.counts["public"] + tally.counts["private"]
    private = {
        "decided": file_hashes,
        "sizes": reading.sizes,
        "bare_masks": masks,
        "said": describe_bare_masks(masks, read, options.duplicates),
    }
    notes = _screening_notes(summary, counted, shifts, was_read=bool(judges))
    notes += describe_all_secrets(counted)
    return ScreeningOutcome(summary, counted, notes, tally.examples, private)


def count_texts(corpus: StrPath, unit: str) -> TextCounts:
    """Count how often each text occurs in a corpus on disk, in bounded memory except for a hash of
    each distinct text."""
    texts = TextCounts()
    for batch in batch_dialogues(corpora.read_dialogues(corpus), in_one_batch=unit == "user"):
        texts.add(data_points.make_points(Corpus("", tuple(batch)), unit))
    return texts


def judge_policies(
    corpus: StrPath,
    folder: StrPath,
    pair: PolicyPair,
    *,
    texts: TextCounts | None,
    write: Callable[[Dialogue, Sequence[Turn], str], Point] = data_points.join_with_speakers,
) -> tuple[rates.RateCounter, dict[str, Any]]:
    """Judge a pair of policies by the judging part of a ``folder`` of labels. Returns the counted
    outcomes and what a certificate states about these labels; that they judged the pair is noted in
    the folder.

    Every turn that was drawn is treated in exactly one way. Turns of people who had been asked
    before a policy from a file was sealed are left out, whatever they said, and the rates are then
    about the other people; but if most people had been asked, nobody is left out. Of the remaining
    turns, those with words that had been drawn before the seal, secrets in words that taught a
    policy, and turns that nobody read count as failing. All others are judged.

    ``texts``: how often each text occurs in the corpus (:func:`count_texts`), so that a secret in a
    repeated message counts as a trace; None if the corpus is not deduplicated. ``write`` makes a
    text from turns, as training reads it.

    Raises ``ValueError`` for a policy from a file that may have been made from these labels, since
    it was not sealed when they were drawn, and for one that reads the labels themselves."""
    check_reads_no_label(*pair.policies)
    facts = label_tasks.read_label_facts(folder)
    read_twice = "second" in facts
    if pair.unit == "user" and facts["by"] == "dialogue":
        raise ValueError("--labels: were drawn by conversation; --unit user needs a draw by user")
    own_policies = {
        policy_digest(part): part
        for name in pair.names
        for part in name.split("+")
        if is_from_file(part)
    }
    unsealed = set(own_policies) - set(facts.get("sealed", ()))
    before = registry.read_before_seal(folder, list(own_policies))
    drawn_tasks = [t for t in label_tasks.read_tasks(folder) if t.part == "judge"]
    if unsealed or before.tasks >= {t.task for t in drawn_tasks}:
        policy = strip_paths(own_policies[min(unsealed or own_policies)])
        raise ValueError(
            f"--labels: {policy} may have been made from them; only a policy sealed before they "
            "are read is judged: crtlib label sample --seal"
        )
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
    if read_twice:
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
    certified = {
        "judged": policy_pairs,
        "drawn": "at_random",
        "sha256": facts["labels"],
        "reading_sha256": judged_turns.hash_reading(folder),
    }
    is_only_set = not registry.count_other_sets(facts["labels"], facts["corpus"])
    if is_only_set and "others" in facts:  # else it is unknown how many nobody read
        certified["others"] = facts["others"]
    if unread:
        certified["unread"] = len(unread)
    if replaced := registry.count_replaced_turns(facts["labels"]):
        certified["replaced"] = replaced
    if read_twice:
        certified["read_twice"] = _describe_second_reading(folder, facts, counter)
    return counter, certified | {"agreement": (facts.get("agreement") or {}).get("f1")}


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
        (facts["by"] == "user" and d.user) or d.id
        for d in corpora.read_dialogues(corpus)
        if _is_asked(d.user, d.id, facts, asked)
        or any(digest_teaching_person(d.user, d.id) in people for people in teachers)
    }


def count_corpus_labels(counter: rates.RateCounter, sha: str, pair: PolicyPair) -> PolicyRates:
    """Note in the registry that the counted labels, which the text with this hash came with, judge
    a pair of policies. Returns the rates, with bounds for all pairs that were judged on this text
    so far, including this one. The text must already be in the registry."""
    turns = sorted(counter.judged_turns)  # edited labels judge again
    name = f"given {hashlib.sha256(json.dumps(turns).encode()).hexdigest()}"
    turn_names = (f"given {turn}" for turn, _ in turns)  # a growing text keeps most of these
    policy_pairs = registry.register_judged_pairs(
        {"labels": name}, sha, [pair.pair_identity()], turn_names
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


def batch_dialogues(
    dialogues: Iterator[Dialogue], *, in_one_batch: bool = False
) -> Iterator[list[Dialogue]]:
    """Yield the dialogues in lists of about 10,000 turns, or all at once."""
    batch: list[Dialogue] = []
    turns = 0
    for d in dialogues:
        batch.append(d)
        turns += len(d.turns)
        if turns >= TURNS_PER_BATCH and not in_one_batch:
            yield batch
            batch, turns = [], 0
    if batch:
        yield batch


def _flag_batch(
    options: ScreeningOptions, digests: tuple[str, str], points: Sequence[Point]
) -> list[Any]:
    """The spans that both policies flag in a batch of points, as a JSON value."""
    return [
        [[(s.kind, int(s.start), int(s.end)) for s in spans] for spans in policy(points)]
        for policy in _load_policy_pair(options, digests)
    ]


def _screening_summary(
    corpus: StrPath,
    sha: str,
    about_text: dict[str, Any],
    tally: _ScreeningTally,
    counted: PolicyRates,
    shifts: Sequence[Shift],
    label_facts: dict[str, Any],
) -> dict[str, Any]:
    if not tally.counts["points"]:
        raise ValueError(f"{corpus}: is empty, at least one dialogue is needed")
    counted_names = (
        "points",
        "duplicates",
        "redacted_spans",
        "redacted_points",
        "public",
        "private",
    )
    options = tally.options
    policy, conservative_policy = options.pair().policies
    return {
        "schema": screened_folder.SCREENED_SUMMARY_FORMAT,
        "corpus": Path(corpus).name,
        "corpus_sha256": sha,
        "about": about_text,
        "taught_by": {
            "policy": policy.teaching_hashes,
            "conservative": conservative_policy.teaching_hashes,
        },
        "taught_people": count_teaching_people(
            (policy, conservative_policy),
            ((d.user, d.id) for d in corpora.read_dialogues(corpus)),
        ),
        **options.recorded(),
        **{name: tally.counts[name] for name in counted_names},
        "copies_left_out": tally.counts["points"]
        - tally.counts["public"]
        - tally.counts["private"],
        "public_share": round(tally.counts["public"] / tally.counts["points"], 4),
        **{
            name: tally.counts[name] if tally.counts["labelled"] else None
            for name in ("missed_secrets", "secrets_in_public")
        },
        "rates": counted.to_json(),
        "labels": counted.labels_json() | label_facts if counted.secrets else None,
        "shift": [asdict(s) for s in shifts] or None,
        "flagged": dict(sorted(tally.kinds.items())),
        "map": {"turns": tally.turns, "kinds": tally.places},
    }


def _describe_text(
    corpus: StrPath, tally: _ScreeningTally, reading: text_sizes.TextReading
) -> dict[str, Any]:
    """What a certificate states about the text; ``longest`` is the most turns in one point."""
    path = Path(corpus)
    facts = corpus_folder.read_corpus_summary(path) if path.is_dir() else None
    return {
        "turns": sum(tally.turns),
        "users": len(tally.users),
        "longest": tally.longest,
        "users_are": reading.users_are,
        "from": facts and facts.first,
        "to": facts and facts.last,
    }


def _screening_notes(
    summary: dict[str, Any],
    counted: PolicyRates,
    shifts: Sequence[Shift],
    *,
    was_read: bool,
) -> list[str]:
    """What a reader of the numbers must know, a sentence each. ``was_read``: people read turns from
    this text to judge the policies."""
    notes = [
        f"a policy was taught, and of this text {s}; its numbers are for text like its labels"
        for s in shifts
    ]
    if unread := (summary["labels"] or {}).get("unread", 0):
        notes.append(
            f"{count_of(unread, 'turn that was drawn was', 'turns that were drawn were')} not "
            "read: each counts as a secret on which the policies fail"
        )
    elif counted.trace.origin == "unknown":
        notes.append(
            ("no turn that was read has a secret, so" if was_read else "without --labels")
            + " nothing is known about what was missed, "
            + (
                "so a certificate promises of each secret what it does of one that was missed"
                if counted.public.origin == "policy"  # so no secret is learned without noise
                else "and a certificate will be void"
            )
        )
    elif counted.trace.failures and counted.trace.origin == "one_per_cluster":
        second_reading = (summary["labels"] or {}).get("read_twice")
        disputed = second_reading["doubted"] if second_reading else "all"
        if disputed:
            notes.append(
                f"{count_of(counted.trace.failures, 'label decides', 'labels decide')} the bound "
                f"of the trace rate, {disputed} of them by one reader alone; 'crtlib label "
                "adjudicate' writes what to read again"
            )
    for name in ("trace", "public"):
        rate: Rate = getattr(counted, name)
        if rate.origin == "one_per_cluster" and rate.judged_secrets:
            notes.append(f"{name}: {bound_levers.name_bound_lever(rate, alpha=counted.alpha)}")
    if counted.left_out_points:
        notes.append(
            f"{count_of(counted.left_out_points, 'labelled point is', 'labelled points are')} of "
            "people who taught a policy, or drawn before it was sealed: the rates are for all "
            "others"
        )
    if summary["unit"] == "user" and summary["points"] == 1:
        notes.append(
            "one person wrote all of it, so nothing can be promised about a person: screen it with "
            "--unit turn or dialogue"
        )
    if not summary["redacted_spans"]:
        notes.append("pi flagged nothing, so nothing was redacted")
    if not summary["public"]:
        notes.append("no point is public, so CRT is DP-SGD on redacted text")
    supplied = policy_names.user_supplied_parts(f"{summary['policy']}+{summary['conservative']}")
    if supplied:
        notes.append(
            f"it is assumed that {' and '.join(supplied)} "
            f"{'was' if len(supplied) == 1 else 'were'} "
            "not made from this text: a message that decided their content would decide how others "
            "are read"
        )
    if is_deduplicated_by_likeness(summary):
        notes.append(
            f"duplicates were decided by likeness ({summary['dedup_by']}), so one message "
            "may decide whether others are read: nothing trained on this folder has a certificate"
        )
    return notes


def describe_all_secrets(counted: PolicyRates) -> list[str]:
    """Sentences on what the rates are about, and on the rates over all secrets if the drawn
    messages hold several, with a warning if the two differ by more than their error. Promises are
    about one secret in a message."""
    each = {name: rate for name in RATE_NAMES if (rate := getattr(counted, name)).all_secrets}
    if not each:
        was_read_twice = any(getattr(counted, name).reread_counts for name in RATE_NAMES)
        return [TWO_READERS_NOTE] if was_read_twice else []
    cap = max(rate.all_secrets.cap for rate in each.values())
    owner = "person" if counted.cluster == "user" else "conversation"
    shares = "; ".join(
        f"{name} {100 * rate.all_secrets.share:.1f}, at most "
        f"{math.ceil(1000 * rate.all_secrets.upper) / 10}"
        for name, rate in each.items()
    )
    notes = [
        f"the table is per 100 messages that hold a secret (one message per {owner}, one secret "
        f"per message); per 100 secrets in messages so drawn (at most {cap} from one): {shares} "
        "(each bound on its own)"
    ]
    more = [n for n, rate in each.items() if rate.all_secrets.share > rate.upper_bound]
    less = [n for n, rate in each.items() if (rate.rate or 0) > rate.all_secrets.upper]
    if more:
        notes.append(
            f"{' and '.join(more)}: more of 100 secrets fail than the table's bound for messages "
            "allows: messages with many secrets fail more often, and a promise is about one secret "
            "in a message"
        )
    if less:
        notes.append(
            f"{' and '.join(less)}: fewer of 100 secrets fail than of 100 messages, by more than "
            "the error: messages with few secrets fail more often"
        )
    return notes


# --------------------------------------------------------------------------- what was screened
def is_deduplicated_by_likeness(summary: Mapping[str, Any]) -> bool:
    """Whether screening may have left a message out because it is like others: as a near duplicate,
    or by a Bloom filter. One message may then decide whether any number of others is read, so what
    is trained on such a folder has no certificate."""
    return bool(summary["dedup"] != "none" and summary["dedup_by"] != "exact")


def stored_rates(corpus: StrPath) -> PolicyRates | None:
    """The rates of a screened folder, by :func:`rates_of_screened_folder`; None for any other
    text."""
    return rates_of_screened_folder(corpus) if screened_folder.is_screened_folder(corpus) else None


def rates_of_screened_folder(folder: StrPath) -> PolicyRates:
    """The rates of a screened folder, as counted when it was made, with bounds for all pairs that
    were judged by now, since this pair was chosen from these. Raises ``ValueError`` if the labels
    that judged it were read again since."""
    summary = screened_folder.read_screening_summary(folder)
    labels = summary["labels"] or {"judged": 1, "sha256": None}
    registry.refuse_earlier_reading(labels["sha256"], labels.get("reading_sha256"))
    judged_until_now = registry.register_judged_pairs(
        {"labels": labels["sha256"]}, summary["corpus_sha256"]
    )
    return rates_from_json(summary["rates"], policy_pairs=max(labels["judged"], judged_until_now))
