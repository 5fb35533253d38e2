"""The claims of CRT's Figures 2 to 6 as tests on a results table: agrees, differs, cannot be told.

>>> judged("lower", [0.8, 0.9, 0.85], 1.0), judged("lower", [0.8, 1.3, 0.9], 1.0)
('agrees', 'cannot be told at this size')
>>> judged("higher", [0.8, 0.9, 0.85], 1.0)
'differs'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from crtlib import exposure, membership, utility

UNTOLD = "cannot be told at this size"
CLOSE = 1.1
"""A perplexity is close to another when it is at most so many times as large."""


def judged(side: Literal["lower", "higher"], values: Sequence[float], than: float) -> str:
    """Whether the mean of ``values``, one a seed, is below or above ``than``.

    "agrees" or "differs" where the 95 % t-interval of the mean lies wholly on one side; otherwise,
    and with fewer than three seeds, the size does not tell.
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 3:
        return UNTOLD
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    if abs(x.mean() - than) <= half:
        return UNTOLD
    return "agrees" if (x.mean() < than) == (side == "lower") else "differs"


def claims(table: pd.DataFrame, *, gamma: float = 0.1) -> pd.DataFrame:
    """One row a claim, corpus and model: what was measured, with its spread, and the verdict.

    ``table`` is the results of :func:`crtlib.sweeps.crt_grid`. Perplexities are over words, at
    ``gamma``; ratios are paired by seed. Attacks are judged by their chance bands, which hold for
    all points of a figure together.
    """
    rows = []
    for (corpus, model), part in table.groupby(["corpus", "model"], sort=False):
        here = {"corpus": corpus, "model": model}
        rows += [here | row for row in (*_figure_2(part, gamma), *_figure_3(part))]
        rows += [here | row for row in (*_membership(part, "mia_accuracy", "4"),)]
        rows += [here | row for row in (*_membership(part, "group_accuracy", "5"),)]
    rows += _figure_2_models(table, gamma)
    columns = ["figure", "claim", "corpus", "model", "measured", "verdict"]
    return pd.DataFrame(rows, columns=columns).sort_values("figure", kind="stable")


def _row(figure: str, claim: str, measured: str, verdict: str) -> dict[str, str]:
    return {"figure": figure, "claim": claim, "measured": measured, "verdict": verdict}


def _perplexity(part: pd.DataFrame, method: str, gamma: float) -> pd.Series:
    """Test perplexity over words by seed; DP-SGD is the same at every gamma."""
    same = part.method == method
    if method != "dpsgd":
        same &= np.isclose(part.gamma, gamma)
    return part[same & (part.metric == "test_ppl_words")].set_index("seed").value


def _ratio(figure, claim, side, than, over, under) -> list[dict]:
    ratio = (over / under).dropna()
    if ratio.empty:
        return []
    error = "" if len(ratio) < 2 else f" ± {ratio.std():.2f}"
    return [_row(figure, claim, f"{ratio.mean():.2f}{error} times", judged(side, ratio, than))]


def _figure_2(part: pd.DataFrame, gamma: float) -> list[dict]:
    ppl = {m: _perplexity(part, m, gamma) for m in ("sgd", "dpsgd", "selective", "crt")}
    close = f"CRT's perplexity is close to non-private training's (at most {CLOSE:g} times)"
    better = "CRT's perplexity is no worse than DP-SGD's"
    selective = "CRT's perplexity is no worse than S-DP's"
    rows = _ratio("2", close, "lower", CLOSE, ppl["crt"], ppl["sgd"])
    rows += _ratio("2", better, "lower", 1.0, ppl["crt"], ppl["dpsgd"])
    rows += _ratio("2", selective, "lower", 1.0, ppl["crt"], ppl["selective"])
    last = part[part.epoch == part.epochs]
    ends = utility.curve(last[np.isclose(last.gamma, gamma) | (last.method == "dpsgd")])
    spent = ends.set_index("method").epsilon
    if {"crt", "dpsgd"} <= set(spent.index):
        told = f"{spent.crt:.2f} against {spent.dpsgd:.2f}"
        verdict = "agrees" if spent.crt < spent.dpsgd else "differs"
        rows.append(
            _row("2", f"CRT ends at a smaller ε (another promise, γ = {gamma:g})", told, verdict)
        )
    return rows


def _figure_2_models(table: pd.DataFrame, gamma: float) -> list[dict]:
    rows = []
    for corpus, part in table.groupby("corpus", sort=False):
        for method, name in (("crt", "CRT"), ("dpsgd", "DP-SGD")):
            by = {m: _perplexity(p, method, gamma) for m, p in part.groupby("model")}
            if {"gpt2", "lstm"} <= set(by):
                claim = f"{name}-GPT has a lower perplexity than {name}-LSTM"
                found = _ratio("2", claim, "lower", 1.0, by["gpt2"], by["lstm"])
                rows += [{"corpus": corpus, "model": "both"} | row for row in found]
    return rows


def _all(figure: str, claim: str, points: pd.DataFrame, *, above: bool) -> list[dict]:
    """A claim about all ``points`` (columns value, verdict): they lie above the chance band, or do
    not. Below the band counts as chance: it is no sign of a leak."""
    if points.empty:
        return []
    low, high = points.value.min(), points.value.max()
    right = int(((points.verdict == "above") == above).sum())
    told = f"{low:.2f} to {high:.2f}" if len(points) > 1 else f"{low:.2f}"
    told += f", {right} of {len(points)} {'above' if above else 'not above'} the chance band"
    verdict = "agrees" if right == len(points) else "agrees in part" if right else "differs"
    return [_row(figure, claim, told, verdict)]


def _figure_3(part: pd.DataFrame) -> list[dict]:
    if "exposure" not in set(part.metric):
        return []
    points = exposure.summary(part).rename(columns={"max_mean": "value"})
    planted = int(part[part.metric == "exposure"].item.max()) + 1
    cells = part.groupby(["method", "gamma"]).ngroups
    band = exposure.chance_band(canaries=planted, seeds=int(points.seeds.min()), points=cells)
    points["verdict"] = np.select(
        [points.value > band.high, points.value < band.low], ["above", "below"], "inside"
    )
    return _attacks(points, "3", "highest canary exposure, bits")


def _membership(part: pd.DataFrame, metric: str, figure: str) -> list[dict]:
    points = membership.summary(part).rename(columns={"mean": "value"})
    name = {"4": "membership accuracy", "5": "group membership accuracy"}[figure]
    return _attacks(points[points.metric == metric], figure, name)


def _attacks(points: pd.DataFrame, figure: str, name: str) -> list[dict]:
    of = {m: rows for m, rows in points.groupby("method")}
    none = points.iloc[:0]
    leaky, crt = of.get("sgd", none), of.get("crt", none)
    selective = of.get("selective", none)
    zero, more = leaky[leaky.gamma == 0], leaky[leaky.gamma > 0]
    rows = _all(figure, f"Non-private at γ = 0: {name} is at chance", zero, above=False)
    rows += _all(figure, f"Non-private at γ > 0: {name} is above chance", more, above=True)
    missed = selective[selective.gamma > 0]
    rows += _all(figure, f"S-DP at γ > 0: {name} is above chance", missed, above=True)
    return rows + _all(figure, f"CRT at every γ: {name} is at chance", crt, above=False)


def figure_6(
    *, epsilon: float = 1.0, gamma: float = 0.1, delta: float = 8e-5, printed: float = 0.12
) -> pd.DataFrame:
    """The number that Section 5.4 prints, under four ways to account the same training (batches of
    a tenth of the points, 100 steps; each calibrated to ``epsilon`` for adding or removing)."""
    from crtlib import confidentiality, ledger

    batches = {"sampling_probability": 0.1, "steps": 100}
    ways = {
        "Renyi accountant (Opacus), a point added or removed": ("rdp", "add_or_remove"),
        "Renyi accountant (autodp), a point added or removed": ("autodp", "add_or_remove"),
        "tight accountant, a point added or removed": ("pld", "add_or_remove"),
        "tight accountant, the secret replaced by its mask": ("pld", "replace"),
    }
    rows = []
    for name, (accountant, relation) in ways.items():
        sigma = ledger.noise_multiplier(
            epsilon=epsilon, delta=delta, accountant=accountant, **batches
        )
        value = confidentiality.bayes_at_fixed_delta(
            ledger.SampledGaussian(noise_multiplier=sigma, **batches),
            gamma=gamma,
            delta=delta,
            accountant=accountant,
            neighbouring_relation=relation,
        )
        claim = f"ε′ = {epsilon:g}, γ = {gamma:g} give ε = {printed:g}: {name}"
        verdict = "agrees" if f"{value:.2f}" == f"{printed:.2f}" else "differs"
        rows.append({"corpus": "any", "model": "any"} | _row("6", claim, f"{value:.4f}", verdict))
    return pd.DataFrame(rows)[["figure", "claim", "corpus", "model", "measured", "verdict"]]


def style(frame: pd.DataFrame) -> pd.io.formats.style.Styler:
    """The table for a page: verdicts marked by a word and a colour."""
    tint = {"agrees": "#00795a33", "differs": "#d55e0040", "agrees in part": "#b97f0033"}
    return frame.style.hide(axis="index").map(
        lambda v: f"background-color: {tint.get(v, '#8a94a030')}", subset=["verdict"]
    )
