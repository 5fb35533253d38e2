"""White-box audits: what is proved of each private method, and what a game shows at least.

>>> row = audit_methods(["dpsgd_replace"], games=2000, epsilons=(3.0,), noises=(1.0,)).iloc[0]
>>> bool(0.7 * row.proved < row.audited < row.proved)
True

A game trains a model with or without a canary, by the method's own phases and loop, and shows every
released update to an attacker who knows everything else. One training holds ``games`` canaries at
once, each in or out by its own coin. Each canary has its own embedding, and only embeddings learn,
so their gradients are orthogonal, no update of one moves another, and the games are independent. A
canary is the strongest possible: its gradient is clipped, and exactly opposite with ``<MASK>`` or
another value in its place, because two of the model's output weights are opposite. The score is the
likelihood ratio.

The attacker states for each game whether the canary was in. At most (1 + TV) / 2 of these guesses
are correct, where TV is the total variation that the accountant proves. More correct guesses than
its noise allows refute the proof (a test of the trade-off curve at its middle, as Nasr and others
2023 test it at a point). The audited epsilon is that of the largest noise that is not refuted. It
is known before the game how many correct guesses would refute the proof, and so is the power: how
often less noise is noticed.
"""

import bisect
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy
import torch
from pandas import DataFrame
from scipy import optimize, sparse
from torch import Tensor, nn

from crtbook.auditing import Law, log_ratio
from crtbook.tight import compose
from crtlib.accounting import confidentiality, group_mixtures, privacy_cost, secret_protection
from crtlib.checks import check_allowed, check_choice
from crtlib.intervals import clopper_pearson
from crtlib.models.recurrent import Lstm
from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.specs import ModelSpec
from crtlib.screening import policy_changes, regex_policies
from crtlib.screening.preparation import prepare_points
from crtlib.text.records import MASK, Point, Secret
from crtlib.training import schedules
from crtlib.training.loop import train_model
from crtlib.training.noise import RandomSource
from crtlib.training.selective import SelectivePhase

DELTA = 1e-3
CLIP = 1e-3  # small, so that the model hardly moves and a canary's gradient keeps its direction
ALONG = 1  # the coordinate of an embedding along which canaries push
YES, NO, END = 0, 1, 2  # tokens; canary i has the token FIRST + i
FIRST = 3
SAMPLED = 0.7  # the sampling probability of a point; an epoch is one step, so each epoch is seen
AT_ONCE = 40_000  # games in one training
LEAST, MOST = 0.05, 50.0  # the audited noise is searched between these multiples of the declared
Proof = tuple[float, float]
"""What the accountant proves: epsilon at :data:`DELTA`, and the total variation."""


@dataclass(frozen=True)
class Games:
    """The games of one training: ``scores`` (games,) of the attacker are positive where he guesses
    that the canary was in, and ``included`` (games,) says whether it was. ``proof(x)`` is what the
    accountant proves of x times the declared noise."""

    scores: np.ndarray
    included: np.ndarray
    proof: Callable[[float], Proof]


Play = Callable[[int, float, int, float], Games]
"""``play(games, noise, seed, scale)``: one training that declares ``scale`` times the method's own
noise, and adds ``noise`` times what it declares."""


# --------------------------------------------------------------------------- the model
class LowRank(nn.Module):
    """A fixed embedding (vocabulary, size) plus a product of rank 2 that learns (LoRA; Hu et al.
    2021). The first factor of the product starts at zero."""

    def __init__(self, base: nn.Embedding, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Embedding(base.num_embeddings, 2)
        self.up = nn.Linear(2, base.embedding_dim, bias=False)
        nn.init.zeros_(self.down.weight)
        nn.init.normal_(self.up.weight, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, time) -> (batch, time, size)."""
        states: Tensor = self.base(ids) + self.up(self.down(ids))
        return states


def _model(games: int) -> RecurrentLM:
    """An LSTM in which only a token's own embedding decides its gradient: the output weights for
    YES and NO are opposite, the others are zero, and the gates are half open."""
    model = RecurrentLM(ModelSpec("lstm", vocab_size=FIRST + games, embedding=4, hidden=4))
    (cell,) = model.layers
    assert isinstance(cell, Lstm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_().requires_grad_(False)
        cell.weight[12:, :4] = 10 * torch.eye(4)  # the candidate of the cell
        model.head.weight[YES, ALONG], model.head.weight[NO, ALONG] = 1.0, -1.0
    model.embedding.weight.requires_grad_(True)
    return model


def _train_and_record_pushes(
    model: RecurrentLM,
    phases: Sequence[Any],
    parts: dict[str, list[list[int]]],
    *,
    seed: int,
    private_tokens: dict[str, list[list[bool]]] | None = None,
) -> tuple[np.ndarray, list[Any]]:
    """Train; return the events, and how far each epoch moved each canary's embedding towards YES,
    (epochs, games), in clip norms."""
    table, along, positions = model.embedding, torch.eye(4)[ALONG], list[Tensor]()
    if isinstance(table, LowRank):
        along = nn.functional.normalize(table.up.weight[ALONG], dim=0).detach().clone()
        table = table.down
    weight = table.weight

    def record_position(epoch: int, _: nn.Module) -> dict[str, float]:
        positions.append(weight.detach()[FIRST:] @ along)
        return {}

    record_position(0, model)
    trained = train_model(
        model, phases, parts, private_tokens=private_tokens, seed=seed, optimizer="sgd",
        on_epoch=record_position,
    )  # fmt: skip
    return torch.stack(positions).diff(dim=0).double().numpy() / CLIP, trained.events


def _law_of_pushes(steps: int, sign: int) -> Law:
    """The law of a canary's push in one epoch: how often it is drawn, with the sign of the push."""
    counts = np.arange(steps + 1)
    return sign * counts.astype(float), scipy.stats.binom.pmf(counts, steps, SAMPLED)


def _flip_coins(games: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 17]).random(games) < 0.5


def _private_constants(sigma: float, games: int) -> schedules.DpSgdConstants:
    return schedules.DpSgdConstants(
        sampling_probability=SAMPLED, noise_multiplier=sigma, clip_norm=CLIP,
        normaliser=SAMPLED * games, learning_rate=SAMPLED * games,
    )  # fmt: skip


def _prove_steps(
    events: Sequence[Any], sigma: float, relation: str, gamma: float = 1.0
) -> Callable[[float], Proof]:
    """What is proved of steps that declare ``sigma``, where a policy misses with ``gamma``."""

    @functools.cache
    def proof(x: float) -> Proof:
        declared = [replace(event, noise_multiplier=sigma * x) for event in events]
        epsilon = confidentiality.confidentiality_epsilon(
            declared, gamma=gamma, total_delta=DELTA, neighbouring_relation=relation
        )
        return epsilon, gamma * privacy_cost.delta(
            declared, epsilon=0.0, neighbouring_relation=relation
        )

    return proof


def _score_pushes(pushes: np.ndarray, sigma: float, steps: int, *, against: int) -> np.ndarray:
    """The likelihood ratio of pushes towards YES against pushes of the sign ``against``."""
    inside_law, other_law = _law_of_pushes(steps, 1), _law_of_pushes(steps, against)
    outside_law = other_law if against else (np.zeros(1), np.ones(1))
    return log_ratio(pushes, inside=inside_law, outside=outside_law, sigma=sigma * np.sqrt(steps))


# --------------------------------------------------------------------------- the methods
def play_dpsgd(
    games: int,
    noise: float,
    seed: int,
    scale: float = 1.0,
    *,
    relation: str,
    low_rank: bool = False,
) -> Games:
    """DP-SGD on every point. The canary is there or not ("add_or_remove"), or has another value
    ("replace"). With ``low_rank`` only a low-rank addition to frozen weights learns."""
    sigma, epochs = 2.5 * scale, 4
    model, included = _model(games), _flip_coins(games, seed)
    if low_rank:
        added = LowRank(model.embedding, torch.Generator().manual_seed(seed))
        model.embedding = added  # type: ignore[assignment]
    private, swapped = _private_constants(sigma * noise, games), relation != "add_or_remove"
    points = []
    for i, is_included in enumerate(included):
        if is_included or swapped:
            points.append([FIRST + i, YES if is_included else NO])
    phases = schedules.dpsgd_phases(epochs=epochs, private=private)
    pushes, events = _train_and_record_pushes(model, phases, {"private": points}, seed=seed)
    scores = _score_pushes(pushes, sigma, private.steps, against=-swapped)
    return Games(scores, included, _prove_steps(events, sigma, relation))


def play_crt(
    games: int, noise: float, seed: int, scale: float = 1.0, *, gamma: float = 0.3
) -> Games:
    """CRT. In one world the point has its secret, which the policy misses with probability
    ``gamma``; in the other it has ``<MASK>``. Algorithm 1 redacts, and public epochs alternate with
    private ones."""
    sigma, epochs = 2.5 * scale, 4
    included = _flip_coins(games, seed)
    points = [Point("public", "nobody", "end end end")]
    for i, is_included in enumerate(included):
        text = f"{i} {'yes' if is_included else MASK}"
        spans = (Secret("value", len(text) - 3, len(text)),) if is_included else ()
        points.append(Point(str(i), str(i), text, spans))
    pi = policy_changes.with_misses(regex_policies.oracle_policy, gamma, seed)
    prepared = prepare_points(
        points, pi(points), regex_policies.oracle_policy(points), dedup="none"
    )
    token_ids = {"yes": YES, MASK: NO, "end": END}

    def encode(subset: Sequence[Point]) -> list[list[int]]:
        split = [re.findall(r"<MASK>|\w+", p.text) for p in subset]
        return [[token_ids[w] if w in token_ids else FIRST + int(w) for w in row] for row in split]

    private = _private_constants(sigma * noise, games)
    phases = schedules.crt_phases(
        epochs=epochs, pub_passes=1, public_batch_size=1, public_learning_rate=CLIP, private=private
    )
    parts = {"public": encode(prepared.public), "private": encode(prepared.private)}
    pushes, events = _train_and_record_pushes(_model(games), phases, parts, seed=seed)
    scores = _score_pushes(pushes, sigma, private.steps, against=-1)
    return Games(scores, included, _prove_steps(events, sigma, "replace", gamma))


@dataclass(frozen=True, kw_only=True)
class _Watched(SelectivePhase):
    """S-DP that shows the states it releases, and for which points, to the attacker."""

    seen: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    def batches(self, lengths: Tensor, generator: RandomSource) -> Iterator[Tensor]:
        """The same batches, recorded."""
        for indices in super().batches(lengths, generator):
            self.seen.append(indices)
            yield indices

    def released(self, x: Tensor, noise: RandomSource) -> Tensor:
        """The same states, recorded along the direction in which YES and NO differ."""
        states = super().released(x, noise)
        if self.hidden_clip:
            self.seen.append(states[:, 0] / self.hidden_clip)
        return states

    def pushes(self, games: int) -> np.ndarray:
        """The output and the cell that were released for each canary, (2, games), in clip norms."""
        indices, released_states = self.seen[0], self.seen[1:]
        order = np.argsort(indices.numpy())
        return np.stack([torch.cat(released_states[k::2]).double().numpy()[order] for k in (0, 1)])


def play_sdp(games: int, noise: float, seed: int, scale: float = 1.0) -> Games:
    """S-DP with a perfect policy: one private token of the point is replaced by another. The
    attacker sees the private updates and the states that leave the private segments."""
    sigma, epochs = 8.0 * scale, 4
    included, model = _flip_coins(games, seed), _model(games)
    with torch.no_grad():  # the states after YES and NO are opposite, and push no further
        model.embedding.weight[YES, 0], model.embedding.weight[NO, 0] = 1.0, -1.0
    watched = [
        _Watched(
            epoch=epoch, batch_size=games, private_segments=1, noise_multiplier=sigma * noise,
            clip_norm=CLIP, hidden_clip=0.05, public_learning_rate=CLIP,
            private_learning_rate=games,
        )
        for epoch in schedules.epoch_numbers(epochs)
    ]  # fmt: skip
    points = [
        [FIRST + i, YES if is_included else NO, END, END] for i, is_included in enumerate(included)
    ]
    marks = [[False, True, False, False]] * games
    pushes, events = _train_and_record_pushes(
        model, watched, {"private": points}, private_tokens={"private": marks}, seed=seed
    )
    releases = np.concatenate([pushes, *(phase.pushes(games) for phase in watched)])
    unit_mass = np.ones(1)
    scores = log_ratio(
        releases, inside=(unit_mass, unit_mass), outside=(-unit_mass, unit_mass), sigma=sigma
    )
    return Games(scores, included, _prove_steps(events, sigma, "replace"))


COPIES, ROUNDS = 3, 4


@functools.lru_cache(maxsize=4)
def _plan_weights(games: int) -> secret_protection.ProtectionPlan:
    """A plan for as many secrets, each in ``COPIES`` examples, and as many examples without one."""
    with_secret = sparse.kron(sparse.eye_array(games), np.ones((1, COPIES)))
    without_secret = sparse.csr_array((games, games))
    incidence = sparse.csr_array(sparse.hstack([with_secret, without_secret]))
    return secret_protection.plan_protection(
        incidence,
        0.01,
        0.1,
        steps=ROUNDS,
        batch_size=games,
        scale=1.0,
        neighbouring_relation="reference",
    )


def play_lp_weighted(games: int, noise: float, seed: int, scale: float = 1.0) -> Games:
    """Weighted DP-SGD (Hush!). Each secret is in three examples, whose weights come from the linear
    program. In one world its examples have no gradient (the reference relation)."""
    plan, included = _plan_weights(games), _flip_coins(games, seed)
    sigma = plan.noise_multiplier * scale
    phases = schedules.weighted_phases(
        replace(plan, noise_multiplier=sigma * noise), epochs=ROUNDS, clip_norm=CLIP,
        learning_rate=float(games),
    )  # fmt: skip
    points = [[FIRST + i, *([YES] if included[i] else [])] for i in range(games)]
    rows = [row for row in points for _ in range(COPIES)] + [[END, END]] * games
    pushes, events = _train_and_record_pushes(_model(games), phases, {"private": rows}, seed=seed)
    rates = np.sort(plan.probabilities[: COPIES * games].reshape(games, COPIES), axis=1)
    kinds, kind = np.unique(rates.round(12), axis=0, return_inverse=True)
    scores, laws = np.zeros(games), []
    for k, group_rates in enumerate(kinds):
        law, is_of_kind = group_mixtures.poisson_binomial(group_rates.tolist()), kind.ravel() == k
        laws.append((tuple(law.tolist()), float(is_of_kind.mean())))
        inside, outside = (np.arange(len(law), dtype=float), law), (np.zeros(1), np.ones(1))
        scores[is_of_kind] = log_ratio(
            pushes[:, is_of_kind], inside=inside, outside=outside, sigma=sigma
        )

    @functools.cache
    def proof(x: float) -> Proof:
        proofs = [_prove_group(law, sigma * x, len(events)) for law, _ in laws]
        shares = [share for _, share in laws]
        return max(e for e, _ in proofs), float(np.dot(shares, [tv for _, tv in proofs]))

    return Games(scores, included, proof)


@functools.lru_cache(maxsize=256)
def _prove_group(
    law: tuple[float, ...],
    sigma: float,
    steps: int,
    directions: tuple[group_mixtures.DivergenceDirection, ...] = ("forward", "backward"),
) -> Proof:
    """What is proved for a secret whose examples are drawn by ``law``, against their absence or
    another secret."""
    compositions = [compose(law, sigma, steps, direction=w, points=2**15) for w in directions]
    epsilon = max(composed.epsilon(DELTA)[1] for composed in compositions)
    return epsilon, max(composed.delta(0.0)[1] for composed in compositions)


@dataclass(frozen=True)
class Audit:
    """A method that prints an epsilon, and the game that audits it."""

    name: str
    label: str
    relation: str
    play: Play
    at_once: int = AT_ONCE  # games in one training


AUDITS = (
    Audit(
        "dpsgd", "DP-SGD", "add_or_remove",
        functools.partial(play_dpsgd, relation="add_or_remove"),
    ),
    Audit("dpsgd_replace", "DP-SGD", "replace", functools.partial(play_dpsgd, relation="replace")),
    Audit("crt", "CRT", "replace", play_crt),
    Audit("selective", "S-DP", "replace", play_sdp),
    Audit("lp_weighted", "LP-weighted", "reference", play_lp_weighted),
    Audit(
        "dpsgd_lora", "DP-SGD, low rank", "replace",
        functools.partial(play_dpsgd, relation="replace", low_rank=True),
    ),
)  # fmt: skip
"""Every private method, with the relation for which its guarantee is printed."""


def least_refuting_guesses(games: int, proved: float, *, confidence: float = 0.95) -> int:
    """The least number of correct guesses in ``games`` that shows a total variation above the one
    that is ``proved``; ``games`` + 1 where no number does."""
    return bisect.bisect_right(
        range(games + 1),
        proved,
        key=lambda correct: _least_total_variation(correct, games, confidence),
    )


def detection_power(games: int, proved: float, true: float, *, confidence: float = 0.95) -> float:
    """How often the audit refutes a proof of total variation ``proved`` when the attacker reaches
    ``true``, by the binomial law of correct guesses. With less noise ``true`` may be larger."""
    least_correct = least_refuting_guesses(games, proved, confidence=confidence)
    return float(scipy.stats.binom.sf(least_correct - 1, games, (1 + true) / 2))


def _least_total_variation(correct: int, games: int, confidence: float) -> float:
    """The least total variation that ``correct`` correct guesses of ``games`` show."""
    return 2 * clopper_pearson(correct, games, confidence=2 * confidence - 1)[0] - 1


def _noise_at(proof: Callable[[float], Proof], index: int, number: float) -> float:
    """The multiple of the declared noise that has this epsilon (0) or total variation (1)."""
    log_range = math.log(LEAST), math.log(MOST)
    log_multiple = optimize.brentq(
        lambda x: proof(math.exp(x))[index] - number, *log_range, xtol=1e-6
    )
    return math.exp(log_multiple)


def _noise_left(proof: Callable[[float], Proof], total_variation: float) -> float:
    """The largest multiple of the declared noise that proves at least this total variation."""
    if proof(MOST)[1] >= total_variation:
        return math.inf
    return LEAST if proof(LEAST)[1] <= total_variation else _noise_at(proof, 1, total_variation)


@functools.lru_cache(maxsize=64)
def scale_of(audit: Audit, epsilon: float, games: int) -> float:
    """The multiple of the method's own noise that gives this epsilon, where one training holds
    ``games`` games."""
    return _noise_at(audit.play(games, 1.0, 0, 1.0).proof, 0, epsilon)


def audit_methods(
    names: Sequence[str] | None = None,
    *,
    games: int = 48_000,
    epsilons: Sequence[float] = (1.0, 3.0, 8.0),
    noises: Sequence[float] = (1.0, 0.9, 0.5, 0.0),
    seed: int = 0,
    confidence: float = 0.95,
) -> DataFrame:
    """Audit methods: one row for each method, epsilon ``proved`` at ``delta``, and share of the
    declared noise that is added. ``audited`` is the least epsilon that the games show, ``right``
    the number of correct guesses in ``games``. From ``refuted_from`` correct guesses on the proof
    is refuted. ``power`` is how often such an audit refutes that noise, by the share of correct
    guesses here.

    ``names`` selects from :data:`AUDITS` (all by default). Each number holds with ``confidence``.
    Raises ``ValueError`` for an unknown name.
    """
    audits = {audit.name: audit for audit in AUDITS}
    check_allowed("games", games, games >= 16, "at least 16")
    rows = []
    for name in names or audits:
        check_choice("audit", name, tuple(audits))
        audit = audits[name]
        batch_sizes = [len(x) for x in np.array_split(np.arange(games), -(-games // audit.at_once))]
        for epsilon, noise in itertools.product(epsilons, noises):
            scale = scale_of(audit, epsilon, batch_sizes[0])
            played = [
                audit.play(size, noise, 1000 * seed + k, scale)
                for k, size in enumerate(batch_sizes)
            ]
            correct = sum(int(((p.scores > 0) == p.included).sum()) for p in played)
            proof, least_variation = (
                played[0].proof,
                _least_total_variation(correct, games, confidence),
            )
            proved, distance = proof(1.0)
            noise_left = _noise_left(proof, least_variation)
            rows.append({
                "method": name, "label": audit.label, "relation": audit.relation, "noise": noise,
                "epsilon": epsilon, "proved": proved, "right": correct,
                "audited": proof(noise_left)[0] if noise_left < math.inf else 0.0,
                "refuted_from": least_refuting_guesses(games, distance, confidence=confidence),
                "power": detection_power(
                    games, distance, 2 * correct / games - 1, confidence=confidence
                ),
                "delta": DELTA, "games": games, "confidence": confidence,
            })  # fmt: skip
    return DataFrame(rows)


def format_rows(recorded: DataFrame) -> list[str]:
    """The rows of a page, one for each method and epsilon: what was audited, and how often less
    noise would be refuted, beside what happened."""
    lines = []
    for (_, epsilon), cell in recorded.groupby(["method", "epsilon"], sort=False):
        first = cell.iloc[0]
        audited = f"{math.floor(100 * first.audited) / 100:.2f}"
        powers = [
            f"{math.floor(100 * p)} %{'' if correct >= least_correct else ', not refuted'}"
            for p, correct, least_correct in zip(
                cell.power, cell.right, cell.refuted_from, strict=True
            )
        ]
        relation = first.relation.replace("_", " ")
        cells = [first.label, relation, f"{epsilon:g}", audited, *powers[1:], f"{first.games:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
