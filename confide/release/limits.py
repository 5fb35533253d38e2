"""Judge whether a certificate meets the limits that somebody sets for a model.

>>> certificate = {"verdict": "holds", "rates": {"public": {"upper": 0.0377}},
...                "right_guess": [{"who": "random", "at_most": 0.524}]}
>>> for row in judge_limits(certificate, ["public <= 1%", "guess <= 55"]):
...     print(row)
{'limit': 'public <= 1%', 'certified': 0.0377, 'met': False}
{'limit': 'guess <= 55', 'certified': 52.4, 'met': True}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from confide.promise_kinds import BAYESIAN_KIND
from crtlib.arguments import argument_error
from crtlib.intervals import to_decimal

LIMIT_NAMES = {
    "guess": "right guesses of 100, about a secret drawn at random",
    "missed": "right guesses of 100, about a secret that the search passed over",
    "value": "chance in 100 to name a protected value, or one of a thousand that are as likely and "
    "that the search would pass over and noise cover as well",
    "epsilon": "epsilon of a secret drawn at random",
    "delta": "its delta",
    "epsilon_missed": "epsilon of a secret that the search passed over",
    "miss": "share of secrets that the search did not find",
    "trace": "share of secrets of which something is left",
    "public": "share of secrets that are trained on without noise",
}
"""What a limit may be about; each is a bound in the certificate."""
LIMITS_IN_PERCENT = ("guess", "missed", "value")


def _parse_limit(text: str) -> tuple[str, Decimal]:
    """The name and the number of a limit, in percent for :data:`LIMITS_IN_PERCENT`."""
    match = re.fullmatch(r"\s*(\w+)\s*<=\s*([0-9]*\.?[0-9]+(?:e-?[0-9]{1,3})?)\s*(%?)\s*", text)
    name = match[1] if match else ""
    if not match or name not in LIMIT_NAMES or (match[3] and name.startswith(("epsilon", "delta"))):
        raise argument_error(
            "require",
            f"{text!r} must be NAME <= NUMBER, such as 'public <= 1%' or 'guess <= 55'; a name is "
            f"one of {', '.join(LIMIT_NAMES)}",
        )
    number = Decimal(match[2])
    return name, number / 100 if match[3] and name not in LIMITS_IN_PERCENT else number


def _certified_bound(certificate: Mapping[str, Any], name: str) -> Decimal | None:
    """The certified bound, in percent for :data:`LIMITS_IN_PERCENT`; None if there is none."""
    bound: Any
    if name in ("miss", "trace", "public"):
        bound = _bound_of_rate(certificate, name)
    elif name in LIMITS_IN_PERCENT:
        bound = _bound_of_guesses(certificate, name)
    elif name == "epsilon_missed":
        bound = certificate["guarantee"]["missed"]["epsilon"]
    else:  # epsilon or delta
        bound = certificate["guarantee"]["secret"][name]
    if bound is None or bound == "inf":
        return None
    return to_decimal(bound) * (100 if name in LIMITS_IN_PERCENT else 1)


def _bound_of_rate(certificate: Mapping[str, Any], name: str) -> float | None:
    """The upper bound of a rate, together with what earlier searches passed over. None if it was
    counted on labels and the promise does not rest on them: then the certificate does not name the
    labels, and states neither their confidence nor what is assumed about them.

    Guarantee:
        Test: ``tests/release/test_limits.py::
        test_a_rate_whose_labels_are_not_named_meets_no_limit``.
    """
    row = certificate["rates"].get(name, {})
    if row.get("how") == "one_per_cluster" and certificate["guarantee"]["kind"] != BAYESIAN_KIND:
        return None
    upper: float | None = row.get("upper")
    if upper is None or name == "miss":
        return upper
    spent_name = {"trace": "gamma", "public": "delta2"}[name]
    return max(upper, certificate.get("spent_before", {}).get(spent_name, 0.0))


def _bound_of_guesses(certificate: Mapping[str, Any], name: str) -> float | None:
    """The largest chance of a right guess about a secret, or of naming a value. A promise for any
    one message ("dp") is also one for a secret drawn at random."""
    if name == "value":
        rows = certificate["value_guess"]
    else:
        protects_every_message = certificate.get("guarantee", {}).get("kind") == "dp"
        who = "missed" if protects_every_message or name == "missed" else "random"
        rows = [row for row in certificate["right_guess"] if row["who"] == who]
    return max((row["at_most"] for row in rows), default=None)


def judge_limits(certificate: Mapping[str, Any], limits: Sequence[str]) -> list[dict[str, Any]]:
    """Judge each limit: the bound that is ``certified`` (None if there is none), and whether the
    limit is ``met``. A certificate that does not hold meets none.

    Args:
        certificate: Its parts, as JSON gives them.
        limits: Limits on :data:`LIMIT_NAMES`, such as "public <= 1%" or "guess <= 55" (guesses are
            per 100).

    Raises:
        ValueError: For anything that is not such a limit.
    """
    judgements = []
    for text in limits:
        name, limit = _parse_limit(text)
        bound = None
        if certificate["verdict"] == "holds":
            bound = _certified_bound(certificate, name)
        certified = None if bound is None else float(bound)
        assert certified is None or math.isfinite(certified)
        is_met = bound is not None and bound <= limit
        judgements.append({"limit": " ".join(text.split()), "certified": certified, "met": is_met})
    return judgements
