"""What ``make neighbours`` plants can be planted; it trains on the pairs itself."""

import pytest

from tests.faults.__main__ import altered
from tests.neighbours import __main__ as neighbours


@pytest.mark.parametrize("leak", neighbours.LEAKS, ids=lambda leak: leak.name)
def test_a_leak_can_be_planted(leak):
    """``make neighbours`` plants them, and demands that each is found."""
    assert altered(leak)
