"""Adjacent datasets: who may differ, and in what."""

import pytest

from crtlib.accounting.adjacency import adjacent, anything

DATA = ["meet Ada at 9", "no secret", "Ada pays 70"]


def name(text):
    return text.replace("Ada", "*").replace("Bob", "*")


@pytest.mark.parametrize(
    ("other", "always", "only_the_name"),
    [
        (["meet Bob at 9", "no secret", "Bob pays 70"], True, True),
        (["meet Bob at 9", "no secret", "Ada pays 70"], True, True),
        (["meet Bob at 8", "no secret", "Ada pays 70"], True, False),
        (["", "no secret", "what you like"], True, False),
        (["meet Ada at 9", "a secret", "Ada pays 70"], False, False),
        (["meet Ada at 9", "no secret"], False, False),
        (DATA, True, True),
    ],
)
def test_only_those_who_hold_the_secret_differ_and_only_as_the_predicate_says(
    other, always, only_the_name
):
    assert adjacent(DATA, other, holders={0, 2}) is always
    assert adjacent(DATA, other, holders={0, 2}, view=name) is only_the_name


def test_the_predicate_that_is_always_1_sees_no_difference():
    assert anything("Ada") == anything("Bob") and not adjacent(["Ada"], ["Bob"], holders=set())
