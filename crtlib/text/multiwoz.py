"""MultiWOZ 2.2 and Schema-Guided Dialogue: two corpora, one JSON form, one loader.

>>> turn = {"speaker": "USER", "utterance": "Wire $20 to Ada, please.", "frames": [
...     {"service": "Banks_1", "slots": [
...         {"slot": "amount", "start": 5, "exclusive_end": 8},
...         {"slot": "recipient_name", "start": 12, "exclusive_end": 15}]}]}
>>> broken = turn | {"utterance": "Wire $20."}
>>> corpus = parse_multiwoz([{"dialogue_id": "1_0", "turns": [turn]},
...                 {"dialogue_id": "1_1", "turns": [broken]}], name="tiny")
>>> [(s.kind, turn["utterance"][s.start : s.end]) for s in next(corpus.turns()).secrets]
[('amount', '$20'), ('name', 'Ada')]
>>> corpus.skipped
(('a span runs outside its utterance', 1),)
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from crtlib.files import StrPath, open_plain_or_gzip
from crtlib.text.package_data import read_package_file
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.sources import fetched_source

KINDS_BY_SLOT = {
    s: kind for kind, slots in tomllib.loads(read_package_file("slots.toml")).items() for s in slots
}
"""The kind of secret of each slot, or ``domain-slot``, that identifies a person or a transaction.

What anybody can look up, or what identifies nobody, is not secret here: names of restaurants,
hotels and salons, films and artists, prices, ratings, cities, stations, dates and times. The doctor
whom a person consults is secret, though some of those names are of practices. The telephone numbers
and addresses are those of businesses; they stand in for private ones, which corpora that may be
published do not hold.
"""

SPEAKERS_BY_LABEL = {"USER": "USR", "SYSTEM": "SYS"}


def multiwoz_files(folder: StrPath, split: str) -> list[Path]:
    """The files that :func:`read_multiwoz` opens: ``split/dialogues_*.json[.gz]``, then
    ``dialog_acts.json[.gz]`` if there is one.

    Raises ``ValueError`` where the split has no dialogues.
    """
    folder = Path(folder)
    found = sorted(folder.glob(f"{split}/dialogues_*.json*")) if split.isalnum() else []
    if not found:
        have = sorted({p.parent.name for p in folder.glob("*/dialogues_*.json*")})
        raise ValueError(
            f"split={split!r}: {folder} has no {split}/dialogues_*.json, "
            f"it has the splits: {', '.join(have) or 'none'}"
        )
    return found + sorted(folder.glob("dialog_acts.json*"))


def read_multiwoz(
    folder: StrPath, split: str, limit: int | None = None, *, name: str = ""
) -> Corpus:
    """The first ``limit`` dialogues of a split, from plain or gzipped files; see
    :func:`parse_multiwoz`.

    ``name`` is that of the corpus, by default the folder's. Raises ``ValueError`` naming a file
    that is damaged or not JSON in UTF-8, or a split that is not there.
    """
    *paths, last = multiwoz_files(folder, split)
    acts = None
    if last.name.startswith("dialog_acts"):
        acts = _read_json_file(last, dict)
    else:
        paths.append(last)
    dialogues = chain.from_iterable(_read_json_file(path, list) for path in paths)
    return parse_multiwoz(dialogues, name=name or Path(folder).name, acts=acts, limit=limit)


def _read_json_file(path: Path, kind: type) -> Any:
    with open_plain_or_gzip(path) as file:
        try:
            content = json.loads(file.read())
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{path}: is not JSON in UTF-8") from None
    if not isinstance(content, kind):
        raise ValueError(f"{path}: must hold a JSON {'list' if kind is list else 'object'}")
    return content


def parse_multiwoz(
    dialogues: Iterable[Any], *, name: str, acts: Mapping | None = None, limit: int | None = None
) -> Corpus:
    """A corpus from dialogues as the files have them.

    Labels come from ``frames[].slots``, and from the ``span_info`` of the dialogue acts (``acts``,
    the content of MultiWOZ's ``dialog_acts.json``). Spans that overlap become one, with the kind of
    the first. ``USER`` and ``SYSTEM`` become ``USR`` and ``SYS``. Neither corpus has user ids, so
    each dialogue is a user of its own.

    A dialogue with any defect is left out and counted in ``skipped``, since a turn with wrong
    labels would pass off a secret as public text. Raises ``ValueError`` where no dialogue is left,
    and for MultiWOZ without dialogue acts, which alone mark some booking references.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    dialogues_by_id: dict[str, Dialogue] = {}
    skipped: Counter[str] = Counter()
    for record in dialogues:
        try:
            dialogue = _parse_multiwoz_dialogue(record, acts)
            if dialogue.id in dialogues_by_id:
                raise _DialogueDefect("its id was used before")
            dialogues_by_id[dialogue.id] = dialogue
        except _DialogueDefect as defect:
            skipped[str(defect)] += 1
        if len(dialogues_by_id) == limit:
            break
    if not dialogues_by_id:
        why = ", ".join(f"{count} left out as {reason}" for reason, count in skipped.items())
        raise ValueError(f"{name}: holds no dialogue that can be used ({why or 'it is empty'})")
    return Corpus(name, tuple(dialogues_by_id.values()), tuple(sorted(skipped.items())))


class _DialogueDefect(Exception):
    """Why a dialogue is left out."""


def _check_rows(listed: Any, kind: type = dict) -> list[Any]:
    """``listed``, if it is a list of objects, or of lists; otherwise the dialogue has a defect."""
    if not isinstance(listed, list) or not all(isinstance(row, kind) for row in listed):
        raise _DialogueDefect("it is malformed")
    return listed


def _parse_multiwoz_dialogue(record: Any, acts: Mapping | None) -> Dialogue:
    name = record.get("dialogue_id") if isinstance(record, dict) else None
    turns = _check_rows(record.get("turns")) if isinstance(name, str) else []
    if not isinstance(name, str) or not turns:
        raise _DialogueDefect("it has no id or no turns")
    mine: Any = {}
    if "turn_id" in turns[0]:
        if acts is None:
            raise ValueError(
                "dialog_acts.json: is missing beside the splits of MultiWOZ, "
                "and without it booking references have no labels"
            )
        mine = acts.get(name)
        if not isinstance(mine, dict):
            raise _DialogueDefect("it has no dialogue acts")
    return Dialogue(name, name, tuple(_parse_multiwoz_turn(turn, mine) for turn in turns))


def _parse_multiwoz_turn(turn: dict, acts: Mapping) -> Turn:
    text, speaker = turn.get("utterance"), turn.get("speaker")
    if not isinstance(text, str) or text != text.encode("utf-8", "replace").decode():
        raise _DialogueDefect("an utterance is not text")
    if not isinstance(speaker, str) or speaker not in SPEAKERS_BY_LABEL:
        raise _DialogueDefect("a speaker is neither USER nor SYSTEM")
    spans = []
    for domain, slot, start, end, value in _read_labels(turn, acts):
        # Every span is checked, secret or not: one that is off shows that the text has changed.
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
            raise _DialogueDefect("a span runs outside its utterance")
        if value and isinstance(value, str) and value.casefold() != text[start:end].casefold():
            raise _DialogueDefect("a span does not hold its value")
        slot = str(slot).lower().rpartition("-")[2]
        kind = KINDS_BY_SLOT.get(f"{domain}-{slot}") or KINDS_BY_SLOT.get(slot)
        if kind:
            spans.append(Secret(kind, start, end))
    return Turn(SPEAKERS_BY_LABEL[speaker], text, join_overlapping_labels(spans))


def _read_labels(turn: dict, acts: Mapping) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """The domain, slot, start and end of each label, and its value where that must be the span's
    text."""
    for frame in _check_rows(turn.get("frames", [])):
        domain = str(frame.get("service")).partition("_")[0].lower()
        for slot in _check_rows(frame.get("slots", [])):
            # A value carried over from another slot is not in this utterance.
            if not slot.get("copy_from"):
                ends = slot.get("start"), slot.get("exclusive_end")
                yield domain, slot.get("slot"), *ends, slot.get("value")
    act = acts.get(str(turn.get("turn_id"))) or {}
    for f in _check_rows(act.get("span_info", []) if isinstance(act, dict) else None, list):
        if len(f) != 5:
            raise _DialogueDefect("it is malformed")
        yield "", f[1], f[3], f[4], None


def join_overlapping_labels(spans: Iterable[Secret]) -> tuple[Secret, ...]:
    """The spans in order; those that overlap become one, with the kind of the first and longest."""
    out: list[Secret] = []
    for s in sorted(spans, key=lambda s: (s.start, -s.end)):
        if out and s.start < out[-1].end:
            out[-1] = Secret(out[-1].kind, out[-1].start, max(out[-1].end, s.end))
        else:
            out.append(s)
    return tuple(out)


MULTIWOZ_SOURCE = fetched_source(
    "multiwoz",
    "MultiWOZ 2.2",
    ("multiwoz_2.2", "multiwoz_2.2_subset"),
    multiwoz_files,
    partial(read_multiwoz, name="multiwoz"),
    "https://github.com/budzianowski/multiwoz, folder data/MultiWOZ_2.2",
)
MULTIWOZ_HELD_OUT_SOURCE = fetched_source(
    "multiwoz_held_out",
    "MultiWOZ 2.1, validation and test",
    ("multiwoz_2.1_val_test",),
    multiwoz_files,
    partial(read_multiwoz, name="multiwoz_held_out"),
    "https://github.com/budzianowski/multiwoz; data/README.md says how it is laid out",
)
SCHEMA_GUIDED_SOURCE = fetched_source(
    "schema_guided",
    "Schema-Guided Dialogue",
    ("sgd",),
    multiwoz_files,
    partial(read_multiwoz, name="schema_guided"),
    "https://github.com/google-research-datasets/dstc8-schema-guided-dialogue",
)
