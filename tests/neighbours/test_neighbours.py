"""A bounded sample of ``make neighbours``, and that it sees what is planted."""

import pytest

from tests.faults.__main__ import altered
from tests.neighbours import __main__ as neighbours


def test_of_two_neighbours_nothing_differs_that_no_source_declares():
    assert neighbours.run(40, seed=0) == []


@pytest.mark.parametrize("leak", neighbours.LEAKS, ids=lambda leak: leak.name)
def test_a_leak_can_be_planted(leak):
    """``make neighbours`` plants them, and demands that each is found."""
    assert altered(leak)
