"""A pre-trained encoder that reads words for a tagger: a state for each token, then its scores.

Any model of ``transformers`` with states will do: ``minilm`` (22 M parameters, Apache-2.0) comes as
a Python package, other names are folders or hub ids. It has read names before, so that a thousand
turns teach it to find those that no list has.

>>> [list(piece) for piece in pieces(5, size=2)]
[[0, 1], [2, 3], [4]]
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib import files, outputs
from crtlib.screening.policy import Floats, words
from crtlib.text.records import MASK

NAME, PACKAGE = "minilm", "all_minilm_l6_v2"
PIECE, BESIDE = 160, 40
"""A longer text is read in pieces of so many tokens, each with so many before and after it."""
WEIGHT = 3.0
"""Of a token of a secret in the loss: most are none."""

Sentence = tuple[list[int], list[int]]
"""The tokens of a text, and of each the word it is of."""


def pieces(tokens: int, size: int = PIECE) -> Iterator[range]:
    """The places of so many tokens, a piece at a time."""
    return (range(k, min(k + size, tokens)) for k in range(0, tokens, size))


class Encoder(nn.Module):
    """Tokens -> states of a pre-trained model -> a score for each tag. Its embeddings stay."""

    rate, epochs, plain = 1e-4, 6, 20

    def __init__(self, body: nn.Module, tokenizer: Any, tags: int) -> None:
        super().__init__()
        self.body, self.tokenizer = body, tokenizer
        self.head = nn.Linear(body.config.hidden_size, tags)  # type: ignore[union-attr,arg-type]
        body.get_input_embeddings().requires_grad_(False)  # type: ignore[operator]

    def read(self, text: str) -> Sentence:
        """A text as tokens; a word that the tokenizer does not know is one."""
        names = [text[a:b] for a, b in words(text)]
        names = [self.tokenizer.mask_token or "mask" if n == MASK else n for n in names]
        cut = self.tokenizer(names, add_special_tokens=False).input_ids if names else []
        unknown = self.tokenizer.unk_token_id or 0
        pairs = [(t, k) for k, tokens in enumerate(cut) for t in tokens or [unknown]]
        return [t for t, _ in pairs], [k for _, k in pairs]

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        """(batch, time) tokens, and whether there is one -> (batch, time, tags) scores."""
        scores: Tensor = self.head(self.body(tokens, attention_mask=there).last_hidden_state)
        return scores

    def _states(self, lots: Sequence[Sequence[int]]) -> Tensor:
        """Scores of each token of each lot, in a row."""
        start, end = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        before, after = ([t] * (t is not None) for t in (start, end))
        full = [torch.tensor([*before, *lot, *after]) for lot in lots]
        there = nn.utils.rnn.pad_sequence([torch.ones_like(x) for x in full], batch_first=True)
        scores = self(nn.utils.rnn.pad_sequence(full, batch_first=True), there)
        first = len(before)
        return torch.cat([s[first : first + len(x)] for s, x in zip(scores, lots, strict=True)])

    def loss(self, sentences: Sequence[Sentence], tags: Sequence[Sequence[int]]) -> Tensor:
        """Cross entropy of the tokens' tags; a word's later tokens go on where it begins."""
        lots, wanted = [], list[int]()
        for (tokens, of), right in zip(sentences, tags, strict=True):
            each = [
                right[k] + (right[k] % 2 and k == last)
                for k, last in zip(of, [-1, *of[:-1]], strict=True)
            ]
            for piece in pieces(len(tokens)):
                lots.append(tokens[piece.start : piece.stop])
                wanted += each[piece.start : piece.stop]
        scores = self._states(lots)
        weight = torch.full((scores.shape[1],), WEIGHT).index_fill(0, torch.tensor(0), 1.0)
        return F.cross_entropy(scores, torch.tensor(wanted), weight)

    def scores(self, sentences: Sequence[Sentence]) -> Iterator[tuple[int, Floats]]:
        """Of each text, read alone, so that no other shows in it: (words, tags) probabilities. A
        word is as little plain as its least plain token, and begins what its first one begins."""
        for n, (tokens, of) in enumerate(sentences):
            found = []
            for piece in pieces(len(tokens)):
                first = max(0, piece.start - BESIDE)
                read = self._states([tokens[first : piece.stop + BESIDE]])
                found.append(read[piece.start - first : piece.stop - first].softmax(-1))
            if not tokens:
                continue
            every, place = torch.cat(found), torch.tensor(of)
            made = every[torch.searchsorted(place, torch.arange(of[-1] + 1))]
            plain = torch.ones(of[-1] + 1).scatter_reduce(0, place, every[:, 0], "amin")
            yield n, torch.cat([plain[:, None], made[:, 1:]], 1).double().round(decimals=6).numpy()

    def save(self, folder: Path) -> None:
        """Write what :func:`blank` reads beside the weights."""
        self.body.config.save_pretrained(folder)  # type: ignore[union-attr,operator]
        self.tokenizer.save_pretrained(folder)


def pretrained(name: str, tags: int) -> Encoder:
    """That of this name, its head untaught. Raises ``ValueError`` where there is none."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    place = str(_shipped() if name == NAME else name)
    try:
        body = AutoModel.from_pretrained(place, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError, KeyError) as error:
        why = type(error).__name__
        raise ValueError(
            f"backbone={name!r}: must be {NAME}, or a folder or hub id of an encoder ({why})"
        ) from None
    return Encoder(body, tokenizer, tags)


def blank(folder: Path, tags: int) -> Encoder:
    """The one that was saved in ``folder``, before its weights are."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    body = AutoModel.from_config(AutoConfig.from_pretrained(folder))  # type: ignore[no-untyped-call]
    return Encoder(body, AutoTokenizer.from_pretrained(folder), tags)


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
