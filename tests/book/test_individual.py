"""What DP-SGD spends on each point by itself, against the whole promise and against Opacus."""

import numpy as np
import pytest
from opacus.accountants.analysis import rdp

from crtbook import individual

HOW = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "delta": 1e-5}


def test_a_point_is_accounted_as_one_of_its_own_noise():
    own = individual.epsilons([[1.0, 0.5, 0.25, 7.0]], steps=40, **HOW)
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    for level, epsilon in zip((1.0, 0.5, 0.25, 1.0), own, strict=True):
        curve = rdp.compute_rdp(q=0.1, noise_multiplier=1 / level, steps=40, orders=orders)
        theirs, _ = rdp.get_privacy_spent(orders=orders, rdp=curve, delta=1e-5)
        assert epsilon == pytest.approx(theirs, rel=0.02)


def test_rounds_add_up_and_a_gradient_of_zero_spends_nothing():
    once = individual.epsilons([[0.4, 1.0, 0.0]], steps=20, **HOW)
    rows = individual.epsilons([[0.4, 1.0, 0.0]] * 4, steps=5, **HOW)
    assert np.allclose(once, rows) and once[2] <= once[0] < once[1]
    mixed = individual.epsilons([[1.0], [0.2]], steps=10, **HOW)
    assert once[0] / 2 < mixed[0] < once[1]


def test_norms_are_rounded_up():
    a, b, c = individual.epsilons([[0.501, 0.55, 0.551]], steps=20, **HOW)
    assert a == b < c


@pytest.mark.parametrize("bad", [-0.1, float("nan")])
def test_a_norm_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match=r"norms=.*: must be at least 0"):
        individual.epsilons([[1.0, bad]], steps=1, **HOW)
