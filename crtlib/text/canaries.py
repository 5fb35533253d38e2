"""Canaries, and the templates in which a model reads turns.

Canaries: random secrets that we plant ourselves, so that we know what must not be learned.

Carlini et al. (2019); in CRT, Section 5.1: ten of them, each inserted twenty times.

>>> from crtlib.text.records import Corpus
>>> planted = insert(Corpus("empty", ()), make(10, seed=0), copies=20, seed=0)
>>> len(planted), planted.dialogues[0].turns[0].text[:10]
(200, 'My ID is: ')

Templates: how turns become the text that a model reads.

>>> from crtlib.text.records import Corpus, Dialogue, Secret, Turn
>>> turns = (Turn("USR", "I am Ann.", (Secret("name", 5, 8),)), Turn("SYS", "hello"))
>>> corpus = Corpus("toy", (Dialogue("d", "ann", turns),))
>>> point = points(corpus, "dialogue", CANDIDATES["markup"])[0]
>>> point.text, point.text[point.secrets[0].start : point.secrets[0].end]
('<|user|> I am Ann.\\n<|agent|> hello\\n', 'Ann')
>>> points(corpus, "dialogue", Template("odd", "{{ messages[0].content }}"))
Traceback (most recent call last):
...
ValueError: template=odd: drops the text of turn 2

A template is Jinja in an immutable sandbox: ``messages`` of ``role``, ``content`` and ``speaker``,
``bos_token``, ``eos_token``. Each text is rendered as one private-use character and put in
afterwards, so that spans of secrets survive, and what a policy reads is the text alone.
"""

from __future__ import annotations

import functools
import json
import string
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crtlib.checks import check_choice
from crtlib.text import records
from crtlib.text.records import Corpus, Dialogue, Point, Secret, Turn, shipped
from crtlib.text.tokenizer import AnyTokenizer, Bpe, backend, beside, read_json

CUSTOMER = "USR"
CARRIER = "My ID is: "
DIGITS = 6
NAME = "canary-"
USER = f" {NAME}"
"""How the users of planted dialogues begin: nothing is counted on them but the attack. No user of a
corpus does, as readers strip names (:func:`crtlib.text.records.unit`)."""
SPACE = 10**DIGITS
"""Size of the randomness space R of Definition 9."""
LETTERS = 8
"""Of a canary of an audit: capitals that no tokenizer has joined, each a rare token."""


def prefix() -> str:
    """The text before the digits, as it stands in a turn-level point."""
    return f"{CUSTOMER}: {CARRIER}"


def make(n: int = 10, *, seed: int) -> tuple[str, ...]:
    """``n`` distinct six-digit secrets, uniform over the ``10**6``."""
    if not 1 <= n <= SPACE:
        raise ValueError(f"n={n}: must be in [1, {SPACE}] canaries")
    rng = np.random.default_rng(seed)
    return tuple(f"{v:0{DIGITS}d}" for v in rng.choice(SPACE, size=n, replace=False))


def pairs(n: int, *, seed: int) -> list[tuple[str, str]]:
    """``n`` canaries of an audit and as many controls, all distinct, uniform over the words of so
    many ``LETTERS``: each pair could have been the other way round."""
    drawn = np.random.default_rng([seed, 7]).integers(26, size=(2 * n + 100, LETTERS))
    alphabet = np.array(list(string.ascii_uppercase))
    words = list(dict.fromkeys("".join(row) for row in alphabet[drawn]))
    return list(zip(words[:n], words[n : 2 * n], strict=True))


def insert(
    corpus: Corpus, secrets: Sequence[str], *, copies: int = 20, seed: int, carrier: str = CARRIER
) -> Corpus:
    """``corpus`` with each canary as ``copies`` one-turn dialogues, at random places."""
    if copies < 0:
        raise ValueError(f"copies={copies}: must be at least 0")
    rng = np.random.default_rng([seed, 1])
    planted = []
    for k, secret in enumerate(secrets):
        span = Secret("id", len(carrier), len(carrier) + len(secret))
        turn = Turn(CUSTOMER, carrier + secret, (span,))
        planted += [Dialogue(f"{NAME}{k}-{c}", f"{USER}{k}", (turn,)) for c in range(copies)]
    total = len(corpus) + len(planted)
    placed = dict(zip(rng.choice(total, len(planted), replace=False), planted, strict=True))
    rest = iter(corpus.dialogues)
    dialogues = tuple(placed[i] if i in placed else next(rest) for i in range(total))
    return replace(corpus, dialogues=dialogues)


NAMES = ("speaker", "plain", "chat")
ASSISTANT = {"sys", "agent", "bot", "assistant"}
PRIVATE_USE = 0xF0000


@dataclass(frozen=True)
class Template:
    """A Jinja template and what it is called; ``bos`` and ``eos`` are its model's own tokens."""

    name: str
    source: str
    bos: str = ""
    eos: str = ""


CANDIDATES = {n: Template(n, source) for n, source in tomllib.loads(shipped("chat.toml")).items()}
"""What a model that nobody described may have been trained with."""
SPEAKER, PLAIN, MARKUP = (CANDIDATES[name] for name in ("speaker", "plain", "markup"))
SHOWN = {"markup": "<|user|>…", "chatml": "<|im_start|>user…", "named": "User:…"}


def by_name(name: str, tokenizer: AnyTokenizer | None = None) -> Template:
    """``speaker``, ``plain``, ``chat`` (the tokenizer's own), or a file of Jinja (``.j2``).

    Raises ``ValueError`` for another name, a file that is not there, a tokenizer without one.
    """
    if name.endswith((".j2", ".jinja")):
        if not Path(name).is_file():
            raise ValueError(f"template={name}: no such file")
        return _of(tokenizer, Path(name).name, Path(name).read_text(encoding="utf-8"))
    if name in CANDIDATES:
        return CANDIDATES[name]
    check_choice("template", name, (*NAMES, "FILE.j2"))
    source = getattr(tokenizer, "chat_template", None)
    if not source:
        raise ValueError("template='chat': the tokenizer has no chat template")
    return _of(tokenizer, "chat", source)


def of_model(folder: str | Path, tokenizer: Bpe) -> Template:
    """The chat template of a pre-trained model that is read with ``tokenizer``."""
    source = chat_template(folder)
    if source is None:
        raise ValueError(f"template='chat': {Path(folder).name} has no chat template")
    return _of(tokenizer, "chat", source)


def carrier(template: Template) -> str:
    """What stands before the digits of a canary that is a point of its own.

    >>> carrier(SPEAKER), carrier(PLAIN)
    ('USR: My ID is: ', 'My ID is: ')
    """
    planted = insert(Corpus("", ()), ["000000"], copies=1, seed=0)
    (alone,) = points(planted, "turn", template)
    return alone.text[: alone.secrets[0].start]


def _of(tokenizer: Any, name: str, source: str) -> Template:
    tokens = [getattr(tokenizer, f"{end}_token", None) or "" for end in ("bos", "eos")]
    return Template(name, source, *tokens)


def chat_template(folder: str | Path) -> str | None:
    """The chat template of a model, of a folder or a hub id, if it has one."""
    told = read_json(folder, "tokenizer_config.json").get("chat_template")
    own = beside(folder, "chat_template.jinja") or told
    return own if isinstance(own, str) and own else None


# --------------------------------------------------------------------------- rendering
@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    from jinja2 import StrictUndefined, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"],
        undefined=StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    sandbox.globals["raise_exception"] = refuse
    sandbox.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return sandbox.from_string(source)


def _render(template: Template, messages: Sequence[dict[str, str]]) -> str:
    from jinja2 import TemplateError

    try:
        text: str = _compiled(template.source).render(
            messages=messages, bos_token=template.bos, eos_token=template.eos,
            add_generation_prompt=False,
        )  # fmt: skip
    except (TemplateError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ValueError(f"template={template.name}: {type(error).__name__}: {first}") from None
    return text


def role(speaker: str) -> str:
    """What a chat template calls a speaker.

    >>> [role(name) for name in ("USR", "agent", "system", "")]
    ['user', 'assistant', 'system', 'user']
    """
    name = speaker.lower()
    return "assistant" if name in ASSISTANT else "system" if name == "system" else "user"


@functools.lru_cache(maxsize=16)
def _strips(template: Template) -> bool:
    """Whether it takes the white space off the ends of a text."""
    mark = chr(PRIVATE_USE)
    try:
        text = _render(template, [{"role": "user", "content": f" {mark} ", "speaker": "USR"}])
    except ValueError:  # it wants more than one message
        return False
    return f" {mark} " not in text


def point(dialogue: Dialogue, turns: Sequence[Turn], name: str, template: Template) -> Point:
    """Some turns of a dialogue as one text, with the spans of their secrets and of their own words.

    Raises ``ValueError`` for a template that loses, repeats or moves a text.
    """
    said = f"template={template.name}"
    if template.name != "speaker" and _strips(template):
        turns = [_stripped(turn) for turn in turns]
    marks = [chr(PRIVATE_USE + i) for i in range(len(turns))]
    messages = [
        {"role": role(t.speaker), "content": mark, "speaker": t.speaker}
        for t, mark in zip(turns, marks, strict=True)
    ]
    form = _render(template, messages)
    form = form.removeprefix(template.bos)  # who reads it puts the begin and the end
    if template.eos and form.rstrip().endswith(template.eos):
        form = form.rstrip().removesuffix(template.eos)
    places = [form.find(mark) for mark in marks]
    for i, (mark, place) in enumerate(zip(marks, places, strict=True), start=1):
        if place < 0:
            raise ValueError(f"{said}: drops the text of turn {i}")
        if form.count(mark) > 1:
            raise ValueError(f"{said}: repeats the text of turn {i}")
    if places != sorted(places):
        raise ValueError(f"{said}: changes the order of turns")
    starts = [0, *(place + 1 for place in places)]
    before = [form[a:b] for a, b in zip(starts, places, strict=False)]
    return records.joined(name, dialogue.user, turns, before, form[starts[-1] :])


def _stripped(turn: Turn) -> Turn:
    """Without white space at its ends."""
    text = turn.text.strip()
    cut = len(turn.text) - len(turn.text.lstrip())
    moved = [(s.kind, max(0, s.start - cut), min(len(text), s.end - cut)) for s in turn.secrets]
    return Turn(turn.speaker, text, tuple(Secret(*m) for m in moved if m[1] < m[2]))


def points(corpus: Corpus, unit: str, template: Template | None = None) -> tuple[Point, ...]:
    """The data points of a corpus under a template: see :func:`crtlib.text.records.points`, which
    writes them by ``speaker``, as does None."""
    return records.points(corpus, unit, writer(template))


def writer(template: Template | None) -> Callable[[Dialogue, Sequence[Turn], str], Point]:
    """What makes a text of turns under a template."""
    if template is None or template == SPEAKER:
        return records.by_speaker
    return functools.partial(point, template=template)


def own_tokens(points: Sequence[Point], tokenizer: AnyTokenizer) -> list[np.ndarray]:
    """Of each text, which tokens are its own words and not its template's."""
    coded = backend(tokenizer).encode_batch([p.text for p in points], add_special_tokens=False)
    masks = []
    for point, e in zip(points, coded, strict=True):
        own = np.zeros(len(point.text) + 1, dtype=bool)
        for a, b in point.spoken or ((0, len(point.text)),):
            own[a:b] = True
        masks.append(np.array([own[a:b].any() for a, b in e.offsets], dtype=bool))
    return masks
