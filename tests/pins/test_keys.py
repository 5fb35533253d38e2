"""A stored run is found by the key of its study: no key may change.

The pin holds, of every run of the recorded tables and of every study that a profile declares (of
the thousands of reconstruction games those of two profiles), its kind, all its fields after
``ready()``, and its key. The test makes the study of kind and fields again, so that it does not
rest on the tables or the grids that the pin was made of.
"""

import math
from collections import Counter
from dataclasses import asdict, fields
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest

from crtbook import settings, sweeps, tables
from crtbook.study import Study
from crtlib.attacks import attack_registry
from crtlib.text import corpora
from tests import pins

GAMES = ("quick",)
"""Profiles whose reconstruction games are pinned one by one: they differ in their seed alone."""


def kinds() -> dict[str, type[Study]]:
    """The kinds of studies that the library has."""
    every, waiting = {}, [Study]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("crt"):
            every[kind.kind] = kind
    return every


def key(kind: str, given: dict[str, Any]) -> str | None:
    """The key of a study; None where what it reads is not on this machine."""
    study = kinds()[kind](**{k: tuple(v) if type(v) is list else v for k, v in given.items()})
    if any(not _here(name) for name in {given.get("corpus"), given.get("init")} - {None}):
        return None
    return study.key


@cache
def _here(corpus: str) -> bool:
    try:
        corpora.corpus_fingerprint(corpus)
    except ValueError as problem:
        return "must be one of" in str(problem)  # it is no corpus, but the name of a start
    return True


def fields_of(kind: type[Study], row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recorded run: Parquet has given some back as floats, and None as NaN."""
    hints, out = get_type_hints(kind, include_extras=True), {}
    for name in (f.name for f in fields(kind) if f.name in row):
        value, hint = row[name], hints[name]
        if isinstance(value, float) and math.isnan(value):
            if name in kind.LATER:
                continue  # it was recorded before the field was there
            value = None
        elif isinstance(value, float) and int in (hint, *get_args(hint)):
            value = int(value)
        out[name] = tuple(value.tolist()) if hasattr(value, "tolist") else value
    return out


def recorded() -> list[list[Any]]:
    """Kind, fields and name of every run of the recorded tables."""
    out = []
    for name in tables.list_table_names():
        table = tables.load_recorded(name)
        if "run" in table:
            for row in table.drop_duplicates("run").to_dict("records"):
                kind = row.get("study", "crt")
                given = fields_of(kinds()[kind], row)
                out.append([kind, asdict(kinds()[kind](**given)), name, row["run"]])
    return out


def declared(profile: str, sweep: str) -> list[Study]:
    """The studies of a sweep, none of which needs what is not there."""
    try:
        return [s.ready() for s in sweeps.make_studies(sweep, profile, {})]
    except IndexError:  # a search that was not recorded at this size
        return []


def make() -> dict[str, list[Any]]:
    every: dict[str, list[Any]] = {}
    for kind, given, table, run in recorded():
        now = key(kind, given)
        assert now, f"{kind}: needs every corpus to be here"
        every.setdefault(now, [kind, given, []])[2].append([table, run])
    for profile in settings.profile_names():
        for sweep in sweeps.SWEEPS:
            for study in declared(profile, sweep):
                if (sweep != "games" or profile in GAMES) and not study.lacks():
                    every.setdefault(study.key, [study.kind, asdict(study), []])
    return every


@pytest.fixture(scope="module")
def pinned() -> dict[str, list[Any]]:
    return pins.read("keys")


def test_kind_and_fields_give_the_key_that_they_gave(pinned):
    assert {a.name for a in attack_registry.BUILT_IN_ATTACKS} == set(
        attack_registry.all_attacks()
    ), "an attack is part of a key"
    keys = {old: key(kind, given) for old, (kind, given, _) in pinned.items()}
    changed = {old: pinned[old] for old, new in keys.items() if new not in (old, None)}
    assert not changed, f"{len(changed)} keys of {len(keys)}, such as {next(iter(changed.items()))}"
    found = Counter(kind for old, (kind, _, _) in pinned.items() if keys[old])
    assert found["crt"] > 500 and found["game"] > 100 and found["axis"] > 5, found


def test_every_run_of_the_recorded_tables_is_pinned(pinned):
    runs = {(table, run) for _, _, rows in pinned.values() for table, run in rows}
    there = set()
    for name in tables.list_table_names():
        table = tables.load_recorded(name)
        there |= {(name, run) for run in table["run"].unique()} if "run" in table else set()
    assert there == runs and len(there) > 900
