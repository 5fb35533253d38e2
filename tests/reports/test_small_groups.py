"""What a page for anybody shows by kind says nothing of a few people, by subtraction either."""

import itertools
import json

from confide.labels import drawing
from confide.reports import detector_card, small_groups
from crtlib.text import jsonl
from crtlib.text.records import Dialogue, Secret, Turn
from tests.texts import bring_known_labels


def test_no_group_of_few_people_is_shown_or_follows_by_subtraction():
    """Fault: one group alone was left out, so its counts were the total less what was shown."""
    for people in itertools.combinations_with_replacement(range(12), 4):
        counts = dict(zip("abcd", people, strict=True))
        shown = small_groups.leave_out_small_groups(counts, counts)
        rest = [n for name, n in counts.items() if name not in shown]
        assert all(n >= small_groups.LEAST_PEOPLE for n in shown.values())
        assert not rest or not shown or (
            len(rest) > 1 and sum(rest) >= small_groups.LEAST_PEOPLE
        )  # fmt: skip
        assert shown or min(people) < small_groups.LEAST_PEOPLE


def test_turns_that_nobody_read_make_no_group_larger(tmp_path):
    """Fault: unread turns are counted in every group, so the public card showed groups of one; and
    a certificate showed "other: 1 of 1"."""
    talks, kinds = [], [*["name"] * 20, *["phone"] * 8, "id"]
    for k in range(36):
        secrets = (Secret(kinds[k], 6, 14),) if k < len(kinds) else ()
        talks.append(Dialogue(f"d{k}", f"u{k}", (Turn("USR", f"it is {k:08d} ok", secrets),)))
    known = {d.id: d.turns[0].secrets for d in talks}
    jsonl.write_jsonl(talks, tmp_path / "c.jsonl")
    drawing.draw_label_tasks(
        tmp_path / "c.jsonl", tmp_path / "l", turns=36, teach=0, forms=["jsonl"],
        kinds=["name", "phone", "id"],
    )  # fmt: skip
    bring_known_labels(
        tmp_path / "c.jsonl", tmp_path / "l", lambda task: known[task.id], partial=True,
        left=lambda task: int(task.id[1:]) >= 30,
    )  # fmt: skip
    facts = detector_card.write_detector_card(
        tmp_path / "c.jsonl", "cautious", tmp_path / "card", labels=tmp_path / "l"
    )
    assert facts["labels"]["unread"] == 6 and set(facts["by"]["kind"]) == {"name"}
    said = "fewer than 5 users are left out, and the smallest of the others with them"
    assert said in (tmp_path / "card" / "card.html").read_text()
    row = {"trace": {"of": 7}, "public": {"of": 7}}
    rates = {"trace": {"of": 35}, "by_kind": {"other": row, "name": {"trace": {"of": 26}}}}
    assert small_groups.show_rates_by_kind(rates, 6) == rates | {"by_kind": {}}
    assert json.loads((tmp_path / "card" / "card.json").read_text()) == facts
