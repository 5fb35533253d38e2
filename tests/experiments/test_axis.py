"""One axis: what is proved bounds what is audited, and a method that leaks is seen to leak."""

import numpy as np
import pandas as pd
import pytest

from crtlib.attacks.attack import Subject
from crtlib.experiments import axis, grids, settings
from crtlib.experiments.axis import ARMS, AxisStudy
from crtlib.training import methods


def test_every_method_of_the_papers_stands_on_the_axis():
    assert {"sgd", "dpsgd", "selective", "crt", "lp_weighted"} <= {arm.method for arm in ARMS}
    assert {arm.method for arm in ARMS} <= set(methods.METHODS)
    studies = grids.axis_grid(settings.load("axis", seeds=1))
    assert [study.method for study in studies] == [arm.method for arm in ARMS]
    assert len({study.key for study in studies}) == len(ARMS)


def test_lp_weighted_training_is_a_run_like_the_others():
    base = {"dialogues": 24, "heldout": 10, "epochs": 1, "embedding": 8, "hidden": 8, "canaries": 2}
    study = AxisStudy(method="lp_weighted", model="lstm", gamma=0.0, seed=0, **base)
    rows = {metric: value for metric, _, _, value in study.run(axis.Desk())}
    assert 0 <= rows["audited"] <= rows["proved_swap"] < np.inf
    assert rows["proved_add_or_remove"] < rows["proved_replace"]
    assert {"mia_rmia_accuracy", "mia_zlib_accuracy", "exposure"} <= set(rows)


def test_an_audit_of_a_model_that_remembers_refutes_and_of_another_does_not(monkeypatch):
    n = 200
    probe = axis.membership.Probe(("a",) * n, ("b",) * n, (True,) * n)
    monkeypatch.setattr(axis.membership, "attacked", lambda subject: probe)
    subject = Subject(
        model=None, tokenizer=None, points=(), read=(), others=(), canaries=(), seed=0
    )
    rng = np.random.default_rng(0)
    for gap, least, most in ((3.0, 2.0, 8.0), (0.0, 0.0, 0.5)):
        losses = np.concatenate([rng.normal(0, 1, n), rng.normal(gap, 1, n)])
        score = axis.scores.Score(name="toy", label="toy", of=lambda _, x=losses: x)
        monkeypatch.setattr(axis.scores, "SCORES", (score,))
        monkeypatch.setattr(axis.scores, "read", lambda *_, **__: None)
        assert least <= axis._audited(subject, 1e-5) <= most


def test_an_audit_above_the_proof_breaks_the_order():
    rows = pd.DataFrame({"label": ["good", "bad"], "proved_swap": [1.0, 0.5], "audited": 0.8})
    assert axis.ordered(rows).holds.tolist() == [True, False]


@pytest.mark.parametrize("arm", [arm.name for arm in ARMS if arm.method not in ("sgd", "dedup")])
def test_every_arm_has_a_name_that_the_figures_know(arm):
    from crtlib.figures.theme import METHOD_STYLE

    assert arm in METHOD_STYLE
