"""Draw turns for people to read: ``crtlib label sample`` as a function.

Readers get them as our page, as JSON lines with the same records, or for Label Studio. Offsets are
half-open and in Unicode code points, like Python slices.

>>> from confide.labels.label_tasks import read_tasks
>>> import pathlib, tempfile
>>> from crtlib.text import corpora, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(corpora.load_corpus("customersim", limit=60), home / "c.jsonl")
>>> summary = draw_label_tasks(
...     home / "c.jsonl", home / "labels", turns=20, teach=5, seed=0, forms=["jsonl"]
... )
>>> summary["judge"], summary["teach"], len(read_tasks(home / "labels"))
(20, 5, 25)
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import secrets as operating_system
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from confide import text_registry
from confide.labels.forms import check_label_forms, write_forms
from confide.labels.label_tasks import (
    ASSUMED_SECRET_SHARE,
    DEFAULT_LABEL_KINDS,
    LabelTask,
    SpanFlagger,
    cluster_of_turn,
    flag_tasks,
    hash_tasks,
    points_of_tasks,
    write_label_facts,
)
from confide.labels.registry import (
    has_forgotten_draws,
    hash_asked_people,
    register_draw,
    register_judged_pairs,
)
from crtlib import outputs
from crtlib.arguments import argument_error
from crtlib.text import corpora
from crtlib.text.identity import hash_turn_text
from crtlib.text.jsonl import canonical_line
from crtlib.text.records import Point, Secret
from crtlib.text.screened_folder import is_screened_folder

TurnPlace = tuple[str, int]
"""The id of a dialogue, and the number of a turn in it."""

MAX_RULES, MAX_RULE_LENGTH = 40, 400
"""Limits on the rules for readers, which are shown beside each turn."""

CANDIDATES_PER_TAUGHT_TURN = 20
"""Among how many turns each turn of the teaching part is chosen, if a doubt chooses."""
TURNS_FOR_SECRET_SHARE = 2000
"""How many turns a policy reads to estimate the share of turns that have a secret."""


def draw_label_tasks(
    corpus: str | os.PathLike,
    out: str | os.PathLike,
    *,
    secrets: int = 400,
    turns: int | None = None,
    rate: float | None = None,
    teach: int = 0,
    by: str = "user",
    policy: SpanFlagger | None = None,
    sealed: Sequence[str] = (),
    doubt: Callable[[Sequence[Point]], Sequence[float]] | None = None,
    kinds: Sequence[str] = DEFAULT_LABEL_KINDS,
    context: int = 2,
    forms: Sequence[str] = ("page",),
    rules: str = "",
    seed: int | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Draw turns of ``corpus`` and write them to ``out`` for people to read.

    The judging part: users (or conversations) are drawn uniformly without replacement, then one
    turn of each uniformly; none is prefilled. The teaching part: turns of other users, prefilled by
    ``policy``. If there are too few users for both parts, each part gets its share of them.

    Args:
        corpus: A folder or JSONL.
        out: The folder of labels.
        secrets: About how many users with a secret are wanted in the judging part.
        turns: The size of the judging part, in place of ``secrets``.
        rate: The share of turns that have a secret; None: the share that ``policy`` flags, else
            0.25.
        teach: The size of the teaching part, half of which is where ``doubt`` is largest.
        by: What is drawn: "user" or "dialogue".
        policy: The policy that prefills the teaching part.
        sealed: Hashes of policies as they are before anybody reads.
        doubt: Returns for each point how unsure the policies are.
        kinds: The kinds of secrets, one to nine names.
        context: How many turns are shown before and after the one that is read.
        forms: The forms to write, from ``LABEL_FORMS``.
        rules: What the page tells readers about what a secret is, one rule per line; empty: ours.
        seed: The seed of the draw; None: from the operating system.
        force: Replace the contents of ``out``.

    Returns:
        What was drawn: the facts of the labels, and for how many ``policy_pairs`` the bounds of the
        first pair that they judge will be charged.

    Raises:
        ValueError: For an option outside its range, for a screened folder, if ``out`` may not be
            written, and for a seal on a text whose drawn turns were forgotten.

    Guarantee:
        The set counts as judging from the moment its page is written, whether or not its labels are
        ever imported. Test: ``tests/release/test_drawn_turns.py::
        test_each_set_counts_from_when_its_page_is_written``.
    """
    _check_sizes(secrets, turns, rate, teach, by, context)
    if is_screened_folder(corpus):
        raise ValueError(
            f"{corpus}: is screened, but labels judge what a search finds in the original text; "
            "give the corpus"
        )
    _check_kinds(kinds)
    check_label_forms(forms)  # before the draw counts
    rule_lines = _split_rules(rules)
    out = outputs.check_output_folder(out, inputs=[corpus], force=force)
    seed = operating_system.randbits(31) if seed is None else seed
    rng = np.random.default_rng(seed)
    places, corpus_hash = _draw_turn_per_user(corpus, by, rng)
    places = [places[k] for k in rng.permutation(len(places))]
    if rate is None:
        rate = _estimate_secret_share(corpus, places, policy) if policy else ASSUMED_SECRET_SHARE
    judge_size = turns or math.ceil(secrets / rate)
    judge_size = min(judge_size, math.ceil(len(places) * judge_size / (judge_size + teach)))
    judging_tasks = _tasks_at_places(corpus, places[:judge_size], context)
    pool_size = teach * CANDIDATES_PER_TAUGHT_TURN if doubt else teach
    pool_places = places[judge_size:][:pool_size]  # of nobody who judges
    teaching_pool = _tasks_at_places(corpus, pool_places, context)
    teaching_tasks = _choose_to_teach(teaching_pool, teach, doubt)
    tasks = [
        replace(task, task=f"{part}-{number:05d}", part=part)
        for part, part_tasks in (("judge", judging_tasks), ("teach", teaching_tasks))
        for number, task in enumerate(part_tasks, 1)
    ]
    prefilled: dict[str, tuple[Secret, ...]] = {}
    if policy:
        named_tasks = tasks[len(judging_tasks) :]
        flags = flag_tasks(policy, named_tasks)
        prefilled = {task.task: spans for task, spans in zip(named_tasks, flags, strict=True)}
    if corpora.hash_corpus(corpus) != corpus_hash:
        raise ValueError(f"{corpus}: was changed while it was read; run this again")
    if sealed and has_forgotten_draws(corpus_hash):
        raise argument_error(
            "sealed",
            "turns of this text were drawn and forgotten (crtlib account --forget), so it "
            "is not known what was read before; seal nothing for it",
        )
    how_drawn = {"by": by, "seed": seed, "kinds": list(kinds)}
    options = {"sealed": list(sealed), **how_drawn}
    hashes = {"corpus": corpus_hash, "labels": hash_tasks(tasks)}
    facts = {"schema": "crtlib/tasks/1", **hashes, **options}
    counts = {"users": len(places), "judge": len(judging_tasks), "teach": len(teaching_tasks)}
    # The "others" are neither read nor chosen from.
    facts |= counts | {"others": len(places) - len(judging_tasks) - len(teaching_pool)}
    facts |= {"rules": rule_lines} if rule_lines else {}
    options |= {"context": context, "teach": teach}
    with outputs.staged_folder(
        out, command="label sample", options=options, inputs={"corpus": corpus_hash}, force=force
    ) as staging:
        table = pa.Table.from_pylist([asdict(task) for task in tasks])
        pq.write_table(table, staging / "tasks.parquet")
        write_label_facts(staging, facts)
        (staging / "uses.jsonl").touch()
        asked_people = (
            person_hash
            for task in judging_tasks + teaching_pool
            for person_hash in hash_asked_people(corpus_hash, task.user, task.id)
        )
        text_hashes = [hash_turn_text(task.text) for task in tasks]
        text_registry.register_text(corpus)  # all of this before anybody can read
        register_draw(facts, corpus_hash, text_hashes, asked_people)
        written_files = write_forms(forms, staging, tasks, prefilled, facts)
    return {
        "out": os.fspath(out),
        "corpus": corpus_hash,
        **how_drawn,
        "secrets": secrets,
        "rate": rate,
        # The first pair of these labels is judged after all that were, and all sets drawn before.
        "policy_pairs": 1 + register_judged_pairs(facts, corpus_hash),
        **counts,
        "files": written_files,
    }


def _check_sizes(
    secrets: int, turns: int | None, rate: float | None, teach: int, by: str, context: int
) -> None:
    """Raise ``ValueError`` for an option of a draw that is outside its range."""
    for name, value, allowed, rule in (
        ("secrets", secrets, 20 <= secrets <= 100_000, "in [20, 100000]"),
        ("turns", turns, turns is None or turns >= 1, "at least 1"),
        ("rate", rate, rate is None or 1e-4 <= rate <= 1, "in [0.0001, 1]"),
        ("teach", teach, teach >= 0, "at least 0"),
        ("by", by, by in ("user", "dialogue"), "user or dialogue"),
        ("context", context, 0 <= context <= 20, "in [0, 20]"),
    ):
        if not allowed:
            raise argument_error(name, f"{value!r} must be {rule}")


def _check_kinds(kinds: Sequence[str]) -> None:
    """Raise ``ValueError`` unless these can name the kinds of secrets on a page."""
    if not 1 <= len(set(kinds)) == len(kinds) <= 9:
        raise argument_error("kinds", "must be 1 to 9 different names")
    if bad_kinds := [kind for kind in kinds if not re.fullmatch(r"[^\W\d][\w-]{0,39}", kind)]:
        raise argument_error("kinds", f"{bad_kinds[0]!r} must be letters, digits, '-' and '_'")


def _split_rules(rules: str) -> list[str]:
    """The rules for readers, one for each line that is not empty. Raises ``ValueError`` if they are
    more than a page shows."""
    rule_lines = [line.strip() for line in rules.splitlines() if line.strip()]
    if len(rule_lines) > MAX_RULES or any(len(line) > MAX_RULE_LENGTH for line in rule_lines):
        raise argument_error(
            "rules", f"must be at most {MAX_RULES} lines of at most {MAX_RULE_LENGTH} letters"
        )
    return rule_lines


def _estimate_secret_share(
    corpus: str | os.PathLike, places: Sequence[TurnPlace], policy: SpanFlagger
) -> float:
    """The share of the first turns in which a policy flags something, at least 0.01."""
    flags = flag_tasks(policy, _tasks_at_places(corpus, places[:TURNS_FOR_SECRET_SHARE], 0))
    return max(sum(map(bool, flags)) / len(flags), 0.01)


def _choose_to_teach(
    pool: Sequence[LabelTask],
    teach: int,
    doubt: Callable[[Sequence[Point]], Sequence[float]] | None,
) -> list[LabelTask]:
    """Choose the teaching part from a pool in random order: its first turns or, with a ``doubt``,
    half of them so and half where the doubt is largest."""
    if doubt is None:
        return list(pool[:teach])
    uniform_count = (teach + 1) // 2
    others = pool[uniform_count:]
    by_doubt = np.argsort(-np.array(doubt(points_of_tasks(others))), kind="stable")
    return [*pool[:uniform_count], *(others[place] for place in by_doubt[: teach - uniform_count])]


def policy_disagreement(
    first: SpanFlagger, second: SpanFlagger
) -> Callable[[Sequence[Point]], Sequence[float]]:
    """A measure of doubt from two policies: 1 for a point in which they flag different characters,
    else 0."""

    def doubt(points: Sequence[Point]) -> Sequence[float]:
        flagged_characters = (
            [{i for span in spans for i in range(span.start, span.end)} for spans in policy(points)]
            for policy in (first, second)
        )
        pairs = zip(*flagged_characters, strict=True)
        return [float(by_first != by_second) for by_first, by_second in pairs]

    return doubt


def _draw_turn_per_user(
    corpus: str | os.PathLike, by: str, rng: np.random.Generator
) -> tuple[list, str]:
    """Draw one turn of each user (or dialogue), uniformly among the turns of that user, in one
    pass; also return the corpus hash. A dialogue without a user counts as a user of its own."""
    chosen_places: dict[str, TurnPlace] = {}
    turns_seen: dict[str, int] = {}
    corpus_hash = hashlib.sha256()
    for dialogue in corpora.read_dialogues(corpus):
        said = ((turn.speaker, turn.text) for turn in dialogue.turns)
        corpus_hash.update(canonical_line(dialogue.id, dialogue.user, said))
        cluster = cluster_of_turn(by, dialogue.user, dialogue.id)
        numbers = [number for number, turn in enumerate(dialogue.turns) if turn.text.strip()]
        if not numbers:
            continue
        turns_seen[cluster] = turns_seen.get(cluster, 0) + len(numbers)
        # This dialogue replaces the earlier ones with its share of the user's turns so far.
        if rng.random() * turns_seen[cluster] < len(numbers):
            number = numbers[int(rng.random() * len(numbers))]
            chosen_places[cluster] = dialogue.id, number
    if not chosen_places:
        raise ValueError(f"{corpus}: holds no turn with text")
    return list(chosen_places.values()), corpus_hash.hexdigest()


def _tasks_at_places(
    corpus: str | os.PathLike, places: Sequence[TurnPlace], context: int
) -> list[LabelTask]:
    """The turns at ``places``, in that order, with their surroundings."""
    wanted_turns: dict[str, list[int]] = {}
    for dialogue_id, number in places:
        wanted_turns.setdefault(dialogue_id, []).append(number)
    task_at_place: dict[TurnPlace, LabelTask] = {}
    for dialogue in corpora.read_dialogues(corpus):
        for number in wanted_turns.get(dialogue.id, ()):
            lines = [f"{t.speaker}: {t.text}" if t.speaker else t.text for t in dialogue.turns]
            before = "\n".join(lines[max(0, number - context) : number])
            after = "\n".join(lines[number + 1 : number + 1 + context])
            text = dialogue.turns[number].text.replace("\r", " ")  # tools drop it, or not
            task_at_place[dialogue.id, number] = LabelTask(
                "", dialogue.id, dialogue.user, number, "", text, before, after
            )
    return [task_at_place[place] for place in places]
