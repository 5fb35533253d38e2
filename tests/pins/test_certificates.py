"""Certificates say what they said: of trainings with and without a promise, with a plan, of a
second one on the same text, and of one that started from a model without protection.

The noise is that of the operating system, as only then a certificate can hold; nothing in it may
depend on that noise. What differs from run to run (dates, hashes, versions, pseudonyms) is left
out; numbers are compared within 1e-6, as those of the accountants are not trained. One for the
night.
"""

import functools
import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from confide.release import certify
from confide.reports import sentences
from tests import pins
from tests.pins.test_released import corpus_in, train

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "crt": ("crt", {}),
    "crt again": ("crt", {}),
    "dpsgd": ("dpsgd", {}),
    "user dpsgd": ("user_dpsgd", {}),
    "plan": ("plan", {}),
    "sgd": ("sgd", {"model": "gpt2", "heads": 2}),
    "heir of sgd": ("crt", {"init": "HOME/sgd", "context": 64}),
}
"""The method and its options; runs of one corpus have the last word of their names in common."""
VOLATILE = {
    "id",
    "issued",
    "software",
    "seconds",
    "date",
    "started",
    "ended",
    "entries",
    "run",
    "signature",
}
HEX = re.compile(r"\b[0-9a-f]{12,64}\b|\b20\d\d-\d\d-\d\d(T[\d:.+Z-]+)?")
DRAWN = re.compile(r"(held-out perplexity(?:, of an earlier model)?, )\d+ to \d+")
"""The intervals of perplexities: noise may move them to the next."""


def steady(value: Any) -> Any:
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        of = str(value.get("of", ""))
        drawn = {"value"} if of.startswith("held-out perplexity") else set()
        return {k: "#" if k in VOLATILE | drawn else steady(v) for k, v in value.items()}
    if isinstance(value, list):
        return [steady(entry) for entry in value]
    return DRAWN.sub(r"\1#", HEX.sub("#", value)) if isinstance(value, str) else value


@functools.cache
def certificates() -> dict[str, Any]:
    """Each certificate, and the sentences of its page."""
    out: dict[str, Any] = {}
    with TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRTLIB_REGISTRY", f"{home}/registry")  # which knows no earlier run
        corpora = {name: corpus_in(Path(home), name) for name in ("crt", "dpsgd", "user", "sgd")}
        Path(home, "alone").mkdir()  # whose odometer knows no earlier run
        corpora["plan"] = corpus_in(Path(home, "alone"), "plan")
        for name, (method, more) in RUNS.items():
            corpus = corpora[next(c for c in corpora if c in name.split())]
            folder = Path(home, name.replace(" ", "-"))
            os.environ["CRTLIB_REGISTRY"] = f"{corpus}.registry"  # all have the same text
            given = {k: str(v).replace("HOME", home) if k == "init" else v for k, v in more.items()}
            train(method, corpus, folder, **given)
            value = certify.write_certificate(
                folder, Path(home, f"{folder.name}.html"), secrets_per_person=(2,)
            )
            out[name] = {"certificate": value, "sentences": sentences.select_sentences(value)}
        return steady(json.loads(json.dumps(out, default=str).replace(home, "HOME")))


def make() -> dict[str, Any]:
    return certificates()


def test_a_certificate_says_what_it_said():
    pins.same("certificates", certificates(), rtol=1e-6)


def test_the_verdicts_are_those_that_they_must_be():
    pinned = pins.read("certificates")
    verdicts = {name: each["certificate"]["verdict"] for name, each in pinned.items()}
    assert verdicts["crt"] == verdicts["dpsgd"] == "holds"
    assert verdicts["user dpsgd"] == "void"  # of people, of whom earlier runs read each message
    assert verdicts["sgd"] != "holds" and verdicts["heir of sgd"] == "void"
