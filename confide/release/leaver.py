"""What the models of a text promise to a person who leaves, and what a retraining would spend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from confide import spending, text_registry
from confide.assumption_sentences import Assumption, states_kind
from confide.odometer_lines import PLAN_METHOD, OdometerEntry
from confide.release import assumptions, certificate_parts, rate_bounds
from confide.release.composed_promise import round_bound_up, round_chance_up
from confide.reports import html
from confide.text import text_sizes
from crtlib.accounting import guess_bounds, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.arguments import argument_error
from crtlib.checks import check_delta
from crtlib.files import StrPath
from crtlib.intervals import count_of
from crtlib.text import corpora, screened_folder
from crtlib.text.identity import normalise_unit_name


def describe_leaver(corpus: StrPath, user: str, *, delta: float = 1e-6) -> dict[str, Any]:
    """What all models that are known to have read a text promise to one of its people.

    The attacker knows the models and everything else, and guesses whether the models had read all
    that this person wrote or the same number of other messages in its place. In this text the
    person's points are counted. In another text that shares conversations, people or messages with
    it, the person is assumed to have as many points as anybody there. If people of a text taught
    the search of a model, or of one that it started from, any of their messages may have decided
    about any other, and it is not known here who they are: such a model promises nothing.

    Args:
        corpus: Corpus folder or JSONL, not screened.
        user: The person's name, as in the corpus or in what it was made from; no answer shows it.
        delta: The delta of the epsilons, in (0, 1).

    Returns:
        ``crtlib/leaver/1``, with these fields. ``turns`` and ``dialogues`` count the person's text;
        ``models`` has a row for each model. ``whole`` and ``message`` hold the epsilon and the
        largest chance of a right guess (in [0, 1]), over all models that learned with noise, about
        everything the person wrote and about one message. ``unprotected``: how many models promise
        nothing. ``planned``: how many others instead have a plan's promise for each secret.
        ``taught``: how many others were screened by a search that people taught. ``plain``: how
        many of those with noise may have learned without noise what a search left plain.
        ``again``: the epsilon of one message if the last training were repeated. ``assumed``,
        ``treated_as_public`` and ``declared``: the conditions of the numbers, as in certificates.
        ``forgotten``: how many texts have trainings although it was forgotten whose text they are.
        ``struck``: how many trainings do not count, because somebody said that nobody saw the
        model.

    Raises:
        ValueError: For a screened folder, and if nobody in the text has that name.

    Guarantee:
        For everything the person wrote that was learned with noise, and under the stated
        conditions, no guess is right more often than stated. Tests:
        ``tests/release/test_leaver.py::test_all_points_of_a_person_are_counted``,
        ``tests/release/test_leaver.py::test_what_was_learned_without_noise_is_said``,
        ``tests/release/test_leaver.py::test_a_number_stands_with_its_conditions``,
        ``tests/release/test_leaver.py::test_who_may_have_taught_a_search_is_promised_nothing``.
    """
    check_delta(delta)
    if screened_folder.is_screened_folder(corpus):
        raise ValueError(f"{corpus}: is screened, and its people have pseudonyms; give the corpus")
    registry = text_registry.Registry(text_registry.registry_folder())
    turn_counts = _count_turns_of_person(corpus, user, registry)
    own_points = {"turn": sum(turn_counts), "dialogue": len(turn_counts)}

    text = text_registry.register_text(corpus)
    history = spending.read_history_beside_corpus(corpus, text, registry)
    all_spent = rate_bounds.with_current_bounds(history).spent()
    taught_runs = _taught_by_people(all_spent.private)
    planned_runs = _runs_of_lasting_plans(all_spent.entries)
    untaught_runs = tuple(entry for entry in all_spent.entries if entry not in taught_runs)
    spent = replace(all_spent, entries=untaught_runs)
    assumed = [
        *assumptions.assume_of_earlier_models(spent, text),
        *assumptions.assume_of_earlier_texts(spent.private, text),
        Assumption("one_name"),
    ]

    most_points = text_sizes.max_points_per_unit(corpus)["user"]
    # Points in a group, for each event: all of the person's, and those of one message.
    person_points = _points_of(spent, spent.groups("user", most_points), own_points)
    message_points = spent.groups("turn", {"turn": 1})
    last_run = next(reversed(spent.private), None)
    repeated_events = tuple(last_run.events or ()) if last_run else ()
    events_after = *spent.events, *repeated_events
    message_points_after = *message_points, *(1 for _ in repeated_events)
    return {
        "schema": "crtlib/leaver/1",
        **{f"{unit}s": number for unit, number in own_points.items()},
        "delta": delta,
        "models": _describe_models(all_spent.entries, spent, person_points, delta),
        "whole": _guess(spent.events, person_points, delta),
        "message": _guess(spent.events, message_points, delta),
        "unprotected": spent.unprotected_run_count - len(planned_runs),
        "planned": len(planned_runs),
        "taught": len(taught_runs),
        "plain": sum(e.delta2 > 0 for e in spent.private),
        "again": {
            "steps": sum(event.steps for event in repeated_events),
            "epsilon": _epsilon(events_after, message_points_after, delta),
        },
        "forgotten": registry.count_forgotten_texts(text),
        "struck": spent.excluded_runs,
        "assumed": assumptions.state_assumptions(assumed),
        "treated_as_public": [
            *certificate_parts.list_known_of_earlier_models(spent, (), text),
            *(certificate_parts.ALWAYS_KNOWN if spent.private else ()),
        ],
        "declared": certificate_parts.declare_of_earlier_models(spent),
    }


def _count_turns_of_person(
    corpus: StrPath, user: str, registry: text_registry.Registry
) -> list[int]:
    """How many turns each conversation of a person has. Raises ``ValueError`` if the name is empty
    or nobody in the text has it."""
    if not (name := normalise_unit_name(user)):
        raise argument_error("user", "must be the name of a person, and is empty")
    turn_counts = [len(d.turns) for d in corpora.read_dialogues(corpus) if d.user in (user, name)]
    if not turn_counts:
        elsewhere = (
            "; another text that was read or trained on here has somebody of this name: give that "
            "text or, if it is gone, ingest one message of this person, which finds the models"
            if registry.knows_person(name)
            else ""
        )
        raise argument_error("user", f"nobody in the corpus has this name{elsewhere}")
    return turn_counts


def _runs_of_lasting_plans(entries: Sequence[OdometerEntry]) -> list[OdometerEntry]:
    """The runs by a plan whose promise of each secret stands: nothing voids it, and no earlier run
    spent what a plan does not count."""
    return [
        entry
        for i, entry in enumerate(entries)
        if entry.method == PLAN_METHOD
        and entry.void == ()
        and not any(earlier.spends_past_plans for earlier in entries[:i])
    ]


def _describe_models(
    entries: Sequence[OdometerEntry],
    spent: spending.SpentBudget,
    person_points: Sequence[int],
    delta: float,
) -> list[dict[str, Any]]:
    """A row for each run. One that is in ``spent`` and protects has an epsilon of everything the
    person wrote; ``person_points`` has the person's points in each event of these runs, in
    order."""
    rows, next_event = [], 0
    for entry in entries:
        row: dict[str, Any] = {
            "time": entry.time[:10],
            "model": entry.model,
            "method": entry.method,
            "unit": entry.unit,
            "points": None,
            "plain": None,
            "epsilon": None,
        }
        if entry in spent.private:
            run_points = person_points[next_event : next_event + len(entry.events or ())]
            next_event += len(run_points)
            row["points"] = max(run_points, default=None)
            row["plain"] = entry.delta2
            row["epsilon"] = _epsilon(entry.charged or (), run_points, delta)
        rows.append(row)
    return rows


def _taught_by_people(entries: Sequence[OdometerEntry]) -> list[OdometerEntry]:
    """The runs whose search was taught by people of their text, and those that started from one."""
    taught = [
        entry
        for entry in entries
        if any(states_kind(sentence, "people_taught") for sentence in entry.assumed)
    ]
    for entry in entries:  # in order, so a model comes before any that starts from it
        taught_hashes = {h for run in taught for h in (run.model, run.tensors)} - {None}
        if entry not in taught and {entry.base, entry.base_tensors} & taught_hashes:
            taught.append(entry)
    return taught


def _points_of(
    spent: spending.SpentBudget, most_points: Sequence[int], own_points: Mapping[str, int]
) -> tuple[int, ...]:
    """For each event, how many of its points belong to this person: as counted in this text, by
    unit, or for another text the ``most_points`` that anybody has there."""
    run_of_event = [entry for entry in spent.private for _ in entry.events or ()]
    points = []
    for entry, most in zip(run_of_event, most_points, strict=True):
        is_this_text = entry.corpus == spent.corpus_sha256
        points.append(min(most, own_points.get(entry.unit, 1)) if is_this_text else most)
    return tuple(points)


def _epsilon(
    events: Sequence[SampledGaussian], person_points: Sequence[int], delta: float
) -> float | str:
    if not events:
        return 0.0
    return round_bound_up(
        privacy_cost.epsilon(
            events, delta=delta, neighbouring_relation="replace", group=tuple(person_points)
        )
    )


def _guess(
    events: Sequence[SampledGaussian], person_points: Sequence[int], delta: float
) -> dict[str, Any]:
    advantage = guess_bounds.guess_advantage(
        tuple(events), copies=1, trace_rate=1.0, neighbouring_relation="replace",
        group=tuple(person_points),
    )  # fmt: skip
    right_guess = round_chance_up(guess_bounds.right_guess_rate(advantage))
    return {"epsilon": _epsilon(events, person_points, delta), "right_guess": right_guess}


def render_leaver_page(facts: Mapping[str, Any]) -> str:
    """The page for those who decide: what was learned, what is promised, what a retraining would
    spend. It contains no name and no text."""
    return html.render_template("leaver.html.j2", f=facts)


def format_leaver(facts: Mapping[str, Any]) -> list[str]:
    """The lines that ``crtlib leaver`` prints."""
    models, unprotected, taught = facts["models"], facts["unprotected"], facts["taught"]
    planned = facts["planned"]
    noisy = len(models) - unprotected - taught - planned
    messages = count_of(facts["turns"], "message", "messages")
    lines = [f"{messages} in {count_of(facts['dialogues'], 'conversation', 'conversations')}"]
    if not models:
        exception = " except struck ones" if facts["struck"] else ""
        lines.append(
            f"no model{exception} is known here that has read this text, or another text of its "
            "people"
        )
    if noisy:
        whole, message = facts["whole"], facts["message"]
        lines.append(
            f"{noisy} trained with noise: epsilon {whole['epsilon']} of all of them together, "
            f"right guesses at most {100 * whole['right_guess']:.4g} of 100; of one message "
            f"{message['epsilon']}, {100 * message['right_guess']:.4g} (delta {facts['delta']:g})"
        )
    if facts["plain"]:
        lines.append(
            f"{facts['plain']} of them may have learned without noise what a search left plain: "
            "nothing is promised about such messages"
        )
    if unprotected:
        lines.append(f"{unprotected} trained without protection, or void: nothing is promised")
    if planned:
        lines.append(
            f"{planned} trained by a plan: the certificate promises something about each secret in "
            "it, and nothing about a person"
        )
    if taught:
        lines.append(
            f"{taught} screened by a search that people of the text taught: whether this person is "
            "one of them is not known here, and nothing is promised about those who are"
        )
    if noisy:
        lines.append(
            f"trained once more without this person, with the {facts['again']['steps']:,} steps, "
            "the noise and the sampling of the last of those with noise: by these alone, of one "
            f"message of everybody else, epsilon {message['epsilon']} becomes "
            f"{facts['again']['epsilon']}; of fewer messages these are others"
        )
    if facts["assumed"]:
        lines.append(f"assumed: {'; '.join(facts['assumed'])}")
    known = facts["treated_as_public"] + [f"{d['of']}: {d['value']}" for d in facts["declared"]]
    if known:
        lines.append(f"treated as known: {'; '.join(known)}")
    if facts["struck"]:
        runs = count_of(facts["struck"], "run that was", "runs that were")
        lines.append(
            f"not counted: {runs} struck, for which somebody stated that nobody ever saw the model"
        )
    if facts["forgotten"]:
        texts = count_of(facts["forgotten"], "text that was", "texts that were")
        lines.append(
            f"not counted: models of {texts} forgotten, for which nobody knows whether they were "
            "of the same people"
        )
    return lines
