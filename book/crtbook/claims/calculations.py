"""Claims that a calculation decides: theorems on finite mechanisms, printed numbers, arithmetic.

>>> round(amplification_number()[0], 4)
0.1158
>>> large_c()[0], templates()[0], differing(found=True)[0]
(1.0, 1.0, 0.0)

Each function returns a number, and words where the number alone says too little. ``claims.yml`` has
the line that the number must keep to.
"""

import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from crtbook import tables, theorems, utility
from crtbook.secrets import ExtractionStudy
from crtbook.tight import tight_posterior
from crtlib.accounting import (
    confidentiality,
    group_mixtures,
    privacy_cost,
    renyi,
    secret_guesses,
    secret_protection,
    secret_weights,
)
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.privacy_loss import GaussianMixturePair
from crtlib.attacks import leakage
from crtlib.intervals import clopper_pearson_upper, labels_needed
from crtlib.screening.deduplication import mark_repeats
from crtlib.screening.preparation import prepare_points
from crtlib.text import customersim
from crtlib.text.canaries import CANARY_SPACE_SIZE
from crtlib.text.records import MASK, Point, Secret

Number = tuple[float, str]
DELTA = 8e-5
WORD = re.compile(r"[^\W_]+")


@functools.cache
def _event(epsilon: float = 1.0, accountant: str = "pld") -> SampledGaussian:
    """Batches of a tenth of the points, 100 steps, calibrated for one point added or removed."""
    sigma = privacy_cost.noise_multiplier(
        epsilon=epsilon,
        delta=DELTA,
        sampling_probability=0.1,
        steps=100,
        accountant=accountant,
        neighbouring_relation="add_or_remove",
    )
    return SampledGaussian(0.1, sigma, 100)


@functools.cache
def _group_epsilon(points: int) -> float:
    return theorems.group_epsilon(
        _event(), group=points, delta=DELTA, neighbouring_relation="add_or_remove"
    )[1]


# --- CRT ------------------------------------------------------------------------------------------
def amplification() -> Number:
    """Proposition 6 on 200 finite mechanisms: how far any delta exceeds the bound."""
    worst = 0.0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
        gamma, epsilon = 0.05 + 0.9 * (seed % 10) / 10, 0.5
        delta = theorems.indistinguishability(p.tolist(), q.tolist(), epsilon=epsilon)
        amplified, bound = confidentiality.amplify_by_miss_rate(epsilon, delta=delta, gamma=gamma)
        mixed = ((1 - gamma) * q + gamma * p).tolist()
        least_delta = theorems.indistinguishability(mixed, q.tolist(), epsilon=amplified)
        worst = max(worst, least_delta - bound)
    return worst, f"δ exceeds the bound by {worst:.1g} in 200 mechanisms"


def amplification_number(*, accountant: str = "autodp", relation: str = "add_or_remove") -> Number:
    """The number in Section 5.4, with the accountant that the paper names."""
    return confidentiality.confidentiality_epsilon(
        _event(1.0, accountant), gamma=0.1, total_delta=DELTA, accountant=accountant,
        neighbouring_relation=relation,
    ), ""  # fmt: skip


def improvement() -> Number:
    """The least step of epsilon as gamma rises from 0 to 1."""
    values = [
        confidentiality.confidentiality_epsilon(
            _event(), gamma=g, total_delta=DELTA, neighbouring_relation="add_or_remove"
        )
        for g in (0.0, 0.01, 0.1, 0.3, 0.5, 1.0)
    ]
    return float(np.diff(values).min()), ", ".join(f"{v:.3f}" for v in values)


def dp_implies() -> Number:
    """Epsilon for a secret replaced, where that for a point added or removed is 1."""
    value = privacy_cost.epsilon(_event(), delta=DELTA, neighbouring_relation="replace")
    return value, f"ε = 1 for a point added or removed is {value:.2f} for a secret replaced"


def _worlds(*texts: tuple[str, ...], found: bool) -> Number:
    """The number of private points in which two worlds differ after Algorithm 1."""
    private_texts = []
    for world in texts:
        points = [Point(str(k), str(k), t, (Secret("id", 4, len(t)),)) for k, t in enumerate(world)]
        flags = [p.secrets if found or MASK in p.text else () for p in points]
        all_flags = [p.secrets for p in points]
        private_texts.append(
            sorted(p.text for p in prepare_points(points, flags, all_flags).private)
        )
    differing_points = sum(a != b for a, b in zip(*private_texts, strict=True))
    return float(differing_points), " and ".join(private_texts[0]) + " against " + " and ".join(
        private_texts[1]
    )


def differing(*, found: bool) -> Number:
    """Proposition 5: the number of points in which two worlds differ when the policy has ``found``
    their only secret, or missed it."""
    return _worlds(("id: 11",), (f"id: {MASK}",), found=found)


def templates() -> Number:
    """Proposition 7 with Algorithm 1: two customers, one template, a perfect policy."""
    return _worlds(("id: 11", "id: 22"), (f"id: {MASK}", f"id: {MASK}"), found=True)


def deduplicated_alone() -> Number:
    """Proposition 7's proof of deduplication alone, over all worlds of two short texts: the most
    points that differ beyond the number of unique secrets, and the first such world."""
    texts = [f"{before} {after}" for before in ("id:", "no") for after in ("11", "22", MASK)]
    most_beyond, example = -1, ""
    for world in itertools.product(texts, repeat=2):
        unique_secrets = {text.split()[1] for text in world} - {MASK}
        redacted = [f"{text.split()[0]} {MASK}" for text in world]
        left, right = _deduplicate(world), _deduplicate(redacted)
        beyond = sum(a != b for a, b in zip(left, right, strict=True)) - len(unique_secrets)
        if beyond > most_beyond:
            most_beyond = beyond
            example = f"{' and '.join(left)} against {' and '.join(right)}"
    return float(most_beyond), example


def _deduplicate(texts: Sequence[str]) -> list[str]:
    points = [Point(str(k), str(k), text, ()) for k, text in enumerate(texts)]
    repeats = mark_repeats(points)
    return [
        MASK if is_repeat else point.text for point, is_repeat in zip(points, repeats, strict=True)
    ]


def group_sum() -> Number:
    """The tight delta of a group of five, divided by that of Proposition 5."""
    total, bound = theorems.group_naive([1.0] * 5, delta=DELTA, tight=False)
    tight_delta = theorems.group_delta(
        _event(), group=5, epsilon=total, neighbouring_relation="add_or_remove"
    )[1]
    return tight_delta / bound, f"δ is {tight_delta:.2g}, at most {bound:.2g}"


def linear_groups() -> Number:
    """Epsilon of five points at a fixed delta, divided by five times that of one."""
    epsilon_of_one, epsilon_of_five = _group_epsilon(1), _group_epsilon(5)
    ratio = epsilon_of_five / epsilon_of_one / 5
    return (
        ratio,
        f"ε of one point {epsilon_of_one:.2f}, of five {epsilon_of_five:.2f}: "
        f"{ratio:.2f} times linear",
    )


def uniform() -> Number:
    """Uniform confidentiality where one of five is missed, divided by that where all are."""
    factor = _group_epsilon(1) / _group_epsilon(5)
    return factor, f"one of five missed: {factor:.3f} of ε"


def detects() -> Number:
    """Theorem 8.2 as printed, for five secrets: the most epsilon beyond what it promises, over all
    numbers of them that are detected."""
    beyond = {
        detected: theorems.crt_group(1.0, missed=5 - detected, delta=DELTA)[0] - detected
        for detected in range(6)
    }
    worst = max(beyond, key=lambda detected: beyond[detected])
    return (
        beyond[worst],
        f"{worst} of 5 detected: ε = {beyond[worst] + worst:g} by Proposition 5, and {worst} is "
        "promised",
    )


def bayes_factor(*, epsilon: float) -> Number:
    """log(1 + gamma (e^epsilon - 1)) over gamma epsilon, at a gamma of a tenth."""
    ratio = math.log1p(0.1 * math.expm1(epsilon)) / (0.1 * epsilon)
    return ratio, f"{ratio:.1f} times γε at ε = {epsilon:g}, γ = 0.1"


def labels(*, count: int, of: int) -> Number:
    """What labels certify: the 95 % bound on the miss rate after ``count`` misses in ``of``."""
    bound = clopper_pearson_upper(count, of)
    return bound, f"at most {bound:.2%} are missed, with 95 %"


def labels_for_delta() -> Number:
    """The number of labelled secrets without a miss that makes delta2 as small as delta."""
    n = labels_needed(DELTA)
    return n, f"{n:,} labels are needed"


def run_times() -> Number:
    """GPU-days of the LSTM search: the printed grid, 2 hours per epoch, five trainings."""
    days = 7 * sum((5, 10, 30, 50, 100)) * 2 / 24 + 5 * 100 * 2 / 24
    return days, f"{days:.0f} GPU-days for one batch size"


def most_exposed() -> Number:
    """The exposure of a canary that ranks first among a million."""
    return math.log2(CANARY_SPACE_SIZE), ""


def highest_of_ten() -> Number:
    """The mean exposure of the highest of ten canaries about which a model knows nothing. Their
    ranks are drawn from a million; the chance that the highest is at most some number of bits is
    the tenth power of that chance for one canary."""
    bits = sum(1 / k for k in range(1, 11)) / math.log(2)
    chance = 0.5**10
    return bits, f"{bits:.2f} bits by chance; at most one bit in {chance:.1%} of such models"


def selective_epsilon(*, gamma: float) -> Number:
    """1 if the promise of S-DP is finite in the recorded run with a policy that misses a share
    ``gamma``, otherwise 0."""
    table = tables.load_recorded("crt_laptop")
    rows = table[(table.method == "selective") & np.isclose(table.gamma, gamma)]
    run = rows[rows.metric == "steps"].iloc[0]
    epsilon = utility.epsilon_after_steps(
        "selective",
        sampling_probability=run.sampling_probability,
        noise_multiplier=run.noise_multiplier,
        steps=int(run.value),
        gamma=gamma,
        delta=run.delta,
        neighbouring_relation="replace",
    )
    return float(math.isfinite(epsilon)), f"ε = {epsilon:,.2f}"


def bloom() -> Number:
    """How many duplicates a Bloom filter misses that a comparison finds."""
    rows = tables.load_recorded("screening_laptop")
    rows = rows[rows.part == "dedup"].pivot_table(
        index=["corpus", "scope"], columns="method", values="masked"
    )
    gap = (rows.bloom - rows.exact).dropna()
    false_positives = int(gap.clip(lower=0).sum())
    false_negatives = int(-gap.clip(upper=0).sum())
    return (
        false_negatives,
        f"{false_negatives} false negatives on {len(gap)} texts, {false_positives} false positives",
    )


# --- the leakage report ---------------------------------------------------------------------------
def rare_words(*, users: int = 25, dialogues: int = 1_000) -> Number:
    """How many words of names and addresses remain in a vocabulary of the words that at least
    ``users`` users have said, in simulated dialogues. Only who says a word inside a name or an
    address counts: "new" is no name where it is said of a ticket."""
    speakers: dict[str, dict[str, set[str]]] = {"name": {}, "address": {}}
    for dialogue in customersim.stream_dialogues(dialogues, 0, "paper"):
        for turn in dialogue.turns:
            for secret in turn.secrets:
                value = turn.text[secret.start : secret.end].lower()
                for word in WORD.findall(value):
                    if secret.kind in speakers:
                        speakers[secret.kind].setdefault(word, set()).add(dialogue.user)
    remaining_words = {
        k: sum(len(word_speakers) >= users for word_speakers in words.values())
        for k, words in speakers.items()
    }
    sentence = " and ".join(
        f"{remaining_words[k]} of {len(speakers[k]):,} {k} words" for k in speakers
    )
    return sum(remaining_words.values()), f"{sentence} stay"


def table_1() -> Number:
    """How many numbers of Table 1's worked example differ when the library makes it."""
    thank, you, i, like, cats, very, much, other = range(8)
    spoken = [("u0", [thank, you, very, much, other]), ("u0", [i, like, cats, very, much, other])]
    spoken += [(f"u{1 + k % 4}", [other, very, much]) for k in range(8)]
    corpus = [leakage.Document(u, str(j), t) for j, (u, t) in enumerate(spoken)]
    logprobs = [np.full(len(t), -5.0) for _, t in spoken]
    ranks = [np.full(len(t), 9) for _, t in spoken]
    for j, (position, perplexity) in enumerate([(2, 1.3), (3, 3.6)]):
        logprobs[j][position : position + 2], ranks[j][position : position + 2] = (
            -np.log(perplexity),
            0,
        )
    runs = leakage.find_runs(corpus, leakage.TokenScores(logprobs, ranks), k=1)
    (row,) = leakage.sequence_features(runs, corpus).itertuples()
    counts = (row.total_in_s, row.users_in_s, row.total_in_d, row.users_in_d)
    deviating = [a for a, b in zip(counts, (2, 1, 10, 5), strict=True) if a != b]
    return len(deviating), ", ".join(map(str, counts))


def last_run() -> Number:
    """How many runs Algorithm 1 as printed loses in a text that is guessed to its end."""
    document = leakage.Document("u", "d", [1, 2, 3])
    scores = leakage.TokenScores([np.full(3, -1.0)], [np.array([9, 0, 0])])
    complete, printed = (
        len(leakage.find_runs([document], scores, k=1, flush=f)) for f in (True, False)
    )
    return complete - printed, f"{printed} of {complete} found"


# --- Hush! ----------------------------------------------------------------------------------------
GROUP = group_mixtures.poisson_binomial([0.01] * 75)
"""The count law of a secret in 75 examples, each drawn with 1 %; the paper's are in 50 to 100."""
STEPS, SIGMA, PRIOR = 100, 8.0, 0.01


@functools.cache
def _best_guess() -> dict[str, float]:
    """The best guess of a secret: tight bounds from both sides, and the bound by KL."""
    kl = STEPS * float(
        group_mixtures.mixture_kl(group_mixtures.group_count_laws([0.01] * 75, [0, 75]), SIGMA)[0]
    )
    low, high = tight_posterior(GROUP, SIGMA, STEPS, PRIOR, neighbouring_relation="reference")
    kl_bound = float(secret_guesses.posterior_from_divergence(kl, PRIOR))
    return {"low": low, "tight": high, "kl": kl_bound}


def linear_divergence() -> Number:
    """The exponent with which the KL divergence that c_j bounds grows in the number of examples."""
    kl_of_one, kl_of_many = (
        float(
            group_mixtures.mixture_kl(group_mixtures.group_count_laws([0.01] * k, [0, k]), 2.0)[0]
        )
        for k in (1, 75)
    )
    power = math.log(kl_of_many / kl_of_one) / math.log(75)
    return power, f"it grows with the power {power:.2f} of the number"


def kl_is_loose() -> Number:
    """How much larger the KL bound is than the tight one."""
    b = _best_guess()
    return b["kl"] - b["tight"], f"tight {b['tight']:.3f}, KL {b['kl']:.3f}"


ORDERS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Renyi orders at which Lemma 3.2 is compared with the bound that it improves on."""


@functools.cache
def _renyi_bounds() -> tuple[list[float], list[float]]:
    """At each order, the posterior by Lemma 3.2 with the divergence of that order, and the bound of
    Balle, Cherubin and Hayes: r <= (p e^D)^((a - 1) / a)."""
    pair = GaussianMixturePair(tuple(GROUP.tolist()), SIGMA, "forward")
    divergences = STEPS * renyi.renyi_divergences(pair, ORDERS)
    lemma_bounds = [
        theorems.posterior_by_renyi([d], [a], PRIOR)
        for d, a in zip(divergences, ORDERS, strict=True)
    ]
    earlier_bounds = [math.exp(min(0.0, (math.log(PRIOR) + d) * (a - 1) / a))
              for d, a in zip(divergences, ORDERS, strict=True)]  # fmt: skip
    return lemma_bounds, earlier_bounds


def renyi_beats_earlier() -> Number:
    """How far the lemma's bound is, at the worst order, below that of the work it improves on.
    Without its term for a wrong guess, the lemma becomes that bound."""
    lemma_bounds, earlier_bounds = _renyi_bounds()
    least_gain = min(b - a for a, b in zip(lemma_bounds, earlier_bounds, strict=True))
    return (
        least_gain,
        f"Lemma 3.2 {min(lemma_bounds):.4f}, [2] {min(earlier_bounds):.4f}; at no order above it",
    )


def kl_beats_earlier() -> Number:
    """How far the bound by KL is below that of the work which the lemma improves on."""
    kl = _best_guess()["kl"]
    lemma, earlier_bound = (min(bounds) for bounds in _renyi_bounds())
    return (
        earlier_bound - kl,
        f"KL {kl:.3f}, [2] {earlier_bound:.3f}, Lemma 3.2 with Rényi {lemma:.3f}",
    )


def blow_up() -> Number:
    """The relative width of the bracket of the blow-up function's bound."""
    b = _best_guess()
    return b["tight"] / b["low"] - 1, f"between {b['low']:.4f} and {b['tight']:.4f}"


@functools.cache
def _incidence() -> sparse.csr_array:
    """Two hundred secrets in 600 examples, some in many and most in few."""
    rng = np.random.default_rng(0)
    rows = [
        rng.choice(600, size=int(n), replace=False) for n in np.clip(4 / rng.random(200), 4, 120)
    ]
    index = np.repeat(np.arange(200), [len(r) for r in rows])
    return sparse.csr_array((np.ones(len(index)), (index, np.concatenate(rows))), shape=(200, 600))


def large_c() -> Number:
    """The least weight with a large C."""
    return float(secret_weights.maximise_weights(_incidence(), np.full(200, 1e6)).weights.min()), ""


def small_c() -> Number:
    """How many of 600 examples of 200 secrets have a weight above 0 with a small C."""
    weights = secret_weights.maximise_weights(
        _incidence(), np.full(200, 0.01), solver="highs"
    ).weights
    positive = int((weights > 1e-9).sum())
    return positive, f"{positive} of 600 are above 0"


def binary_search() -> Number:
    """The multiple of the least sigma at which the search's plan breaks a promise."""
    plan = secret_protection.plan_protection(
        _incidence(), PRIOR, np.random.default_rng(1).uniform(0.1, 0.9, 200), scale=4.0, steps=30,
        batch_size=60.0, budget_growth="linear", neighbouring_relation="reference",
    )  # fmt: skip
    allowed = secret_guesses.allowed_divergence(plan.prior, plan.allowed_posterior) * (1 + 1e-9)
    for share in (1.0, 0.99):
        sigma = share * plan.noise_multiplier
        if (
            plan.steps
            * secret_protection.secret_kl_divergences(
                plan.incidence, plan.probabilities, sigma, neighbouring_relation="reference"
            )
            > allowed
        ).any():
            return share, f"σ = {plan.noise_multiplier:.3f}; {share:g} of it breaks a promise"
    return 0.0, "1 % less noise keeps every promise too"


def unequal_protection() -> Number:
    """The ratio of the best guesses under two trainings with the same (epsilon, delta)."""
    values = []
    for q, steps in ((1.0, 1), (0.01, 1000)):
        sigma = privacy_cost.noise_multiplier(
            epsilon=4.0,
            delta=DELTA,
            sampling_probability=q,
            steps=steps,
            neighbouring_relation="add_or_remove",
        )
        law = group_mixtures.poisson_binomial([q])
        values.append(
            tight_posterior(law, sigma, steps, PRIOR, neighbouring_relation="reference")[1]
        )
    return max(values) / min(values), "best guesses " + " and ".join(f"{v:.3f}" for v in values)


def tenth() -> Number:
    """What is accounted for the worst secret of a recorded run with a tenth of the noise, divided
    by what it was promised."""
    table = tables.load_recorded("secrets_laptop")
    worst = table[(table.metric == "worst") & (table.simulated == 10)].value
    return float(worst.max()), f"some secret is bounded by {worst.max():.1f} times its promise"


EXTRACTED = 1e-3
"""Extraction has ended where a model gives at most this share of the probes."""


def bound_where_extraction_ends() -> tuple[tuple[float, float], str]:
    """The best guess of one example, with prior 1 %, at the noise where extraction ends: in the
    recorded table with the most probes, no model gives more than ``EXTRACTED`` of them. It ends
    between two noises that were run, so the guess lies between their two bounds."""
    recorded = [tables.load_recorded(name) for name in ("secrets_laptop", "probes_laptop")]
    table = max(recorded, key=lambda t: t.probes.max())
    rows = table[(table.study == "extraction") & table.metric.isin(["memorised", "generalised"])]
    runs = rows.groupby(["noise_multiplier", "hidden", "run"]).agg(
        {"value": "sum", "probes": "max"}
    )
    extracted = runs.groupby(["noise_multiplier", "hidden"]).sum()
    most_extracted = (extracted.value / extracted.probes).groupby("noise_multiplier").max()
    ended = float(most_extracted[most_extracted <= EXTRACTED].index.min())
    going_on = float(most_extracted.index[most_extracted.index < ended].max())
    least, most = (
        ExtractionStudy(seed=0, noise_multiplier=sigma, epochs=32).posterior(PRIOR)
        for sigma in (ended, going_on)
    )
    return (
        (least, most),
        f"between σ = {going_on:g}, where {most_extracted[going_on]:.2%} can be extracted, and "
        f"{ended:g}, where {most_extracted[ended]:.2%} can: at most {most:.3g}, or {least:.3g}",
    )
