"""All corpora by name: ours, those of installed packages, and a user's own by path."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crtlib import files, outputs
from crtlib.text import (
    arxiv,
    corpus_folder,
    customersim,
    jsonl,
    multiwoz,
    screened_folder,
    wikitext,
)
from crtlib.text.data_points import ROLE_NAMES
from crtlib.text.identity import (
    QUOTATION_MARKS,
    hash_text,
    normalise_text,
    normalise_unit_name,
    without_unseen_marks,
)
from crtlib.text.records import Corpus, Dialogue
from crtlib.text.sources import (
    REGISTERED_SOURCES,
    CorpusSource,
    OptionalPath,
    hash_files,
    register_corpus,
)

# Each of these modules registers its corpora when it is imported.
_REGISTERING_MODULES = (arxiv, customersim, multiwoz, wikitext)
CORPUS_ENTRY_POINTS = "crtlib.corpora"
"""The entry points of packages that bring a corpus: each names a ``CorpusSource``."""

_ROLES_IN_A_TEXT = re.compile(rf"(?<!\S)(?:(?:{ROLE_NAMES}|s1)?: ?)+", re.IGNORECASE)
"""The speakers named before what is said, in words separated by single spaces."""
_QUOTES_AROUND_WORDS = re.compile(rf"(?<!\S)[{QUOTATION_MARKS}]+|[{QUOTATION_MARKS}]+(?!\S)")
_WHOLE_NUMBER_WORD = re.compile(r"(?<!\S)([+-]?\d+)\.0+(?!\S)")
_ADDRESS_WORD = re.compile(r"\S*@\S*")
SHORT_TALK_CHARACTERS, LONG_MESSAGE_CHARACTERS = 40, 80
"""Characters below which a conversation is recognised only together with its id (many people say
"thanks"), and from which on a message is recognised by itself. Of such long messages in the
development part of Schema-Guided Dialogue, one in 900 is also in its training part; of those of 40
characters, one in 43."""
MOST_CONVERSATIONS_OF_A_MESSAGE = 4
"""A long message that more conversations have, from more than one person, is a standing phrase and
makes no two texts the same. An export that has each message twice is recognised by all of them."""
MAX_IDENTIFYING_MESSAGES = 1 << 17
"""The most messages by which a text is recognised: those with the smallest hashes, in any text."""

INGEST_SUFFIXES = (
    *(".csv", ".tsv", ".tab", ".parquet", ".mbox", ".eml", ".txt", ".md", ".ndjson", ".zip"),
)
"""The suffixes of files that must be made into a corpus first."""
REFUSED_SUFFIXES = {
    ".xlsx": "is an Excel file or an archive; save its table as CSV",
    ".xls": "is an Excel file; save its table as CSV",
    ".json": "is one JSON value; write one object per line and name it .jsonl (jq -c '.[]' FILE)",
    ".msg": "is Outlook's own mail format; 'msgconvert FILE.msg' (Debian: "
    "libemail-outlook-message-perl) turns it into an .eml",
    ".pst": "is an Outlook mailbox; 'readpst -e -o FOLDER FILE.pst' (Debian: pst-utils) turns "
    "it into a folder of .eml",
    ".zip": "is neither a Slack nor a WhatsApp export; unpack it and give a file or folder of it",
}
"""The suffixes of files that nothing here can read, and what converts them."""


def available_corpora() -> Mapping[str, CorpusSource]:
    """All corpora that have a name, ours first. Those of installed packages are loaded once."""
    _register_plugins()
    return MappingProxyType(REGISTERED_SOURCES)


@cache
def _register_plugins() -> None:
    """Register the corpora of installed packages; a broken one gives a warning and is left out."""
    for point in entry_points(group=CORPUS_ENTRY_POINTS):
        try:
            brought = point.load()
            if not isinstance(brought, CorpusSource):
                raise TypeError(f"{point.value} is not a crtlib.text.sources.CorpusSource")
            register_corpus(brought)
        except Exception as error:  # somebody else's code may fail in any way
            package = point.dist.name if point.dist else "a package"
            why = f"{type(error).__name__}: {error}"
            warnings.warn(f"corpus {point.name!r} of {package}: is left out; {why}", stacklevel=3)


def find_source(name: str | os.PathLike) -> CorpusSource:
    """The corpus called ``name``: one of ``available_corpora()``, or the path of a ``.jsonl`` or
    ``.jsonl.gz`` file or of a corpus folder. Raises ``ValueError`` for anything else."""
    name = os.fspath(name)
    if name in REGISTERED_SOURCES:
        return REGISTERED_SOURCES[name]
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _source_of_path(Path(name))
    if name in available_corpora():
        return REGISTERED_SOURCES[name]
    if Path(name).exists():  # JSONL by another name, or a folder
        return _source_of_path(Path(name))
    raise ValueError(
        f"corpus={name!r}: must be one of {', '.join(available_corpora())}, or the path of a "
        f".jsonl or "
        ".jsonl.gz file or of a corpus folder that exists; 'crtlib ingest' reads other forms"
    )


def _source_of_path(path: Path) -> CorpusSource:
    """The corpus in a user's own file or corpus folder."""

    def check(split: str | None, folder: OptionalPath) -> None:
        if folder is not None or (split not in (None, "train") and not path.is_dir()):
            raise ValueError(f"split={split!r}: {path} is one file, without splits or a folder")
        if not path.is_dir():
            files.check_regular_file(path)
        elif not screened_folder.is_screened_folder(path):
            corpus_folder.read_corpus_summary(path)
            corpus_folder.split_file_names(path, split)

    return CorpusSource(
        str(path),
        path.name,
        check,
        lambda split, _, limit: read_corpus_at(path, split=split, limit=limit),
        lambda *_: hash_corpus(path) if path.is_dir() else hash_files([path]),
    )


def read_dialogues(path: str | os.PathLike, *, split: str | None = None) -> Iterator[Dialogue]:
    """The dialogues of a corpus folder, a screened folder (each point is one) or a JSONL file,
    plain or ``.gz``, one after another.

    Raises ``ValueError`` for what is missing, unfinished, damaged or in another format, with the
    command that would help.
    """
    path = Path(path)
    if path.is_dir():
        if screened_folder.is_screened_folder(path):
            yield from screened_folder.read_screened_dialogues(path)
        else:
            yield from corpus_folder.read_folder_dialogues(path, split=split)
        return
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in INGEST_SUFFIXES and path.is_file():
        what = f"is a {suffix[1:].upper()} file; turn it into a corpus with"
        raise ValueError(f"{path}: {what} {jsonl.ingest_command(path)}")
    if suffix in REFUSED_SUFFIXES and path.is_file():
        raise ValueError(f"{path}: {REFUSED_SUFFIXES[suffix]}")
    yield from jsonl.read_jsonl(path)


def read_corpus_at(
    path: str | os.PathLike, *, split: str | None = None, limit: int | None = None
) -> Corpus:
    """The first dialogues, or all, of a corpus folder or a JSONL file, plain or ``.gz``."""
    name = Path(path).name.removesuffix(".gz").removesuffix(".jsonl")
    return Corpus(name, tuple(islice(read_dialogues(path, split=split), limit)))


def hash_corpus(path: str | os.PathLike) -> str:
    """The corpus hash of a folder or a JSONL file: of its text without labels, in any format.

    That of a screened folder is the hash of the corpus from which it was made."""
    if screened_folder.is_screened_folder(path):
        return screened_folder.read_screening_summary(path)["corpus_sha256"]
    if Path(path).is_dir():
        return corpus_folder.read_corpus_summary(path).sha256
    return corpus_folder.hash_dialogues(read_dialogues(path))


def hash_text_as_read(path: str | os.PathLike) -> str:
    """The hash of the text that is read from a path. For a screened folder that is the hash of its
    own, redacted text, not of the text from which it was made."""
    return (
        outputs.hash_tree(path) if screened_folder.is_screened_folder(path) else hash_corpus(path)
    )


def hash_registry_units(
    corpus: str | os.PathLike, simulations: customersim.SimulationCheck | None = None
) -> Iterator[tuple[str, str]]:
    """The units by which a registry recognises a text: the kind and SHA-256 of each.

    - "talk" is a conversation, or all that one person says, by the words alone
      (:func:`_compared_words`).
    - "dialogue" is a conversation as crtlib 0.3 identified it, by its characters and speakers.
    - "user" is the name of a person.
    - "message" is a long message that at most ``MOST_CONVERSATIONS_OF_A_MESSAGE`` conversations, or
      only one person, have. Short messages are "brief", and "short" as crtlib 0.3 identified them;
      "rare" are the brief ones that only one conversation has. Messages stay the same when the text
      is cut in another way.
    - "stretch" is a run of consecutive short messages that only one conversation has.
    - The units of :class:`_OwnersOfText` state whose each conversation and message is.

    Dialogues from a simulation have no units for users, messages and stretches. A screened folder
    also has the units of the text that was screened. Afterwards ``simulations`` knows whether all
    of the text was simulated.

    Guarantee:
        What is one data point in two texts, and long enough, is recognised whatever its speakers
        are called, and however it is spaced and encoded. Test:
        ``tests/release/test_what_is_compared.py``.
    """
    raw = not screened_folder.is_screened_folder(corpus)
    if not raw:
        yield from screened_folder.read_registry_units(corpus)
    says_who_is_named = Path(corpus).is_dir()
    invents = raw and _invents_people(corpus)
    simulations = simulations or customersim.SimulationCheck()
    messages, older = _MessagesOfText(), _MessagesOfText()
    stretches, owners, people = Counter[str](), _OwnersOfText(), _WordsOfPeople()
    for d in read_dialogues(corpus):
        content = json.dumps([[t.speaker, t.text] for t in d.turns])
        brief = sum(len(t.text) for t in d.turns) < SHORT_TALK_CHARACTERS
        yield "dialogue", hash_text(f"{d.id} {d.user} {content}" if brief else content)
        texts = [_compared_words(t.text) for t in d.turns]
        words = " ".join(filter(None, texts))
        brief = len(words) < SHORT_TALK_CHARACTERS
        talk = hash_text(f"{d.id} {d.user} {words}" if brief else words)
        yield "talk", talk
        as_before = [normalise_text(t.text) for t in d.turns]
        named = bool(d.user) and not invents and (says_who_is_named or d.user != d.id)
        owners.add(d, talk, map(hash_text, {*texts, *as_before}), named=named)
        if simulations.holds(d):
            continue
        if d.user and not (invents and d.user == normalise_unit_name(d.id)):
            yield from (("user", hash_text(name)) for name in {d.user, normalise_text(d.user)})
        if raw and d.user:
            people.add(d.user, words)
        messages.add(texts, d.user)
        older.add(as_before, d.user)
        stretches.update(map(hash_text, _short_message_stretches(texts)))
        if len(stretches) > 2 * MAX_IDENTIFYING_MESSAGES:
            stretches = Counter(
                {name: stretches[name] for name in sorted(stretches)[:MAX_IDENTIFYING_MESSAGES]}
            )
    for user, talk in people.of_several_conversations():
        yield "talk", talk
        owners.add_talk(user, talk)
    yield from older.units("short")
    yield from messages.units("brief", rare="rare")
    for name in sorted(stretches)[:MAX_IDENTIFYING_MESSAGES]:
        if stretches[name] == 1:
            yield "stretch", name
    yield from owners.units(raw)


def hash_conversations(corpus: str | os.PathLike) -> Iterator[str]:
    """For each conversation that has words, a hash of them as they are compared. It does not depend
    on who says them, so short conversations of strangers may have the same."""
    for d in read_dialogues(corpus):
        if words := " ".join(filter(None, (_compared_words(t.text) for t in d.turns))):
            yield hash_text(words)


def find_said_messages(corpus: str | os.PathLike, messages: Iterable[str]) -> set[str]:
    """Which of these ``messages`` anybody says in a text, as texts are compared."""
    words = {text: _compared_words(text) for text in messages}
    asked = set(filter(None, words.values()))
    told = (_compared_words(turn.text) for d in read_dialogues(corpus) for turn in d.turns)
    said = asked.intersection(told)
    return {text for text, its in words.items() if its in said}


class TextReading:
    """What is known about a text, a file or a corpus folder, once its dialogues have been read."""

    def __init__(self, corpus: str | os.PathLike) -> None:
        folder = Path(corpus).is_dir()
        self._said = corpus_folder.read_corpus_summary(corpus) if folder else None
        self._digest = hashlib.sha256()
        self._turns, self._talks, self._longest = Counter[str](), Counter[str](), 1
        self._unnamed = self._named_like_talk = False

    def watch(self, dialogues: Iterable[Dialogue]) -> Iterator[Dialogue]:
        """Pass the dialogues on, one after another, and note what they show."""
        for d in dialogues:
            if self._said is None:
                corpus_folder.add_to_corpus_hash(self._digest, d)
            self._longest = max(self._longest, len(d.turns))
            self._turns[d.user] += len(d.turns)
            self._talks[d.user] += 1
            self._unnamed |= not d.user
            self._named_like_talk |= d.user == d.id
            yield d

    @property
    def sha256(self) -> str:
        """The :func:`hash_corpus` of the text."""
        return self._said.sha256 if self._said else self._digest.hexdigest()

    @property
    def users_are(self) -> str:
        """What the people of the text are: "column" if they are named, "thread" if some or all are
        conversations, and "unknown" if some have no name. A folder records what was known when it
        was made. Other formats name people; a name that is the id of its conversation counts as no
        name here."""
        if self._unnamed:
            return "unknown"
        if self._said:
            return self._said.users_are
        return "thread" if self._named_like_talk else "column"

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The :func:`max_points_per_unit` of the text."""
        most = {"turn": max(self._turns.values()), "dialogue": max(self._talks.values())}
        return {"dialogue": {"turn": self._longest}, "user": most}


def describe_users(corpus: str | os.PathLike, dialogues: Iterable[Dialogue]) -> str:
    """What the people of a text are: see :attr:`TextReading.users_are`."""
    reading = TextReading(corpus)
    deque(reading.watch(dialogues), maxlen=0)
    return reading.users_are


def _invents_people(corpus: str | os.PathLike) -> bool:
    """Whether some people of a text stand for conversations whose speaker was not known: those
    named like the id of their conversation. Only a corpus folder records this; other formats name
    their people."""
    return Path(corpus).is_dir() and corpus_folder.read_corpus_summary(corpus).users_are == "thread"


def _compared_words(text: str) -> str:
    """A text as it is compared with others: its words with single spaces.

    The words are the same however they are encoded, broken into lines or put in quotation marks.
    The roles that a data point, or an export, puts before what is said are left out. What is done
    to a word depends on that word alone, so another export's line breaks give the same words.

    Guarantee:
        Test: ``tests/release/test_what_is_compared.py``.

    >>> _compared_words('USR: so\\u00a0be  it \\n\\n"agent: yes"') == "so be it yes"
    True
    >>> _compared_words("to A@B.com\\n7.00") == _compared_words("to a@b.com 7")
    True
    """
    words = unicodedata.normalize("NFKC", without_unseen_marks(text))
    if "@" in words:
        words = _ADDRESS_WORD.sub(lambda word: word[0].casefold(), words)
    if ":" not in words and ".0" not in words and not _QUOTES_AROUND_WORDS.search(words):
        return " ".join(words.split())  # as the rest would leave it
    before = ""
    while words != before:  # a role may be in quotation marks, and these before a role
        before = words
        words = _QUOTES_AROUND_WORDS.sub("", " ".join(words.split()))
        words = _ROLES_IN_A_TEXT.sub("", " ".join(words.split()))
    return _WHOLE_NUMBER_WORD.sub(r"\1", words)


class _MessagesOfText:
    """For each message of a text, how many conversations have it, and whether only one person."""

    def __init__(self) -> None:
        self.said = dict[str, tuple[bool, int, str]]()

    def add(self, texts: Sequence[str], user: str) -> None:
        """Add the messages of a conversation."""
        for text in set(texts):
            name, long = hash_text(text), len(text) >= LONG_MESSAGE_CHARACTERS
            _, times, owner = self.said.get(name, (long, 0, user))
            self.said[name] = long, times + 1, owner if owner == user else ""
        if len(self.said) > 2 * MAX_IDENTIFYING_MESSAGES:
            kept = sorted(self.said)[:MAX_IDENTIFYING_MESSAGES]
            self.said = {name: self.said[name] for name in kept}

    def units(self, short: str, *, rare: str = "") -> Iterator[tuple[str, str]]:
        """The kind and hash of each. Short ones are of the kind ``short``; those that only one
        conversation has are also of the kind ``rare``, unless that is empty."""
        for name in sorted(self.said)[:MAX_IDENTIFYING_MESSAGES]:
            long, times, user = self.said[name]
            if long and (times <= MOST_CONVERSATIONS_OF_A_MESSAGE or user):
                yield "message", name
            if not long:
                yield short, name
                if rare and times == 1:
                    yield rare, name


class _WordsOfPeople:
    """A hash of all that each person says, one conversation after another. This is the data point
    of a person, which may be one conversation of somebody else in another text."""

    def __init__(self) -> None:
        self.people = dict[str, tuple[int, int, Any]]()

    def add(self, user: str, words: str) -> None:
        """Add a conversation of a person."""
        talks, size, digest = self.people.get(user, (0, 0, None))
        digest = digest or hashlib.sha256()
        digest.update((" " * bool(size and words) + words).encode())
        self.people[user] = talks + 1, size + len(words), digest

    def of_several_conversations(self) -> Iterator[tuple[str, str]]:
        """Each person with several conversations that are long enough together, and their hash."""
        for user, (talks, size, digest) in self.people.items():
            if talks > 1 and size >= SHORT_TALK_CHARACTERS:
                yield user, digest.hexdigest()


class _OwnersOfText:
    """Who has each conversation and each message of a text, to find whether two texts are from the
    same people.

    Units: "spoken" is a message, and "speakers" the message with all who have it. "owners" is a
    conversation ("talk") with all who have it. "compared" states that all of these are there and
    that all people are named. What screening left of a message is "spoken" without "speakers", so
    that a text which shares it is not taken to be from the same people.

    Guarantee:
        Two texts in which a shared conversation or message belongs to different people differ in
        "owners" or "speakers": ``tests/release/test_same_people.py``.
    """

    def __init__(self) -> None:
        self.talks, self.messages = dict[str, set[str]](), dict[str, set[str]]()
        self.named = self.whole = True

    def add(self, d: Dialogue, talk: str, messages: Iterable[str], *, named: bool) -> None:
        """Add a conversation, by its own hash ``talk`` and the hashes of its ``messages``;
        ``named``: it is known to be a person's."""
        self.named &= named
        self.add_talk(d.user, talk, messages)

    def add_talk(self, user: str, talk: str, messages: Iterable[str] = ()) -> None:
        """Add what somebody says in one or in all conversations, and its messages."""
        for known, names in ((self.talks, (talk,)), (self.messages, messages)):
            for name in names:
                known.setdefault(name, set()).add(user)
            if len(known) > 2 * MAX_IDENTIFYING_MESSAGES:
                self.whole = False
                for name in sorted(known)[MAX_IDENTIFYING_MESSAGES:]:
                    del known[name]

    def units(self, raw: bool) -> Iterator[tuple[str, str]]:
        """The kind and hash of each unit, of a ``raw`` text or of what screening left of one."""
        self.whole &= max(len(self.talks), len(self.messages)) <= MAX_IDENTIFYING_MESSAGES
        for kind, known in (("owners", self.talks), ("speakers", self.messages)):
            for name in sorted(known)[:MAX_IDENTIFYING_MESSAGES]:
                if kind == "speakers":
                    yield "spoken", name
                if raw:
                    yield kind, hash_text(json.dumps([name, *sorted(known[name])]))
        if raw and self.named and self.whole:
            yield "compared", ""


def _short_message_stretches(texts: Sequence[str]) -> set[str]:
    """The stretches of short messages in a conversation: from each message on, as many as are
    together as long as a long message. A later export has the same ones in the same order.

    >>> sorted(_short_message_stretches(["a" * 30, "b" * 30, "c" * 30, "d" * 90, "e" * 79]))
    ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\\ncccccccccccccccccccccccccccccc']
    """
    found = set[str]()
    for start in range(len(texts)):
        size = 0
        for end, text in enumerate(texts[start:], start + 1):
            size += len(text)
            if len(text) >= LONG_MESSAGE_CHARACTERS:
                break
            if size >= LONG_MESSAGE_CHARACTERS:
                found.add("\n".join(texts[start:end]))
                break
    return found


def max_points_per_unit(corpus: str | os.PathLike) -> dict[str, dict[str, int]]:
    """The most points of a smaller unit that one conversation, and one person, holds. For a
    screened folder these are counted in the text that was screened, its duplicates included."""
    if screened_folder.is_screened_folder(corpus):
        return dict(screened_folder.read_screening_summary(corpus)["sizes"])
    reading = TextReading(corpus)
    deque(reading.watch(read_dialogues(corpus)), maxlen=0)
    return reading.sizes


def load_corpus(
    name: str | os.PathLike,
    split: str = "train",
    *,
    folder: OptionalPath = None,
    limit: int | None = None,
) -> Corpus:
    """The first dialogues of a corpus that is known by name, or of a file or folder.

    Args:
        name: One of ``available_corpora()``, or the path of a JSONL file or of a corpus folder.
        split: As the corpus names it.
        folder: Where the corpus is; None: in its own folder below ``$CRTLIB_DATA``.
        limit: The number of dialogues, at least 1; None: all.

    Returns:
        The corpus, with what its reader left out counted in ``skipped``.

    Raises:
        ValueError: Where there is no such corpus, folder or split; it states where to get it.

    Guarantee:
        What is missing is refused in one line before anything is read, and nothing is fetched.
        Test: ``tests/text/test_corpora.py::test_load_by_name``.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit}: must be at least 1")
    one = find_source(name)
    one.check(split, folder)
    corpus = one.read(split, folder, limit)
    return replace(corpus, dialogues=corpus.dialogues[:limit])


def is_corpus_available(
    name: str | os.PathLike, split: str | None = None, *, folder: OptionalPath = None
) -> bool:
    """Whether ``load_corpus`` would find the corpus, and the split if one is named."""
    try:
        find_source(name).check(split, folder)
    except ValueError:
        return False
    return True


def corpus_fingerprint(
    name: str | os.PathLike, split: str = "train", *, folder: OptionalPath = None
) -> str:
    """The SHA-256 of the content of all files that ``load_corpus`` reads, gzipped or not, in their
    order.

    For a simulated corpus, it is the hash of what the corpus is made from. A file is read again
    only when its size or its time has changed.
    """
    one = find_source(name)
    one.check(split, folder)
    return one.content(split, folder)
