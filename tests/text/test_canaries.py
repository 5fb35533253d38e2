"""Canaries are where and what they should be."""

from crtlib.screening import regex_policies
from crtlib.text import canaries, customersim, data_points
from crtlib.text.records import Corpus

CORPUS = customersim.simulate_corpus(40, 0, "paper")


def test_canaries_are_inserted_as_asked_and_leave_the_rest_alone():
    secrets = canaries.make_canaries(10, seed=3)
    assert len(set(secrets)) == 10
    planted = canaries.insert_canaries(CORPUS, secrets, copies=20, seed=3)
    assert len(planted) == len(CORPUS) + 200
    assert [d for d in planted.dialogues if not d.id.startswith("canary")] == list(CORPUS.dialogues)
    points = data_points.make_points(planted, unit="turn")
    for secret in secrets:
        copies = [p for p in points if p.text == canaries.canary_prefix() + secret]
        assert len(copies) == 20
        assert all(p.text[p.secrets[0].start :] == secret for p in copies)
    assert len({p.id for p in points}) == len(points)
    positions = [i for i, d in enumerate(planted.dialogues) if d.id.startswith("canary")]
    assert positions != list(range(200)) and min(positions) < 40 < max(positions)


def test_the_regex_policy_sees_every_canary():
    planted = canaries.insert_canaries(
        Corpus("c", ()), canaries.make_canaries(5, seed=0), copies=2, seed=0
    )
    points = data_points.make_points(planted, unit="turn")
    flagged = regex_policies.corpus_regex_policy()(points)
    assert [s[0].start for s in flagged] == [p.secrets[0].start for p in points]
