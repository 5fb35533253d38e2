"""A certified model that tests of several files tamper with."""

import pytest

from confide.reports import model_card
from tests import trainings
from tests.texts import write_simulated_text


@pytest.fixture(scope="session")
def certified_model(tmp_path_factory):
    """A CRT run with its certificate, in a registry of its own."""
    home = tmp_path_factory.mktemp("certified")
    text = write_simulated_text(home / "c.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", str(tmp_path_factory.mktemp("registry")))
        trainings.train(text, out=home / "m", card=model_card.render_model_card, **trainings.CRT)
        trainings.make_certificate(home / "m", home / "m.html")
    return home
