"""Algorithm 1 of CRT, lines 1 to 4: deduplicate, redact, split into public and private points.

>>> from crtlib.text.records import Point, Secret
>>> texts = ["my id is 7", "hello", "hello", "my id is 9"]
>>> points = [Point(str(i), "u", t) for i, t in enumerate(texts)]
>>> digits = [
...     tuple(Secret("id", i, i + 1) for i, c in enumerate(p.text) if c.isdigit()) for p in points
... ]
>>> prepared = prepare_points(points, digits, digits, dedup="all", duplicates="mask")
>>> [p.text for p in prepared.public], [p.text for p in prepared.private]
(['hello'], ['my id is <MASK>', '<MASK>', 'my id is <MASK>'])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from crtlib.arguments import argument
from crtlib.checks import check_choice
from crtlib.screening.deduplication import mark_repeats
from crtlib.screening.redaction import (
    FlaggedSpans,
    check_flagged_spans,
    find_missed_secrets,
    redact,
)
from crtlib.text.records import MASK, Point, Secret

DedupScope = Literal["all", "flagged", "none"]
SHARE_OF_MASKS_TOLD = 0.1
"""Where more than this share of the points is a mask and nothing else, a sentence reports it."""
DuplicateTreatment = Literal["mask_private", "mask", "drop"]
"""What happens to a second occurrence: see :func:`prepare_points`."""
CERTIFIABLE_TREATMENTS: tuple[DuplicateTreatment, ...] = ("mask_private", "mask")
"""Treatments with which no message decides about another (:func:`prepare_points`, Guarantee)."""


@dataclass(frozen=True)
class PreparedPoints:
    """The public and the private part that training sees, and counts of what was done.

    The ``secrets`` of a prepared point are the labelled characters that are STILL in its text, with
    their spans in the new text: whole secrets that the policy missed, and what its masks left of
    others. ``missed_secrets`` counts the secrets that have any character left, in the points that
    were not dropped or masked as duplicates;
    :func:`crtlib.screening.detection_recall.recall_by_kind` counts in the same way.
    """

    public: tuple[Point, ...]
    private: tuple[Point, ...]
    points: int
    duplicates: int
    redacted_spans: int
    redacted_points: int
    missed_secrets: int

    @property
    def bare_masks(self) -> int:
        """The number of private points that are a mask and nothing else: copies, and messages that
        were one secret. Nothing is learned from them except how many there are."""
        return sum(point.text == MASK for point in self.private)

    @property
    def all(self) -> tuple[Point, ...]:
        """The public, then the private points: what a method without a private phase trains on."""
        return self.public + self.private


def describe_bare_masks(masks: int, points: int, duplicates: str) -> list[str]:
    """A sentence on how many points are a mask and nothing else; none where they are few.

    >>> describe_bare_masks(27_044, 41_442, "mask")[0].partition(": ")[0]
    '27,044 of 41,442 points are a mask and nothing else (65 %)'
    >>> describe_bare_masks(1, 41_442, "mask")
    []
    """
    if masks <= SHARE_OF_MASKS_TOLD * points:
        return []
    summary = f"{masks:,} of {points:,} points are a mask and nothing else"
    explanations = {
        "mask": f"{argument('duplicates', 'mask_private')} leaves out copies of public ones",
        "mask_private": "copies of private ones, and points that were one secret; copies of public "
        f"ones are left out, so a {argument('conservative')} that makes more of them public leaves "
        "fewer",
    }
    return [f"{summary} ({100 * masks / points:.0f} %): {explanations[duplicates]}"]


def prepare_points(
    points: Sequence[Point],
    flags: Sequence[Sequence[Secret]] | None,
    conservative_flags: Sequence[Sequence[Secret]] | None,
    *,
    dedup: DedupScope = "all",
    duplicates: DuplicateTreatment = "mask",
    pattern: Sequence[bool] | None = None,
) -> PreparedPoints:
    """Deduplicate and redact points, and split them in two (CRT, Algorithm 1, lines 1 to 4).

    A point is private if either policy flags anything in it or if its text holds ``<MASK>``
    (A.6.5); every other point is public. The policies read the raw points, after splitting and
    before anything is replaced (A.6.2), so labels cannot depend on what deduplication did
    elsewhere.

    Args:
        points: The raw data points, at least one.
        flags: The spans that the policy (the paper's ``pi``) flags in each point: what is redacted.
            None: it flags nothing, for the baselines.
        conservative_flags: The spans that the conservative policy (``pi_c``) flags: what else is
            private. None: it flags nothing.
        dedup: The scope of deduplication. ``"all"`` is the paper's. ``"flagged"`` (ours) leaves the
            public points alone, so that harmless templates keep their frequencies; that is enough
            for Proposition 7 where ``pi_c`` has full recall. ``"none"`` does not deduplicate.
        duplicates: What happens to a second occurrence. ``"mask_private"`` (ours, for one's own
            text): that of a private point becomes a private point that is ``<MASK>`` and nothing
            else, that of a public point is left out. ``"mask"`` (Algorithm 1): it becomes such a
            mask in both cases. ``"drop"`` (for studies): it is left out in both cases (Section 4,
            "remove identical sequences").
        pattern: Which of the raw points repeat an earlier one
            (:func:`crtlib.screening.deduplication.mark_repeats`). None: the exact pattern.

    Returns:
        The redacted points of both parts, each in the order of the points, and the counts.

    Raises:
        ValueError: For no points, and for spans or a pattern that do not fit these points.

    Guarantee:
        Exchange one private point ``x`` for a private point ``y``. Let the policies know a point by
        its text alone, and let the pattern be exact. With ``"mask_private"`` and ``"mask"`` the
        public part stays the same, and so does the number of private points; apart from their
        order, at most one of them differs. Nothing differs at all if ``x`` and ``y`` read the same
        when redacted, in the same turns (:func:`crtlib.text.data_points.find_turns`), and no other
        point has the text of either. With ``"drop"``, or with a pattern of near duplicates, none of
        this holds: one private point may come or go together with a copy of it, and one message may
        decide whether any number of others are read. Test:
        ``tests/screening/test_repeats.py::test_one_message_decides_about_no_other``.
    """
    check_choice("dedup", dedup, ("all", "flagged", "none"))
    check_choice("duplicates", duplicates, get_args(DuplicateTreatment))
    points = tuple(points)
    if not points:
        raise ValueError("points: the corpus is empty, at least one point is needed")
    no_flags: FlaggedSpans = [()] * len(points)
    flags = check_flagged_spans(points, no_flags if flags is None else flags, "flags")
    conservative_flags = check_flagged_spans(
        points, no_flags if conservative_flags is None else conservative_flags, "conservative_flags"
    )
    private_flags = [
        # a mask counts as flagged: in the neighbouring dataset a policy flags that place
        bool(flagged or suspected) or MASK in point.text
        for point, flagged, suspected in zip(points, flags, conservative_flags, strict=True)
    ]
    repeat_flags = _mark_hidden_repeats(points, private_flags, dedup, pattern)

    public: list[Point] = []
    private: list[Point] = []
    redacted_spans = redacted_points = missed_secrets = 0
    rows = zip(points, flags, private_flags, repeat_flags, strict=True)
    for point, spans, is_private, is_repeat in rows:
        if is_repeat:
            if duplicates == "mask" or (duplicates == "mask_private" and is_private):
                private.append(replace(point, text=MASK, secrets=(), spoken_spans=()))
            continue
        redacted_spans += len(spans)
        redacted_points += bool(spans)
        missed_secrets += len(find_missed_secrets(point, spans))
        target = private if is_private else public
        target.append(redact(point, spans))
    return PreparedPoints(
        tuple(public),
        tuple(private),
        points=len(points),
        duplicates=sum(repeat_flags),
        redacted_spans=redacted_spans,
        redacted_points=redacted_points,
        missed_secrets=missed_secrets,
    )


def _mark_hidden_repeats(
    points: Sequence[Point],
    private_flags: Sequence[bool],
    dedup: DedupScope,
    pattern: Sequence[bool] | None,
) -> list[bool]:
    """Which points are repeats that deduplication of this scope acts on."""
    if dedup == "none":
        pattern = [False] * len(points)
    elif pattern is None:
        pattern = mark_repeats(points)
    if len(pattern) != len(points):
        raise ValueError(f"pattern: has {len(pattern)} entries for {len(points)} points")
    if dedup == "flagged":
        return [
            is_repeat and is_private
            for is_repeat, is_private in zip(pattern, private_flags, strict=True)
        ]
    return list(pattern)
