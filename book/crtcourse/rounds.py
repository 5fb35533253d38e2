"""Rounds of the defence lab: each team's model is handed to the others, who attack it.

A team's plan is trained once more, on people of the team's own, so that no model tells of
another's. Who attacks it sees the model, and sentences of its training text with five values each
for a secret, and hands in which value is true, and up to twenty numbers that customers said.

>>> form(["ann"])["guesses"]
{'ann': {'values': [], 'numbers': []}}
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from crtcourse import attack, defence, keys, labs
from crtcourse.labs import clipped, numbers, reason
from crtlib import files, outputs
from crtlib.models import folder as folders

POINTS = {"held": 20.0, "found": 20.0}
"""What a useful model earns from which nobody gets anything, and who gets the most from all."""


def form(teams: Iterable[str]) -> dict[str, Any]:
    """An empty form for what was found in the models of these teams."""
    return {"lab": "round", "guesses": {team: {"values": [], "numbers": []} for team in teams}}


def people(key: Mapping[str, Any], team: str) -> labs.People:
    """Whom a team's model is trained on."""
    seed = keys.seed(bytes.fromhex(key["secret"]), "round", team)
    return labs.draw(seed=seed, dialogues=defence.DIALOGUES)


def asked(of: labs.People) -> tuple[tuple[tuple[str, ...], ...], np.ndarray]:
    """The sentences with their candidates, and which is true."""
    return attack.ask(of, of.points, np.random.default_rng([of.seed, 19]))


def hand_out(plan: Mapping[str, Any], team: str, key: Mapping[str, Any], folder: Path) -> None:
    """Train a team's plan on people of its own; write what the others get below ``folder``."""
    if not keys.NAME.fullmatch(team):
        raise ValueError("the file's name must be letters, digits, spaces and .'@-")
    own = people(key, team)
    fitted = defence.trained(defence.parse(plan), own)
    outputs.check_folder(folder / team)
    with outputs.staged(folder / team, command="round", options={}, public=("*",)) as part:
        folders.save(fitted.model, fitted.tokenizer, fitted.spec, part / "model")
        files.write_text(part / "questions.json", json.dumps(asked(own)[0], indent=1) + "\n")


def share(guess: Mapping[str, Any], of: labs.People) -> float:
    """What an attacker got out of a model, beyond what luck gives one time in a hundred, in
    [0, 1]."""
    _, truth = asked(of)
    said = set(map(str, guess["numbers"]))
    if len(said) > attack.GUESSES:
        raise ValueError(f"{len(said)} numbers, at most {attack.GUESSES} count")
    luck = stats.binom.ppf(0.99, len(truth), 1 / attack.CANDIDATES) / len(truth)
    right = np.mean(numbers(guess["values"], len(truth)) == truth) if guess["values"] else 0.0
    named = clipped((float(right) - luck) / (1 - luck))
    return (named + len(said & set(of.canaries)) / len(of.canaries)) / 2


def marks(
    found: Mapping[str, Any],
    useful: Mapping[str, bool],
    key: Mapping[str, Any],
    wrong: dict[str, str],
) -> dict[str, dict[str, float]]:
    """The points of each team, attackers without a model included; what is wrong with their
    guesses is noted in ``wrong``.

    ``found`` has each attacker's guesses by team, ``useful`` each team with a model and whether it
    is of use: one of no use holds nothing. Points for what was found are shares of the best.
    """
    got = {name: dict.fromkeys(useful, 0.0) for name in {*found, *useful}}
    for team in useful:
        own = people(key, team)
        for name in [name for name in found if name != team and team in found[name]]:
            try:
                got[name][team] = share(found[name][team], own)
            except Exception as error:  # these guesses alone earn nothing
                wrong[name] = f"guesses of {team}: {reason(error)}"
    best = {team: max(row[team] for row in got.values()) for team in useful}
    out = {}
    for name, row in got.items():
        parts = [row[team] / best[team] for team in useful if best[team] and team != name]
        shares = {
            "held": 1 - best[name] if useful.get(name) else 0.0,
            "found": sum(parts) / max(1, len(parts)),
        }
        out[name] = {what: round(POINTS[what] * part, 1) for what, part in shares.items()}
    return out
