"""A policy of anybody's is asked for one point at a time, and held to what it says of itself."""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from confide.screening import judged_policies
from confide.training import train_on_corpus, training_facts
from crtlib.screening import (
    policy,
    policy_digests,
    policy_names,
    preparation,
    rates,
    regex_policies,
)
from crtlib.screening.policy import Policy
from crtlib.screening.policy_registry import REGISTERED_MAKERS, PolicyMaker
from crtlib.text import data_points
from crtlib.text.records import Point, Secret, Turn
from tests.texts import make_code_messages, write_simulated_text
from tests.trainings import make_certificate


def test_a_policy_is_asked_for_one_point_at_a_time():
    """Fault: one that flags what stands once in a text let one secret decide about 30 messages."""

    def flag(points):
        said = Counter(word for p in points for word in p.text.split())
        return [
            [Secret("word", *m.span()) for m in re.finditer(r"\w+", p.text) if said[m[0]] == 1]
            for p in points
        ]

    points = [Point(str(k), "u", text) for k, text in enumerate(["a b", "b c"])]
    alone, together = Policy("rare", flag), Policy("rare", flag, batched=True)
    assert [len(spans) for spans in alone(points)] == [2, 2]
    assert [len(spans) for spans in together(points)] == [1, 1]
    with pytest.raises(ValueError, match="policy='two': 2 answers for 1 points"):
        Policy("two", lambda points: [(), ()])(points)


def test_a_policy_of_a_package_is_all_of_its_files(tmp_path, monkeypatch):
    """Fault: the list beside its code could change after the seal, and the hash stayed."""
    (tmp_path / "house").mkdir()
    code = tmp_path / "house" / "__init__.py"
    code.write_text("def make(_):\n    pass\n")
    names = {}
    exec(compile(code.read_text(), str(code), "exec"), names)
    monkeypatch.setitem(
        policy_names.REGISTERED_MAKERS,
        "house",
        policy_names.PolicyMaker("house", "", names["make"]),
    )
    hashes = []
    for known in ("", "ZQ"):
        (tmp_path / "house" / "known.txt").write_text(known)
        hashes.append((policy_digests.policy_digest("house"), training_facts.policy_hash("house")))
    assert len({*hashes[0], *hashes[1]}) == 4


def test_a_policy_of_loose_files_is_not_sealed(tmp_path, monkeypatch, run):
    """Fault: its rules could stand in a module beside the one that was hashed, or in the package
    above, and be made of the labels after these were read."""
    monkeypatch.syspath_prepend(tmp_path)

    def make_of(file):
        names = {}
        exec(compile("def make(*_):\n    return lambda points: [()]\n", str(file), "exec"), names)
        return names["make"]

    inner = tmp_path / "house_rules" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").touch()
    for file in (tmp_path / "loose_rules.py", inner / "makers.py"):
        file.touch()
    loose, packed = make_of(tmp_path / "loose_rules.py"), make_of(inner / "makers.py")
    makers = {"loose": loose, "bound": partial(loose), "packed": partial(packed, "")}
    for name, make in makers.items():
        monkeypatch.setitem(
            policy_names.REGISTERED_MAKERS, name, policy_names.PolicyMaker(name, "", make)
        )
    for name in ("loose", "bound", "cautious+loose"):
        with pytest.raises(ValueError, match=f"policy='{re.escape(name)}': comes from code that"):
            policy_digests.check_policy_files_known(name)
    policy_digests.check_policy_files_known("cautious+packed")
    before = policy_digests.policy_digest("packed")
    (inner.parent / "rules.py").write_text("FOUND = 'ZQ'")
    assert policy_digests.policy_digest("packed") != before

    installed = tmp_path / "loose_rules-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: loose-rules\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[crtlib.policies]\nloose = loose_rules:make\n")
    (installed / "RECORD").write_text("loose_rules.py,,\nbeside.py,,\n")
    (tmp_path / "beside.py").touch()
    policy_digests.check_policy_files_known("loose")
    before = policy_digests.policy_digest("loose")
    (tmp_path / "beside.py").write_text("FOUND = 'ZQ'")
    assert policy_digests.policy_digest("loose") != before
    text = write_simulated_text(tmp_path / "c.jsonl")
    monkeypatch.setattr(policy_digests, "_list_package_files", lambda kind: None)
    words = ["label", "sample", text, "--out", tmp_path / "labels", "--seal"]
    code, _, error = run(*words, "cautious, list:a.csv")  # it was "no such file"
    assert code == 2 and "must be joined by +, not by commas" in error
    code, _, error = run(*words, "loose")
    assert code == 2 and "comes from code that is not a package" in error
    assert not (tmp_path / "labels").exists()


def test_what_is_assumed_of_a_foreign_policy_is_said_of_its_folder(tmp_path, run, monkeypatch):
    """Fault: it was said of a corpus only, and not of its screened folder."""
    text = write_simulated_text(tmp_path / "c.jsonl")
    maker = PolicyMaker(
        "company", "", lambda _: Policy("company", lambda points: [()] * len(points))
    )
    monkeypatch.setitem(REGISTERED_MAKERS, "company", maker)
    assert run("screen", text, "--policy", "company", "--out", tmp_path / "s")[0] == 0
    train_on_corpus.train(
        tmp_path / "s", out=tmp_path / "m", method="crt", epochs=1, width=4, epsilon=3.0
    )
    value = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert "company, of another package" in json.dumps(value)


def test_a_policy_that_says_it_flags_everything_is_held_to_it():
    """Fault: of another package's policy with ``total`` the public rate was 0, and what it let
    pass was learned without noise."""
    liar = policy.Policy("company", lambda points: [() for _ in points], flags_everything=True)
    points = make_code_messages(0, [f"u{k}" for k in range(40)])
    try:
        found = rates.measure_rates(points, regex_policies.none_policy, liar)
    except ValueError:
        return
    assert found.public.upper_bound == 1


@pytest.mark.parametrize("own_words", [False, True])
def test_no_policy_but_the_oracle_is_shown_the_labels_that_judge_it(own_words):
    """Fault: every policy was shown the labels that judged it, so one that repeats them missed 0 of
    200."""
    turns = [Turn("USR", f"I am Ada {k}", (Secret("name", 5, 8),)) for k in range(200)]
    points = [
        data_points.join_turns(f"d{k}/0", f"u{k}", [turn], ["USR: "])
        for k, turn in enumerate(turns)
    ]
    cribs = Policy(
        "company", regex_policies.oracle_policy.flag, own_words=own_words, batched=own_words
    )
    for asked in (cribs, policy.stable_under_masking(cribs)):
        found = rates.measure_rates(points, asked, regex_policies.none_policy)
        assert found.miss.failures == found.public.failures == 200
    assert cribs.flag(points) == regex_policies.oracle_policy(points)  # so it would repeat them


@pytest.mark.parametrize(
    "pair", [("oracle", "everything"), ("cautious", "oracle"), ("oracle+whole_turns",) * 2]
)
def test_labels_do_not_judge_a_policy_that_reads_them(tmp_path, pair):
    """Fault: ``--policy oracle`` with drawn labels missed 0 of 200, and so its public card said."""
    pi, pi_c = map(policy_names.policy_by_name, pair)
    with pytest.raises(ValueError, match="reads the labels that were to judge it"):
        judged_policies.judge_policies(
            tmp_path, tmp_path, judged_policies.PolicyPair((pi, pi_c), pair), texts=None
        )
    with pytest.raises(ValueError, match="must be oracle alone, or with whole_turns"):
        policy_names.policy_by_name(f"{pair[0]}+{pair[1]}+oracle+names")


@pytest.mark.parametrize("name", ["everything", "cautious+everything+whole_turns", "of another"])
def test_what_flags_everything_makes_an_empty_message_private(name):
    """Fault: an empty message has no character to flag, so it was public, and a run had a public
    phase in one of two neighbouring texts. Masked, it now reads like a message that is a secret."""
    if name == "of another":
        total = Policy(
            name, lambda points: [(Secret("x", 0, len(p.text)),) * bool(p.text) for p in points],
            flags_everything=True,
        )  # fmt: skip
    else:
        total = policy_names.policy_by_name(name)
    pi = policy.stable_under_masking(total) if name == "of another" else total
    prepared = []
    for text in ("", "Ada"):
        turns = [Turn("", said) for said in ("hello", text, "bye")]
        points = [data_points.join_turns(f"d/{k}", "u", [t], [""]) for k, t in enumerate(turns)]
        for flags in (pi(points), None):
            prepared.append(preparation.prepare_points(points, flags, total(points)))
            assert prepared[-1].public == () and len(prepared[-1].private) == 3
    empty, secret = (prepared[k].private[1] for k in (0, 2))
    assert empty == secret and data_points.find_turns(empty) == data_points.find_turns(secret)


def test_what_flags_everything_flags_masks_too():
    """Fault: with a template the policy "everything" was cut around a mask. Three masks stood where
    one stands for the secret, so each secret left a trace, and the rate was 0 by definition."""
    turn = Turn("USR", "I am Ada here", (Secret("name", 5, 8),))
    (point,) = [data_points.join_turns("d/0", "u", [turn], ["<|user|> "])]
    everything = replace(regex_policies.everything_policy, own_words=True)
    (judged,) = rates.RateCounter(everything, everything).add([point])
    assert judged.trace == bool(
        rates.measure_rates([point], everything, everything).trace.upper_bound
    )
