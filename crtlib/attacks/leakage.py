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
- The tables print one ratio rounded down (6.69 / 3.53 is 1.895, not 1.89), and one epsilon both as
  26.8 and as 26.4. The worst-case leakage epsilon is a RATIO of perplexities, neither a logarithm
  nor a differential-privacy epsilon: the two must not be compared.
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
        rows = ((json.dumps(d),) for d in documents)
        self._rows.executemany("insert into texts values (?)", rows)

    def __len__(self) -> int:
        return int(self._rows.execute("select max(rowid) from texts").fetchone()[0] or 0)

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[index] + 1
        return next(self._some("where rowid = ?", place))

    def __iter__(self) -> Iterator[Document]:
        return self._some("order by rowid")

    def _some(self, which: str, *values: int) -> Iterator[Document]:
        for (text,) in self._rows.execute(f"select document from texts {which}", values):
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
    out = []
    coded = copy_backend_tokenizer(tokenizer).encode_batch(
        [p.text for p in points], add_special_tokens=False
    )
    for point, e in zip(points, coded, strict=True):
        spans = []
        for s in point.secrets:
            inside = [i for i, (a, b) in enumerate(e.offsets) if a < s.end and s.start < b]
            if inside:
                spans.append((s.kind, inside[0], inside[-1] + 1))
        if e.ids:
            out.append(Document(sys.intern(str(point.user)), point.id, e.ids, tuple(spans)))
    return tuple(out)


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
    texts, place = deduplicate_texts(documents, bos)
    lead = [] if bos is not None else [0]
    logprobs, ranks = model(texts)
    logprobs = [np.concatenate([np.full(len(lead), np.nan), x]) for x in logprobs]
    ranks = [np.concatenate([np.full(len(lead), NO_CONTEXT_RANK), x]) for x in ranks]
    return TokenScores([logprobs[i] for i in place], [ranks[i] for i in place])


def deduplicate_texts(
    documents: Sequence[Document], bos: int | None
) -> tuple[list[list[int]], list[int]]:
    """Return the distinct texts, with BOS, and for each document the index of its text."""
    seen: dict[tuple[int, ...], int] = {}
    place = [seen.setdefault(tuple(d.tokens), len(seen)) for d in documents]
    start = [] if bos is None else [bos]
    return [[*start, *text] for text in seen], place


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
    texts = tokenise_documents(points, tokenizer)
    scores = score_documents(
        model, texts, bos=bos_id_of(tokenizer) if start else None, device=device
    )
    masks = [np.ones(len(d.tokens), dtype=bool) for d in texts]
    if own_words:
        masks = [mask for mask in mark_spoken_tokens(points, tokenizer) if len(mask)]
    return ScoredPoints(texts, scores, masks, len(points) - len(texts))


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
    perplexity = _run_perplexities(scores.logprobs, begin, end)
    other = np.full(len(begin), np.nan)
    if public:
        other = _run_perplexities(public.logprobs, begin, end)
    start, length = begin - first[index], end - begin
    secret_tokens, kinds = _count_secret_tokens(documents, first, begin, end)
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


def _run_perplexities(
    logprobs: Sequence[np.ndarray], begin: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """The perplexity of each run, ``(runs,)``; infinite if the model excludes one of its tokens."""
    if not len(begin):
        return np.empty(0)
    row, edges = np.concatenate([*logprobs, [0.0]]), np.stack([begin, end], 1).ravel()
    with np.errstate(over="ignore"):
        return np.exp(-(np.add.reduceat(row, edges)[::2] / (end - begin)))


def _count_secret_tokens(
    documents: Sequence[Document], first: np.ndarray, begin: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """For each run, how many of its tokens are part of a labelled secret, and the kinds of the
    secrets that lie entirely inside it."""
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
    number, first = pd.factorize(runs.tokens)
    counts = count_sequences(
        list(first), (d.tokens for d in documents), (d.user for d in documents)
    )
    seen = Counter(token for d in documents for token in d.tokens)
    contexts = pd.Series([*zip(runs["index"], runs.start, strict=True)], dtype=object)
    groups = runs.assign(context=contexts).groupby(number)
    table = pd.DataFrame(
        {
            "tokens": pd.Series(list(first), dtype=object),
            "length": np.array([len(w) for w in first], dtype=np.int64),
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
    commonness = [np.mean([np.log(seen[token]) for token in w]) for w in first]
    secret, users = table.secret_tokens > 0, table.users_in_d
    order = np.lexsort(np.array([commonness, -table.ratio, users, ~secret], dtype=float))
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
        other = score_documents(public, reading.documents, bos=bos_id_of(tokenizer), device=device)
        reading = reading._replace(public=other)
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
    begin, limit = bos_id_of(tokenizer) is not None, interface.context_length(model)
    texts: Any = [] if into is None else into
    scores: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    tables: list[pd.DataFrame] = []
    seen: dict[tuple[int, ...], tuple[int, ...]] = {}  # one object for what is guessed often
    counts = Counter[str]()
    for documents, its, answered, empty, public in chunks:
        counts["empty"] += empty
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
        counts["asked"] += int((ranks != NO_CONTEXT_RANK).sum())
        counts["windowed"] += sum(len(d.tokens) + begin > (limit or math.inf) for d in documents)
    if not tables:
        raise ValueError(NO_TEXT_MESSAGE)
    runs = pd.concat([t for t in tables if len(t)] or tables[:1], ignore_index=True)
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
    every = templates.CANDIDATE_TEMPLATES | ({used.name: used} if used else {})
    some = _sample_dialogues(corpus, unit)
    each, words = {}, Counter[int]()
    for name, template in every.items():
        points = templates.render_points(some, unit, template)
        reading = score_points(model, tokenizer, points, own_words=True, device=device)
        each[name] = _mean_point_losses(reading, points)
        if name == "plain":
            words.update(token for d in reading.documents for token in d.tokens)
    if not words:
        raise ValueError(NO_TEXT_MESSAGE)
    losses = {name: float(np.nanmean(x)) for name, x in each.items()}
    ranked = sorted(losses, key=lambda name: losses[name])
    first = used.name if used else ranked[0]
    best = next((name for name in ranked if _is_easier_to_read(each[first] - each[name])), first)
    shown = {name: round(x, 1) for name, x in losses.items()}
    facts: dict[str, Any] = {"template": {"used": first, "best": best, "losses": shown}}
    if min(losses.values()) > scipy.stats.entropy(list(words.values())):
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
    each = 1.0
    if unit == "turn":
        each = max(1.0, sum(len(d.turns) for d in corpus.dialogues) / max(1, len(corpus)))
    count = min(len(corpus), int(np.ceil(TEMPLATE_SAMPLE_TEXTS / each)))
    picked = set(np.linspace(0, len(corpus) - 1, count).astype(int).tolist())
    return replace(
        corpus, dialogues=tuple(d for i, d in enumerate(corpus.dialogues) if i in picked)
    )


def _mean_point_losses(reading: ScoredPoints, points: Sequence[Point]) -> np.ndarray:
    """The mean loss of each point's own tokens; NaN if none has a context."""
    rows = zip(reading.documents, reading.scores.logprobs, reading.answered, strict=True)
    own = {d.id: logprobs[mask] for d, logprobs, mask in rows}
    losses = {name: -np.nanmean(x) for name, x in own.items() if np.isfinite(x).any()}
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
            document, _, likelier, mask = row
            right = int((likelier[mask] < k).sum())
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
    every = {used.name: used} | templates.CANDIDATE_TEMPLATES
    out = [(name, templates.render_points(corpus, unit, t), True) for name, t in every.items()]
    out.append(("nothing", plain, False))
    if unit == "turn":
        after = []
        for d in corpus.dialogues:
            for i in range(len(d.turns)):
                pair = templates.render_point(
                    d, d.turns[max(0, i - 1) : i + 1], f"{d.id}/{i}", used
                )
                last = pair.spoken_spans[-1]
                own = tuple(s for s in pair.secrets if s.start >= last[0])
                after.append(replace(pair, secrets=own, spoken_spans=(last,)))
        out.append(("the turn before", tuple(after), True))
    return out
