"""What reading has taught, by kind: on people apart, of a quarter and a half of the turns."""

from confide.screening import teaching
from crtlib.text.records import Point, Secret


def point(number, text, kind):
    return Point(f"{number}", f"u{number}", text, (Secret(kind, 0, len(text)),))


POINTS = [point(k, f"name {k}", "name") for k in range(80)]
POINTS += [point(100 + k, f"id {k}", "id") for k in range(8)]


def test_people_who_teach_are_not_those_who_are_asked(monkeypatch):
    asked, taught = [], []

    def train(points, **how):
        taught.append({p.user for p in points})
        return len(points)

    def policy(size):
        def flags(points):
            asked.append({p.user for p in points})
            found = size > 30  # more has taught it the names
            return [p.secrets if found and p.text.startswith("name") else () for p in points]

        return flags

    monkeypatch.setattr(teaching, "train_tagger", train)
    monkeypatch.setattr(teaching, "tagger_policy", policy)
    rows = teaching.measure_learning_curve(POINTS, "user", seed=0, epochs=1)
    assert [row["turns"] for row in rows] == [22, 44] and taught[0] < taught[1]
    assert asked[0] == asked[1] and not asked[0] & taught[1]
    assert len(asked[0]) + len(taught[1]) == len(POINTS)
    (first, last) = (row["kinds"]["name"] for row in rows)
    assert first[0] == first[1] == last[1] and last[0] == 0
    assert teaching.measure_learning_curve(POINTS[:1], "user", seed=0) == []


def test_a_kind_gets_a_line_and_no_number_where_there_are_too_few():
    rows = [
        {"turns": 100, "kinds": {"name": [20, 50], "id": [3, 9], "phone": [5, 40]}},
        {"turns": 200, "kinds": {"name": [10, 50], "id": [1, 9], "phone": [6, 40]}},
    ]
    head, few, name, phone = teaching.describe_learning_curve(rows)
    assert head.startswith("by kind, missed of 100, then 200 turns")
    assert few.endswith("3 of 9, then 1: too few to say")
    assert name.endswith("20 of 50, then 10; an hour more (379 turns) on top of all: about 5 %")
    assert phone.endswith("5 of 40, then 6: more reading has not helped")
    assert teaching.describe_learning_curve([]) == []
