"""Figures and tables of the leakage chapters, in the theme of :mod:`crtbook.figures`.

>>> rows = [("ppl", 1, 0, 9.0), ("train_ppl", 1, 0, 8.0),
...         ("unique_length", 1, 0, 4.0), ("unique_perplexity", 1, 0, 2.5)]
>>> table = pd.DataFrame(rows, columns=["metric", "epoch", "item", "value"]).assign(seed=0)
>>> [ax.get_title("left")[:3] for ax in plot_leakage_by_epoch(table).axes]
['(a)', '(b)', '(c)', '']
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pandas import DataFrame
from pandas.io.formats.style import Styler

from crtbook.figures.tables import format_number, render_table
from crtbook.figures.theme import (
    LOOKS,
    METHOD_STYLE,
    MUTED,
    Style,
    describe_figure,
    make_panels,
    set_plain_ticks,
)
from crtlib.attacks.leakage import LeakageReport

RAW, SAFE = METHOD_STYLE["sgd"].color, METHOD_STYLE["dpsgd"].color
SHADES = sns.color_palette("YlOrBr", as_cmap=True)
"""Colours of epochs, from light to dark, from a quarter of the range on: lighter is hard to see."""


def plot_leakage_by_epoch(table: DataFrame) -> Figure:
    """Inan et al., Figure 5: a model through training, from the long table of a run with details.

    (a) perplexity on training and validation text; (b) how many unique sequences have at least a
    given number of tokens, one line per epoch; (c) the perplexity of each of them, at ten epochs,
    on a true axis, with the paper's threshold of 3. (a) and (b) are means over seeds, (c) shows all
    seeds.
    """
    rows_of_metric = {str(name): rows for name, rows in table.groupby("metric")}
    epochs = sorted(rows_of_metric["train_ppl"].epoch.unique())
    seeds = table.seed.nunique()
    low, high = float(min(epochs)), float(max(epochs))
    shaded: Style = {
        "hue": "epoch", "palette": SHADES, "legend": False,
        "hue_norm": Normalize(low - max(high - low, 1.0) / 3, high),
    }  # fmt: skip
    lengths, unique = (
        rows_of_metric.get(f"unique_{name}", table.iloc[:0]) for name in ("length", "perplexity")
    )
    titles = ["(a) perplexity", "(b) unique sequences by their least length",
              "(c) perplexities of the unique sequences"]  # fmt: skip
    with make_panels(titles, height=2.8, room=0.2) as (fig, panels):
        perplexity_axes, length_axes, sequence_axes = panels
        for name, label, line, color in (
            ("train_ppl", "training", "-", RAW), ("ppl", "validation", "--", SAFE)
        ):  # fmt: skip
            mean = rows_of_metric[name].groupby("epoch").value.mean()
            perplexity_axes.plot(mean.index, mean, color=color, linestyle=line, label=label)
        perplexity_axes.set(xlabel="epoch", ylabel="perplexity", yscale="log")
        set_plain_ticks(perplexity_axes.yaxis)
        if len(lengths):
            sns.ecdfplot(
                lengths.assign(weight=1 / seeds), x="value", weights="weight", stat="count",
                complementary=True, log_scale=(True, False), ax=length_axes, **shaded,
            )  # fmt: skip
            set_plain_ticks(length_axes.xaxis, apart=1.6)
        length_axes.set(xlabel="tokens", ylabel="unique sequences")
        colors = ScalarMappable(shaded["hue_norm"], SHADES)
        color_bar = fig.colorbar(colors, ax=length_axes, label="epoch", aspect=14)
        if len(epochs) > 1:
            color_bar.ax.set_ylim(low, high)
        color_bar.ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        chosen = np.take(epochs, np.unique(np.linspace(0, len(epochs) - 1, 10).astype(int)))
        if len(shown_epochs := unique[unique.epoch.isin(chosen)]):
            sns.stripplot(
                shown_epochs, x="epoch", y="value", ax=sequence_axes, native_scale=True, size=2.6,
                alpha=0.5, jitter=0.3, log_scale=(False, True), **shaded,
            )  # fmt: skip
            middle = shown_epochs.groupby("epoch").value.median()
            sequence_axes.plot(middle.index, middle, "_", color="black", label="median",
                               markersize=14, markeredgewidth=1.6,
                               markeredgecolor="black")  # fmt: skip
            set_plain_ticks(sequence_axes.yaxis, apart=1.5)
        sequence_axes.axhline(3, color=MUTED, linestyle=":", linewidth=1.2, label="threshold 3")
        sequence_axes.set(xlabel="epoch", ylabel="perplexity")
        sequence_axes.legend()
        for ax in (perplexity_axes, sequence_axes):
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        end = {name: rows[rows.epoch == high].value for name, rows in rows_of_metric.items()}
        last_sequences = unique[unique.epoch == high].value
        share_under_3 = "."
        if len(last_sequences):
            share_under_3 = f", {(last_sequences < 3).mean():.0%} of perplexity under 3."
        describe_figure(fig, f"A model through {high:g} epochs: at the end perplexity "
                        f"{end['train_ppl'].mean():.3g} on training and {end['ppl'].mean():.3g} on "
                        f"validation text, and {len(last_sequences) / seeds:,.0f} unique sequences"
                        f"{share_under_3}")  # fmt: skip
    return fig


def plot_hardening(train: DataFrame, heldout: DataFrame) -> Figure:
    """What a threshold hides and what it costs: unique sequences that are left on training text,
    and accuracy on held-out text, against the perplexity above which no answer is given. Both
    tables are from :func:`crtbook.mitigations.harden_interface`; the values without a threshold are
    horizontal lines.
    """
    titles = ["what is left", "what it costs"]
    finite = np.isfinite(train.threshold)
    with make_panels(titles, height=2.3, room=0.3, sharex=True) as (fig, axes):
        for ax, values, label, color in zip(
            axes, (train["unique"], 100 * heldout.accuracy),
            ("unique sequences", "top-1 accuracy, %"), (RAW, SAFE), strict=True,
        ):  # fmt: skip
            ax.plot(train.threshold[finite], values[finite], color=color, marker="o")
            ax.axhline(values[~finite].iloc[0], linewidth=1.2, color=MUTED, linestyle="--",
                       label="no threshold")  # fmt: skip
            ax.set(ylabel=label, ylim=(0, None))
            ax.legend(loc="lower right")
        ax.set(xscale="log", xlabel="no answer where the perplexity is above")
        set_plain_ticks(ax.xaxis, apart=1.45)
        tight = train.threshold[finite].idxmin()
        describe_figure(fig, "Unique sequences left and accuracy against a threshold on "
                        f"perplexity: at {train.threshold[tight]:g}, {train['unique'][tight]} are "
                        f"left at an accuracy of {heldout.accuracy[tight]:.1%}.")  # fmt: skip
    return fig


# --------------------------------------------------------------------------- tables
def mean_over_seeds(table: DataFrame, names: Mapping[str, str], by: Sequence[str]) -> DataFrame:
    """Mean over seeds (± standard deviation) of some metrics, as text; "–" where there is none.

    ``names`` maps metrics to column titles; rows are the groups ``by``, in their first order.
    """
    means = {
        group: {
            title: _format_mean(rows.value[rows.metric == metric], rows.seed.nunique())
            for metric, title in names.items()
        }
        for group, rows in table.groupby(list(by), sort=False)
    }
    return DataFrame(means).T.rename_axis(list(by)).reset_index()


def tabulate_leakage_by_model(table: DataFrame) -> DataFrame:
    """Inan et al., Table 2, from the runs of the leakage study: one row for each model. A DP row is
    a snapshot, named by the start of its weights and its epsilon."""
    spent = table[table.metric == "epsilon"].groupby("epoch").value.max()
    start = {"random": "RanIni", "public": "PubIni"}
    model_names = [
        f"DP-LM {start[i]} ε = {spent[e]:.2f}" if m == "dpsgd" else
        {"sgd": "private LM", "public": "public LM"}[m]
        for m, i, e in zip(table.method, table.init, table.epoch, strict=True)
    ]  # fmt: skip
    labelled = _with_percent(table.assign(model=model_names))
    order = ["private LM", *(r for r in dict.fromkeys(model_names) if "RanIni" in r), "public LM"]
    order += [r for r in dict.fromkeys(model_names) if "PubIni" in r]
    return (
        mean_over_seeds(labelled, LOOKS["table_2"], ["model"])
        .set_index("model")
        .loc[order]
        .reset_index()
    )


def _with_percent(table: DataFrame) -> DataFrame:
    """The table with the accuracies in percent as well, as the paper prints them."""
    accuracies = table[table.metric.isin(["acc", "acc_words"])]
    accuracies = accuracies.assign(
        metric=accuracies.metric + "_percent", value=100 * accuracies.value
    )
    return pd.concat([table, accuracies], ignore_index=True)


def tabulate_models(table: DataFrame, rows: Mapping[str, str]) -> DataFrame:
    """The models of one training side by side; ``rows`` maps keys of runs to their names."""
    labelled = _with_percent(table).assign(model=lambda t: t.run.map(rows))
    return mean_over_seeds(labelled, LOOKS["one_table"], ["model"])


def _format_mean(values: Any, seeds: int) -> str:
    """The mean of the values of so many seeds, with their standard deviation, and how many seeds
    have none."""
    numbers = np.asarray(values, dtype=float)
    if not len(numbers):
        return "–"
    integral = (numbers == numbers.round()).all() and seeds == 1
    digits = 0 if integral or numbers.mean() >= 1000 else 1 if numbers.mean() >= 10 else 2
    spread = f" ± {numbers.std(ddof=1):,.{digits}f}" if len(numbers) > 1 else ""
    partial = f" ({len(numbers)} of {seeds})" if len(numbers) < seeds else ""
    return f"{numbers.mean():,.{digits}f}{spread}{partial}"


def style_table(table: DataFrame, caption: str) -> Styler:
    """A table for a page: its first column names the rows."""
    return render_table(table.set_index(table.columns[0]), caption)


def tabulate_sequences(
    report: LeakageReport, decode: Callable[[Sequence[int]], str], rows: int | None = None
) -> DataFrame:
    """Unique sequences in clear, the most surprising first, in the form of Tables 3 to 5. Use it
    only for the text of simulated people."""
    unique = report.unique().iloc[:rows]
    pairs = zip(unique.perplexities, unique.public_perplexities, strict=True)
    best = [max(zip(*p, strict=True), key=lambda v: v[1] / v[0]) for p in pairs]
    firsts = zip(unique.contexts, unique.tokens, strict=True)
    return DataFrame(
        {
            "sequence": [_format_sequence(report, decode, row[0], len(w)) for row, w in firsts],
            "total # in D": unique.total_in_d.to_numpy(),
            "user # in D": unique.users_in_d.to_numpy(),
            "context length": [min(n for _, n in row) for row in unique.contexts],
            "PP model": [f"{a:.2f}" for a, _ in best],
            "PP public": [format_number(b) for _, b in best],
            "ratio": [format_number(r) for r in unique.ratio],
        }
    )


def _format_sequence(
    report: LeakageReport,
    decode: Callable[[Sequence[int]], str],
    place: tuple[int, int],
    length: int,
) -> str:
    """A sequence in whole words: what it lacks of its first and last word is in brackets.

    Args:
        report: Holds the documents.
        decode: Makes text from tokens.
        place: The number of its document, and its first token there.
        length: Its number of tokens.
    """
    document, start = place
    tokens = report.documents[document].tokens
    end = start + length
    before, text, after = (decode(w) for w in (tokens[:start], tokens[start:end], tokens[end:]))
    head = re.split(r"\W", before)[-1] if text[:1].isalnum() else ""
    tail = re.split(r"\W", after)[0] if text[-1:].isalnum() else ""
    sequence = (f"[{head}]" if head else "") + text + (f"[{tail}]" if tail else "")
    return sequence.replace("\n", " ⏎ ")


Shown = tuple[LeakageReport, Callable[[Sequence[int]], str]]
"""A report, and a function that makes text from its tokens."""


def tabulate_snapshot(reports: Mapping[tuple[str, int], Shown]) -> DataFrame:
    """One of Tables 3 to 5: the unique sequences of each model with one epsilon, by its name and
    seed. A model without any is left out (:func:`list_models_without_sequences`)."""
    tables = [
        tabulate_sequences(*report).assign(model=model, seed=seed)
        for (model, seed), report in reports.items()
    ]
    return pd.concat(tables).set_index(["model", "seed", "sequence"])


def list_models_without_sequences(reports: Mapping[tuple[str, int], Shown]) -> str:
    """The models with one epsilon that have no unique sequence."""
    none = [
        f"{name} of seed {seed}"
        for (name, seed), (report, _) in reports.items()
        if report.unique().empty
    ]
    return f"Without any: {', '.join(none)}." if none else "Every model has some."


def tabulate_beside_the_paper(
    reports: Mapping[float, Mapping[tuple[str, int], Shown]],
) -> DataFrame:
    """What Tables 3 to 5 hold, with the paper's row and ours below each other. ``reports`` has the
    models of :func:`tabulate_snapshot` by epsilon, at most three."""
    counts = {
        start: [
            _count_unique_sequences(
                [report for (name, _), report in models.items() if name == start]
            )
            for models in reports.values()
        ]
        for start in dict.fromkeys(name for models in reports.values() for name, _ in models)
    }
    rows = {}
    for row, paper in LOOKS["paper"].items():
        rows[row, "paper, RanIni"] = paper[-len(reports) :]
        for start, counts_by_epsilon in counts.items():
            rows[row, f"ours, {start}"] = [count[row] for count in counts_by_epsilon]
    three = [f"Table {k}, ε = {paper:g}; ours" for k, paper in enumerate(LOOKS["paper_epsilon"], 3)]
    columns = [f"{t} {e:.2f}" for t, e in zip(three[-len(reports) :], reports, strict=True)]
    index = pd.MultiIndex.from_tuples(rows)
    return DataFrame(list(rows.values()), index=index, columns=columns)


def _count_unique_sequences(models: Sequence[Shown]) -> dict[str, str]:
    """The rows of the paper for the seeds of one model: each seed's number, or all together."""
    unique = [report.unique() for report, _ in models]
    texts = [
        decode(tokens)
        for (_, decode), sequences in zip(models, unique, strict=True)
        for tokens in sequences.tokens
    ]
    lengths = [n for sequences in unique for row in sequences.contexts for _, n in row]
    marked = sum(bool(re.search(r"[^\w\s'’]", text)) for text in texts)
    of_texts = {
        "with punctuation": f"{marked} of {len(texts)}",
        "context length": f"{min(lengths, default=0)} to {max(lengths, default=0)}",
        "ε_l, owners left out": format_number(pd.concat(unique).ratio.max()),
    }
    counts = {"unique sequences": ", ".join(str(len(sequences)) for sequences in unique)}
    return counts | (of_texts if texts else dict.fromkeys(of_texts, "–"))
