"""A learned screening policy: a small sequence tagger, trained on labelled points (CRT, A.4).

The paper thresholds the scores of a named-entity tagger twice. A tag with a score of at least 0.3
is redacted (``pi``); every tag, and every plain word with a score under 0.9, is private (``pi_c``).

The label of a word depends on the words around it, so masking one secret can change the labels of
others. Proposition 5 needs labels that do not change (those of
:mod:`crtlib.screening.regex_policies` do not). For a learned policy it therefore holds except for
the traces that :func:`crtlib.screening.rates.measure_rates` counts.

>>> from crtlib.text.records import Point, Secret
>>> names = ["Ada", "Grace", "Alan", "Kurt", "Emmy", "Edsger"]
>>> train = [Point(n, "u", f"USR: I am {n}.", (Secret("name", 10, 10 + len(n)),)) for n in names]
>>> tagger = train_tagger(train, seed=0, epochs=30)
>>> point = Point("new", "u", "USR: I am Barbara.")
>>> [(s.kind, point.text[s.start : s.end]) for s in tagger_policy(tagger)([point])[0]]
[('name', 'Barbara')]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from crtlib import files, foreign_files
from crtlib.checks import check_allowed
from crtlib.files import StrPath
from crtlib.progress import bar_options
from crtlib.screening.detectors import (
    FLAG_THRESHOLD,
    FloatArray,
    detector_policy,
    plain_score_limit_at,
    word_spans,
)
from crtlib.screening.int8_layers import put_linear_layers_in_int8
from crtlib.screening.policy import Policy, stable_under_masking
from crtlib.screening.redaction import overlapping_pairs
from crtlib.screening.taught_text import digest_teaching_points
from crtlib.screening.teaching_digests import Teaching
from crtlib.screening.word_scorers import (
    HashedFeatureNet,
    WordScorer,
    build_blank_encoder,
    load_encoder,
)
from crtlib.text.records import Point, Secret
from crtlib.torch_random import seeded_torch_rng

_BATCH_SENTENCES = 32
INT8_NEEDS_BACKBONE = "int8=True: must be False where no backbone is taught"


# --------------------------------------------------------------------------- either of them
@dataclass(frozen=True, eq=False)
class Tagger:
    """A trained tagger for secrets of some ``kinds``, with what taught it and its settings.

    ``taught_by`` is None where what taught it is not known. ``threshold`` is that of its policy,
    ``backbone`` the encoder that it was trained on, if any, and ``int8`` whether that is in 8-bit
    integers. If there is a ``known``, scores are kept in it, so each text is scored once, whatever
    the threshold becomes."""

    kinds: tuple[str, ...]
    net: WordScorer
    taught_by: Teaching | None = field(default=None, repr=False)
    threshold: float = FLAG_THRESHOLD
    backbone: str | None = None
    int8: bool = False
    known: dict[str, FloatArray] | None = field(default=None, repr=False)

    def probabilities(self, points: Sequence[Point]) -> list[FloatArray]:
        """For each point (words, 1 + 2 kinds) scores: plain; then, for each kind, begins and goes
        on. The scores of a point do not depend on the other points."""
        known_scores = {} if self.known is None else self.known
        texts = dict.fromkeys(p.text for p in points)
        new_texts = [text for text in texts if text not in known_scores]
        with torch.inference_mode():
            for i, scores in self.net.scores([self.net.read(text) for text in new_texts]):
                known_scores[new_texts[i]] = scores
        no_words = np.zeros((0, 1 + 2 * len(self.kinds)))
        return [known_scores.get(p.text, no_words) for p in points]

    def doubt(self, points: Sequence[Point]) -> list[float]:
        """For each point the highest score of a word for any secret; to read the points with the
        highest scores teaches most."""
        return [1 - float(scores[:, 0].min(initial=1)) for scores in self.probabilities(points)]


def _word_tags(point: Point, kinds: Sequence[str]) -> list[int]:
    """The tag of each word: 0: plain; 1 + 2 k: a secret of kind k begins; 2 + 2 k: it goes on.

    A word that a secret covers only in part is part of it.
    """
    tags = dict.fromkeys((Secret("word", a, b) for a, b in word_spans(point.text)), 0)
    last = None
    for s, word in overlapping_pairs(point.secrets, list(tags)):
        if not tags[word]:
            tags[word] = 1 + 2 * kinds.index(s.kind) + (s is last)
            last = s
    return list(tags.values())


def train_tagger(
    points: Sequence[Point],
    *,
    seed: int,
    epochs: int | None = None,
    backbone: str | None = None,
    threshold: float = 0.3,
    int8: bool = False,
    progress: bool = False,
) -> Tagger:
    """Train a tagger on labelled points; equal seeds give equal taggers on one machine.

    It learns from scratch, in 14 ``epochs``, or on a pre-trained ``backbone``
    (:func:`load_encoder`), in 6. Most points hold no secret. An epoch takes all points that do and
    twice as many of the others (twenty times with a backbone), drawn again in each epoch; this is
    faster and favours recall. ``threshold`` is that of its policy. With ``int8``, the trained
    backbone is put in 8-bit integers (:mod:`crtlib.screening.int8_layers`), so that what is judged
    is what will run.

    Raises ``ValueError`` where no point holds a labelled secret, there is no such backbone, or
    ``int8`` is set without a backbone.
    """
    check_allowed("epochs", epochs, epochs is None or epochs >= 1, "at least 1")
    check_allowed("threshold", threshold, 0 < threshold <= 1, "in (0, 1]")
    if int8 and not backbone:
        raise ValueError(INT8_NEEDS_BACKBONE)
    kinds = tuple(sorted({s.kind for p in points for s in p.secrets}))
    tagged_texts = [(p.text, tags) for p in points if (tags := _word_tags(p, kinds))]
    has_secret = torch.tensor([any(tags) for _, tags in tagged_texts])
    if not has_secret.any():
        raise ValueError("points: none holds a labelled secret, at least one is needed")
    labelled_rows, plain_rows = torch.where(has_secret)[0], torch.where(~has_secret)[0]
    with seeded_torch_rng(seed):
        net: WordScorer = HashedFeatureNet(1 + 2 * len(kinds))
        if backbone:
            net = load_encoder(backbone, 1 + 2 * len(kinds))
        else:
            nn.init.normal_(net.embed.weight, std=0.1)  # type: ignore[arg-type,union-attr]
        examples = [(net.read(text), tags) for text, tags in tagged_texts]
        plain_per_epoch = min(len(plain_rows), net.plain_points_per_labelled * len(labelled_rows))
        batches = -(-(len(labelled_rows) + plain_per_epoch) // _BATCH_SENTENCES)
        optimizer = torch.optim.Adam(net.parameters(), lr=net.learning_rate, fused=True)
        epochs = epochs or net.epochs
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs * batches)
        for _ in tqdm(range(epochs), "tagger", unit="epoch", **bar_options(progress, total=epochs)):
            plain_sample = plain_rows[torch.randperm(len(plain_rows))[:plain_per_epoch]]
            rows = torch.cat([labelled_rows, plain_sample])
            for batch in _shuffled_batches(rows, examples):
                optimizer.zero_grad()
                sentences, tags = zip(*(examples[i] for i in batch), strict=True)
                net.loss(sentences, tags).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    if int8:
        put_linear_layers_in_int8(net)
    return Tagger(kinds, net.eval(), digest_teaching_points(points), threshold, backbone, int8)


def _shuffled_batches(
    rows: Tensor, examples: Sequence[tuple[Any, list[int]]]
) -> Iterator[list[int]]:
    """The rows in random order, in batches of about equal lengths, which need little padding."""
    order = rows[torch.randperm(len(rows))].tolist()
    chunks = [
        order[k : k + 16 * _BATCH_SENTENCES] for k in range(0, len(order), 16 * _BATCH_SENTENCES)
    ]
    order = [i for chunk in chunks for i in sorted(chunk, key=lambda i: len(examples[i][1]))]
    for k in torch.randperm(-(-len(order) // _BATCH_SENTENCES)).tolist():
        yield order[k * _BATCH_SENTENCES : (k + 1) * _BATCH_SENTENCES]


class _SavedTagger(BaseModel):
    """The content of ``tagger.json``: a :class:`Tagger` without its net, and the net's version."""

    version: int = 0
    kinds: tuple[str, ...]
    threshold: float = Field(FLAG_THRESHOLD, gt=0, le=1)
    backbone: str | None = None
    int8: bool = False
    taught_by: Teaching | None = None


def save_tagger(tagger: Tagger, folder: StrPath) -> None:
    """Write ``tagger.safetensors`` and, last, ``tagger.json``, each atomically. The settings and
    the tokenizer of an encoder are written before them.

    All files are private: they hold digests of the turns that taught the tagger.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tagger.net.save(folder)
    with files.replace_atomically(folder / "tagger.safetensors") as temporary_file:
        save_file(tagger.net.state_dict(), str(temporary_file))
    summary: dict[str, object] = {"version": tagger.net.version, "kinds": tagger.kinds}
    summary |= {"threshold": tagger.threshold, "backbone": tagger.backbone}
    summary |= {"int8": True} if tagger.int8 else {}
    if teaching := tagger.taught_by:
        summary["taught_by"] = {name: sorted(hashes) for name, hashes in vars(teaching).items()}
    files.write_text(folder / "tagger.json", json.dumps(summary) + "\n")


def load_tagger(folder: StrPath) -> Tagger:
    """The tagger that :func:`save_tagger` wrote. Raises ``ValueError`` where there is none or it is
    damaged."""
    folder = Path(folder)
    paths = folder / "tagger.json", folder / "tagger.safetensors"
    if not all(path.is_file() for path in paths):
        raise ValueError(
            f"{folder}: holds no tagger.json and tagger.safetensors; a folder of 'crtlib tagger' "
            "is needed"
        )
    fault = "its tagger is damaged or is not a tagger; train it again"
    with foreign_files.refuse_whatever_fails(str(folder), fault):
        saved = dict(_SavedTagger.model_validate_json(files.read_bytes(paths[0])))
        weights = load_file(files.check_regular_file(paths[1]))
        tags = 1 + 2 * len(saved["kinds"])
        if (tags,) not in [w.shape for w in weights.values()]:
            raise ValueError("kinds")  # they do not fit the head; seen before memory is taken
        net = build_blank_encoder(folder, tags) if saved["backbone"] else HashedFeatureNet(tags)
        if saved["int8"]:
            put_linear_layers_in_int8(net)
        net.load_state_dict(weights)
    if saved.pop("version") != net.version:
        raise ValueError(f"{folder}: its tagger has another version, train it again")
    return Tagger(net=net.eval(), **saved)


# --------------------------------------------------------------------------- its two policies
def _threshold_policy(name: str, tagger: Tagger, plain_score_limit: float) -> Policy:
    """A policy that flags words whose probability of being plain, by ``tagger``, is under
    ``plain_score_limit``."""
    policy = detector_policy(name, tagger.kinds, tagger.probabilities, plain_score_limit)
    taught_by = (tagger.taught_by,) if tagger.taught_by else ()
    return replace(policy, taught_by=taught_by, own_words=False)


def tagger_policy(tagger: Tagger) -> Policy:
    """The policy ``pi``: it flags words whose total score for the kinds is at least the tagger's
    threshold (A.4: 0.3), whatever else is masked
    (:func:`crtlib.screening.policy.stable_under_masking`)."""
    return stable_under_masking(
        _threshold_policy("tagger", tagger, plain_score_limit_at(tagger.threshold))
    )


def conservative_tagger_policy(tagger: Tagger) -> Policy:
    """The policy ``pi_c``: it flags every tag, and all plain text whose total score for the kinds
    is more than a third of what ``pi`` needs (A.4: a plain score under 0.9).

    A plain score of more than one half leaves no room for a tag, so one limit of at least one half
    covers both. As this limit is at least 1 - ``threshold``, it flags all that ``pi`` flags.
    """
    plain_score_limit = max(0.5, round(1 - tagger.threshold / 3, 6))
    return _threshold_policy("tagger_conservative", tagger, plain_score_limit)


def load_tagger_policy(folder: str) -> Policy:
    """The policy that ``tagger:`` names."""
    return tagger_policy(load_tagger(folder))


def load_conservative_tagger_policy(folder: str) -> Policy:
    """The policy that ``tagger_conservative:`` names."""
    return conservative_tagger_policy(load_tagger(folder))
