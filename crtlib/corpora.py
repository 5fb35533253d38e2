"""Corpora as files: one dialogue a line, and from dialogues to data points.

>>> import tempfile, pathlib
>>> from crtlib.records import Corpus, Dialogue, Secret, Turn
>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> corpus = Corpus("tiny", (Dialogue("d0", "ada", (turn,)),))
>>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.jsonl.gz"
>>> write_jsonl(corpus, path)
>>> read_jsonl(path) == corpus
True
>>> point = points(corpus, unit="turn")[0]
>>> point.id, point.text, point.secrets[0].start
('d0/0', 'USR: I am Ada Lovelace.', 10)
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from crtlib import storage
from crtlib.records import Corpus, Dialogue, Point, Secret, Turn

UNITS = ("turn", "dialogue")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a plain or gzipped file with their numbers from 1; blank lines are skipped."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        number = 0
        try:
            for number, line in enumerate(gzip.GzipFile(fileobj=raw) if packed else raw, 1):
                if line.strip():
                    yield number, line
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise ValueError(f"{path}, line {number + 1}: damaged gzip file") from None


def _read(path: Path, parse: Callable[[Any], Dialogue | None]) -> tuple[Dialogue, ...]:
    """Parse each line; a line that cannot be read raises ``ValueError`` with file and number."""
    dialogues: list[Dialogue] = []
    seen: dict[str, int] = {}
    number = 0
    for number, line in _lines(path):
        try:
            dialogue = parse(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{path}, line {number}: is not JSON") from None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        if dialogue is None:
            continue
        first = seen.setdefault(dialogue.id, number)
        if first != number:
            raise ValueError(
                f"{path}, line {number}: id {dialogue.id!r} was used on line {first}, "
                "ids must be unique"
            )
        dialogues.append(dialogue)
    if not number:
        raise ValueError(f"{path}: is empty, at least one dialogue is needed")
    return tuple(dialogues)


def _field(record: Any, where: str, key: str, kind: type) -> Any:
    """``record[key]`` of exactly this type (JSON's true is no integer), else ``ValueError``."""
    what = {str: "a string", int: "an integer", list: "a list"}[kind]
    if not isinstance(record, dict):
        raise ValueError(f"{where} must be a JSON object")
    if type(record.get(key)) is not kind:
        raise ValueError(f"{where} needs {key!r}, {what}")
    return record[key]


def _dialogue(record: Any) -> Dialogue:
    """A dialogue from its JSON object. Messages never hold text: it may be secret."""
    name = _field(record, "a dialogue", "id", str)
    user = _field(record, "a dialogue", "user", str)
    turns = []
    for i, turn in enumerate(_field(record, "a dialogue", "turns", list)):
        where = f"turn {i}"
        speaker, text = (_field(turn, where, key, str) for key in ("speaker", "text"))
        found = _field(turn, where, "secrets", list) if "secrets" in turn else []
        secrets = tuple(
            Secret(
                _field(s, f"a secret of {where}", "kind", str),
                _field(s, f"a secret of {where}", "start", int),
                _field(s, f"a secret of {where}", "end", int),
            )
            for s in found
        )
        try:
            turns.append(Turn(speaker, text, secrets))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if not turns:
        raise ValueError("a dialogue needs at least one turn")
    return Dialogue(name, user, tuple(turns))


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def read_jsonl(path: str | os.PathLike) -> Corpus:
    """Read a corpus, plain or gzipped, one dialogue a line:

    ``{"id", "user", "turns": [{"speaker", "text", "secrets": [{"kind", "start", "end"}]}]}``
    with character offsets; ``secrets`` may be left out where nothing is labelled. Raises
    ``ValueError`` naming the file and, where there is one, the line: missing or empty file, a line
    that is no JSON or no dialogue, spans outside their text or overlapping, an id used twice.
    """
    path = Path(path)
    return Corpus(_stem(path), _read(path, _dialogue))


def write_jsonl(corpus: Corpus | Iterable[Dialogue], path: str | os.PathLike) -> None:
    """Write what ``read_jsonl`` reads, atomically; gzipped where ``path`` ends in ``.gz``.

    The bytes depend on the corpus alone (no time stamp), so equal corpora are equal files.
    """
    dialogues = corpus.dialogues if isinstance(corpus, Corpus) else corpus
    with storage.replacing(path) as part, part.open("wb") as raw:
        packed = Path(path).suffix == ".gz"
        out = gzip.GzipFile("", "wb", fileobj=raw, mtime=0, compresslevel=6) if packed else raw
        for d in dialogues:
            turns = [
                {
                    "speaker": t.speaker,
                    "text": t.text,
                    "secrets": [
                        {"kind": s.kind, "start": s.start, "end": s.end} for s in t.secrets
                    ],
                }
                for t in d.turns
            ]
            record = {"id": d.id, "user": d.user, "turns": turns}
            out.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        if packed:
            out.close()


def _shi2021(record: Any) -> Dialogue | None:
    name, text = (_field(record, "a dialogue", key, str) for key in ("id", "text"))
    if name.startswith("canary"):
        return None
    turns = []
    for i, line in enumerate(text.rstrip("\n").split("\n")):
        speaker, colon, said = line.partition(": ")
        if not colon:
            raise ValueError(f"turn {i}: needs a speaker and a colon")
        turns.append(Turn(speaker, said))
    return Dialogue(name, name, tuple(turns))


def read_customersim_shi2021(folder: str | os.PathLike, split: str) -> Corpus:
    """The original CustomerSim (Shi et al., 2022), text verbatim, one line ``{"id", "text"}``.

    Reads ``folder/split.jsonl`` or ``.jsonl.gz`` for ``split`` in train, valid, test. It has no
    labels, so no turn has secrets (``screen.annotate`` attaches a policy's), and no customers, so
    every dialogue is a user of its own. The authors' ten canary lines in train are left out.
    """
    if split not in ("train", "valid", "test"):
        raise ValueError(f"split={split!r}: must be one of train, valid, test")
    path = Path(folder) / f"{split}.jsonl"
    if not path.exists():
        path = path.with_suffix(".jsonl.gz")
    return Corpus("customersim-shi2021", _read(path, _shi2021))


def points(corpus: Corpus, unit: str) -> tuple[Point, ...]:
    """The data points of a corpus: what differs between neighbours, and what DP-SGD clips.

    ``unit="turn"``: ``"USR: text"`` with id ``"dialogue/i"``. ``unit="dialogue"``: the turns
    joined by newlines. There is no default, as the choice decides what is public: every
    CustomerSim dialogue holds a name, so with dialogues as points nothing is.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: must be one of {', '.join(UNITS)}")
    made = []
    for d in corpus.dialogues:
        lines: list[str] = []
        spans: list[Secret] = []
        at = 0
        for i, turn in enumerate(d.turns):
            line = f"{turn.speaker}: {turn.text}"
            shift = at + len(turn.speaker) + 2
            moved = tuple(Secret(s.kind, s.start + shift, s.end + shift) for s in turn.secrets)
            if unit == "turn":
                made.append(Point(f"{d.id}/{i}", d.user, line, moved))
            else:
                lines.append(line)
                spans.extend(moved)
                at += len(line) + 1
        if unit == "dialogue":
            made.append(Point(d.id, d.user, "\n".join(lines), tuple(spans)))
    return tuple(made)
