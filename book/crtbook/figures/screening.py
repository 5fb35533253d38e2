"""Figures of screening: a dialogue and its secrets, Algorithm 1, recall, and what labels certify.

>>> from crtlib.screening import regex_policies
>>> from crtlib.text.records import Point
>>> point = Point("0", "u", "USR: I am Ada Lovelace.", (Secret("name", 10, 22),))
>>> truth = regex_policies.oracle_policy
>>> html = render_screening_steps([point, point], truth, truth)
>>> html.count('class="rd-m rd-secret"'), html.count('class="rd-m rd-repeat"')
(3, 2)
>>> said = Turn("USR", "I am Ada.", (Secret("name", 5, 8),))
>>> html = render_redacted_dialogue(Dialogue("0", "u", (said,)), [()])
>>> html.count('class="rd-m rd-missed"')  # in the panel of the imperfect policy, and in the key
2
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from crtbook.figures.primer import render_slider
from crtbook.figures.tables import format_number
from crtbook.figures.theme import (
    CARD,
    INK,
    LOOKS,
    MUTED,
    corpus_name,
    describe_figure,
    draw_shared_legend,
    group_rows,
    label_rows,
    make_panels,
    render_page,
)
from crtlib.intervals import clopper_pearson, clopper_pearson_upper, labels_needed
from crtlib.screening import deduplication
from crtlib.screening.policy import Policy
from crtlib.screening.preparation import prepare_points
from crtlib.screening.redaction import redact
from crtlib.text.records import MASK, Dialogue, Point, Secret, Turn

POLICY_STYLE = LOOKS["policies"]
"""Label, colour and marker of a policy."""


# --------------------------------------------------------------------------- marked text
@dataclass(frozen=True)
class Piece:
    """A piece of a text. A piece with a ``style`` is marked, and ``title`` says what it is."""

    text: str
    style: str = ""
    title: str = ""


def cut_at_marks(text: str, marks: Sequence[tuple[int, int, Piece]]) -> list[Piece]:
    """``text`` cut at the marks ``(start, end, piece)``."""
    pieces, position = [], 0
    for start, end, piece in sorted(marks, key=lambda mark: mark[:2]):
        pieces += [Piece(text[position:start]), piece]
        position = end
    return [p for p in (*pieces, Piece(text[position:])) if p.text]


def _mark_secrets(turn: Turn, flags: Sequence[Secret] | None) -> list[Piece]:
    """A turn with its secrets marked, or, given ``flags``, redacted with the errors marked."""

    def overlapped(span: Secret, others: Sequence[Secret]) -> bool:
        return any(span.start < other.end and other.start < span.end for other in others)

    def mark_secret(span: Secret, style: str, title: str = "") -> tuple[int, int, Piece]:
        piece = Piece(turn.text[span.start : span.end], style, span.kind + title)
        return span.start, span.end, piece

    if flags is None:
        return cut_at_marks(turn.text, [mark_secret(span, "secret") for span in turn.secrets])
    wrong = Piece(MASK, "wrong", "no secret: a false positive")
    marks = [
        (
            flag.start,
            flag.end,
            Piece(MASK, "caught", flag.kind) if overlapped(flag, turn.secrets) else wrong,
        )
        for flag in flags
    ]
    marks += [mark_secret(span, "missed", ": a false negative") for span in turn.secrets
              if not overlapped(span, flags)]  # fmt: skip
    return cut_at_marks(turn.text, marks)


def render_redacted_dialogue(
    dialogue: Dialogue, flagged: Sequence[Sequence[Secret]], *, caption: str = ""
) -> str:
    """Figure 1 of CRT as HTML: a dialogue, redacted, and redacted by an imperfect policy.

    ``flagged`` holds the imperfect policy's spans in each turn's text. The dialogue is shown in
    clear: use only simulated dialogues, or ones whose customer has agreed.
    """
    turns = dialogue.turns
    spans: dict[str, Sequence[Sequence[Secret] | None]] = {
        "The dialogue and its secrets": [None] * len(turns),
        "Redacted perfectly": [turn.secrets for turn in turns],
        "Redacted imperfectly": flagged,
    }
    columns = {
        title: [_mark_secrets(turn, flags) for turn, flags in zip(turns, labels, strict=True)]
        for title, labels in spans.items()
    }
    styles = [p.style for turn in columns["Redacted imperfectly"] for p in turn]
    missed, wrong = styles.count("missed"), styles.count("wrong")
    alt = "A dialogue with its secrets marked, redacted perfectly, and by a policy with errors: "
    alt += f"{missed} missed, {wrong} masked that are not secrets."
    texts = {"key": LOOKS["figure_1"], "caption": caption, "alt": alt}
    return render_page("figure_1.html.j2", turns=turns, panels=columns, **texts)


def _mark_masks(point: Point, secret: str, mask: str) -> list[Piece]:
    """A point with its labelled secrets in the style ``secret``, its masks in ``mask``."""
    places = [(s.start, s.end, secret) for s in point.secrets]
    places += [(*m.span(), mask) for m in re.finditer(re.escape(MASK), point.text)]
    marks = [(start, end, Piece(point.text[start:end], style)) for start, end, style in places]
    return cut_at_marks(point.text, marks)


def render_screening_steps(
    points: Sequence[Point], pi: Policy, pi_c: Policy, *, caption: str = ""
) -> str:
    """Figure 7 of CRT as HTML: what each line of Algorithm 1 does to each data point.

    The points are shown in clear: use only simulated points, or ones that may be shown. Duplicates
    are searched for among ``points``.
    """
    repeated = deduplication.mark_repeats(points)
    flagged = pi(points)
    conservative_flags = pi_c(points)
    points = [replace(point, id=str(i)) for i, point in enumerate(points)]
    prepared = prepare_points(points, flagged, conservative_flags, pattern=repeated)
    public = {point.id for point in prepared.public}
    rows = []
    for point, again, spans, suspected in zip(
        points, repeated, flagged, conservative_flags, strict=True
    ):
        redacted_point = redact(point, spans)
        changed = (spans or redacted_point.secrets) and not again
        why = "flagged" if suspected else ""
        if again or MASK in redacted_point.text:
            why = "holds a mask"
        rows.append({
            "point": _mark_masks(point, "secret", "caught"),
            "deduplicated": [Piece(MASK, "repeat")] if again else [],
            "redacted": _mark_masks(redacted_point, "missed", "caught") if changed else [],
            "side": "public" if point.id in public else "private",
            "why": why,
        })  # fmt: skip
    alt = f"What lines 1 to 4 of Algorithm 1 do to {len(points)} points: {len(public)} become "
    alt += f"public, {len(points) - len(public)} private, {sum(map(bool, repeated))} are repeats."
    return render_page(
        "figure_7.html.j2", rows=rows, key=LOOKS["figure_7"], caption=caption, alt=alt
    )


# --------------------------------------------------------------------------- charts
def plot_public_and_private(counts: DataFrame) -> Figure:
    """Stacked bars of what becomes of the data points, one bar for each row of ``counts``.

    Columns ``public``, ``private``, ``masked`` (``<MASK>`` only) are numbers of points.
    """
    kinds = LOOKS["parts"]
    shares = counts[[*kinds]].div(counts[[*kinds]].sum(axis=1), axis=0)[::-1]
    with make_panels([""], height=0.56 * len(counts), room=0.95) as (fig, (ax,)):
        left = np.zeros(len(shares))
        for column, (label, color) in kinds.items():
            ax.barh(shares.index, shares[column], left=left, label=label, color=color, height=0.62)
            for y, (start, width) in enumerate(zip(left, shares[column], strict=True)):
                if width > 0.08:
                    ink = INK if column == "masked" else CARD
                    ax.text(
                        start + width / 2, y, f"{100 * width:.0f} %", color=ink, ha="center",
                        va="center",
                    )  # fmt: skip
            left += shares[column].to_numpy()
        ax.set(xlim=(0, 1), xticks=[])
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        ax.tick_params(left=False)
        fig.legend(loc="outside upper left", ncols=3, columnspacing=1.2, handlelength=1.1)
        rows = (f"{i} {row.public:.0%}" for i, row in shares[::-1].iterrows())
        describe_figure(
            fig, f"Shares of public, private and masked points; public: {', '.join(rows)}."
        )
    return fig


def plot_certified_miss_rate(*, target: float) -> Figure:
    """Upper 95 % bound of a miss rate against the number of labelled secrets, both logarithmic.

    It marks 200 labels without a miss, and the number of labels that certify ``target``.
    """
    label_counts = np.unique(np.geomspace(8, 3 / target, 120).astype(int))
    labelled = 200
    enough = labels_needed(target)
    with make_panels([""], height=2.9, room=0.7) as (fig, (ax,)):
        for misses, style, color in LOOKS["misses"]:
            shown_counts = label_counts[label_counts > misses]
            bounds = [clopper_pearson_upper(misses, int(labels)) for labels in shown_counts]
            label = f"{misses} missed" if misses else "no miss"
            ax.plot(shown_counts, bounds, style, color=color, label=label)
        ax.axhline(target, color=MUTED, linewidth=1)
        place: Any = {"textcoords": "offset points", "va": "top"}
        target_name = f"δ = {format_number(target)}"
        ax.annotate(target_name, (label_counts[0], target), xytext=(0, -6), **place)
        for labels in (labelled, enough):
            bound = clopper_pearson_upper(0, labels)
            ax.plot(labels, bound, "o", color="#00795A")
            words = f"{labels:,} labels: {format_number(bound, 2)}"
            ax.annotate(words, (labels, bound), xytext=(-8, -5), ha="right", **place)
        ax.set(xscale="log", yscale="log", xlabel="labelled secrets", ylim=(target / 8, 1))
        ax.set_ylabel("miss rate, 95 % upper bound")
        ax.legend(loc="upper right")
        describe_figure(fig, "Upper bound of a miss rate against labelled secrets: "
                        f"{labelled:,} without a miss certify "
                        f"{format_number(clopper_pearson_upper(0, labelled), 2)}; "
                        f"{format_number(target)} takes {enough:,}.")  # fmt: skip
    return fig


def _add_recall(table: DataFrame) -> DataFrame:
    """``table`` with ``recall`` and the ends ``low`` and ``high`` of its 95 % interval."""
    ends = [
        clopper_pearson(int(c), int(s)) for c, s in zip(table.caught, table.secrets, strict=True)
    ]
    low, high = np.array(ends).reshape(-1, 2).T
    return table.assign(recall=table.caught / table.secrets, low=low, high=high)


def plot_recall(table: DataFrame) -> Figure:
    """Recall by kind with two-sided 95 % intervals, one panel for each corpus.

    Columns ``corpus``, ``policy`` (a key of ``POLICY_STYLE``), ``kind``, ``secrets``, ``caught``.
    """
    table = _add_recall(table[table.secrets > 0])
    corpora = group_rows(table, "corpus")
    sizes = [rows_of_corpus.kind.nunique() for _, rows_of_corpus in corpora]
    height = 0.6 + 0.4 * sum(sizes) / len(sizes)
    titles = [corpus_name(name) for name, _ in corpora]
    with make_panels(titles, height=height, sharex=True, height_ratios=sizes) as (fig, axes):
        for ax, (_, rows_of_corpus) in zip(axes, corpora, strict=True):
            kinds = rows_of_corpus.kind.unique().tolist()
            for policy_number, (policy, (label, color, marker)) in enumerate(POLICY_STYLE.items()):
                rows = rows_of_corpus[rows_of_corpus.policy == policy]
                y = rows.kind.map(kinds.index) + 0.22 * (policy_number - 1)
                ax.hlines(y, rows.low, rows.high, color=color, linewidth=1.2)
                ax.scatter(rows.recall, y, color=color, marker=marker, s=45, label=label)
            label_rows(ax, kinds)
        axes[-1].set_xlabel("recall on held-out secrets, 95 % interval")
        axes[-1].set_xlim(None, 1.02)
        draw_shared_legend(fig)
        totals = table.groupby("policy")[["caught", "secrets"]].sum()
        words = {p: re.sub(r"[$\\_]", "", label) for p, (label, *_) in POLICY_STYLE.items()}
        recalls = (f"{words[p]} {c / s:.2f}" for p, c, s in totals.itertuples())
        describe_figure(fig, f"Recall by kind of secret in {len(corpora)} corpora, with intervals; "
                             f"over all kinds: {', '.join(recalls)}.")  # fmt: skip
    return fig


def render_threshold_slider(sweep: DataFrame) -> str:
    """Recall by kind and what it costs, with a slider for the threshold, as HTML.

    ``sweep`` has rows of one corpus; a word is flagged where its score for *plain* is below
    ``plain``. Columns ``plain``, ``kind``, ``secrets``, ``caught``, ``precision``, ``turns``,
    ``speaks``.
    """
    sweep = _add_recall(sweep[sweep.secrets > 0])
    every = sorted(sweep.plain.unique())
    kinds = list(dict.fromkeys(sweep.kind))

    def draw(ax: Axes, rows: DataFrame) -> None:
        ax.barh(range(len(kinds)), rows.recall, height=0.6, color="#0072B2")
        ax.hlines(range(len(kinds)), rows.low, rows.high, color=INK, linewidth=1.5)

    positions = []
    for plain in every:
        rows = sweep[sweep.plain == plain].set_index("kind").reindex(kinds)
        all_kinds = rows.loc["all"]
        sentence = (
            f"{all_kinds.speaks / all_kinds.turns:.0%} of turns flagged, "
            f"{all_kinds.precision:.0%} of flags right, recall {all_kinds.recall:.3f}."
        )
        positions.append((f"{plain:g}", sentence, rows))
    return render_slider(
        positions,
        draw,
        active=every.index(0.9) if 0.9 in every else 0,  # the paper's
        name="flag a word whose score for plain is under",
        alt="Recall by kind of secret, with a slider for the threshold under which a word is "
        "flagged.",
        arrange=lambda ax: label_rows(ax, kinds),
        legend=False,
        height=0.6 + 0.3 * len(kinds),
        xlim=(0, 1.02),
        xlabel="recall",
    )
