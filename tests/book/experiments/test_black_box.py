"""The recorded audits of real trainings: what the page says of them is what they show."""

from pathlib import Path

from crtbook import black_box, tables

PAGE = Path(__file__).resolve().parents[3] / "book" / "guarantees.md"


def test_the_page_shows_the_recorded_trainings():
    part = PAGE.read_text("utf-8").split("**What an audit of a real training sees.**")[1]
    part = part.split("**Planted faults.**")[0]
    lines = [line for line in part.splitlines() if line[:1] == "|"][2:]
    assert lines == black_box.format_rows(tables.load_recorded("black_box"))


def test_no_honest_training_was_refuted_and_selective_noise_was():
    recorded = tables.load_recorded("black_box")
    honest = recorded[recorded.part == "honest"]
    assert len(honest) == 40 and not honest.refuted.any()
    assert recorded.cpu_seconds.max() < 600
    refuted = recorded[recorded.method == "selective"]
    assert refuted.refuted.all() and (refuted.audited >= 2).all()
