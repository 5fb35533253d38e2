"""The training-data leakage report: what a model completes of its own training text, by user.

Inan et al. (2021), Algorithm 1 and Section 5. A run is a maximal stretch of tokens each of which
is among the model's top k guesses, given the true text before it; S is the multiset of runs.

Where the paper, read literally, is silent or wrong, this module makes these choices:

- As printed, Algorithm 1 loses a run that reaches the end of its document. ``flush=True`` keeps it;
  ``flush=False`` is verbatim.
- The paper predicts from ``D[:l]``, which holds the answer ``w_l``; here it is ``D[:l-1]``.
- The first token has a context only if the model knows a BOS token; otherwise it is not a target.
- The perplexity of a sequence that is guessed in several contexts is ambiguous: the ratio of the
  public model's perplexity to the model's is taken for each run, and the largest counts.
- Metric 2 removes ratios *below* t, so one that equals t stays. Equation 2 maximises over S, the
  paper's text over the unique sequences: here it is the latter.
- No minimum length is stated, though the tables show three tokens or more: ``min_length`` is 1.
- One epsilon is 26.8 in one sentence and 26.4 elsewhere. The worst-case leakage epsilon is a RATIO
  of perplexities, neither a logarithm nor a differential-privacy epsilon: the two must not be
  compared.
- Counts are of token sequences, not of letters: "is" does not occur in "this".
- If two tokens are equally likely, both count as guessed, so ties report more and never less.

>>> thank, you, very, much = range(4)
>>> corpus = [Document("ann", "a", [thank, you, very, much]), Document("bob", "b", [you, thank])]
>>> guessed = TokenScores(
...     [np.log([1, 1, 0.5, 0.25]), np.log([1, 1])],  # what the model gave each token
...     [np.array([9, 9, 0, 0]), np.array([9, 9])],  # tokens it held likelier
... )
>>> runs = find_runs(corpus, guessed, k=1)
>>> table = sequence_features(runs, corpus)
>>> table.tokens[0], table.users_in_d.tolist(), round(table.perplexities[0][0], 3)
((2, 3), [1], 2.828)
>>> leakage_metrics(table)["unique"], len(find_runs(corpus, guessed, k=1, flush=False))
(1, 0)
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy
import torch
from torch import nn

from crtlib.arguments import argument
from crtlib.attacks.token_sequences import count_sequences
from crtlib.checks import check_allowed
from crtlib.models import interface, model_folder, scoring
from crtlib.text import templates
from crtlib.text.records import Corpus, Point
from crtlib.text.templates import Template, mark_spoken_tokens
from crtlib.text.tokenizer import AnyTokenizer, bos_id_of, copy_backend_tokenizer

NO_CONTEXT_RANK = np.iinfo(np.int64).max
NO_USER_MESSAGE = (
    'corpus: a dialogue has no user id; give each a "user", the same for all of one person '
    "(its own id where each dialogue is another person)"
)
NO_TEXT_MESSAGE = "corpus: all of its texts are empty, at least one must have a token"
TEMPLATE_SAMPLE_TEXTS, MIN_LOSS_GAIN_NATS, MIN_BETTER_TEXTS_SHARE, SIGN_TEST_LEVEL = (
    200,
    0.2,
    0.6,
    1e-3,
)
"""How many texts are read; how much lower a loss must be, in what share of them, at what level."""


# --------------------------------------------------------------------------- text and scores
class Document(NamedTuple):
    """One text of one user as tokens, without BOS and EOS, which are nobody's content.

    ``secrets`` are the labelled ones: kind, first token, and the token after the last.
    """

    user: str
    id: str
    tokens: Sequence[int]
    secrets: tuple[tuple[str, int, int], ...] = ()

    def __repr__(self) -> str:
        return "Document(...)"  # not the text, nor a hash of it


class DocumentStore(Sequence[Document]):
    """Documents that may not fit into memory: in an SQLite database whose unnamed file disappears
    with this object. It can be extended at its end, but not while it is iterated over.

    >>> said = DocumentStore()
    >>> said.extend([Document("ann", "a/0", [3, 1]), Document("bob", "b/0", [5])])
    >>> len(said), said[1]
    (2, Document(...))
    """

    def __init__(self) -> None:
        self._rows = sqlite3.connect("")
        self._rows.execute("create table texts (document)")

    def extend(self, documents: Iterable[Document]) -> None:
        """Append documents."""
        rows = ((json.dumps(document),) for document in documents)
        self._rows.executemany("insert into texts values (?)", rows)

    def __len__(self) -> int:
        return int(self._rows.execute("select max(rowid) from texts").fetchone()[0] or 0)

    def __getitem__(self, index: Any) -> Any:
        row_number = range(len(self))[index] + 1
        return next(self._some("where rowid = ?", row_number))

    def __iter__(self) -> Iterator[Document]:
        return self._some("order by rowid")

    def _some(self, clause: str, *values: int) -> Iterator[Document]:
        for (text,) in self._rows.execute(f"select document from texts {clause}", values):
            user, identity, tokens, secrets = json.loads(text)
            yield Document(user, identity, tokens, tuple(map(tuple, secrets)))


class TokenScores(NamedTuple):
    """For each token of each document: its log-probability given the true text before it, and how
    many tokens the model finds likelier. A token without context has NaN and the largest rank."""

    logprobs: Sequence[np.ndarray]
    ranks: Sequence[np.ndarray]

    def __repr__(self) -> str:
        return "TokenScores(...)"  # not the text, nor a hash of it


def tokenise_documents(points: Sequence[Point], tokenizer: AnyTokenizer) -> tuple[Document, ...]:
    """Return the points as documents; those without a token are left out.

    Raises ``ValueError`` if a point has no user, because what is unique to a person is then
    unknown.
    """
    if any(not p.user for p in points):
        raise ValueError(NO_USER_MESSAGE)
    documents = []
    encodings = copy_backend_tokenizer(tokenizer).encode_batch(
        [p.text for p in points], add_special_tokens=False
    )
    for point, encoding in zip(points, encodings, strict=True):
        token_spans = []
        for secret in point.secrets:
            touched_tokens = [
                i
                for i, (start, end) in enumerate(encoding.offsets)
                if start < secret.end and secret.start < end
            ]
            if touched_tokens:
                token_spans.append((secret.kind, touched_tokens[0], touched_tokens[-1] + 1))
        if encoding.ids:
            user = sys.intern(str(point.user))
            documents.append(Document(user, point.id, encoding.ids, tuple(token_spans)))
    return tuple(documents)


def score_documents(
    model: nn.Module | scoring.SequenceScorer,
    documents: Sequence[Document],
    *,
    bos: int | None,
    device: torch.device | str | None = None,
) -> TokenScores:
    """Score every token of the documents, each distinct text once (in dialogues most repeat).
    ``model`` may also be a function that scores elsewhere, in the way of
    :func:`crtlib.models.scoring.token_scores`."""
    if isinstance(model, nn.Module):
        model = partial(scoring.token_scores, model, device=device)
    texts, text_of_document = deduplicate_texts(documents, bos)
    unscored_tokens = 0 if bos is not None else 1  # the first one, which then has no context
    no_logprob = np.full(unscored_tokens, np.nan)
    no_rank = np.full(unscored_tokens, NO_CONTEXT_RANK)
    logprobs, ranks = model(texts)
    logprobs = [np.concatenate([no_logprob, scored]) for scored in logprobs]
    ranks = [np.concatenate([no_rank, scored]) for scored in ranks]
    return TokenScores(
        [logprobs[i] for i in text_of_document], [ranks[i] for i in text_of_document]
    )


def deduplicate_texts(
    documents: Sequence[Document], bos: int | None
) -> tuple[list[list[int]], list[int]]:
    """Return the distinct texts, with BOS, and for each document the index of its text."""
    text_numbers: dict[tuple[int, ...], int] = {}
    text_of_document = [
        text_numbers.setdefault(tuple(d.tokens), len(text_numbers)) for d in documents
    ]
    prefix = [] if bos is None else [bos]
    return [[*prefix, *text] for text in text_numbers], text_of_document


class ScoredPoints(NamedTuple):
    """The scores of some points: the documents that have a token, the model's scores, masks of the
    tokens that count, how many points are ``empty``, and the scores of a ``public`` model."""

    documents: Sequence[Document]
    scores: TokenScores
    answered: Sequence[np.ndarray]
    empty: int = 0
    public: TokenScores | None = None

    def __repr__(self) -> str:
        return "ScoredPoints(...)"  # not the text, nor a hash of it


def score_points(
    model: nn.Module | scoring.SequenceScorer, tokenizer: AnyTokenizer, points: Sequence[Point], *,
    own_words: bool = False, start: bool = True, device: torch.device | str | None = None,
) -> ScoredPoints:  # fmt: skip
    """Score the points with :func:`score_documents`. With ``own_words``, tokens of the template
    around them do not count; with ``start``, each is read after the token that begins a text, if
    there is one."""
    documents = tokenise_documents(points, tokenizer)
    scores = score_documents(
        model, documents, bos=bos_id_of(tokenizer) if start else None, device=device
    )
    masks = [np.ones(len(d.tokens), dtype=bool) for d in documents]
    if own_words:
        masks = [mask for mask in mark_spoken_tokens(points, tokenizer) if len(mask)]
    return ScoredPoints(documents, scores, masks, len(points) - len(documents))


# --------------------------------------------------------------------------- the report
def find_runs(
    documents: Sequence[Document],
    scores: TokenScores,
    *,
    k: int,
    public: TokenScores | None = None,
    flush: bool = True,
    min_length: int = 1,
    answered: Sequence[np.ndarray] | None = None,
) -> pd.DataFrame:
    """Algorithm 1: return the multiset S as a long table, one row per run.

    Columns: ``user``, ``document`` (its id), ``index`` (its place in ``documents``),
    ``start`` (also the length of the context: ``documents[index].tokens[:start]``), ``length``,
    ``tokens``, ``perplexity`` of the run's tokens given the true text before them,
    ``public_perplexity`` and ``ratio`` (NaN without ``public``), ``secret_tokens`` (how many are
    part of a labelled secret) and ``kinds`` (of the labelled secrets that lie entirely inside).

    ``answered`` are masks of the tokens for which the interface gives an answer (default: all).
    Raises ``ValueError`` for ``k`` or ``min_length`` below 1.
    """
    for name, value in (("top_k", k), ("min_length", min_length)):
        check_allowed(name, value, value >= 1, "at least 1")
    # All documents are laid end to end. A run begins at a guessed token that is the first of its
    # document or that follows a token not guessed, and ends likewise.
    token_counts = np.array([len(d.tokens) for d in documents])  # (documents,)
    first_token = np.cumsum(token_counts) - token_counts  # (documents,)
    is_guessed = np.concatenate([np.asarray(ranks) < k for ranks in scores.ranks])  # (tokens,)
    if answered is not None:
        is_guessed &= np.concatenate(answered)
    tokens = len(is_guessed)
    is_first = np.isin(np.arange(tokens + 1), np.append(first_token, tokens))  # (tokens + 1,)
    run_start = np.flatnonzero(is_guessed & (is_first[:-1] | ~np.append(False, is_guessed[:-1])))
    run_end = np.flatnonzero(is_guessed & (is_first[1:] | ~np.append(is_guessed[1:], False))) + 1
    is_kept = run_end - run_start >= min_length  # (runs,), as all that follows
    if not flush:
        is_kept &= ~is_first[run_end]
    run_start, run_end = run_start[is_kept], run_end[is_kept]
    document_index = np.searchsorted(first_token, run_start, side="right") - 1
    perplexity = _run_perplexities(scores.logprobs, run_start, run_end)
    public_perplexity = np.full(len(run_start), np.nan)
    if public:
        public_perplexity = _run_perplexities(public.logprobs, run_start, run_end)
    start_in_document, length = run_start - first_token[document_index], run_end - run_start
    secret_tokens, kinds = _count_secret_tokens(documents, first_token, run_start, run_end)
    rows = zip(document_index.tolist(), start_in_document.tolist(), length.tolist(), strict=True)
    run_tokens = [tuple(documents[i].tokens[start : start + n]) for i, start, n in rows]
    return pd.DataFrame(
        {
            "user": [documents[i].user for i in document_index],
            "document": [documents[i].id for i in document_index],
            "index": document_index,
            "start": start_in_document,
            "length": length,
            "tokens": run_tokens,
            "perplexity": perplexity,
            "public_perplexity": public_perplexity,
            "ratio": public_perplexity / perplexity,
            "secret_tokens": secret_tokens,
            "kinds": pd.Series(kinds, dtype=object),
        }
    )


def _run_perplexities(
    logprobs: Sequence[np.ndarray], run_start: np.ndarray, run_end: np.ndarray
) -> np.ndarray:
    """The perplexity of each run, ``(runs,)``; infinite if the model excludes one of its tokens."""
    if not len(run_start):
        return np.empty(0)
    all_logprobs = np.concatenate([*logprobs, [0.0]])  # one more, so that a run may end at the end
    edges = np.stack([run_start, run_end], 1).ravel()  # every second sum is that of a run
    with np.errstate(over="ignore"):
        return np.exp(-(np.add.reduceat(all_logprobs, edges)[::2] / (run_end - run_start)))


def _count_secret_tokens(
    documents: Sequence[Document],
    first_token: np.ndarray,
    run_start: np.ndarray,
    run_end: np.ndarray,
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """For each run, how many of its tokens are part of a labelled secret, and the kinds of the
    secrets that lie entirely inside it."""
    is_secret = np.zeros(
        sum(len(d.tokens) for d in documents) + 1, dtype=np.int64
    )  # [t]: token t-1
    kinds: list[tuple[str, ...]] = [()] * len(run_start)
    for offset, document in zip(first_token.tolist(), documents, strict=True):
        for kind, start_in_document, end_in_document in document.secrets:
            start, end = offset + start_in_document, offset + end_in_document
            is_secret[start + 1 : end + 1] = 1
            run = (
                int(np.searchsorted(run_start, start, side="right")) - 1
            )  # the last to begin by then
            if run >= 0 and run_end[run] >= end:
                kinds[run] = (*kinds[run], kind)
    secret_tokens_before = np.cumsum(is_secret)  # [t]: among the tokens before t
    return secret_tokens_before[run_end] - secret_tokens_before[run_start], kinds


def sequence_features(runs: pd.DataFrame, documents: Sequence[Document]) -> pd.DataFrame:
    """The six features (Section 4): one row per distinct sequence W in S.

    ``total_in_s`` counts the runs that are W, and ``users_in_s`` their users; ``total_in_d`` counts
    the occurrences of W anywhere in the documents, guessed or not, and ``users_in_d`` their users.
    ``contexts`` are pairs (index of the document, length of the context), ``perplexities`` and
    ``public_perplexities`` lists in the same order, and ``ratio`` the largest of the ratios.

    The most worrying rows come first: those that touch a labelled secret, then those that fewer
    users have, then by ratio, then by rarity (how seldom W's tokens occur in the documents),
    because a long run of everyday words is no secret.
    """
    sequence_number, sequences = pd.factorize(runs.tokens)
    counts = count_sequences(
        list(sequences), (d.tokens for d in documents), (d.user for d in documents)
    )
    token_counts = Counter(token for d in documents for token in d.tokens)
    contexts = pd.Series([*zip(runs["index"], runs.start, strict=True)], dtype=object)
    groups = runs.assign(context=contexts).groupby(sequence_number)
    table = pd.DataFrame(
        {
            "tokens": pd.Series(list(sequences), dtype=object),
            "length": np.array([len(sequence) for sequence in sequences], dtype=np.int64),
            "total_in_s": groups.size(),
            "users_in_s": groups.user.nunique(),
            "total_in_d": counts.total,
            "users_in_d": counts.users,
            "contexts": groups.context.agg(list),
            "perplexities": groups.perplexity.agg(list),
            "public_perplexities": groups.public_perplexity.agg(list),
            "ratio": groups.ratio.max(),
            "secret_tokens": groups.secret_tokens.max(),
            "kinds": [tuple(sorted(set().union(*kinds))) for kinds in groups.kinds.agg(list)],
        }
    )
    commonness = [np.mean([np.log(token_counts[token]) for token in seq]) for seq in sequences]
    has_secret, users = table.secret_tokens > 0, table.users_in_d
    order = np.lexsort(np.array([commonness, -table.ratio, users, ~has_secret], dtype=float))
    return table.iloc[order].reset_index(drop=True)


def leakage_metrics(
    table: pd.DataFrame, threshold: float | None = None
) -> dict[str, float | int | None]:
    """Both metrics of Section 5 from :func:`sequence_features`.

    ``unique``: distinct sequences that only one user has (metric 1); ``unique_above``: those among
    them whose ratio is at least ``threshold`` (metric 2); ``leakage_epsilon``: their largest ratio,
    a ratio of perplexities and not a differential-privacy epsilon. A value is None if it needs a
    public model, a threshold or a unique sequence that is not there.
    """
    ratio = table.ratio[table.users_in_d == 1]
    known = ratio.notna().any()
    compared = threshold is not None and (known or not len(ratio))
    return {
        "unique": len(ratio),
        "unique_above": int((ratio >= threshold).sum()) if compared else None,
        "leakage_epsilon": float(ratio.max()) if known else None,
    }


class ReadCounts(NamedTuple):
    """How many tokens were read, from how many users."""

    tokens: int
    users: int


@dataclass(frozen=True, repr=False)
class LeakageReport:
    """A report: what was read, the runs, the distinct sequences, and the options.

    ``accuracy`` is the top-k accuracy over the tokens that have a context. ``scores`` are empty if
    the documents are not held in memory either.
    """

    documents: Sequence[Document]
    scores: TokenScores
    runs: pd.DataFrame = field(repr=False)
    sequences: pd.DataFrame = field(repr=False)
    k: int
    flush: bool
    min_length: int
    empty: int
    windowed: int
    compared: bool
    accuracy: float

    @cached_property
    def read_counts(self) -> ReadCounts:
        """How much text was read."""
        users, tokens = set(), 0
        for document in self.documents:
            users.add(document.user)
            tokens += len(document.tokens)
        return ReadCounts(tokens, len(users))

    @cached_property
    def owner(self) -> dict[int, str]:
        """The user of each document in which something is guessed, by the document's index."""
        return dict(zip(self.runs["index"].tolist(), self.runs.user, strict=True))

    def unique(self) -> pd.DataFrame:
        """The sequences that only one user has; with ``k=1``, the result of the tab attack."""
        return self.sequences[self.sequences.users_in_d == 1]

    def fewer(self, p: int) -> pd.DataFrame:
        """The sequences that the model completes for fewer than ``p`` users (Section 4)."""
        return self.sequences[self.sequences.users_in_s < p]

    def owners(self) -> set[str]:
        """The users who have the unique sequences."""
        unique = self.runs.tokens.isin(set(self.unique().tokens))
        return set(self.runs.user[unique])


def check_leakage_models(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    *,
    k: int,
    public: nn.Module | None = None,
) -> None:
    """Raise ``ValueError`` unless there are k tokens to guess and all use one vocabulary."""
    rows = len(interface.output_head(model).weight)
    if not 1 <= k <= rows:
        raise ValueError(f"top_k={k}: must be at least 1 and at most {rows}, the vocabulary")
    model_folder.check_vocabulary(model, tokenizer)
    if public is not None and len(interface.output_head(public).weight) != rows:
        raise ValueError("public: must read the model's tokenizer, its vocabulary differs")


def measure_leakage(
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
) -> LeakageReport:
    """The leakage report of a model on its training points (Inan et al. 2021, Algorithm 1).

    Texts longer than the model's context are read in windows and counted.

    Args:
        model: A model that predicts next tokens.
        tokenizer: The model's own tokenizer.
        points: What the model was trained on.
        k: The number of tokens that an attacker tries at each place; 1 is the tab attack.
        public: A model with the same tokenizer that has not read the points, for instance one
            trained on other people, or the model before training.
        flush: Count runs at the end of a text, which the printed Algorithm 1 leaves out.
        min_length: The number of tokens in the shortest run that is listed.
        own_words: Treat what a template puts around the texts as context only, never counted.
        device: Where the models run.

    Returns:
        The report.

    Raises:
        ValueError: For numbers below one, and for models that do not fit each other.

    Guarantee:
        Every secret that prompting completes is listed. Test: ``tests/attacks/test_leakage.py::
        test_the_report_lists_every_secret_that_prompting_completes``.
    """
    check_leakage_models(model, tokenizer, k=k, public=public)
    reading = score_points(model, tokenizer, points, own_words=own_words, device=device)
    if public is not None:
        bos = bos_id_of(tokenizer)
        public_scores = score_documents(public, reading.documents, bos=bos, device=device)
        reading = reading._replace(public=public_scores)
    return measure_leakage_of_chunks(
        model, tokenizer, [reading], k=k, flush=flush, min_length=min_length
    )


def measure_leakage_of_chunks(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    chunks: Iterable[ScoredPoints],
    *,
    k: int,
    flush: bool = True,
    min_length: int = 1,
    into: Any = None,
) -> LeakageReport:
    """The leakage report of a corpus that is read in ``chunks``, one after another.

    Documents and scores are held in lists. Or documents go ``into`` a sequence that can be
    extended, and scores are discarded, so that memory holds only one chunk and the runs. Raises
    ``ValueError`` if no text has a token.
    """
    bos_tokens = int(bos_id_of(tokenizer) is not None)
    max_tokens = interface.context_length(model) or math.inf
    texts: Any = [] if into is None else into
    scores: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    tables: list[pd.DataFrame] = []
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object for what is guessed often
    counts = Counter[str]()
    for documents, chunk_scores, answered, empty, public in chunks:
        counts["empty"] += empty
        counts["compared"] += public is not None
        if not documents:
            continue
        runs = find_runs(
            documents,
            chunk_scores,
            k=k,
            public=public,
            flush=flush,
            min_length=min_length,
            answered=answered,
        )
        run_tokens = [shared.setdefault(tokens, tokens) for tokens in runs.tokens]
        runs["tokens"] = pd.Series(run_tokens, dtype=object)
        tables.append(runs.assign(index=runs["index"] + len(texts)))
        texts.extend(documents)
        if into is None:
            scores[0].extend(chunk_scores.logprobs)
            scores[1].extend(chunk_scores.ranks)
        ranks = np.concatenate(chunk_scores.ranks)
        counts["right"] += int((ranks < k).sum())
        counts["asked"] += int((ranks != NO_CONTEXT_RANK).sum())
        counts["windowed"] += sum(bos_tokens + len(d.tokens) > max_tokens for d in documents)
    if not tables:
        raise ValueError(NO_TEXT_MESSAGE)
    runs = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    tables.clear()
    return LeakageReport(
        texts,
        TokenScores(*scores),
        runs,
        sequence_features(runs, texts),
        k,
        flush,
        min_length,
        counts["empty"],
        counts["windowed"],
        bool(counts["compared"]),
        counts["right"] / max(1, counts["asked"]),
    )


# --------------------------------------------------------------------------- the template


def choose_template(
    model: nn.Module,
    tokenizer: AnyTokenizer,
    corpus: Corpus,
    *,
    unit: str,
    used: Template | None = None,
    device: str | None = None,
) -> tuple[str, dict[str, Any]]:
    """Choose the template to read a corpus with, by reading ``TEMPLATE_SAMPLE_TEXTS`` texts, spread
    evenly, under ``used`` and every candidate.

    Returns the name of the template, and facts for a report. ``template``: the one that is
    ``used``, the ``best``, and the mean loss of each (nats per token, over the texts' own tokens),
    to one decimal, because an exact loss acts as a hash of the text. ``warning``: what a person
    must be told, if anything.

    Without ``used`` the best candidate is used. Another one counts as better if its loss is lower
    by ``MIN_LOSS_GAIN_NATS`` on average, and lower in ``MIN_BETTER_TEXTS_SHARE`` of the texts, at
    level ``SIGN_TEST_LEVEL`` of a sign test.
    """
    templates_by_name = templates.CANDIDATE_TEMPLATES | ({used.name: used} if used else {})
    sample = _sample_dialogues(corpus, unit)
    point_losses, word_counts = {}, Counter[int]()
    for name, template in templates_by_name.items():
        points = templates.render_points(sample, unit, template)
        reading = score_points(model, tokenizer, points, own_words=True, device=device)
        point_losses[name] = _mean_point_losses(reading, points)
        if name == "plain":
            word_counts.update(token for d in reading.documents for token in d.tokens)
    if not word_counts:
        raise ValueError(NO_TEXT_MESSAGE)
    losses = {name: float(np.nanmean(x)) for name, x in point_losses.items()}
    ranked = sorted(losses, key=lambda name: losses[name])
    first = used.name if used else ranked[0]
    best = first
    for name in ranked:
        if _is_easier_to_read(point_losses[first] - point_losses[name]):
            best = name
            break
    rounded_losses = {name: round(loss, 1) for name, loss in losses.items()}
    facts: dict[str, Any] = {"template": {"used": first, "best": best, "losses": rounded_losses}}
    if min(losses.values()) > scipy.stats.entropy(list(word_counts.values())):
        facts["warning"] = "this text looks unlike what the model was trained on"
    elif best != first:
        facts["warning"] = (
            f"this model reads {templates.TEMPLATE_SAMPLES.get(best, best)!r} more easily than "
            f"{first!r} "
            f"(loss {losses[best]:.1f} against {losses[first]:.1f}); the report would miss what it "
            f"memorised; {argument('template', 'FILE.j2')}"
        )
    return first, facts


def _is_easier_to_read(gain: np.ndarray) -> bool:
    """Whether texts are read more easily if their losses are lower by ``gain``, (texts,)."""
    better, differ = int((gain > 0).sum()), int((gain != 0).sum())
    if np.nanmean(gain) < MIN_LOSS_GAIN_NATS or better < MIN_BETTER_TEXTS_SHARE * len(gain):
        return False
    return bool(
        scipy.stats.binomtest(better, differ, alternative="greater").pvalue < SIGN_TEST_LEVEL
    )


def _sample_dialogues(corpus: Corpus, unit: str) -> Corpus:
    """Dialogues spread evenly over the corpus, with about ``TEMPLATE_SAMPLE_TEXTS`` texts."""
    texts_per_dialogue = 1.0
    if unit == "turn":
        turns = sum(len(dialogue.turns) for dialogue in corpus.dialogues)
        texts_per_dialogue = max(1.0, turns / max(1, len(corpus)))
    count = min(len(corpus), int(np.ceil(TEMPLATE_SAMPLE_TEXTS / texts_per_dialogue)))
    picked = set(np.linspace(0, len(corpus) - 1, count).astype(int).tolist())
    return replace(
        corpus, dialogues=tuple(d for i, d in enumerate(corpus.dialogues) if i in picked)
    )


def _mean_point_losses(reading: ScoredPoints, points: Sequence[Point]) -> np.ndarray:
    """The mean loss of each point's own tokens; NaN if none has a context."""
    rows = zip(reading.documents, reading.scores.logprobs, reading.answered, strict=True)
    logprobs_by_id = {d.id: logprobs[mask] for d, logprobs, mask in rows}
    losses = {
        point_id: -np.nanmean(own_logprobs)
        for point_id, own_logprobs in logprobs_by_id.items()
        if np.isfinite(own_logprobs).any()
    }
    return np.array([losses.get(p.id, np.nan) for p in points])


# --------------------------------------------------------------------------- beginnings
def scan_beginnings(
    scorer: scoring.SequenceScorer,
    tokenizer: AnyTokenizer,
    corpus: Corpus,
    *,
    unit: str,
    used: Template,
    k: int,
) -> tuple[ScoredPoints, Counter[str]]:
    """Read every text after several beginnings: nothing, the start token, each candidate's opening
    and, for turns, the turn before it. For each text, keep the reading in which most of its tokens
    are among the top ``k``.

    Returns these readings, and for how many texts each beginning was best. The cost is that of a
    report for each beginning (:func:`list_beginnings`).
    """
    best: dict[str, tuple[int, str, tuple[Any, ...]]] = {}
    for name, points, start in list_beginnings(corpus, unit, used):
        reading = score_points(scorer, tokenizer, points, own_words=True, start=start)
        for row in zip(reading.documents, *reading.scores, reading.answered, strict=True):
            document, _, ranks_of_text, mask = row
            right = int((ranks_of_text[mask] < k).sum())
            if document.id not in best or right > best[document.id][0]:
                best[document.id] = right, name, row
    columns = zip(*(row for *_, row in best.values()), strict=True)
    texts, logprobs, ranks, own = map(list, columns if best else ((),) * 4)
    chosen = ScoredPoints(texts, TokenScores(logprobs, ranks), own, len(points) - len(best))
    return chosen, Counter(name for _, name, _ in best.values())


def list_beginnings(
    corpus: Corpus, unit: str, used: Template
) -> list[tuple[str, tuple[Point, ...], bool]]:
    """Each beginning: its name, the texts under it, and whether the start token comes first."""
    plain = templates.render_points(corpus, unit, templates.PLAIN_TEMPLATE)
    templates_by_name = {used.name: used} | templates.CANDIDATE_TEMPLATES
    beginnings = [
        (name, templates.render_points(corpus, unit, template), True)
        for name, template in templates_by_name.items()
    ]
    beginnings.append(("nothing", plain, False))
    if unit == "turn":
        points_after_turn = []
        for dialogue in corpus.dialogues:
            for number in range(len(dialogue.turns)):
                turns = dialogue.turns[max(0, number - 1) : number + 1]
                pair = templates.render_point(dialogue, turns, f"{dialogue.id}/{number}", used)
                last_span = pair.spoken_spans[-1]
                own_secrets = tuple(s for s in pair.secrets if s.start >= last_span[0])
                points_after_turn.append(
                    replace(pair, secrets=own_secrets, spoken_spans=(last_span,))
                )
        beginnings.append(("the turn before", tuple(points_after_turn), True))
    return beginnings
