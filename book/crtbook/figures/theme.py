"""One theme for all figures: colours, labels, panels, and the sentences that describe a figure.

>>> with make_panels(["LSTM"]) as (fig, (ax,)):
...     _ = ax.axhspan(1.94, 7.60)
...     describe_figure(fig, "Nothing but the band of chance.")
>>> METHOD_STYLE["crt"].label, ax.get_title("left"), alt_text(fig)
('CRT', 'LSTM', 'Nothing but the band of chance.')
>>> read_provenance(note_provenance(fig, "quick, cpu, 1 seed, 2026-01-01"))
'quick, cpu, 1 seed, 2026-01-01'

Every function of this package that returns a matplotlib figure has given it a plain sentence for
readers who cannot see it: ``fig.get_label()``, which :func:`alt_text` reads. HTML figures carry the
same sentence as ``aria-label``. A notebook shows such a figure as SVG (:func:`render_svg`), with
text as text and with that sentence inside.
"""

import contextlib
import html
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D, Transform

from crtbook import FOLDER, load_data_file

INK = "#1d2733"
"""Text."""
MUTED = "#5b6673"
"""Secondary text."""
FAINT = "#d9dee4"
"""Grid lines."""
CARD = "#ffffff"
"""The card on which every figure lies, on light and on dark pages."""
WIDTH = 5.4
"""Width in inches. A telephone shows this in about 345 px."""
SMALL = 11.3
"""Size of the smallest text in points: 10 px on a telephone."""
LINE = 1.4
"""Height of a line of a name, in font sizes: what DejaVu Sans needs, and some space."""
ALT_LENGTH = 250
"""The maximal number of characters in the sentence that describes a figure."""


Style = dict[str, Any]
"""Options of a drawing function that belong together."""


@dataclass(frozen=True)
class Look:
    """How one method is drawn: its readable name, and what tells its line from others, in colour
    and in grey. ``dashes`` are lengths of strokes and gaps in line widths; none: a solid line."""

    label: str
    color: str
    marker: str
    dashes: Sequence[float] = ()

    @property
    def line(self) -> Style:
        """The arguments for matplotlib's ``plot``."""
        dashes = (0, tuple(self.dashes)) if self.dashes else "-"
        return {"color": self.color, "marker": self.marker, "linestyle": dashes}


TEMPLATES = FOLDER / "figures" / "templates"
LOOKS: dict[str, Any] = load_data_file("figures/templates/looks")
"""How figures draw and name things."""
METHOD_STYLE = {name: Look(*look) for name, look in LOOKS["methods"].items()}
"""The methods of the papers, in the order in which they are listed."""
SPARE, CORPUS_NAME = LOOKS["spare"], LOOKS["corpora"]


@contextlib.contextmanager
def use_theme() -> Iterator[None]:
    """Draw in the book's style inside this ``with`` block; matplotlib's settings come back after.

    A figure lies on a white card, so that it looks the same on a light and on a dark page.
    """
    with plt.style.context(TEMPLATES / "book.mplstyle"):
        yield


@contextlib.contextmanager
def make_panels(
    titles: Sequence[str],
    *,
    height: float = 2.9,
    room: float = 0.9,
    columns: int = 1,
    **subplots: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure in the theme with one titled panel for each of ``titles``, one below the other.

    ``height`` is that of a row of panels, ``room`` what legend and footer take, both in inches;
    ``subplots`` goes to matplotlib. Afterwards the figure is closed, so that a notebook shows it
    only once, where the cell returns it.
    """
    rows = -(-len(titles) // columns)
    options: Style = {"figsize": (WIDTH, room + height * rows), "FigureClass": Drawing} | subplots
    with use_theme():
        fig, axes = plt.subplots(rows, columns, squeeze=False, **options)
        try:
            for ax, title in zip(axes.flat, titles, strict=False):
                ax.set_title(title)
            yield fig, list(axes.flat)
        finally:
            plt.close(fig)


class Drawing(Figure):
    """A figure that a notebook shows as SVG with its sentence, whatever its backend prefers."""

    def _ipython_display_(self) -> None:
        from IPython.display import display  # slow to import, and only a notebook calls this

        display({"image/svg+xml": render_svg(self), "text/plain": alt_text(self)}, raw=True)  # type: ignore[no-untyped-call]


def render_svg(fig: Figure) -> str:
    """The figure as one ``<svg>``: text as text, no date, its sentence as ``aria-label``."""
    with use_theme(), io.StringIO() as file:
        fig.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace("'DejaVu Sans'", "'DejaVu Sans', Verdana")
    # Hundredths of a point are enough for a position. Text that is printed must stay as it is.
    places = re.compile(r'(?<=\s)(?:d|x|y|points|transform|width|height)="[^"]*"')
    svg = places.sub(lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), svg)
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    words = f'role="img" aria-label="{html.escape(alt_text(fig))}"'
    svg = svg.replace("<svg", f'<svg {words} style="stroke-linejoin: round"', 1)
    # Shown when a pointer rests on the figure; the book writes it below the caption.
    made_by = html.escape(read_provenance(fig), quote=False)
    title = f"<title>{made_by}</title>" if made_by else ""
    return re.sub(r"<svg\b[^>]*>", lambda head: head[0] + title, svg, count=1)


def note_provenance(fig: Figure, text: str) -> Figure:
    """The figure, with a note of how it was made: profile, device, seeds and date of the run. The
    note is not part of the drawing, and is printed below its caption."""
    vars(fig)["made"] = text
    return fig


def read_provenance(fig: Figure) -> str:
    """How a figure was made, as :func:`note_provenance` has noted it."""
    return str(vars(fig).get("made", ""))


def describe_figure(fig: Figure, sentence: str) -> None:
    """Give the figure the plain sentence that describes it where it cannot be seen."""
    fig.set_label(textwrap.shorten(sentence, ALT_LENGTH, placeholder=" …"))


def alt_text(fig: Figure) -> str:
    """The sentence that describes a figure, at most ``ALT_LENGTH`` characters."""
    return str(fig.get_label())


def list_in_words(names: Sequence[str]) -> str:
    """Names as a list in words.

    >>> list_in_words(["LSTM", "GRU", "GPT-2"])
    'LSTM, GRU and GPT-2'
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def model_name(model: str) -> str:
    """The readable name of a model; its own name where this table has none."""
    return str(LOOKS["models"].get(model, model))


def corpus_name(corpus: str) -> str:
    """The readable name of a corpus; its own name where this table has none."""
    return str(CORPUS_NAME.get(corpus, corpus))


def method_looks(table: pd.DataFrame) -> dict[str, Look]:
    """How to draw each method of ``table`` (column ``method``), in the order to list them.

    A method that ``METHOD_STYLE`` does not know gets a spare look, under its ``method_label`` if
    the table has that column, else under its own name.

    >>> rows = pd.DataFrame({"method": ["mine", "crt"], "method_label": ["My method", "CRT"]})
    >>> [look.label for look in method_looks(rows).values()]
    ['CRT', 'My method']
    """
    present = set(table.method)
    labels = table.drop_duplicates("method").set_index("method")
    names = labels.method_label.dropna().to_dict() if "method_label" in table else {}
    looks = {name: look for name, look in METHOD_STYLE.items() if name in present}
    for number, name in enumerate(sorted(present - set(METHOD_STYLE))):
        color, marker, dashes = SPARE[number % len(SPARE)]
        looks[name] = Look(str(names.get(name, name)), color, marker, dashes)
    return looks


def group_rows(table: pd.DataFrame, by: Any) -> list[tuple[Any, pd.DataFrame]]:
    """The rows of each value of a column, or of several, in the order of their first occurrence."""
    return list(table.groupby(by, sort=False))


End = tuple[float, float, str, str]
"""Where a line ends, with its name and colour."""


def label_line_ends(ax: Axes, ends: Sequence[End]) -> None:
    """Name lines at the right edge, beside their ends, so that no name covers another.

    With more than four lines, a figure is easier to read this way than with a legend. The place of
    a name is computed whenever the figure is drawn, because its footer and legend move the axes.
    """
    fig = ax.get_figure(root=True)
    assert fig is not None
    names = [textwrap.fill(name, 13) for _, _, name, _ in ends]

    def place(number: int) -> Callable[[Any], Transform]:
        def where(_: Any) -> Transform:
            box = ax.get_window_extent()
            line = SMALL * LINE * fig.dpi / 72 / box.height
            end_heights = [float(ax.transData.transform((x, y))[1]) for x, y, _, _ in ends]
            heights = [line * (1 + name.count("\n")) for name in names]
            centre = _move_apart([(y - box.y0) / box.height for y in end_heights], heights)[number]
            return Affine2D().translate(box.x0 + 1.06 * box.width, box.y0 + centre * box.height)

        return where

    for number, (x, y, _, color) in enumerate(ends):
        ax.annotate(
            names[number], (x, y), xytext=(0, 0), textcoords=place(number), va="center",
            annotation_clip=False, linespacing=1.0,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.8, "shrinkA": 1,
                        "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip


def _move_apart(places: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Centres near ``places`` for boxes of these heights so that none overlaps, within [0, 1].

    >>> [round(p, 2) for p in _move_apart([0.5, 0.5, 0.9], [0.1, 0.1, 0.1])]
    [0.5, 0.6, 0.9]
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    centres = list(places)
    low = -0.05
    for index in order:
        centres[index] = max(places[index], low + heights[index] / 2)
        low = centres[index] + heights[index] / 2
    high = 1.05
    for index in reversed(order):
        centres[index] = min(centres[index], high - heights[index] / 2)
        high = centres[index] - heights[index] / 2
    return centres


def set_plain_ticks(axis: Axis, *, apart: float = 1.35) -> None:
    """Ticks of a logarithmic axis as people write them: 1, 2, 5 times a power of ten, none closer
    to the next than the factor ``apart``, and no exponents. A range too narrow for two of them has
    ticks at round numbers."""
    low, high = axis.get_view_interval()
    ticks = [0.0]
    for value in [m * 10.0**k for k in range(-9, 10) for m in (1, 1.5, 2, 3, 5, 7)]:
        if low <= value <= high and value >= apart * ticks[-1]:
            ticks.append(value)
    ticks = ticks[1:]
    if len(ticks) < 2:
        ticks = [float(t) for t in MaxNLocator(4).tick_values(low, high) if low <= t <= high]
    axis.set_ticks(ticks, labels=[f"{t:,g}" for t in ticks])
    axis.set_minor_locator(plt.NullLocator())


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """A row for each of ``names``, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(visible=False, axis="y")


def draw_shared_legend(fig: Figure, *, columns: int = 2) -> None:
    """One legend above all panels, for what is drawn in any of them."""
    entries: dict[str, Any] = {}
    for ax in fig.axes:
        handles, labels = ax.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if entries:
        fig.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=columns)


# --------------------------------------------------------------------------- pieces of pages
_PAGES = jinja2.Environment(
    loader=jinja2.PackageLoader("crtbook.figures"), autoescape=True, trim_blocks=True,
    lstrip_blocks=True, undefined=jinja2.StrictUndefined,
)  # fmt: skip


def render_page(template: str, **values: Any) -> str:
    """A piece of a web page from one of this package's templates; every value is escaped."""
    return _PAGES.get_template(template).render(**values)
