"""Bounds on the best guess of one secret: what no attack can exceed, and what a test reaches.

For one secret, a round shows a group of sampled points against its absence: N(number drawn,
sigma^2) and N(0, sigma^2) (:mod:`crtlib.accounting.secret_protection`). The library plans by the KL
divergence between them, which handles 100,000 secrets at once; :func:`compose` is tight, and takes
a second for each secret.

>>> low, high = compose(poisson_binomial([0.01]), sigma=1.0, steps=1000).blow_up(0.01)
>>> round(low, 5), round(high, 5)
(0.02914, 0.02914)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, optimize, sparse, special

from crtlib.accounting import secret_protection
from crtlib.accounting.group_mixtures import (
    DIVERGENCE_DIRECTIONS,
    DivergenceDirection,
    poisson_binomial,
)
from crtlib.accounting.privacy_loss import (
    ULP,
    Array,
    GaussianMixturePair,
    discounted_tail_masses,
    loss_crossings,
    power_by_squaring,
    tail_masses,
)
from crtlib.accounting.secret_guesses import (
    allowed_divergence,
    check_promises,
    posterior_from_divergence,
)
from crtlib.accounting.secret_protection import PROMISE_DIRECTIONS, ProtectionPlan
from crtlib.checks import check_allowed, check_choice, check_delta, check_whole_number

REACH = 9.5  # of the integration grid, in sigma
WRAP = 1e-13  # mass that may leave the window of a convolution; it is charged
Bins = tuple[Array, Array, Array, float]  # edges of the loss, masses of P and Q, their error
Bracket = tuple[float, float]
"""``(lower, upper)``: the lower bound of a test that exists, the upper bound of a worse pair."""


@dataclass(frozen=True, eq=False)
class Composed:
    """``steps`` independent rounds of a pair of laws (P, Q), bracketed from both sides.

    Upper: a discrete pair that is worse than the true one, with P-mass ``mass`` at ``losses``
    (ascending, nats) and ``infinity`` where Q has none. Lower: the tests "the loss, rounded down
    round by round, is at least ``tests``", with their ``power`` under P, their ``level`` under Q
    and ``tilted`` = e^tests level. ``error`` bounds the numerical error of one sum.
    """

    losses: np.ndarray
    mass: np.ndarray
    infinity: float
    tests: np.ndarray
    power: np.ndarray
    level: np.ndarray
    tilted: np.ndarray
    error: float

    def delta(self, epsilon: float) -> Bracket:
        """The hockey-stick divergence of P from Q at e^epsilon."""
        return self._lower(epsilon), self._upper(epsilon)

    def _upper(self, epsilon: float) -> float:
        gain = -np.expm1(np.minimum(epsilon - self.losses, 0))
        return min(1.0, self.infinity + float(self.mass @ gain) + self.error)

    def _lower(self, epsilon: float) -> float:
        excess = epsilon - self.tests
        lower = self.power - np.exp(np.minimum(excess, 700)) * self.tilted
        # Elsewhere e^excess is cut off.
        return max(0.0, float(lower.max(where=excess < 700, initial=0.0)) - 2 * self.error)

    def epsilon(self, delta: float) -> Bracket:
        """The least epsilon >= 0 at ``delta``; infinite where the window does not reach it."""
        check_delta(delta)
        bounds = []
        for side, delta_bound in enumerate((self._lower, self._upper)):
            low, high = 0.0, max(0.0, float(self.losses[-1]))
            if delta_bound(high) > delta:
                low, high = high, math.inf
            elif delta_bound(low) <= delta:
                high = low
            else:
                for _ in range(40):
                    middle = (low + high) / 2
                    low, high = (middle, high) if delta_bound(middle) > delta else (low, middle)
            bounds.append((low, high)[side])
        return bounds[0], bounds[1]

    def blow_up(self, c: float) -> Bracket:
        """B_c(P, Q) = sup {P(E): Q(E) <= c}: the best success of an attacker who succeeds with
        probability c without the data.

        Upper: min over e^loss of delta(loss) + c e^loss, which is its dual. Lower: the best test.
        """
        check_allowed("c", c, 0 <= c <= 1, "in [0, 1]")
        spacing = self.losses[1] - self.losses[0]
        sticks = tail_masses(self.mass) - discounted_tail_masses(
            self.mass, spacing
        )  # delta(losses)
        upper = float((sticks + c * np.exp(np.minimum(self.losses, 700))).min())
        level = np.maximum.accumulate(self.level[::-1]) + self.error
        lower = float(np.interp(c, level, self.power[::-1], left=0.0)) - self.error
        return max(c, lower), min(1.0, upper + self.infinity + 2 * self.error)


def compose(
    pmf: Sequence[float] | Array,
    sigma: float,
    steps: int,
    *,
    direction: DivergenceDirection = "forward",
    points: int = 2**18,
) -> Composed:
    """``steps`` rounds of the pair N(count, sigma^2), N(0, sigma^2), count distributed as ``pmf``.

    "forward": P is the mixture and Q the Gaussian; "backward" the reverse; "replace": Q is the
    mixture's mirror image, the worst replacement of the group. The real line is cut where the loss
    log(dP/dQ), which is monotone, crosses a grid, and the bins get their exact masses. Upper: each
    bin's mass goes to its two ends so that both P and Q keep it ("connect the dots", Doroshenko et
    al. 2022), which gives a pair from which the true one can be simulated. Lower: a test that knows
    only the bins. About ``points`` grid points are used; more of them narrow the bracket.

    Charged to the bracket: what leaves the window (Chernoff's bound), and the rounding of the
    Fourier transforms (Higham 2002, Theorem 24.2, times ``steps``) and of the bins' masses.

    Raises ValueError for a pmf that is not a distribution, or sigma or steps outside their range.
    """
    check_allowed("sigma", sigma, 0 < sigma < math.inf, "positive and finite")
    check_choice("direction", direction, DIVERGENCE_DIRECTIONS)
    check_whole_number("steps", steps, 1)
    law, law_error = _check_law(pmf)
    kind = "replace" if direction == "replace" else "forward"
    losses, p, q, bin_error = _make_bins(
        GaussianMixturePair(tuple(law.tolist()), sigma, kind), steps, points
    )
    if direction == "backward":
        losses, p, q = -losses[::-1], q[::-1], p[::-1]
    spacing = float(losses[-1] - losses[0]) / (len(losses) - 1)
    mass, infinity = _connect_the_dots(losses, p, q)
    # A test counts a bin with its lower end, and q e^end <= p except in the first bin, without one.
    lower_ends = losses[0] + spacing * np.arange(-1, len(losses))
    tilted = np.exp(np.minimum(np.log(np.maximum(q, 1e-290)) + lower_ends, 700))
    tilted[1:] = np.where(q > 1e-290, np.minimum(tilted, p), p)[1:]

    low, total, rounding = _convolve_laws({"mass": mass, "p": p, "q": q, "tilted": tilted}, steps)
    grid = steps * losses[0] + spacing * (low + np.arange(len(total["mass"])))
    tests = grid - steps * spacing
    tail = discounted_tail_masses(total["tilted"], spacing)
    level = np.where(tests > 0, np.exp(-np.maximum(tests, 0)) * tail, tail_masses(total["q"]))
    return Composed(
        grid,
        total["mass"],
        infinity=-math.expm1(steps * math.log1p(-min(infinity, 1 - 1e-16))),
        tests=tests,
        power=tail_masses(total["p"]),
        level=level,
        tilted=tail,
        error=rounding + 6 * WRAP + steps * (law_error + bin_error),
    )


def _check_law(pmf: Sequence[float] | Array) -> tuple[Array, float]:
    """The probabilities up to the last nonzero one, at least two, and their sum's error."""
    law = np.asarray(pmf, dtype=float)
    law = law[: int(np.flatnonzero(law)[-1]) + 1] if law.any() else law[:0]
    sum_error = abs(1 - float(law.sum()))
    if not (law.size and (law >= 0).all() and sum_error < 1e-9):
        raise ValueError(f"pmf: adds up to {float(law.sum())}: must be probabilities that sum to 1")
    if len(law) == 1:  # never sampled, so the two laws are one: as if once in 10^300 rounds
        law = np.array([1.0, 1e-300])
    return law, sum_error


def _convolve_laws(laws: dict[str, Array], steps: int) -> tuple[int, dict[str, Array], float]:
    """The sums of ``steps`` draws from each law on one window: its first index, the masses there by
    name, and a bound on the rounding error of one sum of them."""
    reach = [_find_reach(laws[name], steps) for name in ("mass", "p", "q")]
    low, high = min(r[0] for r in reach), max(r[1] for r in reach)
    n = 1 << int(max(high - low, len(laws["q"]))).bit_length()  # at least high - low + 1
    window = (low + np.arange(n)) % n
    total, rounding, log_n = {}, 0.0, math.log2(n)
    for name, law in laws.items():
        convolved = fft.irfft(power_by_squaring(fft.rfft(law, n), steps), n)
        norms = steps * (log_n + 1) * np.linalg.norm(law) + log_n * np.linalg.norm(convolved)
        rounding = max(rounding, math.sqrt(n) * 8 * ULP * float(norms))
        total[name] = np.maximum(convolved[window], 0)
    return low, total, rounding


def _make_bins(pair: GaussianMixturePair, steps: int, points: int) -> Bins:
    """Edges of the loss, equally spaced, and the exact masses of P and Q between them.

    ``losses (n,)``; ``p``, ``q (n + 1,)`` with the tails first and last; and a bound on the
    rounding error of the masses. The ``points`` span the loss and nearly all of the sum of rounds.
    """
    sigma, k, pmf = pair.sigma, np.arange(pair.top + 1), np.array(pair.pmf)
    mirrored = pair.direction == "replace"
    laws = (k, pmf), (-k, pmf) if mirrored else (np.zeros(1), np.ones(1))  # means, their weights
    grid_points = np.arange(0, pair.top + REACH * sigma, sigma / 100)
    tail_mass = special.ndtr((k - grid_points[:, None]) / sigma) @ pmf
    high = float(grid_points[min(int((tail_mass > WRAP / steps).sum()), len(grid_points) - 1)])
    low = -high if mirrored else -REACH * sigma
    x = np.linspace(low, high, 1 + math.ceil(8 * (high - low) / sigma))
    loss, window = pair.loss(x), 0.0
    for sign, (means, weights) in zip((1, -1), laws, strict=True):  # moments under P and under Q
        w = np.exp(-(((x[:, None] - means) / sigma) ** 2) / 2) @ weights
        mean = float(w @ loss / w.sum())
        spread = math.sqrt(steps * float(w @ (loss - mean) ** 2 / w.sum()))
        window += sign * steps * mean + 9 * spread
    span = float(loss[-1] - loss[0])
    spacing = max(window, span, 1e-12) / points
    losses = loss[0] + spacing * np.arange(max(2, 1 + math.floor(span / spacing)))
    edges = loss_crossings(pair, losses, low, high)
    masses, error = [], 0.0
    for means, weights in laws:
        masses_of_law, smaller_tails = _masses_between((edges[:, None] - means) / sigma)
        masses.append(masses_of_law @ weights)
        error += 8 * ULP * float((smaller_tails @ weights).sum())
    return losses, masses[0], masses[1], error


def _masses_between(z: Array) -> tuple[Array, Array]:
    """Masses of N(0, 1) between ascending ``z (n, K + 1)``, tails first and last, ``(n + 1, K +
    1)``, and the lesser of the two tails at each."""
    cdf, survival = special.ndtr(z), special.ndtr(-z)
    inner = np.where(z[1:] > 0, survival[:-1] - survival[1:], cdf[1:] - cdf[:-1])
    return np.concatenate([cdf[:1], inner, survival[-1:]]), np.minimum(cdf, survival)


def _connect_the_dots(losses: Array, p: Array, q: Array) -> tuple[Array, float]:
    """P's masses on ``losses`` for a pair at least as distinguishable, and P's mass at infinity."""
    spacing = float(losses[-1] - losses[0]) / (len(losses) - 1)
    e = np.exp(np.minimum(losses, 700))
    upper = np.clip((p[1:-1] - q[1:-1] * e[:-1]) / -math.expm1(-spacing), 0, p[1:-1])
    mass = np.zeros(len(losses))
    mass[0] = p[0]  # the loss there is lower still
    mass[1:] += upper
    mass[:-1] += p[1:-1] - upper
    finite = min(q[-1] * e[-1], p[-1])
    mass[-1] += finite
    return mass, float(p[-1] - finite)


def _find_reach(law: Array, steps: int) -> tuple[int, int]:
    """The indices between which the sum of ``steps`` draws lies, except for a mass of WRAP on each
    side (Chernoff)."""
    support = np.flatnonzero(law)
    weights, reach = law[support], []
    coarse = support // max(1, len(law) // 1024)
    blocks = np.flatnonzero(np.diff(coarse, prepend=-1))
    block_weights, block_index = np.add.reduceat(weights, blocks), support[blocks]
    for side in (-1, 1):

        def bound(
            log_t: float, weights: Array, index: NDArray[np.int64], side: int = side
        ) -> float:
            t = math.exp(log_t)
            moment = float(special.logsumexp(side * t * index, b=weights))
            return (steps * moment - math.log(WRAP)) / t

        with np.errstate(over="ignore"):  # infinite there, so not the minimum
            optimum = optimize.minimize_scalar(
                lambda log_t, bound=bound: bound(log_t, block_weights, block_index),
                bounds=(-25, 3),
                method="bounded",
                options={"maxiter": 40},
            )
        reach.append(side * math.ceil(bound(float(optimum.x), weights, support)))
    return max(reach[0], 0), min(reach[1], steps * (len(law) - 1))


# --- promises of secrets --------------------------------------------------------------------------
def tight_posterior(
    law: Array, sigma: float, steps: int, prior: float, *, neighbouring_relation: str
) -> Bracket:
    """The blow-up function at the prior of a secret whose count has this law: lower and upper bound
    of the best success (Hayes et al. 2023, Theorem 2, against the reference, or for "replace"
    against another candidate)."""
    brackets = [
        compose(law, sigma, steps, direction=d, points=2**14).blow_up(prior)
        for d in PROMISE_DIRECTIONS[neighbouring_relation]
    ]
    return max(b[0] for b in brackets), max(b[1] for b in brackets)


def _count_laws(
    incidence: sparse.csr_array, probabilities: Array, numbers: Sequence[int] | NDArray[np.int64]
) -> list[Array]:
    """For each of these secrets, the law of how many of its examples are drawn."""
    rows = np.split(np.asarray(probabilities)[incidence.indices], incidence.indptr[1:-1])
    return [poisson_binomial(rows[j]) for j in numbers]


def noise_multiplier(
    incidence: sparse.csr_array,
    probabilities: Array,
    prior: ArrayLike,
    posterior: ArrayLike,
    *,
    steps: int,
    neighbouring_relation: str,
    accounting: str = "kl",
    tight: int = 64,
) -> float:
    """The least noise (on the safe side) with which every secret keeps its promise.

    "kl" is :func:`crtlib.accounting.secret_protection.noise_multiplier_for_promises`. With "tight",
    the ``tight`` secrets that bind by KL are accounted by the upper end of their blow-up function
    (to 1e-4), the others still by KL. So the result is never above that of "kl", and the fewer
    secrets bind, the further it is below.
    """
    check_choice("accounting", accounting, ("kl", "tight"))
    p, r = check_promises(np.broadcast_to(prior, incidence.shape[:1]), posterior)

    def by_kl(rows: NDArray[np.int64]) -> float:
        return secret_protection.noise_multiplier_for_promises(
            incidence[rows], probabilities, p[rows], r[rows], steps=steps,
            neighbouring_relation=neighbouring_relation,
        )  # fmt: skip

    sigma = by_kl(np.arange(len(p)))
    if accounting == "kl":
        return sigma
    divergences = secret_protection.secret_kl_divergences(
        incidence, probabilities, sigma, neighbouring_relation=neighbouring_relation
    )
    worst = np.argsort(-divergences / allowed_divergence(p, r), kind="stable")[:tight]
    floor = by_kl(np.setdiff1d(np.arange(len(p)), worst))
    laws = _count_laws(incidence, probabilities, worst)
    promised_laws = list(zip(laws, p[worst], r[worst], strict=True))

    def keeps_promise(law: Array, prior: float, promise: float, sigma: float) -> bool:
        _, upper_bound = tight_posterior(
            law, sigma, steps, prior, neighbouring_relation=neighbouring_relation
        )
        return upper_bound <= promise

    while floor < sigma:
        broken = next((row for row in promised_laws if not keeps_promise(*row, floor)), None)
        if broken is None:
            break
        low, high = floor, sigma
        while high > low * (1 + 1e-4):
            middle = math.sqrt(low * high)
            if keeps_promise(*broken, middle):
                high = middle
            else:
                low = middle
        floor = high
    return min(floor, sigma)


@dataclass(frozen=True)
class SecretGuarantee:
    """What is promised for one secret, and what is accounted for it; it prints in full."""

    secret: str
    prior: float
    promised: float
    posterior_kl: float
    posterior_tight: float | None
    examples: int
    load: float
    noise_multiplier: float
    steps: int
    neighbouring_relation: str

    @property
    def posterior(self) -> float:
        """The smaller of the two bounds."""
        tight = 1.0 if self.posterior_tight is None else self.posterior_tight
        return min(self.posterior_kl, tight)

    def __str__(self) -> str:
        tight = self.posterior_tight
        return (
            f"secret {self.secret}: guessed with probability at most {self.posterior:.4g} "
            f"(promised: {self.promised:.4g}), prior {self.prior:.4g}; "
            f"unit: all its {self.examples} examples, of which {self.load:.4g} are in a batch; "
            f"{self.steps} rounds with noise multiplier {self.noise_multiplier:.6g}; "
            f"accountant: KL divergence {self.posterior_kl:.4g}, blow-up function "
            f"{'not computed' if tight is None else format(tight, '.4g')}; "
            f"neighbours: {self.neighbouring_relation}; "
            "treated as public: which examples hold which secret, the weights"
        )


def account_secrets(
    plan: ProtectionPlan,
    numbers: Sequence[int],
    *,
    names: Sequence[object] | None = None,
    tight: bool = True,
) -> list[SecretGuarantee]:
    """What a plan accounts for its secrets with these ``numbers``; with ``tight`` also by their
    blow-up functions (a second each)."""
    incidence, relation = plan.incidence[np.asarray(numbers, dtype=int)], plan.neighbouring_relation
    relation_option = {"neighbouring_relation": relation}
    divergences = plan.steps * secret_protection.secret_kl_divergences(
        incidence, plan.probabilities, plan.noise_multiplier, **relation_option
    )
    laws = _count_laws(incidence, plan.probabilities, range(len(numbers)))
    load = incidence @ plan.probabilities
    return [
        SecretGuarantee(
            secret=str(j if names is None else names[j]),
            prior=float(plan.prior[j]),
            promised=float(plan.allowed_posterior[j]),
            posterior_kl=float(posterior_from_divergence(divergences[i], plan.prior[j])),
            posterior_tight=tight_posterior(
                law, plan.noise_multiplier, plan.steps, plan.prior[j], **relation_option
            )[1] if tight else None,
            examples=int(np.diff(incidence.indptr)[i]),
            load=float(load[i]),
            noise_multiplier=plan.noise_multiplier,
            steps=plan.steps,
            neighbouring_relation=relation,
        )
        for i, (j, law) in enumerate(zip(numbers, laws, strict=True))
    ]  # fmt: skip
