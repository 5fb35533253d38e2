"""Both labs: solved from the instructions, graded by the command; a wrong answer gets a hint."""

import itertools
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from crtbook.__main__ import app
from crtcourse import attack, defence, grading, keys, labs
from crtlib.attacks import exposure, one_run_bound
from crtlib.models import scoring
from crtlib.text import canaries
from crtlib.text.records import Point
from crtlib.training.methods import PublicConstants

ROOT = Path(__file__).resolve().parents[3]
KEY = keys.make_key() | {"secret": "03" * 32}
PATTERNS = {
    "name": r"(?:[A-Z][\w'-]+ ){1,2}[A-Z][\w'-]+",
    "number": r"[\d(+][\d().x -]{5,}\d|\b[A-Z\d]{6,}",
    "address": r"\d+ [A-Z].*",
    "id": r"(?<=ID is: )\d+",
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """The labs at a size that a test can afford."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attack, "DIALOGUES", 40)
        patch.setattr(
            attack, "LEAKY", PublicConstants(epochs=20, batch_size=12, learning_rate=1e-2)
        )
        patch.setattr(defence, "DIALOGUES", 15)
        attack.draw_room.cache_clear()
        defence.draw_people.cache_clear()
        yield
    attack.draw_room.cache_clear()
    defence.draw_people.cache_clear()


def submit(folder, **answers):
    folder.mkdir(exist_ok=True)
    for name, answer in answers.items():
        (folder / f"{name}.json").write_text(json.dumps(answer))
    return folder


@pytest.fixture(scope="module")
def ann(small, tmp_path_factory):
    """The class of ann and bob, by the command: its folder, and the key that it read, which is the
    same in every run of the tests."""
    home = tmp_path_factory.mktemp("class")
    keys.write_key(keys.make_key() | {"secret": 64 * "0"}, home / "a.key")
    (home / "names.txt").write_text("ann\nbob\n")
    words = ["--key", home / "a.key", "--students", home / "names.txt", "--out", home / "out"]
    done = CliRunner().invoke(app, ["lab", *map(str, words)], standalone_mode=False)
    assert done.exit_code == 0, done.output
    return home


def by_hand(given, asked=None):
    """An honest solution, from the library's pieces and what is handed out; by what another room
    ``asked`` for, the script that a friend handed on."""
    tokens, answer = given.tokenizer, attack.make_empty_form(given.models)
    asked = asked or given.tasks
    kind = {t: next(k for k in each if each[k] == asked[t]) for t, each in attack.TASKS.items()}
    bits = {
        k: exposure.canary_exposure(m, tokens, given.announced, carrier=given.carrier)
        for k, m in given.models.items()
    }
    loud = max(bits, key=lambda k: bits[k].mean())
    answer["exposure"] = {k: b.round(3).tolist() for k, b in bits.items()}
    prefix = tokens.encode_prefix(given.carrier)
    every = exposure.all_string_logprobs(given.models[loud], prefix, tokens.digits, 6)
    likeliest = [f"{i:06d}" for i in np.argsort(-every)[:20]]
    new = [number for number in likeliest if number not in given.announced]
    answer["extraction"] = new[:6] if kind["extraction"] == "costly" else likeliest

    def scored(letter, texts):
        return scoring.token_logprobs(given.models[letter], tokens.encode(texts))

    means = {k: np.array([x.mean() for x in scored(k, given.sentences)]) for k in given.models}
    sums = np.array([[x.sum() for x in scored(loud, row)] for row in given.questions])
    if kind["membership"] == "pairs" and len(means[loud]) % 2 == 0:
        sides = means[loud].reshape(-1, 2).argmax(axis=1)
        answer["membership"] = [int(2 * k + side) for k, side in enumerate(sides)]
    elif kind["membership"] == "surest":
        answer["membership"] = np.argsort(-means[loud])[:10].tolist()
    else:
        answer["membership"] = means[loud].tolist()
    odds = np.exp(sums - sums.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    likely = kind["reconstruction"] == "odds"
    answer["reconstruction"] = odds.tolist() if likely else sums.argmax(axis=1).tolist()
    level = {k: m.max() for k, m in means.items()}  # no sentence is learned by heart through noise
    answer["noisy"] = {k: 0.98 if level[k] < level[loud] - 0.3 else 0.02 for k in given.models}
    plans = []
    for copies, share in given.pilot["right"].items():
        m = given.pilot["lines"] // int(copies)
        epsilon = one_run_bound.one_run_lower_bound(m, guesses=m, correct=round(share * m))
        plans.append({"copies": int(copies), "count": m, "epsilon": round(epsilon, 3)})
    answer["canaries"] = max(plans, key=lambda plan: plan["epsilon"])
    return answer | {"rationale": "=The quiet model\n was trained with noise."}


def folded(given):
    """What the code of the folded solution of the book fills in."""
    cells = json.loads((ROOT / "notebooks" / "lab_attack.ipynb").read_text())["cells"]
    text = "".join("".join(cell["source"]) for cell in cells)
    code = re.search(r"\{solution\} ex-lab-attack.*?```python\n(.*?)```", text, re.DOTALL)[1]
    answer = attack.make_empty_form(given.models)
    exec(code, {"given": given, "answer": answer})
    return answer


def enumerated(given):
    """The answers of the seed that made what was told, if a program finds it."""
    for seed in range(20_000):
        if canaries.make_canaries(10, seed=seed)[:4] == given.announced:
            return by_hand(attack.draw_room(seed).given)
    return attack.make_empty_form(given.models)


def test_what_honest_work_and_cheating_earn(ann, tmp_path):
    given = attack.open_folder(ann / "out" / "ann")
    key = keys.read_key(ann / "a.key")
    assert (ann / "a.key").stat().st_mode & 0o777 == 0o600 and len(key["secret"]) == 64
    handed = [p.read_bytes() for p in (ann / "out").rglob("*") if p.is_file()]
    hidden = [n for row in key["students"].values() for n in [*row["hidden"], key["secret"]]]
    assert not [n for n in hidden for data in handed if data[:1] == b"{" and n.encode() in data]
    assert set(given.sentences).isdisjoint(text for row in given.questions for text in row)
    empty = attack.make_empty_form("ABC") | {k: {} for k in ("exposure", "noisy", "canaries")}
    bob = attack.open_folder(ann / "out" / "bob")
    tried = {"seeds": enumerated(given), "folded": folded(given), "empty": empty}
    totals = {}
    for name, answer in tried.items():
        rows = grading.grade_folder(submit(tmp_path / name, ann=answer), "attack", key)
        totals[name] = rows[0]["total"]
    pair = submit(tmp_path / "pair", ann=by_hand(given), bob=by_hand(given))
    mine, copy = grading.grade_folder(pair, "attack", key)
    assert mine["total"] >= 40 and mine["same_as"] == "bob" and copy["same_as"] == "ann"
    assert mine["explained"].startswith("'=The quiet model? was") and mine["rationale"] == ""
    totals["copy"] = copy["total"]
    assert max(totals.values()) <= 15, totals
    assert attack.grade_answer(by_hand(bob), attack.Key(**key["students"]["bob"])).total >= 40
    words = [pair, "--lab", "attack", "--key", ann / "a.key", "--out", tmp_path / "m.csv"]
    done = CliRunner().invoke(app, ["grade", *map(str, words)], standalone_mode=False)
    assert done.exit_code == 0 and "same answers as bob" in done.output
    assert list(pd.read_csv(tmp_path / "m.csv").total) == [mine["total"], copy["total"]]


def hostile(rng, good):
    """A submission that means harm: bytes."""
    junk = [None, True, -1, "x", [], {}, [[]], 10**400, 1e308, "\ud800", {"A": {}}, ["9" * 5000]]
    bad = dict(good) | {k: junk[rng.integers(len(junk))] for k in good if rng.random() < 0.5}
    text = json.dumps(bad)
    ways = (
        lambda: text.encode(),
        lambda: b"[" * int(rng.integers(10, 200_000)),
        lambda: b'{"lab": "attack", "noisy": ' + b'{"A":' * 900 + b"1" + b"}" * 901,
        lambda: text.encode()[: int(rng.integers(len(text)))],
        lambda: rng.bytes(int(rng.integers(1, 2000))),
        lambda: b"\xef\xbb\xbf" + text.encode(),
        lambda: text.encode("utf-16"),
        lambda: b" " * 300_000,
        lambda: text.replace("0.", "NaN, 0.", 1).encode(),
        lambda: b'{"lab": "attack", "lab": "attack"}',
        lambda: b'{"lab": "attack", "canaries": {"copies": 1, "count": ' + b"9" * 9000 + b"}}",
        lambda: b'{"lab": "attack", "canaries": {"copies": 1, "count": 1e999, "epsilon": 1}}',
    )
    return ways[rng.integers(len(ways))]()


def test_two_hundred_hostile_submissions_are_two_hundred_rows(ann, tmp_path):
    key = keys.read_key(ann / "a.key")
    good = by_hand(attack.open_folder(ann / "out" / "ann"))
    rng, folder = np.random.default_rng(1), submit(tmp_path / "in", good=good)
    key["students"] |= {f"s{k}": key["students"]["ann"] for k in range(190)}
    key["students"]["good"] = key["students"]["ann"]
    for k in range(190):
        (folder / f"s{k}.json").write_bytes(hostile(rng, good))
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(folder / "good.json")
    (folder / "nowhere.json").symlink_to(folder / "missing")
    (folder / "zero.json").symlink_to("/dev/zero")
    (folder / "=1+1.json").write_text("{}")
    (folder / "stranger.json").write_text(json.dumps(good))
    (folder / "none.json").write_bytes(b"")
    with open(os.fsencode(folder) + b"/bad\xff.json", "w") as file:
        file.write("{}")
    began = time.process_time()
    rows = grading.grade_folder(folder, "attack", key)
    assert time.process_time() - began < 60
    grading.write_marks(rows, tmp_path / "marks.csv")
    assert (
        grading.format_marks(rows) and len(pd.read_csv(tmp_path / "marks.csv")) == len(rows) == 202
    )
    best = {row["name"]: row["total"] for row in rows}
    assert best["ann"] == best["bob"] == 0  # of whom there is no file
    assert best["good"] >= 40 and best["link"] == best["stranger"] == best["zero"] == 0
    assert all(row["hints"] or row["total"] >= 55 for row in rows)


def test_a_file_that_takes_too_long_is_stopped(tmp_path, monkeypatch):
    def slow(*_):
        while True:
            pass

    monkeypatch.setattr(grading, "grade_submission", slow)
    monkeypatch.setattr(grading, "SECONDS", {"defence": 0.2})
    rows = grading.grade_folder(submit(tmp_path / "in", ann={}, bob={}), "defence", keys.make_key())
    assert ["took more than 0.2 processor seconds" in row["hints"] for row in rows] == [True] * 2


@pytest.mark.parametrize("text", ["ann\nAnn", "../ann", ".ann", "a/b", "a" * 65])
def test_a_name_that_is_no_file_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(ValueError, match=r"names.txt: line '.+': must be a name of letters"):
        keys.read_names(tmp_path / "names.txt")


@pytest.mark.parametrize("stem", ["Ann Lee", "ann_lee", "Ann_Lee (1)", "ANN-LEE", " ann  lee"])
def test_a_name_is_known_however_it_is_spelled(stem):
    key = {"students": {"Ann Lee": {}, "Bob": {}}}
    assert grading.find_student(stem, key) == "Ann Lee"
    with pytest.raises(ValueError, match="the nearest is 'Ann Lee'"):
        grading.find_key_of_student("Anna Lee", "attack", key)


def test_a_student_without_a_file_has_a_row(tmp_path):
    key = keys.make_key() | {"students": {"Ann Lee": {}, "Bob": {}}}
    folder = submit(tmp_path / "in", **{"ann_lee": {}, "Ann_Lee (1)": {}})
    rows = {row["name"]: row for row in grading.grade_folder(folder, "attack", key)}
    assert rows["Bob"]["total"] == 0 and rows["Bob"]["hints"] == "no file of this student"
    assert "Ann Lee has several files" in rows["ann_lee"]["hints"]


def test_hints_are_for_people_and_numbers_may_be_text(ann):
    key = attack.Key(**keys.read_key(ann / "a.key")["students"]["ann"])
    hints = " ".join(attack.grade_answer(attack.make_empty_form("ABC"), key).hints)
    assert "zip" not in hints and "None" not in hints and hints.count("nothing is handed in") >= 3
    answer = by_hand(attack.open_folder(ann / "out" / "ann"))
    spelled = answer | {
        "extraction": [int(x) for x in answer["extraction"]],
        "membership": [f"{x:.6f}" for x in answer["membership"]],
    }
    assert attack.grade_answer(spelled, key).earned == attack.grade_answer(answer, key).earned


def test_teams_share_neither_first_weights_nor_noise():
    """Two models of a room had the same noise, and their difference was what one had read more."""
    people = labs.draw_people(seed=0, dialogues=4)
    noise = replace(attack.GUARDED, epochs=1, pub_passes=1)
    first, second = (
        torch.cat(
            [
                p.detach().ravel()
                for p in labs.fit_model(people, "crt", noise, team=k).model.parameters()
            ]
        )
        for k in (1, 2)
    )
    assert (first - second).norm() > 0.5 * first.norm()


def test_a_script_for_another_room_earns_less(ann):
    """One script of thirty lines had 89.8 of 90 points in eight rooms of eight. In five rooms of
    this size those of other rooms earn 38 to 56 points on average, of 70."""
    given = attack.open_folder(ann / "out" / "ann")
    key = attack.Key(**keys.read_key(ann / "a.key")["students"]["ann"])
    assert given.tasks == {task: attack.TASKS[task][kind] for task, kind in key.tasks.items()}
    totals = []
    for other in itertools.product(*(each.values() for each in attack.TASKS.values())):
        asked = dict(zip(attack.TASKS, other, strict=True))
        totals.append(attack.grade_answer(by_hand(given, asked), key).total)
    assert np.mean(totals) < 60 and sum(total > 60 for total in totals) <= 4
    assert max(totals) == attack.grade_answer(by_hand(given), key).total


def test_guessing_earns_little_in_the_attack_lab(ann):
    key = attack.Key(**keys.read_key(ann / "a.key")["students"]["ann"])
    rng = np.random.default_rng(0)
    totals = []
    for _ in range(200):
        answer = attack.make_empty_form("ABC") | {
            "extraction": [f"{n:06d}" for n in rng.integers(10**6, size=attack.GUESSES)],
            "membership": rng.random(len(key.members)).tolist(),
            "reconstruction": rng.integers(attack.CANDIDATES, size=len(key.truth)).tolist(),
        }
        if key.tasks["membership"] != "scores":
            surest = rng.permutation(len(key.members))[: attack.SUREST].tolist()
            pairs = [2 * k + int(rng.integers(2)) for k in range(len(key.members) // 2)]
            answer["membership"] = pairs if key.tasks["membership"] == "pairs" else surest
        if key.tasks["reconstruction"] == "odds":
            answer["reconstruction"] = rng.dirichlet(np.ones(5), size=len(key.truth)).tolist()
        totals.append(attack.grade_answer(answer, key).total)
    assert np.mean(totals) < 10
    many = attack.make_empty_form("ABC") | {"extraction": [f"{n:06d}" for n in range(1000)]}
    assert "at most 20" in " ".join(attack.grade_answer(many, key).hints)


def test_what_a_task_asks_for_decides_what_an_answer_earns():
    hidden, members = ["1", "4"], np.array([False, True, False, True])
    assert attack.score_extraction(["1", "2"], hidden, "free") == 0.5
    assert attack.score_extraction(["1", "2"], hidden, "costly") == 0.375
    assert attack.score_extraction([str(n) for n in range(20, 40)], hidden, "costly") < 0
    assert attack.score_membership(np.array([1, 3]), members, "pairs") == 1
    with pytest.raises(ValueError, match="the first place is 0 or 1"):
        attack.score_membership(np.array([0, 1]), members, "pairs")
    with pytest.raises(ValueError, match="different places from 0 to 3"):
        attack.score_membership(np.array([1, 1]), members, "surest")
    sure = np.eye(5)[[0, 1]]
    assert attack.score_reconstruction(sure, np.array([0, 1]), "odds") == pytest.approx(1)
    assert attack.score_reconstruction(
        np.full((2, 5), 0.2), np.array([0, 1]), "odds"
    ) == pytest.approx(0)
    assert attack.score_reconstruction(sure, np.array([1, 0]), "odds") < -3


def test_what_a_lab_asks_to_hand_in_is_graded():
    """The defence lab told of rounds in which teams attack each other, which no program runs."""
    for name in ("lab_attack", "lab_defence"):
        cells = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        assert {*re.findall(r'"lab": "(\w+)"', text)} <= {*grading.LABS}
        assert "by hand: no command" not in text


def test_the_defence_lab_is_solved_from_its_rules(tmp_path):
    plan = {"method": "crt", "policy": PATTERNS, "epochs": 2, "pub_passes": 2}
    plan |= {"conservative": "everything"}
    claim = defence.make_true_claim(defence.run_plan(defence.parse_plan(plan), seed=0))
    claim |= {"epsilon": 2 * claim["epsilon"]}  # small classes differ more than by a tenth
    empty = defence.make_empty_form()
    whole = empty | {"plan": empty["plan"] | plan, "claim": claim}
    bare = empty | {"plan": empty["plan"] | {"epochs": 2}}
    low = whole | {"claim": claim | {"epsilon": 1e-3}}
    silly = empty | {"plan": {"epochs": 4000}}
    folder = submit(tmp_path / "in", ann=whole, bob=bare, cleo=low, dan=silly)
    rows = {row["name"]: row for row in grading.grade_folder(folder, "defence", KEY)}
    assert rows["ann"]["epsilon"] > 10 and rows["bob"]["leakage"] == 0
    assert "adds no noise" in rows["bob"]["hints"] and rows["bob"]["epsilon"] == 0
    assert "below what the run spent" in rows["cleo"]["hints"] and rows["cleo"]["epsilon"] == 0
    assert "the budget is 80" in rows["dan"]["hints"] and rows["dan"]["total"] == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"metod": "crt"}, "metod: unknown; allowed are method"),
        ({"method": "magic"}, "method='magic'"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"epochs": 2.5}, "epochs=2.5"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(plan, message):
    with pytest.raises(ValueError, match=message):
        defence.parse_plan(plan)


def test_a_bad_pattern_is_refused():
    with pytest.raises(ValueError, match="policy: not a regular expression"):
        defence.make_policies(defence.parse_plan({"policy": {"name": "("}}))


def test_of_ten_plans_the_best_promise_with_good_use_is_first_and_plain_sgd_last(monkeypatch):
    monkeypatch.setattr(defence, "DIALOGUES", 120)
    defence.draw_people.cache_clear()
    training = {"pub_passes": 9, "batch_size": 16, "learning_rate": 0.03}
    crt = training | {"method": "crt", "policy": PATTERNS, "private_learning_rate": 0.02}
    wide = {"conservative": {"any": r"\d|[A-Z]\w+ [A-Z]"}}
    digits = {"policy": {"digits": r"\d{4,}"}}
    plans = {
        "best": crt | wide | {"epsilon": 1.0},
        "plain": {},
        "book": crt,
        "useless": crt | {"conservative": "everything", "epsilon": 1.0},
        "useless3": crt | {"conservative": "everything"},
        "digits": digits,
        "masked": {"policy": PATTERNS},
        "dedup": {"policy": PATTERNS, "method": "dedup"},
        "dpsgd": {"method": "dpsgd"},
        "no private text": crt
        | wide
        | {"private_learning_rate": 1e-6, "epsilon": 0.05, "epochs": 2, "pub_passes": 39},
        "careless": crt | digits,
    }
    totals, empty = {}, defence.make_empty_form()
    for name, changed in plans.items():
        answer = empty | {"plan": empty["plan"] | changed}
        answer["claim"] = defence.make_true_claim(
            defence.run_plan(defence.parse_plan(answer["plan"]), 0)
        )
        totals[name] = defence.grade_answer(answer, 0)
    print({name: (marks.total, marks.earned) for name, marks in totals.items()})
    order = sorted(totals, key=lambda name: totals[name].total)
    assert order[-1] == "best" and order[0] == "plain"
    assert totals["best"].earned["epsilon"] >= 100 / 3 and totals["plain"].earned["leakage"] == 0
    assert totals["no private text"].total <= 50 and totals["no private text"].earned["epsilon"] < 1
    defence.draw_people.cache_clear()


def test_the_defence_labs_solution_finds_numbers_without_a_digit():
    """It asked for one, so in two classes of eight its whole delta was above what earns marks."""
    text = (ROOT / "book" / "teaching" / "solutions.txt").read_text(encoding="utf-8")
    given = {}
    exec(re.search(r"policy = \{.*?\n\}", text, re.DOTALL)[0], given)
    assert given["policy"] == PATTERNS
    pi, _ = defence.make_policies(
        defence.parse_plan(defence.make_empty_form()["plan"] | {"policy": PATTERNS})
    )
    said = Point("0", "u", "SYS: The carrier's number is GKOFTFGDNZ. More questions?")
    assert [said.text[s.start : s.end] for s in pi([said])[0]] == ["GKOFTFGDNZ"]
