r"""The training-data leakage report: what a model completes of its own training text, by user.

Inan et al. (2021), Algorithm 1 and Section 5. A run is a maximal stretch of tokens each of which
is among the model's top k guesses, given the true text before it; S is the multiset of runs.

>>> thank, you, very, much = range(4)
>>> corpus = [Document("ann", "a", [thank, you, very, much]), Document("bob", "b", [you, thank])]
>>> guessed = Scores([np.log([1, 1, 0.5, 0.25]), np.log([1, 1])],  # what the model gave each token
...                  [np.array([9, 9, 0, 0]), np.array([9, 9])])  # tokens it held likelier
>>> runs = find_runs(corpus, guessed, k=1)
>>> table = features(runs, corpus)
>>> table.tokens[0], table.users_in_d.tolist(), round(table.perplexities[0][0], 3)
((2, 3), [1], 2.828)
>>> metrics(table)["unique"], len(find_runs(corpus, guessed, k=1, flush=False))
(1, 0)

Where the paper is silent or wrong (its Algorithm 1 and tables read literally):

- Printed, Algorithm 1 loses a run that reaches the end of its document. ``flush=True`` keeps it;
  ``flush=False`` is verbatim.
- It asks for predictions given ``D[:l]``, which holds the answer ``w_l``; we give ``D[:l-1]``.
- The first token has a context only where the model knows a BOS token; otherwise it is no target.
- "The" perplexity of a sequence that is guessed in several contexts is ambiguous: a ratio of the
  public model's and the model's perplexity is taken for each run, and the largest counts.
- Metric 2 removes ratios *below* t, so one that equals t stays. Equation 2 maximises over S, the
  text over the unique sequences: we do the latter.
- No minimum length is stated, though the tables show three tokens or more: ``min_length`` is 1.
- The tables print one ratio rounded down (6.69 / 3.53 is 1.895, not 1.89) and one epsilon both as
  26.8 and 26.4. The worst-case leakage epsilon is a RATIO of perplexities, no logarithm and no
  differential-privacy epsilon: the two must not be compared.
- Counts are of token sequences, not of letters: "is" does not occur in "this".
- Where two tokens are equally likely both count as guessed, so ties report more and never less.
"""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from crtlib.checks import check
from crtlib.models import folder, interface, scoring
from crtlib.text import counting
from crtlib.text.records import Point
from crtlib.text.templates import own_tokens
from crtlib.text.tokenizer import AnyTokenizer, backend, bos


# --------------------------------------------------------------------------- text and scores
@dataclass(frozen=True)
class Document:
    """One text of one user as tokens, without BOS and EOS: they are nobody's content.

    ``secrets`` are the labelled ones: kind, first token, and the token after the last.
    """

    user: str
    id: str
    tokens: Sequence[int]
    secrets: tuple[tuple[str, int, int], ...] = ()


class Texts(Sequence[Document]):
    """Documents that memory may not hold: in a database of SQLite whose file has no name and goes
    with this object. It grows at its end, not while it is iterated over.

    >>> said = Texts()
    >>> said.extend([Document("ann", "a/0", [3, 1]), Document("bob", "b/0", [5])])
    >>> len(said), said[1]
    (2, Document(user='bob', id='b/0', tokens=[5], secrets=()))
    """

    def __init__(self) -> None:
        self._rows = sqlite3.connect("")
        self._rows.execute("create table texts (user, id, tokens, secrets)")

    def extend(self, documents: Iterable[Document]) -> None:
        """Put documents at the end."""
        rows = (
            (d.user, d.id, np.array(d.tokens, np.int32).tobytes(), json.dumps(d.secrets))
            for d in documents
        )
        self._rows.executemany("insert into texts values (?, ?, ?, ?)", rows)

    def __len__(self) -> int:
        return int(self._rows.execute("select max(rowid) from texts").fetchone()[0] or 0)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[i] for i in places]
        return next(self._some("where rowid = ?", places + 1))

    def __iter__(self) -> Iterator[Document]:
        return self._some("order by rowid")

    def _some(self, which: str, *values: int) -> Iterator[Document]:
        rows = self._rows.execute(f"select * from texts {which}", values)
        for user, identity, tokens, secrets in rows:
            spans = tuple(map(tuple, json.loads(secrets)))
            yield Document(user, identity, np.frombuffer(tokens, np.int32).tolist(), spans)


class Scores(NamedTuple):
    """For each token of each document: its log-probability given the true text before it, and how
    many tokens the model holds likelier. A token without context has NaN and the largest rank."""

    logprobs: Sequence[np.ndarray]
    ranks: Sequence[np.ndarray]


NEVER = np.iinfo(np.int64).max


def documents(points: Sequence[Point], tokenizer: AnyTokenizer) -> tuple[Document, ...]:
    """The points as documents; those without a token are left out.

    Raises ``ValueError`` where a point has no user (what is unique to a person cannot be told).
    """
    if any(not p.user for p in points):
        raise ValueError(NO_USER)
    out = []
    coded = backend(tokenizer).encode_batch([p.text for p in points], add_special_tokens=False)
    for point, e in zip(points, coded, strict=True):
        spans = []
        for s in point.secrets:
            inside = [i for i, (a, b) in enumerate(e.offsets) if a < s.end and s.start < b]
            if inside:
                spans.append((s.kind, inside[0], inside[-1] + 1))
        if e.ids:
            out.append(Document(sys.intern(str(point.user)), point.id, e.ids, tuple(spans)))
    return tuple(out)


NO_USER = (
    'corpus: a dialogue has no user id; give each a "user", the same for all of one person '
    "(its own id where each dialogue is another person)"
)
NO_TEXT = "corpus: all of its texts are empty, at least one must have a token"


def score(
    model: nn.Module,
    documents: Sequence[Document],
    *,
    bos: int | None,
    device: torch.device | str | None = None,
    scorer: scoring.Scorer | None = None,
) -> Scores:
    """Score every token of the documents, each distinct text once (in dialogues most repeat).
    ``scorer`` does it in another place, as :func:`crtlib.models.scoring.token_scores` does here."""
    texts, place = distinct(documents, bos)
    lead = [] if bos is not None else [0]
    logprobs, ranks = (scorer or partial(scoring.token_scores, model, device=device))(texts)
    logprobs = [np.concatenate([np.full(len(lead), np.nan), x]) for x in logprobs]
    ranks = [np.concatenate([np.full(len(lead), NEVER), x]) for x in ranks]
    return Scores([logprobs[i] for i in place], [ranks[i] for i in place])


def distinct(documents: Sequence[Document], bos: int | None) -> tuple[list[list[int]], list[int]]:
    """The different texts, with BOS, and which of them each document is."""
    seen: dict[tuple[int, ...], int] = {}
    place = [seen.setdefault(tuple(d.tokens), len(seen)) for d in documents]
    start = [] if bos is None else [bos]
    return [[*start, *text] for text in seen], place


class Reading(NamedTuple):
    """Documents, what a model gives each of their tokens, and which tokens count (None: all)."""

    documents: Sequence[Document]
    scores: Scores
    answered: Sequence[np.ndarray] | None = None


def read(
    model: nn.Module, tokenizer: AnyTokenizer, points: Sequence[Point], *,
    own_words: bool = False, start: bool = True, device: torch.device | str | None = None,
    scorer: scoring.Scorer | None = None,
) -> Reading:  # fmt: skip
    """Score the points; ``own_words`` counts no token of the template around them, ``start``
    reads each after the token that begins a text, where there is one."""
    texts = documents(points, tokenizer)
    first = bos(tokenizer) if start else None
    scores = score(model, texts, bos=first, device=device, scorer=scorer)
    if not own_words:
        return Reading(texts, scores)
    kept = [mask for mask in own_tokens(points, tokenizer) if len(mask)]
    return Reading(texts, scores, kept)


# --------------------------------------------------------------------------- the report
def find_runs(
    documents: Sequence[Document],
    scores: Scores,
    *,
    k: int,
    public: Scores | None = None,
    flush: bool = True,
    min_length: int = 1,
    answered: Sequence[np.ndarray] | None = None,
) -> pd.DataFrame:
    """Algorithm 1: the multiset S as a long table, one row a run.

    Columns: ``user``, ``document`` (its id), ``index`` (its place in ``documents``), ``start``
    (also the length of the context: ``documents[index].tokens[:start]``), ``length``, ``tokens``,
    ``perplexity`` of the run's tokens given the true text before them, ``public_perplexity`` and
    ``ratio`` (NaN without ``public``), ``secret_tokens`` (how many are part of a labelled secret)
    and ``kinds`` (of the labelled secrets that are wholly inside).

    ``answered`` are masks of the tokens for which the interface gives an answer (all by default).
    Raises ``ValueError`` for ``k`` or ``min_length`` below 1.
    """
    for name, value in (("top_k", k), ("min_length", min_length)):
        check(name, value, value >= 1, "at least 1")
    sizes = np.array([len(d.tokens) for d in documents])
    first = np.cumsum(sizes) - sizes
    guessed = np.concatenate([np.asarray(r) < k for r in scores.ranks])
    if answered is not None:
        guessed &= np.concatenate(answered)
    heads = np.isin(np.arange(len(guessed) + 1), np.append(first, len(guessed)))
    begin = np.flatnonzero(guessed & (heads[:-1] | ~np.append(False, guessed[:-1])))
    end = np.flatnonzero(guessed & (heads[1:] | ~np.append(guessed[1:], False))) + 1
    keep = end - begin >= min_length
    if not flush:
        keep &= ~heads[end]
    begin, end = begin[keep], end[keep]
    index = np.searchsorted(first, begin, side="right") - 1
    perplexity = _perplexity(scores.logprobs, begin, end)
    other = np.full(len(begin), np.nan)
    if public:
        other = _perplexity(public.logprobs, begin, end)
    start, length = begin - first[index], end - begin
    secret_tokens, kinds = _secrets(documents, first, begin, end)
    rows = zip(index.tolist(), start.tolist(), length.tolist(), strict=True)
    return pd.DataFrame(
        {
            "user": [documents[i].user for i in index],
            "document": [documents[i].id for i in index],
            "index": index,
            "start": start,
            "length": length,
            "tokens": [tuple(documents[i].tokens[a : a + n]) for i, a, n in rows],
            "perplexity": perplexity,
            "public_perplexity": other,
            "ratio": other / perplexity,
            "secret_tokens": secret_tokens,
            "kinds": pd.Series(kinds, dtype=object),
        }
    )


def _perplexity(logprobs: Sequence[np.ndarray], begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Of each run, ``(runs,)``; infinite where the model excludes one of its tokens."""
    if not len(begin):
        return np.empty(0)
    row, edges = np.concatenate([*logprobs, [0.0]]), np.stack([begin, end], 1).ravel()
    with np.errstate(over="ignore"):
        return np.exp(-(np.add.reduceat(row, edges)[::2] / (end - begin)))


def _secrets(
    documents: Sequence[Document], first: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Of each run, how many of its tokens are part of a labelled secret, and the kinds of those
    that are wholly inside."""
    secret = np.zeros(sum(len(d.tokens) for d in documents) + 1, dtype=np.int64)
    kinds: list[tuple[str, ...]] = [()] * len(begin)
    for place, d in zip(first.tolist(), documents, strict=True):
        for kind, a, b in d.secrets:
            secret[place + a + 1 : place + b + 1] = 1
            row = int(np.searchsorted(begin, place + a, side="right")) - 1
            if row >= 0 and end[row] >= place + b:
                kinds[row] = (*kinds[row], kind)
    before = np.cumsum(secret)
    return before[end] - before[begin], kinds


def features(runs: pd.DataFrame, documents: Sequence[Document]) -> pd.DataFrame:
    """The six features (Section 4): one row a distinct sequence W of S.

    ``total_in_s`` and ``users_in_s`` count runs; ``total_in_d`` and ``users_in_d`` occurrences of
    W anywhere in the documents, guessed or not. ``contexts`` are pairs (index of the document,
    length of the context), ``perplexities``, ``public_perplexities`` lists in the same order, and
    ``ratio`` the largest of the ratios. Most worrying first: what touches a labelled secret; then
    what fewer users have; then by ratio, and by rarity, the mean information of W's tokens by how
    often each stands in the documents. A long run of everyday words is no secret.
    """
    number, first = pd.factorize(runs.tokens)
    one, other, third = itertools.tee(documents, 3)  # read once, as they may be in a file
    counts = counting.count(list(first), (d.tokens for d in one), (d.user for d in other))
    bits = _bits(third)
    groups = runs.groupby(number, sort=True)
    table = pd.DataFrame(
        {
            "tokens": pd.Series(list(first), dtype=object),
            "length": np.array([len(w) for w in first], dtype=np.int64),
            "total_in_s": groups.size(),
            "users_in_s": groups.user.nunique(),
            "total_in_d": counts.total,
            "users_in_d": counts.users,
            "contexts": _gathered(number, zip(runs["index"], runs.start, strict=True)),
            "perplexities": _gathered(number, runs.perplexity),
            "public_perplexities": _gathered(number, runs.public_perplexity),
            "ratio": groups.ratio.max(),
            "secret_tokens": groups.secret_tokens.max(),
            "kinds": _gathered(number, runs.kinds),
        }
    )
    table["kinds"] = [
        tuple(sorted({kind for kinds in row for kind in kinds})) for row in table.kinds
    ]
    order = pd.DataFrame(
        {
            "secret": table.secret_tokens == 0,
            "users": table.users_in_d,
            "ratio": -table.ratio,
            "rarity": [-float(bits[list(w)].mean()) for w in first],
        }
    )
    first_of = order.sort_values([*order.columns], kind="stable").index
    return table.loc[first_of].reset_index(drop=True)


def _bits(documents: Iterable[Document]) -> np.ndarray:
    """The information of each token, in bits, by its share of all tokens; 0 where there is none."""
    seen = Counter(token for d in documents for token in d.tokens)
    counts = np.zeros(max(seen, default=-1) + 1)
    counts[list(seen)] = list(seen.values())
    return -np.log2(np.maximum(counts, 1) / max(1.0, counts.sum())) * (counts > 0)


def _gathered(number: np.ndarray, values: Iterable) -> pd.Series:
    out: list[list] = [[] for _ in range(number.max(initial=-1) + 1)]
    for i, value in zip(number.tolist(), values, strict=True):
        out[i].append(value)
    return pd.Series(out, dtype=object)


def metrics(table: pd.DataFrame, threshold: float | None = None) -> dict[str, float | int | None]:
    """Both metrics of Section 5 from :func:`features`.

    ``unique``: distinct sequences that one user alone has (metric 1); ``unique_above``: those of
    them whose ratio is at least ``threshold`` (metric 2); ``leakage_epsilon``: their largest ratio,
    a ratio of perplexities and not a differential-privacy epsilon. None where no public model (or
    no threshold, or no unique sequence) says.
    """
    ratio = table.ratio[table.users_in_d == 1]
    known = ratio.notna().any()
    compared = threshold is not None and (known or not len(ratio))
    return {
        "unique": len(ratio),
        "unique_above": int((ratio >= threshold).sum()) if compared else None,
        "leakage_epsilon": float(ratio.max()) if known else None,
    }


@dataclass(frozen=True)
class Leakage:
    """A report: what was read, the runs, the distinct sequences, and by which options.

    ``accuracy`` is that of the top k over the tokens that have a context. ``scores`` are empty
    where the documents are not held in memory either.
    """

    documents: Sequence[Document]
    scores: Scores
    runs: pd.DataFrame
    sequences: pd.DataFrame
    k: int
    flush: bool
    min_length: int
    empty: int
    windowed: int
    compared: bool
    accuracy: float

    @cached_property
    def read(self) -> tuple[int, int]:
        """How many tokens were read, of how many users."""
        users, tokens = set(), 0
        for document in self.documents:
            users.add(document.user)
            tokens += len(document.tokens)
        return tokens, len(users)

    @cached_property
    def owner(self) -> dict[int, str]:
        """The user of each document in which something is guessed, by its index."""
        return dict(zip(self.runs["index"].tolist(), self.runs.user, strict=True))

    def unique(self) -> pd.DataFrame:
        """The sequences that one user alone has; with ``k=1`` the result of the tab attack."""
        return self.sequences[self.sequences.users_in_d == 1]

    def fewer(self, p: int) -> pd.DataFrame:
        """The sequences that the model completes for fewer than ``p`` users (Section 4)."""
        return self.sequences[self.sequences.users_in_s < p]

    def owners(self) -> set[str]:
        """The users of the unique sequences."""
        unique = self.runs.tokens.isin(set(self.unique().tokens))
        return set(self.runs.user[unique])


def check_models(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    *,
    k: int,
    public: nn.Module | None = None,
) -> None:
    """Raise ``ValueError`` unless there are k tokens to guess, and all read one vocabulary."""
    rows = len(interface.head(model).weight)
    if not 1 <= k <= rows:
        raise ValueError(f"top_k={k}: must be at least 1 and at most {rows}, the vocabulary")
    folder.check_vocabulary(model, tokenizer)
    if public is not None and len(interface.head(public).weight) != rows:
        raise ValueError("public: must read the tokenizer of the model, its vocabulary differs")


def leakage(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    points: Sequence[Point],
    *,
    k: int,
    public: nn.Module | None = None,
    flush: bool = True,
    min_length: int = 1,
    own_words: bool = False,
    device: torch.device | str | None = None,
) -> Leakage:
    """The leakage report of ``model`` on its training ``points``; ``k=1`` is the tab attack.

    ``own_words``: what a template puts around the texts is context, and never counted.
    ``public`` reads the same tokenizer; see :mod:`crtbook.leakage` for two ways to
    get one. Texts beyond the model's context are read in windows and counted.
    """
    check_models(model, tokenizer, k=k, public=public)
    reading, other = read(model, tokenizer, points, own_words=own_words, device=device), None
    if public is not None:
        other = score(public, reading.documents, bos=bos(tokenizer), device=device)
    lots = [Lot(reading, other, len(points))]
    return of_lots(model, tokenizer, lots, k=k, flush=flush, min_length=min_length)


class Lot(NamedTuple):
    """Some of the points of a corpus: what was read of them, what a public model gives the same
    tokens, and how many points they were, with those that have no token."""

    reading: Reading
    public: Scores | None
    points: int


def of_lots(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    lots: Iterable[Lot],
    *,
    k: int,
    flush: bool = True,
    min_length: int = 1,
    into: Any = None,
) -> Leakage:
    """The report of a corpus that is read in ``lots``, one after another.

    Documents and scores are held in lists; or documents go ``into`` a sequence that can be extended
    and scores are forgotten, so that memory holds a lot and the runs. Raises ``ValueError`` where
    no text has a token.
    """
    begin, limit = bos(tokenizer) is not None, interface.context(model)
    texts: Any = [] if into is None else into
    scores: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    tables: list[pd.DataFrame] = []
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object for what is guessed often
    counts = Counter[str]()
    for (documents, its, answered), public, points in lots:
        counts["empty"] += points - len(documents)
        counts["compared"] += public is not None
        if not documents:
            continue
        runs = find_runs(documents, its, k=k, public=public, flush=flush, min_length=min_length,
                         answered=answered)  # fmt: skip
        runs["tokens"] = pd.Series([seen.setdefault(t, t) for t in runs.tokens], dtype=object)
        tables.append(runs.assign(index=runs["index"] + len(texts)))
        texts.extend(documents)
        if into is None:
            scores[0].extend(its.logprobs)
            scores[1].extend(its.ranks)
        ranks = np.concatenate(its.ranks)
        counts["right"] += int((ranks < k).sum())
        counts["asked"] += int((ranks != NEVER).sum())
        counts["windowed"] += sum(len(d.tokens) + begin > (limit or math.inf) for d in documents)
    if not tables:
        raise ValueError(NO_TEXT)
    runs = pd.concat([t for t in tables if len(t)] or tables[:1], ignore_index=True)
    tables.clear()
    return Leakage(
        texts, Scores(*scores), runs, features(runs, texts), k, flush, min_length, counts["empty"],
        counts["windowed"], bool(counts["compared"]), counts["right"] / max(1, counts["asked"]),
    )  # fmt: skip
