"""A token classifier of ``transformers`` that reads words: somebody's own as it is, or a
pre-trained encoder that learns as a tagger.

Any model with a token-classification head will do: ``minilm`` (22 M parameters, Apache-2.0) comes
as a Python package, other names are folders or hub ids. It has read names before, so that a
thousand turns teach it to find those that no list has. Only weights in safetensors are read, and
no code that lies beside them is run.

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
READ = 240
"""A longer text is read in pieces of so many tokens at most, a sixth of which are before and a
sixth after what is scored."""
WEIGHT = 3.0
"""Of a token of a secret in the loss: most are none."""

Sentence = tuple[list[int], list[int]]
"""The tokens of a text, and of each the word it is of."""


def pieces(tokens: int, size: int) -> Iterator[range]:
    """The places of so many tokens, a piece at a time."""
    return (range(k, min(k + size, tokens)) for k in range(0, tokens, size))


class Encoder(nn.Module):
    """Tokens -> a score for each tag of a ``body`` from transformers. Its embeddings stay.

    ``columns`` (tags, 1 + 2 kinds) say what each tag counts for: plain; then, of each kind, begins
    and goes on. None: the tags are these.
    """

    rate, epochs, plain = 1e-4, 6, 20
    version = 3  # of what is saved

    def __init__(self, body: nn.Module, tokenizer: Any, columns: Floats | None = None) -> None:
        super().__init__()
        self.body, self.tokenizer, self.columns = body, tokenizer, columns
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
        there = nn.utils.rnn.pad_sequence([torch.ones_like(x) for x in full], batch_first=True)
        tokens = nn.utils.rnn.pad_sequence(full, batch_first=True)
        found = self.body(tokens, attention_mask=there).logits
        first = len(before)
        return torch.cat([s[first : first + len(x)] for s, x in zip(found, lots, strict=True)])

    def loss(self, sentences: Sequence[Sentence], tags: Sequence[Sequence[int]]) -> Tensor:
        """Cross entropy of the tokens' tags; a word's later tokens go on where it begins."""
        lots, wanted = [], list[int]()
        for (tokens, of), right in zip(sentences, tags, strict=True):
            each = [
                right[k] + (right[k] % 2 and k == last)
                for k, last in zip(of, [-1, *of[:-1]], strict=True)
            ]
            for piece in pieces(len(tokens), self.piece):
                lots.append(tokens[piece.start : piece.stop])
                wanted += each[piece.start : piece.stop]
        scores = self(lots)
        weight = torch.full((scores.shape[1],), WEIGHT).index_fill(0, torch.tensor(0), 1.0)
        return F.cross_entropy(scores, torch.tensor(wanted), weight)

    def scores(self, sentences: Sequence[Sentence]) -> Iterator[tuple[int, Floats]]:
        """Of each text that has a word, read alone, so that no other shows in it: (words, 1 + 2
        kinds) probabilities. A word is as little plain as its least plain token, and begins what
        its first one begins."""
        for n, (tokens, of) in enumerate(sentences):
            found = []
            for piece in pieces(len(tokens), self.piece):
                first = max(0, piece.start - self.beside)
                read = self([tokens[first : piece.stop + self.beside]])
                found.append(read[piece.start - first : piece.stop - first].softmax(-1))
            if not tokens:
                continue
            every, place = torch.cat(found).double(), torch.tensor(of)
            if self.columns is not None:
                every = every @ torch.from_numpy(self.columns)
            made = every[torch.searchsorted(place, torch.arange(of[-1] + 1))]
            made[:, 0].scatter_reduce_(0, place, every[:, 0], "amin")
            yield n, made.round(decimals=6).numpy()

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
