"""The units by which a registry recognises a text that it knows under any name: hashes of its
conversations, messages and people."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crtlib.text import corpora, corpus_folder, customersim, screened_folder
from crtlib.text.data_points import ROLE_NAMES
from crtlib.text.identity import (
    QUOTATION_MARKS,
    hash_text,
    normalise_text,
    normalise_unit_name,
    without_unseen_marks,
)
from crtlib.text.records import Dialogue

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
    is_raw = not screened_folder.is_screened_folder(corpus)
    if not is_raw:
        yield from screened_folder.read_registry_units(corpus)
    says_who_is_named = Path(corpus).is_dir()
    invents = is_raw and _invents_people(corpus)
    simulations = simulations or customersim.SimulationCheck()
    compared_messages, messages_as_in_0_3 = _MessagesOfText(), _MessagesOfText()
    stretches, owners, people = Counter[str](), _OwnersOfText(), _WordsOfPeople()
    for dialogue in corpora.read_dialogues(corpus):
        content = json.dumps([[t.speaker, t.text] for t in dialogue.turns])
        is_short_as_written = sum(len(t.text) for t in dialogue.turns) < SHORT_TALK_CHARACTERS
        identity = f"{dialogue.id} {dialogue.user}"
        yield "dialogue", hash_text(f"{identity} {content}" if is_short_as_written else content)
        compared_texts = [_compared_words(t.text) for t in dialogue.turns]
        words = " ".join(filter(None, compared_texts))
        is_short_in_words = len(words) < SHORT_TALK_CHARACTERS
        talk = hash_text(f"{identity} {words}" if is_short_in_words else words)
        yield "talk", talk
        texts_as_in_0_3 = [normalise_text(t.text) for t in dialogue.turns]
        has_own_name = says_who_is_named or dialogue.user != dialogue.id
        named = bool(dialogue.user) and not invents and has_own_name
        owners.add(dialogue, talk, map(hash_text, {*compared_texts, *texts_as_in_0_3}), named=named)
        if simulations.holds(dialogue):
            continue
        if dialogue.user and not (invents and dialogue.user == normalise_unit_name(dialogue.id)):
            names = {dialogue.user, normalise_text(dialogue.user)}
            yield from (("user", hash_text(name)) for name in names)
        if is_raw and dialogue.user:
            people.add(dialogue.user, words)
        compared_messages.add(compared_texts, dialogue.user)
        messages_as_in_0_3.add(texts_as_in_0_3, dialogue.user)
        stretches.update(map(hash_text, _short_message_stretches(compared_texts)))
        if len(stretches) > 2 * MAX_IDENTIFYING_MESSAGES:
            stretches = Counter(
                {name: stretches[name] for name in sorted(stretches)[:MAX_IDENTIFYING_MESSAGES]}
            )
    for user, talk in people.of_several_conversations():
        yield "talk", talk
        owners.add_talk(user, talk)
    yield from messages_as_in_0_3.units("short")
    yield from compared_messages.units("brief", rare="rare")
    for name in sorted(stretches)[:MAX_IDENTIFYING_MESSAGES]:
        if stretches[name] == 1:
            yield "stretch", name
    yield from owners.units(is_raw)


def hash_conversations(corpus: str | os.PathLike) -> Iterator[str]:
    """For each conversation that has words, a hash of them as they are compared. It does not depend
    on who says them, so short conversations of strangers may have the same."""
    for dialogue in corpora.read_dialogues(corpus):
        if words := " ".join(filter(None, (_compared_words(t.text) for t in dialogue.turns))):
            yield hash_text(words)


def find_said_messages(corpus: str | os.PathLike, messages: Iterable[str]) -> set[str]:
    """Which of these ``messages`` anybody says in a text, as texts are compared."""
    words_of_messages = {text: _compared_words(text) for text in messages}
    sought_words = set(filter(None, words_of_messages.values()))
    words_of_text = (
        _compared_words(turn.text) for d in corpora.read_dialogues(corpus) for turn in d.turns
    )
    said_words = sought_words.intersection(words_of_text)
    return {text for text, words in words_of_messages.items() if words in said_words}


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
        return " ".join(words.split())  # what follows would not change it
    before = ""
    while words != before:  # a role may stand within quotation marks, or after one
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
            digest = hash_text(text)
            long = len(text) >= LONG_MESSAGE_CHARACTERS
            _, times, owner = self.said.get(digest, (long, 0, user))
            self.said[digest] = long, times + 1, owner if owner == user else ""
        if len(self.said) > 2 * MAX_IDENTIFYING_MESSAGES:
            smallest = sorted(self.said)[:MAX_IDENTIFYING_MESSAGES]
            self.said = {digest: self.said[digest] for digest in smallest}

    def units(self, short: str, *, rare: str = "") -> Iterator[tuple[str, str]]:
        """The kind and hash of each. Short ones are of the kind ``short``; those that only one
        conversation has are also of the kind ``rare``, unless that is empty."""
        for digest in sorted(self.said)[:MAX_IDENTIFYING_MESSAGES]:
            long, times, user = self.said[digest]
            if long and (times <= MOST_CONVERSATIONS_OF_A_MESSAGE or user):
                yield "message", digest
            if not long:
                yield short, digest
                if rare and times == 1:
                    yield rare, digest


class _WordsOfPeople:
    """A hash of all that each person says, one conversation after another. This is the data point
    of a person, which may be one conversation of somebody else in another text."""

    def __init__(self) -> None:
        self.people = dict[str, tuple[int, int, Any]]()

    def add(self, user: str, words: str) -> None:
        """Add a conversation of a person."""
        talks, size, digest = self.people.get(user, (0, 0, None))
        digest = digest or hashlib.sha256()
        between = " " if size and words else ""
        digest.update((between + words).encode())
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

    def add(self, dialogue: Dialogue, talk: str, messages: Iterable[str], *, named: bool) -> None:
        """Add a conversation, by its own hash ``talk`` and the hashes of its ``messages``;
        ``named``: it is known to be a person's."""
        self.named &= named
        self.add_talk(dialogue.user, talk, messages)

    def add_talk(self, user: str, talk: str, messages: Iterable[str] = ()) -> None:
        """Add what somebody says in one or in all conversations, and its messages."""
        for known, digests in ((self.talks, (talk,)), (self.messages, messages)):
            for digest in digests:
                known.setdefault(digest, set()).add(user)
            if len(known) > 2 * MAX_IDENTIFYING_MESSAGES:
                self.whole = False
                for digest in sorted(known)[MAX_IDENTIFYING_MESSAGES:]:
                    del known[digest]

    def units(self, raw: bool) -> Iterator[tuple[str, str]]:
        """The kind and hash of each unit, of a ``raw`` text or of what screening left of one."""
        self.whole &= max(len(self.talks), len(self.messages)) <= MAX_IDENTIFYING_MESSAGES
        for kind, known in (("owners", self.talks), ("speakers", self.messages)):
            for digest in sorted(known)[:MAX_IDENTIFYING_MESSAGES]:
                if kind == "speakers":
                    yield "spoken", digest
                if raw:
                    yield kind, hash_text(json.dumps([digest, *sorted(known[digest])]))
        if raw and self.named and self.whole:
            yield "compared", ""


def _short_message_stretches(texts: Sequence[str]) -> set[str]:
    """The stretches of short messages in a conversation: from each message on, as many as are
    together as long as a long message. A later export has the same ones in the same order.

    >>> sorted(_short_message_stretches(["a" * 30, "b" * 30, "c" * 30, "d" * 90, "e" * 79]))
    ['aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\\ncccccccccccccccccccccccccccccc']
    """
    stretches = set[str]()
    for start in range(len(texts)):
        size = 0
        for end, text in enumerate(texts[start:], start + 1):
            size += len(text)
            if len(text) >= LONG_MESSAGE_CHARACTERS:
                break
            if size >= LONG_MESSAGE_CHARACTERS:
                stretches.add("\n".join(texts[start:end]))
                break
    return stretches
