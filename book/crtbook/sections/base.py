"""What the sections of a profile share: the registry, the types of names, and common settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from crtbook.schema import Named, Settings
from crtlib import roots
from crtlib.experiments.value import Count, Word, value
from crtlib.screening import by_name
from crtlib.text import corpora
from crtlib.training import methods

SECTIONS: dict[str, type[Settings]] = {}
"""The sections that a profile has, by name."""

SIMULATED = "customersim"
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")

T = TypeVar("T", bound=Settings)


def section(name: str) -> Callable[[type[T]], type[T]]:
    """Make a class the section of this name of every profile."""

    def register(cls: type[T]) -> type[T]:
        SECTIONS[name] = cls
        return cls

    return register


def _corpora() -> Iterable[str]:
    return (*corpora.known(), "hub:OWNER/NAME", "FILE.jsonl")


def _is_corpus(name: str) -> bool:
    own = name.startswith("hub:") or name.endswith((".jsonl", ".jsonl.gz"))
    return own or name in corpora.known()


def _policies() -> Iterable[str]:
    """The tagger alone is one that learns from a study's own labelled dialogues."""
    return ("tagger", *(f"{name}{takes}" for name, takes in by_name.known().items()))


def _is_policy(name: str) -> bool:
    return all(by_name.is_known(part.partition(":")[0]) for part in name.split("+"))


def _is_method(name: str) -> bool:
    try:
        methods.by_name(name)
    except ValueError:
        return False
    return True


MethodName = Annotated[str, Named("method", lambda: methods.METHODS, _is_method)]
CorpusName = Annotated[str, Named("corpus", _corpora, _is_corpus)]
PolicyName = Annotated[str, Named("policy", _policies, _is_policy)]
Device = Annotated[
    str,
    Named(
        "device",
        lambda: ("auto", "cpu", "cuda", "cuda:N"),
        lambda name: bool(_DEVICE.fullmatch(name)),
    ),
]
StoreName = Annotated[Word, AfterValidator(roots.check)]
Accountant = Literal["pld", "rdp", "prv", "autodp"]
Dialogues = Annotated[int, Field(ge=10)]
Corpora = Annotated[tuple[CorpusName, ...], Field(min_length=1)]


@value
class Runs(Settings):
    """Settings of a chapter or sweep that trains."""

    store: StoreName = Field("store", description="folder or URL of finished runs")
    workers: Count = Field(2, description="processes at a time")
    device: Device = Field("auto", description="where to train; auto: CUDA where it is found")


def divided(heads: int, hidden: int) -> None:
    """Refuse a width that the heads of a transformer do not divide."""
    if hidden % heads:
        raise ValueError(f"heads={heads}: must divide hidden={hidden}")


def sized(corpora: Iterable[str], data: Mapping[str, object]) -> None:
    """Refuse corpora for which there are no sizes."""
    if unknown := [corpus for corpus in corpora if corpus not in data]:
        raise ValueError(f"corpora={unknown}: data has sizes for {', '.join(data)} only")
