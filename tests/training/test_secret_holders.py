"""Who holds which secret: found as a list finds it, shared by users, refused without a value."""

import re

import pytest

from confide.training import secret_holders, secret_plans, train_on_corpus
from crtlib.screening import regex_policies
from crtlib.screening.policy import Policy
from crtlib.text import customersim, jsonl
from crtlib.text.records import Point, Secret

TEXTS = ["I am José O’Neill", "jose o'neill, 4111-1111", "41111111 it is", "nothing"]
POINTS = [Point(f"d/{i}", f"user {i}", text) for i, text in enumerate(TEXTS)]
PROMISE = {"prior": 0.001, "posterior": 0.1}


def table(tmp_path, text):
    (tmp_path / "h.csv").write_text(text, encoding="utf-8")
    return tmp_path / "h.csv"


@pytest.mark.parametrize(
    ("by", "secrets", "matrix"),
    [
        ("value", ["Jose O'Neill", "4111 1111"], [[1, 1, 0, 0], [0, 1, 1, 0]]),
        ("user", ["ann", "bob"], [[1, 1, 1, 0], [0, 1, 1, 0]]),  # both hold the number
    ],
)
def test_values_are_found_however_they_are_written(tmp_path, by, secrets, matrix):
    file = table(
        tmp_path, "user,secret\nann,Jose O'Neill\nann,4111 1111\nbob,4111 1111\nbob,unseen value\n"
    )
    found = secret_holders.find_listed_holders([POINTS[:2], POINTS[2:]], file, by=by, **PROMISE)
    assert found.secrets == secrets and found.matrix().toarray().tolist() == matrix
    assert found.examples == ["d/0", "d/1", "d/2", "d/3"]
    assert found.unseen == (1 if by == "value" else 0)


def test_a_policy_finds_values_and_users():
    digits = regex_policies.corpus_regex_policy("wikitext2")
    by_value = secret_holders.find_flagged_holders(lambda: [POINTS], digits, by="value", **PROMISE)
    assert by_value.secrets == ["1111", "4111", "41111111"]
    by_user = secret_holders.find_flagged_holders(lambda: [POINTS], digits, by="user", **PROMISE)
    assert by_user.secrets == ["user 1", "user 2"]
    assert by_user.matrix().toarray().tolist() == [[0, 1, 0, 0], [0, 1, 1, 0]]  # 4111-1111


def test_a_value_is_held_wherever_and_however_it_stands():
    """A policy that flags two spellings of a value and passes over a third makes one promise. Once:
    it made two, of .1 each, where the value could be guessed with .69, and with 1 from the spelling
    that was passed over."""
    texts = ["call 555-1234", "call 555 1234", "dial 5551234 now", "Ann", "hello"]
    points = [Point(f"d/{k}", f"user {k}", text) for k, text in enumerate(texts)]

    def flags(points):
        return [
            tuple(Secret("x", m.start(), m.end()) for m in re.finditer(r"555[- ]\d{4}|Ann", p.text))
            for p in points
        ]

    policy = Policy("some", flags)
    value = secret_holders.find_flagged_holders(lambda: [points], policy, by="value", **PROMISE)
    assert value.secrets == ["555-1234", "Ann"]
    assert value.matrix().toarray().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 0]]
    user = secret_holders.find_flagged_holders(
        lambda: [points[:2], points[2:]], policy, by="user", **PROMISE
    )
    assert user.secrets == ["user 0", "user 1", "user 3"]
    assert user.matrix().toarray().tolist() == [[1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name,number\na,hunter2\n",
            "table: has no column user and secret; a table needs user,sec",
        ),
        ("ann,hunter2 1\nbob,hunter3\n", "table: has no column user and secret"),
        ("user,secret\nann,\n", "row 2, column secret: is empty"),
        ("user,secret,r\nann,hunter2,0.0001\n", "row 2: must have 0 < p < r < 1"),
        ("user,secret,r\na,hunter2,0.1\nb,hunter2,0.2\n", "row 3: p or r differs"),
        ("user,secret\nann,hunter2\n", "none of them appears in the text"),
        ("user,secret\nann,Jo\n", "row 2: is too short to look for; 2 characters"),
    ],
)
def test_other_tables_are_refused_and_no_value_is_shown(tmp_path, text, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as error:
        secret_holders.find_listed_holders([POINTS], table(tmp_path, text), by="value", **PROMISE)
    assert "hunter" not in str(error.value) and "\n" not in str(error.value)


def test_a_plan_belongs_to_its_corpus(tmp_path):
    for seed in (0, 1):
        jsonl.write_jsonl(customersim.simulate_corpus(12, seed), tmp_path / f"{seed}.jsonl")
    secret_plans.make_secret_plan(
        tmp_path / "0.jsonl", tmp_path / "plan", policy="regex:customersim",
        posterior=0.1, steps=5, batch_size=4, neighbouring_relation="reference",
    )  # fmt: skip
    names = (tmp_path / "plan" / "weights.parquet").read_bytes()
    assert b"s0-d0" not in names and (tmp_path / "plan" / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match=r"^plan: made for corpus ....…, this is ....…"):
        train_on_corpus.train(tmp_path / "1.jsonl", plan=tmp_path / "plan", out=tmp_path / "m")
    with pytest.raises(ValueError, match=r"^take: 7 must be one of 2, 5, 10, inf"):
        secret_plans.make_secret_plan(
            tmp_path / "0.jsonl", tmp_path / "p2", policy="regex:customersim",
            posterior=0.1, steps=5, batch_size=4, take=7, neighbouring_relation="reference",
        )  # fmt: skip
