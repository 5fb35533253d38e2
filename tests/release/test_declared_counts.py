"""What a release tells about private points by numbers is rounded, and declared."""

import json
from dataclasses import replace

from confide.release import certificate_parts
from confide.training import study_of_text, training_record
from crtlib.accounting.guarantees import BoundedRate, Guarantee
from crtlib.studies import study_data
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, make_certificate


def test_a_choice_among_trainings_is_declared(tmp_path):
    """By held-out text, which no noise protects: one message there chose the model."""
    trainings.train(
        write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT | {"trials": 4}
    )
    page = make_certificate(tmp_path / "m", tmp_path / "m.html")
    assert [d["bits"] for d in page["declared"] if "compared" in d["of"]] == [2.0]


def test_the_public_page_has_no_row_of_what_was_found_and_declares_its_perplexity(certified_model):
    """ "found: at most 0.5", where every secret that was found left a trace. The card had four
    digits of the perplexity on held-out messages, which is 3.7 bits about one of them."""
    made = json.loads((certified_model / "m.json").read_text())
    assert {row["who"] for row in made["right_guess"]} <= {"random", "missed", "public", "user"}
    _, declared = sorted(made["declared"], key=lambda d: d["of"], reverse=True)
    low, high = declared["value"].split(" to ")
    assert float(high) == 2 * float(low) and 3 < declared["bits"] < 4
    card = (certified_model / "m" / "README.md").read_text()
    exact = {
        n: v
        for n, _, _, v in json.loads((certified_model / "m.work/results.json").read_text())["rows"]
    }
    assert declared["value"] in card and f"{exact['test_ppl']:.4g}"[:4] not in card
    assert "Declared public" in (certified_model / "m.html").read_text()
    assert (
        certificate_parts.EXACT_COUNTS_NOTE in made["treated_as_public"]
        and certificate_parts.EXACT_COUNTS_NOTE in (certified_model / "m.html").read_text()
    )


def test_a_card_is_told_what_is_declared_and_nothing_more_exact():
    """ "Declared public (together at most 10.6 bits): held-out perplexity, 128 to 256", and a card
    of one's own had the bits a character with all their digits, which is that perplexity."""
    given = []
    facts = {"perplexity": 133.7, "bits_per_character": 8.8263, "held_out": True, "points": 3}
    texts = training_record._public_texts({}, facts, lambda told: given.append(told) or "# m")
    assert given == [
        {"perplexity": "128 to 256", "bits_per_character": None, "held_out": True, "points": 3}
    ]
    (heard,) = texts["README.md"].sources
    assert heard.value == "128 to 256"


def test_what_leaves_depends_on_the_number_of_private_points_only_as_it_is_declared(tmp_path):
    """Q = B / n, delta and the divisor stood in release.json and on the card with all their
    digits, and where duplicates are dropped n tells of one message."""
    study = study_of_text.build_study(
        write_simulated_text(tmp_path / "c.jsonl"), policy="regex:customersim", unit="turn"
    )
    data = study_data.prepare_data(study, public_words=True)
    private = data.prepared.private * 40

    def sized(count, **named):
        some = replace(data, prepared=replace(data.prepared, private=private[:count]))
        return study_of_text.choose_hyperparameters_by_size(study, some, named)

    for named in ({}, {"batch_size": 16}, {"sampling_probability": 0.2}):
        assert sized(96, **named) == sized(97, **named) == sized(111, **named)
        assert sized(96, **named) != sized(112, **named)
    assert sized(111, batch_size=16).sampling_probability == 16 / 96
    assert sized(1001).delta <= 0.1 / 1001


def test_a_release_declares_the_rounded_number_of_its_private_points(certified_model):
    made = json.loads((certified_model / "m.json").read_text())
    (points,) = [d for d in made["declared"] if d["of"] == "number of private points"]
    (phase,) = [p for p in made["mechanism"]["phases"] if p["kind"] == "private"]
    low, high = map(int, points["value"].split(" to "))
    exact = {
        n: v
        for n, _, _, v in json.loads((certified_model / "m.work/results.json").read_text())["rows"]
    }
    assert low == phase["points"] <= exact["n_private"] < high <= 1.25 * low
    chosen = json.loads((certified_model / "m" / "experiment.json").read_text())
    assert chosen["normaliser"] == chosen["sampling_probability"] * low
    assert (
        "rounded number of private points" in (certified_model / "m" / "guarantee.txt").read_text()
    )


def test_counts_of_labels_are_named_wherever_they_stand(certified_model):
    """guarantee.txt had "measured: 6 of 8"; the certificate alone said that it is known."""
    said = (certified_model / "m" / "guarantee.txt").read_text()
    assert (
        "measured: " in said
        and certificate_parts.EXACT_COUNTS_NOTE in said
        and "labels" in certificate_parts.EXACT_COUNTS_NOTE
    )
    for rate, named in ((BoundedRate.measured(6, 8), True), (BoundedRate(0.1), False)):
        text = str(Guarantee(1.0, 1e-3, "turn", "replace", "pld", gamma=rate, public="all else"))
        assert ("treated as public: all else, and the counts of labels" in text) == named
