"""Read and write dialogues as JSON lines, our own format.

>>> import pathlib, tempfile
>>> from crtlib.text.records import Secret, Turn
>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> corpus = Corpus("tiny", (Dialogue("d0", "ada", (turn,)),))
>>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.jsonl.gz"
>>> write_jsonl(corpus, path)
>>> tuple(read_jsonl(path)) == corpus.dialogues
True
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from crtlib import files
from crtlib.files import StrPath
from crtlib.text.encodings import describe_recoding
from crtlib.text.identity import normalise_unit_name
from crtlib.text.records import Corpus, Dialogue

T = TypeVar("T")
R = TypeVar("R")
_DIALOGUE_ADAPTER = TypeAdapter(Dialogue)
dialogue_to_json = _DIALOGUE_ADAPTER.dump_python
"""The JSON object of a dialogue, which ``parse_dialogue`` reads."""
_encode_json_string = json.encoder.encode_basestring


class BadRow(ValueError):
    """Why a row is left out: ``reason`` is counted, ``says`` completes "row 3, column body ...".

    Neither quotes text. ``encoding``: the file may be readable in another encoding.
    """

    def __init__(self, reason: str, says: str, column: str = "", *, encoding: bool = False) -> None:
        super().__init__(f"{column}: {says}" if column else says)
        self.reason, self.says, self.column, self.encoding = reason, says, column, encoding


NumberedRow = tuple[int, dict[str, Any] | BadRow]
"""A row's number, as the file's owner counts, and its cells by column or what is wrong with it."""


def read_record(number: int, parse: Callable[[T], R], raw: T) -> tuple[int, R | BadRow]:
    """Parse one record: return its number with what ``parse`` makes of it, or with why it cannot be
    read, whatever was raised. Every reader reads each of its records with this function.

    Raises what is the machine's fault: too little memory, and errors of the system.

    Guarantee:
        No record ends a run that leaves bad ones out, and no record is quoted. Test:
        ``tests/text/test_hostile_records.py``.

    >>> number, bad = read_record(7, lambda raw: {"text": raw[9]}, "short")
    >>> number, bad.reason, str(bad)
    (7, 'cannot be read', 'cannot be read (IndexError)')
    """
    try:
        return number, parse(raw)
    except BadRow as bad:
        return number, bad
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        what = "cannot be read"
        return number, BadRow(what, f"{what} ({type(error).__name__})")


class RepeatedNameError(ValueError):
    """A JSON object has a name twice: people read the first of the two, and programs the last."""


def load_strict_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises :class:`RepeatedNameError` for an object that has a name
    twice, and whatever ``json.loads`` raises.

    Guarantee:
        No part of a message, label or sealed file is skipped because its name is there twice.
        Test: ``tests/text/test_names_that_stand_twice.py``.
    """
    return json.loads(text, object_pairs_hook=_as_object)


def _as_object(rows: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(rows)) < len(rows):
        raise RepeatedNameError("a name is repeated")
    return found


def read_json_objects(path: Path) -> Iterator[NumberedRow]:
    """The JSON objects in a plain or gzipped file with one object a line."""
    with files.open_plain_or_gzip(path) as file:
        for number, line in enumerate(files.read_bounded_lines(file, path), 1):
            if not line.strip():
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield read_record(number, parse_json_object, line)


def parse_json_object(line: str | bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises :class:`BadRow`."""
    try:
        record = load_strict_json(line)
    except RepeatedNameError:
        raise BadRow("a name twice", "holds an object with a repeated name") from None
    except UnicodeDecodeError as error:
        says = f"is not UTF-8 (byte 0x{error.object[error.start]:02X})"
        raise BadRow("not UTF-8", says, encoding=True) from None
    except (json.JSONDecodeError, RecursionError):
        raise BadRow("not JSON", "is not JSON") from None
    except ValueError:  # an integer of more than 4,300 digits
        raise BadRow("not JSON", "holds a number that is too long") from None
    if not isinstance(record, dict):
        raise BadRow("not a JSON object", "is not a JSON object")
    return record


def read_jsonl(path: Path) -> Iterator[Dialogue]:
    """The dialogues in a plain or gzipped file, one a line:

    ``{"id", "user", "turns": [{"speaker", "text", "secrets": [{"kind", "start", "end"}]}]}``
    with character offsets; ``secrets`` may be left out where nothing is labelled.

    Raises ``ValueError`` that names the file and, where there is one, the line: for a missing or
    empty file, a line that is no JSON or no dialogue, spans that overlap or lie outside their text,
    and an id used twice. It gives the command that helps if the file has another format or is not
    UTF-8.
    """
    seen: dict[str, int] = {}
    for number, cells in read_json_objects(path):
        try:
            if isinstance(cells, BadRow):
                raise cells
            if not seen and not {"id", "turns"} <= cells.keys():
                raise ValueError(
                    "is not a conversation with id, user and turns; turn the file into a corpus "
                    f"with {ingest_command(path)}"
                )
            one = parse_dialogue(cells)
            if first := seen.get(one.id):
                raise ValueError(f"its id was used on line {first}, ids must be unique")
        except ValueError as error:
            message = f"{path}, line {number}: {error}"
            if isinstance(error, BadRow) and error.encoding:
                message += f"; {describe_recoding(path)}"
            raise ValueError(message) from None
        seen[one.id] = number
        yield one
    if not seen:
        raise ValueError(f"{path}: is empty, at least one dialogue is needed")


def ingest_command(path: Path) -> str:
    """The command that makes a corpus from a file in another format."""
    return f"crtlib ingest {shlex.quote(str(path))} --out DIR"


def check_unicode(column: str, *texts: str) -> None:
    """Raise ``BadRow`` for half of a surrogate pair, which JSON can express and UTF-8 cannot."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise BadRow("half a surrogate pair", "holds half a surrogate pair", column) from None


def parse_dialogue(record: Any) -> Dialogue:
    """A dialogue from its JSON object. Error messages never hold text, which may be secret."""
    says = ""
    try:
        d = _DIALOGUE_ADAPTER.validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = " ".join(map(str, first["loc"])).replace("turns", "turn") or "a dialogue"
        what = first["msg"].replace("Input should be", "must be")
        says = f"{place}: {what.removeprefix('Value error, ')}"
    if says:  # raised here: Python never frees what a chained ValidationError holds
        raise ValueError(says)
    said = ((t.speaker, t.text, *(s.kind for s in t.secrets)) for t in d.turns)
    check_unicode("a dialogue", d.id, d.user, *itertools.chain.from_iterable(said))
    if not d.turns:
        raise ValueError("a dialogue needs at least one turn")
    return Dialogue(d.id, normalise_unit_name(d.user), d.turns)


def canonical_line(name: str, user: str, turns: Iterable[tuple[str, str]]) -> bytes:
    """The line of a dialogue over which the hash of a corpus is taken: its text, not its labels.
    ``turns`` are speakers and texts.

    >>> canonical_line("d", "ann", [("USR", "é")]).decode()
    '{"id":"d","turns":[{"speaker":"USR","text":"é"}],"user":"ann"}\\n'
    """
    said = ",".join(
        [
            f'{{"speaker":{_encode_json_string(s)},"text":{_encode_json_string(t)}}}'
            for s, t in turns
        ]
    )
    owner = _encode_json_string(normalise_unit_name(user))
    return f'{{"id":{_encode_json_string(name)},"turns":[{said}],"user":{owner}}}\n'.encode()


def write_jsonl(corpus: Corpus | Iterable[Dialogue], path: StrPath) -> None:
    """Write what :func:`read_jsonl` reads, atomically; gzipped if ``path`` ends in ``.gz``.

    The bytes depend on the corpus alone (no time stamp), so equal corpora give equal files.
    """
    dialogues = corpus.dialogues if isinstance(corpus, Corpus) else corpus
    with files.replace_atomically(path) as part, part.open("wb") as raw:
        packed = Path(path).suffix == ".gz"
        out = gzip.GzipFile("", "wb", fileobj=raw, mtime=0, compresslevel=6) if packed else raw
        for d in dialogues:
            out.write(json.dumps(dialogue_to_json(d), ensure_ascii=False).encode() + b"\n")
        if packed:
            out.close()
