"""A method of another package is accounted by the steps that ran, or has no promise."""

import functools
from dataclasses import replace

import pytest

from confide.training import record_sources
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.accounting.guarantees import BoundedRate
from crtlib.training import methods, schedules
from crtlib.training.methods import GuaranteeTerms
from crtlib.training.phases import PrivatePhase, PublicPhase
from tests import trainings
from tests.texts import write_simulated_text
from tests.trainings import CRT, make_certificate


def test_what_ran_is_charged_whatever_a_method_says_of_itself(tmp_path, monkeypatch):
    """Ordinary steps on the private part before those of CRT are charged as such, and a phase of a
    class of its own, which could do anything, voids the certificate. Once: a method of a package
    could do both."""

    class Quiet(PublicPhase):
        pass

    warm = schedules.sgd_phases(epochs=1, batch_size=8, learning_rate=0.1)
    quiet = [Quiet(1, "public", 1, 8, 0.1)]
    seen = {}
    for name, before in (("warm", warm), ("quiet", quiet), ("plain", [])):
        phases = functools.partial(lambda b, c: [*b, *methods.CRT.phases(c)], before)
        monkeypatch.setitem(methods.METHODS, name, replace(methods.CRT, name=name, phases=phases))
        path = write_simulated_text(tmp_path / f"{name}.jsonl")
        trainings.train(path, out=tmp_path / name, **CRT | {"method": name})
        seen[name] = make_certificate(tmp_path / name, tmp_path / f"{name}.html")
    assert [seen[n]["verdict"] for n in ("warm", "quiet", "plain")] == ["holds", "void", "holds"]
    texts = [(tmp_path / n / "release.json").read_text() for n in ("warm", "plain")]
    assert ["redacted text" in text for text in texts] == [True, False]
    assert seen["warm"]["mechanism"]["phases"][0]["points"] > 0


def test_points_with_a_probability_each_are_accounted_by_a_plan_alone():
    """Once: a method of a package had a second phase of such steps, and its certificate composed
    the noise of the first alone."""
    weighted = PrivatePhase(2, (1.0, 0.5), 20, 0.5, 1.0, 1.0, 0.1)
    plain = replace(weighted, sampling_probability=0.5)
    said = [
        [source.kind for source in record_sources._sources_of_phase(phase, None, None)]
        for phase in (weighted, plain)
    ]
    assert said == [["raw"], []]


@pytest.mark.parametrize("method", ["dpsgd", "user_dpsgd", "jft", "crt"])
def test_a_promise_names_the_accountant_whose_bound_it_prints(method):
    """Where the accountant that was asked has a larger bound than another, that one is printed."""
    whisper = SampledGaussian(1.0, 20.0, 24)
    certain = BoundedRate(0.0)
    terms = GuaranteeTerms(
        gamma=certain,
        delta2=certain,
        noise_delta=1e-5,
        unit="turn",
        accountant="rdp",
        neighbouring_relation="replace",
        public="",
    )
    bound = privacy_cost.epsilon_and_accountant(
        whisper, delta=1e-5, accountant="rdp", neighbouring_relation="replace"
    )
    promise = methods.method_by_name(method).promise((whisper,), terms)
    assert bound.accountant != "rdp" and promise.accountant == bound.accountant
