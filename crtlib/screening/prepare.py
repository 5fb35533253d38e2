"""Algorithm 1 of CRT, lines 1 to 4: deduplicate, redact, split into public and private points.

>>> from crtlib.text.records import Point
>>> from crtlib.text.records import Secret
>>> texts = ["my id is 7", "hello", "hello", "my id is 9"]
>>> points = tuple(Point(str(i), "u", t) for i, t in enumerate(texts))
>>> digits = lambda ps: [
...     tuple(Secret("id", i, i + 1) for i, c in enumerate(p.text) if c.isdigit()) for p in ps
... ]
>>> prepared = prepare(points, digits, digits, dedup="all", duplicates="mask")
>>> [p.text for p in prepared.public], [p.text for p in prepared.private]
(['hello'], ['my id is <MASK>', '<MASK>', 'my id is <MASK>'])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from crtlib.screening import dedup as dedup_module
from crtlib.screening.redact import _clear, redact
from crtlib.text.records import MASK, Point, Secret

Policy = Callable[[Sequence[Point]], "list[tuple[Secret, ...]]"]
"""A screening policy: the flagged spans of each point, sorted and disjoint."""

Dedup = Literal["all", "flagged", "none"]
Duplicates = Literal["mask", "drop"]


@dataclass(frozen=True)
class Prepared:
    """The two parts that training sees, and what was done to make them.

    ``secrets`` of a prepared point are the labelled characters that are STILL in its text, with
    their spans in the new text: whole secrets that the policy missed, and what its masks left of
    others. ``missed_secrets`` counts the secrets of which anything is left, as
    :func:`crtlib.screening.recall.recall` does, in the points that were not dropped or masked as duplicates.
    """

    public: tuple[Point, ...]
    private: tuple[Point, ...]
    points: int
    duplicates: int
    redacted_spans: int
    redacted_points: int
    missed_secrets: int

    @property
    def all(self) -> tuple[Point, ...]:
        """Public then private points: what a method without a private phase trains on."""
        return self.public + self.private


def prepare(
    points: Sequence[Point],
    pi: Policy | None,
    pi_c: Policy | None,
    *,
    dedup: Dedup = "all",
    duplicates: Duplicates = "mask",
    pattern: Sequence[bool] | None = None,
) -> Prepared:
    """Algorithm 1, lines 1 to 4.

    ``pi`` says what is redacted, ``pi_c`` (the conservative policy) what else is private; None
    is the policy that flags nothing, for the baselines. A point is private where either policy
    speaks or where its text holds ``<MASK>`` (A.6.5); every other point is public.

    ``dedup`` is the scope of deduplication: ``"all"`` is the paper's; ``"flagged"`` (ours) leaves
    alone the points on which ``pi_c`` is silent, so that harmless templates keep their
    frequencies, which is enough for Proposition 7 where ``pi_c`` has full recall; ``"none"``.

    ``duplicates`` says what becomes of a second occurrence: ``"mask"`` replaces it by a
    ``<MASK>``-only private point (Algorithm 1), ``"drop"`` removes it (Section 4, "remove
    identical sequences"). The ``pattern`` of duplicates is computed once, on the raw points
    (:func:`crtlib.screening.dedup.pattern`), and is treated as public: computed anew on the neighbouring
    dataset it can differ, one secret then changes several prepared points, and Proposition 7 fails
    on templated text (the two-line counterexample is a test). None is the exact one.

    The policies read the raw points, after splitting and before anything is replaced (A.6.2), so
    labels cannot depend on what deduplication did elsewhere.
    """
    for name, value, allowed in (
        ("dedup", dedup, ("all", "flagged", "none")),
        ("duplicates", duplicates, ("mask", "drop")),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(allowed)}")
    from crtlib.screening import policy  # which redacts with this module

    points = tuple(points)
    if not points:
        raise ValueError("points: the corpus is empty, at least one point is needed")
    nothing: list[tuple[Secret, ...]] = [()] * len(points)
    flagged = policy.checked(pi)(points) if pi else nothing
    cautious = policy.checked(pi_c)(points) if pi_c else nothing
    if dedup == "none":
        pattern = [False] * len(points)
    repeated = list(dedup_module.pattern(points) if pattern is None else pattern)
    if len(repeated) != len(points):
        raise ValueError(f"pattern: has {len(repeated)} entries for {len(points)} points")
    if dedup == "flagged":
        # A mask counts as flagged: it stands where, on the neighbouring dataset, a policy speaks.
        speaks = zip(repeated, flagged, cautious, points, strict=True)
        repeated = [r and bool(f or c or MASK in p.text) for r, f, c, p in speaks]

    public: list[Point] = []
    private: list[Point] = []
    spans = touched = missed = 0
    for point, marks, careful, duplicate in zip(points, flagged, cautious, repeated, strict=True):
        if duplicate:
            if duplicates == "mask":
                private.append(replace(point, text=MASK, secrets=()))
            continue
        done = redact(point, marks)
        spans += len(marks)
        touched += bool(marks)
        kept = _clear(point, marks) if point.secrets else []
        missed += sum(any(s.start < z and a < s.end for a, z, _ in kept) for s in point.secrets)
        (private if marks or careful or MASK in done.text else public).append(done)
    return Prepared(
        public=tuple(public),
        private=tuple(private),
        points=len(points),
        duplicates=sum(repeated),
        redacted_spans=spans,
        redacted_points=touched,
        missed_secrets=missed,
    )
