"""CRT's figures draw what their tables say, for methods that the library has never heard of too."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.text import Text

from crtbook import tables, utility
from crtbook.figures import crt
from crtbook.figures.theme import METHOD_STYLE, SPARE, alt_text
from crtlib.attacks import exposure, membership, membership_measures
from crtlib.intervals import ChanceBand


def summary(methods=("sgd", "crt", "dpsgd"), models=("lstm", "gpt2"), **columns):
    return pd.DataFrame(
        {"metric": "mia_accuracy", "model": model, "method": method, "gamma": gamma}
        | {"mean": 0.5 + gamma / 4 * (method not in ("crt", "dpsgd")), "std": 0.01, "seeds": 3}
        | {"low": 0.47 - gamma / 10 * (method == "sgd"), "high": 0.53}
        | columns
        for model in models
        for method in methods
        for gamma in (0.0, 0.1, 0.5)
    )


def named(ax):
    return {t.get_text().replace("\n", " ") for t in ax.texts}


def drawn(ax, color):
    """The y values of the long line of this colour."""
    lines = [line for line in ax.lines if line.get_color() == color and len(line.get_ydata()) > 1]
    return np.asarray(lines[0].get_ydata(), dtype=float)


def test_membership_draws_what_the_summary_says():
    table = summary()
    fig = crt.plot_membership(table, "mia_accuracy", ylabel="accuracy")
    assert [ax.get_title("left") for ax in fig.axes] == ["LSTM", "GPT-2 (from scratch)"]
    ax = fig.axes[0]
    assert named(ax) == {"non-private, masked", "CRT", "DP-SGD"}
    assert np.allclose(drawn(ax, METHOD_STYLE["sgd"].color), [0.5, 0.525, 0.625])
    corners = ax.collections[0].get_paths()[0].vertices
    assert np.isclose(corners[:, 1].min(), 0.42) and np.isclose(corners[:, 1].max(), 0.53)
    most = next(line for line in ax.lines if line.get_label() == "all missed secrets named")
    assert np.isclose(most.get_ydata()[-1], membership_measures.best_possible_accuracy(0.5))
    with pytest.raises(ValueError, match="metric='none': must be one of mia_accuracy"):
        crt.plot_membership(table, "none", ylabel="accuracy")


def test_a_strangers_method_is_drawn_under_its_label():
    table = summary(("crt", "mine", "yours"), method_label="?")
    table["method_label"] = table.method.map({"crt": "ignored", "mine": "My own method"})
    fig = crt.plot_attack(table, ylabel="bits")
    # A known method keeps its label; one without a label keeps its name.
    assert named(fig.axes[0]) == {"CRT", "My own method", "yours"}
    assert np.allclose(drawn(fig.axes[0], SPARE[0][0]), [0.5, 0.525, 0.625])
    assert "My own method 0.625" in alt_text(fig)


def test_no_internal_name_reaches_the_reader():
    fig = crt.plot_attack(summary(tuple(METHOD_STYLE)), ylabel="bits")
    words = {t.get_text() for ax in fig.axes for t in ax.texts} | {alt_text(fig)}
    words |= {t.get_text() for legend in fig.legends for t in legend.get_texts()}
    assert not [w for w in words for name in METHOD_STYLE if "_" in name and name in w]


def test_each_seed_is_a_dot_and_no_bar_passes_the_ceiling():
    """Three seeds at 19.9, 19.9 and 12 bits: mean and bars would reach beyond what is possible."""
    values = [19.93, 19.93, 12.0]
    runs = pd.DataFrame(
        {"metric": "exposure", "model": "lstm", "method": m, "gamma": g, "seed": s, "value": v - g,
         "item": 0, "epoch": 0}
        for m, g in (("sgd", 0.1), ("sgd", 0.5), ("dpsgd", 0.0))
        for s, v in enumerate(values)
    )  # fmt: skip
    words = runs.assign(metric="test_ppl_words", value=2.0)
    table = crt.tabulate_exposures(pd.concat([runs, words]))
    fig = crt.plot_exposure_by_gamma(table, ChanceBand(4.2, 2.0, 7.6, 0.95), runs)
    ax = fig.axes[0]
    marks = [c for c in ax.collections if isinstance(c, PathCollection)]
    dots = np.concatenate([c.get_offsets()[:, 1] for c in marks])
    # Two gammas of SGD and, once, DP-SGD, which knows none.
    expected = [v - g for v in values for g in (0.0, 0.1, 0.5)]
    assert sorted(dots) == pytest.approx(sorted(expected))
    assert not ax.containers, "no error bars where the seeds are shown"
    plain = crt.plot_exposure_by_gamma(table, ChanceBand(4.2, 2.0, 7.6, 0.95))
    assert plain.axes[0].containers, "bars where they are not"


def test_bars_are_the_interval_of_the_mean():
    fig = crt.plot_attack(summary(("sgd",), ("lstm",)), ylabel="a")
    bar = fig.axes[0].containers[0].lines[2][0].get_segments()[0]
    assert (bar[1, 1] - bar[0, 1]) / 2 == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-3)


def test_figure_2_keeps_apart_what_is_promised_and_what_is_not():
    curves = pd.DataFrame(
        {"corpus": "customersim", "model": "lstm", "method": m, "gamma": 0.1, "epoch": e,
         "epsilon": np.inf if m == "sgd" else e / 2, "ppl_mean": 9 / e, "ppl_std": 0.1,
         "acc_mean": 0.1 * e, "acc_std": 0.01, "seeds": 3}
        for m in ("sgd", "crt") for e in (1, 2, 3)
    )  # fmt: skip
    for value in ("ppl", "acc"):
        fig = crt.plot_utility_by_epsilon(curves, value=value)
        assert named(fig.axes[0]) == {"non-private, masked (no ε)", "CRT"}
        assert "CRT 3 at ε = 1.5" in alt_text(fig) or "CRT 0.3 at ε = 1.5" in alt_text(fig)


def amplified():
    relations, gammas = ("add_or_remove", "replace"), (0.1, 0.2)
    rows = [(r, t, g, t * g) for r in relations for t in (1, 2) for g in gammas]
    return pd.DataFrame(rows, columns=["relation", "target", "gamma", "epsilon"])


def test_a_search_draws_the_best_trial_of_each_number_of_epochs():
    trials = pd.DataFrame(
        {"corpus": "customersim", "model": "lstm", "method": method, "metric": metric,
         "run": f"{method} {epochs} {draw}", "epochs": epochs, "epoch": epoch,
         "value": value + draw + (epoch == epochs)}  # it had been better before
        for method, values in {"sgd": (3, 2, 2), "crt": (6, 4, 5)}.items()
        for epochs, value in zip((12, 24, 48), values, strict=True)
        for draw in (0, 1)
        for metric in ("valid_ppl_words", "valid_ppl")
        for epoch in (epochs - 1, epochs)
        if (metric, epoch) != ("valid_ppl", epochs)
    )  # fmt: skip
    fig = crt.plot_perplexity_by_epochs(trials)
    (ax,) = fig.axes
    assert np.allclose(drawn(ax, METHOD_STYLE["crt"].color), [6, 4, 5])
    assert np.allclose(drawn(ax, METHOD_STYLE["sgd"].color), [3, 2, 2])
    assert [len(dots.get_offsets()) for dots in ax.collections] == [6, 6]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["12", "24", "48"]
    assert "CRT 4 after 24" in alt_text(fig) and "non-private, masked 2 after 24" in alt_text(fig)


def test_figure_6_has_a_panel_for_each_relation():
    fig = crt.plot_epsilon_by_gamma(amplified())
    assert [ax.get_title("left") for ax in fig.axes] == ["add or remove", "replace"]
    assert all(named(ax) == {"ε′ = 1", "ε′ = 2"} for ax in fig.axes)
    assert "_" not in alt_text(fig)


def of_crt(**chosen):
    table = tables.load_recorded("crt_laptop")
    table = table[table.corpus == "customersim"]
    for name, values in chosen.items():
        table = table[table[name].isin(values)]
    return table


DRAWS = {
    "2": lambda runs: crt.plot_final_perplexity(utility.utility_at_end(runs)),
    "3": lambda runs: crt.plot_attack(exposure.summarise_luckiest_canary(runs), ylabel="bits"),
    "4": lambda runs: crt.plot_membership(
        membership.summarise_membership(runs), "mia_accuracy", ylabel="accuracy", runs=runs
    ),
}


@pytest.mark.parametrize("figure", DRAWS)
@pytest.mark.parametrize(
    "chosen",
    [
        {"method": ["crt"], "model": ["lstm"], "gamma": [0.1], "seed": [0]},
        {"method": ["sgd", "crt", "dpsgd"], "model": ["lstm"], "gamma": [0.0, 0.1], "seed": [0]},
        {"method": ["selective", "crt"], "gamma": [0.0, 0.1, 0.5], "seed": [0, 1]},
    ],
)
def test_a_table_that_is_half_recorded_is_drawn_as_far_as_it_goes(figure, chosen):
    drawn = DRAWS[figure](of_crt(**chosen))
    said = [text.get_text() for text in drawn.findobj(Text)]
    assert any(text.startswith("CRT") for text in said)
    counted = utility.count_recorded_seeds(of_crt(**chosen), planned=["sgd", "crt"])
    assert set(chosen["method"]) <= set(counted.index.get_level_values("method"))


def test_of_no_table_every_planned_method_has_a_row():
    assert utility.count_recorded_seeds(None, planned=["sgd"]).index.tolist() == ["sgd"]


def test_figure_2_shows_s_dp_with_a_perfect_policy_and_both_relations():
    ends = utility.utility_at_end(of_crt(model=["lstm"])).set_index(["method", "relation"])
    assert ends.gamma["selective"].tolist() == [0.0, 0.0]
    assert 100 < ends.epsilon["selective", "replace"] < float("inf")
    assert ends.epsilon["crt", "add_or_remove"] < ends.epsilon["crt", "replace"]
    assert ends.epsilon["sgd", "replace"] == float("inf")
