"""Claims of Hush! that a calculation decides: mixtures of Gaussians, posteriors, small programs.

>>> [one.verdict for one in linear_divergence()]
['differs']
>>> [one.verdict for one in large_c()]
['agrees']
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import sparse

from crtbook.claims import rules
from crtbook.claims.rules import Outcome, calculated
from crtbook.claims.theory import DELTA
from crtlib.accounting import ledger, mixtures, posteriors, secret_lp, secrets

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
        "renyi": secrets.renyi_posterior(GROUP, sigma, steps, PRIOR),
    }


def linear_divergence() -> list[Outcome]:
    """Whether the KL divergence that the budgets c_j bound is linear in the number of examples."""
    each = {}
    for k in (1, 10, 75):
        law = mixtures.counts([0.01] * k, [0, k])
        each[k] = float(mixtures.kl(law, 2.0)[0])
    power = math.log(each[75] / each[1]) / math.log(75)
    return calculated(
        rules.holds(
            power <= 1.1,
            f"it grows with the power {power:.2f} of the number",
            "the power must be at most 1.1",
            power,
        )
    )


def kl_is_loose() -> list[Outcome]:
    """That the KL bound is not tight."""
    b = _bounds()
    return calculated(
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
    return calculated(
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
    return calculated(
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
    return calculated(
        rules.holds(
            bool((weights == 1).all()), f"least weight {weights.min():g}", "every weight must be 1"
        )
    )


def small_c() -> list[Outcome]:
    """That with a small C all but as many examples as there are secrets get the weight 0."""
    weights = secret_lp.solve(_incidence(), np.full(200, 0.01), solver="highs").weights
    some = int((weights > 1e-9).sum())
    return calculated(
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
    return calculated(
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
    return calculated(
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
    return calculated(
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
    from crtbook.secrets import ExtractionStudy

    bound = ExtractionStudy(seed=0, noise_multiplier=0.3, epochs=32).posterior(PRIOR)
    return calculated(
        rules.holds(bound < 0.99, f"at most {bound:.3g}", "must be below 0.99", bound)
    )


MEASURES: dict[str, Callable[..., list[Outcome]]] = {
    f.__name__: f
    for f in (
        linear_divergence,
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
