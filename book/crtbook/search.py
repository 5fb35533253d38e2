"""The search for hyperparameters: the same number of draws for every method, recorded in a table.

>>> [sorted(draw) == sorted(SEARCHED) for draw in draw_hyperparameters(2, (1, 3))]
[True, True]
>>> choose_trial("sgd", "lstm")["batch_size"] in (16, 32, 64)
True
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from pandas import DataFrame, Series

from crtbook import settings, tables
from crtlib.studies import crt_study
from crtlib.training import methods

Number = int | float
Table = str | DataFrame

SEARCHED: Mapping[str, Callable[[float, Sequence[int]], Number]] = {
    "learning_rate": lambda u, _: float(f"{10 ** (-2.7 + 1.2 * u):.2g}"),
    "batch_size": lambda u, _: (16, 32, 64)[int(3 * u)],
    "pub_passes": lambda u, passes: passes[int(len(passes) * u)],
    "private_learning_rate": lambda u, _: float(f"{10 ** (-2.5 + 1.5 * u):.2g}"),
    "sampling_probability": lambda u, _: (0.05, 0.1, 0.2, 0.4)[int(4 * u)],
}
"""What is searched, and its value for a uniform ``u`` in [0, 1)."""

LONGER = 2
"""A training is compared with the best one of at least this many times its epochs: this shows
whether it could still become better."""
GENTLY = 0.2
"""Learning rates from a public start, relative to those that are drawn for random weights."""


def draw_hyperparameters(
    trials: int, passes: Sequence[int], *, rates: float = 1.0
) -> list[dict[str, Number]]:
    """Draw from a Latin hypercube, six at a time, so that a longer search contains the shorter one.
    Learning rates are multiplied by ``rates``. The number of passes over the public part is drawn
    from ``passes``."""
    cubes = [
        scipy.stats.qmc.LatinHypercube(len(SEARCHED), rng=np.random.default_rng(seed)).random(6)
        for seed in range(11, 11 + -(-trials // 6))
    ]
    rows = []
    for cube in np.concatenate(cubes)[:trials]:
        row = {
            name: draw_value(u, passes)
            for u, (name, draw_value) in zip(cube, SEARCHED.items(), strict=True)
        }
        scaled_rates = {n: float(f"{rates * v:.2g}") for n, v in row.items() if n.endswith("rate")}
        rows.append(row | scaled_rates)
    return rows


def choose_trial(
    method: str,
    model: str,
    corpus: str = crt_study.DEFAULT_CORPUS,
    *,
    init: str = "random",
    table: Table | Sequence[Table] = "tuning",
    min_epochs: int = 0,
) -> dict[str, Number]:
    """What the recorded search chose: the trial with the least validation perplexity at its last
    epoch. Where the search tried several numbers of epochs, it chooses the number, too, and each
    trial counts at the epoch of its least validation perplexity, at which results are read.

    ``table`` is the recorded table of the search, by name or as a table, or several: the first that
    has this method, model and start is used. Perplexity is over tokens that are neither ``<MASK>``
    nor part of a secret: only this one compares a method trained on raw text with the others. A
    corpus that the search did not cover uses the choice for CustomerSim. Trials with fewer than
    ``min_epochs`` do not count. Raises ``ValueError`` where nothing was searched.
    """
    for source in [table] if isinstance(table, str | DataFrame) else table:
        rows = tables.load_recorded(source) if isinstance(source, str) else source
        rows = rows[rows.metric == "valid_ppl_words"]
        rows = rows[(rows.method == method) & (rows.model == model) & (rows.init == init)]
        corpus_rows = rows[rows.corpus == corpus]
        rows = corpus_rows if len(corpus_rows) else rows[rows.corpus == crt_study.DEFAULT_CORPUS]
        if len(rows):
            break
    several = ["epochs"] if rows.epochs.nunique() > 1 else []
    rows = rows[rows.epochs >= min_epochs]
    if rows.empty:
        raise ValueError(
            f"method={method!r}, model={model!r}, init={init!r}: not in the recorded search"
        )
    last = _last_epoch_of_run(rows)
    best_run = (rows if several else rows[rows.epoch == last]).sort_values("value").iloc[0]
    return {
        name: best_run[name].item() for name in (*methods.method_by_name(method).searched, *several)
    }


def choose_longer_trial(
    method: str, model: str, corpus: str, **search: Any
) -> dict[str, Number] | None:
    """As :func:`choose_trial`, among the trials with at least ``LONGER`` times the chosen number of
    epochs; None where the search tried none."""
    chosen = choose_trial(method, model, corpus, **search)
    if "epochs" not in chosen:
        return None
    min_epochs = LONGER * int(chosen["epochs"])
    try:
        return choose_trial(method, model, corpus, **search, min_epochs=min_epochs)
    except ValueError:
        return None


ARM = ("corpus", "model", "init", "method", "gamma")
"""The columns whose values together make a way of training, apart from its rates and epochs."""


def is_longer(table: DataFrame) -> Series:
    """For each row, whether its run has at least ``LONGER`` times as many epochs as the shortest of
    its arm: it was run beside the chosen one, to show whether a longer training is better."""
    fewest = table.groupby([*ARM], dropna=False).epochs.transform("min")
    longer: Series = table.epochs >= LONGER * fewest
    return longer


def _last_epoch_of_run(rows: DataFrame) -> Series:
    """For each row, the last epoch of its run."""
    last: Series = rows.groupby("run").epoch.transform("max")
    return last


def list_search_tables(profile: str) -> tuple[str, ...]:
    """The recorded searches from which a profile takes its hyperparameters: its own, that of the
    profile whose name it begins with, those of the profiles that it is based on, and the one that
    all can use.

    >>> list_search_tables("laptop"), list_search_tables("h100")[-2:]
    (('tuning',), ('tuning_smollm2', 'tuning'))
    """
    own_profiles = [profile, profile.partition("_")[0], *settings.list_bases(profile)]
    recorded = [
        f"tuning_{name}"
        for name in own_profiles
        if tables.find_recorded(f"tuning_{name}") is not None
    ]
    return (*dict.fromkeys(recorded), "tuning")
