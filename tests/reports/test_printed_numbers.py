"""What people read of a bound is rounded to the safe side, in every file."""

import re

from hypothesis import given
from hypothesis import strategies as st

from confide.release import file_sources
from crtlib.accounting.guarantees import BoundedRate, Guarantee


@given(
    st.floats(1e-9, 1e3), st.floats(1e-12, 0.5), st.integers(0, 30), st.integers(30, 2000)
)  # fmt: skip
def test_what_a_person_reads_is_never_below_the_bound(epsilon, delta, misses, labelled):
    """32 of 40 guarantees in guarantee.txt were rounded down, by up to 2.9e-4."""
    rate = BoundedRate.measured(misses, labelled)
    text = str(Guarantee(epsilon, delta, "turn", "replace", "pld", gamma=rate))
    printed = [float(x) for x in re.match(r"\((\S+), (\S+)\)", text).groups()]
    upper = float(re.search(r"upper bound (\S+)\)", text)[1])
    for number, exact in zip([*printed, upper], [epsilon, delta, rate.bound], strict=True):
        assert exact <= number <= 1.001 * exact + 1e-12


def test_a_perplexity_that_is_no_number_is_not_the_best_there_is():
    """Training that diverged: "held-out perplexity, below 2" in the certificate and on the card."""
    assert (
        file_sources.declare_interval("held-out perplexity", float("nan"), (2.0, 4.0)).value
        != "below 2"
    )


def test_a_confidence_is_not_rounded_up():
    """guarantee.txt after three judgements: "99.17 % upper bound", which holds with 99.166 %."""
    said = re.search(r"(\S+) % upper", str(BoundedRate.measured(0, 20, confidence=1 - 0.05 / 6)))[1]
    assert float(said) <= 100 * (1 - 0.05 / 6)
