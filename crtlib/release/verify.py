"""A verifier for who receives a model: ``python -m crtlib.release.verify MODEL CERTIFICATE.json``.

It needs neither torch nor the odometer. It checks that nobody has edited the certificate or any
file since they were signed, that both were signed by one key, and that what the certificate
promises is not more than what follows from the sources of the files. It does not see earlier models
on the text, which can only make the numbers larger; and not a releaser who lies: compare the key
with one that he gave you another way.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crtlib.accounting import confidentiality, ledger
from crtlib.release import gate, seal
from crtlib.reports import certificate

SLACK = 1 - 1e-6
"""A recomputed number may be so much smaller: other processors round otherwise."""


def difference(model: Path, value: Mapping[str, Any], public: str | None = None) -> str | None:
    """The first thing that is wrong with a certificate of the folder ``model``; None: nothing.
    ``public`` is the key of the releaser, as he gave it another way."""
    try:
        seal.check(value, "certificate", public)
        released = gate.read(model)
    except ValueError as error:
        return str(error)
    key = value["public_key"]
    if released.key != key:
        return "release.json: was signed with another key than the certificate"
    if certificate.identity(value) != value["id"]:
        return "certificate: its id is not that of its content"
    if released.altered:
        return f"{released.altered[0]}: is not what was released"
    if value["verdict"] != "holds":
        return "certificate: the model carries no promise"
    own = gate.fold(released.sources)
    if own.void or own.kind == "none":
        return f"release.json: {own.void[0] if own.void else 'nothing protects the text'}"
    return _numbers(value, own)


def _numbers(value: Mapping[str, Any], own: gate.Fold) -> str | None:
    """Where the certificate promises more than follows from the files alone."""
    given = value["guarantee"]
    kinds = [own.kind]
    if own.kind == "dp":  # an earlier model may leave less
        kinds.append("bayesian_confidentiality")
    if given["kind"] not in kinds or given["relation"] != own.relation:
        return "certificate: promises another kind of thing than the files can keep"
    named = [(d.of, d.value) for d in own.declared]
    if sorted((d["of"], d["value"]) for d in value["declared"]) != sorted(named):
        return "certificate: does not name what was declared public"
    if own.plan:
        for row, (prior, chance) in zip(value["value_guess"], own.plan.guesses, strict=False):
            if row["prior"] < prior * SLACK or row["at_most"] < chance * SLACK:
                return "certificate: a value is guessed more often than it says"
        short = len(value["value_guess"]) != len(own.plan.guesses)
        return "certificate: leaves promises of the plan out" if short else None
    if own.unit != value["unit"]:
        return "certificate: is of another unit than the noise"
    delta = float(given["missed"]["delta"])
    missed = ledger.epsilon(own.events, delta=delta, neighbouring_relation=own.relation)
    if _number(given["missed"]["epsilon"]) < missed * SLACK:
        return "certificate: epsilon is smaller than the noise allows"
    if given["secret"]["delta"] < own.delta2 * SLACK:
        return "certificate: delta leaves out what was learned without noise"
    if given["kind"] == "bayesian_confidentiality" and own.gamma > delta:
        inner = delta / own.gamma
        epsilon = ledger.epsilon(own.events, delta=inner, neighbouring_relation=own.relation)
        secret, _ = confidentiality.bayes_amplify(epsilon, delta=inner, gamma=own.gamma)
        if _number(given["secret"]["epsilon"]) < secret * SLACK:
            return "certificate: the epsilon of a secret at random is smaller than it can be"
    return None


def _number(value: float | str) -> float:
    return math.inf if value == "inf" else float(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder that was released")
    parser.add_argument("certificate", type=Path, help="its certificate, as JSON")
    parser.add_argument("--key", help="public key of the releaser, 64 hexadecimal digits")
    given = parser.parse_args()
    try:
        value = seal.read(given.certificate)
        wrong = difference(given.model, value, given.key)
    except (ValueError, KeyError, TypeError, OSError) as error:
        text = error if isinstance(error, ValueError) else f"{given.certificate}: is no certificate"
        wrong, value = str(text), {}
    print(f"refused: {wrong}" if wrong else f"as it was signed, by key {value['public_key']}")
    return 4 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
