"""The odometer: a ledger beside a corpus in which every private training on it is entered.

A folder (0700) with one file, ``ledger.jsonl`` (0600), to which lines are added and never changed.
A run has a line when it starts, before its first private step, with all that it may spend; one
when it is finished; perhaps one that strikes it, for a model that nobody ever saw. Each line holds
the hash of the one before, so that a lost or changed line shows. A run that was only started
counts in full.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp()) / "talk.jsonl.odometer"
>>> spend = {"unit": "turn", "method": "crt", "relation": "replace", "screening": "5" * 64,
...          "gamma": 0.05, "delta2": 0.01, "holds": {}}
>>> step = SampledGaussian(0.01, 1.0, 100)
>>> first = add(folder, corpus="c" * 64, run="a", state="started", events=(step,), **spend)
>>> second = add(folder, corpus="c" * 64, run="b", state="started", events=(step,), **spend)
>>> before = spent(read(folder), run="b")
>>> before.runs, [e.steps for e in before.events], before.rates("5" * 64, 0.05, 0.01)
(1, [100], (0.05, 0.01))
>>> before.rates("6" * 64, 0.03, 0.0)  # another screening: either may pass a secret over
(0.08, 0.01)
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crtlib.accounting import ledger
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_choice, check_delta

SCHEMA = "crtlib/odometer/1"
SUFFIX = ".odometer"
LEDGER = "ledger.jsonl"
STATES = ("started", "finished", "struck")
UNITS = ("turn", "dialogue", "user")
"""Units of a data point, the smallest first."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line. ``entry`` is the SHA-256 of the others, ``previous`` that of the line before.

    ``events`` is None for a training without secret noise. ``screening`` names what decided which
    secrets stay in the text, ``gamma`` and ``delta2`` bound how many. ``holds``: how many data
    points of a smaller unit one of this unit holds at the most. ``model`` is the SHA-256 of the
    weights that were made, ``base`` that of those it started from, where they were a file.
    """

    entry: str
    previous: str | None
    time: str
    corpus: str
    run: str
    state: str
    unit: str
    method: str
    relation: str
    events: tuple[SampledGaussian, ...] | None
    screening: str
    gamma: float
    delta2: float
    holds: Mapping[str, int]
    model: str | None = None
    because: str | None = None
    base: str | None = None


def _digest(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "entry"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


# --------------------------------------------------------------------------- the file
def read(folder: str | os.PathLike[str]) -> list[Entry]:
    """All lines of an odometer, oldest first.

    Raises ``ValueError`` where it is missing, or a line is lost, damaged or was changed: nobody
    knows then what was spent.
    """
    path = Path(folder) / LEDGER
    if not path.is_file():
        raise ValueError(f"odometer: {folder} holds no {LEDGER}")
    return _entries(path.read_text(encoding="utf-8"))


def _entries(text: str) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        last = entries[-1].entry if entries else None
        try:
            content = json.loads(line)
            whole = content["schema"] == SCHEMA and content["entry"] == _digest(content)
            entry = _entry(content)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"odometer: entry {number} is damaged") from None
        if not whole:
            raise ValueError(f"odometer: entry {number} was changed")
        if entry.previous != last:
            raise ValueError(f"odometer: entry {number} does not follow entry {number - 1}")
        entries.append(entry)
    return entries


def _entry(content: Mapping[str, Any]) -> Entry:
    content = {"base": None, **content}  # older lines have none
    values = {f.name: content[f.name] for f in fields(Entry)}
    check_choice("state", values["state"], STATES)
    check_choice("unit", values["unit"], UNITS)
    if values["events"] is not None:
        values["events"] = tuple(SampledGaussian(**event) for event in values["events"])
    return Entry(**values)


def add(
    folder: str | os.PathLike[str],
    *,
    corpus: str,
    run: str,
    state: str,
    unit: str,
    method: str,
    relation: str,
    events: Sequence[SampledGaussian] | None,
    screening: str,
    gamma: float,
    delta2: float,
    holds: Mapping[str, int],
    model: str | None = None,
    because: str | None = None,
    base: str | None = None,
) -> Entry:
    """Add a line and have it on disk; the folder is made where there is none.

    Raises ``ValueError`` for an odometer of another corpus or a broken one, ``OSError`` where it
    cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / LEDGER, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it with the file
        entries = _entries(file.read())
        check_corpus(folder, entries, corpus)
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "previous": entries[-1].entry if entries else None,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "corpus": corpus,
            "run": run,
            "state": state,
            "unit": unit,
            "method": method,
            "relation": relation,
            "events": None if events is None else [asdict(event) for event in events],
            "screening": screening,
            "gamma": gamma,
            "delta2": delta2,
            "holds": dict(holds),
            "model": model,
            "because": because,
            "base": base,
        }
        content["entry"] = _digest(content)
        entry = _entry(content)  # refuses what could not be read back
        file.write(json.dumps(content, sort_keys=True, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return entry


def again(folder: str | os.PathLike[str], entry: Entry, **changes: Any) -> Entry:
    """A further line of the run of ``entry``: finished, struck, or started once more."""
    ours = ("entry", "previous", "time")
    same = {f.name: getattr(entry, f.name) for f in fields(Entry) if f.name not in ours}
    return add(folder, **(same | changes))


def strike(folder: str | os.PathLike[str], entry: str, *, because: str) -> Entry:
    """Strike the run to which the line belongs whose hash begins with ``entry``: its model was
    never seen by anybody, as ``because`` says. Raises ``ValueError`` where none or several do."""
    if not because.strip():
        raise ValueError("because='': must say why nobody ever saw the model")
    runs = {e.run: e for e in read(folder) if e.entry.startswith(entry)}
    if len(runs) != 1 or not entry:
        raise ValueError(f"entry={entry!r}: must begin the hash of one entry, not of {len(runs)}")
    (line,) = runs.values()
    return again(folder, line, state="struck", because=because.strip())


def find(corpus: str | os.PathLike[str], sha: str) -> Path:
    """The odometer of the corpus with this hash, among those beside ``corpus``; where there is
    none, the folder that would be it."""
    path = Path(corpus).resolve()
    for folder in sorted(path.parent.glob(f"*{SUFFIX}")):
        if _corpus_of(folder) == sha:
            return folder
    own = path.with_name(path.name + SUFFIX)  # of another text, where the file has changed since
    return own if not own.exists() else path.with_name(f"{path.name}-{sha[:8]}{SUFFIX}")


def _corpus_of(folder: Path) -> str | None:
    """The corpus of the first line, also of an odometer that is broken further on."""
    try:
        with (folder / LEDGER).open(encoding="utf-8") as file:
            return str(json.loads(file.readline())["corpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_corpus(folder: Path, entries: Sequence[Entry], corpus: str) -> None:
    """Refuse the odometer of another corpus."""
    if entries and entries[0].corpus != corpus:
        raise ValueError(
            f"odometer: {folder} is of corpus {entries[0].corpus[:8]}…, this is {corpus[:8]}…"
        )


# --------------------------------------------------------------------------- what was spent
@dataclass(frozen=True)
class Spent:
    """What earlier runs have spent: the last line of each, without those that were struck.
    ``bare``: the weights that this run started from had learned the text without protection."""

    entries: tuple[Entry, ...]
    bare: bool = False

    @property
    def private(self) -> tuple[Entry, ...]:
        """Those whose noise protects."""
        return tuple(e for e in self.entries if e.events is not None)

    @property
    def runs(self) -> int:
        """How many were trained with protection."""
        return len(self.private)

    @property
    def unprotected(self) -> int:
        """How many were trained without."""
        return len(self.entries) - self.runs

    @property
    def events(self) -> tuple[SampledGaussian, ...]:
        """All their events, in order."""
        return tuple(event for e in self.private for event in e.events or ())

    def groups(self, unit: str, holds: Mapping[str, int]) -> tuple[int, ...]:
        """Of each of ``events``: how many of its data points change with one ``unit``, which
        ``holds`` so many of a smaller unit at the most. Raises ``ValueError`` where it does not
        say how many."""
        sizes = []
        for e in self.private:
            smaller = UNITS.index(e.unit) < UNITS.index(unit)
            if smaller and e.unit not in holds:
                raise ValueError(f"holds: must say how many {e.unit}s one {unit} holds")
            sizes += [holds[e.unit] if smaller else 1] * len(e.events or ())
        return tuple(sizes)

    def holds(self, unit: str) -> dict[str, int]:
        """How many points of a smaller unit one ``unit`` holds, as its own runs say."""
        every = (e.holds for e in self.private if e.unit == unit)
        return {name: size for held in every for name, size in held.items()}

    def rates(self, screening: str, gamma: float, delta2: float) -> tuple[float, float]:
        """gamma and delta2 of all runs and of one more: a secret counts where any screening passes
        it over (union bound); runs of one screening read the same text, so they count once."""
        worst = {screening: (gamma, delta2)}
        for e in self.private:
            g, d = worst.get(e.screening, (0.0, 0.0))
            worst[e.screening] = max(g, e.gamma), max(d, e.delta2)
        return (
            min(1.0, sum(g for g, _ in worst.values())),
            min(1.0, sum(d for _, d in worst.values())),
        )


def spent(entries: Sequence[Entry], *, run: str | None = None) -> Spent:
    """What was spent by all runs, or by those that started before ``run`` did. A struck run does
    not count, unless it was struck without a reason, or one that counts started from its model:
    that one shows what it had learned."""
    last: dict[str, Entry] = {}
    for e in entries:
        if e.run == run:
            break
        last[e.run] = e
    first = {e.run for e in last.values()}
    for e in entries:  # what became of them later
        if e.run in first:
            last[e.run] = e
    counted = {e.run for e in last.values() if e.state != "struck" or not e.because}
    above = _above(entries, {run} if run else set())
    counted |= above | _above(entries, counted)
    bare = any(last[name].events is None for name in above & set(last))
    return Spent(tuple(e for e in last.values() if e.run in counted), bare)


def _above(entries: Sequence[Entry], runs: set[str]) -> set[str]:
    """The runs from whose models ``runs`` started, at any remove."""
    found: set[str] = set()
    while runs:
        bases = {e.base for e in entries if e.run in runs and e.base}
        runs = {e.run for e in entries if e.model in bases} - found
        found |= runs
    return found


def bill(folder: str | os.PathLike[str], *, delta: float) -> dict[str, Any]:
    """What an odometer holds, as JSON: each run with its own epsilon at ``delta``, and all that
    count together, for the largest unit among them. Infinite is "inf", no protection null."""
    check_delta(delta)
    entries = read(folder)
    last = {e.run: e for e in entries}
    whole = spent(entries)
    unit = max((e.unit for e in whole.private), key=UNITS.index, default=UNITS[0])

    def epsilon(events: Sequence[SampledGaussian], groups: ledger.Group) -> float | str:
        value = ledger.epsilon(events, delta=delta, neighbouring_relation="replace", group=groups)
        return "inf" if math.isinf(value) else math.ceil(value * 1000) / 1000

    names = ("entry", "time", "state", "method", "unit", "model", "because")
    rows = [
        {name: getattr(e, name) for name in names}
        | {"epsilon": None if e.events is None else epsilon(e.events, 1)}
        for e in last.values()
    ]
    gamma, delta2 = whole.rates("", 0.0, 0.0)
    together = epsilon(whole.events, whole.groups(unit, whole.holds(unit))) if whole.events else 0.0
    if whole.unprotected:
        together = "inf"
    return {
        "unit": unit,
        "delta": delta,
        "runs": rows,
        "together": {"epsilon": together, "gamma": gamma, "delta2": delta2},
    }
