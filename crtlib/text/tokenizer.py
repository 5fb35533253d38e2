"""Byte-level BPE trained on public text only; every digit is its own token; one ``<MASK>``.

>>> tokenizer = train_bpe(["USR: hello there", "SYS: hello you"], vocab_size=280)
>>> ids = tokenizer.encode(["USR: my ID is: 42"])[0]
>>> tokenizer.decode(ids[-4:]), ids[0] == tokenizer.bos
(' 42', True)
>>> tokenizer.encode(["hello <MASK>"])[0][-2:] == [tokenizer.mask, tokenizer.eos]
True
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from crtlib import files
from crtlib.files import StrPath
from crtlib.foreign_files import (
    ForeignFileError,
    foreign_model,
    load_foreign_tokenizer,
    refuse_whatever_fails,
)
from crtlib.ragged_array import RaggedArray
from crtlib.text.identity import hash_text
from crtlib.text.records import MASK, Point

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AnyTokenizer: TypeAlias = "BpeTokenizer | PreTrainedTokenizerBase"
"""One of ours, or a fast one of ``transformers``."""

BOS, EOS = "<BOS>", "<EOS>"

TEXTS_AT_ONCE = 4096
"""Texts that one call of ``tokenizers`` reads; its answers take some 300 bytes a token."""

MAX_VOCABULARY_SIZE = 1 << 20
"""The size of the largest vocabulary; memory for it is allocated before the text is read."""


@dataclass(frozen=True)
class BpeTokenizer:
    """A trained tokenizer. ``encode`` frames each text as ``BOS ... EOS``, with our own two tokens
    or those of the pre-trained model that it came with (:func:`adapt_tokenizer`)."""

    json: str = field(repr=False)
    bos_token: str = BOS
    eos_token: str = EOS

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.json)

    def _id(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ValueError(f"tokenizer: has no token {token!r}")
        return number

    @functools.cached_property
    def bos(self) -> int:
        return self._id(self.bos_token)

    @functools.cached_property
    def eos(self) -> int:
        return self._id(self.eos_token)

    @functools.cached_property
    def mask(self) -> int:
        """Id of the one ``<MASK>`` token."""
        return self._id(MASK)

    @functools.cached_property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @functools.cached_property
    def digits(self) -> tuple[int, ...]:
        """Ids of the ten digits "0" to "9": a digit is never part of a longer token."""
        return tuple(self._id(d) for d in "0123456789")

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short hash: two runs with the same fingerprint read text in the same way."""
        frame = "" if (self.bos_token, self.eos_token) == (BOS, EOS) else self.bos_token
        return hash_text(self.json + frame)[:16]

    def encode(self, texts: Iterable[str]) -> list[list[int]]:
        """``BOS tokens EOS`` for each text."""
        return [*self._encode_in_chunks(texts)]

    def encode_flat(self, texts: Iterable[str]) -> RaggedArray:
        """As :meth:`encode`, in one array of four bytes a token."""
        return RaggedArray.of(self._encode_in_chunks(texts))

    def _encode_in_chunks(self, texts: Iterable[str]) -> Iterator[list[int]]:
        rest = iter(texts)
        while chunk := list(itertools.islice(rest, TEXTS_AT_ONCE)):
            for encoding in self._tokenizer.encode_batch(chunk, add_special_tokens=False):
                yield [self.bos, *encoding.ids, self.eos]

    def token_ends(self, texts: Iterable[str]) -> list[list[int]]:
        """For each token that :meth:`encode` makes, the number of characters of its text up to its
        end: 0 for BOS, and one more than the text has for EOS."""
        listed = list(texts)
        coded = self._tokenizer.encode_batch(listed, add_special_tokens=False)
        return [
            [0, *(end for _, end in e.offsets), len(text) + 1]
            for text, e in zip(listed, coded, strict=True)
        ]

    def encode_marked(self, points: Iterable[Point]) -> tuple[list[list[int]], list[list[bool]]]:
        """As :meth:`encode`, with flags for tokens: those that are ``<MASK>``, or that overlap a
        labelled secret of their point or the space before it, which ``<MASK>`` would swallow. So a
        text and its redacted form have the same unflagged tokens."""
        ids, flags = [], []
        points = list(points)
        coded = self._tokenizer.encode_batch([p.text for p in points], add_special_tokens=False)
        for point, e in zip(points, coded, strict=True):
            spans = [(len(point.text[: s.start].rstrip()), s.end) for s in point.secrets]
            ids.append([self.bos, *e.ids, self.eos])
            inside = [
                token == self.mask or any(a < end and start < b for start, end in spans)
                for token, (a, b) in zip(e.ids, e.offsets, strict=True)
            ]
            flags.append([False, *inside, False])
        return ids, flags

    def encode_prefix(self, text: str) -> list[int]:
        """``BOS tokens`` for a text that is to be continued (no EOS)."""
        return [self.bos, *self._tokenizer.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; BOS and EOS are left out, ``<MASK>`` is kept."""
        frame = (self.bos, self.eos)
        return self._tokenizer.decode([i for i in ids if i not in frame], skip_special_tokens=False)

    def save(self, path: StrPath) -> None:
        """Write the tokenizer's JSON atomically."""
        files.write_text(path, self.json)


def load_tokenizer(path: StrPath) -> BpeTokenizer:
    """The tokenizer that :meth:`BpeTokenizer.save` wrote; its settings for padding and truncation
    are ignored. Raises ``ValueError`` for any other file."""
    own = load_foreign_tokenizer(path, str(path))
    text = files.read_text(path)
    settings = json.loads(text)
    is_ignored = settings.get("padding") or settings.get("truncation")
    return BpeTokenizer(own.to_str() if is_ignored else text)


def load_pretrained_tokenizer(name_or_folder: StrPath) -> Tokenizer:
    """The unchanged tokenizer of a pre-trained model, given as a hub id or a folder."""
    file, where = Path(name_or_folder) / "tokenizer.json", f"init={str(name_or_folder)!r}"
    with foreign_model(name_or_folder, where, "no tokenizer found"):
        if file.exists():
            return load_foreign_tokenizer(file, where)
        if file.parent.is_dir():
            raise ForeignFileError("no tokenizer found (it needs a tokenizer.json)")
        return Tokenizer.from_pretrained(str(name_or_folder))


def adapt_tokenizer(name_or_folder: StrPath) -> BpeTokenizer:
    """The tokenizer of a pre-trained model (hub id, or a folder with ``tokenizer.json``), adapted:
    ``<MASK>`` is added, and every digit is its own token. A text begins and ends with the
    tokenizer's own tokens if it has them, otherwise with ours.

    Raises ``ValueError`` if it lacks a token for a digit: a canary's digits could not be ranked.
    """
    tokenizer, said = load_pretrained_tokenizer(name_or_folder), f"init={str(name_or_folder)!r}"
    with foreign_model(name_or_folder, said, "its tokenizer cannot be used"):
        missing = [d for d in "0123456789" if tokenizer.token_to_id(d) is None]
        if missing:
            raise ForeignFileError(f"its tokenizer has no token for {missing}")
        sample = tokenizer.encode("My ID is 8517, 0123456789 or 99.", add_special_tokens=False)
        if any(len(t) > 1 and any(c.isdecimal() for c in t) for t in sample.tokens):
            apart = pre_tokenizers.Digits(individual_digits=True)
            before = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer else []
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, *before])
        first, last = _begin_and_end_tokens(name_or_folder, tokenizer)
        tokenizer.add_special_tokens([first, last])
        return with_mask_token(tokenizer, first, last)


def read_model_file(name_or_folder: StrPath, file: str) -> str:
    """The text of a file of a pre-trained model; empty if there is none."""
    from transformers.utils import cached_file

    with foreign_model(name_or_folder, str(name_or_folder), f"its {file} cannot be read"):
        found = cached_file(str(name_or_folder), file, _raise_exceptions_for_missing_entries=False)
        return files.read_text(found) if found else ""


def read_model_json(name_or_folder: StrPath, file: str) -> dict[str, Any]:
    """The JSON object in a file of a pre-trained model; empty if there is none."""
    text = read_model_file(name_or_folder, file)
    with refuse_whatever_fails(str(name_or_folder), f"its {file} is not a JSON object"):
        return dict(json.loads(text or "{}"))


def _begin_and_end_tokens(name_or_folder: StrPath, tokenizer: Tokenizer) -> tuple[str, str]:
    """The tokens with which a text of a pre-trained model begins and ends, as its files state them.
    If only the end is known, a text also begins with it; if neither is known, they are ours."""

    def token(name: str) -> str | None:
        declared = names.get(f"{name}_token")
        text = declared.get("content") if isinstance(declared, dict) else declared
        if text is None:
            number = ids.get(f"{name}_token_id")
            number = number[0] if isinstance(number, list) and number else number
            text = tokenizer.id_to_token(number) if isinstance(number, int) else None
        return text if text and tokenizer.token_to_id(text) is not None else None

    names, ids = (
        read_model_json(name_or_folder, f"{name}.json") for name in ("tokenizer_config", "config")
    )
    first, last = token("bos"), token("eos")
    return (first or last or BOS), (last or EOS)


def with_mask_token(
    tokenizer: Tokenizer, bos_token: str = BOS, eos_token: str = EOS
) -> BpeTokenizer:
    """The tokenizer as used here: with ``<MASK>``, and with nothing added, cut or padded."""
    # lstrip: the space before a masked word belongs to the mask, so "is <MASK>" has no stray token.
    tokenizer.add_special_tokens([AddedToken(MASK, lstrip=True, normalized=False, special=True)])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    content = json.loads(tokenizer.to_str()) | {"post_processor": None}  # frames are ours
    for added in content["added_tokens"]:
        added["special"] |= added["content"] == MASK
    return BpeTokenizer(Tokenizer.from_str(json.dumps(content)).to_str(), bos_token, eos_token)


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> BpeTokenizer:
    """Train on ``texts``, which must be PUBLIC: merges are learned from them and are released.

    A vocabulary learned on private text would itself leak it (a name that occurs often becomes
    one token). The 256 bytes are always present, so any text can be encoded. The vocabulary may
    be smaller than ``vocab_size`` where the public text offers no more merges.

    Raises ``ValueError`` if ``vocab_size`` does not leave room for bytes and special tokens, or is
    above ``MAX_VOCABULARY_SIZE``.
    """
    special = [BOS, EOS, MASK]
    floor = 256 + len(special)
    if vocab_size < floor:
        raise ValueError(f"vocab_size={vocab_size}: must be at least {floor} (bytes and specials)")
    if vocab_size > MAX_VOCABULARY_SIZE:
        raise ValueError(f"vocab_size={vocab_size}: must be at most {MAX_VOCABULARY_SIZE:,}")
    tokenizer = Tokenizer(models.BPE())
    # ByteLevel puts a space in front of words; Digits comes first so that " 4" is " " and "4".
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer)
    return with_mask_token(tokenizer)


def is_same_tokenizer(a: AnyTokenizer, b: AnyTokenizer, texts: Sequence[str]) -> bool:
    """Whether both have the same vocabulary and read these texts in the same way."""
    ours, theirs = copy_backend_tokenizer(a), copy_backend_tokenizer(b)
    if ours.get_vocab() != theirs.get_vocab():
        return False
    read = [
        [e.ids for e in t.encode_batch(list(texts), add_special_tokens=False)]
        for t in (ours, theirs)
    ]
    return read[0] == read[1]


def copy_backend_tokenizer(tokenizer: AnyTokenizer) -> Tokenizer:
    """A copy of the underlying tokenizer that neither cuts nor pads."""
    text = (
        tokenizer.json
        if isinstance(tokenizer, BpeTokenizer)
        else tokenizer.backend_tokenizer.to_str()
    )
    copy = Tokenizer.from_str(text)
    copy.no_truncation()
    copy.no_padding()
    return copy


def bos_id_of(tokenizer: AnyTokenizer) -> int | None:
    """The token before every text, if there is one."""
    return tokenizer.bos if isinstance(tokenizer, BpeTokenizer) else tokenizer.bos_token_id
