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

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from confide import text_registry
from confide.screening.dialogue_batches import batch_dialogues, count_texts
from confide.screening.judged_policies import PolicyPair, count_corpus_labels, judge_policies
from confide.screening.screening_notes import describe_all_secrets, list_screening_notes
from confide.text import registry_units, text_sizes
from crtlib.arguments import argument, argument_error
from crtlib.checks import check_choice
from crtlib.files import StrPath
from crtlib.progress import bar_options
from crtlib.screening import (
    deduplication,
    policy_changes,
    preparation,
    rates,
)
from crtlib.screening.deduplication import TextCounts
from crtlib.screening.policy import Policy, check_text_alone
from crtlib.screening.policy_digests import check_policies_unchanged, policy_digest
from crtlib.screening.policy_names import (
    conservative_policy_by_name,
    policy_by_name,
    strip_paths,
)
from crtlib.screening.preparation import (
    DedupScope,
    DuplicateTreatment,
    describe_bare_masks,
    prepare_points,
)
from crtlib.screening.rate_values import PolicyRates
from crtlib.screening.redaction import FlaggedSpans
from crtlib.screening.taught_text import Shift, count_teaching_people, measure_shift
from crtlib.text import corpora, corpus_folder, customersim, data_points, screened_folder
from crtlib.text.ordered_map import map_in_order
from crtlib.text.records import Corpus, Point, Secret
from crtlib.text.shards import Shards

MAP_COLUMNS = 12
"""Columns of the map: one for each of a dialogue's first turns, and one for the rest."""
EXAMPLE_MARGIN = 60
"""Characters that an example shows on either side."""

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
        raise argument_error(
            "policy",
            "none fits this text; choose one (list:FILE, names, regex:FILE.toml, tagger:DIR, "
            "presidio) or join them with +",
        )
    return otherwise


def describe_idle_gamma() -> str:
    """What is wrong with a gamma together with the policy ``none``."""
    policy = argument("policy")
    return f"is the share missed of what {policy} flags, and {policy} is none"


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
            raise ValueError(f"gamma={self.gamma!r}: {describe_idle_gamma()}")
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
        self.users = set[int]()
        self.longest = 0
        self.turns = [0] * MAP_COLUMNS
        self.places: dict[str, list[int]] = defaultdict(lambda: [0] * MAP_COLUMNS)
        self.examples: ExamplesByKind = defaultdict(list)

    def write(
        self,
        writer: screened_folder.ScreenedWriter,
        points: Sequence[Point],
        flags: FlaggedSpans,
        conservative_flags: FlaggedSpans,
        repeats: Sequence[bool],
    ) -> None:
        """Prepare a batch of points, write it, and count it.

        Args:
            writer: Writes the public and the private part.
            points: The batch.
            flags: What the policy flags in each point.
            conservative_flags: What the conservative policy flags in each point.
            repeats: Whether each point repeats an earlier one.
        """
        options = self.options
        prepared = prepare_points(
            points,
            flags,
            conservative_flags,
            dedup=options.dedup,
            duplicates=options.duplicates,
            pattern=repeats,
        )
        for name, part_points in (("public", prepared.public), ("private", prepared.private)):
            writer.add(name, part_points)
            self.counts[name] += len(part_points)
        for point, spans in zip(points, flags, strict=True):
            self.count_point(point, spans)
        rows = (
            (point.id, s.start, s.end, s.kind, policy)
            for point, *both in zip(points, flags, conservative_flags, strict=True)
            for policy, spans in zip(("pi", "pi_c"), both, strict=True)
            for s in spans
        )
        writer.note("spans", rows)
        writer.note("said", ((point.id, len(point.spoken_spans)) for point in points))
        for name in ("points", "duplicates", "redacted_spans", "redacted_points", "missed_secrets"):
            self.counts[name] += getattr(prepared, name)
        self.counts["bare_masks"] += prepared.bare_masks
        self.counts["labelled"] += sum(bool(point.secrets) for point in points)
        self.counts["secrets_in_public"] += sum(len(point.secrets) for point in prepared.public)

    def count_point(self, point: Point, spans: Sequence[Secret]) -> None:
        """Count the spans that the policy flags in a point, by kind and by turn."""
        self.users.add(hash(point.user))
        turn_starts = [start for start, _ in point.spoken_spans] or [0]
        self.longest = max(self.longest, len(turn_starts))
        turn_number = point.id.rpartition("/")[2]
        first = int(turn_number) if self.options.unit == "turn" and turn_number.isdecimal() else 0
        for offset in range(len(turn_starts)):
            self.turns[min(first + offset, MAP_COLUMNS - 1)] += 1
        spans = [
            span if span.kind in self.shown_kinds else Secret("other", span.start, span.end)
            for span in spans
        ]
        for turn, kind in {
            (max(bisect_right(turn_starts, span.start) - 1, 0), span.kind) for span in spans
        }:
            self.places[kind][min(first + turn, MAP_COLUMNS - 1)] += 1
        for span in spans:
            self._draw_example(point, span)

    def _draw_example(self, point: Point, span: Secret) -> None:
        """Count a span, and keep it as an example if the draw chooses it."""
        self.kinds[span.kind] += 1
        index = self.kinds[span.kind] - 1
        if index >= self.reveal:  # so all have equal chances
            index = self.draw.randrange(index + 1)
        if index < self.reveal:
            before = point.text[max(0, span.start - EXAMPLE_MARGIN) : span.start]
            after = point.text[span.end : span.end + EXAMPLE_MARGIN]
            self.examples[span.kind][index : index + 1] = [
                (before, point.text[span.start : span.end], after)
            ]


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
    """Run Algorithm 1 on a corpus and write the result into a folder.

    Near duplicates, and people as units, need all of the text in memory; everything else is done in
    batches.

    Args:
        corpus: The text, a file or a folder.
        folder: Where the result is written (:mod:`crtlib.text.screened_folder`).
        options: The policies, the unit, and how duplicates are treated.
        key: Makes the pseudonyms; None keeps ids and users.
        judges: A folder of labels whose judging part judges the policies; without it, labels that
            came with the corpus do, if any.
        reveal: How many examples of each kind of flagged span are kept, in clear.
        executor: Runs the policies on several batches at a time.
        shards: Keep what the policies flag. Batches that are already there for this corpus and
            these policies are not flagged again.
        progress: Show a bar on a terminal.

    Returns:
        The summary of the screened folder, the rates of the policies, notes and examples.

    Raises:
        ValueError: For arguments that do not fit.
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
    mark_repeats = _make_repeat_marker(corpus, options)
    teachings = list(dict.fromkeys(t for policy in pair.policies for t in policy.taught_by))
    shifts = [Shift(0.0, 0.0, 0) for _ in teachings]
    in_one_batch = options.dedup_by == "near" or options.unit == "user"
    reading = text_sizes.TextReading(corpus)
    digests = options.policy_digests()
    batches = batch_dialogues(
        reading.watch(corpora.read_dialogues(corpus)), in_one_batch=in_one_batch
    )
    batches_of_points = (
        data_points.make_points(Corpus("", tuple(batch)), options.unit) for batch in batches
    )
    flag_batch = partial(_flag_batch, options, digests)
    bar = tqdm(desc="screening", unit=" points", **bar_options(progress))
    with screened_folder.ScreenedWriter(folder, key=key) as writer, bar:
        for points, rows in map_in_order(flag_batch, batches_of_points, executor, shards):
            bar.update(len(points))
            flags, conservative_flags = (
                [tuple(Secret(*span) for span in spans) for spans in flagged] for flagged in rows
            )
            repeats = mark_repeats(points)
            if not judges:
                counter.add(points, flags=flags, conservative_flags=conservative_flags)
                if texts is not None:
                    texts.add(points)
            tally.write(writer, points, flags, conservative_flags, repeats)
            shifts = [measure_shift(points, *each) for each in zip(teachings, shifts, strict=True)]
        check_policies_unchanged(pair.names, digests)  # each worker has checked its own
        simulations = customersim.SimulationCheck()
        writer.note("units", registry_units.hash_registry_units(corpus, simulations))
        file_hashes = writer.close()
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
    bare_masks = tally.counts["bare_masks"]
    points_left = tally.counts["public"] + tally.counts["private"]
    private = {
        "decided": file_hashes,
        "sizes": reading.sizes,
        "bare_masks": bare_masks,
        "said": describe_bare_masks(bare_masks, points_left, options.duplicates),
    }
    notes = list_screening_notes(summary, counted, shifts, was_read=bool(judges))
    notes += describe_all_secrets(counted)
    return ScreeningOutcome(summary, counted, notes, tally.examples, private)


def _make_repeat_marker(
    corpus: StrPath, options: ScreeningOptions
) -> Callable[[Sequence[Point]], list[bool]]:
    """A function that marks which points of a batch repeat an earlier point of the corpus. With
    near duplicates it compares only the points of one batch, which must then hold all of them."""
    if options.dedup_by == "near":
        return partial(deduplication.mark_repeats, method="near")
    expected_points = 0
    if options.dedup_by == "bloom":  # a Bloom filter needs the number of points
        dialogues = corpora.read_dialogues(corpus)
        # For users the number of dialogues is an upper bound.
        expected_points = sum(len(d.turns) if options.unit == "turn" else 1 for d in dialogues)
    return deduplication.make_duplicate_filter(options.dedup_by, expected_points)


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
    corpus_sha256: str,
    about_text: dict[str, Any],
    tally: _ScreeningTally,
    counted: PolicyRates,
    shifts: Sequence[Shift],
    label_facts: dict[str, Any],
) -> dict[str, Any]:
    """The summary of a screened folder, which holds no text.

    Args:
        corpus: The text that was screened.
        corpus_sha256: Its hash.
        about_text: What a certificate states about it.
        tally: The counts of the screening.
        counted: The rates of the policies.
        shifts: How much the text differs from what taught each policy.
        label_facts: What a certificate states about the labels that judged the policies.

    Raises:
        ValueError: If the text is empty.
    """
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
        "corpus_sha256": corpus_sha256,
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
