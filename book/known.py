"""Write the page that says what is known, and its figures: ``python book/known.py``. Every number
and every verdict on it is the ledger's; a test holds them in step."""

from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

import teaching
from crtbook import tables
from crtbook.claims import ledger
from crtbook.claims.claim import PAPERS, terms
from crtbook.claims.statistics import AGREES, DIFFERS, INCOMPARABLE, MOST, OPEN, PART, UNDECIDABLE
from crtbook.figures import theme

BOOK = Path(__file__).resolve().parent
COLOR = {AGREES: "#00795a", DIFFERS: "#b34700", PART: "#8a6100"}
GREY = "#5f6b7a"


class Finding(NamedTuple):
    """A finding of our own: its claims with the name of each row, and how they are drawn."""

    name: str
    title: str
    claims: dict[str, str]
    axis: str
    line: float
    words: str
    doubt: str


FINDINGS = [Finding(**finding) for finding in teaching.data("known.yml")]

HEAD = """What three papers claim: what our runs confirm, what they refute, and what nobody can \
say yet. A rule makes each verdict from recorded runs. We try each rule twice beforehand, in a \
world where the sentence is true and in one where it is false ({doc}`chapters/claims`). A verdict \
says at which size it was seen, and most of our runs are smaller than the papers' \
({doc}`reproducing`)."""


def rows(finding: Finding, table: pd.DataFrame) -> pd.DataFrame:
    """The comparable rows of a finding, with a ``name`` each."""
    base = table.id.str.replace(r"\.\d+$", "", regex=True)
    found = table[base.isin(finding.claims) & (table.verdict != INCOMPARABLE)].copy()
    size = found.edition.str.partition(",")[0].str.replace("dialogue.*", "dialogues", regex=True)
    kinds = {"test_ppl": "all tokens", "test_ppl_words": "words"}
    metric = found.source.map(lambda s: kinds.get(s.split(": ")[-1], ""))
    where = [f"{_at(row)}, {s}" for row, s in zip(found.itertuples(), size, strict=True)]
    found["what"] = base[found.index].map(finding.claims) + metric
    found["name"] = found.what + " · " + pd.Series(where, found.index)
    return found[found.value.notna()]


def figure(finding: Finding, found: pd.DataFrame) -> Figure:
    """A dot a row with its 95 % interval, in the colour of its verdict; without an interval, of
    too few seeds, the dot is hollow."""
    with theme.panels([""], height=0.3 + 0.46 * len(found), room=1.0) as (fig, [ax]):
        ax.axvline(finding.line, color=theme.MUTED, linestyle=(0, (1, 2)))
        card = {"facecolor": theme.CARD, "edgecolor": "none", "pad": 0.5}
        at = {"transform": ax.get_yaxis_transform(), "va": "center", "in_layout": False}
        for y, row in enumerate(found.itertuples()):
            color, face = COLOR.get(str(row.verdict), GREY), theme.CARD
            if pd.notna(row.low):
                ax.plot([row.low, row.high], [y, y], color=color, linewidth=2.5)
                face = color
            ax.plot(row.value, y, "o", markerfacecolor=face, markeredgecolor=color, zorder=3)
            ax.text(0, y - 0.3, f" {row.name}", bbox=card, **at)
        ax.set(yticks=[], xlabel=finding.axis, ylim=(len(found) - 0.5, -0.7))
        said = "; ".join(found.name + " " + found.ours)
        theme.describe(fig, f"{finding.axis}: {said}.")
        legend = "green: agrees; red: differs; grey: open. "
        theme.provenance(fig, legend + "Bars: 95 % interval; hollow: too few seeds for one")
    return fig


def _recorded(found: pd.DataFrame) -> str:
    """Profile, device, seeds and dates of the tables that a finding rests on."""
    names = found.source.str.partition(":")[0].unique()
    each = [pd.concat(map(tables.recorded, terms()["recorded"][name])) for name in names]
    return "Recorded: " + "; ".join(map(tables.caption, each))


def section(finding: Finding, found: pd.DataFrame) -> list[str]:
    """A finding on the page."""
    tallies = []
    for words, each in found.groupby("words", sort=False):
        said = ", ".join(f"{n} {verdict}" for verdict, n in each.verdict.value_counts().items())
        tallies.append(f"- “{_plain(str(words))}” Rows: {said}.")
    lines = [
        f"### {finding.title}",
        "",
        finding.words,
        "",
        f"```{{figure}} _assets/known-{finding.name}.svg",
        f":name: fig-known-{finding.name}",
        f":alt: {theme.alt(figure(finding, found))}",
        ":width: 100%",
        "",
        f"{finding.axis[0].upper()}{finding.axis[1:]}. Look which bars stay on one side of the "
        f"dotted line at {finding.line:g}. "
        f"{_recorded(found)}.",
        "```",
        "",
        *tallies,
        "",
        "| verdict | measured | where |",
        "|---|---|---|",
    ]
    for row in found.itertuples():
        where = str(row.what)
        lines.append(f"| **{row.verdict}** | {row.ours} | {where}: {_at(row)}, {row.edition} |")
    return [*lines, "", f"*A sceptic asks:* {finding.doubt}", ""]


def standing(verdicts: set[str]) -> str:
    """Of a claim with these verdicts on its rows, what is known."""
    said = verdicts - {INCOMPARABLE}
    if said <= {OPEN, UNDECIDABLE}:
        return "open"
    if DIFFERS in said:
        return "refuted" if said <= {DIFFERS, OPEN, UNDECIDABLE} else "refuted somewhere"
    return "established" if said == {AGREES} else "established somewhere"


KNOWN = {
    "established": "Established: every row that can be compared agrees",
    "established somewhere": "Established for some corpora, models or sizes, open for others",
    "refuted somewhere": "Refuted for some corpora, models or sizes",
    "refuted": "Refuted: no row agrees, and at least one differs",
    "open": "Open",
}


def papers(table: pd.DataFrame) -> list[str]:
    """Each paper's claims by what is known of them."""
    table = table.assign(claim=table.id.str.replace(r"\.\d+$", "", regex=True))
    lines: list[str] = []
    for paper, name in PAPERS.items():
        each = table[table.paper == paper].groupby("claim", sort=False)
        known = {str(c): standing(set(r.verdict)) for c, r in each}
        lines += [f"### {name[0].upper()}{name[1:]}", ""]
        for kind, title in KNOWN.items():
            said = []
            for claim, of in each:
                if known[str(claim)] != kind:
                    continue
                words = _plain(str(of.words.iloc[0]))
                told = [f"{r.ours} ({', '.join(filter(None, (_at(r), r.verdict)))})"
                        for r in of.itertuples() if r.ours]  # fmt: skip
                shown = "; ".join(told[:3]) + (f"; {len(told) - 3} more" if len(told) > 3 else "")
                said.append(f"- “{words}” {_plain(shown)} `{claim}`")
            if said:
                lines += [f":::{{dropdown}} {title} ({len(said)})", *said, ":::", ""]
    return lines


def _at(row: object) -> str:
    parts = (theme.corpus_name(row.corpus), theme.model_name(row.model))  # type: ignore[attr-defined]
    return ", ".join(p for p in parts if p)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("$", r"\$")


def page(table: pd.DataFrame) -> str:
    """The page in MyST."""
    lines = ["# What we know", "", HEAD, "", "## Four findings of our own", ""]
    for finding in FINDINGS:
        lines += section(finding, rows(finding, table))
    lines += ["## The papers, claim by claim", "", *papers(table)]
    plan = ledger.planned()
    lines += [
        "## What it would cost to know more",
        "",
        f"{plan.rows.sum()} rows of the ledger are not decided. These runs would decide them, the "
        "cheapest decisions first; `crtbook plan` prints the list with the rows of each. "
        f"{(table.verdict == UNDECIDABLE).sum()} more are not decidable here: they lie so near "
        f"their line that {MOST} seeds would not be enough, or need what we do not have.",
        "",
        "| rows | CPU hours | run |",
        "|---|---|---|",
    ]
    cells = plan[["rows", "hours", "command"]].to_numpy().tolist()
    lines += [f"| {n} | {hours:g} | `{command}` |" for n, hours, command in cells]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    table = ledger.ledger()
    (BOOK / "what_we_know.md").write_text(page(table), "utf-8")
    for finding in FINDINGS:
        drawn = theme.svg(figure(finding, rows(finding, table)))
        if "xmlns=" not in drawn:
            drawn = drawn.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        (BOOK / "_assets" / f"known-{finding.name}.svg").write_text(drawn, "utf-8")
