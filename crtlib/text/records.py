"""What a corpus, a turn, a secret and a data point are, and their form as JSON lines.

Frozen records that the whole library passes around: what a corpus, a turn and a secret are.
They show no text and no name, which an id may be: a log or a traceback may quote them.

>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> turn.values()
('Ada Lovelace',)
>>> Turn("USR", "short", (Secret("name", 0, 9),))  # doctest: +ELLIPSIS
Traceback (most recent call last):
...
ValueError: secret at [0, 9): must lie inside its text of 5 characters; spans must be sorted ...

Dialogues as JSON lines: our own form, read and written.

>>> import pathlib, tempfile
>>> from crtlib.text.records import Secret, Turn
>>> turn = Turn("USR", "I am Ada Lovelace.", (Secret("name", 5, 17),))
>>> corpus = Corpus("tiny", (Dialogue("d0", "ada", (turn,)),))
>>> path = pathlib.Path(tempfile.mkdtemp()) / "tiny.jsonl.gz"
>>> write_jsonl(corpus, path)
>>> tuple(read_jsonl(path)) == corpus.dialogues
True

A corpus as a value: its name, how it is read or simulated, and how its content is known.

Each corpus registers itself where it is read; ``corpora`` finds them by name. A package of somebody
else's does the same, under the entry point group ``crtlib.corpora``.

>>> from crtlib.text.records import Corpus, Dialogue, Turn
>>> def draw(dialogues, seed, variety):
...     said = (Turn("USR", f"It is {seed}."),)
...     return Corpus("toy", tuple(Dialogue(f"{seed}-{i}", "ann", said) for i in range(dialogues)))
>>> toy = register(simulated("toy", "Toy talk", draw, sizes={"train": 3}, content="v1"))
>>> toy.read("train", None, 2).dialogues[1].turns[0].text
'It is 0.'
>>> del SOURCES["toy"]

Data points: what one point of a corpus is (a turn, a dialogue, a person), cut or not.

>>> from crtlib.text.records import Corpus, Dialogue, Secret, Turn
>>> ann = Turn("USR", "I am Ann.", (Secret("name", 5, 8),))
>>> corpus = Corpus("toy", (Dialogue("d", "ann", (ann, Turn("SYS", "hello"))),))
>>> [(p.id, p.text) for p in points(corpus, unit="turn")]
[('d/0', 'USR: I am Ann.'), ('d/1', 'SYS: hello')]
>>> [(p.text, p.secrets[0].start) for p in points(corpus, unit="dialogue")]
[('USR: I am Ann.\\nSYS: hello', 10)]
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import StrictInt, TypeAdapter, ValidationError

from crtlib import files
from crtlib.files import Named, reading

MASK = "<MASK>"
"""The one mask token (CRT, A.6.4: redaction and deduplication must use the same one)."""

LABEL_KINDS = ("name", "address", "phone", "id", "other")
"""Kinds of secrets that readers mark where nobody names others."""

TEMPLATES = resources.files(__package__) / "templates"
"""Data and pages that come with the library."""


def shipped(name: str, folder: Traversable = TEMPLATES) -> str:
    """A file of a ``folder`` of a package: data, or a page to be filled."""
    return (folder / name).read_text("utf-8")


def filled(page: str, folder: Traversable = TEMPLATES, /, **values: Any) -> str:
    """A page of a ``folder`` with its values; in HTML each of them is escaped."""
    import jinja2  # only what writes a page needs it

    pages = jinja2.Environment(
        autoescape=page.endswith(".html"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return pages.from_string(shipped(page, folder)).render(values).rstrip()


def unit(name: str | float) -> str:
    """A person or a thread as every form of file calls it: one person is one unit.

    >>> {unit(name) for name in (7, 7.0, " 7", "7.00", '"7"', "\uff17")}
    {'7'}
    >>> unit("Ann@Example.com"), unit("aB3"), unit("1.50")
    ('ann@example.com', 'aB3', '1.50')
    """
    text = str(name)
    if not text.isascii():
        seen = (c for c in text if unicodedata.category(c) != "Cf")  # marks that nobody sees
        text = unicodedata.normalize("NFKC", "".join(seen))
    text = text.strip().strip("\"'").strip()
    whole = re.fullmatch(r"([+-]?\d+)\.0+", text)
    text = whole[1] if whole else text
    return text.casefold() if "@" in text else text


def normal(text: str) -> str:
    """A text as who has read it knows it again, however it is written and spaced.

    >>> normal(" so\\u00a0be  it\\n") == normal("so be it")
    True
    """
    return " ".join(unit(text).split())


def sha(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def turn_hash(text: str) -> str:
    """What is kept of a turn, by its text alone: who has read it knows it under any id, of
    anybody."""
    return sha(normal(text))


@dataclass(frozen=True, slots=True)
class Secret:
    """A half-open character span ``[start, end)`` of its text, and what kind of secret it is."""

    kind: str
    start: StrictInt
    end: StrictInt


def check_spans(text: str, secrets: tuple[Secret, ...]) -> None:
    """Raise ``ValueError`` unless the spans lie inside ``text``, in order and without overlap; it
    names no kind, which may be any text."""
    last = 0
    for s in secrets:
        if not last <= s.start < s.end <= len(text):
            raise ValueError(
                f"secret at [{s.start}, {s.end}): must lie inside its text of {len(text)} "
                "characters; spans must be sorted and must not overlap"
            )
        last = s.end


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance: who speaks, the text, and the spans of its secrets (sorted, disjoint)."""

    speaker: str = field(repr=False)
    text: str = field(repr=False)
    secrets: tuple[Secret, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_spans(self.text, self.secrets)

    def values(self) -> tuple[str, ...]:
        """The secrets' text, in order."""
        return tuple(self.text[s.start : s.end] for s in self.secrets)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue of one user (the customer): the unit that belongs to a person."""

    id: str = field(repr=False)
    user: str = field(repr=False)
    turns: tuple[Turn, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A named list of dialogues; ``skipped`` says what its loader left out: (reason, count)."""

    name: str
    dialogues: Sequence[Dialogue] = field(repr=False)
    skipped: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.dialogues)

    def turns(self) -> Iterator[Turn]:
        """All turns, in order."""
        for dialogue in self.dialogues:
            yield from dialogue.turns


@dataclass(frozen=True, slots=True)
class Point:
    """One data point: what differs between neighbouring datasets, and what DP-SGD clips.

    ``text`` is a whole turn (``"USR: ..."``) or a whole dialogue (turns joined by newlines), so
    that no sentence is cut in two (CRT, A.6.3); ``secrets`` are the labelled spans where known,
    empty otherwise; ``id`` is unique in its corpus. ``spoken`` says where the turns' own words
    stand, without their speakers, for policies that must not read "USR"; empty: the whole text.
    ``thread`` is the id of its dialogue, which cannot be read off ``id``: both may hold a slash.
    """

    id: str = field(repr=False)
    user: str = field(repr=False)
    text: str = field(repr=False)
    secrets: tuple[Secret, ...] = field(default=(), repr=False)
    spoken: tuple[tuple[int, int], ...] = field(default=(), compare=False, repr=False)
    thread: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        check_spans(self.text, self.secrets)


class Bad(ValueError):
    """Why a row is left out: ``reason`` is counted, ``says`` completes "row 3, column body ...".

    Neither quotes text. ``encoding``: another codec may help.
    """

    def __init__(self, reason: str, says: str, column: str = "", *, encoding: bool = False) -> None:
        super().__init__(f"{column}: {says}" if column else says)
        self.reason, self.says, self.column, self.encoding = reason, says, column, encoding


Row = tuple[int, dict[str, Any] | Bad]
"""A row by its number, as its owner counts: its cells by column, or what is wrong with it."""


def json_lines(path: Path) -> Iterator[Row]:
    """One JSON object a line, of a file that is plain or gzipped."""
    with files.reading(path) as file:
        for number, line in enumerate(files.lines(file, path), 1):
            if not line.strip():
                continue
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                record = json.loads(line)
            except UnicodeDecodeError as error:
                says = f"is not UTF-8 (byte 0x{line[error.start]:02X})"
                yield number, Bad("not UTF-8", says, encoding=True)
            except (json.JSONDecodeError, RecursionError):
                yield number, Bad("not JSON", "is not JSON")
            except ValueError:  # an integer of more than 4,300 digits
                yield number, Bad("not JSON", "holds a number that is too long")
            else:
                known = isinstance(record, dict)
                yield number, record if known else Bad("not a JSON object", "is not a JSON object")


def read_jsonl(path: Path) -> Iterator[Dialogue]:
    """The dialogues of a file, plain or gzipped, one a line:

    ``{"id", "user", "turns": [{"speaker", "text", "secrets": [{"kind", "start", "end"}]}]}``
    with character offsets; ``secrets`` may be left out where nothing is labelled. Raises
    ``ValueError`` naming the file and, where there is one, the line: missing or empty file, a line
    that is no JSON or no dialogue, spans outside their text or overlapping, an id used twice.
    """
    seen: dict[str, int] = {}
    for number, cells in json_lines(path):
        try:
            if isinstance(cells, Bad):
                raise cells
            one = dialogue(cells)
            if first := seen.get(one.id):
                raise ValueError(f"its id was used on line {first}, ids must be unique")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        seen[one.id] = number
        yield one
    if not seen:
        raise ValueError(f"{path}: is empty, at least one dialogue is needed")


def check_unicode(column: str, *texts: str) -> None:
    """Refuse what JSON can say and UTF-8 cannot: half of a surrogate pair."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise Bad("half a surrogate pair", "holds half a surrogate pair", column) from None


_DIALOGUE = TypeAdapter(Dialogue)


def dialogue(record: Any) -> Dialogue:
    """A dialogue from its JSON object. Messages never hold text: it may be secret."""
    try:
        d = _DIALOGUE.validate_python(record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = " ".join(map(str, first["loc"])).replace("turns", "turn") or "a dialogue"
        what = first["msg"].replace("Input should be", "must be")
        raise ValueError(f"{place}: {what.removeprefix('Value error, ')}") from None
    said = ((t.speaker, t.text, *(s.kind for s in t.secrets)) for t in d.turns)
    check_unicode("a dialogue", d.id, d.user, *itertools.chain.from_iterable(said))
    if not d.turns:
        raise ValueError("a dialogue needs at least one turn")
    return replace(d, user=unit(d.user))


record = _DIALOGUE.dump_python
"""The JSON object of a dialogue, which ``dialogue`` reads."""


def canonical(name: str, user: str, turns: Iterable[tuple[str, str]]) -> bytes:
    """The line of a dialogue that the hash of a corpus is taken over: its text, not its labels.
    ``turns`` are speakers and texts.

    >>> canonical("d", "ann", [("USR", "é")]).decode()
    '{"id":"d","turns":[{"speaker":"USR","text":"é"}],"user":"ann"}\\n'
    """
    said = ",".join([f'{{"speaker":{_TEXT(s)},"text":{_TEXT(t)}}}' for s, t in turns])
    return f'{{"id":{_TEXT(name)},"turns":[{said}],"user":{_TEXT(unit(user))}}}\n'.encode()


_TEXT = json.encoder.encode_basestring


def write_jsonl(corpus: Corpus | Iterable[Dialogue], path: Named) -> None:
    """Write what ``stream`` reads, atomically; gzipped where ``path`` ends in ``.gz``.

    The bytes depend on the corpus alone (no time stamp), so equal corpora are equal files.
    """
    dialogues = corpus.dialogues if isinstance(corpus, Corpus) else corpus
    with files.replacing(path) as part, part.open("wb") as raw:
        packed = Path(path).suffix == ".gz"
        out = gzip.GzipFile("", "wb", fileobj=raw, mtime=0, compresslevel=6) if packed else raw
        for d in dialogues:
            out.write(json.dumps(record(d), ensure_ascii=False).encode() + b"\n")
        if packed:
            out.close()


Folder = Named | None


@dataclass(frozen=True)
class Source:
    """One corpus.

    ``check(split, folder)`` raises ``ValueError`` that names what is missing, without a download;
    of no split in particular where it is None. ``read(split, folder, limit)`` gives the first
    ``limit`` dialogues (all where None; it may give more) of a split that was checked, and
    ``content(split, folder)`` a hash of it.
    ``draw(dialogues, seed, variety)`` simulates fresh dialogues, as many as one likes; None for
    a corpus that is read. ``by_rule``: the shapes of its secrets were made by rule, so that
    the regular expressions for it miss none. ``label`` is the name that people are shown.
    """

    name: str
    label: str
    check: Callable[[str | None, Folder], object]
    read: Callable[[str, Folder, int | None], Corpus]
    content: Callable[[str, Folder], str]
    draw: Callable[[int, int, str], Corpus] | None = None
    by_rule: bool = False


SOURCES: dict[str, Source] = {}
"""What is registered so far; ``corpora.known()`` has all, those of installed packages as well."""


def register(source: Source, *, replace: bool = False) -> Source:
    """Make ``source`` known by its name and return it.

    Raises ``ValueError`` for a name that is taken, unless ``replace``, or that reads as a path.
    """
    if not re.fullmatch(r"[\w.-]+", source.name) or ".jsonl" in source.name:
        raise ValueError(f"name={source.name!r}: must be letters, digits, '.', '_' and '-' only")
    if not replace and SOURCES.get(source.name, source) is not source:
        raise ValueError(f"name={source.name!r}: is taken by another corpus; replace=True wins it")
    SOURCES[source.name] = source
    return source


def simulated(
    name: str,
    label: str,
    draw: Callable[[int, int, str], Corpus],
    *,
    sizes: Mapping[str, int],
    content: str | Callable[[], str],
    by_rule: bool = False,
) -> Source:
    """A corpus that is drawn. Its splits have ``sizes`` dialogues where no limit is given, the
    first from seed 0, the next from seed 1 and so on.

    ``content`` stands for all that a dialogue is made from but the seed: the fingerprint follows
    from it, so change it whenever the same seed would give other text.
    """
    seeds = {split: seed for seed, split in enumerate(sizes)}

    def check(split: str | None, folder: Folder) -> None:
        if folder is not None:
            raise ValueError(f"folder={os.fspath(folder)!r}: {name} is simulated, it has none")
        if split not in (None, *seeds):
            raise ValueError(f"split={split!r}: must be one of {', '.join(seeds)}")

    def read(split: str, _: Folder, limit: int | None) -> Corpus:
        return draw(sizes[split] if limit is None else limit, seeds[split], "paper")

    def made(split: str, _: Folder) -> str:
        made_from = content if isinstance(content, str) else content()
        return sha(f"{name}/paper/{split}/{made_from}")

    return Source(name, label, check, read, made, draw, by_rule)


def fetched(
    name: str,
    label: str,
    folders: Sequence[str],
    paths: Callable[[Path, str], list[Path]],
    read: Callable[[Path, str, int | None], Corpus],
    where: str,
    *,
    by_rule: bool = False,
) -> Source:
    """A corpus in files that somebody has to fetch: none of them is part of this package.

    It lies in the first of ``folders`` that there is under ``$CRTLIB_DATA``; ``paths(folder,
    split)`` are its files, ``read(folder, split, limit)`` the corpus; ``where`` says where to get
    it.
    """

    def home(folder: Folder) -> Path:
        root = os.environ.get("CRTLIB_DATA")
        if folder is None and not root:
            raise ValueError(f"{name}: set folder or CRTLIB_DATA; the corpus is at {where}")
        tried = [Path(folder)] if folder else [Path(root or "", one) for one in folders]
        for path in tried:
            if path.is_dir():
                return path
        raise ValueError(f"{name}: {tried[0]} is no folder; get the corpus from {where}")

    def check(split: str | None, folder: Folder) -> list[Path]:
        place = home(folder)
        try:
            return paths(place, split) if split is not None else []
        except ValueError as error:
            raise ValueError(f"{name}: {error}; the corpus is at {where}") from None

    return Source(
        name,
        label,
        check,
        lambda split, folder, limit: read(home(folder), split, limit),
        lambda split, folder: digest(check(split, folder)),
        by_rule=by_rule,
    )


def digest(paths: list[Path]) -> str:
    """SHA-256 of the content of files, packed or not, in their order.

    A file is read again only when its size or its time has changed.
    """
    if missing := next((path for path in paths if not path.is_file()), None):
        raise ValueError(f"{missing}: no such file")
    facts = [(path, path.stat()) for path in paths]
    parts = [_digest(path, one.st_size, one.st_mtime_ns) for path, one in facts]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@lru_cache(maxsize=4096)
def _digest(path: Path, _size: int, _time: int) -> bytes:
    with reading(path) as file:
        return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]


UNITS = ("turn", "dialogue", "user")


ROLE = re.compile(
    "|user|usr|customer|client|caller|human|person|patient|student|guest|system|sys|assistant|agent"
    "|bot|operator|support|advisor|representative|staff|doctor|teacher|model|gpt|tool|function",
    re.IGNORECASE,
)
"""What a speaker is called in the text of a point; no policy screens what stands there."""


def by_role(d: Dialogue) -> Dialogue:
    """A dialogue whose speakers are ``ROLE``; all others are S1: a number or a hash would tell who
    they are, or let one message decide what the speakers of all after it are called.

    >>> [t.speaker for t in by_role(Dialogue("d", "u", (Turn("Ada", "a"), Turn("SYS", "b")))).turns]
    ['S1', 'SYS']
    """

    def role(name: str) -> str:
        return name if ROLE.fullmatch(name) else "S1"

    return replace(d, turns=tuple(replace(t, speaker=role(t.speaker)) for t in d.turns))


def people(corpus: Corpus) -> Corpus:
    """Everybody's dialogues as one, in their order. Raises ``ValueError`` where it is not known
    whose a dialogue is."""
    said: dict[str, list[Turn]] = {}
    for d in corpus.dialogues:
        if not d.user:
            raise ValueError(f"unit='user': whose the dialogue {d.id!r} is, is not known")
        said.setdefault(d.user, []).extend(d.turns)
    every = (Dialogue(user, user, tuple(turns)) for user, turns in said.items())
    return replace(corpus, dialogues=tuple(every))


def joined(
    name: str, user: str, turns: Sequence[Turn], before: Sequence[str], after: str = ""
) -> Point:
    """Turns as one text: each behind what stands ``before`` it, and something ``after`` the last;
    with the spans of their secrets and of their own words."""
    parts: list[str] = []
    secrets: list[Secret] = []
    spoken: list[tuple[int, int]] = []
    at = 0
    for turn, lead in zip(turns, before, strict=True):
        at += len(lead)
        secrets += [Secret(s.kind, s.start + at, s.end + at) for s in turn.secrets]
        spoken.append((at, at + len(turn.text)))
        parts += [lead, turn.text]
        at += len(turn.text)
    return Point(name, user, "".join([*parts, after]), tuple(secrets), tuple(spoken))


def by_speaker(d: Dialogue, turns: Sequence[Turn], name: str) -> Point:
    """Some turns of a dialogue, a line each, as ``"USR: text"``; a turn of nobody as its text."""
    leads = [f"{t.speaker}: " if t.speaker else "" for t in turns]
    return joined(name, d.user, turns, [*leads[:1], *(f"\n{lead}" for lead in leads[1:])])


def points(
    corpus: Corpus, unit: str, write: Callable[[Dialogue, Sequence[Turn], str], Point] = by_speaker
) -> tuple[Point, ...]:
    """The data points of a corpus: what differs between neighbours, and what DP-SGD clips.

    ``unit="turn"``: ``"USR: text"`` with id ``"dialogue/i"``. ``unit="dialogue"``: the turns
    joined by newlines. ``unit="user"``: all turns of a person. There is no default, as the choice
    decides what is public: every CustomerSim dialogue holds a name, so with dialogues as points
    nothing is. ``write`` makes a text of turns. A WikiText paragraph is a turn, and
    ``crtbook.secrets.sentences`` cuts it further.
    """
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}: must be one of {', '.join(UNITS)}")
    if unit == "user":
        return points(people(corpus), "dialogue", write)
    cut: list[Point] = []
    for d in map(by_role, corpus.dialogues):
        if unit == "turn":
            made = [write(d, [t], f"{d.id}/{i}") for i, t in enumerate(d.turns)]
        else:
            made = [write(d, d.turns, d.id)]
        cut += [replace(p, thread=d.id) for p in made]
    return tuple(cut)
