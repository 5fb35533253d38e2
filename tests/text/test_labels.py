"""Turns are drawn fairly, and labels come back as they were made, from every tool or not at all."""

import gzip
import json
import os
import re
import shutil
import stat
import subprocess
from collections import Counter
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from confide.labels import (
    adjudication,
    drawing,
    forms,
    imports,
    judged_turns,
    label_tasks,
    registry,
)
from confide.reports import screening_page
from confide.screening import corpus_screening, judged_policies
from crtlib import intervals
from crtlib.screening.policy_names import policy_by_name
from crtlib.text import jsonl
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

TEXTS = (
    "I am Ann Ó'Neill 😀 and Ann.",
    "=call 555-0107\r\nnow, 😀 please",
    "nothing here",
    "</script><b>&amp; Bob \u2028 it's",
)
TRUTH = {TEXTS[0]: ["Ann Ó'Neill", "Ann"], TEXTS[1]: ["555-0107"], TEXTS[2]: [], TEXTS[3]: ["Bob"]}
SHOWN = {text.replace("\r", " "): text for text in TEXTS}
KIND = {"Ann Ó'Neill": "name", "Ann": "name", "555-0107": "phone", "Bob": "name"}


def spans(text):
    """The true secrets of a text: the last "Ann" is the one alone."""
    found = []
    for value in TRUTH[SHOWN[text]]:
        start = text.rfind(value) if value == "Ann" else text.find(value)
        found.append(Secret(KIND[value], start, start + len(value)))
    return tuple(found)


def everybody(n=8):
    made = []
    for k in range(n):
        turn = Turn("USR", TEXTS[k % len(TEXTS)])
        made.append(Dialogue(f"d{k}", f"u{k}", (Turn("SYS", "Hello?"), turn)[1:]))
    return Corpus("c", tuple(made))


@pytest.fixture
def home(tmp_path):
    jsonl.write_jsonl(everybody(), tmp_path / "c.jsonl")
    return tmp_path


def draw(home, **options):
    drawing.draw_label_tasks(home / "c.jsonl", home / "labels", **{"turns": 8, "seed": 0} | options)
    return label_tasks.read_tasks(home / "labels")


def take(home, path, **options):
    return imports.import_labels(home / "c.jsonl", path, home / "labels", **options)


# Drawing.


def test_one_turn_of_each_user_uniformly_and_two_parts_of_different_people(tmp_path):
    dialogues = [
        Dialogue(f"d{k}", f"u{k % 50}", tuple(Turn("A", f"{k} {i}") for i in range(k % 7 + 1)))
        for k in range(200)
    ]
    jsonl.write_jsonl(dialogues, tmp_path / "c.jsonl")
    summary = drawing.draw_label_tasks(
        tmp_path / "c.jsonl", tmp_path / "o", turns=20, teach=15, seed=3
    )
    drawn = label_tasks.read_tasks(tmp_path / "o")
    assert (summary["users"], summary["judge"], summary["teach"]) == (50, 20, 15)
    assert len({t.user for t in drawn}) == len(drawn) == 35
    by_id = {d.id: d for d in dialogues}
    assert all(by_id[t.id].turns[t.turn].text == t.text for t in drawn)
    assert Counter(t.part for t in drawn) == {"judge": 20, "teach": 15}
    again = drawing.draw_label_tasks(
        tmp_path / "c.jsonl", tmp_path / "p", turns=20, teach=15, seed=3
    )
    assert label_tasks.read_tasks(tmp_path / "p") == drawn and again["corpus"] == summary["corpus"]
    other = drawing.draw_label_tasks(
        tmp_path / "c.jsonl", tmp_path / "q", turns=20, by="dialogue", seed=3
    )
    assert other["users"] == 200


def studio_record(task, kind_of_mark="labels"):
    """A task as Label Studio exports it, with one mark of the first three letters."""
    mark = {"start": 0, "end": 3, "text": task.text[:3], "labels": ["name"]}
    result = [{"type": kind_of_mark, "value": mark}, {"type": "choices", "value": {"choices": []}}]
    result.append({"type": "relation", "from_id": "a", "to_id": "b"})
    data = {"task": task.task, "text": task.text}
    return {"data": data, "annotations": [{"result": result, "completed_by": 1}]}


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ({"spans": [{"start": 0, "end": 3, "label": "name"}]}, "'spans' holds a list"),
        ({"label": [[0, 3, "name"]]}, "'label' holds a list"),
        ({"meta": {"entities": [[0, 3, "name"]]}}, "'meta' holds a list"),
        ({"tags": ["seen", "twice"], "meta": {"length": 3}, "spans": []}, ""),
    ],
)
def test_marks_under_another_name_are_not_read_as_nothing_secret(home, marks, message):
    """Fault: an export with ``spans`` beside an empty ``secrets`` was "0 with a secret"."""
    records = [
        {"task": t.task, "text": t.text, "done": True, "secrets": []} | marks for t in draw(home)
    ]
    (home / "e.jsonl").write_text("\n".join(map(json.dumps, records)))
    if message:
        with pytest.raises(ValueError, match=f"e.jsonl, task 1: {message}"):
            take(home, home / "e.jsonl")
    else:
        assert take(home, home / "e.jsonl")["read"] == 8


def test_marks_of_label_studio_of_a_type_that_is_not_read_are_refused(home):
    tasks = draw(home)
    (home / "e.json").write_text(json.dumps([studio_record(t, "hypertextlabels") for t in tasks]))
    with pytest.raises(ValueError, match=r"task 1: has marks of the type 'hypertextlabels'"):
        take(home, home / "e.json")
    (home / "e.json").write_text(json.dumps([studio_record(t) for t in tasks]))
    assert sum(take(home, home / "e.json")["secrets"].values()) == 8


def page_export(home, reader, role="first"):
    """What the page exports under the name of a reader who marked nothing."""
    about = label_tasks.read_label_facts(home / "labels")
    done = [{"task": t.task, "done": True, "secrets": []} for t in label_tasks.read_tasks(
        home / "labels")]  # fmt: skip
    page = {"labels": label_tasks.name_label_page(about, role), "annotator": reader, "tasks": done}
    (home / f"{role}.json").write_text(json.dumps(page))
    return home / f"{role}.json"


@pytest.mark.parametrize(("other", "refused"), [("ann  SMITH", True), ("Bob", False), ("a", False)])
def test_one_person_is_not_taken_for_two_readers(home, other, refused):
    """Fault: both exports said "Ann Smith", and the card "Two people read them"."""
    draw(home)
    take(home, page_export(home, "Ann Smith"))
    adjudication.write_adjudication(home / "c.jsonl", home / "labels", home / "again", share=1.0)
    file = page_export(home, other, "second")
    if refused:
        with pytest.raises(ValueError, match="under the name of the reader with role='first'"):
            take(home, file, role="second")
    else:
        assert take(home, file, role="second")["read"] == 8
    assert "Ann" not in (home / "labels" / "labels.json").read_text()


def test_a_number_of_thousands_of_digits_is_refused_by_the_name_of_its_file(home):
    draw(home)
    (home / "e.json").write_text(f'{{"tasks": [{"9" * 5000}]}}')
    with pytest.raises(ValueError, match=r"^e\.json: is not JSON$"):
        take(home, home / "e.json")


def test_what_is_read_again_is_not_written_into_the_labels(home):
    """Fault: it was refused with "is being written by another process"."""
    draw(home)
    take(home, page_export(home, "a"))
    with pytest.raises(ValueError, match=r"^out: .*labels"):
        adjudication.write_adjudication(
            home / "c.jsonl", home / "labels", home / "labels", share=1.0, force=True
        )


def test_no_labels_are_drawn_from_a_screened_folder(tmp_path):
    """ "Was changed while it was read; run this again" of a folder that nobody had changed."""
    jsonl.write_jsonl(everybody(20), tmp_path / "c.jsonl")
    how = corpus_screening.ScreeningOptions("regex:customersim", "everything")
    screening_page.screen_into_folder(tmp_path / "c.jsonl", tmp_path / "s", how)
    with pytest.raises(ValueError, match=r"s: is screened, but labels judge .*; give the corpus"):
        drawing.draw_label_tasks(tmp_path / "s", tmp_path / "l", turns=5)
    assert not (tmp_path / "l").exists()


def test_the_others_are_those_of_whom_nobody_read_or_chose(tmp_path):
    """Whom a policy's flags have passed over is no random user any more."""
    jsonl.write_jsonl(everybody(60), tmp_path / "c.jsonl")
    for name, flags, others in (("o", {}, 60 - 20 - 2), ("p", {"policy": (), "doubt": 0}, 0)):
        given = {key: lambda points, one=one: [one] * len(points) for key, one in flags.items()}
        drawing.draw_label_tasks(
            tmp_path / "c.jsonl", tmp_path / name, turns=20, teach=2, seed=3, **given
        )
        assert label_tasks.read_label_facts(tmp_path / name)["others"] == others


def test_every_turn_of_a_user_has_the_same_chance(tmp_path):
    """Three threads of 1, 2 and 5 turns: each of the eight turns in an eighth of the draws."""
    sizes = {"a": 1, "b": 2, "c": 5}
    dialogues = [
        Dialogue(d, "u", tuple(Turn("A", f"{d}{i}") for i in range(n))) for d, n in sizes.items()
    ]
    jsonl.write_jsonl(dialogues, tmp_path / "c.jsonl")
    rng = drawing.np.random.default_rng(0)
    count = Counter(
        drawing._draw_turn_per_user(tmp_path / "c.jsonl", "user", rng)[0][0] for _ in range(4000)
    )
    assert len(count) == 8 and all(400 < n < 600 for n in count.values())  # five deviations


def test_context_is_shown_and_options_are_checked(home):
    made = [Dialogue("d", "u", tuple(Turn("A", str(i)) for i in range(9)))]
    jsonl.write_jsonl(made, home / "c.jsonl")
    (task,) = draw(home, context=3)
    near = [str(i) for i in range(9)]
    assert task.before == "\n".join(f"A: {x}" for x in near[max(0, task.turn - 3) : task.turn])
    assert task.after == "\n".join(f"A: {x}" for x in near[task.turn + 1 : task.turn + 4])
    for option in (
        {"secrets": 19},
        {"turns": 0},
        {"rate": 0.0},
        {"rate": float("nan")},
        {"teach": -1},
        {"by": "turn"},
        {"context": 21},
        {"kinds": []},
        {"kinds": ["a", "a"]},
        {"kinds": ["<b>"]},
        {"kinds": list("abcdefghij")},
        {"forms": ["word"]},
        {"forms": []},
    ):
        with pytest.raises(ValueError, match=f"^{next(iter(option))}: "):
            drawing.draw_label_tasks(home / "c.jsonl", home / "x", **option)
    assert not (home / "x").exists()


def flag(word):
    def policy(points):
        places = [[m.span() for m in re.finditer(word, p.text)] for p in points]
        assert not any(p.text.startswith("USR: ") for p in points)
        return [tuple(Secret("name", *s) for s in some) for some in places]

    return policy


def test_the_judging_part_is_never_prefilled_and_the_rate_follows_the_policy(tmp_path):
    jsonl.write_jsonl(everybody(80), tmp_path / "c.jsonl")
    summary = drawing.draw_label_tasks(
        tmp_path / "c.jsonl",
        tmp_path / "o",
        secrets=20,
        policy=flag("Ann"),
        doubt=drawing.policy_disagreement(flag("Ann"), flag("Bob")),
        teach=20,
        seed=1,
        forms=["labelstudio"],
    )
    drawn = [summary[name] for name in ("rate", "judge", "teach")]
    assert drawn == [0.25, 64, 16]  # few: each its share
    studio = json.loads((tmp_path / "o/labelstudio.json").read_text())
    assert not any(t["predictions"] for t in studio if t["data"]["task"].startswith("judge"))


def test_half_of_the_teaching_part_is_where_the_policies_disagree(tmp_path):
    jsonl.write_jsonl(everybody(400), tmp_path / "c.jsonl")
    drawing.draw_label_tasks(
        tmp_path / "c.jsonl",
        tmp_path / "o",
        turns=40,
        policy=flag("Ann"),
        doubt=drawing.policy_disagreement(flag("Ann"), flag("Ann|Bob")),
        teach=40,
        seed=1,
        forms=["jsonl"],
    )
    drawn = label_tasks.read_tasks(tmp_path / "o")
    teach = [t for t in drawn if t.part == "teach"]
    assert len(teach) == 40 and all("Bob" in t.text for t in teach[20:])
    assert any("Bob" not in t.text for t in teach[:20])
    lines = [json.loads(x) for x in (tmp_path / "o/tasks.jsonl").read_text().splitlines()]
    prefilled = {x["task"] for x in lines if x["secrets"]}
    assert prefilled == {t.task for t in teach if "Ann" in t.text}
    drawing.draw_label_tasks(
        tmp_path / "c.jsonl", tmp_path / "p", turns=40, policy=flag("Ann"),
        doubt=lambda points: [p.text.count("call") for p in points], teach=40, seed=1,
    )  # fmt: skip
    teach = [t for t in label_tasks.read_tasks(tmp_path / "p") if t.part == "teach"]
    assert all("call" in t.text for t in teach[20:]) and any("call" not in t.text for t in teach)


def test_the_table_says_which_n_certifies_which_bound(home):
    made = [Dialogue(f"d{k}", f"u{k}", (Turn("A", "x"),)) for k in range(2000)]
    jsonl.write_jsonl(made, home / "c.jsonl")
    summary = drawing.draw_label_tasks(
        home / "c.jsonl", home / "o", secrets=400, rate=0.305, teach=600, seed=0
    )
    said = registry.format_drawn_summary(summary)
    assert "to read   1,312 turns of 1,312 users to judge, 600 to teach; about 5 hours" in said
    assert "0.918 %" in said and "2.18 %" in said and "4.55 %" in said and "10.6 %" in said
    assert all(len(line) <= 80 for line in said.splitlines() if not line.startswith(str(home)))
    assert summary["policy_pairs"] == 1 and "the bound at 97.5 % is" in said
    few = drawing.draw_label_tasks(home / "c.jsonl", home / "p", secrets=4000, seed=0)
    # Fault: 0.918 % again, although the first set counts, so that screening gave a larger bound.
    later = registry.format_drawn_summary(summary | {"policy_pairs": few["policy_pairs"]})
    assert few["policy_pairs"] == 2 and "1.09 %" in later and "the bound at 98.75 % is" in later
    assert "note: the corpus has 2,000 users; about 500 of them" in registry.format_drawn_summary(
        few
    )


def test_all_label_files_are_private(home):
    before = os.umask(0o022)
    try:
        draw(home, forms=["page", "jsonl", "labelstudio"])
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "labels").stat().st_mode) == 0o700
    files = sorted((home / "labels").iterdir())
    assert {stat.S_IMODE(p.stat().st_mode) for p in files} == {0o600} and len(files) == 8


# Round trips: what each tool gives back of what we gave it.


def units(text, offset):
    return len(text[:offset].encode("utf-16-le")) // 2


def from_page(home, tasks, count=lambda text, offset: offset):
    page = (home / "labels/page.html").read_text()
    given = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.S)[1])
    assert [t["text"] for t in given["tasks"]] == [t.text for t in tasks]
    done = [
        {"task": t.task, "done": True, "secrets": [vars_of(s) for s in spans(t.text)]}
        for t in tasks
    ]
    export = {
        "schema": "crtlib/labels/1",
        "labels": given["labels"],
        "annotator": "a",
        "tasks": done,
    }
    return "export.json", json.dumps(export)


def vars_of(s, text=None):
    mark = {"kind": s.kind, "start": s.start, "end": s.end}
    return mark if text is None else mark | {"value": text[s.start : s.end]}


def from_labelstudio(home, tasks, count=lambda text, offset: offset):
    given = json.loads((home / "labels/labelstudio.json").read_text())
    for t in given:
        text = t["data"]["text"]
        results = [
            {
                "type": "labels",
                "value": {
                    "start": count(text, s.start),
                    "end": count(text, s.end),
                    "text": text[s.start : s.end],
                    "labels": [s.kind],
                },
            }
            for s in spans(text)
        ]
        t["annotations"] = [
            {"result": [], "was_cancelled": False},
            {"result": results, "was_cancelled": False},
        ]
        t["annotations"].append({"result": [], "was_cancelled": True})
    return "export.json", json.dumps(given)


def lines_of(home):
    return [json.loads(x) for x in (home / "labels/tasks.jsonl").read_text().splitlines()]


def from_jsonl(home, tasks):
    given = [
        t | {"done": True, "secrets": [vars_of(s, t["text"]) for s in spans(t["text"])]}
        for t in lines_of(home)
    ]
    return "export.jsonl", "\n".join(map(json.dumps, given))


ROUND = {"page": from_page, "jsonl": from_jsonl, "labelstudio": from_labelstudio}


def test_two_people_who_read_one_task_are_not_one_reader(home):
    """The last annotation counted, and "no second reading of them was imported"."""
    name, content = from_labelstudio(home, draw(home, forms=["labelstudio"]))
    export = json.loads(content)
    for who, (empty, full, _) in enumerate(t["annotations"] for t in export):
        empty["completed_by"] = full["completed_by"] = {"id": who}  # somebody read again
    (home / name).write_text(json.dumps(export))
    assert take(home, home / name)["read"] == 8
    export[3]["annotations"][0]["completed_by"] = {"id": 99, "email": "ann@x.org"}
    (home / name).write_text(json.dumps(export))
    with pytest.raises(
        ValueError, match="task 4: was read by 2 people, of whom only one"
    ) as refused:
        take(home, home / name)
    assert "ann@x.org" not in str(refused.value)


@pytest.mark.parametrize("form", ROUND)
def test_labels_come_back_from_a_tool_as_they_were_made(home, form):
    tasks = draw(home, forms=[form])
    name, content = ROUND[form](home, tasks)
    (home / name).write_text(content)
    summary = take(home, home / name)
    assert adjudication.read_labelled_turns(home / "labels") == [(t, spans(t.text)) for t in tasks]
    assert summary["secrets"] == {"name": 6, "phone": 2} and summary["read"] == 8
    assert summary["drawn"] == "at_random" and summary["users_with_a_secret"] == 6
    assert "secrets 8: name 6, phone 2" in judged_turns.format_import_summary(summary)
    json.dumps(summary)


def test_a_tool_that_counts_utf16_is_understood_if_its_whole_file_agrees(home):
    tasks = draw(home, forms=["labelstudio"])
    name, content = from_labelstudio(home, tasks, units)
    (home / name).write_text(content)
    assert take(home, home / name)["offsets"] == "UTF-16"
    assert adjudication.read_labelled_turns(home / "labels") == [(t, spans(t.text)) for t in tasks]


def test_a_place_that_depends_on_how_a_tool_counts_is_refused(home):
    """Fault: without a value, UTF-16 was taken for code points, so that a mark moved to other
    characters wherever an emoji is before it."""
    tasks = draw(home, forms=["jsonl"])
    number, task = next((k, t) for k, t in enumerate(tasks, 1) if t.text == TEXTS[0])
    secret = spans(task.text)[-1]
    given = [t | {"done": True, "secrets": []} for t in lines_of(home)]
    start, end = (units(task.text, at) for at in (secret.start, secret.end))
    mark = {"kind": secret.kind, "start": start, "end": end}
    for value in ({}, {"value": task.text[secret.start : secret.end]}):
        given[number - 1]["secrets"] = [mark | value]
        (home / "e.jsonl").write_text("\n".join(map(json.dumps, given)))
        if value:
            assert take(home, home / "e.jsonl")["offsets"] == "UTF-16"
            marked = dict(adjudication.read_labelled_turns(home / "labels"))
            assert marked[task] == (secret,)
        else:
            with pytest.raises(ValueError, match=f"task {number}: a span is at one place if"):
                take(home, home / "e.jsonl")


def test_no_tool_sees_a_carriage_return_that_it_could_drop(home):
    tasks = draw(home, forms=["jsonl"])
    assert any(t.text == TEXTS[1].replace("\r\n", " \n") for t in tasks)
    name, content = from_jsonl(home, tasks)
    (home / name).write_text(content)
    take(home, home / name)
    found = judged_turns.read_labelled_points(
        home / "c.jsonl", home / "labels", part="judge", unit="turn"
    )
    secrets = {p.text[s.start : s.end] for p in found for s in p.secrets if "\r\n" in p.text}
    assert secrets == {"555-0107"}


# What is refused.


def page_of(tasks, **changes):
    done = [{"task": t.task, "done": True, "secrets": []} for t in tasks]
    first = next(k for k, t in enumerate(tasks) if t.text == TEXTS[0])
    done[first] |= changes
    page = {"schema": "crtlib/labels/1", "labels": label_tasks.hash_tasks(tasks)}
    return page | {"annotator": "a", "tasks": done}, first + 1


def span(start, end, kind="name"):
    return {"kind": kind, "start": start, "end": end}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"secrets": [span(5, 99)]}, "a span is empty, outside its text or of another value"),
        ({"secrets": [span(-1, 3)]}, "a span is empty, outside its text or of another value"),
        ({"secrets": [span(3, 3)]}, "a span is empty, outside its text or of another value"),
        ({"secrets": [span(4, 5)]}, "a span is empty, outside its text or of another value"),
        ({"secrets": [span(5, 8), span(6, 9, "phone")]}, "two spans of different kinds overlap"),
        ({"secrets": [span(5, 8, "nmae")]}, r"a kind is not one of name, .*; name\?"),
        ({"task": "judge-99999"}, "is not a task of this folder"),
        ({"secrets": [{"kind": "name", "start": "5", "end": 8}]}, "is in none of the forms"),
        ({"secrets": 5}, "is in none of the forms"),
    ],
)
def test_a_label_that_does_not_fit_is_refused_by_file_and_task(home, changes, message):
    tasks = draw(home)
    record, number = page_of(tasks, **changes)
    (home / "e.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"e.json, task {number}: {message}") as error:
        take(home, home / "e.json")
    assert "Ann" not in str(error.value) and "\n" not in str(error.value)
    assert "first" not in label_tasks.read_label_facts(home / "labels")


def test_a_changed_text_and_a_wrong_value_are_refused(home):
    tasks = draw(home, forms=["labelstudio", "jsonl"])
    given = [t | {"done": True} for t in lines_of(home)]
    given[2]["text"] += "!"
    (home / "e.jsonl").write_text("\n".join(map(json.dumps, given)))
    with pytest.raises(
        ValueError, match="task 3: its text was changed; labels refer to the original"
    ):
        take(home, home / "e.jsonl")
    name, content = from_labelstudio(home, tasks, lambda text, offset: offset + 1)
    (home / name).write_text(content)
    with pytest.raises(ValueError, match="a span is empty, outside its text or of another value"):
        take(home, home / name)


def test_unread_turns_in_the_judging_part_spoil_the_rate(home):
    tasks = draw(home)
    record, _ = page_of(tasks, done=False)
    (home / "e.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="1 of 8 tasks to judge are unread; leaving out the hard"):
        take(home, home / "e.json")
    summary = take(home, home / "e.json", partial=True)
    assert summary["drawn"] == "at_random" == label_tasks.read_label_facts(home / "labels")["drawn"]
    assert (summary["unread"], len(adjudication.read_labelled_turns(home / "labels"))) == (1, 7)
    assert len(adjudication.list_unread_tasks(home / "labels")) == 1


def test_overlaps_of_one_kind_are_merged_and_white_space_is_trimmed(home):
    tasks = draw(home)
    record, number = page_of(tasks, secrets=[span(4, 9), span(7, 17)])
    (home / "e.json").write_text(json.dumps(record))
    summary = take(home, home / "e.json")
    assert summary["merged"] == 1 and summary["inside_words"] == 0
    assert adjudication.read_labelled_turns(home / "labels")[number - 1][1] == (
        Secret("name", 5, 16),
    )
    record, number = page_of(tasks, secrets=[span(5, 7)])
    (home / "e.json").write_text(json.dumps(record))
    assert "1 spans end inside a word" in judged_turns.format_import_summary(
        take(home, home / "e.json")
    )


def test_two_readers_are_compared_and_both_kept(home):
    tasks = draw(home, forms=["jsonl", "page"])
    for who, wrong in (("a", None), ("b", TEXTS[3])):
        given = lines_of(home)
        for t in given:
            known = [vars_of(s, t["text"]) for s in spans(t["text"]) if t["text"] != wrong]
            t |= {"done": True, "secrets": known}
        (home / f"{who}.jsonl").write_text("\n".join(map(json.dumps, given)))
    take(home, home / "a.jsonl", annotator="ada")
    adjudication.write_adjudication(home / "c.jsonl", home / "labels", home / "again", share=1)
    summary = take(home, home / "b.jsonl", role="second")
    assert summary["f1"] == pytest.approx(2 * 6 / (8 + 6))
    assert summary["kappa"] == pytest.approx(0.5)
    kept = pq.read_table(home / "labels/labels.parquet").to_pylist()
    assert Counter(row["annotator"] for row in kept) == {"ada": 8, "b": 8}
    assert adjudication.read_labelled_turns(home / "labels")[0] in [
        (t, spans(t.text)) for t in tasks
    ]
    assert label_tasks.read_label_facts(home / "labels")["readers"]["ada"] == {
        "read": 8,
        "secrets": 8,
    }
    assert "agreement: F1 of spans 0.86, kappa of turns 0.50" in judged_turns.format_import_summary(
        summary
    )


@pytest.mark.parametrize("done", [False, True])
def test_what_a_reader_cannot_decide_counts_as_a_failure(home, done):
    """Without a key for it a reader guessed, and a guess may make a rate better than it is. Of a
    table that called a turn done and undecided it counted as one without a secret."""
    tasks = draw(home)
    name, content = from_page(home, tasks)
    export = json.loads(content)
    export["tasks"][0] |= {"done": done, "undecided": True}
    export["tasks"][1] |= {"done": False}
    (home / name).write_text(json.dumps(export))
    with pytest.raises(ValueError, match=r"2 of 8 tasks to judge are unread \(1 undecided\)"):
        take(home, home / name)
    export["tasks"][1] |= {"done": True}
    (home / name).write_text(json.dumps(export))
    summary = take(home, home / name)  # nobody has to say --partial
    assert (summary["undecided"], summary["unread"], summary["read"]) == (1, 1, 7)
    said = judged_turns.format_import_summary(summary)
    assert "1 of 8 turns to judge were drawn and not read (1 undecided): each counts as" in said
    pair = judged_policies.PolicyPair((policy_by_name("none"),) * 2, ("none",) * 2)
    counter, _ = judged_policies.judge_policies(home / "c.jsonl", home / "labels", pair, texts=None)
    failing = 1 + sum(bool(spans(t.text)) for t in tasks[1:])
    assert counter.rates().trace.failures == counter.rates().trace.judged_secrets == failing


def test_somebody_else_reads_what_the_first_left_undecided(home):
    """Each counted as a failure, and nobody could read it but the first reader, in his browser."""
    tasks = draw(home)
    name, content = from_page(home, tasks)
    export = json.loads(content)
    export["tasks"][0] |= {"done": False, "undecided": True}
    (home / name).write_text(json.dumps(export))
    take(home, home / name)
    labels = home / "labels"
    said = adjudication.write_adjudication(home / "c.jsonl", labels, home / "rest")
    assert (said["role"], said["turns"]) == ("undecided", 1)
    page = (home / "rest/page.html").read_text()
    assert f'"{tasks[0].task}"' in page and f'"{tasks[1].task}"' not in page
    about = label_tasks.read_label_facts(labels)
    answer = json.loads(content)["tasks"][:1]
    rest = {"labels": label_tasks.name_label_page(about, "undecided"), "tasks": answer}
    (home / "rest.json").write_text(json.dumps(export | rest))
    with pytest.raises(ValueError, match="page of other labels"):
        take(home, home / "rest.json")
    with pytest.raises(ValueError, match="must be a short name, of no other reader"):
        take(home, home / "rest.json", role="undecided", annotator=about["first"])
    for _ in range(2):  # a slip is mended
        summary = take(home, home / "rest.json", role="undecided")
        assert (summary["read"], summary["tasks"], summary["unread"]) == (1, 1, 0)
    assert not adjudication.list_unread_tasks(labels)
    marked = dict(adjudication.read_labelled_turns(labels, part="judge"))
    assert len(marked) == len(tasks) and bool(marked[tasks[0]]) == bool(spans(tasks[0].text))
    assert adjudication.write_adjudication(home / "c.jsonl", labels, home / "b")["role"] == "second"


def test_rules_for_readers_stand_beside_the_page(home):
    draw(home)
    page = (home / "labels/page.html").read_text()
    assert "A part of one is one: the last four digits" in page and "stays undecided counts" in page
    (home / "rules.txt").write_text("A ward is none.\n\n  A <room> is one.\n")
    how = {"turns": 8, "seed": 0, "force": True, "rules": (home / "rules.txt").read_text()}
    drawing.draw_label_tasks(home / "c.jsonl", home / "labels", **how)
    page = (home / "labels/page.html").read_text()
    assert "<li>A ward is none.</li>\n<li>A &lt;room&gt; is one.</li>" in page
    assert "A part of one is one" not in page
    with pytest.raises(
        ValueError, match=r"^rules: must be at most 40 lines of at most 400 letters"
    ):
        drawing.draw_label_tasks(home / "c.jsonl", home / "x", **how | {"rules": "a\n" * 41})


def test_what_is_no_folder_of_labels_is_named_with_its_argument(home, tmp_path):
    jsonl.write_jsonl(everybody(40), text := tmp_path / "text.jsonl")
    how = corpus_screening.ScreeningOptions("regex:customersim")
    screening_page.screen_into_folder(text, screened := tmp_path / "screened", how)
    (empty := tmp_path / "empty").mkdir()
    for labels, message in (
        (text, "is no folder"),
        (tmp_path / "nowhere", "is not there"),
        (empty, "has no crtlib.json, or a changed one"),
        (screened, "was made by 'crtlib screen'"),
    ):
        message = f"^labels: {labels} {message}; a folder of 'crtlib label sample' is needed$"
        for judged in (
            lambda labels=labels: screening_page.screen_into_folder(
                text, tmp_path / "s", how, labels=labels
            ),
            lambda labels=labels: label_tasks.read_label_facts(labels),
        ):
            with pytest.raises(ValueError, match=message):
                judged()
    draw(home)
    with pytest.raises(
        ValueError, match="is not a corpus folder, but what 'crtlib label sample' ma"
    ):
        screening_page.screen_into_folder(home / "labels", tmp_path / "s", how)
    assert not (tmp_path / "s").exists()


def test_labels_of_another_corpus_do_not_judge(home):
    draw(home)
    jsonl.write_jsonl(everybody(9), home / "c.jsonl")
    (home / "e.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^labels: were .*c.jsonl is .*can teach, but"):
        take(home, home / "e.json")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{", b"[" * 10**5, b"[1]", b'{"task": "x"}', b"a,b\n"]
)
def test_a_broken_export_is_one_line(home, content):
    draw(home)
    (home / "e.json").write_bytes(content)
    with pytest.raises(ValueError) as error:
        take(home, home / "e.json")
    assert "\n" not in str(error.value)


def test_an_export_that_unpacks_without_end_is_refused(home, monkeypatch):
    monkeypatch.setattr("confide.labels.imports.MAX_EXPORT_BYTES", 1 << 20)
    draw(home)
    (home / "e.json.gz").write_bytes(gzip.compress(b"[" + b" " * (1 << 20)))
    with pytest.raises(ValueError, match=r"e.json.gz: is longer than 1 MiB"):
        take(home, home / "e.json.gz")


# The page, in a browser.

CHROME = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
KEYS = """
const press = (key, more) => document.dispatchEvent(
  new KeyboardEvent("keydown", { key: key, bubbles: true, cancelable: true, ...more }));
const seen = [];
press("d"); press("g"); // the third one, as the second is not read either
seen.push(document.getElementById("where").textContent);
seen.push(document.getElementById("count").textContent);
seen.push(exported().tasks.map((t) => t.undecided).indexOf(true));
press("k"); press("k");
for (const t of data.tasks) {
  if (t.text.startsWith("I am")) {
    press("w"); press("w"); press("w"); press("W"); press("W"); press("B");
    seen.push(points[at].slice(...chosen).join(""));
    press("2"); press("u");
    press("w"); press("w"); press("w"); press("W"); press("1");
    for (let k = 0; k < 3; k++) press("w");
    seen.push(points[at].slice(...chosen).join(""));
    press("1"); press("j");
  } else { press("n"); }
}
press("?");
press("g");
seen.push(document.getElementById("status").textContent);
const out = document.createElement("pre");
out.id = "result";
out.textContent = encodeURIComponent(JSON.stringify({ ...exported(), seen: seen,
  stored: Object.keys(localStorage), text: Object.values(localStorage).join(""),
  help: !document.getElementById("help").hidden, marks: document.querySelectorAll("mark").length,
  injected: document.querySelectorAll("main b").length }));
document.body.append(out);
"""


@pytest.mark.skipif(CHROME is None, reason="no chromium is installed")
def test_the_page_is_worked_by_keys_in_a_browser(home):
    tasks = draw(home)
    page = (home / "labels/page.html").read_text()
    assert "http://" not in page.replace("http-equiv", "") and "https://" not in page
    policy = f"script-src '{forms._csp_hash(KEYS)}' "
    driven = page.replace("script-src ", policy, 1).replace(
        "</body>", f"<script>{KEYS}</script></body>"
    )
    (home / "driven.html").write_text(driven)
    run = subprocess.run(
        [
            *(CHROME, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={home / 'profile'}", f"file://{home / 'driven.html'}"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout, run.stderr[-500:]
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.S)
    result = json.loads(unquote(found[1]))
    doubted = ["Turn 3 of 8", "0 of 8 read, 1 undecided", 0]
    assert result["seen"] == [*doubted, *["Ann Ó'Neill", "Ann"] * 2, "All turns are read."]
    assert all(t["done"] and not t["undecided"] for t in result["tasks"]) and result["help"]
    assert result["injected"] == 0
    (key,) = result["stored"]
    assert (
        key == "crtlib:" + label_tasks.read_label_facts(home / "labels")["labels"]
        and "Ann" not in result["text"]
    )
    (home / "export.json").write_text(json.dumps(result))
    summary = take(home, home / "export.json")
    expected = [(t, spans(t.text) if t.text == TEXTS[0] else ()) for t in tasks]
    assert adjudication.read_labelled_turns(home / "labels") == expected and summary["secrets"] == {
        "name": 4
    }


def test_the_page_has_no_network_and_hashes_its_script(home):
    draw(home)
    page = (home / "labels/page.html").read_text()
    script = re.search(r"<script>(.*)</script>", page, re.S)[1]
    style = re.search(r"<style>(.*)</style>", page, re.S)[1]
    csp = re.search(r'Policy" content="([^"]*)"', page)[1]
    assert csp.startswith("default-src 'none'; ")
    assert forms._csp_hash(script) in csp and forms._csp_hash(style) in csp
    assert "</script><b>" not in page and "\u2028" not in page
    assert page.count("<script") == 2


# Two readers and who decides.


def reading(home, name, marks, tasks, **options):
    """Import as a reader who marks ``marks(task)`` in each of the tasks."""
    secrets = [[vars_of(s, t.text) for s in marks(t)] for t in tasks]
    lines = [
        {"task": t.task, "text": t.text, "done": True, "secrets": marked}
        for t, marked in zip(tasks, secrets, strict=True)
    ]
    (home / f"by {name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return take(home, home / f"by {name}.jsonl", **options)


def again(home, name, **options):
    """What is to be read next, as a tool gets it."""
    adjudication.write_adjudication(
        home / "c.jsonl", home / "labels", home / name, **{"forms": ["jsonl"]} | options
    )
    return [json.loads(line) for line in (home / name / "tasks.jsonl").read_text().splitlines()]


def test_a_second_reader_sees_what_was_marked_and_a_share_of_all_blind(tmp_path):
    home = tmp_path
    jsonl.write_jsonl(everybody(200), home / "c.jsonl")
    tasks = draw(home, turns=200)
    with pytest.raises(ValueError, match="reads what 'crtlib label adjudicate' wrote for it"):
        reading(home, "b", lambda t: (), tasks, role="second")
    reading(home, "a", lambda t: spans(t.text), tasks)
    marked = {t.task for t in tasks if spans(t.text)}
    drawn = {}
    for share in (0.2, 0.5):
        shown = again(home, f"again {share}", share=share)
        told = label_tasks.read_label_facts(home / "labels")["again"]
        drawn[share] = set(told["random"])
        assert told["read"] == [r["task"] for r in shown] == sorted(marked | drawn[share])
        assert len(drawn[share]) == 200 * share
        assert not any(r["secrets"] or r["done"] for r in shown)
    assert drawn[0.2] < drawn[0.5]  # nobody can choose among draws
    by_hand = [t for t in tasks if t.task in told["read"]]
    with pytest.raises(ValueError, match=r"1 of .* tasks to judge are unread"):
        reading(home, "b", lambda t: (), by_hand[1:], role="second")
    with pytest.raises(ValueError, match="is not a task of"):
        reading(home, "b", lambda t: (), tasks, role="second")
    reading(home, "b", lambda t: (), by_hand, role="second")
    with pytest.raises(ValueError, match="is not a task of"):  # nobody decides what none doubts
        reading(home, "c", lambda t: (), by_hand, role="decides")
    reading(home, "a", lambda t: spans(t.text), tasks)
    assert not {"second", "again", "agreement"} & set(label_tasks.read_label_facts(home / "labels"))
    for share in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"^share: .* must be in"):
            again(home, "x", share=share)


def test_the_bounds_in_reach_are_told_before_anybody_reads_again(tmp_path):
    jsonl.write_jsonl(everybody(200), tmp_path / "c.jsonl")
    tasks = draw(tmp_path, turns=200)
    reading(tmp_path, "a", lambda t: spans(t.text), tasks)
    marked = sum(bool(spans(t.text)) for t in tasks)
    told = adjudication.write_adjudication(
        tmp_path / "c.jsonl", tmp_path / "labels", tmp_path / "again", share=0.3
    )
    assert [row["share"] for row in told["reach"]] == [None, 0.2, 0.3, 0.5, 1.0]
    assert told["reach"][2]["turns"] == told["turns"]
    bounds = [row["at_most"] for row in told["reach"]]
    for k, share in enumerate((0.2, 0.3, 0.5, 1.0), 1):
        cases = (0, marked), (0, int(share * marked))
        terms = (intervals.clopper_pearson_upper(x, n, confidence=1 - 0.0125) for x, n in cases)
        assert bounds[k] == pytest.approx(sum(terms))
    assert bounds[0] < bounds[4] < bounds[3] < bounds[1]
    lines = adjudication.format_adjudication(told).splitlines()
    assert len(lines) == 9 and "--share 1 " in lines[6] and "nobody reads again" in lines[2]


def test_a_page_that_is_read_again_remembers_nothing_of_the_first(home):
    tasks = draw(home)
    reading(home, "a", lambda t: spans(t.text), tasks)
    again(home, "again", forms=["jsonl", "page"])
    assert (
        label_tasks.read_label_facts(home / "labels")["labels"] + "second"
        in (home / "again/page.html").read_text()
    )
    with pytest.raises(ValueError, match="'decides' reads what"):
        reading(home, "c", lambda t: (), tasks, role="decides")
    with pytest.raises(ValueError, match="must be a short name, of no other reader"):
        reading(home, "b", lambda t: (), tasks, role="second", annotator="a")
    with pytest.raises(ValueError, match="must be one of first, undecided, second, decides"):
        reading(home, "b", lambda t: (), tasks, role="third")


def test_where_readers_differ_somebody_decides(home):
    tasks = draw(home)
    reading(home, "a", lambda t: spans(t.text), tasks)
    differ = next(t for t in tasks if spans(t.text))
    again(home, "again", share=1)
    summary = reading(
        home, "b", lambda t: () if t == differ else spans(t.text), tasks, role="second"
    )
    assert summary["f1"] < 1
    found = adjudication.compare_second_reader(home / "labels")
    assert found == {t.user: "found" for t in tasks if spans(t.text) and t != differ} | {
        t.user: "new" for t in tasks if not spans(t.text)
    }
    both, undisputed = (
        dict(adjudication.read_labelled_turns(home / "labels", undisputed=k)) for k in (False, True)
    )
    assert both[differ] == spans(differ.text) and undisputed[differ] == ()
    assert {t: s for t, s in both.items() if t != differ} == {
        t: s for t, s in undisputed.items() if t != differ
    }
    (shown,) = again(home, "last")
    assert shown["task"] == differ.task and shown["secrets"]
    reading(home, "c", lambda t: (), [differ], role="decides")
    assert dict(adjudication.read_labelled_turns(home / "labels"))[differ] == ()
    assert adjudication.count_decided_turns(home / "labels") == (1, 1)
    reading(home, "c", lambda t: spans(t.text), [differ], role="decides")
    assert adjudication.count_decided_turns(home / "labels") == (1, 0)
    assert again(home, "more") == [shown]  # it may be decided again


def test_what_both_readers_marked_is_not_decided_away(home):
    tasks = draw(home)
    differ = next(t for t in tasks if len(spans(t.text)) == 2)
    reading(home, "a", lambda t: spans(t.text), tasks)
    again(home, "again", share=1)
    reading(home, "b", lambda t: spans(t.text)[: 1 if t == differ else 2], tasks, role="second")
    reading(home, "c", lambda t: (), [differ], role="decides")
    for undisputed in (False, True):
        assert (
            dict(adjudication.read_labelled_turns(home / "labels", undisputed=undisputed))[differ]
            == spans(differ.text)[:1]
        )
