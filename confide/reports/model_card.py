"""The model card: README.md of a released folder, in the format of transformers and the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from confide.assumption_sentences import states_kind
from confide.promise_kinds import BAYESIAN_KIND, SECRET_PLAN_KIND
from confide.reports.html import render_template
from confide.reports.sentences import Certificate
from crtlib.accounting.guarantees import BoundedRate
from crtlib.accounting.privacy_cost import describe_relation
from crtlib.intervals import at_most, count_of, round_up_to_figures
from crtlib.screening.rate_values import Rate

PROMISE_NAMES = {
    "dp": "differential privacy",
    BAYESIAN_KIND: "Bayesian confidentiality",
}
PLAN_NEIGHBOURS = {
    "reference": "all points in which a secret was found, as they are against left empty",
    "add_or_remove": "all points in which a secret was found, as they are and left empty, each "
    "against the other",
    "replace": "all points in which a secret was found, as they are against others in their place",
}
"""What a plan's promise compares: it is about a secret, in however many points that is found."""
SAME_PEOPLE_PHRASE = "on this text or text with some of the same people or messages"


def flatten_fields(value: Any, path: str = "") -> Sequence[tuple[str, str]]:
    """Every field of a JSON value: (dotted path, text).

    >>> flatten_fields({"a": {"b": [1, "x"]}, "c": None})
    [('a.b.1', '1'), ('a.b.2', 'x'), ('c', '–')]
    """
    if isinstance(value, Mapping):
        parts = [flatten_fields(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
    elif isinstance(value, list):
        parts = [
            flatten_fields(v, f"{path}.{i}" if path else str(i)) for i, v in enumerate(value, 1)
        ]
    else:
        words = {None: "–", True: "yes", False: "no"}
        text = words[value] if value is None or isinstance(value, bool) else (
            f"{value:,}" if isinstance(value, int) else str(value))  # fmt: skip
        return [(path, text)]
    return [field for part in parts for field in part]


# --------------------------------------------------------------------------- in one line


def describe_promise(certificate: Certificate) -> str:
    """What a certificate promises, in one line: for ``guarantee.txt``, the model's card and a
    terminal. ``certificate`` has the parts of a certificate; it need not be sealed.

    The promise is that of the model together with all that were trained on its text before. What it
    would be for this model alone follows, and is marked as such.

    Guarantee:
        Every number is one of the certificate's, rounded up if it has more digits; none is computed
        here: ``tests/release/test_one_number.py``.
    """
    if certificate["verdict"] == "none" and certificate["void_because"]:
        return f"no guarantee: {' '.join(certificate['void_because'])}"
    if certificate["verdict"] == "none":
        suffix = (
            ", and it read the text as it is"
            if certificate["policies"]["pi"]["name"] == "none"
            else ""
        )
        return f"no guarantee: this method adds no noise{suffix}"
    if certificate["verdict"] != "holds":
        return f"no guarantee; void: {' '.join(certificate['void_because'])}"
    guarantee = certificate["guarantee"]
    if guarantee["kind"] == SECRET_PLAN_KIND:
        clauses = _describe_value_promise(certificate)
        neighbours = PLAN_NEIGHBOURS[guarantee["relation"]]
    else:
        clauses = _describe_point_promise(certificate)
        neighbours = describe_relation(guarantee["relation"], guarantee["accountant"])
    clauses += [
        f"neighbours: {neighbours}",
        f"accountant: {guarantee['accountant']}",
        *_describe_rates(certificate),
        f"treated as public: {'; '.join(certificate['treated_as_public'])}",
        *([f"assumed: {'; '.join(certificate['assumed'])}"] if certificate["assumed"] else []),
    ]
    return "; ".join(clauses + _list_uncounted(certificate["spent_before"]))


def _format_pair(pair: Mapping[str, Any]) -> str:
    """(epsilon, delta) in the form in which it is printed."""
    return f"({at_most(float(pair['epsilon']))}, {at_most(pair['delta'])})"


def _describe_point_promise(certificate: Certificate) -> list[str]:
    """Epsilon and delta of a training with noise for each data point, and the unit they are for."""
    guarantee, unit = certificate["guarantee"], certificate["unit"]
    spent_before = certificate["spent_before"]
    other_trials = certificate["searched"]["trials"] - 1
    other_models = []
    if spent_before["runs"]:
        other_models.append(f"{spent_before['runs']} earlier {SAME_PEOPLE_PHRASE}")
    if other_trials:
        other_models.append(f"{other_trials} that were compared with it")
    scope = f" of this model and {' and '.join(other_models)} together" if other_models else ""
    clauses = [f"{_format_pair(guarantee['secret'])} {PROMISE_NAMES[guarantee['kind']]}{scope}"]
    if spent_before["runs"]:
        compared = " and those that were compared with it" if other_trials else ""
        clauses.append(f"of this model{compared} alone: {_format_pair(spent_before['alone'])}")
    spared = _say_who_is_spared(certificate)
    if guarantee["kind"] == "dp":
        with_all_points = ", with all their points" if unit == "user" else ""
        return [*clauses, f"unit: one {unit}{with_all_points}{spared}"]
    learned = ", but that was learned with noise" if spent_before["delta2"] > 0 else ""
    passed = f"of one that the policy passed over{learned}: {_format_pair(guarantee['missed'])}"
    return [*clauses, passed, f"unit: one secret in one {unit}{spared}"]


def _say_who_is_spared(certificate: Certificate) -> str:
    """A phrase that limits the promise to others if people of the text taught a policy."""
    if any(states_kind(sentence, "people_taught") for sentence in certificate["assumed"]):
        return " of somebody who taught no policy"
    return ""


def _describe_value_promise(certificate: Certificate) -> list[str]:
    """How often a value that a plan protects can be guessed."""
    rows = [
        f"a protected value{_say_who_is_spared(certificate)}, which is guessed with a chance of "
        f"{(-round_up_to_figures(-row['prior'], 4)).normalize():f} without the model, is guessed "
        f"with a chance "
        f"of at most {at_most(row['at_most'])} with it"
        for row in certificate["value_guess"]
    ]
    steps = Counter[float]()
    for phase in certificate["mechanism"]["phases"]:
        steps[phase["noise_multiplier"]] += phase["steps"]
    noise = [
        f"{count_of(number, 'step', 'steps')} with noise multiplier {at_most(multiplier, 6)}"
        for multiplier, number in steps.items()
    ]
    is_of_people = any(states_kind(sentence, "one_name") for sentence in certificate["assumed"])
    unit = "a value of one person" if is_of_people else "it"
    return [*rows, f"unit: all points in which the search found {unit}", *noise]


def _describe_rates(certificate: Certificate) -> list[str]:
    """The two rates on which confidentiality rests: those of this model's own search, and together
    with earlier models' searches if these add to them."""
    kind, spent_before = certificate["guarantee"]["kind"], certificate["spent_before"]
    if kind != BAYESIAN_KIND:
        return ["holds whatever a search for secrets finds"] if kind == "dp" else []
    rows = (
        ("trace rate: the redacted points differ", "gamma", "trace"),
        ("public rate: learned without noise", "delta2", "public"),
    )
    labels, clauses = certificate["labels"], []
    alpha = labels["alpha"] / (2 * labels["judged"]) if labels else 0.0
    for label, symbol, name in rows:
        rate = certificate["rates"][name]
        bound = BoundedRate.from_rate(Rate.from_json(rate), alpha=alpha)
        added = spent_before[symbol] != rate["upper"]
        with_earlier = ""
        if added:
            with_earlier = f", with earlier models at most {at_most(spent_before[symbol])}"
        clauses.append(f"{label}, {symbol} = {bound}{with_earlier}")
    if left_out := (labels or {}).get("apart"):
        noun = "people" if labels["cluster"] == "user" else "conversations"
        clauses.append(
            f"both rates without the {left_out} {noun} from whom a policy learned or who had been "
            "read before it was made"
        )
    if unread := (labels or {}).get("unread"):
        unread_turns = count_of(unread, "turn that was", "turns that were")
        clauses.append(f"in both counts {unread_turns} drawn and not read, as failures")
    if replaced := (labels or {}).get("replaced"):
        turns = count_of(replaced, "turn", "turns")
        clauses.append(f"not counted: another reading of {turns} that was imported")
    return clauses


def _list_uncounted(spent_before: Mapping[str, Any]) -> list[str]:
    """Earlier models that are not part of any number."""
    rows = (
        (
            "unprotected",
            f"trained {SAME_PEOPLE_PHRASE} without protection, or with one that does not count "
            f"here",
        ),
        ("struck", "that nobody ever saw, as the releaser states"),
        ("forgotten", "on texts for which the releaser forgot whose they were"),
    )
    return [f"not counted: {spent_before[n]} {reason}" for n, reason in rows if spent_before.get(n)]


def render_model_card(facts: Mapping[str, Any]) -> str:
    """README.md of a trained model: what it is, what it was trained on and what it may give away,
    as promised in the last line of its training. It contains nothing from the text itself.

    ``facts`` are those of a :class:`confide.training.training_record.TrainingResult`.
    """
    return render_template("model_card.md.j2", f=facts)
