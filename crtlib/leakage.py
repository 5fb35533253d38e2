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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn

from crtlib import methods, models, sequences
from crtlib.records import Point, Secret
from crtlib.tokens import Bpe
from crtlib.train import Phase, train

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TrainModel = Callable[[Sequence[Point]], nn.Module]
"""Trains a model on these points and no others."""


# --------------------------------------------------------------------------- text and scores
@dataclass(frozen=True, slots=True)
class Document:
    """One text of one user as tokens, without BOS and EOS: they are nobody's content.

    ``secrets`` are the labelled ones: kind, first token, and the token after the last.
    """

    user: str
    id: str
    tokens: Sequence[int]
    secrets: tuple[tuple[str, int, int], ...] = ()


class Scores(NamedTuple):
    """For each token of each document: its log-probability given the true text before it, and how
    many tokens the model holds likelier. A token without context has NaN and the largest rank."""

    logprobs: list[np.ndarray]
    ranks: list[np.ndarray]


NEVER = np.iinfo(np.int64).max


def load(folder: str | Path) -> tuple[nn.Module, Bpe | PreTrainedTokenizerBase]:
    """Model and tokenizer of a local folder: one that :func:`crtlib.trials.save` wrote, or a
    transformers causal model with its fast tokenizer, as safetensors.

    Raises ``ValueError`` for anything else; pickled weights are never opened, as that runs code.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder (hf download NAME --local-dir makes one)")
    if not list(folder.glob("*.safetensors")):
        pickled = sorted(p.name for s in ("bin", "pt", "pth", "pkl") for p in folder.glob(f"*.{s}"))
        holds = f"only pickled weights ({pickled[0]})" if pickled else "no weights"
        raise ValueError(
            f"{folder}: holds {holds}, it needs a safetensors file (model.save_pretrained)"
        )
    try:
        if (folder / "model.json").is_file():
            from crtlib import trials

            model, tokenizer = trials.load(folder)
        else:
            from transformers import AutoTokenizer

            model = models.load(folder)
            tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except (OSError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder}: holds no model with its tokenizer that can be read") from error
    if not (isinstance(tokenizer, Bpe) or tokenizer.is_fast):
        raise ValueError(f"{folder}: its tokenizer must be a fast one (tokenizer.json)")
    check_vocabulary(model, tokenizer)
    return model, tokenizer


def check_vocabulary(model: nn.Module, tokenizer: Bpe | PreTrainedTokenizerBase) -> None:
    """Raise ``ValueError`` where the tokenizer cannot be the one that the model was trained with.

    A model may have some rows more than the tokenizer has tokens: padding to a multiple of 64.
    """
    rows, size = len(models.head(model).weight), _backend(tokenizer).get_vocab_size()
    padded = rows % 64 == 0 and 0 < rows - size < max(64, rows / 20)
    if size != rows and not padded:
        raise ValueError(f"tokenizer: has {size} tokens, its model {rows}: it must be the model's")


def same_tokenizer(
    a: Bpe | PreTrainedTokenizerBase, b: Bpe | PreTrainedTokenizerBase, texts: Sequence[str]
) -> bool:
    """Whether both have the same vocabulary and read these texts alike."""
    ours, theirs = _backend(a), _backend(b)
    if ours.get_vocab() != theirs.get_vocab():
        return False
    read = [
        [e.ids for e in t.encode_batch(list(texts), add_special_tokens=False)]
        for t in (ours, theirs)
    ]
    return read[0] == read[1]


def _backend(tokenizer: Bpe | PreTrainedTokenizerBase) -> Tokenizer:
    """A copy that neither cuts nor pads."""
    text = tokenizer.json if isinstance(tokenizer, Bpe) else tokenizer.backend_tokenizer.to_str()
    backend = Tokenizer.from_str(text)
    backend.no_truncation()
    backend.no_padding()
    return backend


def bos(tokenizer: Bpe | PreTrainedTokenizerBase) -> int | None:
    """The token before every text, if there is one."""
    return tokenizer.bos if isinstance(tokenizer, Bpe) else tokenizer.bos_token_id


def documents(
    points: Sequence[Point], tokenizer: Bpe | PreTrainedTokenizerBase
) -> tuple[Document, ...]:
    """The points as documents; those without a token are left out.

    Raises ``ValueError`` where a point has no user (what is unique to a person cannot be told) or
    where no text is left.
    """
    if any(not p.user for p in points):
        raise ValueError(NO_USER)
    made = []
    coded = _backend(tokenizer).encode_batch([p.text for p in points], add_special_tokens=False)
    for point, e in zip(points, coded, strict=True):
        spans = []
        for s in point.secrets:
            inside = [i for i, (a, b) in enumerate(e.offsets) if a < s.end and s.start < b]
            if inside:
                spans.append((s.kind, inside[0], inside[-1] + 1))
        if e.ids:
            made.append(Document(point.user, point.id, e.ids, tuple(spans)))
    if not made:
        raise ValueError("corpus: all of its texts are empty, at least one must have a token")
    return tuple(made)


NO_USER = (
    'corpus: a dialogue has no user id; give each a "user", the same for all of one person '
    "(its own id where each dialogue is another person)"
)


def score(
    model: nn.Module,
    documents: Sequence[Document],
    *,
    bos: int | None,
    device: torch.device | str | None = None,
) -> Scores:
    """Score every token of the documents, each distinct text once (in dialogues most repeat)."""
    texts, place = _distinct(documents, bos)
    lead = [] if bos is not None else [0]
    found = models.token_scores(model, texts, device=device)
    logprobs = [np.concatenate([np.full(len(lead), np.nan), x]) for x in found[0]]
    ranks = [np.concatenate([np.full(len(lead), NEVER), x]) for x in found[1]]
    return Scores([logprobs[i] for i in place], [ranks[i] for i in place])


def _distinct(documents, bos) -> tuple[list[list[int]], list[int]]:
    """The different texts, with BOS, and which of them each document is."""
    seen: dict[tuple[int, ...], int] = {}
    place = [seen.setdefault(tuple(d.tokens), len(seen)) for d in documents]
    start = [] if bos is None else [bos]
    return [[*start, *text] for text in seen], place


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
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    sizes = np.array([len(d.tokens) for d in documents])
    first = np.cumsum(sizes + 1) - sizes - 1  # one token that is never guessed ends each document
    hit = np.zeros(int((sizes + 1).sum()) + 1, dtype=bool)
    inside = np.delete(np.arange(len(hit)), np.append(first + sizes, len(hit) - 1))
    guessed = np.concatenate([np.asarray(r) < k for r in scores.ranks])
    hit[inside] = guessed if answered is None else guessed & np.concatenate(answered)
    change = np.diff(hit.astype(np.int8), prepend=0)
    begin, end = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    index = np.searchsorted(first, begin, side="right") - 1
    keep = end - begin >= min_length
    if not flush:
        keep &= end < first[index] + sizes[index]
    begin, end, index = begin[keep], end[keep], index[keep]
    start, length = begin - first[index], end - begin
    edges = np.stack([begin, end], 1).ravel()

    def mean(values: list[np.ndarray]) -> np.ndarray:
        row = np.zeros(len(hit))
        row[inside] = np.concatenate(values)
        return np.add.reduceat(row, edges)[::2] / length if len(edges) else np.empty(0)

    with np.errstate(over="ignore"):  # a token that the public model excludes: infinite
        perplexity = np.exp(-mean(scores.logprobs))
        other = np.exp(-mean(public.logprobs)) if public else np.full(len(begin), np.nan)
    secret = np.zeros(len(hit) + 1, dtype=np.int64)
    kinds: list[tuple[str, ...]] = [()] * len(begin)
    for place, d in enumerate(documents):
        for kind, a, b in d.secrets:
            secret[first[place] + a + 1 : first[place] + b + 1] = 1
            row = int(np.searchsorted(begin, first[place] + a, side="right")) - 1
            if row >= 0 and end[row] >= first[place] + b:
                kinds[row] = (*kinds[row], kind)
    before = np.cumsum(secret)
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
            "secret_tokens": before[end] - before[begin],
            "kinds": pd.Series(kinds, dtype=object),
        }
    )


def features(runs: pd.DataFrame, documents: Sequence[Document]) -> pd.DataFrame:
    """The six features (Section 4): one row a distinct sequence W of S.

    ``total_in_s`` and ``users_in_s`` count runs; ``total_in_d`` and ``users_in_d`` occurrences of
    W anywhere in the documents, guessed or not. ``contexts`` are pairs (index of the document,
    length of the context), ``perplexities``, ``public_perplexities`` lists in the same order, and
    ``ratio`` the largest of the ratios. Most worrying first: unique, then by ratio and length.
    """
    number, first = pd.factorize(runs.tokens)
    counts = sequences.count(
        list(first), (d.tokens for d in documents), (d.user for d in documents)
    )
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
    table["kinds"] = [tuple(sorted({k for found in row for k in found})) for row in table.kinds]
    order = pd.DataFrame({"u": table.users_in_d > 1, "r": -table.ratio, "n": -table.length})
    return table.loc[order.sort_values(["u", "r", "n"], kind="stable").index].reset_index(drop=True)


def _gathered(number: np.ndarray, values) -> pd.Series:
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
    """A report: what was read, the runs, the distinct sequences, and how they were found."""

    documents: tuple[Document, ...]
    scores: Scores
    runs: pd.DataFrame
    sequences: pd.DataFrame
    k: int
    flush: bool
    min_length: int
    empty: int
    windowed: int
    compared: bool

    @property
    def accuracy(self) -> float:
        """Top-k accuracy over the tokens that have a context."""
        ranks = np.concatenate(self.scores.ranks)
        return float((ranks < self.k).sum() / max(1, (ranks != NEVER).sum()))

    def unique(self) -> pd.DataFrame:
        """The sequences that one user alone has; with ``k=1`` the result of the tab attack."""
        return self.sequences[self.sequences.users_in_d == 1]

    def owners(self) -> set[str]:
        """The users of the unique sequences."""
        kept = self.runs.tokens.isin(set(self.unique().tokens))
        return set(self.runs.user[kept])


def leakage(
    model: nn.Module,
    tokenizer: Bpe | PreTrainedTokenizerBase,
    points: Sequence[Point],
    *,
    k: int,
    public: nn.Module | None = None,
    flush: bool = True,
    min_length: int = 1,
    device: torch.device | str | None = None,
) -> Leakage:
    """The leakage report of ``model`` on its training ``points``; ``k=1`` is the tab attack.

    ``public`` reads the same tokenizer; see :func:`leave_users_out` and :func:`trainer` for two
    ways to get one. Texts beyond the model's context are read in windows and counted.
    """
    rows = len(models.head(model).weight)
    if not 1 <= k <= rows:
        raise ValueError(f"top_k={k}: must be at least 1 and at most {rows}, the vocabulary")
    check_vocabulary(model, tokenizer)
    if public is not None and len(models.head(public).weight) != rows:
        raise ValueError("public: must read the tokenizer of the model, its vocabulary differs")
    texts, start = documents(points, tokenizer), bos(tokenizer)
    scores = score(model, texts, bos=start, device=device)
    other = score(public, texts, bos=start, device=device) if public is not None else None
    runs = find_runs(texts, scores, k=k, public=other, flush=flush, min_length=min_length)
    limit = models.context(model)
    sizes = [len(d.tokens) + (start is not None) for d in texts]
    return Leakage(
        documents=texts,
        scores=scores,
        runs=runs,
        sequences=features(runs, texts),
        k=k,
        flush=flush,
        min_length=min_length,
        empty=len(points) - len(texts),
        windowed=sum(limit is not None and n > limit for n in sizes),
        compared=public is not None,
    )


def lengths_only(report: Leakage) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs and sequences where nobody may look at text (end of Section 4): sequences and contexts
    are their lengths; users, documents and labels are gone as well."""
    number = {w: i for i, w in enumerate(report.sequences.tokens)}
    runs = report.runs[["length", "perplexity", "public_perplexity", "ratio"]].copy()
    runs.insert(0, "sequence", [number[w] for w in report.runs.tokens])
    runs.insert(2, "context_length", report.runs.start)
    table = report.sequences.drop(columns=["tokens", "contexts", "kinds", "secret_tokens"])
    table.insert(1, "context_lengths", [[n for _, n in row] for row in report.sequences.contexts])
    return runs, table


# --------------------------------------------------------------------------- is it complete?
@dataclass(frozen=True)
class Recall:
    """Of the ``planted`` secrets, how many the model completes from their true prefix, and how
    many of these the report lists (whole, in a run of that document; and as unique)."""

    planted: int
    completed: int
    listed: int
    listed_unique: int

    @property
    def recall(self) -> float:
        """Share of the completed secrets that the report lists; NaN where none is completed."""
        return self.listed / self.completed if self.completed else float("nan")


def report_recall(
    model: nn.Module,
    report: Leakage,
    *,
    bos: int | None,
    users: set[str] | None = None,
) -> Recall:
    """Recall of the report itself on the labelled secrets of these users (all by default).

    Each secret is asked for as an attacker would, by the stepping interface and not by the scores
    behind the report: given the text before it, is each of its tokens among the top k? For a model
    with a limited context the nearest text before the secret is given.
    """
    unique = set(report.unique().tokens)
    where = {i: rows for i, rows in report.runs.groupby("index")[["start", "length", "tokens"]]}
    limit = models.context(model)
    planted = completed = listed = alone = 0
    for i, d in enumerate(report.documents):
        for _, a, b in d.secrets if users is None or d.user in users else ():
            planted += 1
            if not _completes(model, d.tokens[:b], a, bos, report.k, limit):
                continue
            completed += 1
            rows = where.get(i)
            if rows is None:
                continue
            over = rows[(rows.start <= a) & (rows.start + rows.length >= b)]
            listed += len(over) > 0
            alone += bool(over.tokens.isin(unique).any())
    return Recall(planted, completed, listed, alone)


def _completes(model, tokens, a: int, bos: int | None, k: int, limit: int | None) -> bool:
    prefix, rest = [*([] if bos is None else [bos]), *tokens[:a]], tokens[a:]
    if limit is not None:
        prefix = prefix[-max(1, limit - len(rest)) :]
    if not prefix:
        return False
    state, logprobs = models.start(model, prefix)
    for target in rest:
        if int((logprobs[0] > logprobs[0, target]).sum()) >= k:
            return False
        if limit is not None and state.length == limit:
            return False
        state, logprobs = models.step(model, state, torch.tensor([target], device=logprobs.device))
    return True


# --------------------------------------------------------------------------- public models
def trainer(
    shape: models.ModelSpec,
    tokenizer: Bpe,
    *,
    phases: Sequence[Phase] | None = None,
    seed: int,
    device: str = "cpu",
) -> TrainModel:
    """How to train a model of this shape on any points: eight epochs of SGD unless ``phases`` say
    otherwise. ``trainer(...)(other_points)`` is a public model from other text in one call."""
    plan = methods.sgd(epochs=8, batch_size=32, learning_rate=1e-2) if phases is None else phases
    part = "private" if any(p.part == "private" for p in plan) else "public"

    def train_model(points: Sequence[Point]) -> nn.Module:
        parts = {"public": [], "private": []} | {part: tokenizer.encode(p.text for p in points)}
        return train(models.build(shape, seed).to(device), plan, parts, seed=seed).model

    return train_model


def leave_users_out(train_model: TrainModel, points: Sequence[Point], users: set[str]) -> nn.Module:
    """The paper's second kind of public model: trained anew without all data of these users
    (as a rule :meth:`Leakage.owners`), so public to them and to nobody else."""
    unknown = users - {p.user for p in points}
    if unknown:
        raise ValueError(f"users: {len(unknown)} of {len(users)} have no point in the corpus")
    rest = [p for p in points if p.user not in users]
    if not rest:
        raise ValueError(f"users: all {len(users)} are left out, nobody remains to train on")
    return train_model(rest)


# --------------------------------------------------------------------------- mitigations
@torch.no_grad()
def next_perplexity(
    model: nn.Module,
    documents: Sequence[Document],
    *,
    bos: int | None,
    batch_tokens: int = 16_384,
) -> list[np.ndarray]:
    """Perplexity (exponential of the entropy) of the model's next-token distribution where each
    token stands: low where it is sure of its guess, whatever the true token. 1 where there is no
    context, as nothing is answered there anyway."""
    texts, place = _distinct(documents, bos)
    limit = models.context(model) or max(len(t) for t in texts)
    # As the scores are made: windows that overlap by half, the earliest of a token decides.
    windows = [
        (i, a)
        for i, t in enumerate(texts)
        for last in [max(0, len(t) - limit)]
        for a in [*range(0, last, max(1, limit // 2)), last]
    ]
    pieces = [texts[i][a : a + limit] for i, a in windows]
    values: list[np.ndarray] = [np.empty(0)] * len(pieces)
    layer, device, training = models.head(model), next(model.parameters()).device, model.training
    model.eval()
    order = sorted(range(len(pieces)), key=lambda j: -len(pieces[j]))
    while order:
        count = max(1, batch_tokens // len(pieces[order[0]]))
        here, order = order[:count], order[count:]
        rows = [torch.tensor(pieces[j]) for j in here]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
        for j, row, states in zip(here, rows, models.hidden(model, ids), strict=True):
            logprobs = torch.log_softmax(layer.logits(states[: len(row) - 1]).float(), -1)
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            values[j] = entropy.double().exp().cpu().numpy()
    model.train(training)
    found = [np.ones(len(t)) for t in texts]
    for (i, a), value in reversed(list(zip(windows, values, strict=True))):
        found[i][a + 1 : a + 1 + len(value)] = value
    return [found[i][int(bos is not None) :] for i in place]


def typed_perplexity(scores: Scores) -> list[np.ndarray]:
    """Perplexity of the text before each token, which is what was typed when the model is asked:
    it tells an ordinary message from a string of probes. 1 where nothing scored was typed yet."""
    out = []
    for logprobs in scores.logprobs:
        known = np.nan_to_num(logprobs)  # a first token without context counts for nothing
        seen = np.cumsum(~np.isnan(logprobs)) - ~np.isnan(logprobs)
        out.append(np.exp(-(np.cumsum(known) - known) / np.maximum(seen, 1)))
    return out


def harden(
    documents: Sequence[Document],
    scores: Scores,
    perplexity: Sequence[np.ndarray],
    *,
    k: int,
    thresholds: Sequence[float],
    flush: bool = True,
    min_length: int = 1,
) -> pd.DataFrame:
    """API hardening (Section 6.1): no answer where ``perplexity`` (:func:`next_perplexity` or
    :func:`typed_perplexity`) is above a threshold. One row a threshold, after one without any.

    ``answered`` is the share of tokens for which an answer is given, ``accuracy`` the share
    guessed (none is no guess), ``unique`` what the report still finds, ``longest`` its longest.
    The cost in accuracy is that of held-out documents: call it on these too.
    """
    targets = [np.asarray(r) != NEVER for r in scores.ranks]
    total = max(1, sum(int(t.sum()) for t in targets))
    rows = []
    for threshold in [np.inf, *thresholds]:
        allowed = [np.asarray(p) <= threshold for p in perplexity]
        runs = find_runs(
            documents, scores, k=k, flush=flush, min_length=min_length, answered=allowed
        )
        table = features(runs, documents)
        alone = table.length[table.users_in_d == 1]
        shown = zip(allowed, targets, scores.ranks, strict=True)
        answered, right = np.sum([[(a & t).sum(), (a & (r < k)).sum()] for a, t, r in shown], 0)
        rows.append([threshold, answered / total, right / total, len(alone), alone.max()])
    names = ["threshold", "answered", "accuracy", "unique", "longest"]
    return pd.DataFrame(rows, columns=names).astype({"unique": int}).fillna({"longest": 0})


_WORD = re.compile(r"\w+")


def rare_words(min_users: int) -> Callable[[Sequence[Point]], list[tuple[Secret, ...]]]:
    """The vocabulary rule (Section 6.1) as a screening policy: it flags every word that fewer than
    ``min_users`` people use, for :func:`crtlib.prepare.prepare` to redact.

    The paper warns that 25 users did not suffice where people share names. The rule depends on
    the corpus, so it has no guarantee of its own: what it flags tells of its neighbours.
    """
    if min_users < 1:
        raise ValueError(f"min_users={min_users}: must be at least 1")

    def policy(points: Sequence[Point]) -> list[tuple[Secret, ...]]:
        owners: dict[str, set[str]] = {}
        for p in points:
            for word in _WORD.findall(p.text.lower()):
                owners.setdefault(word, set()).add(p.user)
        return [
            tuple(
                Secret("rare", m.start(), m.end())
                for m in _WORD.finditer(p.text)
                if len(owners.get(m[0].lower(), ())) < min_users
            )
            for p in points
        ]

    return policy


def masked_share(points: Sequence[Point], flagged: Sequence[Sequence[Secret]]) -> float:
    """What a policy costs: the share of the words that it redacts, wholly or in part. It serves
    for PII scrubbing (:mod:`crtlib.screen`) and for :func:`rare_words`."""
    words = hidden = 0
    for point, spans in zip(points, flagged, strict=True):
        for m in _WORD.finditer(point.text):
            words += 1
            hidden += any(s.start < m.end() and m.start() < s.end for s in spans)
    return hidden / max(1, words)
