"""One ledger for three papers: each claim in its own words, our number beside it, the verdict.

>>> from crtbook.claims.claim import PAPERS, load_claims
>>> {claim.paper for claim in load_claims()} == set(PAPERS)
True

Claims are data (``claims.yml``), and so are the figures of the papers (``figures.yml``) and their
errata (``errata.yml``). Numbers, verdicts, sizes and the lines of ``reproducing.md`` are computed
here.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

import crtbook
from crtbook import tables, utility
from crtbook.claims import calculations, dates, measures, statistics
from crtbook.claims.claim import (
    EDITIONS,
    PAPERS,
    Claim,
    load_claims,
    load_claims_file,
    load_terms,
)
from crtbook.claims.dates import dated
from crtbook.claims.statistics import (
    AGREES,
    CONSTRUCTION,
    DIFFERS,
    OPEN,
    PART,
    REMARK,
    UNDECIDABLE,
    VERDICTS,
    Evidence,
)
from crtlib.studies import crt_study
from crtlib.text import corpora

FOLDER = crtbook.FOLDER / "claims"
RECORDED = "ledger.parquet"
"""What :func:`compute_ledger` made from the tables that ship; ``book/computed.py`` writes it."""
COLUMNS = ["verdict", "paper", "where", "words", "number", "ours", "value", "low", "high", "corpus",
           "model", "edition", "source", "rule", "since", "why", "run", "hours", "made", "chapter",
           "id"]  # fmt: skip
SEED_COUNTS = (3, 5, 8, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200)
"""The numbers of seeds that a plan may request: only a few, so that one run decides several rows.
"""


def judge_claims(claims: Iterable[Claim], sources: measures.Sources) -> DataFrame:
    """One row for each claim, edition, corpus, model and metric, with each family corrected as one.
    ``sources`` are the tables that answer. A claim that none of them answers is open, and its row
    states what is missing."""
    ledger_rows: list[dict[str, Any]] = []
    for claim in claims:
        rows = list(measures.measure_claim(claim, sources))
        rows = rows or [(Evidence(why=f"no recorded run has {_describe_missing_runs(claim)}"), {})]
        with dates.collect_judges() as judges:
            corrected = statistics.correct_in_family([e for e, _ in rows], seeds=claim.seeds)
        family_judges = frozenset(judges) - {"statistics.keep_confirmed"}
        corrected = [replace(e, judges=e.judges | family_judges) for e in corrected]
        cells = [cell_facts for _, cell_facts in rows]
        claim_rows = [_make_row(claim, e, cell) for e, cell in zip(corrected, cells, strict=True)]
        if claim.often and AGREES in {row["verdict"] for row in claim_rows}:
            claim_rows = [_soften_to_part(row) for row in claim_rows]
        if len(claim_rows) > 1:
            claim_rows = [row | {"id": f"{claim.id}.{k}"} for k, row in enumerate(claim_rows)]
        ledger_rows += claim_rows
    return _with_rows_beside(DataFrame(ledger_rows)[COLUMNS], claims, sources)


def _with_rows_beside(
    table: DataFrame, claims: Iterable[Claim], sources: measures.Sources
) -> DataFrame:
    """The rows; where the claim ``beside`` one differs on its corpus, it says what was found."""
    claim = table.id.str.replace(r"\.\d+$", "", regex=True)
    for judged_claim in (c for c in claims if c.beside):
        refuted = table[(claim == judged_claim.beside) & (table.verdict == DIFFERS)]
        rows = (claim == judged_claim.id) & table.corpus.isin(refuted.corpus)
        for k, row in table[rows].iterrows():
            finding = describe_found(judged_claim, row, sources)
            table.loc[k, "why"] = "; ".join(filter(None, [row.why, finding]))
    return table


def describe_found(claim: Claim, row: pd.Series, sources: measures.Sources) -> str:
    """What a claim's ``found`` says of a row: its sentence, with the mean over seeds for each arm
    and metric that it names."""
    source, _, _ = row.source.partition(":")
    cell = measures.select_rows(sources[source], {"corpus": row.corpus})

    def mean(match: re.Match[str]) -> str:
        return f"{measures.value_per_seed(cell, match[1], match[2], claim.at).mean():.2f}"

    return re.sub(r"\{(\w+) (\w+)\}", mean, claim.found)


@dated
def _soften_to_part(row: dict[str, Any]) -> dict[str, Any]:
    """Make a row "in part": its sentence says "often", "can" or "some", and agrees elsewhere."""
    if row["verdict"] != DIFFERS:
        return row
    reason = "the sentence speaks of some cases, and others agree"
    softened = load_claims_file("rules")["functions"]["ledger._soften_to_part"]["since"]
    return row | {
        "verdict": PART,
        "why": "; ".join(filter(None, (row["why"], reason))),
        "since": max(row["since"], softened),
    }


def _describe_missing_runs(claim: Claim) -> str:
    arms = " and ".join(a.replace("_", " ") for a in (claim.left, claim.right) if a)
    return f"{', '.join(claim.metrics)} of {arms}"


def _make_row(claim: Claim, evidence: Evidence, cell_facts: Mapping[str, str]) -> dict[str, Any]:
    claim_fields = {
        name: getattr(claim, name) for name in ("id", "paper", "where", "words", "number")
    }
    verdict = statistics.decide_verdict(evidence, seeds=claim.seeds)
    reasons = [*filter(None, [evidence.why]), *statistics.describe_excess(evidence)]
    source = cell_facts.get("source", "")
    if verdict == DIFFERS and claim.holds:
        verdict, reasons = PART, [*reasons, claim.holds]
    if claim.kind == "remark":
        verdict = REMARK
    elif claim.kind == "by construction" and verdict == AGREES:
        verdict = CONSTRUCTION
    texts = measures.size_of_edition(pd.Series([cell_facts.get("edition", "")])).iloc[0]
    if verdict == DIFFERS and texts < claim.dialogues:
        reasons.append(
            f"{texts:,.0f} of the paper's {claim.dialogues:,} texts, and noise costs less on more"
        )
    if verdict == PART and claim.side == "same or below":
        reasons += ["worse, but by less than the margin"]
    run = _find_deciding_run(claim, evidence, cell_facts) if verdict == OPEN else {}
    if "needs" in run:
        verdict, reasons = UNDECIDABLE, [*reasons, f"needs {run['needs']}"]
    elif verdict in (OPEN, UNDECIDABLE):
        if 0 < evidence.seeds < claim.seeds:
            n = {1: "one seed", 2: "two seeds"}[evidence.seeds]
            reasons.insert(0, f"{n}, {claim.seeds} are needed")
        elif evidence.seeds_to_decide:
            if not evidence.why:
                reasons.append(f"p = {min(evidence.p_true, evidence.p_false):.2g} in its family")
            reasons += [_describe_seeds_needed(evidence, never=verdict == UNDECIDABLE)]
        elif evidence.seeds and not reasons:
            reasons = [f"p = {min(evidence.p_true, evidence.p_false):.2g} in its family"]
        reasons += [claim.why] if claim.why and not cell_facts else []
    metric = f": {cell_facts['metric']}" if cell_facts.get("metric") else ""
    return claim_fields | {
        "verdict": verdict,
        **{name: getattr(evidence, name) for name in ("ours", "value", "low", "high")},
        **{name: cell_facts.get(name, "") for name in ("made", "corpus", "model", "edition")},
        "rule": evidence.rule or "some recorded run must give the number",
        "since": _find_date_of_rule(claim, evidence, verdict, source),
        "why": "; ".join(reasons),
        "run": run["command"] if verdict == OPEN else "",
        "hours": run["hours"] if verdict == OPEN else np.nan,
        "chapter": claim.chapter,
        "source": source + metric,
    }


def _find_date_of_rule(claim: Claim, evidence: Evidence, verdict: str, edition: str) -> str:
    """The day since which a row is judged as it is: the last day on which its rule, a margin by
    which it was judged, or a function that judged it, changed; or its edition was added."""
    rules, margins, judges = load_claims_file("rules"), {*evidence.margins}, {*evidence.judges}
    if verdict == UNDECIDABLE:
        margins.add("most")
    judges.add("statistics.decide_verdict")
    if evidence.by_all_seeds is not None:
        judges.add("statistics.keep_confirmed")
    names = {"claims": {claim.id}, "margins": margins, "functions": judges,
             "calculations": {claim.call},
             "editions": {edition} if claim.tables == EDITIONS else set()}  # fmt: skip
    return max(
        str(rules[kind][name]["since"])
        for kind, names_of_kind in names.items()
        for name in names_of_kind
        if name in rules[kind]
    )


def _describe_seeds_needed(evidence: Evidence, *, never: bool) -> str:
    """How many seeds an open row would need: at the observed mean, and at the end of its interval
    that is farther from the line."""
    max_seeds = statistics.MAX_SEEDS
    if never:
        return (
            f"more than {max_seeds} seeds would be needed, even if the mean lies at the most "
            "favourable end of its interval"
        )
    kind = "new seeds, looked at once," if evidence.first_seeds else "seeds"
    if evidence.seeds_to_decide > max_seeds:
        return f"{evidence.fewest_seeds_to_decide:g} {kind} or more would be needed"
    return f"about {evidence.seeds_to_decide:g} {kind} would be needed"


def _find_deciding_run(
    claim: Claim, evidence: Evidence, cell_facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The run that would decide an open row: its ``command`` and CPU ``hours``, or what it
    ``needs`` where that is not here. More seeds of the row's own cell, where they can decide it."""
    source = cell_facts.get("source", "")
    seeds_decide = claim.at != "picked" or (evidence.settled and evidence.seeds_to_decide > 0)
    if seeds_decide and not claim.run and source in load_terms()["more_seeds"]:
        return _plan_more_seeds(claim, evidence, cell_facts)
    run_by_table = load_terms()["by_table_picked" if claim.at == "picked" else "by_table"]
    if not source and not claim.run and claim.tables[0] in load_terms()["more_seeds"]:
        sweep = load_terms()["more_seeds"][claim.tables[0]]
        return {"command": f"crtbook sweep {sweep}", "hours": np.nan}
    name = claim.run or run_by_table.get(source) or run_by_table[claim.tables[0]]
    run: dict[str, Any] = dict(load_terms()["runs"][name])
    return run | {"command": run["command"].format(**cell_facts)} if "command" in run else run


def _plan_more_seeds(
    claim: Claim, evidence: Evidence, cell_facts: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The sweep that made a row's cell, for as many seeds as the row needs, with the time that its
    recorded seeds took; with the paper's number of epochs where fewer refute nothing."""
    recorded_seeds, epochs = cell_facts["seeds"], []
    new_seeds, price = 0, cell_facts["hours_a_seed"]
    if evidence.epochs:
        seeds = new_seeds = statistics.MIN_SEEDS_FOR_REPEATED_LOOKS
        price = price * claim.epochs / evidence.epochs
        names = {m for arm in (claim.left, claim.right) if arm
                 for m in np.atleast_1d(load_terms()["arms"][arm]["method"])}  # fmt: skip
        group = f"shapes.{cell_facts['model']}.epochs"
        epochs = [f"--set {group}.{method}={claim.epochs}" for method in sorted(names)]
    elif 0 < evidence.seeds < claim.seeds:
        seeds = int(np.ceil(claim.seeds * recorded_seeds / evidence.seeds))
    elif evidence.seeds_to_decide:
        needed = evidence.seeds_to_decide
        if needed > statistics.MAX_SEEDS:  # infinite, perhaps
            needed = evidence.fewest_seeds_to_decide
        seeds = int(needed)
        seeds += recorded_seeds if evidence.first_seeds else 0
    else:
        seeds = 2 * recorded_seeds
    seeds = next((n for n in SEED_COUNTS if n >= max(seeds, recorded_seeds + 1 - new_seeds)), seeds)
    sweep = load_terms()["more_seeds"][cell_facts["source"]]
    if cell_facts["model"] == "gpt2_public":
        sweep = f"start{sweep.removeprefix('crt')}"
    texts = [cell_facts["corpus"]]
    if sweep.startswith("leakage"):  # its runs on CustomerSim always come first
        texts = list(dict.fromkeys([crt_study.DEFAULT_CORPUS, *texts]))
    corpora_json = json.dumps(texts, separators=(",", ":"))
    cell_options = [] if "secrets" in sweep else [f"--set 'corpora={corpora_json}'"]
    if sweep.startswith("crt"):
        cell_options.append(f"--set 'models=[\"{cell_facts['model']}\"]'")
    command = ["crtbook sweep", sweep, *cell_options, *epochs, f"--set seeds={seeds}"]
    hours = price * (seeds - (0 if new_seeds else recorded_seeds))
    return {"command": " ".join(command), "hours": float(f"{hours:.2g}")}


def price_of_run(name: str) -> str:
    """A run of ``terms.yml`` in words, with its hours."""
    run = load_terms()["runs"][name]
    return format_run(run["command"], run["hours"])


def format_run(command: str, hours: float) -> str:
    """A run in words."""
    return f"{command} (about {hours:g} CPU h)"


def plan_open_rows() -> DataFrame:
    """The runs that open rows wait for: ``command``, CPU ``hours``, the number of ``rows`` and
    their ``ids``, and the number of ``cells``, which are rows of a headline. The most cells for
    each hour of one core come first, because what is uncertain about a headline lies between
    corpora and sizes; then the most rows."""
    waiting = load_ledger().query("verdict == @OPEN").groupby("run")
    runs = [{"command": command, "hours": rows.hours.max(), "ids": rows.id.tolist()}
            for command, rows in waiting]  # fmt: skip
    headline_claims = {
        claim for headline in load_claims_file("headlines") for claim in headline["claims"]
    }
    plan = DataFrame(runs).assign(
        rows=lambda t: t.ids.map(len),
        cells=lambda t: t.ids.map(
            lambda ids: sum(i.rpartition(".")[0] in headline_claims for i in ids)
        ),
    )
    order = plan.assign(cell=-plan.cells / plan.hours, row=-plan.rows / plan.hours)
    return plan.loc[order.sort_values(["cell", "row"]).index].reset_index(drop=True)


def compute_ledger() -> DataFrame:
    """Compute the ledger from what is recorded, in some ten seconds."""
    return judge_claims(load_claims(), measures.load_sources())


def date_rules(today: str) -> dict[str, Any]:
    """The content of ``rules.yml``: for each claim, each margin, each function that judges or
    calculates, and each edition that claims read by default, what decides, and since when. The date
    is ``today`` where it differs from what is kept."""
    recorded = load_claims_file("rules")
    rules: dict[str, Any] = {}
    calls = sorted({c.call for c in load_claims()} - {""})
    current: dict[str, dict[str, Any]] = {
        "claims": {c.id: c.rule for c in load_claims()},
        "margins": statistics.list_margins(),
        "functions": {name: dates.hash_program(f) for name, f in sorted(dates.JUDGES.items())},
        "calculations": {name: dates.hash_calculation(calculations, name) for name in calls},
        "editions": {name: load_terms()["recorded"][name] for name in EDITIONS},
    }
    for kind, entries in current.items():
        old_entries = recorded.get(kind, {})
        rules[kind] = {}
        for name, hashed in entries.items():
            is_unchanged = name in old_entries and old_entries[name]["of"] == hashed
            new_entry = {"of": hashed, "since": today}
            rules[kind][name] = old_entries[name] if is_unchanged else new_entry
    return rules


def hash_ledger_inputs() -> str:
    """The hash of the claims, the rules and all recorded tables, from which the ledger is made."""
    files = sorted(f for f in FOLDER.iterdir() if f.suffix in (".py", ".yml"))
    parts = [file.read_text(encoding="utf-8") for file in files]
    parts += [f"{name} {tables.hash_table(name)}" for name in tables.list_table_names()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.cache
def _load_cached_ledger() -> DataFrame:
    table = pd.read_parquet(FOLDER / RECORDED)
    return table if table.attrs["of"] == hash_ledger_inputs() else compute_ledger()


def find_row(
    claim: str,
    *,
    dialogues: int,
    model: str = "lstm",
    metric: str = "",
    corpus: str = crt_study.DEFAULT_CORPUS,
) -> pd.Series:
    """The one row of a claim on a corpus for this model and number of ``dialogues``; for a claim
    with several metrics, the row of ``metric``.

    >>> find_row("ours-policy", dialogues=300).verdict
    'agrees'
    """
    table = load_ledger()
    rows = table[
        table.id.str.fullmatch(re.escape(claim) + r"(\.\d+)?")
        & (table.corpus == corpus)
        & (table.model == model)
        & table.edition.str.startswith(f"{dialogues} {measures.unit_of_corpus(corpus)},")
        & table.source.str.endswith(metric and f": {metric}")
    ]
    if len(rows) != 1:
        raise ValueError(f"claim={claim!r}: has {len(rows)} such rows, must have one")
    return rows.iloc[0]


def format_interval_of_row(claim: str, **cell: Any) -> str:
    """The number of :func:`find_row` with its interval, as *What we know* prints it, without unit.

    >>> format_interval_of_row("crt-f2-dpsgd-lstm", dialogues=10_000, metric="valid_ppl_words")
    '1.06 [1.05, 1.06]'
    """
    text = str(find_row(claim, **cell).ours)
    return text[: text.index("]") + 1]


def load_ledger() -> DataFrame:
    """One row for each claim, edition, corpus and model, with its verdict (one of ``VERDICTS``):
    the recorded ledger, or a new one where the claims, the rules or the tables have changed."""
    return _load_cached_ledger().copy()


def count_verdicts(table: DataFrame) -> DataFrame:
    """How many rows of each paper have each verdict."""
    counts = pd.crosstab(table.paper.map(PAPERS), table.verdict)
    return counts.reindex(columns=list(VERDICTS), fill_value=0).rename_axis(None, axis=1)


def judge_results_table(table: DataFrame) -> DataFrame:
    """The claims of CRT's figures, judged by your own table of results."""
    claims = [c for c in load_claims() if "laptop" in c.tables and c.measure != "calculation"]
    rows = judge_claims(claims, {"laptop": table})
    return rows[rows.ours != ""]


def tabulate_errata() -> DataFrame:
    """Where the papers contradict themselves or arithmetic: what is printed, the calculation."""
    rows = []
    for entry in load_claims_file("errata"):
        against = entry.get("against", "")
        if "call" in entry:
            number, sentence = getattr(calculations, entry["call"])(**entry.get("given", {}))
            against = sentence or f"{number:.4g}"
        rows.append(entry | {"paper": PAPERS[entry["paper"]], "calculation": against})
    return DataFrame(rows)[["paper", "where", "printed", "calculation", "so"]]


# --- one line a figure ----------------------------------------------------------------------------
SIZE = "at the paper's size"


def corpus_label(corpus: str) -> str:
    """The name of a corpus for people; one that only a paper has is returned as it is."""
    available = corpora.available_corpora()
    return available[corpus].label if corpus in available else corpus


def runs_of_figure(figure: Mapping[str, Any]) -> DataFrame:
    """The recorded runs that a figure shows, on any corpus; none for an exact figure."""
    run_tables = [
        t for name in figure.get("tables", ()) if (t := measures.find_runs(name)) is not None
    ]
    run_tables = [
        measures.select_rows(t, {"metric": figure["metric"], **figure.get("only", {})})
        for t in run_tables
    ]
    columns = ["corpus", "dialogues", "hidden", "epochs", "method", "gamma", "seed", "run"]
    runs = pd.concat(
        [t.reindex(columns=columns) for t in run_tables] or [DataFrame(columns=columns)]
    )
    runs = runs.drop_duplicates("run")
    runs = runs.assign(method=runs.method.astype(object).fillna("sgd"))
    runs = runs.fillna({"gamma": 0.0, "epochs": 1})
    if "gamma" in figure:
        perfect = runs.method.isin(["dpsgd", *utility.PERFECT])
        runs = runs[np.isclose(runs.gamma, np.where(perfect, 0.0, figure["gamma"]))]
    return runs[runs.method.isin(figure["epochs"])] if len(figure["epochs"]) > 1 else runs


def find_largest_runs(
    figure: Mapping[str, Any], runs: DataFrame
) -> tuple[dict[str, float], DataFrame]:
    """The largest runs of a figure, and their share of the paper's dialogues, width and epochs: 1
    where the paper states no number, and for the width where no model is trained."""
    top = runs[runs.dialogues == runs.dialogues.max()]
    dialogues = float(top.dialogues.iloc[0])
    shares = {"dialogues": dialogues / figure.get("dialogues", dialogues), "hidden": 1.0}
    if "hidden" in figure:
        top = top[top.hidden == top.hidden.max()]
        shares["hidden"] = float(top.hidden.iloc[0]) / figure["hidden"]
    share = (top.epochs / top.method.map(figure["epochs"]).fillna(1)).min()
    return {n: min(1.0, v) for n, v in (shares | {"epochs": float(share)}).items()}, top


def describe_size_of_figure(figure: Mapping[str, Any], corpus: str) -> str:
    """The size at which a figure of a paper is shown here on one of its corpora, from the recorded
    tables that ``figures.yml`` names. The paper's size means its dialogues, its width and its
    epochs, with enough seeds at every point; a smaller size says where it has fewer seeds."""
    if figure.get("exact"):
        return "exact"
    all_runs = runs_of_figure(figure)
    if all_runs.empty:
        return "not recorded"
    runs = all_runs[all_runs.corpus == corpus]
    if runs.empty:
        names = sorted({corpus_label(c) for c in all_runs.corpus})
        return f"other corpus ({', '.join(names)})"
    shares, top = find_largest_runs(figure, runs)
    seeds = top.groupby(["method", "gamma"]).seed.nunique()
    if shares["dialogues"] < 1 or shares["hidden"] < 1:
        few_seeds = {1: ", one seed", 2: ", two seeds"}.get(int(seeds.min()), "")
        unit = figure.get("unit", "dialogues") if "dialogues" in figure else "width"
        share = shares["dialogues" if "dialogues" in figure else "hidden"]
        return f"smaller ({share:.2g} of the {unit}{few_seeds})"
    complete_points = int((seeds >= statistics.MIN_SEEDS).sum())
    absent = len({*zip(runs.method, runs.gamma, strict=True)}) - len(seeds)
    if shares["epochs"] == 1 and complete_points == len(seeds) and not absent:
        return SIZE
    return (
        f"the paper's dialogues and width, from {shares['epochs']:.0%} of its epochs; "
        f"{complete_points} of {len(seeds) + absent} points have {statistics.MIN_SEEDS} seeds"
    )


def tabulate_sizes_of_figures() -> list[str]:
    """One line for each figure or table of a paper, for ``reproducing.md``."""
    lines = []
    for figure in load_claims_file("figures"):
        size_by_corpus = {
            corpus: describe_size_of_figure(figure, corpus) for corpus in figure["corpora"]
        }
        size_text, *other_sizes = {*size_by_corpus.values()}
        if other_sizes:
            size_text = "; ".join(
                f"{corpus_label(corpus)}: {size}" for corpus, size in size_by_corpus.items()
            )
        lines.append(f"| {PAPERS[figure['paper']]} | {figure['name']} | {size_text} |")
    return ["| paper | figure or table | here |", "|---|---|---|", *lines]
