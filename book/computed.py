"""Write what is computed from the recorded tables: ``python book/computed.py``.

- The dates since when each rule of the ledger holds (``rules.yml``).
- The recorded ledger of claims; in ``reproducing.md`` the table of figures, and how far seeds lie
  apart.
- The page of what is known (``known.yml``), and its figures.
- The page that maps each item of the papers to its place here (``papers_map.py``), and the
  sentence of the README and the first page that counts them.
- The recorded runs that the panel shows, and the methods' colours for its style and the toys'.
- The parameters cell of every notebook, and of its published chapter, from the section of the
  profiles that it reads; and the page of all options of ``crtlib train``.

Tests check that each is up to date. The words of the pages are in ``templates``.
"""

import collections
import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

import papers_map
import teaching
from _ext import pages
from confide import recipes
from crtbook import settings, tables
from crtbook.claims import headlines, ledger, measures
from crtbook.claims.claim import PAPERS, load_claims, load_terms
from crtbook.claims.statistics import (
    AGREES,
    CONSTRUCTION,
    DIFFERS,
    INCOMPARABLE,
    MAX_SEEDS,
    OPEN,
    PART,
    REMARK,
    UNDECIDABLE,
)
from crtbook.figures import crt as crt_figures
from crtbook.figures import theme
from crtlib.attacks.exposure import exposure_chance_band
from crtlib.options import options_of

BOOK = Path(__file__).resolve().parent
UNDECIDED = {OPEN, UNDECIDABLE, INCOMPARABLE}


# --------------------------------------------------------------------------- what is known
COLOR = {AGREES: "#00795a", DIFFERS: "#b34700", PART: "#8a6100"}
GREY = "#5f6b7a"
KNOWN = {
    "established": "Established: every row that can be compared agrees",
    "established somewhere": "Established for some corpora, models or sizes, open or right in part "
    "for others",
    "both": "Established for some corpora, models or sizes, refuted for others",
    "refuted somewhere": "Refuted for some corpora, models or sizes, open or right in part for "
    "others",
    "refuted": "Refuted: every row that can be compared differs",
    "in part": "Right in part",
    "open": "Open",
    "not comparable": "Cannot be compared here: a level of another corpus, vocabulary or model",
    "by construction": "True by construction: tests of our code, not evidence",
    "remark": "Remarks: sentences that no data could meet",
}


def add_claim_and_place(table: pd.DataFrame) -> pd.DataFrame:
    """The ledger with the claim to which each row belongs, and where the row was measured."""
    where = [
        ", ".join(filter(None, (theme.corpus_name(corpus), theme.model_name(model))))
        for corpus, model in zip(table.corpus, table.model, strict=True)
    ]
    return table.assign(claim=table.id.str.replace(r"\.\d+$", "", regex=True), at=where)


GROUPS = {
    "small": "Small corpus: a few hundred simulated dialogues",
    "large": "The papers' size: 10,000 simulated dialogues",
    "written": "Text that people wrote, small",
}
"""Where a finding was measured, in the order in which its figure lists it."""
LARGE = 10_000
SIMULATED = "customersim"
WHERE_SHORT = {
    "schema_guided": "Schema-Guided",
    "multiwoz": "MultiWOZ",
    "multiwoz_held_out": "MultiWOZ, all domains",
    "wikitext2": "WikiText-2",
    "wikitext2_cut": "WikiText-2",
}


def select_rows_of_finding(finding: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """The comparable rows of one of our own findings, with the ``group`` and the ``name`` of each,
    in the order of ``GROUPS``."""
    rows = table[table.claim.isin(finding["claims"]) & (table.verdict != INCOMPARABLE)]
    rows = rows[rows.value.notna()]
    kinds = {"valid_ppl": "all tokens", "valid_ppl_words": "words"}
    metric = rows.source.map(lambda s: kinds.get(s.split(": ")[-1], ""))
    label = rows.claim.map(finding["claims"]) + metric
    size = rows.edition.str.extract(r"^([\d,]+)")[0].str.replace(",", "").astype(float)
    group = (size >= LARGE).map({True: "large", False: "small"})
    group = group.where(rows.corpus == SIMULATED, "written")
    model = rows.model.map(theme.model_name).str.replace(r" \(from scratch\)", "", regex=True)
    corpus = rows.corpus.map(WHERE_SHORT)
    names = (label + ", " + model).where(group != "written", corpus + ", " + label)
    rows = rows.assign(what=label, group=group, name=names)
    order = [*GROUPS]
    return rows.sort_values("group", key=lambda g: g.map(order.index), kind="stable")


def draw_finding(finding: dict[str, Any], measured: pd.DataFrame) -> Figure:
    """A dot for each row with its 95 % interval, in the colour of its verdict, by groups. Names are
    left of the axis, the verdict in words is right of it. With too few seeds for an interval the
    dot is hollow.
    """
    scale, lines = finding.get("scale", 1), []
    for group, rows in measured.groupby("group", sort=False):
        lines += [(GROUPS[str(group)], None), *((r["name"], r) for _, r in rows.iterrows())]
    with theme.make_panels([""], height=0.2 + 0.27 * len(lines), room=0.7) as (fig, [ax]):
        ax.axvline(scale * finding["line"], color=theme.INK, linewidth=1)
        side = {"transform": ax.get_yaxis_transform(), "va": "center"}
        for y, (_, row) in enumerate(lines):
            if row is None:
                continue
            color = COLOR.get(str(row.verdict), GREY)
            face = color if pd.notna(row.low) else theme.CARD
            if pd.notna(row.low):
                ax.plot([scale * row.low, scale * row.high], [y, y], color=color, linewidth=2.5)
            decided = COLOR.get(str(row.verdict)) is not None
            ax.plot(scale * row.value, y, "o", markerfacecolor=face if decided else theme.CARD,
                    markeredgecolor=color, zorder=3)  # fmt: skip
            word = finding["says"].get(
                str(row.verdict), PART if row.verdict == PART else "not decided"
            )
            ax.text(1.02, y, word, color=color, **side)
        ax.set_yticks(range(len(lines)), [name if row is not None else "" for name, row in lines])
        ax.tick_params(axis="y", length=0)
        for y, (name, row) in enumerate(lines):
            if row is None:
                ax.annotate(name, (0, y), xycoords=("figure fraction", "data"), xytext=(4, 0),
                            textcoords="offset points", va="center", fontweight="bold",
                            bbox={"facecolor": theme.CARD, "edgecolor": "none", "pad": 1},
                            annotation_clip=False)  # fmt: skip
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        ax.set_xlabel(finding["axis"], loc="right")
        ax.set_ylim(len(lines) - 0.4, -0.6)
        sentence = "; ".join(measured.name + " " + measured.ours)
        theme.describe_figure(fig, f"{finding['axis']}: {sentence}.".replace("\n", " "))
    return fig


def answer_finding(finding: dict[str, Any], measured: pd.DataFrame) -> tuple[str, str]:
    """The title of a finding, chosen by its verdicts, and in how many settings of each group it was
    seen.

    A title is written for each outcome; an outcome without a title is refused, not guessed.
    """
    by = {str(g): set(rows.verdict) - UNDECIDED for g, rows in measured.groupby("group")}
    decided = set().union(*by.values())
    outcome = "open"
    if by.get("small") == {DIFFERS} and by.get("large") == {AGREES}:
        outcome = "large alone"
    elif by.pop("small", set()) == {AGREES} and "large" in by and not any(by.values()):
        outcome = "small alone"
    elif decided:
        outcome = {
            frozenset({AGREES}): "agrees",
            frozenset({DIFFERS}): "differs",
            frozenset({PART}): "in part",
            frozenset({AGREES, PART}): "in part",
        }.get(frozenset(decided), "both")
    counts = []
    for group, rows in measured.groupby("group", sort=False):
        kinds = collections.Counter("open" if v in UNDECIDED else v for v in rows.verdict)
        outcomes = ", ".join(
            f"{finding['says'].get(v, v if v == PART else 'not decided')} in "
            + (
                f"{n} of {len(rows)}" + " settings" * (not k)
                if len(rows) > 1
                else "the one setting"
            )
            for k, (v, n) in enumerate(kinds.items())
        )
        counts.append(f"{GROUPS[str(group)].partition(':')[0]}: {outcomes}")
    return finding["answers"][outcome], ". ".join(counts)


def tally_settings(verdicts: Sequence[str]) -> str:
    """In how many settings a claim was confirmed, confirmed in part, refuted and left open.

    >>> tally_settings([AGREES, AGREES, PART, OPEN])
    '2 of 4 settings confirm it, 1 confirms it in part, 1 leaves it open'
    >>> tally_settings([UNDECIDABLE])
    'the one setting leaves it open'
    """
    of = collections.Counter(OPEN if v in UNDECIDED else v for v in verdicts)
    every = len(verdicts)
    did = [
        (of[AGREES], "confirm", "it"),
        (of[PART], "confirm", "it in part"),
        (of[DIFFERS], "refute", "it"),
        (of[OPEN], "leave", "it open"),
    ]
    if every == 1:
        return next(f"the one setting {verb}s {what}" for n, verb, what in did if n)
    first, *others = [(n, f"{verb}{'s' * (n == 1)} {what}") for n, verb, what in did]
    parts = [
        f"{first[0]} of {every} settings {first[1]}",
        *(f"{n} {does}" for n, does in others if n),
    ]
    return ", ".join(parts)


def load_runs_of_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The recorded runs that some rows of one edition compare: those of both arms, of the seeds
    that both have."""
    by_id = {claim.id: claim for claim in load_claims()}
    edition = rows.source.iloc[0].partition(":")[0]
    runs = set[str]()
    for row in rows.itertuples():
        claim, source = by_id[row.claim], measures.load_sources()[edition]
        cell = measures.select_rows(
            source, {"corpus": row.corpus, "metric": [row.source.partition(": ")[2]]}
        )
        arms = [
            measures.select_rows(cell, load_terms()["arms"][a])
            for a in (claim.left, claim.right)
            if a
        ]
        arms = [arm[arm.model == row.model] for arm in arms]
        seeds = set[int].intersection(*({*arm.seed} for arm in arms))
        runs.update(run for arm in arms for run in arm.run[arm.seed.isin(seeds)])
    available = {*tables.list_table_names()}
    parts = [tables.load_recorded(p) for p in load_terms()["recorded"][edition] if p in available]
    return pd.concat([part[part.run.isin(runs)] for part in parts])


def describe_finding(finding: dict[str, Any], measured: pd.DataFrame) -> dict[str, Any]:
    """A finding with everything that its section shows: its answer; the tables on which it is
    based, with their profile, device, seeds and dates; its verdicts counted; and its rows."""
    recorded = [
        load_runs_of_rows(rows)
        for _, rows in measured.groupby(measured.source.str.partition(":")[0], sort=False)
    ]
    tallies = []
    for words, of in measured.groupby("words", sort=False):
        tallies.append((words, tally_settings(of.verdict.tolist())))
    facts = {
        "alt": theme.alt_text(draw_finding(finding, measured)),
        "recorded": [*map(tables.caption, recorded)],
    }
    title, counts = answer_finding(finding, measured)
    facts |= {"title": title, "counts": counts, "tallies": tallies}
    return finding | facts | {"rows": measured.to_dict("records")}


def judge_standing(verdicts: set[str]) -> str:
    """What is known about a claim whose rows have these verdicts."""
    comparable = verdicts - {INCOMPARABLE}
    if not comparable:
        return "not comparable"
    for word in (CONSTRUCTION, REMARK):
        if word in comparable and comparable <= UNDECIDED | {word}:
            return word
    if comparable <= UNDECIDED:
        return "open"
    if comparable <= UNDECIDED | {PART}:
        return "in part"
    if comparable >= {AGREES, DIFFERS}:
        return "both"
    word = "established" if AGREES in comparable else "refuted"
    return word if len(comparable) == 1 else f"{word} somewhere"


def count_standings(table: pd.DataFrame) -> dict[str, int]:
    """The number of claims of the papers by what is known; "counted" are those data could meet."""
    by_claim = table[table.paper != "ours"].groupby("claim").verdict.agg(set).map(judge_standing)
    number = {kind: int((by_claim == kind).sum()) for kind in KNOWN}
    apart = ("by construction", "remark", "not comparable")
    return number | {"counted": len(by_claim) - sum(number[kind] for kind in apart)}


def group_claims_by_paper(table: pd.DataFrame) -> list[tuple[str, Any]]:
    """Each paper's claims, with what was measured for them, by what is known about them."""
    out = []
    for paper, name in PAPERS.items():
        by_standing: dict[str, list[Any]] = {kind: [] for kind in KNOWN}
        for claim, of in table[table.paper == paper].groupby("claim", sort=False):
            ours = [
                f"{r.ours} ({', '.join(filter(None, (r.at, r.verdict)))})"
                for r in of.itertuples()
                if r.ours
            ]
            by_standing[judge_standing(set(of.verdict))].append((claim, of.words.iloc[0], ours))
        counts = {kind: len(claims) for kind, claims in by_standing.items()}
        out.append(
            (
                name,
                counts,
                [(KNOWN[kind], claims) for kind, claims in by_standing.items() if claims],
            )
        )
    return out


def render_what_we_know(table: pd.DataFrame) -> dict[Path, str]:
    """The page and its figures, by their paths."""
    table, plan = add_claim_and_place(table), ledger.plan_open_rows()
    findings = [(f, select_rows_of_finding(f, table)) for f in teaching.load_yaml("known.yml")]
    out = {
        BOOK / "_assets" / f"known-{f['name']}.svg": _add_namespace(
            theme.render_svg(draw_finding(f, rows))
        )
        for f, rows in findings
    }
    out[BOOK / "what_we_know.md"] = teaching.render_template(
        "what_we_know",
        findings=[describe_finding(*finding) for finding in findings],
        papers=group_claims_by_paper(table),
        kinds=KNOWN,
        plan=plan[["rows", "hours", "command"]].to_dict("records"),
        open=plan.rows.sum(),
        never=(table.verdict == UNDECIDABLE).sum(),
        most=MAX_SEEDS,
        count=count_standings(table),
    )
    return out


FIGURE_3 = BOOK / "_assets" / "figure3.svg"
README = BOOK.parent / "README.md"


def draw_readme_picture() -> tuple[str, str]:
    """The picture of the README, and how it was made, from the recorded runs of CRT's Figure 3."""
    runs = tables.load_recorded("crt_laptop")
    runs = runs[runs.corpus == "customersim"]
    points = runs.groupby(crt_figures.CELL_COLUMNS).ngroups
    band = exposure_chance_band(canaries=10, seeds=runs.seed.nunique(), points=points)
    figure = crt_figures.plot_exposure_by_gamma(
        crt_figures.tabulate_exposures(runs), band, runs=runs
    )
    light = _add_namespace(theme.render_svg(figure)).replace(
        'style="', 'style="background: #fff; ', 1
    )
    return light, tables.caption(runs)  # the README's page may be dark


def insert_caption_of_figure_3(readme: str, provenance: str) -> str:
    """The README, with a caption that says how its picture was made."""
    return re.sub(r"(Our own runs of CRT's Figure 3)[^*]*\*", rf"\1: {provenance}.*", readme)


def _add_namespace(svg: str) -> str:
    tag = '<svg xmlns="http://www.w3.org/2000/svg"'
    return svg if "xmlns=" in svg else svg.replace("<svg", tag, 1)


# --------------------------------------------------------------------------- the rules
RULES = Path(str(ledger.FOLDER / "rules.yml"))


def format_rules(today: str) -> str:
    """The text of ``rules.yml``, where ``today`` is the date of what has changed."""
    lines = RULES.read_text("utf-8").splitlines()[:2]
    for kind, entries in ledger.date_rules(today).items():
        lines.append(f"{kind}:")
        lines += [f'  {n}: {{of: {json.dumps(r["of"])}, since: "{r["since"]}"}}'
                  for n, r in entries.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------- the panel
PANEL = BOOK / "_assets" / "panel-runs.js"
LINES = {"sgd": "non-private, masked", "crt": "CRT", "dpsgd": "DP-SGD (reads no γ)"}


def format_panel() -> str:
    """The runs of the LSTM on CustomerSim as JavaScript: means over seeds by method and gamma."""
    table = tables.load_recorded("crt_laptop").query("model == 'lstm' and corpus == 'customersim'")
    table = table[table.method.isin(LINES)]
    chance = exposure_chance_band(canaries=10, seeds=int(table.seed.nunique()))
    band, measures = {"band": [round(chance.low, 2), round(chance.high, 2)]}, []
    for metric, title, ticks, more in (
        ("exposure", "Exposure of the luckiest of ten canaries (bits)", range(0, 21, 5), band),
        ("test_ppl_words", "Perplexity of held-out words", range(1, 5), {}),
    ):
        runs = table[table.metric == metric].groupby(["method", "gamma", "seed"]).value.max()
        means = runs.groupby(["method", "gamma"]).mean().round(3)
        lines = [
            {
                "look": method,
                "name": name,
                "points": [
                    [g, float(means.get((method, g), means[method].iloc[0]))]
                    for g in sorted(means["crt"].index)
                ],
            }
            for method, name in LINES.items()
        ]
        ends = {"low": ticks[0], "high": ticks[-1], "ticks": [*ticks]}
        measures.append({"title": title, "lines": lines, **ends, **more})
    provenance = f"Recorded runs: LSTM, CustomerSim, {tables.caption(table)}; means over seeds"
    provenance += "; grey: what luck alone gives, in 95 of 100 cases"
    held = {"most": float(table.gamma.max()), "measures": measures, "made": provenance}
    return f"const PANEL = {json.dumps(held, ensure_ascii=False)};\n"


LOOKS = BOOK / "_assets" / "looks.css"


def format_looks() -> str:
    """The looks of the methods (``figures/templates/looks.yml``) as a style sheet: ``--tone``,
    lightened on dark pages as in the figures, and ``--dash`` in pixels for a line of width 3."""
    lines = ["/* Written by book/computed.py from figures/templates/looks.yml. */"]
    for name, look in theme.METHOD_STYLE.items():
        dashes = " ".join(f"{3 * x:g}" for x in look.dashes) or "none"
        lines.append(f".look-{name} {{ --tone: {look.color.lower()}; --dash: {dashes}; }}")
        dark = f"--tone: {pages.darken(look.color)}"
        lines.append(f'html[data-theme="dark"] .look-{name} {{ {dark}; }}')
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------- figures and options
FIGURES = BOOK / "reproducing.md"
BLOCK = re.compile(r"(<!-- figures: [^>]*-->\n).*?(<!-- end of figures -->)", re.DOTALL)
SECTION = re.compile(r'read_parameters\(globals\(\), "(\w+)"\)')


def insert_sizes_of_figures(text: str) -> str:
    """The page of what is reproduced, with today's table of figures."""
    lines = "\n".join(ledger.tabulate_sizes_of_figures())
    return BLOCK.sub(lambda found: f"{found[1]}\n{lines}\n\n{found[2]}", text)


SPREAD = re.compile(
    r"the highest test perplexity of the recorded seeds is above the lowest by .*?(?=\. )"
)
"""The clause of ``reproducing.md`` that says how far seeds lie apart at the paper's size."""
SPREAD_OF = {
    "sgd": "non-private training",
    "selective": "S-DP",
    "crt": "CRT",
    "crt_sigma0": "CRT without noise",
    "dedup": "deduplication",
}


def insert_spread_of_seeds(text: str) -> str:
    """The page of what is reproduced, with how far the recorded seeds lie apart, method by method,
    at the paper's size and a miss rate of 0.1; a page that has lost the clause is refused."""
    runs = tables.load_recorded("crt_paper").query("metric == 'test_ppl_words' and gamma == 0.1")
    parts = []
    for method, name in SPREAD_OF.items():
        values = runs[runs.method == method].set_index("seed").value
        spread, seeds = values.max() / values.min() - 1, "" if parts else " seeds"
        parts.append(f"{100 * spread:.2g} % for {name} ({values.index.nunique()}{seeds})")
    told = f"{', '.join(parts[:-1])} and {parts[-1]}"
    clause = f"the highest test perplexity of the recorded seeds is above the lowest by {told}"
    updated, times = SPREAD.subn(lambda _: clause, text)
    assert times == 1, "one sentence says how far seeds lie apart"
    return updated


def find_section(notebook: dict[str, Any]) -> str:
    """The section of the profiles that a notebook reads, as stated in its settings cell."""
    (section,) = SECTION.findall("\n".join("".join(c["source"]) for c in notebook["cells"]))
    return section


def insert_parameters_cell(text: str) -> str:
    """A notebook with the parameters cell of its section."""
    notebook = json.loads(text)
    (cell,) = (c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", []))
    cell["source"] = settings.make_parameters_cell(find_section(notebook)).splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n" * text.endswith("\n")


def render_options() -> str:
    """The page of the options of a training."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for method in recipes.RECIPES:
        for o in options_of(recipes.recipe_for_method(method)):
            default = "" if o.default is None or o.name == "method" else str(o.default)
            text = re.sub(r"(train )?--[a-z][a-z-]*( NAME --help)?", r"`\g<0>`", o.text)
            rows.setdefault((f"`{o.flag}`", o.phrase, default, text), []).append(method)
    every = len(recipes.RECIPES)
    cells = [
        (*row, "all" if len(names) == every else ", ".join(f"`{n}`" for n in names))
        for row, names in rows.items()
    ]
    return teaching.render_template(
        "options", rows=[[c.replace("|", "\\|") for c in row] for row in cells]
    )


if __name__ == "__main__":
    RULES.write_text(format_rules(datetime.date.today().isoformat()), "utf-8")
    table = ledger.compute_ledger()
    table.attrs["of"] = ledger.hash_ledger_inputs()
    table.attrs["robust"] = headlines.check_robustness_of_all(measures.load_sources())
    table.attrs["totals"] = headlines.count_totals_of_all(table, measures.load_sources())
    tables.write_table(table, Path(str(ledger.FOLDER / ledger.RECORDED)))
    texts = render_what_we_know(table) | {
        BOOK / "map.md": papers_map.render_map(),
        BOOK / "options.md": render_options(),
    }
    texts |= {
        PANEL: format_panel(),
        LOOKS: format_looks(),
        FIGURES: insert_spread_of_seeds(insert_sizes_of_figures(FIGURES.read_text("utf-8"))),
    }
    texts[FIGURE_3], provenance = draw_readme_picture()
    texts[README] = insert_caption_of_figure_3(README.read_text("utf-8"), provenance)
    for path in papers_map.COUNTING:
        texts[path] = papers_map.insert_counts(texts.get(path) or path.read_text("utf-8"))
    notebooks = [*BOOK.parent.glob("notebooks/*.ipynb"), *BOOK.glob("chapters/*.ipynb")]
    texts |= {path: insert_parameters_cell(path.read_text("utf-8")) for path in notebooks}
    for path, text in texts.items():
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            print(path.relative_to(BOOK.parent))
