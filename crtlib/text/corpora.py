"""All corpora by name: ours, those of installed packages, and one's own by path.

WikiText-2, the corpus of CRT's earlier version, where every number is a secret.

>>> corpus = parse_wikitext([" = Lobsters = ", " ", " It grows to 60 cm ( 24 in ) . "], "train")
>>> turn = next(corpus.turns())
>>> turn.text, turn.values(), corpus.skipped
('It grows to 60 cm ( 24 in ) .', ('60', '24'), (('heading', 1),))

MultiWOZ 2.2 and Schema-Guided Dialogue: two corpora, one JSON form, one loader.

>>> turn = {"speaker": "USER", "utterance": "Wire $20 to Ada, please.", "frames": [
...     {"service": "Banks_1", "slots": [
...         {"slot": "amount", "start": 5, "exclusive_end": 8},
...         {"slot": "recipient_name", "start": 12, "exclusive_end": 15}]}]}
>>> broken = turn | {"utterance": "Wire $20."}
>>> corpus = parse_multiwoz([{"dialogue_id": "1_0", "turns": [turn]},
...                 {"dialogue_id": "1_1", "turns": [broken]}], name="tiny")
>>> [(s.kind, turn["utterance"][s.start : s.end]) for s in next(corpus.turns()).secrets]
[('amount', '$20'), ('name', 'Ada')]
>>> corpus.skipped
(('a span runs outside its utterance', 1),)

>>> load("customersim", limit=2).dialogues[1].user
'user-14234'
>>> source("multiwoz").label, source("customersim").by_rule
('MultiWOZ 2.2', True)
"""

from __future__ import annotations

import json
import os
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crtlib import files, outputs
from crtlib.files import Named, reading
from crtlib.text import customersim, folders, records
from crtlib.text.records import (
    SOURCES,
    Corpus,
    Dialogue,
    Folder,
    Secret,
    Source,
    Turn,
    digest,
    fetched,
    normal,
    register,
    sha,
    shipped,
)

SPLITS = ("train", "valid", "test")
_NUMBER = re.compile(r"\d+")
_HEADING = re.compile(r"= .* =")


def wikitext_files(folder: Named, split: str) -> list[Path]:
    """The one file of a split: ``wiki.SPLIT.tokens`` or ``wiki.SPLIT.raw``, plain or ``.gz``."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    for end in ("tokens", "tokens.gz", "raw", "raw.gz"):
        path = Path(folder) / f"wiki.{split}.{end}"
        if path.is_file():
            return [path]
    raise ValueError(f"split={split!r}: {folder} has no wiki.{split}.tokens or .raw, plain or .gz")


def read_wikitext(folder: Named, split: str) -> Corpus:
    """A split from its file; ``ValueError`` names one that is missing, damaged or not UTF-8."""
    (path,) = wikitext_files(folder, split)
    with reading(path) as file:
        try:
            lines = file.read().decode().split("\n")
        except UnicodeDecodeError:
            raise ValueError(f"{path}: is not UTF-8") from None
    return parse_wikitext(lines, split)


def parse_wikitext(lines: Iterable[str], split: str) -> Corpus:
    """Each paragraph (line) as a dialogue of one turn that nobody speaks, a user of its own.

    Every run of digits is a secret of kind ``number`` ("we treat all the digits as secrets", CRT's
    first version, section 4.1). Headings are left out and counted; empty lines are no paragraphs.
    """
    dialogues: list[Dialogue] = []
    headings = 0
    for line in lines:
        text = line.strip()
        if _HEADING.fullmatch(text):
            headings += 1
        elif text:
            secrets = tuple(Secret("number", *m.span()) for m in _NUMBER.finditer(text))
            name = f"{split}-{len(dialogues)}"
            dialogues.append(Dialogue(name, name, (Turn("", text, secrets),)))
    if not dialogues:
        raise ValueError(f"wikitext2, split={split!r}: holds no paragraph")
    return Corpus("wikitext2", tuple(dialogues), (("heading", headings),) if headings else ())


def _both(folder: Named, split: str) -> list[Path]:
    if split != "train":
        raise ValueError(f"split={split!r}: must be train")
    return [path for part in SPLITS[1:] for path in wikitext_files(folder, part)]


def cut(folder: Named) -> Corpus:
    """Validation and test text as one: what there is to train on where the training text is not."""
    one, two = (read_wikitext(folder, part) for part in SPLITS[1:])
    headings = sum(n for part in (one, two) for _, n in part.skipped)
    return Corpus("wikitext2_cut", (*one.dialogues, *two.dialogues), (("heading", headings),))


WHERE = "https://huggingface.co/datasets/Salesforce/wikitext; data/README.md writes its files"
SOURCE = register(
    fetched(
        "wikitext2",
        "WikiText-2",
        ("wikitext-2",),
        wikitext_files,
        lambda folder, split, _: read_wikitext(folder, split),
        WHERE,
        by_rule=True,
    )
)
CUT = register(
    fetched(
        "wikitext2_cut",
        "WikiText-2, validation and test text",
        ("wikitext-2",),
        _both,
        lambda folder, *_: cut(folder),
        WHERE,
        by_rule=True,
    )
)


KINDS = {s: kind for kind, slots in tomllib.loads(shipped("slots.toml")).items() for s in slots}
"""Slot, or ``domain-slot``, to the kind of secret: what identifies a person or a transaction.

Not secret here: what anybody can look up or nobody is known by. Names of restaurants, hotels and
salons, films and artists, prices, ratings, cities, stations, dates and times. The doctor whom a
person consults is, though some of those names are of practices. The telephone numbers and addresses
are of businesses, and stand in for private ones, which corpora that may be published do not hold.
"""

SPEAKERS = {"USER": "USR", "SYSTEM": "SYS"}


def multiwoz_files(folder: Named, split: str) -> list[Path]:
    """What ``read`` opens: ``split/dialogues_*.json[.gz]``, then ``dialog_acts.json[.gz]`` if any.

    Raises ``ValueError`` where the split has no dialogues.
    """
    folder = Path(folder)
    found = sorted(folder.glob(f"{split}/dialogues_*.json*")) if split.isalnum() else []
    if not found:
        have = sorted({p.parent.name for p in folder.glob("*/dialogues_*.json*")})
        raise ValueError(
            f"split={split!r}: {folder} has no {split}/dialogues_*.json, "
            f"it has the splits: {', '.join(have) or 'none'}"
        )
    return found + sorted(folder.glob("dialog_acts.json*"))


def read_multiwoz(folder: Named, split: str, limit: int | None = None, *, name: str = "") -> Corpus:
    """The first ``limit`` dialogues of a split, plain files or gzipped; see ``parse``.

    ``name`` is the corpus', by default the folder's. Raises ``ValueError`` naming the file that is
    damaged or no JSON in UTF-8, or the split that is not there.
    """
    *paths, last = multiwoz_files(folder, split)
    acts = None
    if last.name.startswith("dialog_acts"):
        acts = _json(last, dict)
    else:
        paths.append(last)
    dialogues = chain.from_iterable(_json(path, list) for path in paths)
    return parse_multiwoz(dialogues, name=name or Path(folder).name, acts=acts, limit=limit)


def _json(path: Path, kind: type) -> Any:
    with reading(path) as file:
        try:
            content = json.loads(file.read())
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise ValueError(f"{path}: is not JSON in UTF-8") from None
    if not isinstance(content, kind):
        raise ValueError(f"{path}: must hold a JSON {'list' if kind is list else 'object'}")
    return content


def parse_multiwoz(
    dialogues: Iterable[Any], *, name: str, acts: Mapping | None = None, limit: int | None = None
) -> Corpus:
    """A corpus from dialogues as the files have them.

    Labels come from ``frames[].slots``, and from the ``span_info`` of the dialogue acts (``acts``,
    the content of MultiWOZ' ``dialog_acts.json``); spans that overlap become one, of the first's
    kind. ``USER`` and ``SYSTEM`` become ``USR`` and ``SYS``. Neither corpus has
    user ids, so each dialogue is a user of its own.

    A dialogue with a defect is left out whole and counted in ``skipped``: a turn with wrong labels
    would pass a secret for public text. Raises ``ValueError`` where no dialogue is left, and for
    MultiWOZ without dialogue acts, which alone mark some booking references.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    made: dict[str, Dialogue] = {}
    skipped: Counter[str] = Counter()
    for record in dialogues:
        try:
            dialogue = _dialogue(record, acts)
            if dialogue.id in made:
                raise _Defect("its id was used before")
            made[dialogue.id] = dialogue
        except _Defect as defect:
            skipped[str(defect)] += 1
        if len(made) == limit:
            break
    if not made:
        why = ", ".join(f"{count} left out as {reason}" for reason, count in skipped.items())
        raise ValueError(f"{name}: holds no dialogue that can be used ({why or 'it is empty'})")
    return Corpus(name, tuple(made.values()), tuple(sorted(skipped.items())))


class _Defect(Exception):
    """Why a dialogue is left out."""


def _rows(listed: Any, kind: type = dict) -> list[Any]:
    """A list of objects, or of lists."""
    if not isinstance(listed, list) or not all(isinstance(row, kind) for row in listed):
        raise _Defect("it is malformed")
    return listed


def _dialogue(record: Any, acts: Mapping | None) -> Dialogue:
    name = record.get("dialogue_id") if isinstance(record, dict) else None
    turns = _rows(record.get("turns")) if isinstance(name, str) else []
    if not isinstance(name, str) or not turns:
        raise _Defect("it has no id or no turns")
    mine: Any = {}
    if "turn_id" in turns[0]:
        if acts is None:
            raise ValueError(
                "dialog_acts.json: is missing beside the splits of MultiWOZ, "
                "and without it booking references have no labels"
            )
        mine = acts.get(name)
        if not isinstance(mine, dict):
            raise _Defect("it has no dialogue acts")
    return Dialogue(name, name, tuple(_turn(turn, mine) for turn in turns))


def _turn(turn: dict, acts: Mapping) -> Turn:
    text, speaker = turn.get("utterance"), turn.get("speaker")
    if not isinstance(text, str) or text != text.encode("utf-8", "replace").decode():
        raise _Defect("an utterance is no text")
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise _Defect("a speaker is neither USER nor SYSTEM")
    spans = []
    for domain, slot, start, end, value in _labels(turn, acts):
        # Every span is checked, secret or not: one that is off says that the text has changed.
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
            raise _Defect("a span runs outside its utterance")
        if value and isinstance(value, str) and value.casefold() != text[start:end].casefold():
            raise _Defect("a span does not hold its value")
        slot = str(slot).lower().rpartition("-")[2]
        kind = KINDS.get(f"{domain}-{slot}") or KINDS.get(slot)
        if kind:
            spans.append(Secret(kind, start, end))
    return Turn(SPEAKERS[speaker], text, merged(spans))


def _labels(turn: dict, acts: Mapping) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Domain, slot, start, end and, where it must be the span's text, value of each label."""
    for frame in _rows(turn.get("frames", [])):
        domain = str(frame.get("service")).partition("_")[0].lower()
        for slot in _rows(frame.get("slots", [])):
            # A value carried over from another slot does not stand in this utterance.
            if not slot.get("copy_from"):
                ends = slot.get("start"), slot.get("exclusive_end")
                yield domain, slot.get("slot"), *ends, slot.get("value")
    act = acts.get(str(turn.get("turn_id"))) or {}
    for f in _rows(act.get("span_info", []) if isinstance(act, dict) else None, list):
        if len(f) != 5:
            raise _Defect("it is malformed")
        yield "", f[1], f[3], f[4], None


def merged(spans: Iterable[Secret]) -> tuple[Secret, ...]:
    """The spans in order, those that overlap as one, of the kind of the first and longest."""
    out: list[Secret] = []
    for s in sorted(spans, key=lambda s: (s.start, -s.end)):
        if out and s.start < out[-1].end:
            out[-1] = Secret(out[-1].kind, out[-1].start, max(out[-1].end, s.end))
        else:
            out.append(s)
    return tuple(out)


MULTIWOZ, SCHEMA_GUIDED = (
    register(
        fetched(name, label, folders, multiwoz_files, partial(read_multiwoz, name=name), where)
    )
    for name, label, folders, where in (
        (
            *("multiwoz", "MultiWOZ 2.2", ("multiwoz_2.2", "multiwoz_2.2_subset")),
            "https://github.com/budzianowski/multiwoz, folder data/MultiWOZ_2.2",
        ),
        (
            *("schema_guided", "Schema-Guided Dialogue", ("sgd",)),
            "https://github.com/google-research-datasets/dstc8-schema-guided-dialogue",
        ),
    )
)


# It registers its corpora when it is imported.

_OURS = (customersim,)
GROUP = "crtlib.corpora"
"""The entry points of packages that bring a corpus: each names a ``Source``."""

SHORT, LONG = 40, 80
"""Characters below which a conversation is known by its id as well (many people say "thanks"), and
from which on a message is known by itself: of Schema-Guided Dialogue's development part one in 900
such messages stands in its training part, too, of those of 40 one in 43."""
KEPT = 1 << 17
"""Messages by which a text is known, at most: those with the smallest hashes, of any text."""


def known() -> Mapping[str, Source]:
    """All corpora that have a name, ours first. Packages that bring some are asked here, once."""
    _plugins()
    return MappingProxyType(SOURCES)


@cache
def _plugins() -> None:
    """Register the corpora of installed packages; a broken one is said and passed over."""
    for point in entry_points(group=GROUP):
        try:
            brought = point.load()
            if not isinstance(brought, Source):
                raise TypeError(f"{point.value} is no crtlib.text.records.Source")
            register(brought)
        except Exception as error:  # somebody else's code may fail in any way
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"corpus {point.name!r} of {package}: is left out; {why}", stacklevel=3)


def source(name: str | os.PathLike) -> Source:
    """The corpus called ``name``: a name of ``known()``, or the path of a ``.jsonl`` or
    ``.jsonl.gz`` file or of a corpus folder. Raises ``ValueError`` for another."""
    name = os.fspath(name)
    if name in SOURCES:
        return SOURCES[name]
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _own(Path(name))
    if name in known():
        return SOURCES[name]
    if Path(name).exists():  # JSONL by another name, or a folder
        return _own(Path(name))
    raise ValueError(
        f"corpus={name!r}: must be one of {', '.join(known())}, or the path of a .jsonl or "
        ".jsonl.gz file or of a corpus folder that exists; 'crtlib ingest' reads other forms"
    )


def _own(path: Path) -> Source:
    """A file or a corpus folder of one's own."""

    def check(split: str | None, folder: Folder) -> None:
        if folder is not None or (split not in (None, "train") and not path.is_dir()):
            raise ValueError(f"split={split!r}: {path} is one file, without splits or a folder")
        if not path.is_dir():
            files.check_regular(path)
        elif not folders.is_screened(path):
            folders.facts(path)
            folders.parts(path, split)

    return Source(
        str(path),
        path.name,
        check,
        lambda split, _, limit: read(path, split=split, limit=limit),
        lambda *_: corpus_hash(path) if path.is_dir() else digest([path]),
    )


OTHERS = (".csv", ".tsv", ".parquet", ".mbox", ".eml", ".txt", ".ndjson")
"""How names of files end that only ``crtlib ingest`` reads."""


def dialogues(path: str | os.PathLike, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder, a screened folder (a point each) or a JSONL file, plain or
    ``.gz``, one after another.

    Raises ``ValueError`` for what is missing, unfinished, damaged, or of another form, with the
    command that would help.
    """
    path = Path(path)
    if path.is_dir():
        if folders.is_screened(path):
            yield from folders.screened_dialogues(path)
        else:
            yield from folders.dialogues(path, split=split)
        return
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in OTHERS and path.is_file():
        what = f"is a {suffix[1:].upper()} file; turn it into a corpus with"
        raise ValueError(f"{path}: {what} 'crtlib ingest {path.name} --out DIR'")
    yield from records.read_jsonl(path)


def read(path: str | os.PathLike, *, split: str | None = None, limit: int | None = None) -> Corpus:
    """The first dialogues of a corpus folder or of JSONL, plain or ``.gz``, or all."""
    name = Path(path).name.removesuffix(".gz").removesuffix(".jsonl")
    return Corpus(name, tuple(islice(dialogues(path, split=split), limit)))


def corpus_hash(path: str | os.PathLike) -> str:
    """The corpus hash of a folder or a JSONL file: over the text, in any form, without labels.

    A screened folder counts by the hash of the corpus that it was made from."""
    if folders.is_screened(path):
        return folders.summary(path)["corpus_sha256"]
    if Path(path).is_dir():
        return folders.facts(path).sha256
    return folders.corpus_hash(dialogues(path))


def read_hash(path: str | os.PathLike) -> str:
    """The hash of what is read there: of a screened folder that of its own, redacted text, which
    is not the text that it was made from."""
    return outputs.content(path) if folders.is_screened(path) else corpus_hash(path)


def units(corpus: str | os.PathLike) -> Iterator[tuple[str, str]]:
    """The units by which a registry knows a text again, the kind and SHA-256 of each: all its
    conversations; where they are no simulation's also its people, where they have names, and its
    messages, which stay when the text is cut in another way: long ones that only one conversation
    has, short ones, and of these those that only one conversation has ("rare"); stretches of short
    ones, each after the other, that only one conversation has; whose messages are; and that all its
    people are named, if they are. A screened folder has those of the text that was screened as
    well."""
    raw = not folders.is_screened(corpus)
    if not raw:
        yield from folders.units(corpus)
    made: tuple[str, ...] = ()
    said, named = dict[str, tuple[bool, int, str]](), raw
    stretches = Counter[str]()
    for d in dialogues(corpus):
        if customersim.is_simulated(d):
            made += (f"{d.id.partition('-')[0]}-",)
        content = json.dumps([[t.speaker, t.text] for t in d.turns])
        brief = sum(len(t.text) for t in d.turns) < SHORT
        talk = sha(f"{d.id} {d.user} {content}" if brief else content)
        yield "dialogue", talk
        yield "owned", sha(f"{talk} {d.user}")
        named &= d.user not in ("", d.id)
        if d.id.startswith(made):
            continue
        if d.user and d.user != d.id:
            yield "user", sha(d.user)
        texts = {normal(t.text) for t in d.turns}
        for text in texts:
            _, times, user = said.get(name := sha(text), (False, 0, d.user))
            said[name] = len(text) >= LONG, times + 1, user if user == d.user else ""
        stretches.update(map(sha, _stretches([normal(t.text) for t in d.turns])))
        if len(said) > 2 * KEPT:
            said = {name: said[name] for name in sorted(said)[:KEPT]}
        if len(stretches) > 2 * KEPT:
            stretches = Counter({name: stretches[name] for name in sorted(stretches)[:KEPT]})
    for name in sorted(said)[:KEPT]:
        long, times, user = said[name]
        if not long:
            yield "short", name
        if times == 1:
            yield "message" if long else "rare", name
        if user:
            yield "lone", name
            yield "said", sha(f"{name} {user}")
    for name in sorted(stretches)[:KEPT]:
        if stretches[name] == 1:
            yield "stretch", name
    if named:
        yield "named", ""


def _stretches(texts: Sequence[str]) -> set[str]:
    """The stretches of short messages of a conversation, from each on as many as are as long as a
    long message together: who says the same next month says it after the same.

    >>> sorted(_stretches(["a" * 30, "b" * 30, "c" * 30, "d" * 90, "e" * 79]))
    ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\\ncccccccccccccccccccccccccccccc']
    """
    found = set[str]()
    for start in range(len(texts)):
        size = 0
        for end, text in enumerate(texts[start:], start + 1):
            size += len(text)
            if len(text) >= LONG:
                break
            if size >= LONG:
                found.add("\n".join(texts[start:end]))
                break
    return found


def sizes(corpus: str | os.PathLike) -> dict[str, dict[str, int]]:
    """How many points of a smaller unit one conversation and one person hold at the most; of a
    screened folder, in the text that was screened, its duplicates included."""
    if folders.is_screened(corpus):
        return dict(folders.summary(corpus)["sizes"])
    turns, talks = Counter[str](), Counter[str]()
    longest = 1
    for d in dialogues(corpus):
        longest = max(longest, len(d.turns))
        turns[d.user] += len(d.turns)
        talks[d.user] += 1
    return {
        "dialogue": {"turn": longest},
        "user": {"turn": max(turns.values()), "dialogue": max(talks.values())},
    }


def load(
    name: str | os.PathLike,
    split: str = "train",
    *,
    folder: Folder = None,
    limit: int | None = None,
) -> Corpus:
    """The first ``limit`` dialogues of a corpus that is known by name.

    ``name`` is one of ``known()`` (in ``folder``, by default the corpus' own under
    ``$CRTLIB_DATA``), or the path of a JSONL file or of a corpus folder. Splits are named as the
    corpus names them.
    Raises ``ValueError`` where there is no such corpus, folder or split, and says where to get it.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    one = source(name)
    one.check(split, folder)
    corpus = one.read(split, folder, limit)
    return replace(corpus, dialogues=corpus.dialogues[:limit])


def available(name: str | os.PathLike, split: str | None = None, *, folder: Folder = None) -> bool:
    """Whether ``load`` would find the corpus, and the split where one is named."""
    try:
        source(name).check(split, folder)
    except ValueError:
        return False
    return True


def fingerprint(name: str | os.PathLike, split: str = "train", *, folder: Folder = None) -> str:
    """SHA-256 of the content of all files that ``load`` reads, packed or not, in their order.

    Of a simulated corpus: of what it is made from. A file is read again only when its size or its
    time has changed.
    """
    one = source(name)
    one.check(split, folder)
    return one.content(split, folder)
