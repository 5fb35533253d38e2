"""Read a corpus lot by lot as a model read it, and score its texts, on several processes if asked.

A corpus is read from disk each time, as it may not fit into memory.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from confide.reports.leakage_tables import ReportCover
from crtlib import files, outputs
from crtlib.attacks import leakage
from crtlib.checks import MachineError
from crtlib.files import StrPath
from crtlib.models import scoring
from crtlib.models.model_folder import load_model
from crtlib.text import corpora, data_points, templates
from crtlib.text.ordered_map import map_in_order
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.shards import Shards
from crtlib.text.templates import CANDIDATE_TEMPLATES, Template
from crtlib.text.tokenizer import AnyTokenizer, bos_id_of, is_same_tokenizer

TURNS_PER_LOT = 2**14
"""How many turns are read together; with all that is made from them, some fifty megabytes."""
TokenLists = Sequence[Sequence[int]]


class _DialoguesOnDisk(Sequence[Dialogue]):
    """The dialogues of a corpus, read from its files each time they are needed."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, 0
        for dialogue in self:
            if not dialogue.user:
                raise ValueError(leakage.NO_USER_MESSAGE)
            self.size += 1

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Dialogue]:
        return corpora.read_dialogues(self.path)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


def read_corpus(path: StrPath) -> Corpus:
    """A corpus that is read from disk each time, as it may not fit into memory. If users are
    missing, the error says what to do about it."""
    try:
        return Corpus(Path(path).name, _DialoguesOnDisk(Path(path)))
    except ValueError as error:
        if ": user: " in str(error):
            raise ValueError(f"{path}: {leakage.NO_USER_MESSAGE}") from None
        raise


def _split_into_lots(corpus: Corpus) -> Iterator[Corpus]:
    """Split a corpus into lots of whole dialogues with about ``TURNS_PER_LOT`` turns each."""
    dialogues: list[Dialogue] = []
    turns = 0
    for dialogue in corpus.dialogues:
        dialogues.append(dialogue)
        turns += len(dialogue.turns)
        if turns >= TURNS_PER_LOT:
            yield replace(corpus, dialogues=tuple(dialogues))
            dialogues, turns = [], 0
    if dialogues:
        yield replace(corpus, dialogues=tuple(dialogues))


@dataclass(frozen=True)
class LotReader:
    """Reads a corpus lot by lot with a tokenizer, as documents of a unit, and scores its texts,
    also with the ``public`` model if there is one. ``prefixes`` counts how often each beginning was
    the best, if all are tried."""

    tokenizer: AnyTokenizer
    unit: str
    used: Template
    k: int
    scorer: scoring.SequenceScorer
    public: scoring.SequenceScorer | None
    prefixes: Counter[str] | None = field(repr=False)

    def lots(self, corpus: Corpus) -> Iterator[leakage.ScoredPoints]:
        """The corpus in lots of whole dialogues, or of whole people."""
        if self.unit == "user":
            people = replace(self, unit="dialogue")
            yield from people.lots(data_points.merge_by_user(corpus))
        else:
            yield from map(self._lot, _split_into_lots(corpus))

    def _lot(self, lot: Corpus) -> leakage.ScoredPoints:
        if self.prefixes is None:
            points, own_words = (
                templates.render_points(lot, self.unit, self.used),
                self.used.name != "speaker",
            )
            scored = leakage.score_points(self.scorer, self.tokenizer, points, own_words=own_words)
        else:
            scored, best_beginnings = leakage.scan_beginnings(
                self.scorer, self.tokenizer, lot, unit=self.unit, used=self.used, k=self.k
            )
            self.prefixes.update(best_beginnings)
        if self.public is None:
            return scored
        first = bos_id_of(self.tokenizer)
        return scored._replace(
            public=leakage.score_documents(self.public, scored.documents, bos=first)
        )


def make_folder_scorer(
    folder: StrPath,
    network: nn.Module,
    executor: Executor | None,
    shards: Shards,
    device: str,
) -> scoring.SequenceScorer:
    """A function that scores texts with the model in ``folder``: in this process, or on an executor
    whose workers load it from that path. Batches are formed as in one process, so that the bits are
    the same. A batch that ``shards`` holds is not scored again."""
    path, sha = str(Path(folder).absolute()), outputs.hash_tree(folder)
    score_lot = partial(_score_texts, network, device)
    if executor:
        score_lot = partial(_score_in_worker, path, sha)

    def score(texts: TokenLists) -> tuple[list[Any], list[Any]]:
        if not texts:
            return [], []
        lots = scoring.group_by_length(texts)
        shards_of_texts = shards.of(hashlib.sha256(json.dumps([sha, texts]).encode()).hexdigest())
        scores_of_lots = map_in_order(
            score_lot, ([texts[i] for i in lot] for lot in lots), executor, shards_of_texts
        )
        scores_by_text = {
            i: scores_of_text
            for lot, (_, lot_scores) in zip(lots, scores_of_lots, strict=True)
            for i, *scores_of_text in zip(lot, *lot_scores, strict=True)
        }
        rows = [scores_by_text.get(i, ((), ())) for i in range(len(texts))]  # one token: no scores
        logprobs = [np.array(values, dtype=float) for values, _ in rows]
        return logprobs, [np.array(values, dtype=np.int64) for _, values in rows]

    return score


@lru_cache(maxsize=2)  # the model and a public one
def _load_unchanged_model(folder: str, sha: str) -> nn.Module:
    """The model at a path, loaded once by each worker; it must still have this hash."""
    if outputs.hash_tree(folder) != sha:
        raise MachineError(f"{folder}: has changed, or is another model where a worker reads it")
    return load_model(folder)[0]


def _score_in_worker(folder: str, sha: str, texts: TokenLists) -> list[Any]:
    return _score_texts(_load_unchanged_model(folder, sha), None, texts)


def _score_texts(network: nn.Module, device: str | None, texts: TokenLists) -> list[Any]:
    """Log-probabilities and ranks as JSON values, which preserve every bit of a float."""
    scores_and_ranks = scoring.token_scores(network, texts, device=device)
    return [[x.tolist() for x in values] for values in scores_and_ranks]


def refuse_unreadable_texts(
    corpus: Corpus,
    cover: ReportCover,
    used: Template,
    tokenizer: AnyTokenizer,
    public: AnyTokenizer | None,
) -> None:
    """Render every text once before scoring begins, which may take hours, since a template may
    refuse any of them. The tokenizer of a ``public`` model must read them like the model's own."""
    unit = "dialogue" if cover.unit == "user" else cover.unit
    for lot in _split_into_lots(corpus):
        points = templates.render_points(lot, unit, used)
        if public is not None:
            if not is_same_tokenizer(tokenizer, public, [p.text for p in points[:1000]]):
                raise ValueError(f"public={cover.public!r}: must read the tokenizer of the model")
            public = None
        if used.name == "speaker":  # refuses none
            break


def choose_report_template(
    name: str | None,
    folder: Path,
    corpus: Corpus,
    network: nn.Module,
    tokenizer: AnyTokenizer,
    unit: str,
    device: str,
) -> tuple[Template, dict[str, Any]]:
    """The template to read with, and what was found about it: ``template`` and ``warning``.

    If a model records its own template, no others are tried.
    """
    recorded = read_recorded_study(folder)
    if name is None and recorded is not None:
        name = recorded.get("template", "speaker")
        name = "chat" if name not in CANDIDATE_TEMPLATES else name
        return templates.template_by_name(name, tokenizer), {"template": {"used": name}}
    if name is None and getattr(tokenizer, "chat_template", None):
        name = "chat"
    used = None if name is None else templates.template_by_name(name, tokenizer)
    first, facts = leakage.choose_template(
        network, tokenizer, corpus, unit=unit, used=used, device=device
    )
    return used or CANDIDATE_TEMPLATES[first], facts


def read_recorded_study(model: Path) -> dict[str, Any] | None:
    """The settings of the study that trained a model, if its folder records them."""
    recorded = model / "experiment.json"
    if not recorded.is_file():
        return None
    try:
        return dict(json.loads(files.read_text(recorded)))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{recorded}: is not the record of a training") from None
