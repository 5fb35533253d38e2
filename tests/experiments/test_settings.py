"""Profiles change sizes, never the method; parameters are checked before anything runs."""

import pytest

from crtlib.experiments import settings as settings_studies
from crtlib.experiments import sweeps

SIZES = {"dialogues", "gammas", "ablation_gammas", "seeds", "shapes", "trials", "models"}
SIZES |= {"corpora", "data", "choice_seeds"}


def test_profiles_differ_in_sizes_only():
    assert settings_studies.profile_names()[:2] == ["quick", "laptop"]
    quick = settings_studies.load("quick")
    for name in settings_studies.profile_names():
        other = settings_studies.load(name)
        assert set(other) == set(quick)
        for notebook, section in other.items():
            assert set(section) == set(quick[notebook])
            for key in set(section) - SIZES:
                assert section[key] == quick[notebook][key], (name, notebook, key)
            for corpus, data in section.get("data", {}).items():
                for key in ("policy", "conservative"):
                    assert data[key] == quick[notebook]["data"][corpus][key]


def test_every_grid_of_every_profile_is_made_of_valid_experiments():
    for name in settings_studies.profile_names():
        settings = settings_studies.parameters({"profile": name}, "crt")
        grid = sweeps.crt_grid(settings, hyperparameters=lambda *_: {})
        assert {e.method for e in grid} == set(settings_studies.METHODS)
        assert {e.seed for e in grid} == set(range(settings.seeds))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamas": [0.1]}, "gamas: unknown; allowed are profile, ablation_gammas, ablations"),
        ({"gammas": []}, r"gammas=\[\]: must be a list of numbers in \[0, 1\]"),
        ({"gammas": "[0.1"}, "gammas='.0.1': must be a list"),
        ({"gammas": [float("nan")]}, "must be a list of numbers"),
        ({"seeds": 0}, "seeds=0: must be a whole number of at least 1"),
        ({"seeds": True}, "seeds=True: must be"),
        ({"methods": ["sdg"]}, "methods=.'sdg'.: must be a list of some of sgd"),
        ({"delta": 1}, r"delta=1: must be a number in \(0, 1\)"),
        ({"epsilon": -1}, "epsilon=-1: must be a positive number"),
        ({"profile": "huge"}, "profile='huge': must be one of quick, laptop"),
        ({"shapes": {}}, "shapes: unknown"),
    ],
)
def test_bad_parameters_are_named(given, message):
    with pytest.raises(settings_studies.ParameterError, match=message):
        settings_studies.parameters(given, "crt")


def test_strings_from_papermill_are_read_as_json():
    settings = settings_studies.parameters({"gammas": "[0.05]", "seeds": "3", "store": "x"}, "crt")
    assert (settings.gammas, settings.seeds, settings.store) == ([0.05], 3, "x")
