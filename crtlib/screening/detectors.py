"""A detector that scores words, as a policy: scores become spans."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from crtlib.checks import check_allowed
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import Spans
from crtlib.text.records import MASK, Point, Secret

# --------------------------------------------------------------------------- words
_WORD_PATTERN = re.compile(rf"{re.escape(MASK)}|\w+(?:['’/@&+-]+\w+|(?<=\d)[.,:]\d\w*)*|[^\w\s]")

FloatArray = npt.NDArray[np.float64]

_PLAIN_WORD = re.compile(
    "[.,;:!?]|a|about|all|also|am|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|"
    "from|get|had|has|have|he|help|her|his|how|i|if|in|is|it|its|just|like|me|my|need|no|not|of|"
    "ok|on|or|our|please|she|so|some|thank|thanks|that|the|their|them|then|there|they|this|to|us|"
    "want|was|we|were|what|when|where|which|who|will|with|would|yes|you|your"
)
"""What neither begins nor ends a secret: function words in lower case, and the signs between
sentences."""
ScoreFunction = Callable[[Sequence[Point]], list[FloatArray]]
"""Points -> for each (words, 1 + 2 kinds): plain; then, for each kind, begins and goes on."""
FLAG_THRESHOLD = 0.3
"""The least total score of all kinds that flags a word (CRT, A.4)."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """The places of a text's words: ``<MASK>``, runs of letters and digits, single signs."""
    return [m.span() for m in _WORD_PATTERN.finditer(text)]


def trim_plain_words(text: str, flagged: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which words of a text are ``flagged``, without the plain ones at either end of each run.

    Where a secret is masked, its neighbours are scored again, and a "to" before it that is flagged
    in one text but not in the other is a trace. Trimmed, no such word is flagged beside a secret or
    a mask.

    >>> trim_plain_words("pay it to Ada of Wien.", np.array([0, 0, 1, 1, 1, 1, 1], bool)).tolist()
    [False, False, False, True, True, True, False]
    """
    marks = (
        " " if not mark else "p" if _PLAIN_WORD.fullmatch(text[a:b]) else "x"
        for mark, (a, b) in zip(flagged, word_spans(text), strict=True)
    )
    is_kept = np.zeros_like(flagged)
    for m in re.finditer("x(?:[px]*x)?", "".join(marks)):
        is_kept[m.start() : m.end()] = True
    return is_kept


def join_flagged_words(
    text: str,
    flagged: npt.NDArray[np.bool_],
    begins: FloatArray,
    goes_on: FloatArray,
    kinds: Sequence[str],
) -> Spans:
    """Make spans from the ``flagged`` words of a text. Adjacent words are one secret, unless the
    second more likely begins one than goes on. ``begins``, ``goes_on``: (words, kinds) scores."""
    word_places = word_spans(text)
    words = np.array(
        [i for i in np.flatnonzero(flagged) if text[slice(*word_places[i])] != MASK], dtype=int
    )
    begins_secret = (begins.sum(1) > goes_on.sum(1))[words[1:]] | (np.diff(words) > 1)
    secrets = np.split(words, np.flatnonzero(begins_secret) + 1) if len(words) else []
    return tuple(
        Secret(
            kinds[int((begins[words] + goes_on[words]).sum(0).argmax())],
            word_places[words[0]][0],
            word_places[words[-1]][1],
        )
        for words in secrets
    )


# --------------------------------------------------------------------------- scores of words


def plain_score_limit_at(threshold: float) -> float:
    """The score for plain below which a word is flagged, so that a total score of ``threshold`` for
    the kinds flags it. Probabilities have six decimals: a score of exactly the threshold counts."""
    check_allowed("threshold", threshold, 0 < threshold <= 1, "in (0, 1]")
    return 1 - threshold + 5e-7


def detector_policy(
    name: str,
    kinds: tuple[str, ...],
    score: ScoreFunction,
    plain_score_limit: float = plain_score_limit_at(FLAG_THRESHOLD),
) -> Policy:
    """A policy that flags words whose ``score`` for plain is under ``plain_score_limit``. Adjacent
    words are one secret, cut where another begins, of the kind likeliest over its words; a mask is
    no secret.

    It is given the turn's own words, without the speaker. It reads context, so what
    :mod:`crtlib.screening.tagger` says about Proposition 5 holds for it too.

    >>> def shouting(points):
    ...     return [np.array([[1 - w.isupper(), w.isupper(), 0.0] for w in p.text.split()])
    ...             for p in points]
    >>> detector_policy("shouting", ("NAME",), shouting)([Point("0", "u", "call ADA now")])
    [(Secret(kind='NAME', start=5, end=8),)]
    """
    check_allowed("plain_score_limit", plain_score_limit, 0 <= plain_score_limit <= 1, "in [0, 1]")

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        for point, scores in zip(points, score(points), strict=True):
            flagged = trim_plain_words(point.text, scores[:, 0] < plain_score_limit)
            yield join_flagged_words(point.text, flagged, scores[:, 1::2], scores[:, 2::2], kinds)

    return Policy(name, flag, learned=True, own_words=True, batched=True)
