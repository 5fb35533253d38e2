"""What both labs share: a class of simulated people, a model trained on them, and marks.

>>> people = draw_people(seed=3, dialogues=12, canaries=2)
>>> len(people.canaries), people.points[0].text.split(":")[0]
(2, 'USR')
>>> fitted = fit_model(people, "sgd", PublicConstants(epochs=1, batch_size=32, learning_rate=1e-2))
>>> fitted.events, fitted.prepared.duplicates
([], 0)
>>> marks = Marks({"one": 60, "two": 40})
>>> marks.add("one", 1.0, "never shown"), marks.add("two", lambda: 1 / 0, "look at the units")
(None, None)
>>> marks.total, marks.hints
(60.0, ['two: not graded: division by zero'])
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from crtlib.models.construction import build_model
from crtlib.models.specs import ModelSpec
from crtlib.screening.policy import Policy
from crtlib.screening.preparation import (
    DedupScope,
    DuplicateTreatment,
    PreparedPoints,
    prepare_points,
)
from crtlib.screening.redaction import redact
from crtlib.screening.regex_policies import corpus_regex_policy, everything_policy
from crtlib.text import canaries as _planted
from crtlib.text import customersim, data_points
from crtlib.text.records import Point
from crtlib.text.tokenizer import BpeTokenizer, train_bpe
from crtlib.training import methods
from crtlib.training.loop import train_model
from crtlib.training.methods import PublicConstants

COPIES = 20
"""How often each canary is said, as in CRT."""
HIDDEN = 64
"""The width of every model of the labs."""


@dataclass(frozen=True, repr=False)
class People:
    """The text of a lab: turns to train on, with the canaries among them; turns of people on whom
    no model is trained, half of which are for testing; and the canaries."""

    seed: int
    points: tuple[Point, ...]
    others: tuple[Point, ...]
    test: tuple[Point, ...]
    canaries: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Fitted:
    """A trained model, what it read, and the noisy steps that ran."""

    model: nn.Module
    spec: ModelSpec
    tokenizer: BpeTokenizer
    prepared: PreparedPoints
    events: list[Any]


def draw_people(
    *, seed: int, dialogues: int, canaries: int = 10, carrier: str = _planted.CANARY_CARRIER
) -> People:
    """Simulated customers: ``dialogues`` to train on, as many by other people, and a third as many
    for a test. ``carrier`` is the text before the digits of a canary."""
    sizes = (dialogues, dialogues, max(1, dialogues // 3))
    train, others, test = (
        customersim.simulate_corpus(n, 1000 * (seed + 1) + k) for k, n in enumerate(sizes)
    )
    numbers = _planted.make_canaries(canaries, seed=seed)
    planted = _planted.insert_canaries(train, numbers, copies=COPIES, seed=seed, carrier=carrier)
    train_points, fresh, tried = (
        data_points.make_points(c, unit="turn") for c in (planted, others, test)
    )
    return People(seed, train_points, fresh, tried, numbers)


def train_tokenizer(people: People) -> BpeTokenizer:
    """A vocabulary from public text: the turns of other people, with every secret masked."""
    return train_bpe((redact(p, p.secrets).text for p in people.others), vocab_size=512)


def fit_model(
    people: People,
    method: str,
    constants: PublicConstants,
    *,
    pi: Policy | None = None,
    pi_c: Policy | None = None,
    dedup: DedupScope = "all",
    duplicates: DuplicateTreatment = "drop",
    tokens: BpeTokenizer | None = None,
    private_part: bool = True,
    team: int = 0,
) -> Fitted:
    """Screen as the method requires, then train an LSTM. All randomness follows from the class's
    seed and the ``team``, so that two models share neither first weights nor noise.

    Args:
        people: The text.
        method: The method, by name.
        constants: The public constants of the training.
        pi: What it redacts; None: the shapes of the simulator's secrets.
        pi_c: What else is private; None: the same shapes.
        dedup: Which points are deduplicated, by a method that does so.
        duplicates: What happens to copies.
        tokens: The vocabulary; None: one of public text.
        private_part: Without it the model reads only public text, in the same phases.
        team: Tells models of one class apart.

    Returns:
        The model, what it read, and the noisy steps that ran.

    Raises:
        ValueError: If no point is private and the method trains with noise.
    """
    method_traits = methods.method_by_name(method)
    pi = pi or corpus_regex_policy()
    pi_c = pi_c or corpus_regex_policy()
    if method_traits.reads_raw:
        prepared = prepare_points(
            people.points, None, everything_policy(people.points), dedup="none"
        )
    else:
        prepared = prepare_points(
            people.points,
            pi(people.points),
            pi_c(people.points),
            dedup=dedup if method_traits.deduplicates else "none",
            duplicates=duplicates,
        )
    tokens = tokens or train_tokenizer(people)
    token_parts = {
        name: tokens.encode(p.text for p in getattr(prepared, name))
        for name in ("public", "private")
    }
    if method_traits.private and not token_parts["private"]:
        raise ValueError("policies: no point is private, so there is nothing to train with noise")
    spec = ModelSpec("lstm", vocab_size=tokens.vocab_size, embedding=HIDDEN, hidden=HIDDEN)
    phases = method_traits.phases(replace(constants, has_public=bool(token_parts["public"])))
    phases = [phase for phase in phases if private_part or phase.part != "private"]
    seed = people.seed % 2**62  # the largest that torch accepts
    if team:
        seed = int(np.random.default_rng([people.seed, team]).integers(2**62))
    model = build_model(spec, seed)
    if not phases:  # everything is private, and that part is left out
        return Fitted(model, spec, tokens, prepared, [])
    run = train_model(model, phases, token_parts, seed=seed)
    return Fitted(run.model, spec, tokens, prepared, run.events)


# --------------------------------------------------------------------------- marks
def describe_error(error: Exception) -> str:
    """An error in one short line that prints anywhere."""
    message = str(error) or type(error).__name__
    return make_printable(
        f"{message[:200]}: is missing" if isinstance(error, KeyError) else message[:200]
    )


def make_printable(text: str) -> str:
    """The text without what no table can hold: line ends, controls, halves of characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


@dataclass
class Marks:
    """``of`` is what each task is worth; ``earned`` and ``hints`` grow as tasks are judged."""

    of: Mapping[str, float]
    earned: dict[str, float] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)

    def add(
        self, task: str, share: float | Callable[[], float], hint: str, least: float = 0.0
    ) -> None:
        """Credit a share of a task's points.

        Args:
            task: The task.
            share: The share, or a function that computes it; one that cannot be computed is 0.
            hint: What the student reads if the share is below one half.
            least: The least share that is credited; the most is 1.
        """
        try:
            value = share() if callable(share) else share
        except TimeoutError:
            raise
        except Exception as error:  # whatever a submission holds, the other tasks are marked
            value = 0.0
            hint = f"not graded: {describe_error(error)}"
        self.earned[task] = round(self.of[task] * min(1.0, max(least, value)), 1)
        if value < 0.5:
            self.hints.append(f"{task}: {hint}")

    @property
    def total(self) -> float:
        """All points."""
        return round(max(0.0, sum(self.earned.values())), 1)


def clip(value: float) -> float:
    """``value`` clipped to [0, 1]."""
    return float(min(1.0, max(0.0, value)))


def read_number(written: Any) -> float:
    """A finite number from a submission, even if it was written as text; ``ValueError`` for
    anything else.

    >>> read_number("17.35"), read_number(2)
    (17.35, 2.0)
    """
    if written is None or written == "":
        raise ValueError("nothing is handed in yet")
    try:
        value = float(written[:40] if isinstance(written, str) else written)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(written, bool) or not math.isfinite(value):
        raise ValueError(f"{str(written)[:40]!r}: must be a finite number")
    return value


def read_numbers(written: Any, count: int) -> np.ndarray:
    """A list of ``count`` finite numbers; ``ValueError`` for anything else."""
    if written in ([], None):
        raise ValueError(f"nothing is handed in yet; it wants a list of {count} numbers")
    if not isinstance(written, list) or len(written) != count:
        have = f"yours has {len(written)}" if isinstance(written, list) else "yours is no list"
        raise ValueError(f"hand in a list of {count} numbers; {have}")
    return np.array([read_number(number) for number in written])
