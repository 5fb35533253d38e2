"""What a mask covers."""

from crtlib.screening.redaction import redact
from crtlib.text.records import MASK, Point, Secret


def test_a_span_inside_of_another_uncovers_nothing():
    """Two detectors may flag a number and its first digits."""
    point = Point("0", "u", "call 555 123 4567 now", (Secret("phone", 5, 17),))
    for inner in ((5, 8), (9, 12), (13, 17)):
        spans = [Secret("phone", 5, 17), Secret("digits", *inner)]
        for order in (spans, spans[::-1]):
            done = redact(point, order)
            assert done.text == f"call {MASK} now" and done.secrets == ()
