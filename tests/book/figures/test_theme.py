"""Every figure of the book can be read on a telephone, and has a sentence in its place."""

import itertools

import matplotlib.text
import numpy as np
import pandas as pd
import pytest

from crtbook.figures import axis, crt, leakage, screening, secrets
from crtbook.figures.primer import render_slider
from crtbook.figures.theme import (
    ALT_LENGTH,
    INK,
    METHOD_STYLE,
    SPARE,
    alt_text,
    describe_figure,
    make_panels,
    note_provenance,
    render_svg,
    set_plain_ticks,
)
from tests.book.contrast import contrast

PHONE = 345
"""CSS pixels that a figure gets on a telephone 390 px wide."""


def attack_rows():
    rows = [
        {"model": m, "method": k, "gamma": g, "mean": 5 + 20 * g * (k == "sgd"), "std": 1.0,
         "seeds": 3, "low": 2.0, "high": 8.0}
        for m in ("lstm", "gpt2") for k in METHOD_STYLE for g in (0.0, 0.1, 0.5)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def attack():
    return crt.plot_attack(
        attack_rows(), ylabel="bits", nothing=4.2, ceiling=("the most", lambda _: 19.9)
    )


def utility():
    rows = [
        {"corpus": "schema_guided", "model": "gpt2_public", "method": k, "gamma": 0.1, "epoch": e,
         "epsilon": e if k in ("crt", "dpsgd") else np.inf, "ppl_mean": 9 / e + i, "ppl_std": 0.1,
         "seeds": 3}
        for i, k in enumerate(METHOD_STYLE) for e in (1, 2, 3)
    ]  # fmt: skip
    return crt.plot_utility_by_epsilon(pd.DataFrame(rows))


def amplified():
    rows = [(r, t, g, t * g) for r in ("replace", "x") for t in (1, 2, 4) for g in (0.1, 0.4)]
    return crt.plot_epsilon_by_gamma(
        pd.DataFrame(rows, columns=["relation", "target", "gamma", "epsilon"])
    )


def through_training():
    rng = np.random.default_rng(0)
    rows = [(m, e, v) for e in (1, 5, 20) for m in ("ppl", "train_ppl") for v in (9.0,)]
    rows += [("unique_length", e, v) for e in (5, 20) for v in rng.integers(1, 40, 9)]
    rows += [("unique_perplexity", e, v) for e in (5, 20) for v in rng.uniform(1, 9, 9)]
    table = pd.DataFrame(rows, columns=["metric", "epoch", "value"]).assign(seed=0)
    return leakage.plot_leakage_by_epoch(table)


def hardening():
    t = [np.inf, 1.5, 3.0, 8.0]
    train = pd.DataFrame({"threshold": t, "unique": [9, 1, 4, 8]})
    heldout = pd.DataFrame({"threshold": t, "accuracy": [0.4, 0.1, 0.2, 0.3]})
    return leakage.plot_hardening(train, heldout)


def steps():
    rows = [
        {"model": m, "engine": e, "ratio_median": 2.0 + i, "ratio_min": 1.5}
        for m in axis.SHAPES for i, e in enumerate(axis.STEP_STYLE)
    ]  # fmt: skip
    return axis.plot_step_times(pd.DataFrame(rows))


def protected():
    rows = [
        {"targets": t, "noisy": n, "seed": s, "scale": c, "kept": 0.5, "test": 4.0 + s / 9,
         "needed": 2.0}
        for t in ("sqrt", "linear") for n in (False, True) for s in (0, 1) for c in (2.0, 9, np.inf)
    ]  # fmt: skip
    plans = [{"targets": t, "noisy": True, "seed": s, "scale": c, "kept": 0.4, "needed": 3.0}
             for t in secrets.RULE_STYLE for s in (0, 1) for c in (1.0, 2.0, 9.0)]  # fmt: skip
    return secrets.plot_plans_by_constant(pd.DataFrame(rows), pd.DataFrame(plans))


def game():
    rows = [
        {"learns": k, "noise": n, "rate": 0.3, "low": 0.2, "high": 0.4, "promised": 0.4,
         "accounted": 0.5}
        for k in ("bias", "lstm") for n in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    return secrets.plot_games(pd.DataFrame(rows))


def extraction():
    rows = [
        {"hidden": h, "noise_multiplier": n, "loss_mean": 4.0, "memorised_mean": 0.5,
         "generalised_mean": 0.1, "loss_std": 0.1, "memorised_std": 0.1, "generalised_std": 0.1}
        for h in (64, 128) for n in (0.0, 0.1, 0.5)
    ]  # fmt: skip
    return secrets.plot_extraction(pd.DataFrame(rows))


def recalls():
    rows = [(c, p, k, 50, 40 + i) for c in ("customersim", "multiwoz")
            for i, p in enumerate(screening.POLICY_STYLE) for k in ("name", "all")]  # fmt: skip
    names = ["corpus", "policy", "kind", "secrets", "caught"]
    return screening.plot_recall(pd.DataFrame(rows, columns=names))


def certified():
    return screening.plot_certified_miss_rate(target=8e-5)


ALL = [attack, utility, amplified, through_training, hardening, steps, protected, game, extraction,
       recalls, certified]  # fmt: skip


@pytest.mark.parametrize("make", ALL, ids=lambda f: f.__name__)
def test_a_figure_reads_on_a_phone_and_has_its_words(make):
    fig = make()
    fig.draw_without_rendering()
    texts = [t for t in fig.findobj(matplotlib.text.Text) if t.get_visible() and t.get_text()]
    pixels = PHONE / fig.get_figwidth() / 72
    small = {t.get_text(): t.get_fontsize() * pixels for t in texts}
    assert min(small.values()) > 9.99, min(small.items(), key=lambda item: item[1])
    parts = [part for ax in fig.axes for part in (ax.xaxis, ax.yaxis, *ax.texts)]
    boxes = [part.get_tightbbox() for part in (*parts, *fig.legends, *fig.texts)]
    cut = [b for b in boxes if b is not None and (b.x0 < -3 or b.x1 > fig.bbox.x1 + 3)]
    assert not cut, "nothing is cut off at the edges of the figure"
    words = alt_text(fig)
    assert 40 < len(words) <= ALT_LENGTH and words.endswith((".", "…")) and "_" not in words


def close():
    """One panel, three lines that end at almost the same place."""
    rows = attack_rows().query("model == 'lstm' and method in ['sgd', 'dpsgd', 'crt']")
    return crt.plot_attack(rows.assign(mean=5 + rows.gamma / 99), ylabel="bits", nothing=4.2)


@pytest.mark.parametrize(("make", "names"), [(attack, len(METHOD_STYLE)), (close, 3)])
def test_names_at_the_ends_do_not_touch(make, names):
    fig = make()
    fig.draw_without_rendering()
    for ax in fig.axes:
        extents = (matplotlib.text.Text.get_window_extent(t) for t in ax.texts)
        boxes = sorted(extents, key=lambda b: b.y0)
        assert len(boxes) == names
        gaps = [b.y0 - a.y1 for a, b in itertools.pairwise(boxes)]
        assert min(gaps) >= 0, gaps
        assert max(b.x1 for b in boxes) <= fig.bbox.x1


def test_colours_can_be_seen_and_names_read():
    looks = [look.color for look in METHOD_STYLE.values()] + [color for color, *_ in SPARE]
    assert len(set(looks)) == len(looks) and min(map(contrast, looks)) >= 3
    assert contrast(INK) >= 4.5
    assert contrast("#000000") == pytest.approx(21)


def test_a_figure_that_fails_is_closed():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    with pytest.raises(RuntimeError), make_panels(["a"]):
        raise RuntimeError
    assert plt.get_fignums() == before


def test_a_slider_shows_each_frame_alone_and_escapes_what_it_says():
    def bars(ax, k):
        ax.bar([0, 1], [k, k])

    positions = [(str(k), f"<i>{k}</i>", k) for k in range(3)]
    options = {"active": 1, "name": "k", "alt": 'a "b"'}
    page = render_slider(positions, bars, **options)
    assert [page.count(f'data-frame="{k}" style="display:none"') for k in range(3)] == [2, 0, 2]
    assert page.count('data-frame="1"') == 2
    assert "<i>" not in page and 'aria-label="a &#34;b&#34;"' in page
    assert page == render_slider(positions, bars, **options)


def test_a_notebook_shows_a_figure_as_svg_with_its_sentence():
    with make_panels(["one"]) as (fig, (ax,)):
        ax.plot([0, 1], [0, 1 / 3])
        ax.set_xlabel("δ = 0.00008")
        describe_figure(fig, 'A line "rises" & ends.')
    drawn = render_svg(fig)
    assert drawn.startswith('<svg role="img" aria-label="A line &quot;rises&quot; &amp; ends."')
    assert ">one</text>" in drawn and ">δ = 0.00008</text>" in drawn  # text as text, whole
    assert "<style" not in drawn and "<metadata" not in drawn
    assert callable(fig._ipython_display_)


def test_how_a_figure_was_made_is_no_part_of_the_drawing():
    with make_panels(["one"]) as (fig, _):
        note_provenance(fig, "laptop profile, 5 seeds < 20")
    drawn = render_svg(fig)
    assert "<title>laptop profile, 5 seeds &lt; 20</title>" in drawn
    assert "laptop" not in drawn.replace("<title>laptop", "")


def test_a_narrow_logarithmic_axis_has_ticks_all_the_same():
    with make_panels(["one"], height=2.0) as (_, axes):
        axes[0].set(yscale="log", ylim=(1.32, 1.47))
        set_plain_ticks(axes[0].yaxis)
        assert len(axes[0].get_yticks()) >= 2
