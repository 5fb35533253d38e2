"""A claim is judged by what was measured: each in a world where it is true, and in one where it
is not."""

import inspect
import itertools
import zlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy import stats

from crtbook import search
from crtbook.claims import calculations, ledger, measures, statistics
from crtbook.claims.claim import Claim, load_claims, load_terms

SEEDS = 5
USUAL = {
    "corpus": "customersim",
    "model": "lstm",
    "dialogues": 300,
    "hidden": 64,
    "vocab_size": 512,
}


def world(claim, values, seeds=SEEDS):
    """The table of a world: every arm of ``values`` measures what is said there, but for luck."""
    rows = [row for arm, value in values.items() for row in _arm(claim, arm, value, seeds)]
    return pd.DataFrame(rows)


def _arm(claim, name, value, seeds):
    arm = load_terms()["arms"][name]
    one = {c: v[0] if isinstance(v, list) and c != "gamma" else v for c, v in arm.items()}
    gammas = one.pop("gamma", 0.0)
    fixed = {c: v[0] if isinstance(v, list) else v for c, v in claim.only.items()}
    for seed, gamma in itertools.product(
        range(seeds), gammas if isinstance(gammas, list) else [gammas]
    ):
        facts = USUAL | fixed | dict(claim.own) | one | {"gamma": gamma, "seed": seed}
        facts |= {"run": f"{name} {seed} {gamma}", "epochs": max(1, claim.epochs)}
        metrics = value if isinstance(value, dict) else dict.fromkeys(claim.metrics, value)
        for metric, number in metrics.items():
            for row in _rows(claim, metric, number, (seed, zlib.crc32(name.encode()))):
                yield facts | row
        if claim.at == "picked" and measures.VALIDATION not in metrics:
            for row in _rows(claim, measures.VALIDATION, 2.0, (seed, zlib.crc32(name.encode()))):
                yield facts | row


def _rows(claim, metric, number, seed_and_arm):
    luck = np.random.default_rng([*seed_and_arm, len(metric)]).normal()
    counted = claim.measure in ("zero", "some", "rate", "constant")
    exact = counted or metric in ("epsilon", "secrets")
    if metric == "exposure":
        for k in range(10):  # the quantiles of an exponential law
            bits = -number * np.log(1 - (k + 0.5) / 10) + 0.05 * luck
            yield {"metric": metric, "epoch": 1, "item": k, "value": float(np.clip(bits, 0, 19.93))}
        return
    if metric.endswith("accuracy"):
        yield {"metric": f"{metric}_null", "epoch": 1, "item": 0, "value": 0.01}
        number, exact = number + 0.002 * luck, True
    if claim.at == "picked":  # a curve that has settled
        number = [number] * 3
    kind = claim.reduce.split()[0]
    numbers = number if isinstance(number, list) else [number]
    if (
        metric in claim.metrics and seed_and_arm[0] == 0 and not counted
    ):  # equal seeds would have no spread
        numbers = {"rank": numbers[1::-1] + numbers[2:], "under": numbers[:-1]}.get(kind, numbers)
    for k, x in enumerate(numbers):
        items = kind in ("under", "count") and metric in claim.metrics
        at = claim.at if isinstance(claim.at, int) else 1
        row = {"metric": metric, "epoch": at if items else k + 1, "item": k}
        if kind == "rank":
            row["scale"] = float(k + 1)
        off = 0 if exact or items else (0.004 * x + 1e-4) * luck
        yield row | {"value": float(x + off)}


# --- the claims -----------------------------------------------------------------------------------
CLAIMS = {claim.id: claim for claim in load_claims()}
WORLDS = [(name, truth) for name in CLAIMS for truth in (True, False)]


def verdicts(claim, truth, seeds=SEEDS):
    """What the ledger says of a claim in its planted world; what happens sometimes or never takes
    as many runs as there are reasons to doubt it."""
    values = claim.if_true if truth else claim.if_false
    counted = claim.measure in ("zero", "some", "worst")
    seeds = 8 * seeds if counted and seeds == SEEDS else seeds
    if claim.measure == "calculation":
        e = statistics.judge_calculation(values["it"], "", side=claim.side, line=claim.line)
        return {statistics.decide_verdict(e, seeds=claim.seeds)}
    rows = ledger.judge_claims([claim], {claim.tables[0]: world(claim, values, seeds)})
    other_texts = (rows.verdict == statistics.INCOMPARABLE) & rows.why.str.contains("redacted")
    return set(rows[~other_texts].verdict)


@pytest.mark.parametrize(("name", "truth"), WORLDS)
def test_a_planted_world_decides_every_claim(name, truth):
    claim = CLAIMS[name].model_copy(update={"kind": "claim", "holds": ""})
    assert verdicts(claim, truth) == {"agrees" if truth else "differs"}


@pytest.mark.parametrize("missing", ["if_true", "if_false"])
def test_a_claim_without_both_worlds_is_refused(missing):
    facts = CLAIMS["crt-f2-lstm"].model_dump()
    del facts[missing]
    with pytest.raises(ValidationError, match=missing):
        Claim(**facts)


def test_an_inverted_rule_fails_its_own_worlds():
    """The fault that stood in the ledger: what was measured was the claim's negation."""
    claim = CLAIMS["crt-dedup-alone"]
    inverted = claim.model_copy(
        update={"measure": "calm", "if_true": claim.if_true | {"sgd_missing": 0.8}}
    )
    assert verdicts(inverted, True) == {"differs"}
    swapped = CLAIMS["crt-f2-dpsgd-lstm"].model_copy(update={"left": "dpsgd", "right": "crt"})
    assert verdicts(swapped, True) == {"differs"}


@pytest.mark.parametrize(
    "name", [n for n, c in CLAIMS.items() if c.measure not in ("calculation", "constant")]
)
def test_one_seed_decides_nothing(name):
    claim = CLAIMS[name]
    if claim.seeds == 1:  # a count of labels: its cases are independent, and there is one corpus
        assert claim.tables == ("screening",)
        return
    for truth in (True, False):
        open_ = {statistics.OPEN, statistics.UNDECIDABLE}
        assert verdicts(claim, truth, seeds=1) <= open_
        decided = not verdicts(claim, truth, seeds=2) <= open_
        assert decided == (claim.seeds <= 2)


def test_equal_seeds_decide_nothing_unless_no_seed_can_change_the_number():
    """Fault: three runs that all gave 0 had a spread of 0, and so a p-value of 0."""
    equal = statistics.judge_mean([0.0, 0.0, 0.0], side="below", line=0.5)
    assert statistics.decide_verdict(equal) == statistics.OPEN and "spread" in equal.why
    assert (equal.low, equal.high) == (None, None)
    constant, world_ = CLAIMS["hush-arxiv"], {"paper_ranks": 0.9}
    assert verdicts(constant, True) == {"agrees"}
    changed = pd.concat([world(constant, world_, 2), world(constant, {"paper_ranks": 0.8}, 1)])
    with pytest.raises(ValueError, match="too many"):
        ledger.judge_claims([constant], {"words": changed})


def test_every_name_exists():
    for claim in CLAIMS.values():
        arms = {claim.left, claim.right, *claim.if_true, *claim.if_false} - {"", "it"}
        assert arms <= set(load_terms()["arms"]), claim.id
        assert claim.run in {"", *load_terms()["runs"]}, claim.id
        if claim.measure == "calculation":
            inspect.signature(getattr(calculations, claim.call)).bind(**claim.given)


# --- the statistics -------------------------------------------------------------------------------
def test_an_interval_that_holds_the_line_is_no_equivalence():
    wide = statistics.judge_mean([0.7, 1.0, 1.3], side="close", line=1.1)
    near = statistics.judge_mean([0.99, 1.0, 1.01], side="close", line=1.1)
    far = statistics.judge_mean([1.99, 2.0, 2.01], side="close", line=1.1)
    told = [statistics.decide_verdict(e) for e in (wide, near, far)]
    assert told == [statistics.OPEN, "agrees", "differs"]


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([0.93, 0.95, 0.94], "agrees"),  # better
        ([0.98, 1.0, 1.02], "agrees"),  # the same
        ([1.05, 1.06, 1.07], "in part"),  # worse, by less than a tenth
        ([1.2, 1.21, 1.22], "differs"),
        ([0.9, 1.1, 1.3], statistics.OPEN),
    ],
)
def test_the_same_or_better_has_three_outcomes(ratios, verdict):
    row = statistics.judge_mean(ratios, side="same or below", line=1.1)
    assert told([row]) == [verdict]


def told(rows):
    return [statistics.decide_verdict(e) for e in statistics.correct_in_family(rows)]


def test_what_lies_on_its_line_is_not_decidable_and_what_lies_beside_it_waits_for_seeds():
    """A row says how many seeds would decide it; more than ``MAX_SEEDS`` are another verdict."""
    values = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    many = np.tile(values, 200)
    rows = [
        statistics.judge_mean(1 + gap + x, side="above", line=1)
        for gap, x in ((0.001, many), (0.6, values), (3.0, values))
    ]
    assert told(rows) == [statistics.UNDECIDABLE, statistics.OPEN, "agrees"]
    assert told([statistics.judge_mean(1 + values[:2], side="above", line=1)]) == [statistics.OPEN]


def test_what_few_seeds_saw_on_the_line_is_open():
    """The mean and the spread of five seeds do not say that a hundred would not decide."""
    values = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    (row,) = statistics.correct_in_family(
        [statistics.judge_mean(1.001 + values, side="above", line=1)]
    )
    assert row.seeds_to_decide > statistics.MAX_SEEDS > row.fewest_seeds_to_decide
    assert statistics.decide_verdict(row) == statistics.OPEN


def test_seeds_that_give_no_number_are_counted_among_those_that_a_row_needs():
    """Where one run of ten has anything to measure, ten times as many must be run."""
    row = statistics.judge_mean([0.6, 1.1, 1.6, 2.1, 2.6], side="above", line=1)
    (whole,), (part,) = (
        statistics.correct_in_family([replace(row, share_with_number=s)]) for s in (1.0, 0.02)
    )
    assert (
        part.seeds_to_decide == 50 * whole.seeds_to_decide
        and part.fewest_seeds_to_decide == 50 * whole.fewest_seeds_to_decide > statistics.MAX_SEEDS
    )
    assert statistics.decide_verdict(whole) == statistics.OPEN
    assert statistics.decide_verdict(part) == statistics.UNDECIDABLE


def test_so_many_seeds_as_a_row_needs_decide_it_four_times_in_five():
    rng = np.random.default_rng(0)
    needed = statistics.seeds_needed(0.7)
    drawn = rng.normal(0.7, 1, (2000, needed))
    decided = [statistics.mean_above_p_value(values, 0) <= statistics.ALPHA for values in drawn]
    assert 0.77 < np.mean(decided) < 0.85


def test_an_attack_that_sees_nothing_in_so_few_people_is_not_decidable():
    """Two secrets a run: at chance within 0.02 would take thousands of runs."""
    wild = points(np.tile([0.0, 0.5, 1.0], 700), 0.35)
    assert told([statistics.judge_no_leak("accuracy", wild, True)]) == [statistics.UNDECIDABLE]
    assert told([statistics.judge_leak_everywhere("accuracy", wild)]) == [statistics.UNDECIDABLE]
    blind = statistics.judge_no_leak(
        "accuracy", points([0.5, 0.501, 0.499], 0.002), False, power=(0.01, 0.01)
    )
    assert told([blind]) == [statistics.UNDECIDABLE]


def test_the_same_or_better_holds_where_both_are_equal():
    """A superiority test of that sentence would never end where it is true."""
    for name in ("crt-f2-dpsgd-gpt", "crt-f2-dpsgd-lstm", "crt-f2-sdp", "crt-f2-sdp-perfect"):
        claim = CLAIMS[name]
        equal = claim.model_copy(update={"if_true": {claim.left: 2.0, claim.right: 2.0}})
        assert verdicts(equal, True) == {"agrees"}
        assert (claim.line, claim.side) == (statistics.CLOSE_RATIO, "same or below")


def test_holm_keeps_false_verdicts_of_a_family_rare():
    """Twenty rows on the line: some row leaves it in at most one family in twenty."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(300):
        rows = [statistics.judge_mean(rng.normal(1, 1, 5), side="above", line=1) for _ in range(20)]
        alone = {statistics.decide_verdict(e) for e in statistics.correct_in_family(rows)}
        wrong += not alone <= {statistics.OPEN, statistics.UNDECIDABLE}
    assert wrong <= 0.05 * 300 + 3 * np.sqrt(0.05 * 0.95 * 300)


def points(values, spread, gammas=(0.1, 0.5), *, of_all=False):
    """Accuracies over missed secrets, or ``of_all`` secrets, of which the share gamma is missed."""
    rows = [
        (g, s, v, spread, statistics.chance_margin("accuracy", g if of_all else None))
        for g in gammas
        for s, v in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=["gamma", "seed", "value", "spread", "margin"])


@pytest.mark.parametrize(
    ("looks", "error"), [((5,), 0.05), ((5, 10), 0.087), ((5, 10, 14), 0.111), ((3, 4, 5), 0.101)]
)
def test_who_looks_again_errs_as_often_as_the_page_says(looks, error):
    draws = np.random.default_rng(0).standard_normal((20_000, max(looks)))
    wrong = [stats.ttest_1samp(draws[:, :n], 0, axis=1).pvalue < 0.05 for n in looks]
    assert np.any(wrong, axis=0).mean() == pytest.approx(error, abs=0.01)


def test_chance_of_an_exposure_is_gammas_law():
    rng = np.random.default_rng(0)
    runs = rng.exponential(statistics.CHANCE_EXPOSURE_BITS, (2000, 3, 10)).mean(axis=2)
    spread = np.full(3, 10)
    p = np.array([statistics.leak_p_value("exposure", run, spread) for run in runs])
    assert abs((p < 0.05).mean() - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize(
    ("values", "works", "verdict"),
    [
        ([0.5, 0.501, 0.499], True, "agrees"),
        ([0.5, 0.501, 0.499], False, statistics.OPEN),  # an attack without power tells nothing
        ([0.52, 0.56, 0.48], True, statistics.OPEN),
        ([0.6, 0.61, 0.6], True, "differs"),
        ([0.51, 0.511, 0.512], True, "in part"),  # above chance, but by less than the margin
        ([0.5, 0.5], True, statistics.OPEN),
        ([0.521, 0.522, 0.522], True, "in part"),  # above the margin, but that is not shown
        ([0.515, 0.53, 0.535], True, "in part"),
        ([0.53, 0.531, 0.53], True, "differs"),
    ],
)
def test_nothing_leaks_is_equivalence_with_chance(values, works, verdict):
    spread = 0.2 if values[0] == 0.52 else 0.002
    e = statistics.judge_no_leak("accuracy", points(values, spread), works)
    assert statistics.decide_verdict(e) == verdict


def test_one_point_above_its_own_margin_refutes_and_its_rule_names_the_margins():
    """Fault: the estimate of a point above its margin, by luck, turned "in part" into "differs"."""
    near = [points([0.5, 0.501, 0.499], 0.002, [g], of_all=True) for g in (0.3, 0.5)]
    verdicts = []
    for values in ([0.503, 0.5043, 0.5045], [0.52, 0.521, 0.52], [0.5, 0.5005, 0.4995]):
        at_a_tenth = points(values, 0.0008, [0.1], of_all=True)  # the margin is 0.0032
        e = statistics.judge_no_leak("accuracy", pd.concat([at_a_tenth, *near]), True)
        verdicts.append(statistics.decide_verdict(replace(e, p_true=1.0)))
        assert "from 0.0032 at γ = 0.1 to 0.02 at γ = 0.5" in e.rule
    assert verdicts == ["in part", "differs", statistics.OPEN]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.1, 1.2] * 14, "agrees"),
        ([1.0, 1.1, 1.2] * 4, statistics.OPEN),
        ([1.0, 1.1, 1.2] * 14 + [2.51], "differs"),  # their mean is below the line
    ],
)
def test_a_worst_case_is_the_largest_of_all_runs(values, verdict):
    row = statistics.judge_worst_case(values, line=1.895)
    assert told([row]) == [verdict]
    assert row.ours.startswith(f"at most {max(values):.3g} ")


def test_a_word_is_sensitive_only_where_it_is_said_inside_a_secret(monkeypatch):
    """ "New" was counted a name that stays, because so many say it of a ticket."""

    def dialogue(user, text, start, end):
        secret = SimpleNamespace(kind="name", start=start, end=end)
        turn = SimpleNamespace(text=text, secrets=(secret,))
        return SimpleNamespace(user=user, turns=(turn,))

    said = [dialogue(k, "new ticket for Ann", 15, 18) for k in range(30)]
    said += [dialogue("x", "Mr New has a ticket", 3, 6)]
    monkeypatch.setattr(calculations.customersim, "stream_dialogues", lambda *_: iter(said))
    assert calculations.rare_words()[0] == 1


def test_extraction_ends_where_the_largest_table_says(monkeypatch):
    """Fault: 0.3 was typed, at which one probe in forty is still extracted."""
    few = pd.DataFrame({"study": "extraction", "metric": "memorised", "hidden": 32, "run": ["abc"],
                        "noise_multiplier": 0.3, "value": 0.0, "probes": 48})  # fmt: skip
    noises, extracted = [0.3, 0.3, 1.0, 1.0], [77.0, 1.0, 0.0, 3.0]
    many = pd.DataFrame({"study": "extraction", "metric": "memorised", "hidden": [32, 64, 32, 64],
                         "run": [*"abcd"], "noise_multiplier": noises, "value": extracted,
                         "probes": 4800})  # fmt: skip
    recorded = {"secrets_laptop": few, "probes_laptop": many}
    monkeypatch.setattr(calculations.tables, "load_recorded", recorded.get)
    (least, most), words = calculations.bound_where_extraction_ends()
    assert words.startswith("between σ = 0.3, where 1.60%") and least < 0.99 < most
    judged = statistics.judge_calculation((least, most), words, side="most", line=0.99)
    assert statistics.decide_verdict(judged) == statistics.OPEN
    finer = many.assign(noise_multiplier=[0.9, 0.9, 1.0, 1.0])
    recorded["probes_laptop"] = finer
    (least, most), words = calculations.bound_where_extraction_ends()
    judged = statistics.judge_calculation((least, most), words, side="most", line=0.99)
    assert statistics.decide_verdict(judged) == "agrees" and most < 0.99


def test_a_reason_does_not_say_what_the_family_takes_back():
    """Fault: a row agreed, and its reason said "above chance"."""
    shown = statistics.judge_no_leak("accuracy", points([0.51, 0.511, 0.512], 0.002), True)
    weak = replace(shown, p_worse=0.01)
    rows = statistics.correct_in_family([weak, *[shown] * 3])
    assert statistics.describe_excess(rows[0]) == ["above chance (p = 0.01)"]
    alone = statistics.correct_in_family([weak, *[replace(shown, p_worse=1.0)] * 3])[0]
    assert statistics.describe_excess(alone) == []
    assert statistics.decide_verdict(alone) == "agrees" and "above chance" not in alone.why


def test_an_attack_that_is_at_chance_without_protection_compares_nothing():
    still, wild = [0.5, 0.501, 0.499], [0.4, 0.5, 0.6]
    assert statistics.attack_is_idle("accuracy", points(still, 0.002))
    assert not statistics.attack_is_idle("accuracy", points(wild, 0.002))  # it cannot be told
    assert not statistics.attack_is_idle("accuracy", points(still[:2], 0.002))
    seen = [
        statistics.decide_verdict(
            statistics.judge_no_leak("accuracy", points(values, 0.002), works, idle=True)
        )
        for values, works in ((still, False), (still, True), ([0.6, 0.61, 0.6], False))
    ]
    assert seen == [statistics.INCOMPARABLE, statistics.INCOMPARABLE, "differs"]


def test_an_attack_works_where_it_finds_more_than_the_margin():
    """Fault: by twenty seeds an attack was shown above chance and within the margin of it, and CRT
    agreed because it was within the same margin."""
    slight, clear = [0.51, 0.511, 0.509], [0.53, 0.531, 0.529]
    assert not statistics.attack_works("accuracy", points(slight, 0.002))
    assert statistics.attack_works("accuracy", points(clear, 0.002))
    at_a_tenth = points(slight, 0.002, [0.1], of_all=True)
    assert statistics.attack_works("accuracy", at_a_tenth)  # of all, 0.51 is much


def test_a_leak_is_more_than_the_margin_over_all_points():
    """Fault: "surges above 0.5" agreed with what is above chance and within its margin."""
    everywhere, nearly = [0.53, 0.531, 0.529], [0.51, 0.511, 0.509]
    verdicts = [
        statistics.decide_verdict(statistics.judge_leak_everywhere("accuracy", world))
        for world in (
            points(everywhere, 0.002),
            pd.concat([points(nearly, 0.002, [0.1]), points([0.6, 0.61, 0.6], 0.002, [0.5])]),
            points([0.515, 0.525, 0.535], 0.008),
        )
    ]
    assert verdicts[0] == "agrees" and verdicts[2] == statistics.OPEN
    assert verdicts[1] == "in part"  # one point is shown to be within the margin


def test_the_margin_follows_from_what_the_policy_missed():
    """Fault: a tagger that missed a fifth of the secrets at a gamma of a tenth was judged by the
    margin of a tenth."""
    columns = {"method": "sgd", "gamma": 0.1, "epoch": 1, "item": None}
    table = pd.DataFrame([
        {**columns, "seed": seed, "run": str(seed), "metric": metric, "value": value}
        for seed in range(3)
        for metric, value in (("mia_accuracy", 0.51), ("mia_accuracy_null", 0.01),
                              ("n_members", 100.0), ("n_missed", 20.0))
    ])  # fmt: skip
    attacked = measures.attack_points(table, "sgd", "accuracy", "mia_accuracy")
    assert attacked.margin.tolist() == [statistics.chance_margin("accuracy", 0.2)] * 3
    silent = table[~table.metric.isin(["n_members", "n_missed"])]
    attacked = measures.attack_points(silent, "sgd", "accuracy", "mia_accuracy")
    assert attacked.margin.tolist() == [statistics.chance_margin("accuracy", 0.1)] * 3


def test_a_count_of_several_runs_of_a_seed_is_their_sum():
    """Fault: twenty texts that a report had missed vanished in the mean over five methods."""
    claim = CLAIMS["rep-complete"]
    rows = [
        {"study": "leakage", "unit": "turn", "corpus": "customersim", "model": "gru", "epoch": 1,
         "dialogues": 100, "hidden": 48, "epochs": 24, "method": method, "seed": seed,
         "run": f"{method}{seed}", "item": None, "metric": metric, "value": value}
        for seed in range(10)
        for method in ("sgd", "crt", "dpsgd", "lp_weighted", "none")
        for metric, value in (("canaries_completed", 10.0), ("canaries_listed", 10.0))
    ]  # fmt: skip
    whole = pd.DataFrame(rows)
    missed = whole.assign(value=whole.value - 2 * (
        (whole.method == "sgd") & (whole.metric == "canaries_listed")))  # fmt: skip
    told_of = [
        ledger.judge_claims([claim], {"leakage": table}).iloc[0] for table in (whole, missed)
    ]
    assert [row.verdict for row in told_of] == [statistics.CONSTRUCTION, "differs"]
    assert told_of[1].ours.startswith("480 of 500,")
    with pytest.raises(ValueError, match="a rate needs one run a seed"):
        ledger.judge_claims([claim.model_copy(update={"reduce": "mean"})], {"leakage": whole})


def test_runs_of_one_seed_with_other_epochs_are_not_averaged():
    table = world(CLAIMS["rep-f5-grows"], {"trained": [1.0, 5.0]})
    longer = table.assign(run=table.run + "b", epochs=table.epochs.max() + 2)
    with pytest.raises(ValueError, match="of one seed"):
        ledger.judge_claims([CLAIMS["rep-f5-grows"]], {"leakage": pd.concat([table, longer])})


def test_two_arms_are_compared_at_the_miss_rates_that_both_have():
    claim = CLAIMS["crt-f3-sdp-similar"]
    both = world(claim, {"selective_missing": 15.0, "sgd_missing": 15.0})
    is_alone = (both.method == "selective") & (both.gamma > 0.2)
    table = both[~is_alone].assign(value=both.value + 20 * (both.gamma > 0.2))
    assert ledger.judge_claims([claim], {"laptop": table}).verdict.tolist() == ["agrees"]


def test_a_leak_at_every_point_needs_every_point():
    leaky, calm = points([0.7, 0.71, 0.7], 0.01, [0.5]), points([0.5, 0.501, 0.5], 0.01, [0.1])
    few = points([0.7], 0.01, [0.3])
    assert (
        statistics.decide_verdict(statistics.judge_leak_everywhere("accuracy", leaky)) == "agrees"
    )
    both = statistics.judge_leak_everywhere("accuracy", pd.concat([leaky, calm]))
    assert statistics.decide_verdict(both) == "in part" and "at chance at γ = 0.1" in both.why
    everywhere = statistics.judge_leak_everywhere("accuracy", points([0.5, 0.501, 0.5], 0.01))
    assert statistics.decide_verdict(everywhere) == "differs"
    wild = points([0.4, 0.5, 0.6], 0.05, [0.1])
    one = statistics.judge_leak_everywhere("accuracy", pd.concat([leaky, wild]))
    assert statistics.decide_verdict(one) == statistics.OPEN  # an undecided point refutes nothing
    short = statistics.judge_leak_everywhere("accuracy", pd.concat([leaky, few]))
    assert statistics.decide_verdict(short) == statistics.OPEN


def test_counts_and_calculations():
    def told(e):
        return statistics.decide_verdict(e, seeds=1)

    assert told(statistics.judge_share([200], [200], side="above", line=1.0)) == "agrees"
    assert told(statistics.judge_share([199], [200], side="above", line=1.0)) == "differs"
    assert told(statistics.judge_share([180], [200], side="above", line=0.9)) == statistics.OPEN
    assert told(statistics.judge_occurrence([0] * 40, zero=True)) == "agrees"
    assert told(statistics.judge_occurrence([0] * 3, zero=True)) == statistics.OPEN
    assert told(statistics.judge_calculation(0.11539, "", side="rounds", line="0.12")) == "agrees"
    assert told(statistics.judge_calculation(0.11067, "", side="rounds", line="0.12")) == "differs"


def test_more_runs_of_something_that_happens_sometimes_never_weaken_it():
    """Asked of every run, nineteen of twenty were weaker evidence than three of three."""
    for n in (10, 20, 40, 100):
        seen = [1] * (7 * n // 10) + [0] * (3 * n // 10)
        assert told([statistics.judge_occurrence(seen, zero=False)]) == ["agrees"]
        assert told([statistics.judge_occurrence(seen, zero=True)]) == ["differs"]


# --- looking again --------------------------------------------------------------------------------
WORLDS_OF_NO_EFFECT = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0),
    "lognormal, mild": (lambda rng, n: rng.lognormal(0, 0.4, n), np.exp(0.08)),
    "lognormal, long": (lambda rng, n: rng.lognormal(0, 1.0, n), np.exp(0.5)),
    "counts": (lambda rng, n: rng.poisson(2, n).astype(float), 2.0),
    "rare counts": (lambda rng, n: rng.poisson(0.1, n).astype(float), 0.1),
}


@pytest.mark.parametrize("world", WORLDS_OF_NO_EFFECT)
def test_who_looks_after_each_seed(world):
    """No more than one row in twenty is decided wrongly, whenever one stops; Student's t errs in a
    quarter of them."""
    draw, mean = WORLDS_OF_NO_EFFECT[world]
    rng, rows, wrong, naive = np.random.default_rng(0), 300, 0, 0
    for _ in range(rows):
        values = draw(rng, 24)
        seen = [values[:n] for n in range(5, 25)]
        naive += any(stats.ttest_1samp(x, mean).pvalue < 0.05 for x in seen)
        wrong += any(
            statistics.is_near_normal(x)
            and 2
            * min(
                statistics.repeated_look_mean_p_value(x, mean),
                statistics.repeated_look_mean_p_value(-x, -mean),
            )
            < 0.05
            for x in seen[::3]
        )
    assert wrong <= 0.05 * rows + 2 * np.sqrt(0.05 * 0.95 * rows)
    assert naive > 0.1 * rows


def test_a_mean_that_is_above_its_line_is_found_by_looking_again():
    rng = np.random.default_rng(0)
    found = [
        statistics.repeated_look_mean_p_value(rng.normal(1.5, 1, 15), 0) <= statistics.ALPHA
        for _ in range(100)
    ]
    assert np.mean(found) > 0.9


def test_a_share_may_be_looked_at_again():
    rng, line = np.random.default_rng(0), 0.1
    counts = rng.binomial(10, line, (1000, 30))
    wrong = [
        statistics.repeated_look_share_p_value(c, [10] * 30, line) <= statistics.ALPHA
        for c in counts
    ]
    assert np.mean(wrong) <= statistics.ALPHA + 2 * np.sqrt(statistics.ALPHA / 1000)
    assert statistics.repeated_look_share_p_value([3] * 20, [10] * 20, line) < 1e-6


def test_a_row_that_was_looked_at_again_is_judged_by_a_test_that_allows_it():
    """Three seeds at first: the tenth counts where values are near normal, and not otherwise."""
    rng = np.random.default_rng(0)
    near = statistics.judge_mean(
        rng.normal(1.3, 0.1, 10), side="above", line=1.0, seeds_at_first_look=3
    )
    ties = statistics.judge_mean(
        [1.0, 1.0, 1.1] + [2.0] * 7, side="above", line=1.0, seeds_at_first_look=3
    )
    assert "by e-values" in near.rule and near.p_true < statistics.ALPHA
    assert "by the first 3 seeds" in ties.rule and ties.p_true > statistics.ALPHA
    leak = points([0.5, 0.501, 0.499, 0.7, 0.7], 0.01)
    assert (
        statistics.judge_leak_everywhere("accuracy", leak, seeds_at_first_look=3).p_true
        > statistics.ALPHA
    )
    assert statistics.judge_leak_everywhere("accuracy", leak).p_true < statistics.ALPHA


@pytest.mark.parametrize(
    ("later", "verdict"),
    [([1.3], "agrees"), ([0.2], statistics.OPEN), ([1.3, 0.2, 1.3], statistics.OPEN)],
)
def test_the_seeds_of_a_first_look_decide_only_what_all_seeds_confirm(later, verdict):
    """Fault: three seeds decided a row whose fourth spoke against it, and titled a finding."""
    values, asked = [1.3, 1.31, 1.29, *later], {"side": "above", "line": 1.0}
    assert not len(values) >= 5 or not statistics.is_near_normal(values)
    first, every = (
        statistics.judge_mean(values, **asked, seeds_at_first_look=3, all_seeds=of_all)
        for of_all in (False, True)
    )
    assert told([first]) == ["agrees"]
    (row,) = statistics.correct_in_family([replace(first, by_all_seeds=every)])
    assert statistics.decide_verdict(row) == verdict
    assert ("by the first seeds alone: agrees" in row.why) == (verdict == statistics.OPEN)


def test_a_first_look_is_confirmed_after_the_correction_of_its_family():
    """Alone, all four seeds confirm it; among four rows they do not."""
    judged = [
        statistics.judge_mean(
            [1.3, 1.31, 1.29, 1.1], side="above", line=1.0, seeds_at_first_look=3, all_seeds=of_all
        )
        for of_all in (False, True)
    ]
    row = replace(judged[0], by_all_seeds=judged[1])
    other = statistics.judge_mean([0.9, 1.0, 1.2], side="above", line=1.0)
    assert told([row]) == ["agrees"]
    assert told([row, other, other, other])[0] == statistics.OPEN


@pytest.mark.parametrize("fourth", [0.6, 0.0])
def test_a_table_that_was_looked_at_with_three_seeds_is_asked_for_all_of_them(fourth):
    claim = CLAIMS["ours-policy"]
    table = world(claim, claim.if_true, 4).assign(table="crt_paper")
    odd = (table.seed == 3) & (table.metric == claim.metric) & (table.gamma == 0.1)
    table.loc[odd, "value"] = fourth + 0.15
    (row,) = ledger.judge_claims([claim], {"paper": table}).itertuples()
    assert "by the first 3 seeds" in row.rule
    assert row.verdict == ("agrees" if fourth else statistics.OPEN)


# --- what a training can still change -------------------------------------------------------------
def curves(*arms):
    """Rows of arms that each have a curve of validation perplexity, the same for five seeds but for
    luck."""
    rng = np.random.default_rng(0)
    rows = [
        {"method": method, "gamma": 0.1, "seed": seed, "run": f"{method} {seed}", "epoch": k + 1,
         "metric": measures.VALIDATION, "value": ppl * (1 + 0.002 * rng.normal()), "item": 0}
        for method, curve in arms for seed in range(5) for k, ppl in enumerate(curve)
    ]  # fmt: skip
    return {"laptop": pd.DataFrame(rows).assign(**USUAL, epochs=6)}


@pytest.mark.parametrize(
    ("crt", "sgd", "verdict"),
    [
        ([4, 3, 2, 2, 2, 2], [4, 3, 2, 2, 2, 2], "agrees"),
        ([4, 3, 3, 3, 3, 3], [4, 3, 2, 2, 2, 2], "differs"),
        ([9, 8, 7, 6, 5, 4], [4, 3, 2, 2, 2, 2], statistics.OPEN),  # CRT still falls
        ([9, 6, 5, 3, 2.3, 2], [4, 3, 2, 2, 2, 2], "agrees"),  # it cannot become worse
        ([4, 3, 2, 2, 2, 2], [9, 8, 7, 6, 5, 4], statistics.OPEN),  # the other still falls
        ([4, 3, 3, 3, 3, 3], [9, 6, 5, 3, 2.3, 2], "differs"),
        ([4, 3, 2, 2, 2, 2], [2, 2.2, 2.4, 2.6, 3, 4], statistics.OPEN),  # it only rises
        ([2.6, 2, 2.3, 3, 4, 5], [4, 3, 2, 2, 2, 2], "agrees"),  # the epoch that validation picks
    ],
)
def test_no_ratio_is_judged_on_what_longer_training_could_change(crt, sgd, verdict):
    claim = CLAIMS["crt-f2-lstm"].model_copy(update={"metric": measures.VALIDATION})
    given = curves(("crt", crt), ("sgd", sgd))
    assert set(ledger.judge_claims([claim], given).verdict) == {verdict}


@pytest.mark.parametrize(
    ("crt", "gain", "verdict"),
    [
        ([9, 8, 7, 6, 5, 4], 0.0, "differs"),  # twice as many epochs were tried: no lower
        ([9, 8, 7, 6, 5, 4], -0.3, "differs"),
        ([9, 8, 7, 6, 5, 4], 0.02, statistics.OPEN),
        ([9, 8, 7, 6, 5, 4], np.nan, statistics.OPEN),  # nothing longer was tried
        ([9, 6, 5, 3, 2.3, 2], 0.0, "agrees"),
        ([2.6, 3, 4, 5, 6, 7], 0.0, statistics.OPEN),  # it only rises: its rates are at fault
    ],
)
def test_a_search_that_tried_twice_the_epochs_says_what_training_can_reach(crt, gain, verdict):
    claim = CLAIMS["crt-f2-lstm"].model_copy(update={"metric": measures.VALIDATION})
    table = curves(("crt", crt), ("sgd", [4, 3, 2, 2, 2, 2]))["laptop"]
    given = {"laptop": table.assign(gain_of_longer=np.where(table.method == "crt", gain, np.nan))}
    assert set(ledger.judge_claims([claim], given).verdict) == {verdict}


def test_the_gain_of_a_longer_training_is_that_of_the_same_seeds():
    """Each run at the epoch of its least perplexity; a seed that has one of the two does not
    count."""
    arm = {"corpus": "a", "model": "lstm", "init": "random", "method": "crt", "gamma": 0.1}
    runs = [(12, 0, 4.0), (12, 1, 5.0), (12, 2, 6.0), (24, 0, 2.0), (24, 1, 6.25)]
    rows = [
        {"epochs": epochs, "epoch": epoch, "seed": seed, "value": value + worse, **arm}
        for epochs, seed, value in runs
        for epoch, worse in ((1, 9.0), (epochs - 1, 0.0), (epochs, 1.0))
    ]
    table = pd.DataFrame(rows).assign(metric=measures.VALIDATION)
    table = pd.concat([table, table[table.epochs == 12].assign(method="sgd")], ignore_index=True)
    table = table.assign(longer=table.epochs == 24)
    gains = measures.gain_of_longer(table).groupby(table.method).first()
    assert gains["crt"] == pytest.approx((4 / 2 - 1 + 5 / 6.25 - 1) / 2)
    assert np.isnan(gains["sgd"])


@pytest.mark.parametrize(
    ("longer", "verdict"),
    [
        ([6, 5.5, 5, 4.6, 4.4, 4.3], "differs"),  # twice the epochs end higher, and give the same
        ([9, 8, 7, 6, 5, 3.9], statistics.OPEN),  # they end lower
        ([9, 8, 7, 6, 5, 4.1], statistics.OPEN),  # no lower on average, but each seed far apart
    ],
)
@pytest.mark.parametrize("side", ["above", "below"])
def test_an_arm_that_still_falls_is_judged_with_its_longer_runs_as_well(longer, verdict, side):
    claim = CLAIMS["crt-f2-lstm"].model_copy(
        update={"metric": measures.VALIDATION, "side": side, "line": 1.0}
    )
    if side == "above" and verdict == "differs":
        verdict = "agrees"
    given = curves(("crt", [9, 8, 7, 6, 5, 4]), ("sgd", [4, 3, 2, 2, 2, 2]))["laptop"]
    more = curves(("crt", longer))["laptop"].assign(epochs=12, longer=True)
    if longer[-1] == 4.1:
        more["value"] /= more.seed.map({0: 0.3, 1: 0.5, 2: 1.0, 3: 1.4, 4: 1.6})
    table = pd.concat([given.assign(longer=False), more.assign(run=more.run + " longer")])
    table = table.assign(init="random").reset_index(drop=True)
    table = table.assign(gain_of_longer=measures.gain_of_longer(table))
    (row,) = ledger.judge_claims([claim], {"laptop": table}).itertuples()
    assert row.verdict == verdict
    if verdict != statistics.OPEN:
        assert "and 12 end" in row.why and row.since >= "2026-11-30"


def test_arms_that_read_other_texts_are_not_compared_over_all_tokens():
    """DP-SGD reads the text as it is, CRT redacted: an easier one, with the same masks often."""
    claim = CLAIMS["crt-f2-dpsgd-lstm"]
    rows = ledger.judge_claims([claim], {"laptop": world(claim, claim.if_true)})
    told = dict(zip(rows.source.str.partition(": ")[2], rows.verdict, strict=True))
    assert told == {"valid_ppl_words": "agrees", "valid_ppl": statistics.INCOMPARABLE}


def test_a_search_of_epochs_counts_a_trial_at_its_best_one():
    """Results are read there; with one number of epochs all trials end alike."""
    trials = {0.01: [3.0, 2.0, 2.9], 0.02: [3.0, 2.5, 2.4]}
    rows = [
        {"epochs": 3, "epoch": k + 1, "value": value, "learning_rate": rate, "run": rate}
        for rate, curve in trials.items()
        for k, value in enumerate(curve)
    ]
    arm = {"method": "sgd", "model": "lstm", "init": "random", "corpus": "customersim"}
    table = pd.DataFrame(rows).assign(metric=measures.VALIDATION, batch_size=16, **arm)
    assert search.choose_trial("sgd", "lstm", table=table)["learning_rate"] == 0.02
    both = pd.concat([table, table.assign(epochs=6, value=9.0)])
    chosen = search.choose_trial("sgd", "lstm", table=both)
    assert (chosen["learning_rate"], chosen["epochs"]) == (0.01, 3)
    longer = search.choose_longer_trial("sgd", "lstm", "customersim", table=both)
    assert longer is not None and longer["epochs"] == 6


def test_longer_trainings_of_the_same_text_answer_in_place_of_shorter_ones():
    claim = CLAIMS["crt-f2-lstm"].model_copy(update={"metric": measures.VALIDATION})
    short = curves(("crt", [9, 8, 7, 6, 5, 4]), ("sgd", [4, 3, 2, 2, 2, 2]))
    long = {"settled": curves(("crt", [9, 5, 2, 2, 2, 2]), ("sgd", [4, 3, 2, 2, 2, 2]))["laptop"]}
    assert ledger.judge_claims([claim], short | long).verdict.tolist() == ["agrees"]
    for lacking in (
        {"settled": long["settled"].query("method == 'sgd'")},
        {"settled": long["settled"].assign(corpus="schema_guided")},
    ):
        table = ledger.judge_claims([claim], short | lacking)
        assert table[table.corpus == "customersim"].verdict.tolist() == [statistics.OPEN]
    at_last = claim.model_copy(update={"at": "last", "right_at": "last"})  # another question
    (source,) = ledger.judge_claims([at_last], short | long).source
    assert source.startswith("laptop")


def test_a_shorter_training_than_the_papers_refutes_no_leak():
    claim = CLAIMS["crt-f3-rise"]
    short = world(claim, claim.if_false).assign(epochs=claim.epochs - 1)
    rows = ledger.judge_claims([claim], {claim.tables[0]: short})
    assert set(rows.verdict) == {statistics.OPEN}
    assert rows.why.str.contains("49 of the paper's 50 epochs").all()


def test_the_margin_of_all_secrets_knows_what_can_be_told_at_all():
    """At a miss rate of a tenth no attack on all secrets is right more often than 1/1.9."""
    leaky = points([0.515, 0.516, 0.515], 0.001, [0.1], of_all=True)
    near = statistics.judge_leak_everywhere(
        "accuracy", points([0.512, 0.512, 0.5125], 0.05, [0.1], of_all=True)
    )
    assert (
        statistics.decide_verdict(statistics.judge_leak_everywhere("accuracy", leaky)) == "agrees"
    )
    assert (
        statistics.decide_verdict(near) == statistics.OPEN
    )  # more than a tenth of what is there to gain
    far = statistics.judge_leak_everywhere(
        "accuracy", points([0.512, 0.512, 0.5125], 0.05, [0.5], of_all=True)
    )
    assert statistics.decide_verdict(far) == "differs"


# --- kinds of claims ------------------------------------------------------------------------------
def judged_as(name, value, **changes):
    """The verdict of a calculation that gives ``value``."""
    claim = CLAIMS[name].model_copy(update=changes)
    e = statistics.judge_calculation(value, "", side=claim.side, line=claim.line)
    return ledger._make_row(claim, e, {"source": "calculated"})["verdict"]


def test_remarks_and_what_agrees_by_construction_are_no_evidence():
    assert judged_as("crt-a4-labels", 0.015) == statistics.REMARK
    assert judged_as("crt-1993", 19.932) == statistics.CONSTRUCTION
    assert judged_as("crt-1993", 19.8) == "differs"  # a test that fails is told


def test_a_sentence_that_a_calculation_refutes_as_it_stands_is_right_in_part():
    assert judged_as("hush-linear", 1.31) == "in part"
    assert judged_as("hush-linear", 1.31, holds="") == "differs"
    assert judged_as("hush-linear", 1.05) == "agrees"


@pytest.mark.parametrize("counts", [4.8, 9.0])
def test_what_was_found_is_told_where_the_claim_beside_differs(counts):
    asked = [CLAIMS["hush-noisy"], CLAIMS["ours-noisy-learns"]]
    values = asked[0].if_true | {"preprocessed": 5.2, "plain": 5.9, "word_counts": counts}
    tables_ = [world(c, {a: v for a, v in values.items()}, 5) for c in asked]
    rows = ledger.judge_claims(asked, {"secrets": pd.concat(tables_).drop_duplicates(
        ["run", "metric", "epoch", "item"])})  # fmt: skip
    (row,) = rows[rows.id == "hush-noisy"].itertuples()
    assert row.verdict == "agrees"
    told = "worse than word counts: 5.22 and 5.92 against 4.80 nats"
    assert (told in row.why) == (counts == 4.8) and "found" not in row.why


def test_one_corpus_does_not_refute_often():
    claim = CLAIMS["crt-f2-dp-cost"].model_copy(update={"metric": measures.VALIDATION})
    flat = [2.0] * 6
    costly = curves(("dpsgd", [4.0] * 6), ("sgd", flat))["laptop"]
    cheap = curves(("dpsgd", [2.01] * 6), ("sgd", flat))["laptop"].assign(corpus="multiwoz")
    tables_ = [t.assign(epsilon=3.0) for t in (costly, cheap)]
    both = ledger.judge_claims([claim], {"laptop": pd.concat(tables_)})
    assert sorted(both.verdict) == ["agrees", "in part"]
    assert set(ledger.judge_claims([claim], {"laptop": tables_[1]}).verdict) == {"differs"}


def test_a_seed_without_all_miss_rates_has_no_mean():
    """One run of a second seed at the worst miss rate is no second mean over five of them."""
    gammas = load_terms()["arms"]["sgd_missing"]["gamma"]
    rows = [
        (seed, g, 10 * seed + g) for seed in (0, 1) for g in (gammas if not seed else gammas[-1:])
    ]
    table = pd.DataFrame(rows, columns=["seed", "gamma", "value"])
    table = table.assign(method="sgd", metric="exposure", epoch=5, run=range(len(rows)))
    found = measures.value_per_seed(table, "sgd_missing", "exposure", "last")
    assert found.to_dict() == {0: pytest.approx(sum(gammas) / len(gammas))}
