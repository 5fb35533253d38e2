"""What a certificate says in plain words: each sentence with the condition under which it is true.

A sentence is printed if and only if its condition holds, and every number is rounded up: a reader
may be told a promise that is weaker than the true one, never a stronger.

>>> times(0.50999), times(0.009181), times(1.0)
('51.0', '0.919', '100')
>>> counts(21.086), counts(1.201)
('22', '1.21')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from crtlib.intervals import exactly, upwards

Certificate = Mapping[str, Any]
"""A certificate as JSON gives it (``schema/certificate.schema.json``)."""
UNITS = {"turn": "message", "dialogue": "conversation", "user": "person"}
WITHIN = {
    "turn": "said in one message", "dialogue": "said in one conversation",
    "user": "said by one person",
}  # fmt: skip
"""Of what a secret must not be said beyond, where a bound is that of one data point."""
NO_PROMISE = 0.995
"""From here on a bound on right guesses is called no promise."""


# --------------------------------------------------------------------------- numbers
def times(chance: float) -> str:
    """A chance as times in 100, rounded up to three figures."""
    hundredfold = upwards(100 * exactly(chance))
    return "100" if hundredfold >= 100 else f"{hundredfold:f}"


def counts(number: float | Decimal) -> str:
    """A count, rounded up: to a whole number from ten on, else to three figures."""
    return f"{math.ceil(number):,}" if number >= 10 else f"{upwards(number):f}"


def _plural(n: int, one: str, more: str) -> str:
    return f"{n:,} {one if n == 1 else more}"


def _guess(c: Certificate, who: str) -> float | None:
    """The bound on right guesses about one kind of secret, where the certificate has it."""
    rows = [row["at_most"] for row in c["right_guess"] if row["who"] == who]
    return rows[0] if rows else None


def _kind(c: Certificate) -> str:
    return str(c["guarantee"]["kind"])


def holds(c: Certificate) -> bool:
    """Whether the model carries a promise at all."""
    return bool(c["verdict"] == "holds")


# --------------------------------------------------------------------------- texts
def _o0(c: Certificate) -> list[str]:
    reasons = c["void_because"] or ["The method adds no noise."]
    return ["**This model carries no promise.** " + " ".join(reasons)]


def _limits(c: Certificate) -> list[str]:
    def certified(limit: str, most: float | None) -> str:
        if most is None:
            return "nothing"
        share = "%" in limit and limit.startswith(("miss", "trace", "public"))
        return f"{times(most)} %" if share else f"{float(upwards(most)):g}"

    each = [f"{x['limit']} ({certified(x['limit'], x['certified'])} is certified)"
            for x in c["limits"]]  # fmt: skip
    verdict = "meets" if all(x["met"] for x in c["limits"]) else "does not meet"
    return [f"**This model {verdict} the limits that were set**: {'; '.join(each)}."]


def _o1(c: Certificate) -> list[str]:
    corpus, name = c["corpus"], c["model"]["name"]
    when = (
        f", {corpus['from']} to {corpus['to']}" if corpus.get("from") and corpus.get("to") else ""
    )
    turns = _plural(corpus["turns"], "message", "messages")
    whose = f" of {_plural(corpus['users'], 'person', 'people')}"
    text = f"Model {name} was trained on a text of {turns}{whose}{when}."
    if corpus["users_are"] == "unknown":
        text = f"Model {name} was trained on a text of {turns}{when}. Whose they are is not known."
    if corpus["users_are"] in ("thread", "unknown"):
        text += " Where no person was known, each conversation counts as a person."
    return [text]


def _draw(c: Certificate) -> str:
    """How the secret is drawn of which the rates speak: where people read one message of each
    person, who has few among many messages counts less than by one of all his secrets."""
    if c["labels"] is None:
        return "as were those by which the searches were judged"
    who, whose = {"user": ("a person", "their"), "dialogue": ("a conversation", "its")}[
        c["labels"]["cluster"]
    ]
    if c["labels"]["drawn"] == "at_random":
        return f"{who}, then one of {whose} messages, until it holds one"
    return f"{who}, then one of {whose} secrets"


def _o2(c: Certificate) -> list[str]:
    return [
        f"**One secret, drawn at random** ({_draw(c)}): somebody who has "
        "the model and must say whether the secret stood in its message or was blacked out is "
        f"right at most **{times(_guess(c, 'random') or 1.0)} times in 100**. Tossing a coin is "
        "right 50 times."
    ]


def _o2a(c: Certificate) -> list[str]:
    """What holds without a confidence level: an average over whom chance chose to be read."""
    many = {"user": "people", "dialogue": "conversations"}[c["labels"]["cluster"]]
    return [
        f"**Without a confidence level**: for a secret of one of the others (at most "
        f"{c['labels']['others']:,} {many}), of whom nobody read a message, such a guess is right "
        f"at most **{times(_guess(c, 'other') or 1.0)} times in 100 on average over whom chance "
        "chose to be read**, if the noise, or a limit that this number must meet, was set before "
        "the labels were counted. It is no promise for this one choice, nor for who was read."
    ]


def _o3(c: Certificate) -> list[str]:
    most = times(_guess(c, "missed") or 1.0)
    if _kind(c) == "dp":
        return [
            f"**Any one {UNITS[c['unit']]}**: somebody who must say whether it was in the data as "
            f"it is or blacked out is right at most {most} times in 100."
        ]
    share = times(max(c["rates"]["trace"]["upper"], c["spent_before"].get("gamma", 0.0)))
    noise = ", but learned with noise" if _public(c) > 0 else ""
    return [f"**A secret that our search passed over{noise}** (at most {share} of 100): at most "
            f"{most} times in 100."]  # fmt: skip


def _public_unknown(c: Certificate) -> bool:
    return bool(c["rates"]["public"]["how"] == "unknown")


def _public(c: Certificate) -> float:
    """The share of secrets that this run, or an earlier one, may have learned without noise."""
    return float(max(c["rates"]["public"]["upper"], c["spent_before"].get("delta2", 0.0)))


def _o4(c: Certificate) -> list[str]:
    share = "100" if _public_unknown(c) else times(_public(c))
    return [f"**Without any protection**: at most {share} of 100 secrets may have been learned "
            "word for word and may be repeated by the model."]  # fmt: skip


def _users(c: Certificate) -> list[Mapping[str, Any]]:
    return [row for row in c["right_guess"] if row["who"] == "user"]


def _o5(c: Certificate) -> list[str]:
    out = []
    for row in _users(c):
        k = row["copies"]
        who = f"A person with {_plural(k, 'secret', 'secrets')}, or a secret said in " + (
            f"{_plural(k, 'message', 'messages')}: ")  # fmt: skip
        if row["at_most"] >= NO_PROMISE:
            out.append(f"{who}no promise.")
        else:
            often = "" if _kind(c) == "dp" else (
                ", if their secrets are passed over as often as others'")  # fmt: skip
            out.append(f"{who}at most {times(row['at_most'])} times in 100{often}.")
    return out


def _o6(c: Certificate) -> list[str]:
    out = []
    for row in c["value_guess"]:
        prior, most = row["prior"], row["at_most"]
        if _kind(c) == "secret_protection":
            before, after = (-upwards(-prior)).normalize(), upwards(most).normalize()
            out.append(f"A protected value that has a chance of {before:f} without the model is "
                       f"guessed with a chance of at most {after:f}, if it stands nowhere in the "
                       "text but where our search found it.")  # fmt: skip
            continue
        many = round(1 / prior)
        what = "a passed-over secret" if _kind(c) == "bayesian_confidentiality" else "a secret"
        bound = "no promise" if most >= 1 else f"at most {counts(exactly(most) * many)} in {many:,}"
        noise = " and learned with noise" if _public(c) > 0 else ""
        out.append(f"Guessing the value of {what}, {WITHIN[c['unit']]}{noise}, that has one "
                   f"chance in {many:,}: {bound}.")  # fmt: skip
    return out


def _labelled(c: Certificate, drawn: str) -> bool:
    return c["labels"] is not None and c["labels"]["drawn"] == drawn


def _confidence(c: Certificate) -> str:
    share = (100 * (1 - exactly(c["labels"]["alpha"]))).quantize(
        Decimal("0.1"), rounding=ROUND_FLOOR
    )
    text = f"Both hold together with {share.normalize():f} % confidence for this text and policy."
    others = c["labels"]["judged"] - 1
    if others > 0:
        text += f" {_plural(others, 'other judgement', 'other judgements')} of policies by labels "
        text += "came before; the bounds allow for a choice among all."
    return text


def _these(c: Certificate) -> tuple[str, str]:
    """Which shares the labels measured, and what was added to them: earlier searches have labels
    and a confidence of their own."""
    own = [c["rates"][name]["upper"] for name in ("trace", "public")]
    if own == [max(own[0], c["spent_before"].get("gamma", 0.0)), _public(c)]:
        return "These shares were", ""
    trace, public = map(times, own)
    return (
        f"Of these shares those of this model's own search, at most {trace} and {public} of 100, "
        "were",
        " Those of earlier searches are added, each with a confidence of its own.",
    )


def _drawn_by(c: Certificate) -> str:
    return "persons" if c["labels"]["cluster"] == "user" else "conversations"


def _o7(c: Certificate) -> list[str]:
    of, (these, added) = c["rates"]["trace"]["of"], _these(c)
    return [
        f"{these} measured by people who read {c['labels']['turns']:,} messages of as "
        f"many {_drawn_by(c)} drawn at random; {of:,} had a secret. {_confidence(c)}{added}"
    ]


def _o8(c: Certificate) -> list[str]:
    of, (these, added) = c["rates"]["trace"]["of"], _these(c)
    return [
        f"{these} measured on the labels of {of:,} {_drawn_by(c)}, which we did not "
        f"draw; we assume that they are like the rest. {_confidence(c)}{added}"
    ]


def _earlier(c: Certificate) -> list[str]:
    runs = c["spent_before"]["runs"]
    if not holds(c):
        return [f"{_plural(runs, 'earlier model was', 'earlier models were')} trained with "
                "protection on the same text."]  # fmt: skip
    return [f"The promise covers this model and {_plural(runs, 'earlier one', 'earlier ones')} on "
            "the same text, or on text of the same people, together (the engineer's page has this "
            "one alone), if a message of this text was one message of theirs."]  # fmt: skip


def _alone(c: Certificate) -> bool:
    before = c["spent_before"]
    return not any(before.get(name, 0) for name in ("runs", "unprotected", "struck", "forgotten"))


def _struck(c: Certificate) -> list[str]:
    n = c["spent_before"]["struck"]
    models = _plural(n, "earlier model on it is", "earlier models on it are")
    return [f"{models} not counted: the releaser says that nobody ever saw what was made."]


def _forgotten(c: Certificate) -> list[str]:
    texts = _plural(c["spent_before"]["forgotten"], "earlier text", "earlier texts")
    return [f"**It is assumed that nobody of this text is in {texts}** of which the releaser "
            "forgot whose they were: what models of theirs gave away is not counted."]  # fmt: skip


def _none_earlier(c: Certificate) -> list[str]:
    return ["No earlier run on this text, or on text of the same people, is known here."]


def _unprotected(c: Certificate) -> list[str]:
    n = c["spent_before"]["unprotected"]
    return [f"{_plural(n, 'model was', 'models were')} trained on it, or on text of the same "
            "people, without protection or with one that this promise does not count; who has one "
            "of them may need no other."]  # fmt: skip


def _o10(c: Certificate) -> list[str]:
    included = (
        "All are charged, as if each had been like this one."
        if c["searched"]["charged"] else "This is not included: the true numbers "
        "are those of as many models, several times larger."
    )  # fmt: skip
    return [f"{c['searched']['trials']:,} trainings were compared. {included}"]


def _o11(c: Certificate) -> list[str]:
    planted, copies = c["canaries"]["planted"], c["canaries"]["copies"]
    each = _plural(copies, "copy", "copies") + (" each" if planted > 1 else "")
    return [f"{_plural(planted, 'invented secret', 'invented secrets')}, {each}, were put into the "
            "text for testing; the model may repeat them."]  # fmt: skip


def _o12(c: Certificate) -> list[str]:
    base = c["model"]["base"]["name"]
    assumed = " **It is assumed that it had not read this text" if c.get("assumed") else ""
    if assumed and c["spent_before"].get("unprotected", 0):
        assumed += ", and was not made of the model that was trained on it without protection"
    assumed += ".**" * bool(assumed)
    return [f"It started from {base}; nothing is said about what {base} had read.{assumed}"]


def _o15(c: Certificate) -> list[str]:
    """What the releaser calls public: no bound above holds for it."""
    bits = upwards(sum(exactly(d["bits"]) for d in c["declared"]))
    named = "; ".join(f"{d['of']}, {d['value']}" for d in c["declared"])
    return [f"**Declared public** (together at most {bits:f} bits, outside of the promise): "
            f"{named}."]  # fmt: skip


def _o16(c: Certificate) -> list[str]:
    return [f"**Treated as known**, outside of the promise: {'; '.join(c['treated_as_public'])}."]


def _evidence(c: Certificate, name: str) -> Mapping[str, Any] | None:
    return (c.get("evidence") or {}).get(name)


def _o13(c: Certificate) -> list[str]:
    parts = []
    audit, report = _evidence(c, "audit"), _evidence(c, "report")
    if audit and not audit["lower"]:
        parts.append("an audit says nothing, as its attacker did no better than a coin")
    elif audit:
        proved = c["guarantee"]["missed"]["epsilon"] if holds(c) else "inf"
        proof = f"a proof of {proved}" if proved != "inf" else "no proof"
        parts.append(f"an audit showed at least {audit['lower']} against {proof}, and would")
        parts[-1] += (
            f" notice half of the noise in at most {times(audit['power'])} of 100 trainings"
        )
    if report:
        parts.append(f"a report found {report['completed']} passages completed, "
                     f"{report['unique']} of one person only")  # fmt: skip
    return [f"Attacks we ran: {'; '.join(parts)}. A failed attack proves nothing."]


def _o14(c: Certificate) -> list[str]:
    return [
        f"Not promised: {'; '.join(c['not_promised'])}. Issued {c['issued'][:10]} by crtlib "
        f"{c['software']['crtlib']}; id {c['id'][:12]}; check with `crtlib certify RUN --verify`."
    ]


# --------------------------------------------------------------------------- the table
@dataclass(frozen=True)
class Sentence:
    """A sentence, the condition under which it is printed, and how it reads for a certificate."""

    name: str
    condition: Callable[[Certificate], bool]
    text: Callable[[Certificate], list[str]]


def _promised(*kinds: str) -> Callable[[Certificate], bool]:
    return lambda c: holds(c) and _kind(c) in kinds


def _of_promise(condition: Callable[[Certificate], bool]) -> Callable[[Certificate], bool]:
    """The condition, for a sentence that only a model with a promise has."""
    return lambda c: holds(c) and condition(c)


BAYES, DP, PLAN = "bayesian_confidentiality", "dp", "secret_protection"
SENTENCES = (
    Sentence("O0", lambda c: not holds(c), _o0),
    Sentence("OL", lambda c: bool(c.get("limits")), _limits),
    Sentence("O1", lambda c: True, _o1),
    Sentence("O2", _promised(BAYES), _o2),
    Sentence("O2a", _of_promise(lambda c: _guess(c, "other") is not None), _o2a),
    Sentence("O3", _promised(BAYES, DP), _o3),
    Sentence("O4", _of_promise(lambda c: _public_unknown(c) or _public(c) > 0), _o4),
    Sentence("O5", _of_promise(lambda c: bool(_users(c))), _o5),
    Sentence("O6", _promised(BAYES, DP, PLAN), _o6),
    Sentence("O7", _of_promise(lambda c: _labelled(c, "at_random")), _o7),
    Sentence("O8", _of_promise(lambda c: _labelled(c, "given")), _o8),
    Sentence("O9", lambda c: c["spent_before"]["runs"] > 0, _earlier),
    Sentence("O9n", _of_promise(_alone), _none_earlier),
    Sentence("O9u", lambda c: c["spent_before"].get("unprotected", 0) > 0, _unprotected),
    Sentence("O9s", lambda c: c["spent_before"].get("struck", 0) > 0, _struck),
    Sentence("O9f", _of_promise(lambda c: c["spent_before"].get("forgotten", 0) > 0), _forgotten),
    Sentence("O10", lambda c: c["searched"]["trials"] > 1, _o10),
    Sentence("O11", lambda c: c["canaries"]["planted"] > 0, _o11),
    Sentence("O12", lambda c: c["model"]["base"] is not None, _o12),
    Sentence("O15", _of_promise(lambda c: bool(c.get("declared"))), _o15),
    Sentence("O16", _of_promise(lambda c: bool(c["treated_as_public"])), _o16),
    Sentence("O13", lambda c: bool(_evidence(c, "audit") or _evidence(c, "report")), _o13),
    Sentence("O14", lambda c: True, _o14),
)
"""All sentences, in the order of the page. O9 has five parts with conditions of their own."""


def sentences(c: Certificate) -> dict[str, list[str]]:
    """What this certificate says: name of the sentence -> its paragraphs, ``**bold**`` inside."""
    return {s.name: s.text(c) for s in SENTENCES if s.condition(c)}
