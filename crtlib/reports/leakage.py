"""The leakage report as one web page that needs no network, with Parquet and JSON beside it.

Text is left out unless it is asked for: sequences are bars of their length, users and documents
numbers. (A hash would not do: whoever guesses a short secret can hash the guess.)

>>> import numpy as np
>>> from crtlib.attacks.leakage import Document
>>> from crtlib.attacks.leakage import Leakage
>>> from crtlib.attacks.leakage import Scores
>>> from crtlib.attacks.leakage import features
>>> from crtlib.attacks.leakage import find_runs
>>> said = (Document("ann", "a", [0, 1, 2]),)
>>> scores = Scores([np.log([1, 0.5, 0.5])], [np.array([9, 0, 0])])
>>> runs = find_runs(said, scores, k=1)
>>> found = Leakage(said, scores, runs, features(runs, said), 1, True, 1, 0, 0, False)
>>> told = Told(model="demo", corpus="demo.jsonl", unit="turn")
>>> "<title>Leakage report: demo</title>" in page(found, told)
True
>>> sequences(found, None).columns[:3].tolist()
['sequence', 'length', 'total_in_s']
"""

from __future__ import annotations

import datetime
import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from string import Template

import numpy as np
import pandas as pd

from crtlib import files
from crtlib.attacks import leakage
from crtlib.attacks.leakage import Leakage
from crtlib.models.folder import load
from crtlib.text import jsonl, units
from crtlib.text.records import Corpus
from crtlib.text.tokenizer import same_tokenizer

Decode = Callable[[Sequence[int]], str]
ROWS = 2000
"""Sequences on the page, the most worrying ones; the Parquet files hold all of them."""
SHOWN = 5
"""Contexts of one sequence on the page."""
CONTEXT = 240
"""Characters of a context on the page: the nearest ones."""


@dataclass(frozen=True)
class Told:
    """What stands at the head of a report: the names of model, corpus and public model, what one
    document is, the threshold of metric 2, and whether anything but lengths may be shown."""

    model: str
    corpus: str
    unit: str
    public: str | None = None
    threshold: float | None = None
    lengths_only: bool = False

    def __post_init__(self) -> None:
        if self.threshold is not None and not self.threshold > 0:
            raise ValueError(f"threshold={self.threshold}: must be positive")
        if self.threshold is not None and self.public is None:
            raise ValueError("threshold: compares with a public model, give one")


def read_corpus(path: str | Path) -> Corpus:
    """A JSONL corpus; where users are missing the error says what to do about it."""
    try:
        return jsonl.read_jsonl(path)
    except ValueError as error:
        if "needs 'user'" in str(error):
            raise ValueError(f"{path}: {leakage.NO_USER}") from None
        raise


# --------------------------------------------------------------------------- tables
def sequences(
    report: Leakage, decode: Decode | None, *, lengths_only: bool = False
) -> pd.DataFrame:
    """One row a distinct sequence, the most worrying first. Without ``decode`` nothing in it is
    text: users are numbers. With it there are ``text``, ``contexts`` and the users' ids."""
    if lengths_only:
        table = leakage.lengths_only(report)[1]
        table.insert(0, "sequence", np.arange(1, len(table) + 1))
        return table
    found = report.sequences
    people = _numbers(report)
    table = found.drop(columns=["tokens", "contexts", "kinds"])
    table.insert(0, "sequence", np.arange(1, len(table) + 1))
    table["context_lengths"] = [[n for _, n in row] for row in found.contexts]
    table["kinds"] = [list(kinds) for kinds in found.kinds]
    owners = [list(dict.fromkeys(report.documents[i].user for i, _ in row))
              for row in found.contexts]  # fmt: skip
    table["users"] = [[people[u] for u in row] for row in owners]
    if decode:
        table.insert(1, "text", [decode(w) for w in found.tokens])
        table["contexts"] = [
            [decode(report.documents[i].tokens[:n]) for i, n in row[: 4 * SHOWN]]
            for row in found.contexts
        ]
        table["users"] = owners
    return table


def runs(report: Leakage, decode: Decode | None, *, lengths_only: bool = False) -> pd.DataFrame:
    """The long table: one row a run, ``sequence`` as in :func:`sequences`."""
    if lengths_only:
        table = leakage.lengths_only(report)[0]
        table["sequence"] += 1
        return table
    place = {w: i + 1 for i, w in enumerate(report.sequences.tokens)}
    people = _numbers(report)
    table = report.runs.drop(columns=["tokens", "kinds", "index", "user", "document"])
    table = table.rename(columns={"start": "context_length"})
    table.insert(0, "sequence", [place[w] for w in report.runs.tokens])
    table.insert(1, "user", report.runs.user if decode else report.runs.user.map(people))
    table.insert(2, "document", report.runs.document if decode else report.runs["index"] + 1)
    if decode:
        table["text"] = [decode(w) for w in report.runs.tokens]
    return table


def _numbers(report: Leakage) -> dict[str, int]:
    """Users as numbers, in the order of the corpus."""
    return {u: n for n, u in enumerate(dict.fromkeys(d.user for d in report.documents), 1)}


def summary(report: Leakage, told: Told) -> dict:
    """What was read and the metrics: JSON-safe, and without any text of the corpus."""
    return {
        **asdict(told),
        "top_k": report.k,
        "min_length": report.min_length,
        "runs_at_the_end": "kept" if report.flush else "dropped, as Algorithm 1 is printed",
        "documents": len(report.documents),
        "users": len({d.user for d in report.documents}),
        "tokens": sum(len(d.tokens) for d in report.documents),
        "empty_texts_left_out": report.empty,
        "texts_beyond_the_context_read_in_windows": report.windowed,
        "accuracy": _json(report.accuracy),
        "runs": len(report.runs),
        "sequences": len(report.sequences),
        **{k: _json(v) for k, v in leakage.metrics(report.sequences, told.threshold).items()},
        "leakage_epsilon_is": "a ratio of perplexities, not a differential-privacy epsilon",
        "date": datetime.date.today().isoformat(),
        "crtlib": metadata.version("crtlib"),
    }


def _json(value):
    """Four digits (never a long run of digits that could be taken for a secret); NaN is null."""
    if isinstance(value, list | tuple):
        return [_json(v) for v in value]
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        return "infinite" if math.isinf(value) else float(f"{value:.4g}")
    return value.item() if isinstance(value, np.generic) else value


def _records(table: pd.DataFrame) -> list[dict]:
    """Rows for JSON; of contexts and their numbers the first few."""
    out = []
    for row in table.to_dict("records"):
        shortest = min(row["context_lengths"])
        # The pair of the largest ratio (without a public model, of the lowest perplexity), so that
        # the three numbers that stand side by side belong to one run.
        pairs = zip(row["perplexities"], row["public_perplexities"], strict=True)
        row["perplexity"], row["public"] = min(
            pairs, key=lambda p: p[0] if math.isnan(p[1]) else -p[1] / p[0]
        )
        for name in ("perplexities", "public_perplexities", "context_lengths", "users", "contexts"):
            if name in row:
                row[name] = row[name][:SHOWN]
        if "contexts" in row:
            row["contexts"] = [text[-CONTEXT:] for text in row["contexts"]]
        out.append({k: _json(v) for k, v in row.items()} | {"context": shortest})
    return out


def write(
    report: Leakage,
    folder: str | Path,
    told: Told,
    *,
    decode: Decode | None = None,
    rows: int = ROWS,
) -> Path:
    """``report.html``, ``report.json``, ``sequences.parquet`` and ``runs.parquet``, atomically.

    Returns the path of the page.
    ``decode`` (the tokenizer's) writes text in clear, into all four, unless only lengths may be
    shown; without it there is none.
    """
    folder = Path(folder)
    decode = None if told.lengths_only else decode
    table = sequences(report, decode, lengths_only=told.lengths_only)
    long = runs(report, decode, lengths_only=told.lengths_only)
    for name, frame in (("sequences", table), ("runs", long)):
        with files.replacing(folder / f"{name}.parquet") as part:
            frame.to_parquet(part, index=False)
    said = {"summary": summary(report, told), "shown": min(rows, len(table))}
    said["sequences"] = _records(table.head(rows))
    files.write_text(folder / "report.json", json.dumps(said, indent=1, allow_nan=False) + "\n")
    files.write_text(folder / "report.html", page(report, told, decode=decode, rows=rows))
    return folder / "report.html"


def make(
    model: str | Path,
    corpus: str | Path,
    folder: str | Path,
    *,
    top_k: int = 3,
    public: str | Path | None = None,
    unit: str | None = None,
    reveal: bool = False,
    lengths_only: bool = False,
    min_length: int = 1,
    threshold: float | None = None,
    verbatim: bool = False,
    device: str = "cpu",
) -> tuple[Path, dict]:
    """From folders and files to the written report: its page and its summary.

    ``unit`` says what one document is; by default what the run was trained on, where it says so
    (``experiment.json``), else a turn. Raises ``ValueError`` for bad input, before it writes.
    """
    if reveal and lengths_only:
        raise ValueError("reveal, lengths_only: contradict each other, give one of the two")
    recorded = Path(model) / "experiment.json"
    if unit is None and recorded.is_file():
        unit = json.loads(recorded.read_text(encoding="utf-8")).get("unit")
    told = Told(
        model=Path(model).resolve().name,
        corpus=Path(corpus).name,
        unit=unit or "turn",
        public=None if public is None else Path(public).resolve().name,
        threshold=threshold,
        lengths_only=lengths_only,
    )
    points = units.points(read_corpus(corpus), unit=told.unit)
    network, tokenizer = load(model)
    other = None
    if public is not None:
        other, its = load(public)
        if not same_tokenizer(tokenizer, its, [p.text for p in points[:1000]]):
            raise ValueError(f"public={told.public!r}: must read the tokenizer of the model")
    report = leakage.leakage(
        network,
        tokenizer,
        points,
        k=top_k,
        public=other,
        flush=not verbatim,
        min_length=min_length,
        device=device,
    )
    written = write(report, folder, told, decode=tokenizer.decode if reveal else None)
    return written, summary(report, told)


# --------------------------------------------------------------------------- the page
def page(report: Leakage, told: Told, *, decode: Decode | None = None, rows: int = ROWS) -> str:
    """The whole page as text: style, script, data and figures are inside."""
    table = sequences(report, decode, lengths_only=told.lengths_only)
    facts = summary(report, told)
    alone = table[table.users_in_d == 1]
    data = json.dumps(_records(table.head(rows)), allow_nan=False, separators=(",", ":"))
    limits = [
        f"Runs of at least {report.min_length} token{'s' * (report.min_length > 1)} count.",
        "Only the contexts of the training text were tried: another prompt may reveal more.",
        "A sequence that one person alone has is not always a secret, and a secret that two share "
        "is not counted as unique.",
    ]
    if not report.flush:
        limits.append("Runs at the end of a text are left out, as Algorithm 1 is printed.")
    if report.empty:
        limits.append(f"{report.empty:,} empty texts were left out.")
    if report.windowed:
        limits.append(f"{report.windowed:,} texts beyond the model's context were read in windows.")
    if len(table) > rows:
        limits.append(f"The table holds the {rows:,} most worrying of {len(table):,} sequences; "
                      "sequences.parquet has all.")  # fmt: skip
    shown = "text in clear: keep it as safe as the training data" if decode else (
        "lengths only" if told.lengths_only else "text redacted")  # fmt: skip
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return Template(template).substitute(
        title=html.escape(f"Leakage report: {told.model}"),
        model=html.escape(told.model),
        shown=shown,
        warn=" warn" if decode else "",
        about=html.escape(
            f"What the model's top {report.k} guesses complete of {told.corpus}: "
            f"{facts['documents']:,} texts (one {told.unit} each) of {facts['users']:,} users, "
            f"{facts['tokens']:,} tokens."
            + (f" Compared with the public model {told.public}." if told.public else "")
        ),
        cards="".join(_cards(report, facts)),
        plots=_lengths(table) + _certainty(alone) + _compared(alone, told.threshold),
        limits="".join(f"<li>{html.escape(x)}</li>" for x in limits),
        longest=max(1, int(table.length.max()) if len(table) else 1),
        textual="true" if decode else "false",
        compared="true" if report.compared else "false",
        labelled="true" if "kinds" in table and table.secret_tokens.any() else "false",
        made=f"{facts['date']}, crtlib {facts['crtlib']}",
        data=data.replace("<", "\\u003c").replace("\u2028", " ").replace("\u2029", " "),
    )


def _cards(report: Leakage, facts: dict) -> list[str]:
    def card(value, name: str, why: str, strong: bool = False) -> str:
        shown = "–" if value is None else value if isinstance(value, str) else f"{value:,g}"
        return (f'<div class="card{" strong" if strong else ""}"><b>{shown}</b>'
                f"<span>{name}</span><small>{html.escape(why)}</small></div>")  # fmt: skip

    k, t = report.k, facts["threshold"]
    epsilon = facts["leakage_epsilon"]
    none = "no unique sequence" if report.compared else "needs a public model"
    return [
        card(f"{report.accuracy:.1%}", f"top-{k} accuracy", "of all tokens with a context"),
        card(facts["runs"], "runs", f"{facts['sequences']:,} distinct sequences"),
        card(facts["unique"], "unique", "metric 1: sequences of one user alone", True),
        card(facts["unique_above"], "unique and surprising",
             f"metric 2: ratio of at least {t:g}" if t is not None else
             "metric 2: needs a public model and a threshold", True),
        card(epsilon, "worst-case leakage ratio",
             none if epsilon is None else "the paper's leakage epsilon: a ratio of perplexities, "
             "not a differential-privacy epsilon"),
    ]  # fmt: skip


_W, _H, _LEFT, _BOTTOM, _TOP = 360, 200, 40, 34, 10


def _figure(title: str, note: str, body: str, empty: str | None = None) -> str:
    drawn = f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-label="{title}">{body}</svg>'
    inner = f'<p class="none">{empty}</p>' if empty else drawn
    return f"<figure><h2>{title}</h2>{inner}<figcaption>{note}</figcaption></figure>"


def _axes(top: float, ticks: Sequence[tuple[float, str]], label: str) -> str:
    """Grid lines with their counts, and ticks ``(place in 0..1, text)`` along the bottom."""
    step = next(s for n in range(12) for s in (10**n, 2 * 10**n, 5 * 10**n) if top / s <= 4)
    out = []
    for value in range(0, int(top) + 1, step):
        y = _y(value / top)
        out.append(f'<line class="grid" x1="{_LEFT}" x2="{_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{value:,}</text>')
    out += [f'<text x="{_x(at):.1f}" y="{_H - 18}" class="mid">{text}</text>' for at, text in ticks]
    out.append(f'<text x="{(_LEFT + _W) / 2}" y="{_H - 3}" class="mid muted">{label}</text>')
    return "".join(out)


def _x(share: float) -> float:
    return _LEFT + share * (_W - _LEFT)


def _y(share: float) -> float:
    return _H - _BOTTOM - share * (_H - _BOTTOM - _TOP)


def _bars(stacks: dict[str, np.ndarray], told: Sequence[str]) -> tuple[int, str]:
    """The tallest bar, and all of them: side by side, of each style its counts, stacked."""
    low = np.zeros(len(told), dtype=int)
    top, body = max(1, int(sum(stacks.values()).max())), []
    width = (_W - _LEFT) / len(told)
    gap = min(1.5, width * 0.1)
    for style, counts in stacks.items():
        for i, (a, b) in enumerate(zip(low, low + counts, strict=True)):
            box = f'x="{_x(i / len(told)) + gap:.1f}" y="{_y(b / top):.1f}" '
            box += f'width="{max(1, width - 2 * gap):.1f}" height="{_y(a / top) - _y(b / top):.1f}"'
            body.append(f'<rect class="{style}" {box}><title>{told[i]}</title></rect>')
        low = low + counts
    return top, "".join(body)


def _lengths(table: pd.DataFrame) -> str:
    name = "How long they are"
    note = ('<i class="key one"></i> one user alone <i class="key many"></i> several users; '
            "distinct sequences by tokens")  # fmt: skip
    if not len(table):
        return _figure(name, note, "", "No run was found.")
    width = max(1, -(-int(table.length.max()) // 24))  # at most 24 bars
    place = (table.length.to_numpy() - 1) // width
    starts = range(1, (int(place.max()) + 1) * width + 1, width)
    alone, many = (np.bincount(place[few], minlength=len(starts))
                   for few in (table.users_in_d == 1, table.users_in_d > 1))  # fmt: skip
    spans = [f"{a}" if width == 1 else f"{a} to {a + width - 1}" for a in starts]
    told = [f"{span} tokens: {one:,} of one user, {more:,} of several"
            for span, one, more in zip(spans, alone, many, strict=True)]  # fmt: skip
    top, body = _bars({"one": alone, "many": many}, told)
    ticks = [((i + 0.5) / len(starts), str(a)) for i, a in enumerate(starts)]
    return _figure(name, note, _axes(top, ticks[:: max(1, len(ticks) // 8)], "tokens") + body)


def _certainty(alone: pd.DataFrame) -> str:
    name = "How sure the model is of them"
    note = "unique sequences by their lowest perplexity; 1 is certain"
    if not len(alone):
        return _figure(name, note, "", "No sequence belongs to one user alone.")
    values = np.log2([max(1.0, min(row)) for row in alone.perplexities])
    edge = max(1, math.ceil(values.max() + 1e-9))
    counts, edges = np.histogram(values, bins=edge * max(1, 16 // edge), range=(0, edge))
    told = [f"{2**a:.3g} to {2**b:.3g}: {n:,}"
            for a, b, n in zip(edges, edges[1:], counts, strict=False)]  # fmt: skip
    top, body = _bars({"one": counts}, told)
    every = max(1, edge // 6)
    ticks = [(i / edge, f"{2**i:,}") for i in range(0, edge + 1, every) if i < edge or edge < 7]
    ticks = [(min(at, 0.98), text) for at, text in ticks]
    return _figure(name, note, _axes(top, ticks, "perplexity") + body)


def _compared(alone: pd.DataFrame, threshold: float | None) -> str:
    """Metric 2 for every threshold at once: how many unique sequences have at least that ratio."""
    name = "How surprising to a public model"
    note = "unique sequences whose ratio (public perplexity / perplexity) is at least t: metric 2"
    ratios = np.sort(alone.ratio.dropna().to_numpy())
    if not len(ratios):
        told = "No public model was given." if len(alone) else "No sequence belongs to one user."
        return _figure(name, note, "", told)
    finite = ratios[np.isfinite(ratios)]
    high = max(2.0, 2.0 ** math.ceil(math.log2(finite.max() * 1.1))) if len(finite) else 2.0
    low = min(0.5, 2.0 ** math.floor(math.log2(finite.min()))) if len(finite) else 0.5
    span = math.log2(high / low)
    grid = np.linspace(0, 1, 161)
    left = len(ratios) - np.searchsorted(ratios, low * 2 ** (grid * span), side="left")
    top = len(ratios)
    points = [(_x(a), _y(n / top)) for a, n in zip(grid, left, strict=True)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base, left_end, right_end = f"{_y(0):.1f}", f"{_x(0):.1f}", f"{_x(1):.1f}"
    body = f'<polygon class="under" points="{left_end},{base} {line} {right_end},{base}"/>'
    body += f'<polyline class="line" points="{line}"/>'
    if threshold is not None and low <= threshold <= high:
        x = _x(math.log2(threshold / low) / span)
        n = int((ratios >= threshold).sum())
        place = f'x="{x + 5:.1f}"' if x < _W - 90 else f'x="{x - 5:.1f}" class="end"'
        body += f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{base}"/>'
        body += f'<text {place} y="{_y(0) - 8:.1f}">t = {threshold:g}: {n:,}</text>'
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    every = max(1, -(-len(powers) // 7))
    ticks = [((p - math.log2(low)) / span, f"{2.0**p:g}") for p in powers if p % every == 0]
    ticks = [(min(max(at, 0.02), 0.97), text) for at, text in ticks]
    return _figure(name, note, _axes(top, ticks, "threshold t") + body)
