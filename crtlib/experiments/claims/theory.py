"""Claims that a calculation decides: theorems on finite mechanisms, printed numbers, arithmetic.

>>> [one.verdict for one in amplification_number(printed="0.12")]
['agrees']
>>> [one.verdict for one in tables_4_ratios()]
['differs']
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import sparse, special

from crtlib.accounting import confidentiality, ledger, mixtures, posteriors, secret_lp, secrets
from crtlib.accounting.events import SampledGaussian
from crtlib.experiments.claims import rules
from crtlib.experiments.claims.rules import Outcome
from crtlib.intervals import clopper_pearson_upper, labels_needed
from crtlib.screening.prepare import prepare
from crtlib.text.records import MASK, Point, Secret

DELTA = 8e-5
CALCULATED = "calculated"


def _one(outcome: Outcome) -> list[Outcome]:
    return [Outcome(**(vars(outcome) | {"source": CALCULATED, "edition": "exact"}))]


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
    return _one(
        rules.holds(
            worst < 1e-12,
            f"largest excess of delta {max(worst, 0):.1g} in 200 mechanisms",
            "no mechanism may exceed the bound",
        )
    )


def amplification_number(*, printed: str, accountant: str = "autodp") -> list[Outcome]:
    """Section 5.4's number, with the accountant that the paper names."""
    event = _event(1.0, accountant)
    value = confidentiality.bayes_at_fixed_delta(
        event, gamma=0.1, delta=DELTA, accountant=accountant
    )
    return _one(rules.printed(value, printed))


def improvement() -> list[Outcome]:
    """That redaction at any gamma below 1 lowers epsilon, more so the smaller gamma is."""
    event = _event(1.0)
    values = [
        confidentiality.bayes_at_fixed_delta(event, gamma=g, delta=DELTA)
        for g in (0.0, 0.01, 0.1, 0.3, 0.5, 1.0)
    ]
    words = ", ".join(f"{v:.3f}" for v in values)
    return _one(rules.holds(bool((np.diff(values) > 0).all()), words, "must rise with gamma"))


def dp_implies() -> list[Outcome]:
    """ "DP is stronger (and implies confidentiality!)": the same training, the secret replaced."""
    event = _event(1.0)
    replaced = ledger.epsilon(event, delta=DELTA, neighbouring_relation="replace")
    return _one(
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
    return _one(rules.holds(values == [0.0, 1.0], "0 and ε", "must be 0 and ε"))


def group_sum() -> list[Outcome]:
    """Proposition 5's delta of a group against the tight one."""
    total, bound = confidentiality.group_naive([1.0] * 5, delta=DELTA, tight=False)
    tight = confidentiality.group_delta(_event(1.0), group=5, epsilon=total)[1]
    return _one(
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
    return _one(
        rules.holds(
            worst <= 1.1,
            f"ε of k points {words}; {worst:.2f} times linear",
            "within a factor of 1.1 of k times that of one point",
            worst,
        )
    )


def linear_divergence() -> list[Outcome]:
    """Whether the KL divergence that the budgets c_j bound is linear in the number of examples."""
    each = {}
    for k in (1, 10, 75):
        law = mixtures.counts([0.01] * k, [0, k])
        each[k] = float(mixtures.kl(law, 2.0)[0])
    power = math.log(each[75] / each[1]) / math.log(75)
    return _one(
        rules.holds(
            power <= 1.1,
            f"it grows with the power {power:.2f} of the number",
            "the power must be at most 1.1",
            power,
        )
    )


def uniform() -> list[Outcome]:
    """That uniform confidentiality improves by a factor of gamma: by the printed sum exactly, and
    at a fixed delta at least by as much."""
    factor = _group_epsilon(1) / _group_epsilon(5)
    return _one(
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
    return _one(
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
    return _one(
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
    return _one(
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
    return _one(rules.holds(n <= 200, f"{n:,} labels are needed", "200 must do", n))


def one_mask() -> list[Outcome]:
    """Appendix A.6 (4): with a mask of its own, deduplication tells two worlds apart in which every
    secret is redacted; with one mask it does not."""

    def world(repeated: bool, mark: str) -> set[str]:
        return {f"id: {MASK}", mark if repeated else MASK}

    apart, same = (world(True, m) != world(False, m) for m in ("<MASK_DEDUP>", MASK))
    return _one(
        rules.holds(apart and not same, "told apart with two masks, not with one", "both must hold")
    )


def run_times() -> list[Outcome]:
    """GPU-days of the LSTM search: the printed grid, 2 hours an epoch, five trainings."""
    rates, epochs = 7, (5, 10, 30, 50, 100)
    days = rates * sum(epochs) * 2 / 24 + 5 * 100 * 2 / 24
    return _one(
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
    return _one(
        rules.holds(
            not plain,
            f"{len(TABLE_4) - len(plain)} of {len(TABLE_4)} as printed; "
            f"{', '.join(plain)} by rounding down, {len(off)} beyond rounding",
            "every ratio must round to the printed one",
        )
    )


def same_epsilon() -> list[Outcome]:
    """One model, two epsilons."""
    return _one(
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
    return _one(
        rules.holds(counts == (2, 1, 10, 5), ", ".join(map(str, counts)), "must be 2, 1, 10, 5")
    )


def last_run() -> list[Outcome]:
    """Algorithm 1 as printed on a text that is guessed to its end."""
    from crtlib.attacks import leakage

    document = leakage.Document("u", "d", [1, 2, 3])
    scores = leakage.Scores([np.full(3, -1.0)], [np.array([9, 0, 0])])
    found = [len(leakage.find_runs([document], scores, k=1, flush=f)) for f in (True, False)]
    return _one(
        rules.holds(
            found[0] == found[1],
            f"{found[1]} of {found[0]} found",
            "as printed it must find every run",
        )
    )


# --------------------------------------------------------------------------- Hush!
GROUP = mixtures.poisson_binomial([0.01] * 75)
"""A secret in 75 examples, each drawn with 1 %: the paper's are in 50 to 100."""
STEPS, SIGMA, PRIOR = 100, 8.0, 0.01


@functools.cache
def _bounds(steps: int = STEPS, sigma: float = SIGMA) -> dict[str, float]:
    """The best guess of a secret: tight, by KL, and by the best Renyi order."""
    law = mixtures.counts([0.01] * 75, [0, 75])
    kl = steps * float(mixtures.kl(law, sigma)[0])
    tight = secrets.tight_posterior(GROUP, sigma, steps, PRIOR)[1]
    return {
        "kl": float(posteriors.posterior(kl, PRIOR)),
        "tight": tight,
        "divergence": kl,
        "renyi": _by_renyi(steps, sigma),
    }


def _by_renyi(steps: int, sigma: float) -> float:
    """Lemma 3.2 with a Renyi divergence of integer order a: the posterior r with
    log(r^a p^(1-a) + (1-r)^a (1-p)^(1-a)) / (a-1) as large as the divergence, least over a."""
    k = np.arange(len(GROUP))
    best = 1.0
    for a in (2, 3, 4, 6, 8, 12, 16):
        spent = steps * _log_moment(GROUP, k, a, sigma)
        low, high = PRIOR, 1.0
        for _ in range(50):
            r = (low + high) / 2
            value = r**a * PRIOR ** (1 - a) + (1 - r) ** a * (1 - PRIOR) ** (1 - a)
            low, high = (r, high) if math.log(value) < spent else (low, r)
        best = min(best, high)
    return best


def _log_moment(law: np.ndarray, k: np.ndarray, a: int, sigma: float) -> float:
    """The logarithm of E over Q = N(0, sigma^2) of (P / Q)^a, by quadrature."""
    x = np.linspace(-30 * sigma, 60 * sigma + a * len(law), 8001)
    ratio = special.logsumexp(((2 * x[:, None] - k) * k) / (2 * sigma**2), b=law, axis=1)
    terms = a * ratio - x**2 / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    return float(special.logsumexp(terms) + math.log(x[1] - x[0]))


def kl_is_loose() -> list[Outcome]:
    """That the KL bound is not tight."""
    b = _bounds()
    return _one(
        rules.holds(
            b["tight"] < b["kl"] - 1e-6,
            f"tight {b['tight']:.3f}, KL {b['kl']:.3f}",
            "the tight bound must be smaller",
            b["kl"] - b["tight"],
        )
    )


def kl_beats_renyi() -> list[Outcome]:
    """That KL improves on Renyi divergences: both through Lemma 3.2, at a prior of 1 %."""
    b = _bounds()
    return _one(
        rules.holds(
            b["kl"] <= b["renyi"],
            f"KL {b['kl']:.3f}, Renyi {b['renyi']:.3f}, tight {b['tight']:.3f}",
            "KL must give the smaller posterior",
            b["renyi"] - b["kl"],
        )
    )


def blow_up() -> list[Outcome]:
    """That the blow-up function cannot be had for secrets in 50 to 100 examples."""
    low, high = secrets.tight_posterior(GROUP, SIGMA, STEPS, PRIOR)
    return _one(
        rules.holds(
            high - low > 0.1 * low,
            f"between {low:.4f} and {high:.4f}",
            "the bracket must be wider than a tenth of itself",
            high - low,
        )
    )


def _incidence() -> sparse.csr_array:
    """Two hundred secrets in 600 examples, some in many and most in few."""
    rng = np.random.default_rng(0)
    rows = [
        rng.choice(600, size=int(n), replace=False) for n in np.clip(4 / rng.random(200), 4, 120)
    ]
    held = np.concatenate(rows)
    index = np.repeat(np.arange(200), [len(r) for r in rows])
    return sparse.csr_array((np.ones(len(held)), (index, held)), shape=(200, 600))


def large_c() -> list[Outcome]:
    """That with a large C every weight is 1."""
    weights = secret_lp.solve(_incidence(), np.full(200, 1e6)).weights
    return _one(
        rules.holds(
            bool((weights == 1).all()), f"least weight {weights.min():g}", "every weight must be 1"
        )
    )


def small_c() -> list[Outcome]:
    """That with a small C all but as many examples as there are secrets get the weight 0."""
    weights = secret_lp.solve(_incidence(), np.full(200, 0.01), solver="highs").weights
    some = int((weights > 1e-9).sum())
    return _one(
        rules.holds(some <= 200, f"{some} of 600 are above 0", "at most 200, the secrets", some)
    )


@functools.cache
def _plans() -> tuple[secrets.Plan, secrets.Plan]:
    posterior = np.random.default_rng(1).uniform(0.1, 0.9, 200)
    each = {"steps": 30, "batch_size": 60.0, "targets": "linear"}
    return tuple(
        secrets.plan(_incidence(), PRIOR, posterior, scale=s, **each)  # type: ignore[arg-type, return-value]
        for s in (4.0, math.inf)
    )


def less_noise() -> list[Outcome]:
    """That the program needs less noise than no preprocessing."""
    some, every = _plans()
    factor = every.noise_multiplier / some.noise_multiplier
    return _one(
        rules.holds(
            factor > 1.1,
            f"{factor:.2f} times less noise, {some.kept:.0%} kept, for 200 made-up secrets",
            "more than 1.1 times less",
            factor,
        )
    )


def binary_search() -> list[Outcome]:
    """That the search finds the least noise that keeps every promise."""
    plan, _ = _plans()
    over = plan.steps * secrets.kl(plan.incidence, plan.probabilities, plan.noise_multiplier)
    allowed = posteriors.divergence(plan.prior, plan.promised)
    less = plan.steps * secrets.kl(plan.incidence, plan.probabilities, 0.99 * plan.noise_multiplier)
    return _one(
        rules.holds(
            bool((over <= allowed * (1 + 1e-9)).all() and (less > allowed).any()),
            f"σ = {plan.noise_multiplier:.3f} keeps all, 1 % less does not",
            "both must hold",
            plan.noise_multiplier,
        )
    )


def unequal_protection() -> list[Outcome]:
    """That two trainings with the same (epsilon, delta) protect differently from reconstruction."""
    values = []
    for q, steps in ((1.0, 1), (0.01, 1000)):
        sigma = ledger.noise_multiplier(
            epsilon=4.0, delta=DELTA, sampling_probability=q, steps=steps
        )
        law = mixtures.poisson_binomial([q])
        values.append(secrets.tight_posterior(law, sigma, steps, PRIOR)[1])
    gap = max(values) / min(values)
    return _one(
        rules.holds(
            gap > 1.1,
            f"best guesses {values[0]:.3f} and {values[1]:.3f}",
            "must differ by more than a tenth",
            gap,
        )
    )


def vacuous() -> list[Outcome]:
    """Ours: whether the noise at which extraction ends (0.3 in the laptop profile) proves
    anything: the best guess of one example, prior 1 %."""
    from crtlib.experiments.secrets import ExtractionStudy

    bound = ExtractionStudy(seed=0, noise_multiplier=0.3, epochs=32).posterior(PRIOR)
    return _one(rules.holds(bound < 0.99, f"at most {bound:.3g}", "must be below 0.99", bound))


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
        linear_divergence,
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
        kl_is_loose,
        kl_beats_renyi,
        blow_up,
        large_c,
        small_c,
        less_noise,
        binary_search,
        unequal_protection,
        vacuous,
    )
}
