"""Small texts for tests, and labels of them."""

import json
import re
from dataclasses import asdict, replace

from confide import text_registry
from confide.labels import drawing, imports, label_tasks
from confide.screening import corpus_screening
from crtlib.text import corpora, customersim, jsonl, records
from crtlib.text.records import Point, Secret, Turn


def write_simulated_text(path, seed=3, people="", dialogues=24):
    """Simulated conversations of people who are called ``people`` and a number, if anything."""
    made = customersim.simulate_corpus(dialogues, seed, "paper")
    if people:
        made = replace(made, dialogues=tuple(
            replace(d, id=f"{path.stem}-{k}", user=f"{people}{k % 8}")
            for k, d in enumerate(made.dialogues)
        ))  # fmt: skip
    jsonl.write_jsonl(made, path)
    return path


def write_messages(path, people, month="May", cut=3, turns=6):
    """Messages of these people, each its own, in conversations of ``cut`` of them."""
    said = [
        (who, f"In {month} the {k}th thing that {who} wanted to say was about order {n} {k}, "
              "which came late and was broken, as the others had been.")
        for n, who in enumerate(people) for k in range(turns)
    ]  # fmt: skip
    path.write_text("".join(
        json.dumps({"id": f"{path.stem}-{k}", "user": some[0][0], "turns": [
            {"speaker": "USR", "text": text} for _, text in some]}) + "\n"
        for k in range(0, len(said), cut) if (some := said[k : k + cut])
    ))  # fmt: skip
    return path


def related_texts(*paths):
    """Which of these texts the registry knows as one with the first."""
    registry, names = (
        text_registry.Registry(text_registry.registry_folder()),
        [corpora.hash_corpus(p) for p in paths],
    )
    for path in paths:
        text_registry.register_text(path)
    return [name in registry.find_related_texts(names[0]) for name in names[1:]]


def write_coded_messages(path, ids="d", labelled=0, people=24):
    """A code in every message of these people; the first ones are labelled inline."""
    rows = []
    for k in range(people):
        code = "ZQ" + "".join(chr(65 + (k * 7919 + j * j * 31) % 26) for j in range(8))
        text = f"my code is {code} , please look at it again for me"
        spans = [{"kind": "id", "start": 11, "end": 21}] if k < labelled else []
        turn = {"speaker": "USR", "text": text, "secrets": spans}
        rows.append(json.dumps({"id": f"{ids}{k}", "user": f"u{k}", "turns": [turn]}))
    path.write_text("\n".join(rows) + "\n")
    return path, [row.partition("code is ")[2][:10] for row in rows]


def write_sayings(path, people, texts, secret):
    """A corpus in which these people say these texts, each with a secret value; and its labels."""
    talks = []
    for k, (user, text) in enumerate(zip(people, texts, strict=True)):
        at = [m.span() for m in re.finditer(secret, text)]
        turn = Turn("USR", text, tuple(Secret("phone", *ends) for ends in at))
        talks.append(records.Dialogue(f"d{k}", user, (turn,)))
    jsonl.write_jsonl(talks, path)
    return path, {d.id: d.turns[0].secrets for d in talks}


def bring_known_labels(path, home, secrets_of, *, left=lambda task: False, partial=False):
    """The labels of a draw in the folder ``home``, as who knows the secrets of each task marks
    them, but for the turns that are ``left``."""
    tasks = [
        {"task": t.task, "done": not left(t), "secrets": [asdict(s) for s in secrets_of(t)]}
        for t in label_tasks.read_tasks(home)
    ]
    page = {
        "schema": "crtlib/labels/1",
        "labels": label_tasks.read_label_facts(home)["labels"],
        "annotator": "a",
    }
    (done := home.with_suffix(".json")).write_text(json.dumps(page | {"tasks": tasks}))
    return imports.import_labels(path, done, home, partial=partial)


def draw_and_label(path, home, known, **drawn):
    """Labels of a draw in the folder ``home``, as who knows them marks them."""
    drawing.draw_label_tasks(path, home, forms=["jsonl"], **drawn)
    bring_known_labels(path, home, lambda task: known[task.id])
    return home


def screen_rates(path, out, policy="regex:customersim", judges=None):
    """The rates of a policy on a text, both searches the same."""
    out.mkdir()
    return corpus_screening.screen_corpus(
        path, out, corpus_screening.ScreeningOptions(policy, policy), key=b"k" * 32, judges=judges
    ).rates


def make_code_messages(turn, users, said="my code is {}"):
    """A message of each of these users with his code, which is the secret."""
    code, at = "ZQ{:06}".format, len(said.partition("{")[0])
    return [
        Point(f"d{k}/{turn}", user, said.format(code(k)), (Secret("id", at, at + 8),))
        for k, user in enumerate(users)
    ]


def write_talks(path, texts):
    """A conversation of one message each."""
    talks = [records.Dialogue(f"d{k}", f"u{k}", (Turn("USR", t),)) for k, t in enumerate(texts)]
    jsonl.write_jsonl(talks, path)
    return path
