"""screen and teach as library calls: what they say of the policies, and what they write."""

import json

import pytest

from crtlib.screening import policies, rates, screen, tagger, teach
from crtlib.screening.teaching import shift, teaching
from crtlib.text import canaries, customersim, jsonl, units
from crtlib.text.records import Point, Secret

CORPUS = customersim.simulate(40, 0)
POINTS = units.points(CORPUS, unit="turn")
SOME = POINTS[:100]
UNLABELLED = [Point(p.id, p.user, p.text, (), p.spoken) for p in POINTS]


def test_screening_says_the_three_rates():
    done = screen.screen(
        CORPUS, policy="regex:customersim", conservative="regex:customersim", gamma=0.2, seed=1
    )
    pi, pi_c = policies.miss(policies.regex(), 0.2, 1), policies.regex()
    assert done.rates == rates.rates(POINTS, pi, pi_c, seed=1)
    assert 0 < done.rates.trace.count < done.rates.trace.of == 40
    assert done.prepared.missed_secrets == done.summary["missed_secrets"] > 0
    summary = json.loads(json.dumps(done.summary))
    for name in rates.NAMES:
        assert summary["rates"][name] == getattr(done.rates, name).to_json()
    assert summary["shift"] is None and summary["labels"]["cluster"] == "user"
    assert summary["policy"] == "regex:customersim" and summary["gamma"] == 0.2
    assert all(len(line) <= 80 for line in done.rates.table().splitlines())
    assert "at most" in done.text() and "CustomerSim" not in done.text()


def test_without_labels_rates_are_unknown_and_that_is_said():
    done = screen.screen(UNLABELLED, policy="regex:customersim", conservative="none")
    assert done.summary["rates"]["trace"] == {
        "count": 0, "of": 0, "rate": None, "upper": 1.0, "how": "unknown"
    }  # fmt: skip
    assert done.summary["missed_secrets"] is None and "recall" not in done.summary
    expected = "without labels nothing is known of what was missed, and a certificate will be void"
    assert expected in done.notes() and f"note: {expected}" in done.text()


def test_labels_of_other_points_judge_and_do_not_enter_the_corpus():
    done = screen.screen(
        UNLABELLED,
        policy=policies.regex(),
        conservative="everything",
        labels=POINTS[:100],
        judged=2,
    )
    expected = rates.rates(POINTS[:100], policies.regex(), policies.everything, judged=2)
    assert done.rates == expected and done.summary["labels"]["alpha"] == 0.0125
    assert not any(p.secrets for p in done.points)
    assert "no point is public, so CRT is DP-SGD on redacted text" in done.notes()


def test_a_taught_policy_prints_how_unlike_the_text_is_and_is_not_judged_by_its_teachers():
    taught = teach.teach(CORPUS, epochs=1, heldout=0.25)
    pi, pi_c = tagger.redacting(taught.tagger), tagger.conservative(taught.tagger)
    alike = screen.screen(CORPUS, policy=pi, conservative=pi_c)
    assert alike.rates.trace.of == 10 and alike.rates.left_out > 0
    assert len(alike.shift) == 1
    other = [Point(str(i), "u", f"Wherefore ART THOU, RoMeO{i}xX?") for i in range(9)]
    unlike = screen.screen(other, policy=pi, conservative=pi_c)
    assert unlike.shift[0].words > 0.9 and unlike.shift[0].shapes > 0.2 > alike.shift[0].words
    assert unlike.summary["shift"][0]["words"] == unlike.shift[0].words
    assert any("its numbers are for text like its labels" in note for note in unlike.notes())


def test_shift_counts_unseen_words_and_shapes():
    known = teaching([Point("0", "u", "USR: see Ada at 12", (), ((5, 18),))])
    other = Point("1", "u", "USR: see McKay at 99", (), ((5, 20),))
    found = shift([other], known)
    assert (found.words, found.shapes, found.of) == (1 / 4, 1 / 4, 4)
    assert shift([Point("2", "u", "")], known).of == 0


def test_teaching_says_what_both_operating_points_miss(tmp_path):
    jsonl.write_jsonl(CORPUS, tmp_path / "c.jsonl")
    taught = teach.make(tmp_path / "c.jsonl", tmp_path / "t", epochs=2, seed=3)
    again = teach.make(tmp_path / "c.jsonl", tmp_path / "t", epochs=2, seed=3)
    assert again is None and (tmp_path / "t" / "tagger.json").stat().st_mode & 0o777 == 0o600
    summary = json.loads((tmp_path / "t" / "summary.json").read_text())
    assert summary["taught_points"] + summary["judged_points"] == len(POINTS)
    for name in ("pi", "pi_c"):
        assert summary[name]["rates"]["trace"]["of"] == round(0.3 * 40)
        assert summary[name]["rates"] == taught.rates[name].to_json()
        assert 0 <= summary[name]["labels_changed_by_a_mask"] <= summary[name]["secrets"]
    again = tagger.load(tmp_path / "t")
    assert again.taught_by == taught.tagger.taught_by
    assert taught.text().count("one secret a user") == 2
    text = (tmp_path / "t" / "tagger.json").read_text() + (
        tmp_path / "t" / "summary.json"
    ).read_text()
    assert not any(p.text[s.start : s.end] in text for p in POINTS for s in p.secrets)
    judged = units.points(customersim.simulate(10, 9), unit="turn")
    other = teach.teach(POINTS, judges=judged, epochs=1)
    assert other.rates["pi"].trace.of == 10 and other.summary["taught_points"] == len(POINTS)


def test_canaries_that_were_planted_do_not_judge():
    planted = canaries.insert(CORPUS, canaries.make(5, seed=1), copies=20, seed=1)
    done = screen.screen(planted, policy="regex:customersim", conservative="none")
    assert done.rates.trace.of == 40


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: screen.screen(CORPUS, policy="x"), "policy='x': must be one of"),
        (lambda: screen.screen(CORPUS, policy="none", unit="word"), "unit='word'"),
        (lambda: screen.screen(CORPUS, policy="none", gamma=2), r"gamma=2: must be in \[0, 1\]"),
        (lambda: screen.screen([], policy="none"), "corpus is empty"),
        (lambda: screen.screen(CORPUS, policy="none", dedup_by="x"), "method='x'"),
        (lambda: teach.teach(CORPUS, heldout=1.0), r"heldout=1.0: must be in \(0, 1\)"),
        (lambda: teach.teach(UNLABELLED), "none holds a labelled secret"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_policy_with_labels_for_half_a_secret_leaves_its_pieces_in_the_summary():
    half = policies.Policy(
        "half", lambda ps: [[Secret("x", 5, 6)] if p.secrets else [] for p in ps]
    )
    some = [Point("0", "u", "pin: 7351", (Secret("pin", 5, 9),))]
    done = screen.screen(some, policy=half, conservative="none")
    assert done.summary["missed_secrets"] == 1 == done.rates.trace.count
    assert done.summary["secrets_in_public"] == 0 == done.rates.public.count
