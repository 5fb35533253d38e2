"""Claims of CRT and of the leakage report that a calculation decides: theorems on finite
mechanisms, printed numbers, arithmetic.

>>> [one.verdict for one in amplification_number(printed="0.12")]
['agrees']
>>> [one.verdict for one in tables_4_ratios()]
['differs']
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from crtbook.claims import rules
from crtbook.claims.rules import Outcome, calculated
from crtlib.accounting import confidentiality, ledger
from crtlib.accounting.events import SampledGaussian
from crtlib.intervals import clopper_pearson_upper, labels_needed
from crtlib.screening.prepare import prepare
from crtlib.text.records import MASK, Point, Secret

DELTA = 8e-5


def _mechanism(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two laws on five outcomes."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))


@functools.cache
def _event(epsilon: float, accountant: str = "pld") -> SampledGaussian:
    """Batches of a tenth of the points, 100 steps, calibrated for a point added or removed."""
    sigma = ledger.noise_multiplier(
        epsilon=epsilon, delta=DELTA, sampling_probability=0.1, steps=100, accountant=accountant
    )
    return SampledGaussian(0.1, sigma, 100)


@functools.cache
def _group_epsilon(points: int) -> float:
    return confidentiality.group_epsilon(_event(1.0), group=points, delta=DELTA)[1]


# --------------------------------------------------------------------------- CRT
def amplification() -> list[Outcome]:
    """Proposition 6 on 200 finite mechanisms, in both directions, and attained in one."""
    worst = 0.0
    for seed in range(200):
        p, q = _mechanism(seed)
        gamma, epsilon = 0.05 + 0.9 * (seed % 10) / 10, 0.5
        delta = confidentiality.indistinguishability(p.tolist(), q.tolist(), epsilon=epsilon)
        amplified, bound = confidentiality.bayes_amplify(epsilon, delta=delta, gamma=gamma)
        mixed = ((1 - gamma) * q + gamma * p).tolist()
        least = confidentiality.indistinguishability(mixed, q.tolist(), epsilon=amplified)
        worst = max(worst, least - bound)
    most = "less than 10⁻¹²" if worst < 1e-12 else f"{worst:.6f}"
    return calculated(
        rules.holds(
            worst < 1e-12,
            f"δ exceeds the bound by {most} in 200 mechanisms",
            "no mechanism may exceed the bound",
        )
    )


def amplification_number(*, printed: str, accountant: str = "autodp") -> list[Outcome]:
    """Section 5.4's number, with the accountant that the paper names."""
    event = _event(1.0, accountant)
    value = confidentiality.bayes_at_fixed_delta(
        event, gamma=0.1, delta=DELTA, accountant=accountant
    )
    return calculated(rules.printed(value, printed))


def improvement() -> list[Outcome]:
    """That redaction at any gamma below 1 lowers epsilon, more so the smaller gamma is."""
    event = _event(1.0)
    values = [
        confidentiality.bayes_at_fixed_delta(event, gamma=g, delta=DELTA)
        for g in (0.0, 0.01, 0.1, 0.3, 0.5, 1.0)
    ]
    words = ", ".join(f"{v:.3f}" for v in values)
    return calculated(rules.holds(bool((np.diff(values) > 0).all()), words, "must rise with gamma"))


def dp_implies() -> list[Outcome]:
    """ "DP is stronger (and implies confidentiality!)": the same training, the secret replaced."""
    event = _event(1.0)
    replaced = ledger.epsilon(event, delta=DELTA, neighbouring_relation="replace")
    return calculated(
        rules.holds(
            replaced <= 1.0,
            f"ε = 1 for a point added or removed is {replaced:.2f} for a secret replaced",
            "must not be larger",
            replaced,
        )
    )


def redacted() -> list[Outcome]:
    """Proposition 5: 0 where the policy detects, epsilon elsewhere."""
    values = [
        confidentiality.confidentiality_redacted(1.0, delta=DELTA, detected=d)[0]
        for d in (True, False)
    ]
    return calculated(rules.holds(values == [0.0, 1.0], "0 and ε", "must be 0 and ε"))


def group_sum() -> list[Outcome]:
    """Proposition 5's delta of a group against the tight one."""
    total, bound = confidentiality.group_naive([1.0] * 5, delta=DELTA, tight=False)
    tight = confidentiality.group_delta(_event(1.0), group=5, epsilon=total)[1]
    return calculated(
        rules.holds(
            tight <= bound,
            f"δ is {tight:.2g}, at most {bound:.2g}",
            "the tight delta must not exceed the printed bound",
            tight,
        )
    )


def linear_groups() -> list[Outcome]:
    """Whether epsilon at a fixed delta is roughly linear in the size of the group: within a factor
    of 1.1 at five points."""
    each = {k: _group_epsilon(k) for k in (1, 5)}
    worst = max(v / k for k, v in each.items()) / each[1]
    words = ", ".join(f"{k}: {v:.2f}" for k, v in each.items())
    return calculated(
        rules.holds(
            worst <= 1.1,
            f"ε of k points {words}; {worst:.2f} times linear",
            "within a factor of 1.1 of k times that of one point",
            worst,
        )
    )


def uniform() -> list[Outcome]:
    """That uniform confidentiality improves by a factor of gamma: by the printed sum exactly, and
    at a fixed delta at least by as much."""
    factor = _group_epsilon(1) / _group_epsilon(5)
    return calculated(
        rules.holds(
            factor <= 0.2, f"one of five missed: {factor:.3f} of ε", "at most gamma = 0.2", factor
        )
    )


def templates() -> list[Outcome]:
    """Proposition 7 with Algorithm 1: two customers, one template, a perfect policy."""

    def point(k: int, text: str) -> Point:
        return Point(str(k), str(k), text, (Secret("id", 4, len(text)),))

    worlds = []
    for text in (("id: 11", "id: 22"), (f"id: {MASK}", f"id: {MASK}")):
        points = [point(k, t) for k, t in enumerate(text)]
        flags = [p.secrets for p in points]
        worlds.append(sorted(p.text for p in prepare(points, flags, flags).private))
    same = worlds[0] == worlds[1]
    return calculated(
        rules.holds(
            same,
            " and ".join(worlds[0]) + " against " + " and ".join(worlds[1]),
            "both worlds must read the same, as every secret is detected",
        )
    )


def detects() -> list[Outcome]:
    """Theorem 8.2 as printed: with every secret detected, epsilon would be that of all of them."""
    m = 5
    all_detected = confidentiality.crt_group(1.0, missed=0, delta=DELTA)[0]
    return calculated(
        rules.holds(
            all_detected == m,
            f"all of {m} detected: ε = {all_detected:g}, not {m}",
            "the printed share of detected secrets times m",
            all_detected,
        )
    )


def labels(*, count: int, of: int, share: float) -> list[Outcome]:
    """What labels certify: the 95 % bound on the miss rate after so many misses."""
    bound = clopper_pearson_upper(count, of)
    return calculated(
        rules.holds(
            bound <= share,
            f"at most {bound:.2%} are missed, with 95 %",
            f"the bound must be at most {share:g}",
            bound,
        )
    )


def labels_for_delta() -> list[Outcome]:
    """How many labelled secrets without a miss make delta2 as small as delta."""
    n = labels_needed(DELTA)
    return calculated(rules.holds(n <= 200, f"{n:,} labels are needed", "200 must do", n))


def one_mask() -> list[Outcome]:
    """Appendix A.6 (4): with a mask of its own, deduplication tells two worlds apart in which every
    secret is redacted; with one mask it does not."""

    def world(repeated: bool, mark: str) -> set[str]:
        return {f"id: {MASK}", mark if repeated else MASK}

    apart, same = (world(True, m) != world(False, m) for m in ("<MASK_DEDUP>", MASK))
    return calculated(
        rules.holds(apart and not same, "told apart with two masks, not with one", "both must hold")
    )


def run_times() -> list[Outcome]:
    """GPU-days of the LSTM search: the printed grid, 2 hours an epoch, five trainings."""
    rates, epochs = 7, (5, 10, 30, 50, 100)
    days = rates * sum(epochs) * 2 / 24 + 5 * 100 * 2 / 24
    return calculated(
        rules.holds(
            days <= 100, f"{days:.0f} GPU-days for one batch size", "must be less than 100", days
        )
    )


# --------------------------------------------------------------------------- the report
TABLE_4 = (
    (4.39, 5.21, "1.19"), (3.33, 3.49, "1.05"), (5.4, 5.53, "1.02"), (5.1, 8.87, "1.74"),
    (3.75, 4.5, "1.2"), (4.46, 5.22, "1.17"), (4.17, 3.63, "0.87"), (5.35, 5.78, "1.08"),
    (5.14, 4.21, "0.82"), (7.28, 7.36, "1.01"), (3.53, 6.69, "1.89"),
)  # fmt: skip
"""Perplexities by the model and by the public model, and their ratio, as Table 4 prints them."""


def tables_4_ratios() -> list[Outcome]:
    """The ratios of Table 4, from its own perplexities, which are rounded to 0.005."""
    off = []
    for ours, public, ratio in TABLE_4:
        low, high = (public - 0.005) / (ours + 0.005), (public + 0.005) / (ours - 0.005)
        half = 0.5 * 10 ** -(len(ratio) - 2)
        if not low - half <= float(ratio) <= high + half:
            off.append(ratio)
    plain = [r for a, b, r in TABLE_4 if f"{b / a:.2f}" != f"{float(r):.2f}"]
    return calculated(
        rules.holds(
            not plain,
            f"{len(TABLE_4) - len(plain)} of {len(TABLE_4)} as printed; "
            f"{', '.join(plain)} by rounding down, {len(off)} beyond rounding",
            "every ratio must round to the printed one",
        )
    )


def same_epsilon() -> list[Outcome]:
    """One model, two epsilons."""
    return calculated(
        rules.holds(
            26.8 == 26.4, "26.8 in the text, 26.4 in three tables", "must be one number", 26.4
        )
    )


def table_1() -> list[Outcome]:
    """The worked example of Table 1, made by the library."""
    from crtlib.attacks import leakage

    thank, you, i, like, cats, very, much, other = range(8)
    spoken = [("u0", [thank, you, very, much, other]), ("u0", [i, like, cats, very, much, other])]
    spoken += [(f"u{1 + k % 4}", [other, very, much]) for k in range(8)]
    corpus = [leakage.Document(u, str(j), t) for j, (u, t) in enumerate(spoken)]
    logprobs = [np.full(len(t), -5.0) for _, t in spoken]
    ranks = [np.full(len(t), 9) for _, t in spoken]
    for j, (at, perplexity) in enumerate([(2, 1.3), (3, 3.6)]):
        logprobs[j][at : at + 2], ranks[j][at : at + 2] = -np.log(perplexity), 0
    runs = leakage.find_runs(corpus, leakage.Scores(logprobs, ranks), k=1)
    (row,) = leakage.features(runs, corpus).itertuples()
    counts = (row.total_in_s, row.users_in_s, row.total_in_d, row.users_in_d)
    return calculated(
        rules.holds(counts == (2, 1, 10, 5), ", ".join(map(str, counts)), "must be 2, 1, 10, 5")
    )


def last_run() -> list[Outcome]:
    """Algorithm 1 as printed on a text that is guessed to its end."""
    from crtlib.attacks import leakage

    document = leakage.Document("u", "d", [1, 2, 3])
    scores = leakage.Scores([np.full(3, -1.0)], [np.array([9, 0, 0])])
    found = [len(leakage.find_runs([document], scores, k=1, flush=f)) for f in (True, False)]
    return calculated(
        rules.holds(
            found[0] == found[1],
            f"{found[1]} of {found[0]} found",
            "as printed it must find every run",
        )
    )


MEASURES: dict[str, Callable[..., list[Outcome]]] = {
    f.__name__: f
    for f in (
        amplification,
        amplification_number,
        improvement,
        dp_implies,
        redacted,
        group_sum,
        linear_groups,
        uniform,
        templates,
        detects,
        labels,
        labels_for_delta,
        one_mask,
        run_times,
        tables_4_ratios,
        same_epsilon,
        table_1,
        last_run,
    )
}
