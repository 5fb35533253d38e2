"""A plan or a record that its owner edited, and signed again, is refused before a step."""

import json

import pytest

from confide.release import certify, seal
from confide.training import secret_plans
from crtlib import outputs
from crtlib.text import corpora, customersim, jsonl
from tests import trainings
from tests.release.test_certify import TINY, corpus_in


@pytest.fixture(scope="module")
def run_home(tmp_path_factory):
    home = tmp_path_factory.mktemp("record")
    trainings.train(corpus_in(home), out=home / "m", method="crt", **TINY)
    return home


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("phases", [{}]), ("phases", [{"kind": "\ud800"}]), ("phases", [7]), ("rates", {}),
        ("model", {}), ("corpus", {"sha256": 7}), ("searched", {"trials": "x"}), ("delta", 1e999),
        ("delta", 7.0), ("canaries", {}), ("labels", {}), ("labels", None),
        ("policies", {"redacting": {}}), ("odometer", {}),
    ],
)  # fmt: skip
def test_a_record_that_was_signed_again_is_refused_in_one_line(run_home, tmp_path, name, new):
    path = run_home / "m.work" / "record.json"
    before = path.read_bytes()
    key = seal.ensure_signing_key(run_home / "talk.jsonl.odometer")
    try:
        path.write_text(json.dumps(seal.sign_value(json.loads(before) | {name: new}, key)))
        value = certify.write_certificate(
            run_home / "m", tmp_path / "c.html", secrets_per_person=(2,)
        )
        assert value["verdict"] != "holds" or name in ("phases", "canaries")
    except ValueError as error:
        assert "\n" not in str(error) and not (tmp_path / "c.html").exists()
    finally:
        path.write_bytes(before)


def plan(tmp_path, **changes):
    """A plan whose ``plan.json`` says something else, its marker made anew."""
    path = tmp_path / "talk.jsonl"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 3, "paper"), path)
    secret_plans.make_secret_plan(
        path, tmp_path / "plan", policy="regex:customersim", prior=0.01, posterior=0.3,
        steps=3, scales=(1.0,), neighbouring_relation="reference",
    )  # fmt: skip
    text = json.dumps(json.loads((tmp_path / "plan" / "plan.json").read_text()) | changes)
    (tmp_path / "plan" / "plan.json").write_text(text)
    marker = json.loads((tmp_path / "plan" / "crtlib.json").read_text())
    marker["files"]["plan.json"] = outputs.hash_file(tmp_path / "plan" / "plan.json")
    del marker["sum"]
    marker["sum"] = outputs._marker_checksum(marker)
    (tmp_path / "plan" / "crtlib.json").write_text(json.dumps(marker))
    return path


def read(tmp_path, path):
    return secret_plans.read_secret_plan(tmp_path / "plan", path, corpora.read_corpus_at(path))


@pytest.mark.parametrize(
    "changes",
    [
        {"gap": "1e999"}, {"gap": 1.5}, {"batch_size": "\ud800"}, {"neighbouring_relation": {}},
        {"steps": 0}, {"steps": True}, {"noise_multiplier": 1e999}, {"targets": "x"}, {"unit": 7},
        {"corpus_hmac": 7}, {"scale": None},
    ],
)  # fmt: skip
def test_a_plan_that_was_edited_is_refused_before_a_step(tmp_path, changes):
    path = plan(tmp_path, **changes)
    with pytest.raises(ValueError, match=r"^plan: ") as error:
        read(tmp_path, path)
    assert "\n" not in str(error.value)


def test_a_plan_as_it_was_written_is_read(tmp_path):
    assert read(tmp_path, plan(tmp_path))[0].steps == 3
