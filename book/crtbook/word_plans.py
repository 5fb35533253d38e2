"""Hush!'s Figure 1 on a whole corpus without a model: what is kept, and the noise that is needed.

Section 5.1 sorts the words of 1.9 million abstracts by how many abstracts hold them, and takes
those from the 50,001st to the 150,000th as secrets. Here the words of every document are stored as
numbers, so that half a million abstracts and 100,000 secrets fit into 2 GB:

>>> index = index_words(["the cat sat", "the dog sat", "a dog ran"], "letters")
>>> ranked = rank_words(index)
>>> [index.words[i] for i in ranked], index.frequencies()[ranked].tolist()
(['dog', 'sat', 'the', 'a', 'cat', 'ran'], [2, 2, 2, 1, 1, 1])
>>> hold_words(index, ranked[:2]).toarray().tolist()  # of the documents that hold one
[[0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]

``crtbook sweep words`` makes the plans.
"""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import sparse

from crtbook.secrets import TextStudy, find_split
from crtbook.study import Desk, Row, make_rows
from crtlib.accounting import secret_protection
from crtlib.text import corpora
from crtlib.values import (
    NonNegativeInt,
    OpenProbability,
    PositiveFloat,
    PositiveInt,
    checked_dataclass,
)

PAPER_ABSTRACTS = 1_700_000
"""The number of abstracts that the paper trains on."""
PAPER_FREQUENCIES = 50, 100
""""This set of secrets each appears roughly 50 to 100 times each" (Section 5.1)."""

WORD_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "letters": re.compile(r"[a-z]+"),
    "blanks": re.compile(r"\S+"),
}
"""What a word is, which the paper does not state: letters in a row, or everything between two
blanks. Words that differ only in case are the same."""


@dataclass(frozen=True, eq=False)
class WordIndex:
    """The different words of each document, as numbers: ``held[ends[i] : ends[i + 1]]`` are those
    of document ``i``, and ``words`` are the words themselves."""

    words: tuple[str, ...] = field(repr=False)
    held: NDArray[np.int32] = field(repr=False)
    ends: NDArray[np.int64] = field(repr=False)

    def frequencies(self) -> NDArray[np.int64]:
        """How many documents hold each word, ``(words,)``."""
        return np.bincount(self.held, minlength=len(self.words))


def index_words(documents: Iterable[str], words: str) -> WordIndex:
    """The index of documents by one of ``WORD_PATTERNS``: 4 bytes for each word of a document."""
    find, numbers = WORD_PATTERNS[words].findall, dict[str, int]()
    held_words, row_ends = array("i"), array("q", [0])
    for text in documents:
        held_words.extend([numbers.setdefault(w, len(numbers)) for w in set(find(text.lower()))])
        row_ends.append(len(held_words))
    return WordIndex(tuple(numbers), np.array(held_words, np.int32), np.array(row_ends, np.int64))


def rank_words(index: WordIndex) -> NDArray[np.int64]:
    """The numbers of all words, those held by most documents first, ties in alphabetical order."""
    letters = np.empty(len(index.words), np.int64)
    letters[sorted(range(len(index.words)), key=index.words.__getitem__)] = np.arange(len(letters))
    return np.lexsort((letters, -index.frequencies()))


def hold_words(index: WordIndex, secrets: NDArray[np.int64]) -> sparse.csr_array:
    """``(secrets, examples)`` of 0 and 1: which documents hold each of these words. Documents that
    hold none are not examples ("We discard any examples not containing secrets")."""
    row_of_word = np.full(len(index.words), -1, np.int64)
    row_of_word[secrets] = np.arange(len(secrets))
    row = row_of_word[index.held]
    column = np.repeat(np.arange(len(index.ends) - 1), np.diff(index.ends))[row >= 0]
    _, example = np.unique(column, return_inverse=True)
    shape = len(secrets), int(example.max(initial=-1)) + 1
    return sparse.csr_array((np.ones(len(example)), (row[row >= 0], example)), shape=shape)


def secret_ranks(frequencies: NDArray[np.int64], band: str, first: int, count: int) -> slice:
    """The ranks that are secrets, given ``frequencies (words,)`` in falling order: ``count`` from
    ``first`` on (band "ranks"), or all whose frequency is one of the paper's ("frequency").

    Raises ValueError where the text has too few words.

    >>> secret_ranks(np.array([120, 100, 70, 50, 9]), "frequency", first=0, count=0)
    slice(1, 4, None)
    """
    if band == "frequency":
        least_frequency, most_frequency = PAPER_FREQUENCIES
        first = int((frequencies > most_frequency).sum())
        count = int((frequencies >= least_frequency).sum()) - first
    if not 0 < count <= len(frequencies) - first:
        raise ValueError(
            f"band={band!r}, first={first}, secrets={count}: the text has {len(frequencies)} words"
        )
    return slice(first, first + count)


@checked_dataclass
class WordPlanStudy(TextStudy):
    """The plan for one constant C, on every document of a corpus; nothing is trained.

    ``scale=None`` means no preprocessing. ``seed`` draws what each secret is promised; the text is
    the same for all seeds. ``band`` selects the words that are secrets (:func:`secret_ranks`).
    """

    targets: Literal["linear", "sqrt"]
    scale: PositiveFloat | None
    words: Literal["letters", "blanks"] = "letters"
    band: Literal["ranks", "frequency"] = "ranks"
    dialogues: PositiveInt = 300
    first: NonNegativeInt = 200
    secrets: PositiveInt = 150
    prior: OpenProbability = 0.01
    posterior_low: OpenProbability = 0.1
    posterior_high: OpenProbability = 0.9
    steps: PositiveInt = 30
    batch_size: PositiveInt = 64

    def cost(self) -> float:
        """CPU seconds."""
        return 1 + self.dialogues / 1e4

    def memory(self) -> float:
        """GiB: the corpus and its index, measured on 583,128 abstracts."""
        return 0.6 + self.dialogues / 2e5

    def run(self, desk: Desk) -> list[Row]:
        """What is kept, the noise that all promises need, and how frequent the secrets are."""
        index, ranked = _index_and_rank_words(self.corpus, self.dialogues, self.words)
        frequency = index.frequencies()[ranked]
        ranks = secret_ranks(frequency, self.band, self.first, self.secrets)
        incidence = hold_words(index, ranked[ranks])
        promised = np.random.default_rng([self.seed, 3]).uniform(
            self.posterior_low, self.posterior_high, size=incidence.shape[0]
        )
        plan = secret_protection.plan_protection(
            incidence,
            self.prior,
            promised,
            steps=self.steps,
            batch_size=self.batch_size,
            scale=math.inf if self.scale is None else self.scale,
            budget_growth=self.targets,
            neighbouring_relation="reference",
        )
        documents, secret_frequencies = len(index.ends) - 1, frequency[ranks]
        least_frequency, most_frequency = PAPER_FREQUENCIES
        paper_frequencies = secret_frequencies * PAPER_ABSTRACTS / documents
        metrics = {
            "kept": plan.kept_share,
            "kept_examples": (plan.weights > 0.5).mean(),
            "needed": plan.noise_multiplier,
            "gap": plan.gap,
            "certain": plan.certain_examples,
            "documents": documents,
            "examples": incidence.shape[1],
            "different_words": len(index.words),
            "first_rank": ranks.start + 1,
            "last_rank": ranks.stop,
            "incidences": incidence.nnz,
            "examples_of_a_secret": secret_frequencies.mean(),
            "most_examples_of_a_secret": secret_frequencies[0],
            "median_examples_of_a_secret": np.median(secret_frequencies),
            "least_examples_of_a_secret": secret_frequencies[-1],
            "as_frequent_as_in_the_paper": (
                (paper_frequencies >= least_frequency) & (paper_frequencies <= most_frequency)
            ).mean(),
        }
        return make_rows(metrics)


def select_plans_by_constant(table: DataFrame, words: str, band: str) -> DataFrame:
    """The plans of a recorded table, one row for each plan and seed, with the share of the weight
    that is ``kept`` and the noise multiplier that is ``needed``. An infinite ``scale`` means no
    preprocessing.
    """
    rows = table[(table.words == words) & (table.band == band)]
    rows = rows[rows.metric.isin(["kept", "needed"])].assign(scale=rows.scale.fillna(math.inf))
    return rows.pivot(
        index=["targets", "scale", "seed"], columns="metric", values="value"
    ).reset_index()


@functools.lru_cache(maxsize=1)
def _index_and_rank_words(
    corpus: str, dialogues: int, words: str
) -> tuple[WordIndex, NDArray[np.int64]]:
    loaded = corpora.load_corpus(corpus, find_split(corpus), limit=dialogues)
    index = index_words((turn.text for turn in loaded.turns()), words)
    return index, rank_words(index)
