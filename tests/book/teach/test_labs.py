"""Both labs: solved from the instructions, graded by the command; a wrong answer gets a hint."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from crtbook.__main__ import app
from crtcourse import attack, defence, grading
from crtlib.training.methods import Constants

PATTERNS = {
    "name": r"(?:[A-Z][\w'-]+ ){1,2}[A-Z][\w'-]+",
    "number": r"[\d(+][\d().x -]{5,}\d|\b(?=\w*\d)[A-Z\d]{6,}",
    "address": r"\d+ [A-Z].*",
    "id": r"(?<=ID is: )\d+",
}


@pytest.fixture(scope="module", autouse=True)
def small():
    """The labs at a size that a test can afford."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attack, "DIALOGUES", 40)
        patch.setattr(attack, "LEAKY", Constants(epochs=20, batch_size=12, learning_rate=1e-2))
        patch.setattr(defence, "DIALOGUES", 15)
        attack.room.cache_clear()
        defence.people.cache_clear()
        yield
    attack.room.cache_clear()
    defence.people.cache_clear()


def submit(folder, **answers):
    folder.mkdir(exist_ok=True)
    for name, answer in answers.items():
        (folder / f"{name}.json").write_text(json.dumps(answer))
    return folder


def graded(folder, lab):
    done = CliRunner().invoke(
        app, ["grade", str(folder), "--lab", lab, "--seed", "3"], standalone_mode=False
    )
    assert done.exit_code == 0, done.output
    return done.output


def test_the_attack_lab_is_solved_from_what_is_handed_out(tmp_path):
    given = attack.open_folder(attack.hand_out(3, tmp_path / "class"))
    solution = attack.solve(given)
    loud = min(solution["noisy"], key=solution["noisy"].get)
    wrong = solution | {
        "membership": [-x for x in solution["membership"]],
        "noisy": {k: 1 - p for k, p in solution["noisy"].items()},
    }
    folder = submit(tmp_path / "in", ann=solution, bob=wrong, cleo=attack.form("AB"), dan=[1])
    rows = {row["name"]: row for row in grading.grade(folder, "attack", seed=3)}
    assert rows["ann"]["total"] >= 90 and rows["ann"]["hints"] == ""
    assert attack.room(3).key.noisy != loud
    assert rows["bob"]["membership"] == 0 > rows["bob"]["noisy"]
    assert "higher means member" in rows["bob"]["hints"]
    assert rows["cleo"]["total"] == 0 and rows["dan"]["hints"].startswith("not graded: lab")
    printed = graded(folder, "attack")
    assert "ann: " in printed and "hint: membership" in printed
    assert grading.grade(folder, "attack", seed=3) == list(rows.values())


def test_guessing_earns_little_in_the_attack_lab():
    key = attack.room(3).key
    rng = np.random.default_rng(0)
    totals = []
    for _ in range(200):
        answer = attack.form("AB") | {
            "extraction": [f"{n:06d}" for n in rng.integers(10**6, size=attack.GUESSES)],
            "membership": rng.random(len(key.members)).tolist(),
            "reconstruction": rng.integers(attack.CANDIDATES, size=len(key.truth)).tolist(),
        }
        totals.append(attack.grade(answer, key).total)
    assert np.mean(totals) < 10


def test_too_many_numbers_are_no_extraction():
    many = attack.form("AB") | {"extraction": [f"{n:06d}" for n in range(1000)]}
    with pytest.raises(ValueError, match="at most 20"):
        attack.grade(many, attack.room(3).key)


def test_the_defence_lab_is_solved_from_its_rules(tmp_path):
    plan = {"method": "crt", "policy": PATTERNS, "epochs": 2, "pub_passes": 2}
    plan |= {"conservative": "everything"}
    claim = defence.claim_of(defence.run(defence.parse(plan), seed=0))
    empty = defence.form()
    whole = empty | {"plan": empty["plan"] | plan, "claim": claim}
    bare = empty | {"plan": empty["plan"] | {"epochs": 2}}
    low = whole | {"claim": claim | {"epsilon": 1e-3}}
    silly = empty | {"plan": {"epochs": 4000}}
    folder = submit(tmp_path / "in", ann=whole, bob=bare, cleo=low, dan=silly)
    rows = {row["name"]: row for row in grading.grade(folder, "defence", seed=3)}
    assert rows["ann"]["epsilon"] > 5 and rows["ann"]["leakage"] > 20
    assert "adds no noise" in rows["bob"]["hints"] and rows["bob"]["epsilon"] == 0
    assert "below what the run spent" in rows["cleo"]["hints"] and rows["cleo"]["epsilon"] == 0
    assert "the budget is 80" in rows["dan"]["hints"] and rows["dan"]["total"] == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"metod": "crt"}, "plan='metod'"),
        ({"method": "magic"}, "method='magic'"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"epochs": 2.5}, "epochs=2.5"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(plan, message):
    with pytest.raises(ValueError, match=message):
        defence.parse(plan)


def test_a_bad_pattern_is_refused():
    with pytest.raises(ValueError, match="policy: not a regular expression"):
        defence.pair(defence.parse({"policy": {"name": "("}}))
