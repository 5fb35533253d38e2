"""Plans of secret protection for a corpus of one's own, and who holds which secret in it.

Which point of a corpus holds which secret: by a list of values, or by what a policy flags.

>>> import pathlib, tempfile
>>> from crtlib.text.records import Point
>>> file = pathlib.Path(tempfile.mkdtemp()) / "holders.csv"
>>> _ = file.write_text("user,secret\\nann,Ada Lovelace\\nann,555 1234\\nbob,Kurt\\n")
>>> texts = ["I am ada lovelace", "call 555-1234", "hello"]
>>> points = [Point(str(i), "ann", text) for i, text in enumerate(texts)]
>>> found = of_file([points], file, by="user", prior=0.001, posterior=0.1)
>>> found.secrets, found.matrix().toarray().tolist(), found.unseen
(['ann'], [[1.0, 1.0, 0.0]], 1)

Secret protection for a corpus of one's own: who holds which secret, and the plan.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, records
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> records.write_jsonl(customersim.simulate(20, 0), home / "c.jsonl")
>>> made = make(home / "c.jsonl", home / "plan", policy="regex:customersim", by="user",
...             posterior=0.1, scales=(5.0,), steps=20, batch_size=8)
>>> made.summary["secrets"], made.summary["by"]
(20, 'user')
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse

from confide.screening.corpus import batches
from crtlib import outputs
from crtlib.accounting import secrets
from crtlib.accounting.ledger import WeightedGaussian
from crtlib.accounting.secrets import Plan
from crtlib.checks import check, check_choice
from crtlib.files import Named
from crtlib.screening import policies
from crtlib.screening.policies import SHORTEST, Finder, Listed, digest, entry, plain, policy_by_name
from crtlib.screening.policy import Policy, spoken
from crtlib.text import corpora, records
from crtlib.text.folders import pseudonym
from crtlib.text.records import Corpus, Point, unit
from crtlib.training.phases import Event

By = Literal["value", "user"]
COLUMNS = ("user", "secret", "kind", "p", "r")


@dataclass
class Holders:
    """``examples`` are the ids of all points, ``secrets`` the names of what gets one promise each:
    a value, or a user; ``pairs`` are (secret, example) by number. ``prior`` and ``posterior`` are
    one a secret. ``unseen`` secrets stand nowhere."""

    secrets: list[str] = field(repr=False)
    examples: list[str] = field(repr=False)
    pairs: list[tuple[int, int]] = field(repr=False)
    prior: list[float] = field(repr=False)
    posterior: list[float] = field(repr=False)
    unseen: int

    def matrix(self) -> sparse.csr_array:
        """``(secrets, examples)`` of 0 and 1."""
        where, shape = np.transpose(self.pairs), (len(self.secrets), len(self.examples))
        return sparse.csr_array((np.ones(len(self.pairs)), (where[0], where[1])), shape=shape)


def of_policy(
    batches: Callable[[], Iterable[Sequence[Point]]],
    policy: Policy,
    *,
    by: By,
    prior: float,
    posterior: float,
) -> Holders:
    """Each value that ``policy`` flags somewhere is a secret; or each user is one, who holds all
    points in which a value stands that is flagged in his.

    Values that differ in spelling alone (as ``list:`` reads them) are one, and each is looked for
    in all of the text: what the policy passed over elsewhere is held as well. A value that is too
    short to look for is held where it is flagged.

    Args:
        batches: Reads the points, the same each time; they are read twice.
    """
    check_choice("by", by, ("value", "user"))
    check("prior", prior, 0 < prior < 1, "in (0, 1)")
    check("posterior", posterior, prior < posterior < 1, f"in ({prior:g}, 1)")
    rows: dict[tuple[str, bool], Listed] = {}
    users: dict[int, set[str]] = {}
    flagged = list[set[int]]()
    for points in batches():
        for p, spans in zip(points, policy(points), strict=True):
            values = [p.text[s.start : s.end] for s in spans]
            each = {rows.setdefault(entry(v), Listed(v, "", len(rows))).number for v in values}
            for number in each:
                users.setdefault(number, set()).add(p.user)
            flagged.append(each)
    find = Finder("--from-policy", [row for (n, _), row in rows.items() if len(n) >= SHORTEST])
    names = {
        row.number: {row.value} if by == "value" else users[row.number] for row in rows.values()
    }
    return _held(batches(), find, names, lambda _: (prior, posterior), flagged=flagged)


def of_file(
    batches: Iterable[Sequence[Point]],
    file: Named,
    *,
    by: By,
    prior: float,
    posterior: float | None,
) -> Holders:
    """The values of a CSV or Parquet file ``user,secret[,kind][,p][,r]``, found as by ``list:``.

    With ``by`` "user" a user's secret are all points that one of his values touches, whoever
    wrote them. ``p`` and ``r`` go before ``prior`` and ``posterior``. Raises ``ValueError``, which
    shows no value, for another table, or a secret with two promises.
    """
    table = _table(Path(file), prior, posterior)
    check_choice("by", by, ("value", "user"))
    names = table.secret.tolist() if by == "value" else [unit(name) for name in table.user]
    promises: dict[str, tuple[float, float]] = {}
    for row, (name, *promise) in enumerate(zip(names, table.p, table.r, strict=True), 2):
        if promises.setdefault(name, (promise[0], promise[1])) != tuple(promise):
            raise ValueError(f"{file}, row {row}: p or r differs from an earlier row of its {by}")
    find = Finder(str(file), [Listed(value, "", row) for row, value in enumerate(table.secret, 2)])
    whose = {row: {name} for row, name in enumerate(names, 2)}
    return _held(batches, find, whose, promises.__getitem__, order=list(promises))


def _held(
    batches: Iterable[Sequence[Point]],
    find: Finder,
    names: Mapping[int, set[str]],
    promise: Callable[[str], tuple[float, float]],
    *,
    order: Sequence[str] = (),
    flagged: Sequence[set[int]] = (),
) -> Holders:
    """Who holds what ``find`` finds in a point, and what was ``flagged`` there: of each number the
    ``names`` of the secrets. They are told in this ``order``, or as they come."""
    points = itertools.chain.from_iterable(batches)
    pairs: list[tuple[str, int]] = []
    examples: list[str] = []
    for k, p in enumerate(points):
        known = flagged[k] if flagged else set()
        held = known.union(*(find(p.text[a:b])[1] for a, b in spoken(p)))
        each = sorted(set().union(*(names[number] for number in held)))
        pairs += [(name, k) for name in each]
        examples.append(p.id)
    if not pairs:
        raise ValueError("secrets=0: none of them stands in the text; there is nothing to protect")
    seen = dict.fromkeys(name for name, _ in pairs)
    every = order or list(seen)
    secrets = [name for name in every if name in seen]
    place = {name: i for i, name in enumerate(secrets)}
    prior, posterior = map(list, zip(*map(promise, secrets), strict=True))
    placed = [(place[name], k) for name, k in pairs]
    return Holders(secrets, examples, placed, prior, posterior, len(every) - len(secrets))


def _table(path: Path, prior: float, posterior: float | None) -> pd.DataFrame:
    table = policies.table(path, str(path))
    names = [str(name) for name in table.columns]
    if not {"user", "secret"} <= set(names) or set(names) - set(COLUMNS):
        words = all(re.fullmatch(r"[^\W\d]+", name) for name in names)
        what = f"columns are {','.join(names)}" if words else "has no header"
        raise ValueError(f"--secrets: {what}; a table needs user,secret[,kind][,p][,r]")
    for name, given in (("p", prior), ("r", posterior)):
        if name not in names and given is None:
            raise ValueError("--posterior: must be given, there is no column r")
        column = table[name] if name in names else [given] * len(table)
        table[name] = pd.to_numeric(column, errors="coerce")
    for name in ("user", "secret"):
        empty = np.flatnonzero(table[name].str.strip() == "")
        if len(empty):
            raise ValueError(f"{path.name}, row {empty[0] + 2}, column {name}: is empty")
    wrong = np.flatnonzero(~((table.p > 0) & (table.p < table.r) & (table.r < 1)))
    if len(wrong):
        raise ValueError(f"{path.name}, row {wrong[0] + 2}: must have 0 < p < r < 1")
    return table


BATCH, EPOCHS = 64, 8
"""Batch size and passes over the text of a plan, where they are not given."""
PUBLIC = ("plan.json", "weights.parquet")
KNOWN = "which points hold which secret, and the weights"
LISTED = "a list of secrets"
"""What stands in the place of a policy's name where the secrets come from a table."""


@dataclass(frozen=True)
class Made:
    """A plan of a corpus: its ``summary`` without names, and the ``table`` of all that were tried,
    with what ``why`` the one was taken for."""

    plan: Plan
    summary: dict[str, Any]
    table: pd.DataFrame
    why: str

    def text(self) -> str:
        """For a terminal."""
        shown = self.table.to_string(index=False, float_format="{:.4g}".format)
        lines = [
            f"secrets {self.summary['secrets']:,} ({self.summary['by']}s) · "
            f"{self.summary['held']:,} of {self.summary['examples']:,} points hold one",
            *([shown, self.why] if len(self.table) > 1 else []),
            f"noise {self.plan.noise_multiplier:.4g} · {self.plan.steps:,} steps of about "
            f"{self.plan.batch_size:g} · {100 * self.plan.kept:.1f} % of the text is kept",
        ]
        if self.summary["unseen"]:
            lines.append(f"note: {self.summary['unseen']:,} secrets stand nowhere in the text")
        return "\n".join(lines)


def make(
    corpus: Named,
    out: Named,
    *,
    table: Named | None = None,
    policy: str | None = None,
    by: By = "value",
    unit: str = "turn",
    prior: float = 0.001,
    posterior: float | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
    scales: Sequence[float] = (2.0, 5.0, 10.0, math.inf),
    take: float | None = None,
    targets: str = "sqrt",
    neighbouring_relation: str = "reference",
    force: bool = False,
) -> Made | None:
    """Who holds which secret in ``corpus``, and the plan under which each keeps its promise, in the
    folder ``out``; None where it is there already, made of the same.

    The secrets are the values of ``table`` (``user,secret[,kind][,p][,r]``) or what ``policy``
    flags; ``by`` says what gets one promise. Of several ``scales`` the one that ``take`` names is
    written, or else that which keeps most text for its noise. ``plan.json`` and
    ``weights.parquet`` (with pseudonyms) are public files, all others private.
    """
    if (table is None) == (policy is None):
        raise ValueError("--secrets, --from-policy: give exactly one of the two")
    inputs = {"corpus": corpus} | ({"secrets": table} if table is not None else {})
    named = {"policy": plain(policy), "policy_sha256": digest(policy)} if policy else {}
    promise: dict[str, Any] = {"by": by, "prior": prior, "posterior": posterior}
    how = {"targets": targets, "neighbouring_relation": neighbouring_relation}
    options = {**named, **promise, **how, "unit": unit, "steps": steps, "batch_size": batch_size,
               "scales": [str(s) for s in scales], "take": str(take)}  # fmt: skip
    recipe: dict[str, Any] = {"command": "protect", "options": options, "inputs": inputs,
                              "key": "key"}  # fmt: skip
    if outputs.up_to_date(out, **recipe):
        return None
    with outputs.staged(out, public=PUBLIC, force=force, **recipe) as part:
        points = partial(_points, corpus, unit)
        if table is not None:
            found = of_file(points(), table, **promise)
        elif posterior is None:
            raise ValueError("--posterior: must be given with --from-policy")
        else:
            found = of_policy(points, policy_by_name(policy or ""), **promise)
        matrix, n = found.matrix(), len(found.examples)
        batch = min(BATCH, max(1, n // 10)) if batch_size is None else batch_size
        count = max(1, math.ceil(EPOCHS * n / batch)) if steps is None else steps
        check("steps", count, count >= 1, "at least 1")
        budget: dict[str, Any] = {"steps": count, "batch_size": batch, **how}
        plans = [
            secrets.plan(
                matrix, np.array(found.prior), np.array(found.posterior), scale=s, **budget
            )
            for s in scales
        ]
        chosen, why = _taken(plans, take)
        summary = _summary(chosen, found, matrix) | {"unit": unit, "by": by}
        summary["corpus_sha256"] = corpora.read_hash(corpus)
        _write(part, chosen, found, summary, outputs.key_in(part / "key"))
    return Made(chosen, summary, secrets.compared(plans), why)


def _points(corpus: Named, unit: str) -> Iterator[tuple[Point, ...]]:
    for batch in batches(corpora.dialogues(corpus)):
        yield records.points(Corpus("", tuple(batch)), unit)


def _taken(plans: Sequence[Plan], take: float | None) -> tuple[Plan, str]:
    """The plan that is written, and why."""
    if take is not None:
        chosen = next((p for p in plans if p.scale == take), None)
        if chosen is None:
            scales = ", ".join(f"{p.scale:g}" for p in plans)
            raise ValueError(f"--take: {take:g} must be one of {scales}")
        return chosen, f"take {take:g}: as you say"
    best = max(plans, key=lambda p: p.kept / p.noise_multiplier)
    most = max(plans, key=lambda p: p.scale)
    noise = best.noise_multiplier / most.noise_multiplier
    lost = 100 * (most.kept - best.kept)
    return best, (
        f"take {best.scale:g}: {noise:.2g} times the noise of {most.scale:g} for {lost:.1f} % of "
        "the text; --take names another"
    )


def _summary(plan: Plan, found: Holders, matrix: sparse.csr_array) -> dict[str, Any]:
    name = {"rounds": "steps", "certified_gap": "gap"}
    plain = {name.get(k, k): "inf" if v == math.inf else v for k, v in plan.summary().items()}
    pairs = sorted({(float(p), float(r)) for p, r in zip(plan.prior, plan.promised, strict=True)})
    held = len(np.unique(matrix.indices))
    return {"schema": "crtlib/plan/1", **plain, "binding": len(plan.binding), "held": held,
            "unseen": found.unseen, "promises": pairs}  # fmt: skip


def _write(part: Path, plan: Plan, found: Holders, summary: dict[str, Any], key: bytes) -> None:
    examples = [pseudonym(key, "id", e) for e in found.examples]
    names = [pseudonym(key, "secret", s) for s in found.secrets]
    tables = plan.tables(examples, names)
    columns = {"prior": "p", "promised": "r", "posterior_kl": "posterior"}
    told = tables["secrets"].rename(columns=columns)[["secret", "p", "r", "posterior", "examples"]]
    pairs = [(names[k], examples[i]) for k, i in found.pairs]
    for name, table in {
        "weights": tables["weights"].sort_values("example"),
        "secrets": told,
        "holders": pd.DataFrame(pairs, columns=["secret", "example"]),
        "names": pd.DataFrame({"secret": names, "name": found.secrets}),
    }.items():
        table.to_parquet(part / f"{name}.parquet", index=False)
    text = json.dumps(outputs.keyed(summary, key), indent=1, allow_nan=False) + "\n"
    (part / "plan.json").write_text(text, encoding="utf-8")


def read(
    folder: Named, corpus: Named, text: Corpus
) -> tuple[Plan, dict[str, Any], Sequence[Point]]:
    """The plan that :func:`make` wrote of this corpus, which holds this text, its summary with the
    policy, and the points. Refuses what is no plan, and one of another corpus."""
    home = Path(folder)
    marked = outputs.demand(home)
    if marked["command"] != "protect":
        raise ValueError(f"--plan: {folder} is no plan of 'crtlib protect'")
    summary, key = json.loads((home / "plan.json").read_bytes()), outputs.key_in(home / "key")
    summary["policy"] = marked["options"].get("policy", LISTED)
    made_for, this = summary.get("corpus_hmac"), outputs.keyed(corpora.read_hash(corpus), key)
    if made_for is None:
        raise ValueError(f"--plan: {folder} was made of a table, for no corpus that is known")
    if made_for != this:
        raise ValueError(f"--plan: made for corpus {made_for[:4]}…, this is {this[:4]}…")
    points = records.points(text, summary["unit"])
    weights = pd.read_parquet(home / "weights.parquet").set_index("example")
    names = [pseudonym(key, "id", p.id) for p in points]
    if sorted(names) != weights.index.tolist():
        raise ValueError("--plan: was made for other points; make it again with 'crtlib protect'")
    told, holds = (pd.read_parquet(home / f"{n}.parquet") for n in ("secrets", "holders"))
    where = (pd.Index(told.secret).get_indexer(pd.Index(holds.secret)),
             pd.Index(names).get_indexer(pd.Index(holds.example)))  # fmt: skip
    matrix = sparse.csr_array((np.ones(len(holds)), where), shape=(len(told), len(names)))
    weights = weights.loc[names]
    kept_weight = float(weights.weight.sum())
    same = "noise_multiplier", "steps", "batch_size", "targets", "neighbouring_relation"
    return Plan(
        incidence=matrix,
        prior=told.p.to_numpy(),
        promised=told.r.to_numpy(),
        weights=weights.weight.to_numpy(),
        bound=kept_weight / (1 - summary["gap"]),
        probabilities=weights.sampling_probability.to_numpy(),
        certain=summary["in_every_batch"],
        binding=np.arange(0),
        scale=float(summary["scale"]),
        **{name: summary[name] for name in same},
    ), summary, points  # fmt: skip


def brought(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What the user brought that decided which secrets the plan knows, by names that may be shown:
    a list, or files of the policy."""
    if summary["policy"] == LISTED:
        return ("the list of secrets",)
    return policies.brought(summary["policy"])


def accounted(done: Sequence[Event], plan: Plan, folder: Named) -> pd.DataFrame:
    """What was promised of each secret, and what was done, from the events of the run."""
    names = pd.read_parquet(Path(folder) / "secrets.parquet").secret
    events = [e for e in done if isinstance(e, WeightedGaussian)]
    bound, _ = secrets.guarantees(
        events, plan.incidence, prior=plan.prior, neighbouring_relation=plan.neighbouring_relation
    )
    # A plan meets its promises to 1e-9: the last digits of a binding one are no broken promise.
    held = np.where(bound <= plan.promised * (1 + 1e-9), np.minimum(bound, plan.promised), bound)
    table = {"secret": names, "prior": plan.prior, "promised": plan.promised, "posterior": held}
    return pd.DataFrame({**table, "examples": np.diff(plan.incidence.indptr)})
