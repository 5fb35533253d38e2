"""Judge which requirements of a standard a certificate meets: met, not met, or not ours.

A standard is a file in ``standards/``: each requirement with its number, a paraphrase, the
conditions on the certificate under which it is met, and the numbers that are evidence. The page and
its JSON are made from the certificate alone, so they reveal nothing more about the text.

>>> sorted(STANDARDS)
['aisvs']
>>> [row["status"] for row in judge_requirements({"verdict": "void"}, "aisvs")][:2]
['not met', 'not ours']
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import jsonschema

from confide.assumption_sentences import is_of_earlier_model, states_kind
from confide.reports.html import render_template
from confide.reports.sentences import Certificate
from crtlib.checks import check_choice
from crtlib.text.package_data import read_package_file

EVIDENCE_FORMAT = "crtlib/evidence/1"
STANDARDS = ("aisvs",)
MET, NOT_MET, NOT_OURS = "met", "not met", "not ours"

_EXPRESSIONS = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=False)
_EXPRESSIONS.tests |= {"assuming": states_kind, "of_earlier_model": is_of_earlier_model}
_compile_expression = cache(_EXPRESSIONS.compile_expression)


@cache
def load_standard(name: str) -> dict[str, Any]:
    """The content of a standard's file. Raises ``ValueError`` for an unknown ``name``."""
    check_choice("evidence", name, STANDARDS)
    folder = resources.files("confide.reports") / "standards"
    return tomllib.loads(read_package_file(f"{name}.toml", folder))


def judge_requirements(certificate: Certificate, name: str) -> list[dict[str, Any]]:
    """Judge each requirement of a standard on the evidence of a certificate.

    Args:
        certificate: Its value, as JSON gives it.
        name: The standard, one of :data:`STANDARDS`.

    Returns:
        A row for each requirement: ``id``, ``level``, ``asks``, ``status``, ``because`` (why it is
        not met or not ours), ``evidence`` (rows of ``what``, ``value``, ``hash``) and ``note``.

    Raises:
        ValueError: For an unknown standard.

    Guarantee:
        A requirement is met only if each of its conditions is true of the certificate. Test:
        ``tests/release/test_standards.py::test_each_condition_alone_makes_a_requirement_not_met``.
    """
    standard = load_standard(name)
    names = _name_facts(certificate, standard["given"])
    return [_judge_requirement(row, names) for row in standard["requirement"]]


def _name_facts(certificate: Certificate, definitions: Mapping[str, str]) -> dict[str, Any]:
    """The names that a condition may use: the fields of the certificate, its limits, and the facts
    that the standard's file defines."""
    limits_met: dict[str, bool] = {}
    for limit in certificate.get("limits", ()):
        limit_name = limit["limit"].split("<=")[0].strip()
        limits_met[limit_name] = limits_met.get(limit_name, True) and limit["met"]
    names = {**certificate, "kept": limits_met}
    for name, expression in definitions.items():
        names[name] = _compile_expression(expression)(names)
    return names


def _judge_requirement(row: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"id": row["id"], "level": row["level"], "asks": row["asks"]}
    if "because" in row:
        return {**facts, "status": NOT_OURS, "because": [row["because"]], "evidence": []}
    lacking = [reason for condition, reason in row["needs"] if not _is_true(condition, names)]
    evidence = [
        {"what": label, "value": _evaluate(value, names), "hash": _evaluate(hash_expression, names)}
        for label, value, hash_expression in row["shows"]
    ]
    return {
        **facts,
        "status": NOT_MET if lacking else MET,
        "because": lacking,
        "evidence": [x for x in evidence if x["value"] is not None],
        **({"note": row["note"]} if "note" in row else {}),
    }


def _evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression; None if the certificate lacks a field in it."""
    try:
        return _compile_expression(expression)(names)
    except (jinja2.UndefinedError, TypeError):
        return None


def _is_true(condition: str, names: Mapping[str, Any]) -> bool:
    """Whether a condition holds; none does about fields that the certificate lacks."""
    return bool(_evaluate(condition, names))


# --------------------------------------------------------------------------- what is written
@cache
def evidence_validator() -> jsonschema.protocols.Validator:
    """The validator for the JSON of an evidence page, by ``schema/evidence.schema.json``."""
    folder = resources.files("confide.reports") / "schema"
    schema = read_package_file("evidence.schema.json", folder)
    return jsonschema.Draft202012Validator(json.loads(schema))


def assemble_evidence(certificate: Certificate, name: str) -> dict[str, Any]:
    """The JSON of an evidence page: the standard, the id of the certificate that it is made from,
    the judged requirements, and how many are met, not met and not ours."""
    standard = load_standard(name)
    rows = judge_requirements(certificate, name)
    value = {
        "schema": EVIDENCE_FORMAT,
        "standard": {
            "name": standard["name"],
            "edition": standard["edition"],
            "about": " ".join(standard["about"].split()),
        },
        "certificate": {n: certificate[n] for n in ("id", "issued", "verdict")},
        "model": {n: certificate["model"][n] for n in ("name", "sha256")},
        "counts": {
            status: sum(row["status"] == status for row in rows)
            for status in (MET, NOT_MET, NOT_OURS)
        },
        "requirements": rows,
    }
    evidence_validator().validate(value)
    return value


def render_evidence_page(value: Mapping[str, Any], command: str) -> str:
    """The page for what :func:`assemble_evidence` returns, with the ``command`` that repeats it."""
    return render_template("evidence.html.j2", e=value, command=command)
