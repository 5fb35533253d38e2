"""Plan secret protection for your own corpus: who holds which secret, and with which weights.

>>> import pathlib, tempfile
>>> from crtlib.text import customersim, jsonl
>>> home = pathlib.Path(tempfile.mkdtemp())
>>> jsonl.write_jsonl(customersim.simulate_corpus(20, 0), home / "c.jsonl")
>>> made = make_secret_plan(home / "c.jsonl", home / "plan", policy="regex:customersim", by="user",
...             posterior=0.1, scales=(5.0,), steps=20, batch_size=8,
...             neighbouring_relation="reference")
>>> made.summary["secrets"], made.summary["by"]
(20, 'user')
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field
from scipy import sparse

from confide.screening.dialogue_batches import batch_dialogues
from confide.training.secret_holders import (
    PromiseUnit,
    SecretHolders,
    find_flagged_holders,
    find_listed_holders,
)
from crtlib import files, outputs
from crtlib.accounting import secret_protection
from crtlib.accounting.events import WeightedGaussian
from crtlib.accounting.secret_protection import ProtectionPlan
from crtlib.arguments import argument, argument_error
from crtlib.checks import check_allowed, check_choice
from crtlib.files import StrPath
from crtlib.foreign_files import refuse_whatever_fails
from crtlib.screening import policy_names
from crtlib.screening.policy_digests import policy_digest
from crtlib.screening.policy_names import policy_by_name, strip_paths
from crtlib.screening.taught_text import count_teaching_people
from crtlib.text import corpora, data_points, screened_folder
from crtlib.text.records import Corpus, Point
from crtlib.text.screened_folder import make_pseudonym
from crtlib.training.phases import PrivacyEvent
from crtlib.values import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

DEFAULT_BATCH_SIZE, DEFAULT_EPOCHS = 64, 8
"""A plan's batch size and passes over the text, unless they are given."""
PUBLIC_PLAN_FILES = ("plan.json", "weights.parquet")
PUBLIC_KNOWLEDGE = "which points hold which secret, and the weights"
SECRET_LIST_NAME = "a list of secrets"
"""The name used in place of a policy's if the secrets come from a table."""


@dataclass(frozen=True)
class SecretPlanResult:
    """A plan for a corpus, with its ``summary`` (without names), the ``table`` of all plans that
    were tried, and ``why`` this one was chosen."""

    plan: ProtectionPlan
    summary: dict[str, Any]
    table: pd.DataFrame = field(repr=False)
    why: str

    def text(self) -> str:
        """The plan in lines for a terminal."""
        shown = self.table.to_string(index=False, float_format="{:.4g}".format)
        lines = [
            f"secrets {self.summary['secrets']:,} ({self.summary['by']}s) · "
            f"{self.summary['held']:,} of {self.summary['examples']:,} points hold one",
            *([shown, self.why] if len(self.table) > 1 else []),
            f"noise {self.plan.noise_multiplier:.4g} · {self.plan.steps:,} steps of about "
            f"{self.plan.batch_size:g} · {100 * self.plan.kept_share:.1f} % of the text is kept",
        ]
        if self.summary["unseen"]:
            lines.append(f"note: {self.summary['unseen']:,} secrets appear nowhere in the text")
        return "\n".join(lines)


def make_secret_plan(
    corpus: StrPath,
    out: StrPath,
    *,
    table: StrPath | None = None,
    policy: str | None = None,
    by: PromiseUnit = "value",
    unit: str = "turn",
    prior: float = 0.001,
    posterior: float | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
    scales: Sequence[float] = (2.0, 5.0, 10.0, math.inf),
    take: float | None = None,
    neighbouring_relation: str,
    targets: str = "sqrt",
    force: bool = False,
) -> SecretPlanResult | None:
    """Find who holds which secret in a corpus, and write a plan that keeps the promise for each
    secret.

    ``plan.json`` and ``weights.parquet`` (with pseudonyms) are public files; all others are
    private.

    Args:
        corpus: The text, a file or a folder.
        out: The folder of the plan.
        table: The secrets, as a file of values ``user,secret[,kind][,p][,r]``.
        policy: Flags the secrets, if there is no table.
        by: What gets a promise of its own: a "value" or a "user".
        unit: What one point is: a "turn", a "dialogue" or a "user".
        prior: The probability with which an attacker guesses a secret beforehand, in (0, 1).
        posterior: The probability that the promise allows afterwards; None: as in the table.
        steps: How many steps a training takes; None: as many as :data:`DEFAULT_EPOCHS` need.
        batch_size: Expected number of points in a batch; None: :data:`DEFAULT_BATCH_SIZE`, or a
            tenth of the points if that is less.
        scales: A plan is made for each of these.
        take: The scale of the plan that is written; None: that of the plan that keeps most text for
            its noise.
        neighbouring_relation: How two texts differ that the promise compares.
        targets: How the budget grows with the number of points that hold a secret.
        force: Replace the contents of ``out``.

    Returns:
        The plan; None if the same one is already there.

    Raises:
        ValueError: For a screened folder, among other things.
    """
    _refuse_screened_folder(corpus)
    if (table is None) == (policy is None):
        arguments = f"{argument('table')}, {argument('policy')}"
        raise ValueError(f"{arguments}: give exactly one of the two")
    check_choice("targets", targets, tuple(secret_protection.BUDGET_EXPONENTS))
    inputs = {"corpus": corpus} | ({"secrets": table} if table is not None else {})
    named = (
        {"policy": strip_paths(policy), "policy_sha256": policy_digest(policy)} if policy else {}
    )
    promise: dict[str, Any] = {"by": by, "prior": prior, "posterior": posterior}
    options = {**named, **promise, "targets": targets,
               "neighbouring_relation": neighbouring_relation, "unit": unit, "steps": steps,
               "batch_size": batch_size, "scales": [str(s) for s in scales],
               "take": str(take)}  # fmt: skip
    recipe: dict[str, Any] = {"command": "protect", "options": options, "inputs": inputs,
                              "key": "key"}  # fmt: skip
    if outputs.is_up_to_date(out, **recipe):
        return None
    with outputs.staged_folder(out, public=PUBLIC_PLAN_FILES, force=force, **recipe) as staged:
        points = partial(_point_batches, corpus, unit)
        if table is not None:
            holders = find_listed_holders(points(), table, **promise)
        elif posterior is None:
            raise argument_error("posterior", f"must be given with {argument('policy')}")
        else:
            holders = find_flagged_holders(points, policy_by_name(policy or ""), **promise)
        holder_matrix = holders.matrix()
        point_count = len(holders.examples)
        if batch_size is None:
            batch_size = min(DEFAULT_BATCH_SIZE, max(1, point_count // 10))
        if steps is None:
            steps = max(1, math.ceil(DEFAULT_EPOCHS * point_count / batch_size))
        check_allowed("steps", steps, steps >= 1, "at least 1")
        plans = [
            secret_protection.plan_protection(
                holder_matrix,
                np.array(holders.prior),
                np.array(holders.posterior),
                steps=steps,
                batch_size=batch_size,
                scale=scale,
                budget_growth=targets,
                neighbouring_relation=neighbouring_relation,
            )
            for scale in scales
        ]
        chosen, why = _choose_plan(plans, take)
        summary = _plan_summary(chosen, holders, holder_matrix) | {"unit": unit, "by": by}
        summary["corpus_sha256"] = corpora.hash_text_as_read(corpus)
        summary |= _describe_teachers(policy, corpus) if policy else {}
        _write_plan(staged, chosen, holders, summary, outputs.load_or_make_key(staged / "key"))
    return SecretPlanResult(chosen, summary, secret_protection.compare_plans(plans), why)


def _refuse_screened_folder(corpus: StrPath) -> None:
    """Refuse a screened folder. There a message may have decided whether or how another one is read
    that holds none of its secrets, but a plan counts only the points that hold a secret."""
    if screened_folder.is_screened_folder(corpus):
        raise ValueError(
            f"{corpus}: is screened, so one message may have decided how others are read, and a "
            "plan counts only those that hold a secret; give the corpus"
        )


def _describe_teachers(policy_name: str, corpus: StrPath) -> dict[str, Any]:
    """What taught the policy of this name, if it was taught, and how many people of the text
    did."""
    policy = policy_by_name(policy_name)
    if not policy.learned:
        return {}
    everybody = ((d.user, d.id) for d in corpora.read_dialogues(corpus))
    people = count_teaching_people([policy], everybody)
    return {"taught_by": policy.teaching_hashes, "taught_people": people}


def _point_batches(corpus: StrPath, unit: str) -> Iterator[tuple[Point, ...]]:
    for batch in batch_dialogues(corpora.read_dialogues(corpus)):
        yield data_points.make_points(Corpus("", tuple(batch)), unit)


def _choose_plan(plans: Sequence[ProtectionPlan], take: float | None) -> tuple[ProtectionPlan, str]:
    """The plan to write, and why."""
    if take is not None:
        chosen = next((p for p in plans if p.scale == take), None)
        if chosen is None:
            scales = ", ".join(f"{p.scale:g}" for p in plans)
            raise argument_error("take", f"{take:g} must be one of {scales}")
        return chosen, f"take {take:g}: as you set"
    best = max(plans, key=lambda p: p.kept_share / p.noise_multiplier)
    most = max(plans, key=lambda p: p.scale)
    noise = best.noise_multiplier / most.noise_multiplier
    lost = 100 * (most.kept_share - best.kept_share)
    return best, (
        f"take {best.scale:g}: {noise:.2g} times the noise of {most.scale:g} for {lost:.1f} % of "
        f"the text; {argument('take')} names another"
    )


def _plan_summary(
    plan: ProtectionPlan, holders: SecretHolders, matrix: sparse.csr_array
) -> dict[str, Any]:
    """The content of ``plan.json``, as JSON values."""
    values = {k: "inf" if v == math.inf else v for k, v in plan.summary().items()}
    promises = zip(plan.prior.tolist(), plan.allowed_posterior.tolist(), strict=True)
    held = len(np.unique(matrix.indices))
    return {"schema": "crtlib/plan/1", **values, "binding": len(plan.binding), "held": held,
            "unseen": holders.unseen, "promises": sorted(set(promises))}  # fmt: skip


def _write_plan(
    folder: Path, plan: ProtectionPlan, holders: SecretHolders, summary: dict[str, Any], key: bytes
) -> None:
    """Write the files of a plan, with pseudonyms for examples and secrets."""
    examples = [make_pseudonym(key, "id", example) for example in holders.examples]
    names = [make_pseudonym(key, "secret", secret) for secret in holders.secrets]
    tables = plan.tables(examples, names)
    columns = {"prior": "p", "allowed_posterior": "r", "posterior_kl": "posterior"}
    secrets = tables["secrets"].rename(columns=columns)
    pairs = [(names[k], examples[i]) for k, i in holders.pairs]
    for name, table in {
        "weights": tables["weights"].sort_values("example"),
        "secrets": secrets[["secret", "p", "r", "posterior", "examples"]],
        "holders": pd.DataFrame(pairs, columns=["secret", "example"]),
        "names": pd.DataFrame({"secret": names, "name": holders.secrets}),
    }.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    text = json.dumps(outputs.with_keyed_hashes(summary, key), indent=1, allow_nan=False) + "\n"
    (folder / "plan.json").write_text(text, encoding="utf-8")


def one_of(names: Iterable[str]) -> Any:
    """A pydantic field for a text that is one of ``names``."""
    return Field(pattern=f"^({'|'.join(names)})$")


class SavedPlan(BaseModel):
    """``plan.json``, as far as a training reads it; types and ranges are checked before a step."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    unit: Literal["turn", "dialogue", "user"]
    noise_multiplier: NonNegativeFloat
    steps: PositiveInt
    batch_size: PositiveFloat
    scale: PositiveFloat | Literal["inf"]
    gap: Annotated[float, Field(ge=0, lt=1)]
    in_every_batch: NonNegativeInt
    targets: Annotated[str, one_of(secret_protection.BUDGET_EXPONENTS)]
    neighbouring_relation: Annotated[str, one_of(secret_protection.PROMISE_DIRECTIONS)]


def read_secret_plan(
    folder: StrPath, corpus: StrPath, text: Corpus
) -> tuple[ProtectionPlan, dict[str, Any], Sequence[Point]]:
    """Read the plan that :func:`make_secret_plan` wrote for this corpus, whose text is ``text``.
    Returns the plan, its summary with the policy, and the points. Refuses a folder that is not a
    plan, and a plan for another corpus."""
    _refuse_screened_folder(corpus)  # crtlib 0.3 made plans for screened folders
    plan_folder = Path(folder)
    marked = outputs.require_marker(plan_folder)
    if marked["command"] != "protect":
        raise argument_error("plan", f"{folder} is not a plan of 'crtlib protect'")
    named = f"{argument('plan')}: {folder}"
    with refuse_whatever_fails(named, "its plan.json is damaged"):
        summary = json.loads(files.read_bytes(plan_folder / "plan.json"))
        SavedPlan.model_validate(summary)
    key = outputs.load_or_make_key(plan_folder / "key")
    summary["policy"] = marked["options"].get("policy", SECRET_LIST_NAME)
    made_for = summary.get("corpus_hmac")
    this_hash = outputs.with_keyed_hashes(corpora.hash_text_as_read(corpus), key)
    if not isinstance(made_for, str):
        raise argument_error("plan", f"{folder} was made from a table, for no known corpus")
    if made_for != this_hash:
        raise argument_error("plan", f"made for corpus {made_for[:4]}…, this is {this_hash[:4]}…")
    points = data_points.make_points(text, summary["unit"])
    with refuse_whatever_fails(named, "its tables are damaged", ours=ValueError):
        weights = _read_table(plan_folder / "weights.parquet").set_index("example")
        names = [make_pseudonym(key, "id", p.id) for p in points]
        if sorted(names) != weights.index.tolist():
            raise argument_error(
                "plan", "was made for other points; make it again with 'crtlib protect'"
            )
        secrets = _read_table(plan_folder / "secrets.parquet")
        holders = _read_table(plan_folder / "holders.parquet")
        where = (pd.Index(secrets.secret).get_indexer(pd.Index(holders.secret)),
                 pd.Index(names).get_indexer(pd.Index(holders.example)))  # fmt: skip
        matrix = sparse.csr_array((np.ones(len(holders)), where), shape=(len(secrets), len(names)))
        weights = weights.loc[names]
        kept_weight = float(weights.weight.sum())
        as_summarised = (
            "noise_multiplier",
            "steps",
            "batch_size",
            "neighbouring_relation",
        )
        return ProtectionPlan(
            incidence=matrix,
            prior=secrets.p.to_numpy(),
            allowed_posterior=secrets.r.to_numpy(),
            weights=weights.weight.to_numpy(),
            bound=kept_weight / (1 - summary["gap"]),
            probabilities=weights.sampling_probability.to_numpy(),
            certain_examples=summary["in_every_batch"],
            binding=np.arange(0),
            scale=float(summary["scale"]),
            budget_growth=summary["targets"],
            **{name: summary[name] for name in as_summarised},
        ), summary, points  # fmt: skip


def _read_table(path: Path) -> pd.DataFrame:
    return pd.read_parquet(files.check_regular_file(path))


def user_files_of_plan(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What the user supplied that decided which secrets the plan knows, by names that may be shown:
    a list, or files of the policy."""
    if summary["policy"] == SECRET_LIST_NAME:
        return ("the list of secrets",)
    return policy_names.user_supplied_parts(summary["policy"])


def account_secrets(
    run_events: Sequence[PrivacyEvent], plan: ProtectionPlan, folder: StrPath
) -> pd.DataFrame:
    """A table with a row for each secret: what was promised, and the ``posterior`` that the events
    of the run allow."""
    names = _read_table(Path(folder) / "secrets.parquet").secret
    events = [e for e in run_events if isinstance(e, WeightedGaussian)]
    bound, _ = secret_protection.secret_guess_bounds(
        events, plan.incidence, prior=plan.prior, neighbouring_relation=plan.neighbouring_relation
    )
    # A plan meets its promises up to 1e-9, so last digits do not break a promise that is binding.
    is_kept = bound <= plan.allowed_posterior * (1 + 1e-9)
    posterior = np.where(is_kept, np.minimum(bound, plan.allowed_posterior), bound)
    table = {"secret": names, "prior": plan.prior, "promised": plan.allowed_posterior}
    table |= {"posterior": posterior}
    return pd.DataFrame({**table, "examples": np.diff(plan.incidence.indptr)})
