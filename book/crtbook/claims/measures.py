"""What recorded tables show about a claim: one piece of evidence for each corpus, model, edition.

>>> from crtbook.claims import claim, statistics
>>> (lstm, *_) = (c for c in claim.load_claims() if c.id == "crt-f2-dpsgd-lstm")
>>> {e.seeds for e, where in measure_claim(lstm, load_sources()) if where["source"] == "settled"}
{5}
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import scipy
from pandas import DataFrame, Series

from crtbook import fine_tuning, search, secrets, tables
from crtbook.claims import calculations, statistics
from crtbook.claims.claim import Claim, load_claims, load_terms
from crtbook.claims.dates import collect_judges, dated
from crtbook.claims.statistics import Evidence
from crtlib.training import methods

Sources = Mapping[str, DataFrame]
OF_ALL = ("mia_accuracy", "mia_address_accuracy")
"""Accuracies over all secrets, including those that the policy found and nobody can tell apart."""
OF_ALL_TOKENS = ("valid_ppl", "test_ppl", "valid_acc", "test_acc")
"""Means over all tokens of the text as a method reads it: redacted, or as it is."""
OTHER_TEXT = (
    "one arm reads the text redacted, the other as it is",
    "all tokens are compared only on the same text",
)
OTHER_VOCABULARY = (
    "perplexities per piece of two vocabularies",
    "levels are compared only within one vocabulary",
)
"""Why two arms are not comparable, and the rule."""
COLUMNS = ("run", "table", "seed", "epoch", "epochs", "item", "metric", "value", "corpus", "model",
           "gamma", "method", "dialogues", "hidden", "vocab_size", "probes", "others", "steps",
           "batch_size",
           "longer", "gain_of_longer", "seconds")  # fmt: skip
"""The columns that are read from every table."""
VALIDATION = "valid_ppl_words"
"""The metric by which the recorded searches choose, and which picks an epoch."""
MIN_POINTS_OF_A_RANK = 3
"""The least number of points with a rank correlation: two always give 1 or -1."""


@functools.cache
def load_sources() -> Sources:
    """The recorded tables, by the name of their edition; those not recorded are left out."""
    sources = {}
    for name, parts in load_terms()["recorded"].items():
        if parts_here := {
            p: _prepare_table(p, t) for p in parts if (t := _find_with_longer_runs(p)) is not None
        }:
            combined = pd.concat(
                [t.assign(table=p) for p, t in parts_here.items()], ignore_index=True
            )
            sources[name] = combined[[c for c in combined if c in _list_columns_asked_for()]]
    return sources


def find_runs(name: str) -> DataFrame | None:
    """A recorded table, or None where there is none. Runs that fine-tune a model with weights have
    its width and vocabulary, not those of the settings, which they do not use."""
    table = tables.find_recorded(name)
    return None if table is None else table.assign(**load_terms()["pretrained"].get(name, {}))


def _find_with_longer_runs(name: str) -> DataFrame | None:
    """A recorded table, or None where there is none. If its arms were also trained for at least
    twice as many epochs, ``longer`` marks these runs, and ``gain_of_longer`` is the share by which
    they end lower."""
    table = find_runs(name)
    if table is None or name not in load_terms()["longer_beside"]:
        return table
    table = table.assign(longer=search.is_longer(table))
    return table.assign(gain_of_longer=gain_of_longer(table))


def gain_of_longer(table: DataFrame) -> Series:
    """The share by which the ``longer`` runs of a row's arm have a lower perplexity than the
    others, at the epochs that validation picks: the mean over the seeds of both. It is missing
    where an arm has no longer runs."""
    curve = table[table.metric == VALIDATION]
    picked = (
        curve.groupby([*search.ARM, "longer", "seed"], dropna=False).value.min().unstack("longer")
    )
    perplexities = picked.reindex(columns=[False, True])
    gains = (
        (perplexities[False] / perplexities[True] - 1).groupby([*search.ARM], dropna=False).mean()
    )
    rows = pd.MultiIndex.from_frame(table[[*search.ARM]])
    return pd.Series(gains.reindex(rows).to_numpy(), index=table.index)


@functools.cache
def _list_columns_asked_for() -> set[str]:
    """The columns that claims and their arms need: filtering the others too takes minutes."""
    names = {*COLUMNS}.union(*load_terms()["arms"].values())
    for claim in load_claims():
        names.update(claim.cells, claim.only, claim.own, [claim.reduce.partition(" ")[2]])
    return names


def _prepare_table(name: str, table: DataFrame) -> DataFrame:
    """A table in which arms have the names of the claims: runs of CRT with the seconds of an epoch,
    GPT-2 from a public start as a model of its own, Hush!'s runs at the learning rate and the C
    that validation chose, the report with a count at the last snapshot that is not overfitted."""
    if name.startswith("crt_"):  # the seconds that an epoch took, as a metric
        run_rows = table.drop_duplicates("run")
        epoch_seconds = run_rows.assign(
            metric="seconds_an_epoch", value=run_rows.seconds / run_rows.epochs
        )
        return pd.concat([table, epoch_seconds], ignore_index=True)
    if name.startswith("public_start"):
        return table[table.init != "random"].assign(model="gpt2_public")
    if name in ("secrets_laptop", "probes_laptop"):
        filled = table.assign(model=table.model.fillna("bert") + " " + table.hidden.astype(str))
        # Extraction: further metrics for the number of probes, and for the values that can be
        # extracted either way.
        played = filled[filled.study == "extraction"]
        probe_counts = played.drop_duplicates("run").assign(
            metric="probes", value=lambda t: t.probes
        )
        extracted = played[played.metric.isin(["memorised", "generalised"])]
        extracted_per_run = extracted.groupby("run").value.sum().rename("value").reset_index()
        extractable_rows = (
            extracted.drop_duplicates("run").drop(columns="value").merge(extracted_per_run)
        )
        played = pd.concat([played, probe_counts, extractable_rows.assign(metric="extractable")])
        if name == "probes_laptop":
            return played.reset_index(drop=True)
        # Masked models: the runs at the learning rate that validation chose, of which those at the
        # best C are marked; each of their three measures becomes a metric.
        chosen = secrets.choose_learning_rates(
            secrets.select_as_promised(filled[filled.study == "masked"])
        )
        validation_by_scale = (
            chosen.groupby(["targets", "noisy", "scale"]).valid.mean().drop(np.inf, level="scale")
        )
        best_cells = {*validation_by_scale.groupby(["targets", "noisy"]).idxmin()}
        chosen_cells = zip(chosen.targets, chosen.noisy, chosen.scale, strict=True)
        chosen = chosen.assign(best=[cell in best_cells for cell in chosen_cells])
        long_rows = chosen.melt(["run", "scale", "best"], ["test", "needed", "kept"], "metric")
        run_rows = filled[filled.run.isin(chosen.run)].drop_duplicates("run")
        run_rows = run_rows.drop(columns=["metric", "value", "scale"])
        return pd.concat([played, run_rows.merge(long_rows)], ignore_index=True)
    if name == "words_laptop":
        band_names = table.band.map({"ranks": "by rank", "frequency": "in 50 to 100 documents"})
        filled = table.assign(scale=table.scale.astype(float).fillna(np.inf))
        return filled.assign(model="words of " + table.words + " " + band_names)
    if name == "fine_tuning_laptop":
        return fine_tuning.select_chosen_runs(table).assign(
            model="bert " + table.hidden.astype(str)
        )
    if name.startswith(("leakage_", "abstracts_")):
        # The count at the last snapshot whose perplexity is close to that on the training text.
        metrics_by_run = table.pivot_table(index=["run", "epoch"], columns="metric", values="value")
        fitted_snapshots = (
            (metrics_by_run.ppl / metrics_by_run.train_ppl <= statistics.CLOSE_RATIO)
            .loc[lambda s: s]
            .reset_index()
        )
        last_fitted_epoch = fitted_snapshots.groupby("run").epoch.max()
        rows = table[(table.metric == "unique") & (table.epoch == table.run.map(last_fitted_epoch))]
        return pd.concat([table, rows.assign(metric="unique_fitted")], ignore_index=True)
    if name == "screening_laptop":
        # What policies find in held-out text, with exact shares: the table has rounded ones.
        rows = table[(table.part == "recall") & (table["where"] == "held out")]
        rows = rows[rows.kind == "all"].assign(model=rows.policy, run=rows.policy)
        correct_flags = (rows.precision * rows.flagged).round()
        rows = rows.assign(
            recall=rows.caught / rows.secrets, precision=correct_flags / rows.flagged
        )
        metrics = ("recall", "secrets", "precision", "flagged")
        return pd.concat(
            [rows.assign(metric=metric, value=rows[metric], epoch=0) for metric in metrics]
        )
    return table


# --- arms -----------------------------------------------------------------------------------------
@dated
def select_rows(table: DataFrame, arm: Mapping[str, Any]) -> DataFrame:
    """The rows of an arm; none where the table lacks a column."""
    rows = table
    for name, wanted in arm.items():
        if name not in rows:
            return rows.iloc[:0]
        options = wanted if isinstance(wanted, list) else [wanted]
        if isinstance(options[0], float):
            matches = [np.isclose(rows[name].astype(float), o) for o in options]
            rows = rows[np.logical_or.reduce(matches)]
        else:
            rows = rows[rows[name].isin(options)]
    return rows


@dated
def value_per_seed(
    table: DataFrame, arm: str, metric: str, snapshot: str | int, reduce: str = "mean"
) -> pd.Series:
    """One number for each seed of an arm, which must have all its miss rates. The metric is taken
    at the "last" or "first" snapshot, at the one that validation "picked" (the least perplexity
    over words), or at a given epoch. Several items are reduced to their "mean", or to the "max" of
    each run; to the share ("under 3") or the number ("count 3") below a threshold; "sum" adds the
    counts of all runs of a seed; "rank NAME" is the rank correlation with a column or with another
    metric, over at least ``MIN_POINTS_OF_A_RANK`` rows of a seed. Raises ValueError for runs of one
    seed that differ in their number of epochs: a mean over them is a mean of two trainings."""
    rows = select_rows(table, load_terms()["arms"][arm])
    metric_rows = rows[rows.metric == metric]
    _refuse_mixed_lengths(arm, metric_rows)
    kind, _, option = reduce.partition(" ")
    if kind == "rank":
        metric_rows = metric_rows.drop_duplicates(["run", "epoch"])
        keys, pairs = ["run", "epoch"], metric_rows.assign(other=metric_rows.get(option))
        if option not in metric_rows:
            other_values = rows[rows.metric == option].set_index(keys).value.rename("other")
            pairs = metric_rows.merge(other_values, left_on=keys, right_index=True)
        correlations = {
            seed: float(scipy.stats.spearmanr(g.other, g.value)[0])
            for seed, g in pairs.groupby("seed")
            if len(g) >= MIN_POINTS_OF_A_RANK and g.other.nunique() > 1 and g.value.nunique() > 1
        }
        return pd.Series(correlations, dtype=float)
    runs = rows.groupby("run").epoch
    epoch = {"last": metric_rows.groupby("run").epoch.max(), "first": runs.min()}.get(str(snapshot))
    if snapshot == "picked":
        curve = rows[rows.metric == VALIDATION].reset_index(drop=True)
        epoch = curve.loc[curve.groupby("run").value.idxmin()].set_index("run").epoch
    metric_rows = metric_rows[
        metric_rows.epoch == (snapshot if epoch is None else metric_rows.run.map(epoch))
    ]
    if "gamma" in metric_rows:  # a mean over some miss rates is not the mean over all
        points = metric_rows.groupby("seed").gamma.nunique()
        metric_rows = metric_rows[metric_rows.seed.map(points) == points.max()]
    if kind == "sum":
        return metric_rows.groupby("seed").value.sum()
    if kind == "max":
        return metric_rows.groupby(["seed", "run"]).value.max().groupby("seed").mean()
    if not option:
        return metric_rows.groupby("seed").value.mean()
    is_below = (metric_rows.value < float(option)).astype(float).groupby(metric_rows.seed)
    if kind == "under":
        return is_below.mean()
    return is_below.sum().reindex(rows[rows.epoch == snapshot].seed.unique(), fill_value=0.0)


def _refuse_mixed_lengths(arm: str, rows: DataFrame) -> None:
    """Raise ValueError where runs of an arm that differ in nothing else have other epochs."""
    if "epochs" not in rows:
        return
    alike = [c for c in ("seed", "corpus", "model", "method", "gamma", "dialogues") if c in rows]
    lengths = rows.groupby(alike, dropna=False).epochs.nunique()
    if (lengths > 1).any():
        raise ValueError(
            f"arm {arm}: has runs of {sorted(rows.epochs.unique())} epochs, of one seed"
        )


@dated
def attack_points(table: DataFrame, arm: str, kind: str, metric: str) -> DataFrame:
    """One row for each gamma and seed: what an attack finds, the spread of it by chance, and how
    far above chance still counts as at chance. The policy of some corpora misses more than gamma:
    the margin follows from the share of the attacked secrets that it did miss."""
    rows = select_rows(table, load_terms()["arms"][arm])
    values_by_point = rows[rows.metric == metric].groupby(["gamma", "seed"]).value
    if kind == "exposure":
        points = values_by_point.agg(["mean", "size"])
    else:
        null = rows[rows.metric == f"{metric}_null"].groupby(["gamma", "seed"]).value.mean()
        points = pd.concat([values_by_point.mean(), null], axis=1)
    points = points.set_axis(["value", "spread"], axis=1).dropna().reset_index()
    share = points.gamma.map(share_missed(rows)).fillna(points.gamma)
    counts_found = metric in OF_ALL
    margins = [
        statistics.chance_margin(kind, share_at_gamma if counts_found else None)
        for share_at_gamma in share
    ]
    return points.assign(margin=margins)


@dated
def share_missed(rows: DataFrame) -> Series:
    """The share of the attacked secrets that the policy missed, for each gamma."""
    counts = {
        name: rows[rows.metric == name].groupby("gamma").value.sum()
        for name in ("n_missed", "n_members")
    }
    return counts["n_missed"] / counts["n_members"]


@dated
def _select_arms(claim: Claim, cell: DataFrame) -> list[DataFrame]:
    """The rows of each arm of a claim, one or two."""
    return [select_rows(cell, load_terms()["arms"][a]) for a in (claim.left, claim.right) if a]


@dated
def _at_common_miss_rates(claim: Claim, cell: DataFrame) -> DataFrame:
    """A cell without the points that one of two arms lacks, where both have the same miss rates by
    their definition and were not run at all of them."""
    definitions = [load_terms()["arms"][a].get("gamma") for a in (claim.left, claim.right) if a]
    if "gamma" not in cell or len(definitions) < 2 or definitions[0] != definitions[1]:
        return cell
    first, second = ({*arm.gamma} for arm in _select_arms(claim, cell))
    return cell[cell.gamma.isin(first & second)] if first & second else cell


@dated
def why_unsettled(rows: DataFrame) -> str:
    """Why the curve of an arm, its mean over seeds, does not yet show what its training can reach.
    Empty if the curve does not rise from its first epoch on, and if either its last third, or a
    training of at least twice as many epochs, lowers the best perplexity by at most
    ``MAX_SETTLED_GAIN``."""
    curve = rows[rows.metric == VALIDATION].groupby("epoch").value.mean()
    if len(curve) < 2:
        return "has one epoch"
    late_fall, rise_since_best = _late_fall(rows), curve.iloc[-1] / curve.min() - 1
    gain = _gain_of_arm(rows)
    longer_is_no_better = gain <= statistics.MAX_SETTLED_GAIN  # false where none was run
    if late_fall > statistics.MAX_SETTLED_GAIN and not longer_is_no_better:
        longer_note = f", and twice as many end {gain:.0%} lower" if gain > 0 else ""
        return (
            f"still falls by {late_fall:.0%} in the last third of {len(curve)} epochs{longer_note}"
        )
    if curve.idxmin() == curve.index[0] and rise_since_best > statistics.MAX_SETTLED_GAIN:
        return f"rises by {rise_since_best:.0%} from its first epoch on"
    return ""


@dated
def _late_fall(rows: DataFrame) -> float:
    """The share by which the last third of an arm's epochs lowers its best perplexity."""
    curve = rows[rows.metric == VALIDATION].groupby("epoch").value.mean()
    earlier = curve.iloc[: len(curve) - max(1, len(curve) // 3)]
    return float(earlier.min() / curve.min() - 1)


@dated
def _gain_of_arm(rows: DataFrame) -> float:
    """The share by which a longer training of an arm ends lower; missing where none was run."""
    return float(rows.gain_of_longer.max(skipna=False)) if "gain_of_longer" in rows else np.nan


@dated
def _discount_unsettled_arms(
    claim: Claim,
    cell: DataFrame,
    longer: DataFrame,
    metric: str,
    evidence: Evidence,
    *,
    all_seeds: bool,
) -> Evidence:
    """Evidence from two perplexities or accuracies, without what a longer training of an arm could
    change. The value of an arm that has not settled may be too bad. That a ratio is worse than 1
    stays: it is no refutation. An arm that still falls, and has settled because twice as many
    epochs end no lower, must give the same answer with these longer runs in its place."""
    arms = dict(zip(("left", "right"), _select_arms(claim, cell), strict=True))
    unsettled = {arm: reason for arm, rows in arms.items() if (reason := why_unsettled(rows))}
    arm_that_lowers, arm_that_raises = ("right", "left") if "acc" in metric else ("left", "right")
    p_if_above, p_if_below = {"p_true"}, {"p_false"}
    if claim.side != "above":
        p_if_above, p_if_below = p_if_below, p_if_above
    void = p_if_above if arm_that_lowers in unsettled else set()
    void = void | p_if_below if arm_that_raises in unsettled else void
    names = {"left": claim.left.replace("_", " "), "right": claim.right.replace("_", " ")}
    reasons = [f"{names[arm]} {reason}" for arm, reason in unsettled.items()]
    for arm, rows in arms.items():
        if arm in unsettled or _late_fall(rows) <= statistics.MAX_SETTLED_GAIN:
            continue
        instead = select_rows(longer, load_terms()["arms"][getattr(claim, arm)])
        instead_of_cell = pd.concat([cell.drop(rows.index), instead])
        longer_evidence = _judge_comparison(claim, instead_of_cell, metric, all_seeds=all_seeds)
        if longer_evidence is None:
            continue
        evidence = replace(
            evidence,
            p_true=max(evidence.p_true, longer_evidence.p_true),
            p_false=max(evidence.p_false, longer_evidence.p_false),
            p_worse=max(evidence.p_worse, longer_evidence.p_worse),
            margins=(*evidence.margins, "longer"),
        )
        higher = -_gain_of_arm(rows)
        end_text = f"{higher:.0%} higher" if higher >= 0.005 else "as low"
        reasons += [
            f"{names[arm]} still falls in the last third of {rows.epochs.max():.0f} epochs, and"
            f" {instead.epochs.max():.0f} end {end_text}"
        ]
    changed: dict[str, Any] = dict.fromkeys(void, 1.0)
    evidence = replace(evidence, settled=not unsettled, margins=(*evidence.margins, "settled"))
    discounted = replace(evidence, why="; ".join(filter(None, [evidence.why, *reasons])), **changed)
    is_decided = any(getattr(evidence, p) <= statistics.ALPHA for p in void)
    return (
        replace(discounted, deviations_to_line=np.nan, most_deviations_to_line=np.nan)
        if is_decided
        else discounted
    )


# --- evidence -------------------------------------------------------------------------------------
@dated
def _seeds_at_first_look(claim: Claim, cell: DataFrame) -> int:
    """How many seeds the tables of a claim's arms had when they were looked at for the first
    time."""
    first_looks, rows = load_terms()["first_look"], pd.concat(_select_arms(claim, cell))
    return min(
        (first_looks[t] for t in rows.get("table", pd.Series()).unique()),
        default=statistics.MAX_SEEDS,
    )


@dated
def _judge_comparison(
    claim: Claim, cell: DataFrame, metric: str, *, all_seeds: bool = False
) -> Evidence | None:
    """What a claim that compares one number for each seed shows in a cell: with a line, or with
    the same number of another arm. None if no run gives a number.

    ``values`` are those numbers, by seed: first those of the left arm, then their differences to
    the right arm, their ratios, or the logarithms of these."""
    cell = _at_common_miss_rates(claim, cell)
    values = value_per_seed(cell, claim.left, metric, claim.at, claim.reduce)
    unit, line = "", float(claim.line)
    arms = _select_arms(claim, cell)
    first_look_seeds = _seeds_at_first_look(claim, cell)
    if claim.measure == "constant":
        if values.empty:
            return None
        (constant,) = values.unique()  # more than one would not be a constant
        judged_constant = statistics.judge_calculation(
            constant, "", side=claim.side, line=claim.line
        )
        return replace(judged_constant, seeds_of_interval=len(values), why="no seed changes it")
    if claim.measure in ("zero", "some"):
        must_be_zero = claim.measure == "zero"
        if values.empty:
            return None
        return statistics.judge_occurrence(
            values.tolist(), zero=must_be_zero, seeds_at_first_look=first_look_seeds
        )
    if claim.measure == "worst":
        if values.empty:
            return None
        judged_worst = statistics.judge_worst_case(
            values.tolist(), line=line, seeds_at_first_look=first_look_seeds
        )
        runs = arms[0].seed.nunique()
        return replace(
            judged_worst, why=f"{len(values)} of {runs} runs give a number" * (len(values) < runs)
        )
    if claim.measure == "rate":
        runs_of_seed = arms[0].groupby("seed").run.nunique()
        if claim.reduce == "mean" and (runs_of_seed > 1).any():
            raise ValueError(f"claim {claim.id}: a rate needs one run a seed, or reduce: sum")
        reduction = "sum" if claim.reduce == "sum" else "mean"
        # ``other`` counts the tries, and the metric the hits among them, or their share.
        totals = value_per_seed(cell, claim.left, claim.other, claim.at, reduction)
        hits_per_seed = values * totals if claim.reduce == "mean" else values
        hits_and_totals = pd.concat([hits_per_seed, totals], axis=1).dropna().round().astype(int)
        hits, trials = hits_and_totals.to_numpy().T.tolist()
        if not sum(trials):
            return None
        return statistics.judge_share(
            hits, trials, side=claim.side, line=line, seeds_at_first_look=first_look_seeds
        )
    if claim.right:
        right_values = value_per_seed(
            cell, claim.right, claim.other or metric, claim.right_at, claim.reduce
        )
        if claim.measure == "ratio":
            values, unit = values / right_values, "times"
            unit += {"ppl": ", all tokens", "ppl_words": ", over words"}.get(
                metric.partition("_")[2], ""
            )
        elif claim.measure == "log_ratio":
            # Half a count is added to both, so that a count of zero has a logarithm.
            half_count = 0.5 if metric.startswith("unique") else 0.0
            values, unit = (
                ((values + half_count) / (right_values + half_count)).apply(np.log),
                "log ratio",
            )
        else:
            values = values - right_values
        # Perplexities over all tokens are compared only on one text and with one vocabulary. Else
        # their interval is shown, and no verdict.
        reads_other_texts = metric in OF_ALL_TOKENS and _read_other_texts(arms)
        if reads_other_texts or ("ppl" in metric and pd.concat(arms).vocab_size.nunique() > 1):
            values = values.dropna()
            reason, rule = OTHER_TEXT if reads_other_texts else OTHER_VOCABULARY
            interval_text = statistics.format_interval(
                *statistics.confidence_interval(values.tolist()), unit
            )
            return Evidence(
                ours=interval_text,
                why=reason,
                rule=rule,
                seeds=len(values),
                seeds_of_interval=len(values),
                comparable=False,
            )
    if claim.reduce.startswith("rank"):
        unit = "rank correlation"
    # One arm, or two: of these, only seeds that both have are paired.
    seeds = [{*arm.seed} for arm in arms]
    values, runs = values.dropna(), len(seeds[0] & seeds[-1])
    if values.empty:
        return None
    evidence = statistics.judge_mean(
        values.tolist(),
        side=claim.side,
        line=line,
        unit=unit,
        seeds_at_first_look=first_look_seeds,
        all_seeds=all_seeds,
    )
    few_note = f"{len(values)} of {runs} runs give a number" * (len(values) < runs)
    reason = "; ".join(filter(None, (evidence.why, few_note)))
    return replace(evidence, share_with_number=len(values) / runs, why=reason)


@dated
def _read_other_texts(arms: list[DataFrame]) -> bool:
    """Whether some of the arms read the text as it is, and others read it redacted."""
    names = {name for arm in arms for name in arm.method.unique()}
    return len({methods.method_by_name(name).reads_raw for name in names}) > 1


@dated
def _judge_attack(
    claim: Claim, cell: DataFrame, metric: str, *, all_seeds: bool = False
) -> Evidence | None:
    rows = attack_points(cell, claim.left, claim.attack, metric)
    if rows.empty:
        return None
    first = _seeds_at_first_look(claim, cell)
    if claim.measure == "leaks":
        return statistics.judge_leak_everywhere(
            claim.attack,
            rows,
            seeds=claim.seeds,
            seeds_at_first_look=first,
            all_seeds=all_seeds,
        )
    unprotected = attack_points(cell, "sgd_missing", claim.attack, metric)
    return statistics.judge_no_leak(
        claim.attack,
        rows,
        statistics.attack_works(claim.attack, unprotected),
        idle=statistics.attack_is_idle(claim.attack, unprotected),
        seeds=claim.seeds,
        power=statistics.attack_power(claim.attack, unprotected),
        seeds_at_first_look=first,
        all_seeds=all_seeds,
    )


@dated
def _judge_level(
    claim: Claim, cell: DataFrame, metric: str, *, all_seeds: bool = False
) -> Evidence | None:
    x = value_per_seed(cell, claim.left, metric, claim.at)
    if x.empty:
        return None
    e = statistics.judge_mean(
        (x / float(claim.line)).tolist(), side="close", line=statistics.CLOSE_RATIO
    )
    return replace(
        e,
        ours=f"{x.mean():.3g}",
        value=float(x.mean()),
        low=None,
        high=None,
        rule="a level is compared on the paper's own corpus and model, and only there",
    )


def measure_claim(claim: Claim, sources: Sources) -> Iterator[tuple[Evidence, dict[str, Any]]]:
    """The evidence of each cell that has any, and which cell that is."""
    if claim.measure == "calculation":
        number, sentence = getattr(calculations, claim.call)(**claim.given)
        with collect_judges() as judges:
            exact = statistics.judge_calculation(number, sentence, side=claim.side, line=claim.line)
        yield (
            replace(exact, judges=frozenset(judges)),
            {"source": "calculated", "edition": "exact", "corpus": "", "model": ""},
        )
        return
    for name in claim.tables:
        if name in load_terms()["longer"].values() and claim.at != "picked":
            continue  # used only for what trainings reach, in place of shorter ones
        table = select_rows(sources[name], claim.only) if name in sources else DataFrame()
        if table.empty:
            continue
        for _, cell_rows in table.groupby(list(claim.cells), sort=False):
            with collect_judges() as choice_judges:
                if _has_longer_runs(claim, cell_rows, name, sources):
                    continue
            no_run = pd.Series(False, index=cell_rows.index)
            is_longer = cell_rows.get("longer", no_run)
            cell, longer = cell_rows[~is_longer], cell_rows[is_longer]
            for metric in claim.metrics:
                with collect_judges() as judges:
                    evidence = _measure_cell(claim, cell, longer, name, metric)
                    if evidence is None:
                        continue
                    if "fewest" in evidence.margins:  # it was looked at more than once
                        by_all_seeds = _measure_cell(
                            claim, cell, longer, name, metric, all_seeds=True
                        )
                        evidence = replace(evidence, by_all_seeds=by_all_seeds)
                evidence = replace(
                    evidence,
                    judges=frozenset(judges | (choice_judges if claim.at == "picked" else set())),
                )
                cell_facts = _describe_cell(claim, cell, name, metric, evidence.seeds_of_interval)
                yield evidence, cell_facts


@dated
def _measure_cell(
    claim: Claim,
    cell: DataFrame,
    longer: DataFrame,
    name: str,
    metric: str,
    *,
    all_seeds: bool = False,
) -> Evidence | None:
    """The evidence of one cell of the edition ``name``, without what short or unsettled runs cannot
    show. A test for one look reads the seeds of the first one, or ``all_seeds``."""
    judge = {"leaks": _judge_attack, "calm": _judge_attack, "level": _judge_level}.get(
        claim.measure, _judge_comparison
    )
    evidence = judge(claim, cell, metric, all_seeds=all_seeds)
    if evidence is None:
        return None
    if claim.at == "picked" and evidence.comparable:
        evidence = _discount_unsettled_arms(
            claim, cell, longer, metric, evidence, all_seeds=all_seeds
        )
    if any(c not in cell or set(cell[c]) != {v} for c, v in claim.own.items()):
        evidence = replace(evidence, comparable=False, why=claim.why)
    if name in load_terms()["longer"].values():
        evidence = replace(evidence, margins=(*evidence.margins, "longer"))
    return _discount_short_runs(claim, cell, evidence)


@dated
def _has_longer_runs(claim: Claim, cell: DataFrame, name: str, sources: Sources) -> bool:
    """Whether trainings of the same text and models with more epochs, and a search of their own,
    answer in place of a cell: a claim about what trainings reach uses those that settled."""
    longer = load_terms()["longer"].get(name, "")
    if claim.at != "picked" or longer not in claim.tables or longer not in sources:
        return False
    cell_values = {column: cell[column].unique().tolist() for column in claim.cells}
    longer_rows = select_rows(select_rows(sources[longer], claim.only), cell_values)
    return all(len(rows) > 0 for rows in _select_arms(claim, longer_rows))


@dated
def _discount_short_runs(claim: Claim, cell: DataFrame, evidence: Evidence) -> Evidence:
    """Evidence that refutes only where the runs are as long as the paper's: what leaks grows with
    the number of epochs."""
    longest = min(rows.epochs.min() for rows in _select_arms(claim, cell)) if claim.epochs else 0
    if longest >= claim.epochs or evidence.p_false > statistics.ALPHA:
        return evidence
    short_note = f"{longest:.0f} of the paper's {claim.epochs} epochs refute nothing"
    reason = "; ".join(filter(None, (evidence.why, short_note)))
    return replace(
        evidence,
        p_false=1.0,
        why=reason,
        epochs=int(longest),
        deviations_to_line=np.nan,
        most_deviations_to_line=np.nan,
    )


def _describe_cell(
    claim: Claim, cell: DataFrame, name: str, metric: str, pairs: int
) -> dict[str, Any]:
    rows = pd.concat(_select_arms(claim, cell))
    metrics = {metric, claim.other} - {""}
    giving = rows[rows.metric.isin(metrics)] if metrics & {*rows.metric} else rows
    runs = giving.drop_duplicates("run")
    costs = cell.drop_duplicates("run").groupby("seed").seconds.sum() if "seconds" in cell else ()
    return {
        "seeds": rows.seed.nunique(),
        "hours_a_seed": float(np.mean(costs)) / 3600 if len(costs) else np.nan,
        "source": name,
        "metric": metric,
        "edition": describe_size(runs, pairs, _describe_details(claim, cell, metric)),
        "made": "\n".join(load_terms()["made"][t] for t in runs.get("table", pd.Series()).unique()),
        "corpus": ", ".join(sorted(set(runs.corpus))),
        "model": ", ".join(sorted(set(runs.model.dropna()))),
    }


def _describe_details(claim: Claim, cell: DataFrame, metric: str) -> list[str]:
    """What the size of a row needs beside its texts, width and epochs: how many secrets were
    attacked and missed, or labelled; how many draws of how many texts were trained on; the
    snapshots that were judged, where they are not the last; and the epsilon of DP-SGD there."""
    rows = pd.concat(_select_arms(claim, cell))
    details = []
    if claim.measure in ("leaks", "calm") and claim.attack != "exposure":
        secrets_of = {m: rows[rows.metric == m].value for m in ("n_members", "n_missed")}
        if len(secrets_of["n_members"]):
            attacked, missed = (format_range(values) for values in secrets_of.values())
            details.append(f"{attacked} secrets attacked and {missed} of them missed")
    labelled = rows[rows.metric == "secrets"].value
    if metric in ("recall", "precision") and len(labelled):
        details.append(f"{format_range(labelled)} labelled secrets")
    if "examples" in {*rows.metric}:
        draws = (rows.steps * rows.batch_size).dropna()
        examples = rows[rows.metric == "examples"].value
        details.append(f"{format_range(draws)} draws of {format_range(examples)} texts")
    if metric.endswith("_fitted"):
        judged = rows[rows.metric == metric].epoch
        details.append(f"judged at epoch {format_range(judged)}")
    for arm, snapshot in ((claim.left, claim.at), (claim.right, claim.right_at)):
        if load_terms()["arms"].get(arm, {}).get("method") == "dpsgd":
            epsilons = value_per_seed(cell, arm, "epsilon", snapshot)
            details += [f"ε = {epsilons.mean():.3g}"] * (len(epsilons) > 0)
    return list(dict.fromkeys(details))


def format_range(values: pd.Series) -> str:
    """Whole numbers as one, or as the least and the largest."""
    low, high = (f"{round(end):,}" for end in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def unit_of_corpus(corpus: str) -> str:
    """What one text of a corpus is: a dialogue, where nothing else is said."""
    return str(load_terms()["units"].get(corpus, "dialogues"))


def name_without_version(corpus: str) -> str:
    """A corpus whatever the version or the cut of its text."""
    return str(load_terms()["versions"].get(corpus, corpus))


def size_of_edition(editions: pd.Series) -> pd.Series:
    """The number of texts with which :func:`describe_size` begins; missing where there is none."""
    units = "|".join({"dialogues", *load_terms()["units"].values()})
    return editions.str.extract(rf"^(\d+) (?:{units})")[0].astype(float)


def describe_size(runs: DataFrame, pairs: int, details: Iterable[str] = ()) -> str:
    """How large runs are, in words: texts in the unit of their corpus, width, epochs, probes,
    further ``details``, and the seeds (or ``pairs`` of runs) on which a number is based."""
    parts = []
    units = sorted({unit_of_corpus(corpus) for corpus in runs.corpus})
    columns = {
        "dialogues": " or ".join(units),
        "hidden": "wide",
        "epochs": "epochs",
        "probes": "probes",
        "others": "other lines",
    }
    for column, name in columns.items():
        sizes = sorted({int(v) for v in runs[column].dropna()}) if column in runs else []
        parts += [f"{', '.join(map(str, sizes))} {name}"] if sizes else []
    return ", ".join([*parts, *details, f"{pairs} seed{'s'[: pairs != 1]}"])
