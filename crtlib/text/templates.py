"""Templates: how turns become the text that a model reads.

A template is Jinja in an immutable sandbox. It is given ``messages``, each with a role
(:func:`chat_role`), ``content`` and ``speaker``, and ``bos_token`` and ``eos_token``. Each text is
rendered as one private-use character and put in afterwards, so that spans of secrets survive and a
policy reads the text alone.

>>> from crtlib.text.records import Corpus, Dialogue, Secret, Turn
>>> turns = (Turn("USR", "I am Ann.", (Secret("name", 5, 8),)), Turn("SYS", "hello"))
>>> corpus = Corpus("toy", (Dialogue("d", "ann", turns),))
>>> point = render_points(corpus, "dialogue", CANDIDATE_TEMPLATES["markup"])[0]
>>> point.text, point.text[point.secrets[0].start : point.secrets[0].end]
('<|user|> I am Ann.\\n<|agent|> hello\\n', 'Ann')
>>> render_points(corpus, "dialogue", Template("odd", "{{ messages[0].content }}"))
Traceback (most recent call last):
...
ValueError: template=odd: drops the text of turn 2
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from crtlib import files
from crtlib.checks import check_choice
from crtlib.text import data_points
from crtlib.text.canaries import insert_canaries
from crtlib.text.package_data import read_package_file
from crtlib.text.records import Corpus, Dialogue, Point, Secret, Turn
from crtlib.text.tokenizer import (
    AnyTokenizer,
    BpeTokenizer,
    copy_backend_tokenizer,
    read_model_file,
    read_model_json,
)

TEMPLATE_NAMES = ("speaker", "plain", "chat")
ASSISTANT_SPEAKERS = {"sys", "agent", "bot", "assistant"}
FIRST_PRIVATE_USE_CHARACTER = 0xF0000

TEMPLATE_SAMPLES = {"markup": "<|user|>…", "chatml": "<|im_start|>user…", "named": "User:…"}


@dataclass(frozen=True)
class Template:
    """A Jinja template and its name; ``bos`` and ``eos`` are its model's own tokens."""

    name: str
    source: str
    bos: str = ""
    eos: str = ""


CANDIDATE_TEMPLATES = {
    n: Template(n, source) for n, source in tomllib.loads(read_package_file("chat.toml")).items()
}
"""Templates with which a model that nobody described may have been trained."""
SPEAKER_TEMPLATE, PLAIN_TEMPLATE, MARKUP_TEMPLATE = (
    CANDIDATE_TEMPLATES[name] for name in ("speaker", "plain", "markup")
)


def template_by_name(name: str, tokenizer: AnyTokenizer | None = None) -> Template:
    """The template of a name: a candidate, ``chat`` (the tokenizer's own), or a Jinja file
    (``.j2``).

    Raises ``ValueError`` for any other name, for a file that is not there, and for ``chat`` where
    the tokenizer has no template.
    """
    if name.endswith((".j2", ".jinja")):
        if reason := files.why_not_regular(name):
            raise ValueError(f"template={name}: {reason}")
        return _template_of_tokenizer(tokenizer, Path(name).name, files.read_text(name))
    if name in CANDIDATE_TEMPLATES:
        return CANDIDATE_TEMPLATES[name]
    check_choice("template", name, (*TEMPLATE_NAMES, "FILE.j2"))
    source = getattr(tokenizer, "chat_template", None)
    if not source:
        raise ValueError("template='chat': the tokenizer has no chat template")
    return _template_of_tokenizer(tokenizer, "chat", source)


def template_of_model(folder: str | Path, tokenizer: BpeTokenizer) -> Template:
    """The chat template of a pre-trained model that is read with ``tokenizer``."""
    source = read_chat_template(folder)
    if source is None:
        raise ValueError(f"template='chat': {Path(folder).name} has no chat template")
    return _template_of_tokenizer(tokenizer, "chat", source)


def carrier_of_template(template: Template) -> str:
    """The text before the digits of a canary that is a point of its own.

    >>> carrier_of_template(SPEAKER_TEMPLATE), carrier_of_template(PLAIN_TEMPLATE)
    ('USR: My ID is: ', 'My ID is: ')
    """
    planted = insert_canaries(Corpus("", ()), ["000000"], copies=1, seed=0)
    (alone,) = render_points(planted, "turn", template)
    return alone.text[: alone.secrets[0].start]


def _template_of_tokenizer(tokenizer: Any, name: str, source: str) -> Template:
    tokens = [getattr(tokenizer, f"{end}_token", None) or "" for end in ("bos", "eos")]
    return Template(name, source, *tokens)


def read_chat_template(folder: str | Path) -> str | None:
    """The chat template of a model, given as a folder or a hub id; None if it has none."""
    configured = read_model_json(folder, "tokenizer_config.json").get("chat_template")
    template = read_model_file(folder, "chat_template.jinja") or configured
    return template if isinstance(template, str) and template else None


# --------------------------------------------------------------------------- rendering
@functools.lru_cache(maxsize=16)
def _compile_template(source: str) -> Any:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"],
        undefined=StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    sandbox.globals["raise_exception"] = refuse
    sandbox.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return sandbox.from_string(source)


def _render_messages(template: Template, messages: Sequence[dict[str, str]]) -> str:
    try:
        text: str = _compile_template(template.source).render(
            messages=messages, bos_token=template.bos, eos_token=template.eos,
            add_generation_prompt=False,
        )  # fmt: skip
    except (TemplateError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ValueError(f"template={template.name}: {type(error).__name__}: {first}") from None
    except (ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"template={template.name}: {type(error).__name__}") from None
    return text


def chat_role(speaker: str) -> str:
    """The role of a speaker in a chat template.

    >>> [chat_role(name) for name in ("USR", "agent", "system", "")]
    ['user', 'assistant', 'system', 'user']
    """
    name = speaker.lower()
    return "assistant" if name in ASSISTANT_SPEAKERS else "system" if name == "system" else "user"


@functools.lru_cache(maxsize=16)
def _strips_whitespace(template: Template) -> bool:
    """Whether a template strips the white space at the ends of a text."""
    mark = chr(FIRST_PRIVATE_USE_CHARACTER)
    try:
        text = _render_messages(
            template, [{"role": "user", "content": f" {mark} ", "speaker": "USR"}]
        )
    except ValueError:  # it wants more than one message
        return False
    return f" {mark} " not in text


def render_point(dialogue: Dialogue, turns: Sequence[Turn], name: str, template: Template) -> Point:
    """Write turns of a dialogue as one point, with the spans of their secrets and of their own
    words.

    Raises ``ValueError`` for a template that loses, repeats or moves a text.
    """
    said = f"template={template.name}"
    if template.name != "speaker" and _strips_whitespace(template):
        turns = [_strip_turn(turn) for turn in turns]
    marks = [chr(FIRST_PRIVATE_USE_CHARACTER + i) for i in range(len(turns))]
    messages = [
        {"role": chat_role(t.speaker), "content": mark, "speaker": t.speaker}
        for t, mark in zip(turns, marks, strict=True)
    ]
    form = _render_messages(template, messages)
    form = form.removeprefix(template.bos)  # the tokenizer adds the begin and the end
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
    return data_points.join_turns(name, dialogue.user, turns, before, form[starts[-1] :])


def _strip_turn(turn: Turn) -> Turn:
    """The turn without white space at its ends."""
    text = turn.text.strip()
    cut = len(turn.text) - len(turn.text.lstrip())
    moved = [(s.kind, max(0, s.start - cut), min(len(text), s.end - cut)) for s in turn.secrets]
    return Turn(turn.speaker, text, tuple(Secret(*m) for m in moved if m[1] < m[2]))


def render_points(corpus: Corpus, unit: str, template: Template | None = None) -> tuple[Point, ...]:
    """The data points of a corpus under a template, by
    :func:`crtlib.text.data_points.make_points`. None is the template ``speaker``."""
    return data_points.make_points(corpus, unit, make_point_writer(template))


def make_point_writer(
    template: Template | None,
) -> Callable[[Dialogue, Sequence[Turn], str], Point]:
    """Return a function that writes turns as a point under a template."""
    if template is None or template == SPEAKER_TEMPLATE:
        return data_points.join_with_speakers
    return functools.partial(render_point, template=template)


def mark_spoken_tokens(points: Sequence[Point], tokenizer: AnyTokenizer) -> list[np.ndarray]:
    """For each text, which tokens are its own words rather than its template's."""
    coded = copy_backend_tokenizer(tokenizer).encode_batch(
        [p.text for p in points], add_special_tokens=False
    )
    masks = []
    for point, e in zip(points, coded, strict=True):
        own = np.zeros(len(point.text) + 1, dtype=bool)
        for a, b in point.spoken_spans or ((0, len(point.text)),):
            own[a:b] = True
        masks.append(np.array([own[a:b].any() for a, b in e.offsets], dtype=bool))
    return masks
