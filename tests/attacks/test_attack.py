"""An attack is a value: registered where it is defined, measured and summed up like any other."""

from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest

from crtlib import plugins
from crtlib.attacks import attack, attack_registry, exposure, membership
from crtlib.attacks.attack import Attack, Subject, summarise_over_seeds
from crtlib.intervals import ChanceBand
from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.text import canaries, customersim, data_points, tokenizer

COLUMNS = {"model", "method", "gamma", "mean", "std", "seeds", "low", "high"}


@pytest.fixture(scope="module")
def subject():
    points = tuple(data_points.make_points(customersim.simulate_corpus(24, 0), unit="turn"))
    others = tuple(data_points.make_points(customersim.simulate_corpus(24, 1), unit="turn"))
    bpe = tokenizer.train_bpe([p.text for p in points if not p.secrets], vocab_size=320)
    model = build_model(ModelSpec("lstm", vocab_size=bpe.vocab_size, embedding=8, hidden=8), seed=0)
    return Subject(
        model=model, tokenizer=bpe, points=points, read=points, others=others,
        canaries=canaries.make_canaries(3, seed=0), seed=5,
    )  # fmt: skip


def registered(**fields):
    return attack.register_attack(
        Attack(**{"label": "", "statistic": "", "summary": pd.DataFrame, **fields})
    )


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr(attack, "ATTACKS", dict(attack.ATTACKS))
    monkeypatch.setattr(attack_registry, "ATTACKS", attack.ATTACKS)
    attack_registry._load_plugin_attacks.cache_clear()
    yield attack.ATTACKS
    attack_registry._load_plugin_attacks.cache_clear()


def test_rows_are_those_of_the_attacks_own_functions(subject):
    probe = membership.build_probe(subject.points, subject.read, subject.others, seed=5)
    assert len(probe.members) > 10
    direct = membership.measure_membership(subject.model, subject.tokenizer, probe, seed=5)
    known = attack_registry.all_attacks()
    assert known["membership"].measure(subject) == [(m, 0, value) for m, value in direct]
    bits = exposure.canary_exposure(subject.model, subject.tokenizer, subject.canaries)
    rows = known["exposure"].measure(subject)
    assert rows == [("exposure", k, x) for k, x in enumerate(bits.tolist())]


def test_every_summary_has_the_promised_columns(subject):
    measured = [
        row for each in attack_registry.all_attacks().values() for row in each.measure(subject)
    ]
    runs = [("sgd", 0.1, 0), ("sgd", 0.1, 1), ("sgd", 0.5, 0), ("dpsgd", 0.0, 0)]
    names = ["model", "method", "gamma", "seed", "metric", "item", "value"]
    rows = [["lstm", *run, *row] for run in runs for row in measured]
    for each in attack_registry.all_attacks().values():
        summary = each.summary(pd.DataFrame(rows, columns=names))
        assert set(summary.columns) >= COLUMNS, each.name
        cells = summary[summary.method == "dpsgd"]  # its one result at every gamma
        assert set(cells.gamma) == {0.1, 0.5}
        assert each.label and each.statistic
        banded = summary.dropna(subset="low")
        assert len(banded) and (banded.low <= banded.high).all()


def test_the_luckiest_canary_is_judged_by_its_own_band():
    cell = {"model": "lstm", "method": "crt", "metric": "exposure"}
    table = pd.DataFrame(
        {**cell, "gamma": g, "seed": s, "item": k, "value": float(k + s)}
        for g in (0.1, 0.2)
        for s in range(3)
        for k in range(4)
    )
    rows = exposure.EXPOSURE_ATTACK.summary(table)
    assert rows["mean"].tolist() == [4.0, 4.0] and rows.seeds.tolist() == [3, 3]
    band = exposure.exposure_chance_band(canaries=4, seeds=3, points=2)
    assert np.allclose(rows[["low", "high"]], [band.low, band.high])


def test_a_stranger_adds_an_attack_in_one_file(registry, tmp_path, monkeypatch):
    (tmp_path / "strange_attack.py").write_text(
        "from crtlib.attacks.attack import Attack, summarise_over_seeds, register_attack\n"
        "from crtlib.intervals import ChanceBand\n"
        "register_attack(Attack(name='strange', label='Strange', statistic='points',\n"
        "    measure=lambda subject: [('points', 0, float(len(subject.read)))],\n"
        "    summary=lambda table: summarise_over_seeds(table, metric='points',\n"
        "        band=lambda seeds, points: ChanceBand(0, -1, 1, 0.95))))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("strange", "strange_attack", attack_registry.ATTACK_ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    assert list(attack_registry.all_attacks()) == [
        *(a.name for a in attack_registry.BUILT_IN_ATTACKS),
        "strange",
    ]


def test_a_plugin_that_is_missing_is_named(registry, monkeypatch):
    point = EntryPoint("gone", "no_such_module_here", attack_registry.ATTACK_ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    with pytest.raises(
        ValueError, match=r"crtlib\.attacks='gone': cannot be loaded from a package"
    ):
        attack_registry.all_attacks()


def test_a_name_is_given_once(registry):
    def measure(subject):
        return []

    def other(subject):
        return []

    registered(name="toy", measure=measure)
    registered(name="toy", measure=measure)  # the same file, imported again
    with pytest.raises(ValueError, match="attack='toy': must be a new name"):
        registered(name="toy", measure=other)


def test_a_subject_shows_no_text(subject):
    assert "USR" not in repr(subject) and subject.canaries[0] not in repr(subject)


def test_spread_is_that_of_the_runs():
    table = pd.DataFrame(
        {"model": "m", "method": "a", "gamma": 0.0, "seed": [0, 0, 1], "metric": "x",
         "item": [0, 1, 0], "value": [1.0, 3.0, 6.0]}
    )  # fmt: skip
    (row,) = summarise_over_seeds(
        table, metric="x", band=lambda s, p: ChanceBand(0, -s, p, 0.9)
    ).itertuples()
    assert (row.mean, row.seeds, row.low, row.high) == (4.0, 2, -2, 1)
    assert row.std == pytest.approx(np.sqrt(8))
