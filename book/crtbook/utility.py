"""Utility against confidentiality, epoch by epoch: what Figure 2 of CRT plots.

>>> rows = [("valid_ppl_words", e, 0, 9.0 / e) for e in (1, 2)] + [("steps", 2, 0, 20.0)]
>>> from crtbook.runs import CrtStudy
>>> e = CrtStudy(method="dpsgd", model="lstm", gamma=0.0, seed=0, epochs=2, noise_multiplier=1.5)
>>> table = pd.DataFrame(rows, columns=["metric", "epoch", "item", "value"]).assign(**vars(e))
>>> curve = utility_by_epoch(table.assign(run="a"), neighbouring_relation="add_or_remove")
>>> curve[["epoch", "epsilon", "ppl_mean"]].round(2).values.tolist()
[[1.0, 1.04, 9.0], [2.0, 1.39, 4.5]]
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from crtlib.accounting import selective_privacy
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import BoundedRate
from crtlib.screening.rate_values import RATES_ALPHA, rate_upper_bound
from crtlib.text import corpora
from crtlib.training import methods
from crtlib.training.methods import GuaranteeTerms

CELLS = ["corpus", "model", "method", "gamma"]
WORDS = {"valid_ppl_words": "ppl", "valid_acc_words": "acc"}


def is_exact_policy(corpus: str, policy: str) -> bool:
    """True where the policy misses only what the dial gamma makes it miss: the policy is the labels
    themselves, or shapes that were made by rule. Elsewhere its misses must be counted."""
    return policy == "oracle" or (policy == "regex" and corpora.find_source(corpus).by_rule)


def epsilon_after_steps(
    method: str,
    *,
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    gamma: float,
    delta: float,
    neighbouring_relation: str,
    accountant: str = "pld",
) -> float:
    """Epsilon at ``delta`` after ``steps`` private steps, of the kind that the method promises:
    Bayesian confidentiality for CRT at miss rate ``gamma``; differential privacy of a point or of a
    user; of private tokens for S-DP with a perfect policy (whose ``steps`` count each mechanism
    that a point takes part in). Infinite for every method that trains without noise on a missed
    secret."""
    method_traits = methods.method_by_name(method)
    if noise_multiplier == 0:
        return math.inf
    options: Any = {"gamma": BoundedRate(gamma), "unit": "point", "accountant": accountant,
                    "neighbouring_relation": neighbouring_relation}  # fmt: skip
    if method_traits.flags_tokens:
        events = SampledGaussian(1.0, noise_multiplier, steps)
        return selective_privacy.selective_guarantee(events, delta=delta, **options).epsilon
    events = SampledGaussian(sampling_probability, noise_multiplier, steps)
    terms = GuaranteeTerms(delta2=BoundedRate(0.0), noise_delta=delta, public="", **options)
    promised = method_traits.promise(events, terms)
    return promised.epsilon if promised else math.inf


def utility_by_epoch(
    table: DataFrame,
    *,
    neighbouring_relation: str,
    epochs: Sequence[int] | None = None,
) -> DataFrame:
    """One row for each (corpus, model, method, gamma, epoch) of a results table: ``epsilon`` so far
    at a total ``delta``, and the mean and spread over seeds of validation perplexity and accuracy
    over words (``ppl_mean``, ``ppl_std``, ``acc_mean``, ``acc_std``, ``seeds``). ``epochs`` selects
    epochs (all by default).

    For CRT, ``miss_rate`` is the gamma of the accounting. Where the policy is
    :func:`is_exact_policy` this is the dial; elsewhere it is the 97.5 % upper bound of the trace
    rate counted on labels, the worst over all seeds, and ``delta`` then includes the bound of the
    public rate. A table that was recorded before these were counted has the misses of both policies
    instead, which is not what the theorem requires. With the dial as gamma, epsilon is that of a
    secret whose message is not repeated: which points are second occurrences is treated as public.
    Counted traces include repeated messages.
    """
    rows = []
    for cell, runs in table.groupby(CELLS):
        run, (gamma, delta2) = runs.iloc[0], _miss_rates(runs)
        (steps,) = runs[(runs.metric == "steps") & (runs.run == run.run)].value
        for epoch, runs_of_epoch in runs[runs.metric.isin(WORDS)].groupby("epoch"):
            if epochs is not None and epoch not in epochs:
                continue
            by_metric = runs_of_epoch.groupby(runs_of_epoch.metric.map(WORDS)).value
            row = {f"{name}_mean": x for name, x in by_metric.mean().items()}
            row |= {
                f"{name}_std": x for name, x in by_metric.std().items()
            }  # a single seed has none
            row["seeds"], row["miss_rate"] = runs_of_epoch.seed.nunique(), gamma
            row["epsilon"] = epsilon_after_steps(
                run.method,
                sampling_probability=run.sampling_probability,
                noise_multiplier=run.noise_multiplier,
                steps=round(steps * epoch / run.epochs),
                gamma=gamma,
                delta=run.delta,
                neighbouring_relation=neighbouring_relation,
            )
            row["delta"] = run.delta + delta2
            rows.append(dict(zip(CELLS, cell, strict=True)) | {"epoch": epoch} | row)
    return DataFrame(rows)


def _miss_rates(cell: DataFrame) -> tuple[float, float]:
    """gamma and delta2 for the runs of one cell, as upper bounds where they had to be counted."""
    run = cell.iloc[0]
    if run.method != "crt" or is_exact_policy(run.corpus, run.policy):
        return run.gamma, 0.0
    counts = cell.pivot_table(index="run", columns="metric", values="value", aggfunc="first")

    def worst(new_name: str, old_name: str) -> float:
        names = (f"{new_name}_count", f"{new_name}_of")
        if names[0] not in counts:
            names = (f"{old_name}_misses", f"{old_name}_labelled")
        pairs = zip(*(counts[name] for name in names), strict=True)
        bounds = [rate_upper_bound(int(k), int(n), alpha=RATES_ALPHA / 2) for k, n in pairs if n]
        return max(bounds, default=1.0)  # without labels nothing is known

    is_everything = run.conservative == "everything"
    return worst("trace", "pi"), 0.0 if is_everything else worst("public", "pi_c")


PERFECT = ("selective",)
"""Methods that are shown with a perfect policy, as the paper's Figure 2 shows S-DP: with any other
policy they promise nothing."""


def utility_at_end(table: DataFrame, *, gamma: float = 0.1) -> DataFrame:
    """Figure 2 with test perplexity: one row for each recorded corpus, model, method and
    neighbouring relation. ``epsilon`` is that at the end; ``ppl_mean`` and ``ppl_std`` are over
    words, beside ``seeds``; ``gamma`` is 0 for a method that is shown with a perfect policy. Where
    the policy's own misses had to be counted, epsilon is that of :func:`utility_by_epoch`."""
    rows = table[table.metric == "test_ppl_words"]
    shown_gammas = np.where(rows.method.isin(PERFECT) | (rows.method == "dpsgd"), 0.0, gamma)
    rows = rows[np.isclose(rows.gamma, shown_gammas)]
    records = []
    for cell, cell_rows in rows.groupby(CELLS):
        runs = table[table.run.isin(cell_rows.run)]
        for relation in ("add_or_remove", "replace"):
            last = utility_by_epoch(
                runs, epochs=[int(cell_rows.epoch.max())], neighbouring_relation=relation
            )
            if len(last):
                summary = cell_rows.value.mean(), cell_rows.value.std(), cell_rows.seed.nunique()
                records.append([*cell, relation, last.epsilon.iloc[-1], *summary])
    names = [*CELLS, "relation", "epsilon", "ppl_mean", "ppl_std", "seeds"]
    return DataFrame(records, columns=names)


def count_recorded_seeds(table: DataFrame | None, planned: Sequence[str] = ()) -> DataFrame:
    """The number of recorded seeds for each point of Figures 2 to 5: rows are corpus, model and
    method, columns are gammas, and 0 means none. ``planned`` methods have a row in any case. DP-SGD
    has no gamma."""
    if table is None or table.empty:
        return DataFrame(0, index=pd.Index(list(planned), name="method"), columns=[])
    runs = table.drop_duplicates("run")
    names, first = [*CELLS[:-1]], runs.iloc[0]
    seed_counts = runs.groupby(CELLS).seed.nunique().unstack("gamma")
    absent = [(first.corpus, first.model, m) for m in planned if m not in set(runs.method)]
    index = pd.MultiIndex.from_tuples([*seed_counts.index, *absent], names=names)
    return seed_counts.reindex(index).fillna(0).astype(int)


def mean_test_scores(table: DataFrame) -> DataFrame:
    """Test perplexity and accuracy at the end: mean and spread over seeds, one row per cell."""
    metrics = ["test_ppl", "test_ppl_words", "test_acc", "test_acc_words"]
    groups = table[table.metric.isin(metrics)].groupby([*CELLS, "metric"]).value
    scores = groups.agg(["mean", "std"]).unstack("metric")
    scores.columns = [f"{name.removeprefix('test_')}_{kind}" for kind, name in scores.columns]
    return scores.reset_index().replace({np.nan: None})
