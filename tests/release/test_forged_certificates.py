"""A releaser who lies: each number, text and list of a certificate is replaced by others, one at a
time, and the certificate is signed anew with the releaser's own key.

What the released files contradict is refused. What is believed is larger than the truth where it is
a promise, or is a fact that no released file holds.
"""

import contextlib
import io
import json
import math
import re
import sys

import pytest

from confide.release import certify, seal, verify
from confide.reports import certificate_pages
from tests import trainings
from tests.texts import write_simulated_text

PROMISES = re.compile(
    r"guarantee/\w+/(epsilon|delta)|(right|value)_guess/\d/at_most|declared/\d/bits"
    r"|spent_before/(alone/(epsilon|delta)|gamma|delta2)|rates/(by_kind/\w+/)?\w+/upper"
)
"""Numbers that only grow weaker when they grow."""
NOT_IN_THE_FILES = re.compile(
    r"(software|corpus|policies|labels|canaries|evidence|searched|method)/.*|model/name|issued"
    r"|model/(trained_)?parameters|mechanism/(floating_point|phases/\d/(points|clip_norm))"
    r"|mechanism/phases/0/.*|mechanism/phases|guarantee/(missed|secret)/group.*"
    r"|spent_before/(entries|runs|unprotected|elsewhere|struck|forgotten).*"
    r"|rates/(by_kind/)?\w+(/\w+)?(/(all|of)(/\d)?)?|treated_as_public.*|assumed|not_promised"
    r"|right_guess(/3/copies)?|declared|guarantee/(proved|error_charged)"
)
"""Names, counts and versions of the releaser's text and machine, which no released file holds; and
that a bound is not proved, or has an error charged, which takes from it."""


def other_values(value):
    """Values near ``value`` and of other kinds."""
    if isinstance(value, bool):
        return [not value, 1, "true", None]
    if isinstance(value, int | float):
        return [-1, 0, value / 2, value * 2, 1e308, "nan", None]
    if isinstance(value, str):
        return ["", "0" * 64, "2030-01-01T00:00:00Z", 7, None]
    if isinstance(value, list):
        return [[], value[:-1], [*value, *value[-1:]], {}, None]
    return [{}, [], "x", 1] if value is None else [{}, [], None]


def places(value, path=()):
    """Where something stands in a JSON value, containers too."""
    for name, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, name), one
        if isinstance(one, dict | list):
            yield from places(one, (*path, name))


def replaced(value, path, new):
    copy = json.loads(json.dumps(value))
    place = copy
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = new
    return copy


def is_believed(home, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["verify", str(home / "m"), str(home / "m.json")])
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        return verify.main() == 0


def is_harmless(path, old, new):
    place = "/".join(map(str, path))
    if PROMISES.fullmatch(place) and isinstance(new, int | float) and not isinstance(new, bool):
        return new >= float(old) or math.isinf(float(old))
    return bool(NOT_IN_THE_FILES.fullmatch(place))


@pytest.mark.nightly
def test_no_forgery_promises_more_than_the_files_keep(tmp_path, monkeypatch):
    text = write_simulated_text(tmp_path / "c.jsonl")
    trainings.train(text, out=tmp_path / "m", **trainings.CRT)
    certify.write_certificate(
        tmp_path / "m", tmp_path / "m.html", secrets_per_person=(2,), force=True
    )
    assert is_believed(tmp_path, monkeypatch)
    value, key = (
        seal.read_signed(tmp_path / "m.json"),
        seal.ensure_signing_key(tmp_path / "c.jsonl.odometer"),
    )
    harmful, refused = [], 0
    for path, old in places(value):
        for new in other_values(old):
            forged = replaced(value, path, new)
            if path[0] in ("signature", "public_key", "id") or forged == value:
                continue
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                forged["id"] = certificate_pages.hash_certificate(forged)  # else: not its form
            (tmp_path / "m.json").write_text(json.dumps(seal.sign_value(forged, key)))
            if not is_believed(tmp_path, monkeypatch):
                refused += 1
            elif not is_harmless(path, old, new):
                harmful.append((path, old, new))
    assert not harmful, harmful
    assert refused > 1100
