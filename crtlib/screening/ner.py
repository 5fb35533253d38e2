"""A named-entity tagger of ``transformers`` as a policy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import numpy as np

from crtlib.screening.detectors import (
    FLAG_THRESHOLD,
    FloatArray,
    detector_policy,
    plain_score_limit_at,
)
from crtlib.screening.policy import Policy
from crtlib.screening.tagger import Tagger
from crtlib.screening.word_scorers import load_encoder

# --------------------------------------------------------------------------- other people's models
_PLAIN_TAGS = {"O", "_", "<unk>", "<START>", "<STOP>"}  # the last two of a CRF


def _kinds_and_columns(tags: Sequence[str]) -> tuple[tuple[str, ...], FloatArray]:
    """The kinds in tags such as O, B-PER, S-PER, and the column of a row in which each counts."""
    split = [tag.split("-", 1) if re.match("[BIESLU]-.", tag) else ["", tag] for tag in tags]
    kinds = tuple(sorted({kind for _, kind in split} - _PLAIN_TAGS))
    columns = np.zeros((len(tags), 1 + 2 * len(kinds)))
    for row, (prefix, kind) in zip(columns, split, strict=True):
        is_begin = prefix in ("B", "S", "U")
        row[2 + 2 * kinds.index(kind) - is_begin if kind in kinds else 0] = 1
    return kinds, columns


def ner_policy(
    name: str, plain_score_limit: float = plain_score_limit_at(FLAG_THRESHOLD)
) -> Policy:
    """A policy from a token-classification model of transformers, which is a folder or a name on
    the hub. ``plain_score_limit=0.9`` makes the conservative policy (A.4)."""
    try:
        net = load_encoder(name).eval()
    except ValueError as error:
        raise ValueError(f"policy='ner:{name}': {error}") from None
    tags = net.body.config.id2label
    kinds, net.columns = _kinds_and_columns([tags[k] for k in range(len(tags))])
    return detector_policy(
        f"ner:{name}", kinds, Tagger(kinds, net).probabilities, plain_score_limit
    )


conservative_ner_policy = partial(ner_policy, plain_score_limit=0.9)
