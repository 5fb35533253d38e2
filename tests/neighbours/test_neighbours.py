"""What ``make neighbours`` plants can be planted, and how it pairs units; it trains on the pairs
itself."""

import pytest

from tests.faults.__main__ import altered, unknown_names
from tests.neighbours import __main__ as neighbours


@pytest.mark.parametrize("leak", neighbours.LEAKS, ids=lambda leak: leak.name)
def test_a_leak_can_be_planted(leak):
    """``make neighbours`` plants them, and demands that each is found."""
    assert altered(leak) and unknown_names(leak) == set()


@pytest.mark.parametrize(
    ("one", "other", "places", "differing"),
    [
        ("abc", "abc", [0, 1, 2], set()),
        ("axc", "ayc", [0, 1, 2], {1}),
        ("xbm", "ybx", [2, 1, 0], {2}),  # a copy of x was a mask, and is the first now
        ("xbmm", "ybxm", [2, 1, 0, 3], {2}),
        ("xbm", "mbx", [2, 1, 0], set()),
        ("xb", "ybm", [0, 1, None], {0, -3}),
        ("xbm", "yb", [0, 1], {0, 2}),
    ],
)
def test_units_are_paired_by_what_they_say(one, other, places, differing):
    first, second = neighbours.Watch(), neighbours.Watch()
    second.first = first
    for watch, units in ((first, one), (second, other)):
        watch.parts = {"private": [[ord(unit)] for unit in units]}
    assert second.paired("private") == places
    found = second.differing("private")
    assert {k for k in found if k >= 0} == {k for k in differing if k >= 0}
    assert len(found) == len(differing)


def test_a_removed_unit_moves_those_after_it():
    first, second = neighbours.Watch(), neighbours.Watch(removed=True)
    second.first = first
    first.parts, second.parts = {"private": [[1], [2], [3]]}, {"private": [[1], [3]]}
    assert second.paired("private") == [0, 2] and second.differing("private") == {1}


def test_a_secret_is_another_wherever_it_stands():
    text = "KA-QX or ka-qx, not KA-QXZ"
    assert neighbours.swapped(text, "KA-QX", "KA-V") == "KA-V or ka-v, not KA-QXZ"
    assert neighbours.swapped(text, "KA-QX", "<MASK>") == "<MASK> or <MASK>, not KA-QXZ"
    spans = [text[m["start"] : m["end"]] for m in neighbours.marked(text)]
    assert spans == ["KA-QX", "ka-qx", "KA-QXZ"]
