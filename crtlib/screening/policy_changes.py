"""Policies made from others: with planted misses (the dial of gamma), unions, and whole turns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

from crtlib.checks import check_allowed, check_choice
from crtlib.screening.policy import FlagFunction, Policy, as_policy
from crtlib.screening.redaction import Spans, find_masks, merge_spans, overlapping_pairs, redact
from crtlib.text.data_points import spoken_spans
from crtlib.text.records import Point, Secret

MissScope = Literal["occurrence", "value"]
CoinBasis = Literal["text", "point"]
"""What a coin of the dial is drawn from besides the seed and the value: see
:func:`with_misses`."""


def _with_changed_flags(
    policy: FlagFunction, change: Callable[[Point, Spans], Iterable[Secret]]
) -> Policy:
    """``policy``, with ``change`` applied to what it flags in each point."""
    pi = as_policy(policy)

    def flag(points: Sequence[Point]) -> Iterator[Iterable[Secret]]:
        return map(change, points, pi(points))

    return replace(pi, flag=flag, own_words=False, batched=True)


# --------------------------------------------------------------------------- the dial


def _hash_to_uniform(*drawn_from: object) -> float:
    """A number uniform on [0, 1) that depends on what is hashed and on nothing else."""
    text = "\x1f".join(map(str, drawn_from))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def describe_planted_misses(gamma: float, per: MissScope, seed: int) -> str:
    """Describe the misses that :func:`with_misses` plants, so that labels recognise a pair of
    policies; "" for none. The text is hashed: another wording would make every judged pair a new
    one.

    >>> describe_planted_misses(0.1, "occurrence", 3), describe_planted_misses(0.0, "value", 3)
    ('misses 0.1 per occurrence, seed 3', '')
    """
    return f"misses {gamma} per {per}, seed {seed}" if gamma else ""


def with_misses(
    policy: FlagFunction,
    gamma: float,
    seed: int,
    per: MissScope = "occurrence",
    *,
    coin: CoinBasis = "text",
) -> Policy:
    """The dial: ``policy`` with miss rate ``gamma`` in [0, 1] on what it would have found.

    ``per="occurrence"`` tosses a coin for each point and value, so a secret that occurs in twenty
    points is missed in about ``20 * gamma`` of them; ``per="value"`` tosses one coin for a value
    wherever it occurs. The coin is a hash, not the next number of a generator: masking one secret
    that ``policy`` flags, or adding a point, changes no other label, which Proposition 5 needs. For
    the same reason equal values within one point share their coin: counting them would let the mask
    of the first change the second. What is missed at some ``gamma`` is missed at every larger one.

    ``coin="text"`` draws the coin from the value and from the rest of its point, in which all that
    ``policy`` flags is masked. Two points with one text then have the same misses, so deduplication
    may follow. ``coin="point"`` draws it from the value and the point's id, so copies have coins of
    their own. It exists for recorded experiments, and a policy with it reads ids.
    """
    check_allowed("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    check_choice("per", per, get_args(MissScope))
    check_choice("coin", coin, get_args(CoinBasis))

    def keep_found(p: Point, spans: Spans) -> Iterator[Secret]:
        if per == "value":
            coin_key: tuple[str, ...] = ()
        else:
            coin_key = (p.id,) if coin == "point" else (redact(p, spans).text,)
        return (
            s for s in spans if _hash_to_uniform(seed, *coin_key, p.text[s.start : s.end]) >= gamma
        )

    changed = _with_changed_flags(policy, keep_found)
    name = f"{changed.name} (misses {gamma:g} per {per})"
    uses_ids = gamma > 0 and per == "occurrence" and coin == "point"
    reads_ids = changed.reads_ids or uses_ids
    return replace(changed, name=name, flags_everything=False, reads_ids=reads_ids)


# --------------------------------------------------------------------------- unions
def union_policy(*parts: FlagFunction) -> Policy:
    """A policy that flags what any of ``parts`` flags; spans that touch or overlap become one.

    A merged span has the kind of the first part, in the order given, that contributes to it.
    """
    check_allowed("parts", len(parts), bool(parts), "at least one policy")
    policies = [as_policy(policy) for policy in parts]
    return Policy(
        "+".join(p.name for p in policies),
        lambda points: map(merge_spans, zip(*(policy(points) for policy in policies), strict=True)),
        learned=any(p.learned for p in policies),
        taught_by=tuple(t for p in policies for t in p.taught_by),
        flags_everything=any(p.flags_everything for p in policies),
        batched=True,
        reads_ids=any(p.reads_ids for p in policies),
        reads_labels=any(p.reads_labels for p in policies),
    )


# --------------------------------------------------------------------------- whole turns
def whole_turns_policy(policy: FlagFunction) -> Policy:
    """A policy that flags each turn as a whole if ``policy`` flags anything in it, or if it holds a
    ``<MASK>``.

    A turn with a secret, and the same turn with a mask in its place, then both become one mask,
    whatever ``policy`` flags in the words around it. So a secret leaves a trace only where nothing
    in its turn is flagged. The price is the rest of these turns, from which nothing is learned.

    >>> from crtlib.screening.regex_policies import corpus_regex_policy
    >>> from crtlib.text.records import Point
    >>> [redact(p, whole_turns_policy(corpus_regex_policy("customersim"))([p])[0]).text
    ...  for p in (Point("0", "u", "I am Ada Lovelace."), Point("1", "u", "I am <MASK>."))]
    ['<MASK>', '<MASK>']
    """

    def flag_turns(p: Point, spans: Spans) -> Spans:
        turns = [Secret("turn", a, b) for a, b in spoken_spans(p) if a < b]
        hits = overlapping_pairs(turns, merge_spans([spans, find_masks(p.text)]))
        return merge_spans([spans, list(dict.fromkeys(turn for turn, _ in hits))])

    changed = _with_changed_flags(policy, flag_turns)
    return replace(changed, name=f"{changed.name}+whole_turns")
