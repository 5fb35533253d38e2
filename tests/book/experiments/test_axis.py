"""One axis: what is proved bounds what is audited, and a method that leaks is seen to leak."""

import numpy as np
import pandas as pd
import pytest

from crtbook import axis, grids, settings, tables, utility
from crtbook.axis import ARMS, AxisStudy
from crtbook.figures import axis as figure
from crtlib.attacks import membership, membership_scores
from crtlib.attacks.attack import Subject
from crtlib.training import methods


def test_every_method_of_the_papers_stands_on_the_axis():
    named = {"sgd", "dedup", "dpsgd", "user_dpsgd", "selective", "jft", "crt", "lp_weighted"}
    assert {arm.method for arm in ARMS} == named | {"greedy"} <= set(methods.METHODS)
    studies = grids.axis_grid(settings.load_settings("axis", seeds=1))
    assert [study.method for study in studies] == [arm.method for arm in ARMS]
    assert len({study.key for study in studies}) == len(ARMS)


@pytest.mark.parametrize("method", ["lp_weighted", "greedy", "user_dpsgd", "jft"])
def test_every_method_is_a_run_like_the_others(method):
    base = {"dialogues": 24, "heldout": 10, "epochs": 1, "embedding": 8, "hidden": 8, "canaries": 2}
    study = AxisStudy(method=method, model="lstm", gamma=0.0, seed=0, **base)
    rows = {metric: value for metric, _, _, value in study.run(axis.Desk())}
    assert 0 <= rows["audited"] <= rows["proved_swap"] < np.inf
    assert rows["proved_add_or_remove"] < rows["proved_replace"]
    assert {"mia_rmia_accuracy", "mia_zlib_accuracy", "exposure"} <= set(rows)


def test_an_audit_of_a_model_that_remembers_refutes_and_of_another_does_not(monkeypatch):
    n = 200
    probe = membership.MembershipProbe(("a",) * n, ("b",) * n, (True,) * n)
    monkeypatch.setattr(membership, "probe_of_subject", lambda subject: probe)
    subject = Subject(
        model=None, tokenizer=None, points=(), read=(), others=(), canaries=(), seed=0
    )
    rng = np.random.default_rng(0)
    for gap, least, most in ((3.0, 2.0, 8.0), (0.0, 0.0, 0.5)):
        losses = np.concatenate([rng.normal(0, 1, n), rng.normal(gap, 1, n)])
        score = membership_scores.MembershipScore(name="toy", label="toy", of=lambda _, x=losses: x)
        monkeypatch.setattr(membership_scores, "MEMBERSHIP_SCORES", (score,))
        monkeypatch.setattr(membership_scores, "read_texts", lambda *_, **__: None)
        assert least <= axis._audit_in_one_run(subject, 1e-5) <= most


def test_an_audit_above_the_proof_breaks_the_order():
    rows = pd.DataFrame({"label": ["good", "bad"], "proved_swap": [1.0, 0.5], "audited": 0.8})
    rows = rows.assign(accuracy=0.5, strongest_high=0.52)
    assert axis.check_order(rows).holds.tolist() == [True, False]
    # an attack that is wrong more often than chance allows: the probe is broken
    assert axis.check_order(rows.assign(accuracy=[0.49, 0.4])).holds.tolist() == [True, False]
    assert axis.check_order(rows.assign(accuracy=[0.47, 0.5])).holds.tolist() == [False, False]


def test_the_order_holds_where_it_was_recorded():
    rows = axis.summarise_arms(tables.load_recorded("axis_laptop"))
    order = axis.check_order(rows)
    assert len(rows) == len(ARMS) and order.holds.all()
    of = rows.set_index("arm")
    assert of.audited["raw"] > 1  # who reads everything in clear is refuted a small epsilon
    assert np.isfinite(of.proved_replace).sum() == 5


def test_every_method_has_a_colour_of_its_own():
    rows = pd.DataFrame({"arm": [arm.name for arm in ARMS], "label": [arm.label for arm in ARMS]})
    colors = figure._list_colors(rows)
    assert len(set(colors)) == len(ARMS) - 1  # raw text and redacted text: both without privacy


def test_jft_proves_nothing_of_what_its_policy_misses():
    given = {"sampling_probability": 0.1, "noise_multiplier": 1.1, "steps": 10, "delta": 1e-5,
             "neighbouring_relation": "add_or_remove"}  # fmt: skip
    least = utility.epsilon_after_steps("user_dpsgd", gamma=0.3, **given)
    assert utility.epsilon_after_steps("jft", gamma=0.0, **given) == utility.epsilon_after_steps(
        "dpsgd", gamma=0.0, **given
    )
    assert utility.epsilon_after_steps("jft", gamma=0.1, **given) == np.inf > least > 0
