"""What the models of a text promise of one person who leaves, and what a retraining would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confide import spending, text_registry
from confide.odometer_lines import OdometerEntry
from confide.release import rate_bounds
from confide.release.composed_promise import round_bound_up, round_chance_up
from confide.reports import html
from crtlib.accounting import guess_bounds, ledger
from crtlib.accounting.events import SampledGaussian
from crtlib.checks import check_delta
from crtlib.files import StrPath
from crtlib.text import corpora, screened_folder


def describe_leaver(corpus: StrPath, user: str, *, delta: float = 1e-6) -> dict[str, Any]:
    """What all models that are known to have read a text promise of one of its people.

    Who guesses knows the models and all else, and guesses whether they had read all that this
    person says, or as many other messages in their place. Of this text the points of the person are
    counted; of another one that has conversations, people or messages of it, as many are taken as
    anybody has there.

    Args:
        corpus: Corpus folder or JSONL, not screened.
        user: Who leaves, as the corpus calls them; it is in no answer.
        delta: Of the epsilons, in (0, 1).

    Returns:
        ``crtlib/leaver/1``: ``turns`` and ``dialogues`` of the person; ``models``, a row each;
        ``whole`` and ``message``, epsilon and right guesses (in [0, 1]) about all that the person
        said and about one message, by all models that learned with noise; ``unprotected`` and
        ``plain``, how many models promise nothing, and how many learned what a search left plain
        without noise; ``again``: the epsilon of one message after the last training once more.

    Raises:
        ValueError: For a screened folder, and where the text has nobody who is called so.

    Guarantee:
        Of all that the person says no guess is right more often, as far as it was learned with
        noise. Tests: ``tests/release/test_leaver.py::test_all_points_of_a_person_are_counted``,
        ``tests/release/test_leaver.py::test_what_was_learned_without_noise_is_said``.
    """
    check_delta(delta)
    if screened_folder.is_screened_folder(corpus):
        raise ValueError(f"{corpus}: is screened, and its people have other names; give the corpus")
    own = [len(d.turns) for d in corpora.read_dialogues(corpus) if d.user == user]
    if not own:
        raise ValueError("--user: nobody in the corpus is called so")
    held = {"turn": sum(own), "dialogue": len(own)}

    text = text_registry.register_text(corpus)
    registry = text_registry.Registry(text_registry.registry_home())
    history = spending.read_history_of(corpus, text, registry)
    spent = rate_bounds.with_current_bounds(history).spent()
    longest = corpora.max_points_per_unit(corpus)["user"]

    sizes = _points_of(spent, spent.groups("user", longest), held)
    one = spent.groups("turn", {"turn": 1})
    rows, place = [], 0
    for e in spent.entries:
        protects = e in spent.private
        mine: Sequence[int] = ()
        if protects:
            mine = sizes[place : place + len(e.events or ())]
            place += len(mine)
        rows.append(
            {"time": e.time[:10], "model": e.model, "method": e.method, "unit": e.unit,
             "points": max(mine, default=None), "plain": e.delta2 if protects else None}
            | {"epsilon": _epsilon(e.charged or (), mine, delta) if protects else None}
        )  # fmt: skip
    last = next((e for e in reversed(spent.private)), None)
    again = tuple(last.charged or ()) if last else ()
    return {
        "schema": "crtlib/leaver/1",
        **{f"{unit}s": number for unit, number in held.items()},
        "delta": delta,
        "models": rows,
        "whole": _guess(spent.events, sizes, delta),
        "message": _guess(spent.events, one, delta),
        "unprotected": spent.unprotected,
        "plain": sum(e.delta2 > 0 for e in spent.private),
        "again": {
            "steps": sum(event.steps for event in again),
            "epsilon": _epsilon((*spent.events, *again), (*one, *(1 for _ in again)), delta),
        },
        "forgotten": registry.count_forgotten_texts(text),
        "assumed": list(dict.fromkeys(said for e in spent.private for said in e.assumed)),
    }


def _points_of(
    spent: spending.SpentBudget, most: Sequence[int], held: Mapping[str, int]
) -> tuple[int, ...]:
    """Of each event how many of its points this person has: counted in this text, in another one
    the ``most`` that anybody has there."""
    runs = [e for e in spent.private for _ in e.events or ()]

    def own(e: OdometerEntry, bound: int) -> int:
        return min(bound, held.get(e.unit, 1)) if e.corpus == spent.corpus else bound

    return tuple(own(e, bound) for e, bound in zip(runs, most, strict=True))


def _epsilon(events: Sequence[SampledGaussian], sizes: Sequence[int], delta: float) -> float | str:
    if not events:
        return 0.0
    return round_bound_up(
        ledger.epsilon(events, delta=delta, neighbouring_relation="replace", group=tuple(sizes))
    )


def _guess(events: Sequence[SampledGaussian], sizes: Sequence[int], delta: float) -> dict[str, Any]:
    gained = guess_bounds.guess_advantage(
        tuple(events), copies=1, trace_rate=1.0, neighbouring_relation="replace",
        group=tuple(sizes),
    )  # fmt: skip
    right = round_chance_up(guess_bounds.right_guess_rate(gained))
    return {"epsilon": _epsilon(events, sizes, delta), "right_guess": right}


def render_leaver_page(facts: Mapping[str, Any]) -> str:
    """The page for who decides: what was learned, what is promised, what a retraining would take;
    no name and no text."""
    return html.render_template("leaver.html.j2", f=facts)


def format_leaver(facts: Mapping[str, Any]) -> list[str]:
    """What ``crtlib leaver`` prints."""
    models, bare = facts["models"], facts["unprotected"]
    noisy = len(models) - bare
    lines = [f"{facts['turns']:,} messages in {facts['dialogues']:,} conversations"]
    if not models:
        return [*lines, "no model is known here that has read this text, or another of its people"]
    if noisy:
        whole, one = facts["whole"], facts["message"]
        lines.append(
            f"{noisy} trained with noise: epsilon {whole['epsilon']} of all of them together, "
            f"right guesses at most {100 * whole['right_guess']:.4g} of 100; of one message "
            f"{one['epsilon']}, {100 * one['right_guess']:.4g} (delta {facts['delta']:g})"
        )
    if facts["plain"]:
        lines.append(
            f"{facts['plain']} of them learned what a search left plain without noise: nothing is "
            "promised of such messages"
        )
    if bare:
        lines.append(f"{bare} trained without protection, or void: nothing is promised")
    if noisy:
        lines.append(
            f"trained once more without this person: {facts['again']['steps']:,} steps as the last "
            f"time; of one message of everybody else epsilon {one['epsilon']} becomes "
            f"{facts['again']['epsilon']}"
        )
    return lines
