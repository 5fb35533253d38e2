"""Certificates that a sixth reader made lie, each of which is true now or refused."""

import json
import re
from dataclasses import replace

import pytest

from crtlib.experiments import own
from crtlib.experiments.advise import Advice, Row
from crtlib.screening import corpus as screening
from crtlib.screening import policies, policy, rates
from crtlib.text import jsonl, records, units
from crtlib.text.records import Secret, Turn
from crtlib.training import methods, schedules
from tests.release import test_false_certificates as earlier
from tests.release.test_fifth_reading import codes, learned

CRT, corpus, certificate = earlier.CRT, earlier.corpus, earlier.certificate


@pytest.mark.xfail(strict=True)
def test_a_conversation_is_a_cluster_whatever_its_name(tmp_path):
    """H. Of ids with a slash, as of files in folders, the last part was cut off: 100 conversations
    "2026/K" were one of 101, and "at most 5.4 of 100" was certified where 50 are left in clear."""
    talks, known = [], {}
    for k in range(100):
        for name, text in ((f"2026/{k}", f"my code is ZQ{k:06}"), (f"s{k}", f"my code is {k:08}")):
            spans = (Secret("id", 11, 19),)
            talks.append(records.Dialogue(name, f"u-{name}", (Turn("USR", text, spans),)))
            known[name] = spans
    jsonl.write_jsonl(talks, path := tmp_path / "c.jsonl")
    (tmp_path / "p.toml").write_text("[code]\npattern = '\\d{8}'\n")
    home = earlier.read(path, tmp_path / "labels", known, turns=150, seed=1, by="dialogue")
    found = policies.matching("eight digits", re.compile(r"\d{8}"))
    counter, _ = screening.judge(
        path, home, (found, policies.everything), names=("cautious", "everything"), unit="dialogue"
    )
    assert counter.rates().trace.of == 150


@pytest.mark.xfail(strict=True)
def test_labels_of_a_corpus_that_are_edited_judge_anew(tmp_path):
    """M. A secret that was found wanting lost its label, another of its turn kept it: judged 1,
    and no word of a choice. The fifth reading's mend is of folders of labels alone."""
    text = corpus(tmp_path / "c.jsonl")
    first = earlier.screened(text, tmp_path / "s1", "regex:multiwoz").judged
    rows = [json.loads(line) for line in text.read_text().splitlines()]
    for row in rows:
        for turn in row["turns"]:
            turn["secrets"] = turn["secrets"][-1:]
    text.write_text("".join(json.dumps(row) + "\n" for row in rows))
    second = earlier.screened(text, tmp_path / "s2", "regex:multiwoz").judged
    assert (first, second) == (1, 2)


@pytest.mark.xfail(strict=True)
def test_a_policy_that_says_it_flags_everything_is_held_to_it():
    """M. Another package's policy with ``total``: "public 0", and what it let pass was learned
    without noise."""
    liar = policy.Policy("company", lambda points: [() for _ in points], total=True)
    points = codes(0, [f"u{k}" for k in range(40)])
    try:
        found = rates.rates(points, policies.none, liar)
    except ValueError:
        return
    assert found.public.upper == 1


@pytest.mark.xfail(strict=True)
def test_what_flags_everything_flags_masks_too():
    """M. With a template the policy "everything" was cut around a mask: three masks where one stood
    for the secret, each secret left a trace, and the rate was 0 by definition."""
    turn = Turn("USR", "I am Ada here", (Secret("name", 5, 8),))
    (point,) = [units.joined("d/0", "u", [turn], ["<|user|> "])]
    everything = replace(policies.everything, own_words=True)
    (judged,) = rates.judge([point], everything, everything)
    assert judged.trace == bool(rates.rates([point], everything, everything).trace.upper)


@pytest.mark.xfail(strict=True)
def test_a_turn_that_taught_does_not_judge_with_other_spaces():
    """L. An export without names, of which the spaces at the ends were cut."""
    found = learned(codes(0, [""] * 40))
    points = codes(0, [f"u{k}" for k in range(40)])
    points = [replace(p, text=f" {p.text}", secrets=tuple(
        replace(s, start=s.start + 1, end=s.end + 1) for s in p.secrets)) for p in points]  # fmt: skip
    judged = rates.rates(points, found, policies.none)
    assert judged.trace.of == 0 or judged.trace.upper == 1


@pytest.mark.xfail(strict=True)
def test_what_is_void_says_so_in_all_its_files(tmp_path, monkeypatch):
    """M. guarantee.txt decides by itself what is void: of a method of another package, whose phase
    nobody knows, it promised, for everybody to read, what the certificate does not."""

    class Odd(schedules.PrivatePhase):
        pass

    def phases(c):
        made = schedules.dpsgd(epochs=c.epochs, private=c.private)
        return [Odd(**vars(p)) for p in made]

    method = replace(methods.DPSGD, name="odd", label="odd", phases=phases)
    monkeypatch.setitem(methods.METHODS, "odd", method)
    text = corpus(tmp_path / "c.jsonl")
    made = own.train(text, out=tmp_path / "m", method="odd", epochs=1, width=4, epsilon=3.0)
    assert certificate(tmp_path / "m", tmp_path / "m.html")["verdict"] == "void"
    assert not made.holds and "void" in (tmp_path / "m" / "guarantee.txt").read_text()


@pytest.mark.xfail(strict=True)
def test_an_error_names_no_person(tmp_path, run):
    """M. Where people are the unit a point is called as its person, and messages named the point:
    a slow expression, or spans of another package that do not fit."""
    text = corpus(tmp_path / "c.jsonl", people="Ada Lovelace ")
    bad = policy.Policy("company", lambda points: [(Secret("x", 5, 2),) for _ in points])
    (point, *_) = units.points(records.Corpus("", tuple(jsonl.stream(text))), "user")
    with pytest.raises(ValueError) as error:
        bad([point])
    assert "Lovelace" not in str(error.value)


@pytest.mark.xfail(strict=True)
def test_advice_rounds_bounds_up():
    """L. ``crtlib advise`` printed bounds to the nearest."""
    rate = {"upper": 0.022449, "count": 0, "of": 1, "rate": 0.0, "how": "one_per_cluster"}
    row = Row("a", "b", "turn", False, 3.0, 1.0, 0.5, 0.5, {"trace": rate, "public": rate}, [],
              0.50949, None)  # fmt: skip
    said = Advice((row,), None, "", (), 1, 1, 1).text()
    assert "2.25 %" in said and "51.0" in said
