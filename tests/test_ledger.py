"""The ledger against golden numbers, second routes, and the properties a guarantee must have."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from crtlib import accountants, confidentiality, ledger
from crtlib.ledger import SampledGaussian

DELTA = 8e-5
GAMMAS = (0.01, 0.05, 0.1, 0.2, 0.5)
# Figure 6: (q, steps, epsilon') -> sigma and epsilon at GAMMAS, tight and by Opacus' Renyi curve.
PLD = {
    (0.01, 1000, 0.5): (2.066540, 0.002407, 0.019478, 0.044479, 0.097959, 0.259132),
    (0.01, 1000, 1.0): (1.270533, 0.006320, 0.048842, 0.109927, 0.235153, 0.572865),
    (0.01, 1000, 8.0): (0.555853, 0.589183, 2.789400, 3.984301, 5.197565, 6.797748),
    (0.1, 100, 0.5): (6.173045, 0.002416, 0.019517, 0.044544, 0.098054, 0.259228),
    (0.1, 100, 2.0): (2.002753, 0.019490, 0.150414, 0.327692, 0.648501, 1.329791),
    (0.1, 100, 8.0): (0.869112, 0.780560, 3.049071, 4.197781, 5.352362, 6.866627),
}
RDP = {
    (0.01, 1000, 0.5): (2.270791, 0.002809, 0.020840, 0.046541, 0.100730, 0.261734),
    (0.01, 1000, 8.0): (0.586551, 0.794536, 3.037442, 4.185996, 5.331338, 6.855138),
    (0.1, 100, 1.0): (3.782897, 0.007353, 0.052584, 0.115799, 0.242569, 0.578608),
    (0.1, 100, 4.0): (1.362529, 0.105364, 0.708931, 1.285972, 2.023970, 3.127492),
}
# Replacement at the sigma that gives epsilon' for add/remove: epsilon by the pair u, -u; by the
# generic group of two; Bayesian confidentiality at gamma = 0.1.
REPLACE = {
    (0.01, 1000, 2.0665395): (0.994958, 1.096427, 0.111538),
    (0.01, 1000, 1.2705333): (1.777341, 2.249383, 0.275270),
    (0.01, 1000, 0.8897766): (2.993131, 4.931060, 0.714433),
    (0.1, 100, 3.4369967): (2.051187, 2.243014, 0.354517),
    (0.1, 100, 2.0027528): (3.841735, 4.787919, 1.197618),
}


def sigma_for(q, steps, epsilon, accountant="pld", delta=DELTA, relation="add_or_remove"):
    return ledger.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        sampling_probability=q,
        steps=steps,
        accountant=accountant,
        neighbouring_relation=relation,
    )


# --- Golden numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant, cells", [("pld", PLD), ("rdp", RDP)])
def test_figure_6_cells(accountant, cells):
    for (q, steps, epsilon), (sigma, *expected) in cells.items():
        event = SampledGaussian(q, sigma, steps)  # sigma has seven digits, so a cell has five
        row = [
            confidentiality.bayes_at_fixed_delta(event, gamma=g, delta=DELTA, accountant=accountant)
            for g in (1, 0, *GAMMAS)
        ]
        assert row == pytest.approx([epsilon, 0, *expected], rel=5e-5, abs=1e-6)


@pytest.mark.parametrize(
    "accountant, setting",
    [("pld", (0.01, 1000, 1.0)), ("pld", (0.1, 100, 8.0)), ("rdp", (0.01, 1000, 8.0))],
)
def test_calibrated_noise(accountant, setting):
    expected = {"pld": PLD, "rdp": RDP}[accountant][setting][0]
    assert sigma_for(*setting, accountant) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "accountant, sigma, amplified", [("autodp", 2.42632, 0.37438), ("pld", 2.24771, 0.36190)]
)
def test_the_authors_own_setting(accountant, sigma, amplified):
    found = sigma_for(0.1, 100, 2.0, accountant, delta=1e-5)
    assert found == pytest.approx(sigma, abs=1e-5)
    event = SampledGaussian(0.1, found, 100)
    value = confidentiality.bayes_at_fixed_delta(
        event, gamma=0.1, delta=1e-5, accountant=accountant
    )
    assert value == pytest.approx(amplified, abs=1e-5)


def test_the_papers_two_versions_read_the_profile_at_different_deltas():
    event = SampledGaussian(0.01, sigma_for(0.01, 1000, 1.0, "autodp"), 1000)

    def at(delta):
        return math.log1p(0.1 * math.expm1(ledger.epsilon(event, delta=delta, accountant="autodp")))

    assert f"{at(DELTA / 0.1):.2f}" == "0.12" and f"{at(DELTA * 0.1):.1f}" == "0.2"


@pytest.mark.parametrize("setting", REPLACE)
def test_replacement(setting):
    tight, generic, bayes = REPLACE[setting]
    q, steps, sigma = setting
    event = SampledGaussian(q, sigma, steps)
    replace = {"delta": DELTA, "neighbouring_relation": "replace"}
    assert ledger.epsilon(event, **replace) == pytest.approx(tight, abs=2e-5)
    curve = accountants.profile(((q, sigma, steps),), "pld", "add_or_remove")
    assert accountants.group_of_two(curve, DELTA) == pytest.approx(generic, abs=2e-5)
    found = confidentiality.bayes_at_fixed_delta(event, gamma=0.1, **replace)
    assert found == pytest.approx(bayes, abs=2e-5)


def test_group_table():
    naive = {2: (1.18225e-3, 2.97463e-4), 5: (5.93653e-2, 6.86328e-3), 10: (17.6212, 1.0254646)}
    for k, (paper, geometric) in naive.items():
        assert confidentiality.crt_group(1, delta=DELTA, missed=k, tight=False)[0] == k
        loose = confidentiality.crt_group(1, delta=DELTA, missed=k, tight=False)[1]
        assert loose == pytest.approx(paper, rel=1e-5)
        tight = confidentiality.crt_group(1, delta=DELTA, missed=k)[1]
        assert tight == pytest.approx(geometric, rel=1e-5)
        assert tight == pytest.approx(DELTA * math.expm1(k) / math.expm1(1), rel=1e-12)


def test_recall_bounds():
    assert ledger.miss_rate_upper_bound(0, 200) == pytest.approx(0.01487, abs=5e-6)
    assert ledger.miss_rate_upper_bound(20, 200) == pytest.approx(0.14199, abs=5e-6)
    for misses, n in ((3, 50), (20, 200)):  # second route: the bound's own definition
        bound = ledger.miss_rate_upper_bound(misses, n, 0.9)
        assert stats.binom.cdf(misses, n, bound) == pytest.approx(0.1, rel=1e-9)
    assert ledger.miss_rate_upper_bound(5, 5) == 1.0
    n = ledger.labels_needed(DELTA)
    assert n == 37446
    bounds = [ledger.miss_rate_upper_bound(0, m) for m in (n - 1, n)]
    assert bounds[0] > DELTA >= bounds[1]


# --- Second routes --------------------------------------------------------------------------------


def hockey_stick(epsilon, q, sigma, replace=False):
    """One step, integrated directly, in the worse direction."""

    def density(x, shift):
        norm = stats.norm(scale=sigma).pdf
        return (1 - q) * norm(x) + q * norm(x - shift)

    def one(left, right):
        def gap(x):
            return max(0.0, density(x, left) - math.exp(epsilon) * density(x, right))

        return integrate.quad(gap, -12 * sigma, 12 * sigma, limit=500, points=[0.0])[0]

    return one(1, -1) if replace else max(one(1, 0), one(0, 1))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("q, sigma, epsilon", [(0.1, 0.8, 0.5), (0.5, 1.5, 0.2), (1.0, 2.0, 0.3)])
def test_one_step_equals_the_integral(q, sigma, epsilon, replace):
    relation = "replace" if replace else "add_or_remove"
    event = SampledGaussian(q, sigma, 1)
    found = ledger.delta(event, epsilon=epsilon, neighbouring_relation=relation)
    assert found == pytest.approx(hockey_stick(epsilon, q, sigma, replace), rel=1e-4)
    back = ledger.epsilon(event, delta=found, neighbouring_relation=relation)
    assert back == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize("gamma", [0.05, 0.3, 0.8])
def test_proposition_6_is_an_equality_and_covers_the_reverse_direction(gamma):
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(12), 2)  # the outputs where pi catches, and where it misses

    def divergence(left, right, epsilon):
        return np.maximum(left - math.exp(epsilon) * right, 0).sum()

    mixture = (1 - gamma) * p + gamma * q
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        both = max(divergence(q, p, epsilon), divergence(p, q, epsilon))
        amplified, spent = confidentiality.bayes_amplify(epsilon, delta=both, gamma=gamma)
        forward = divergence(mixture, p, amplified)
        assert forward == pytest.approx(gamma * divergence(q, p, epsilon), abs=1e-12)
        assert max(forward, divergence(p, mixture, amplified)) <= spent + 1e-12


def test_theorem_8_3_holds_on_random_distributions_and_is_tight_one_way():
    rng = np.random.default_rng(2)
    gamma, delta2 = 0.3, 0.05
    for _ in range(50):
        p, q, free = rng.dirichlet(np.ones(6), 3)
        mixture = (1 - gamma) * p + (gamma - delta2) * q + delta2 * free  # missed by both: free
        epsilon = rng.uniform(0, 2)
        pairs = ((q, p), (p, q))
        delta = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in pairs)
        for one_directional in (False, True):
            eps, spent = confidentiality.crt_bayesian(
                epsilon, delta=delta, gamma=gamma, delta2=delta2, one_directional=one_directional
            )
            assert np.maximum(mixture - math.exp(eps) * p, 0).sum() <= spent + 1e-12
            if not one_directional:
                assert np.maximum(p - math.exp(eps) * mixture, 0).sum() <= spent + 1e-12


def test_composition_of_phases():
    for accountant in ("pld", "rdp", "autodp"):
        parts = [SampledGaussian(0.01, 1.0, 300), SampledGaussian(0.01, 1.0, 700)]
        whole = SampledGaussian(0.01, 1.0, 1000)
        two, one = (
            ledger.epsilon(events, delta=DELTA, accountant=accountant) for events in (parts, whole)
        )
        assert two == one
        mixed = [SampledGaussian(0.01, 1.0, 500), SampledGaussian(0.02, 2.0, 500)]
        more = ledger.epsilon(mixed, delta=DELTA, accountant=accountant)
        assert more > ledger.epsilon(mixed[0], delta=DELTA, accountant=accountant)
    gaussians = [SampledGaussian(1, 10, 50), SampledGaussian(1, 20, 100)]
    together = SampledGaussian(1, (50 / 100 + 100 / 400) ** -0.5, 1)  # exact for Gaussians
    assert ledger.epsilon(gaussians, delta=DELTA) == pytest.approx(
        ledger.epsilon(together, delta=DELTA), rel=1e-4
    )


# --- Accountants among themselves -----------------------------------------------------------------


@pytest.mark.parametrize("q, sigma, steps", [(0.01, 1.2705333, 1000), (0.1, 2.0027528, 100)])
def test_a_tighter_accountant_is_never_above_a_looser_one(q, sigma, steps):
    event = SampledGaussian(q, sigma, steps)
    for relation in ledger.RELATIONS:
        eps = {
            name: ledger.epsilon(
                event, delta=DELTA, accountant=name, neighbouring_relation=relation
            )
            for name in ledger.ACCOUNTANTS
        }
        assert eps["pld"] < eps["prv"] < eps["rdp"]
        assert eps["pld"] < eps["autodp"]
        if relation == "add_or_remove":
            assert eps["prv"] - accountants.PRV_EPS_ERROR == pytest.approx(eps["pld"], abs=3e-4)
            assert eps["rdp"] == pytest.approx(eps["autodp"], rel=5e-3)


@pytest.mark.parametrize("relation", ledger.RELATIONS)
@pytest.mark.parametrize("accountant", ["pld", "rdp", "autodp"])
def test_calibrate_then_account(accountant, relation):
    sigma = sigma_for(0.1, 100, 1.5, accountant, relation=relation)
    options = {"delta": DELTA, "accountant": accountant, "neighbouring_relation": relation}
    spent = ledger.epsilon(SampledGaussian(0.1, sigma, 100), **options)
    assert spent <= 1.5 and spent == pytest.approx(1.5, rel=1e-6)


@pytest.mark.parametrize("accountant", ledger.ACCOUNTANTS)
def test_epsilon_and_delta_are_inverse(accountant):
    event = SampledGaussian(0.1, 3.0, 50)
    eps = ledger.epsilon(event, delta=1e-4, accountant=accountant)
    assert ledger.delta(event, epsilon=eps, accountant=accountant) == pytest.approx(1e-4, rel=2e-3)


def check_monotone(event, gammas, accountant):
    q, sigma, steps = event.sampling_probability, event.noise_multiplier, event.steps

    def spent(*changed, relation="add_or_remove"):
        return ledger.epsilon(
            SampledGaussian(*changed),
            delta=DELTA,
            accountant=accountant,
            neighbouring_relation=relation,
        )

    low, high = (
        confidentiality.bayes_at_fixed_delta(event, gamma=g, delta=DELTA, accountant=accountant)
        for g in gammas
    )
    full = spent(q, sigma, steps)
    assert 0 <= low <= high * (1 + 1e-9) <= full * (1 + 2e-9)
    assert spent(q, 1.1 * sigma, steps) <= full <= spent(q, sigma, steps + 10)
    assert spent(q, sigma, steps, relation="replace") >= full


unit = st.floats(0, 1)


@settings(max_examples=20, deadline=None)
@given(
    event=st.builds(SampledGaussian, st.floats(1e-3, 1), st.floats(0.5, 20), st.integers(1, 500)),
    gammas=st.tuples(unit, unit).map(sorted),
)
def test_monotone(event, gammas):
    check_monotone(event, gammas, "rdp")


@pytest.mark.parametrize("event", [(0.02, 0.9, 100), (0.3, 3.0, 20), (1.0, 5.0, 10)])
def test_monotone_by_pld(event):
    for gammas in ((0.0, 1e-4), (0.01, 0.02), (0.5, 1.0)):
        check_monotone(SampledGaussian(*event), gammas, "pld")


# --- Edges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ledger.ACCOUNTANTS)
def test_edges_of_the_event(accountant):
    def spent(*event):
        return ledger.epsilon(SampledGaussian(*event), delta=DELTA, accountant=accountant)

    assert spent(0.1, 1.0, 0) == 0 == spent(0.0, 1.0, 100)
    assert spent(0.1, 0.0, 1) == math.inf
    assert 0 < spent(1.0, 30.0, 10) < 1
    assert ledger.noise_multiplier(
        epsilon=1, delta=DELTA, sampling_probability=0, steps=10, accountant=accountant
    ) == pytest.approx(0)


def test_edges_of_gamma():
    event = SampledGaussian(0.1, 2.0, 100)
    assert confidentiality.bayes_at_fixed_delta(event, gamma=0, delta=DELTA) == 0
    full = ledger.epsilon(event, delta=DELTA)
    assert confidentiality.bayes_at_fixed_delta(event, gamma=1, delta=DELTA) == full
    assert (
        confidentiality.bayes_at_fixed_delta(event, gamma=DELTA, delta=DELTA) == 0
    )  # delta / gamma = 1
    total_variation = ledger.delta(event, epsilon=0)
    assert (
        confidentiality.bayes_at_fixed_delta(
            event, gamma=0.999 * DELTA / total_variation, delta=DELTA
        )
        == 0
    )
    some = confidentiality.bayes_at_fixed_delta(event, gamma=0.1, delta=DELTA, delta2=4e-5)
    assert some == confidentiality.bayes_at_fixed_delta(event, gamma=0.1, delta=DELTA - 4e-5)
    assert (
        confidentiality.bayes_at_fixed_delta(event, gamma=0.1, delta=DELTA, delta2=DELTA)
        == math.inf
    )


def test_single_secrets():
    assert confidentiality.confidentiality_redacted(1.5, delta=DELTA, detected=True) == (0, DELTA)
    assert confidentiality.confidentiality_redacted(1.5, delta=DELTA, detected=False) == (
        1.5,
        DELTA,
    )
    missed_by_both = confidentiality.crt_confidentiality(
        1.5, delta=DELTA, detected=False, caught=False
    )
    assert missed_by_both[0] == math.inf
    assert confidentiality.crt_group(1.5, delta=DELTA, missed=0) == (0, 0)


def test_extreme_epsilons_do_not_overflow():
    for eps in (1e-12, 1.0, 699.0, 701.0, 1e5):
        value, _ = confidentiality.bayes_amplify(eps, delta=DELTA, gamma=0.1)
        expected = 0.1 * eps if eps < 1e-6 else eps + math.log(0.1 + 0.9 * math.exp(-eps))
        assert value == pytest.approx(expected, rel=1e-9)
        tight, _ = confidentiality.crt_bayesian(
            eps, delta=DELTA, gamma=0.1, delta2=1e-3, one_directional=True
        )
        assert 0 <= tight <= value
    assert confidentiality.bayes_amplify(math.inf, delta=DELTA, gamma=0.1)[0] == math.inf
    assert confidentiality.bayes_amplify(math.inf, delta=DELTA, gamma=0)[0] == 0
    assert confidentiality.group_naive([1e4] * 3, delta=DELTA) == (3e4, math.inf)
    # the order of the group does not matter, and the best one is taken
    assert confidentiality.group_naive([3, 0, 1], delta=1e-6)[1] == pytest.approx(
        1e-6 * (2 + math.e)
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: SampledGaussian(1.5, 1, 1), "sampling_probability=1.5: must be in [0, 1]"),
        (lambda: SampledGaussian(0.1, -1, 1), "noise_multiplier=-1: must be finite"),
        (lambda: SampledGaussian(0.1, math.nan, 1), "noise_multiplier=nan"),
        (lambda: SampledGaussian(0.1, 1, 2.5), "steps=2.5: must be a whole number"),
        (lambda: ledger.epsilon([], delta=0), "delta=0: must be in (0, 1)"),
        (lambda: ledger.epsilon([], delta=1.0), "delta=1.0: must be in (0, 1)"),
        (lambda: ledger.epsilon([], delta=0.1, accountant="gdp"), "must be one of pld, rdp"),
        (
            lambda: ledger.epsilon([], delta=0.1, neighbouring_relation="swap"),
            "neighbouring_relation='swap': must be one of add_or_remove, replace",
        ),
        (lambda: sigma_for(0.1, 10, 0), "epsilon=0: must be positive"),
        (lambda: sigma_for(0.1, 10, 1e-9, "rdp"), "out of reach of 'rdp'"),
        (
            lambda: confidentiality.bayes_amplify(1, delta=0.1, gamma=7),
            "gamma=7: must be in [0, 1]",
        ),
        (
            lambda: confidentiality.crt_group(1, delta=0.1, missed=0.5),
            "missed=0.5: must be a whole number",
        ),
        (
            lambda: confidentiality.crt_bayesian(
                1, delta=0.1, gamma=0.1, delta2=0.2, one_directional=True
            ),
            "delta2=0.2: must be at most gamma=0.1",
        ),
        (lambda: ledger.miss_rate_upper_bound(3, 2), "misses=3: must be in [0, 2]"),
        (lambda: ledger.MissRate(1.2), "rate=1.2: must be in [0, 1]"),
    ],
)
def test_mistakes_are_named_in_one_line(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_guarantee_says_everything():
    text = str(
        ledger.Guarantee(
            epsilon=0.2753,
            delta=DELTA,
            unit="one secret in one turn",
            neighbours="replace",
            accountant="pld",
            kind="Bayesian confidentiality",
            gamma=ledger.MissRate.measured(20, 200),
            delta2=ledger.MissRate(0.0),
        )
    )
    for part in (
        "(0.2753, 8e-05) Bayesian confidentiality",
        "unit: one secret in one turn",
        "one data point replaced",
        "accountant: pld",
        "gamma = 0.1 (measured: 20 of 200 missed, 95 % upper bound 0.142)",
        "delta2 = 0 (assumed)",
    ):
        assert part in text


# --- Command line ---------------------------------------------------------------------------------

SETTING = "--delta 1e-5 --batch-size 1000 --points 10000 --epochs 10 --gamma 0.1"


def crtlib(arguments):
    return subprocess.run(
        [sys.executable, "-m", "crtlib", "account", *arguments.split()],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_command_account():
    told = json.loads(crtlib(f"--epsilon 2 {SETTING} --accountant autodp --json").stdout)
    assert told["noise_multiplier"] == pytest.approx(2.42632, abs=1e-5)
    assert told["confidentiality_epsilon"] == pytest.approx(0.37438, abs=1e-5)
    assert (told["sampling_probability"], told["steps"]) == (0.1, 100)
    assert told["neighbouring_relation"] == "add_or_remove"
    honest = json.loads(crtlib(f"--epsilon 2 {SETTING} --neighbouring replace --json").stdout)
    assert honest["noise_multiplier"] > told["noise_multiplier"]
    assert honest["epsilon"] == pytest.approx(2) and "replaced" in honest["neighbours"]
    back = crtlib(f"--noise-multiplier 2.2477115 {SETTING}").stdout
    assert "(0.3619, 1e-05) Bayesian confidentiality" in back and "gamma = 0.1 (assumed)" in back


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--epsilon 2 --gamma 7", "gamma=7.0: must be in [0, 1]"),
        ("--epsilon 0", "epsilon=0.0: must be positive"),
        ("--epsilon 2 --delta 1", "delta=1.0: must be in (0, 1)"),
        ("--epsilon 2 --noise-multiplier 1", "exactly one"),
        ("--epsilon two", "--epsilon"),
        ("--epsilon 2 --batch-size 20000", "batch_size=20000.0"),
    ],
)
def test_command_account_refuses(arguments, message):
    done = crtlib(f"{SETTING} {arguments}")
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1
