"""What the recorded runs of the leakage report say of its claims.

>>> one, = compare("unique", left="private", right="random", than=0.0)
>>> one.verdict, one.source
('agrees', 'leakage_laptop: unique')

A run is one seed on one corpus: with two of each, an interval is over four runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import scipy

from crtbook import tables
from crtbook.claims import rules
from crtbook.claims.rules import Outcome
from crtbook.leakage import of_figure_5, of_table_2

NAME = "leakage_laptop"
MODELS = {
    "private": ("sgd", "random"),
    "random": ("dpsgd", "random"),
    "public start": ("dpsgd", "public"),
    "public": ("public", "public"),
}
"""The models of Table 2 by what the paper calls them."""
RUN = ["corpus", "seed"]


def _table() -> pd.DataFrame:
    return tables.recorded(NAME)


def _with(outcome: Outcome, metric: str, part: pd.DataFrame) -> list[Outcome]:
    facts = vars(outcome) | {
        "source": f"{NAME}: {metric}",
        "corpus": ", ".join(sorted(set(part.corpus))),
        "model": ", ".join(sorted(set(part.model))),
        "edition": f"{', '.join(map(str, sorted(set(part.dialogues))))} dialogues, "
        f"width {', '.join(map(str, sorted(set(part.hidden))))}",
    }
    return [Outcome(**facts)]


def rows(model: str, metric: str, at: str = "last") -> pd.DataFrame:
    """A model of Table 2: one value a run, at its ``first`` or ``last`` snapshot."""
    table = of_table_2(_table())
    method, init = MODELS[model]
    part = table[(table.method == method) & (table.init == init) & (table.metric == metric)]
    epoch = part.groupby("run").epoch.transform("min" if at == "first" else "max")
    return part[part.epoch == epoch]


def _values(part: pd.DataFrame) -> pd.Series:
    return part.set_index(RUN).value


def compare(
    metric: str, *, left: str, right: str, than: float = 0.0, log: bool = True,
    left_at: str = "last", right_at: str = "last",
) -> list[Outcome]:  # fmt: skip
    """Whether a metric of one model of Table 2 is larger than that of another, run by run: the
    logarithm of their ratio (with a half added to counts), or the difference."""
    one, other = rows(left, metric, left_at), rows(right, metric, right_at)
    x, y = _values(one), _values(other)
    half = 0.5 if metric.startswith("unique") else 0.0
    gap = pd.Series(np.log((x + half) / (y + half)) if log else x - y).dropna()
    told = rules.higher(gap.tolist(), than, unit="log ratio" if log else "difference")
    words = f"{x.mean():.3g} against {y.mean():.3g}; {told.ours}"
    return _with(Outcome(**(vars(told) | {"ours": words})), metric, pd.concat([one, other]))


def ordered(metric: str, *, model: str, rising: bool = True) -> list[Outcome]:
    """Whether a metric of a model rises from its first to its last snapshot, run by run."""
    first, last = rows(model, metric, "first"), rows(model, metric)
    x, y = _values(first), _values(last)
    told = rules.higher(((y - x) if rising else (x - y)).dropna().tolist(), 0.0, unit="difference")
    words = f"from {x.mean():.3g} to {y.mean():.3g}; {told.ours}"
    return _with(Outcome(**(vars(told) | {"ours": words})), metric, last)


def none(metric: str, *, model: str, at: str) -> list[Outcome]:
    """That a count is 0 in every run."""
    part = rows(model, metric, at)
    total, runs = int(part.value.sum()), len(part)
    told = rules.holds(total == 0, f"{total} in {runs} runs", "must be 0 in every run", total)
    return _with(told, metric, part)


def some(metric: str, *, model: str) -> list[Outcome]:
    """That a count is above 0, in every run."""
    part = rows(model, metric)
    return _with(_exists(part), metric, part)


def _exists(part: pd.DataFrame) -> Outcome:
    runs, hits = len(part), int((part.value > 0).sum())
    whole = rules.AGREES if hits else rules.DIFFERS
    verdict = rules.PART if 0 < hits < runs else whole
    words = f"{', '.join(f'{v:g}' for v in part.value)}: above 0 in {hits} of {runs} runs"
    return Outcome(verdict=verdict, ours=words, rule="it must occur in every run")


def level(metric: str, *, model: str, at: str = "last") -> list[Outcome]:
    """A level of Table 2, which holds for its corpus only."""
    part = rows(model, metric, at)
    each = "; ".join(f"{c} {v:.3g}" for c, v in part.groupby("corpus").value.mean().items())
    why = "the paper's corpus, Reddit, is not here"
    return _with(rules.another_level(each, why), metric, part)


def at_most(metric: str, *, model: str, line: float, at: str = "last") -> list[Outcome]:
    """That a number is at most what the paper prints."""
    part = rows(model, metric, at)
    if part.empty:
        return [rules.absent(f"no recorded run has {metric} of this model")]
    return _with(rules.lower(part.value.tolist(), line), metric, part)


def overfitting(*, than: float = rules.CLOSE) -> list[Outcome]:
    """Validation over training perplexity at the end of Figure 5's runs."""
    part = of_figure_5(_table())
    last = part[part.epoch == part.epochs]
    wide = last.pivot_table(index=RUN, columns="metric", values="value")
    told = rules.lower((wide.ppl / wide.train_ppl).tolist(), than, unit="times")
    return _with(told, "ppl / train_ppl", last)


def grows() -> list[Outcome]:
    """Spearman's correlation of the number of unique sequences with the epoch, run by run."""
    part = of_figure_5(_table())
    part = part[part.metric == "unique"]
    each = [float(scipy.stats.spearmanr(g.epoch, g.value)[0]) for _, g in part.groupby("run")]
    return _with(rules.higher(each, 0.0, unit="rank correlation"), "unique", part)


def confident(*, below: float, share: float) -> list[Outcome]:
    """The share of the unique sequences at the end whose perplexity is below a threshold."""
    part = of_figure_5(_table())
    part = part[(part.metric == "unique_perplexity") & (part.epoch == part.epochs)]
    each = part.assign(hit=part.value < below).groupby("run").hit.mean()
    return _with(rules.higher(each.tolist(), share), f"unique_perplexity < {below:g}", part)


def silenced(*, threshold: float) -> list[Outcome]:
    """That a threshold on perplexity leaves no unique sequence."""
    part = of_figure_5(_table())
    part = part[(part.metric == "unique_perplexity") & (part.epoch == part.epochs)]
    left, of = int((part.value < threshold).sum()), len(part)
    told = rules.holds(left == 0, f"{left} of {of} are left", "none may be left", left)
    return _with(told, f"unique_perplexity < {threshold:g}", part)


def early() -> list[Outcome]:
    """That something sensitive is completed from epoch 2 on."""
    part = of_figure_5(_table())
    part = part[(part.metric == "unique_secrets") & (part.epoch == 2)]
    return _with(_exists(part), "unique_secrets at epoch 2", part)


def mitigated(metric: str, *, name: str) -> list[Outcome]:
    """Whether a change of the text lowers a metric of Figure 5's run, run by run."""
    one, other = of_figure_5(_table()), of_figure_5(_table(), name)
    pair = [p[(p.metric == metric) & (p.epoch == p.epochs)] for p in (one, other)]
    x, y = _values(pair[0]), _values(pair[1])
    gap = (x - y).dropna()
    told = rules.higher(gap.tolist(), 0.0, unit="difference")
    words = f"from {x[gap.index].mean():.3g} to {y[gap.index].mean():.3g}"
    return _with(Outcome(**(vars(told) | {"ours": words})), metric, pair[1])


def complete() -> list[Outcome]:
    """Ours: the report lists every planted text that the model completes."""
    table = _table()
    wide = table[table.metric.str.startswith("canaries_")].pivot_table(
        index="run", columns="metric", values="value"
    )
    listed, of = int(wide.canaries_listed.sum()), int(wide.canaries_completed.sum())
    return _with(rules.share(listed, of=of, least=1.0), "canaries_listed", table)


def unrelated() -> list[Outcome]:
    """Rank correlation of epsilon and the worst ratio over the snapshots of DP models."""
    table = of_table_2(_table())
    part = table[table.method == "dpsgd"]
    wide = part.pivot_table(index=["run", "epoch"], columns="metric", values="value")
    both = wide[["epsilon", "leakage_epsilon"]].dropna()
    found = scipy.stats.spearmanr(both.epsilon, both.leakage_epsilon)
    low, high = _fisher(float(found.statistic), len(both))
    told = Outcome(
        verdict=rules.AGREES if low <= 0 <= high else rules.DIFFERS,
        ours=f"rank correlation {found.statistic:.2f} [{low:.2f}, {high:.2f}]",
        value=float(found.statistic), low=low, high=high,
        rule=f"the 95 % interval over {len(both)} snapshots must hold 0",
    )  # fmt: skip
    return _with(told, "leakage_epsilon", part)


def _fisher(r: float, n: int) -> tuple[float, float]:
    """Fisher's interval of a correlation."""
    z, half = np.arctanh(np.clip(r, -0.999, 0.999)), 1.96 / np.sqrt(n - 3)
    return float(np.tanh(z - half)), float(np.tanh(z + half))


MEASURES: dict[str, Callable[..., list[Outcome]]] = {
    f.__name__: f
    for f in (compare, ordered, none, some, level, at_most, overfitting, grows, confident,
              silenced, early, mitigated, complete, unrelated)
}  # fmt: skip
