"""Sweeps by name: which section of a profile a change reaches."""

import re
from pathlib import Path

import pytest

from crtbook import settings, sweeps
from crtbook.commands import sweep


def test_help_lists_every_sweep_and_every_profile():
    said = " ".join(sweep.sweep.__doc__.split())
    listed = [
        set(re.split(r", | or ", re.search(rf"{start}: ([^.]*)\.", said)[1]))
        for start in ("Sweep", "Profile")
    ]
    profiles = Path(settings.__file__).with_name("profiles").glob("*.yml")
    assert listed == [set(sweeps.SWEEPS), {path.stem for path in profiles}]


def test_a_dotted_name_reaches_the_section_that_has_it_though_another_has_its_first_part():
    changes = {"shapes.lstm.epochs": "1", "shapes.lstm.snapshots": "[1]", "seeds": "1"}
    studies = sweeps.make_studies("leakage", "quick", changes)
    assert {study.epochs for study in studies if study.model == "lstm"} == {1}
    assert 1 not in {study.epochs for study in studies if study.model == "gru"}


def test_a_change_reaches_every_section_that_has_it():
    studies = sweeps.make_studies("leakage", "quick", {"seeds": "1", "dialogues": "70"})
    assert {study.dialogues for study in studies if study.corpus == "customersim"} == {70}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shapes.lstn.epochs": "1"}, "shapes.lstn: unknown"),
        ({"nothing": "1"}, "nothing: unknown"),
        ({"shapes.lstm.epochs": "0"}, "shapes.lstm.epochs=0: must be"),
    ],
)
def test_a_name_that_no_section_has_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        sweeps.make_studies("leakage", "quick", changes)
