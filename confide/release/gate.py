"""The gate, through which every file of a release goes, and the signature on it.

The seal: a signature by which who receives a release knows that nobody else has edited it.

The private key (Ed25519) lies beside the odometer, 0600; the public one travels with what is
signed. It catches edits by others. It does not catch a releaser who lies: who has the key can sign
anything.

>>> key = Ed25519PrivateKey.generate()
>>> check(signed({"epsilon": 3}, key), "demo")["epsilon"]
3
>>> check(signed({"epsilon": 3}, key) | {"epsilon": 1}, "demo")
Traceback (most recent call last):
ValueError: demo: was changed after it was signed

The gate: every file that others may see is written here, and says what it may know of private
text; what is promised is computed from that.

>>> import tempfile
>>> step = SampledGaussian(sampling_probability=0.01, noise_multiplier=1.0, steps=500)
>>> screening = Screening("5" * 64, trace=0.05, public=0.002)
>>> weights = Noised("a", "turn", "replace", (step,), screening)
>>> fold([weights]).kind, fold([weights, Screened("vocabulary", screening)]).delta2
('bayesian_confidentiality', 0.002)
>>> fold([Noised("a", "turn", "replace", (step,), None)]).kind
'dp'
>>> release = Release(Path(tempfile.mkdtemp()))
>>> release.write("README.md", Value(b"perplexity 12.3456", frozenset()))
Traceback (most recent call last):
ValueError: README.md: does not say what it may know of private text
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from crtlib import files, outputs
from crtlib.accounting.ledger import SampledGaussian
from crtlib.files import Named

KEY = "signing.key"
MOST = 1 << 26
"""Bytes of a signed file, at most."""


def key_in(folder: Named) -> Ed25519PrivateKey:
    """The private key beside an odometer; it is made where there is none, by one of several
    processes. Raises ``ValueError`` for one that is none."""
    path = Path(folder) / KEY
    files.sweep(path)
    if not path.exists():
        with files.part(path, 0o600) as part, part.open("rb+") as file:
            file.write(Ed25519PrivateKey.generate().private_bytes_raw())
            file.flush()
            os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(part, path)
    try:
        return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
    except ValueError:
        raise ValueError(f"{path}: is no signing key") from None


def canonical(value: Mapping[str, Any]) -> bytes:
    """What is signed: JSON with sorted keys, without the signature."""
    rest = {name: one for name, one in value.items() if name != "signature"}
    return json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def signed(value: Mapping[str, Any], key: Ed25519PrivateKey) -> dict[str, Any]:
    """The value with the public key and a signature."""
    whole = {**value, "public_key": key.public_key().public_bytes_raw().hex()}
    return whole | {"signature": key.sign(canonical(whole)).hex()}


def check(value: Mapping[str, Any], name: str, public: str | None = None) -> dict[str, Any]:
    """The value, if it is as it was signed, by the key ``public`` where that is given.

    Raises ``ValueError`` in one line where it is not, and calls it by ``name``."""
    try:
        key, signature = str(value["public_key"]), bytes.fromhex(value["signature"])
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, canonical(value))
    except KeyError:
        raise ValueError(f"{name}: is not signed; it is damaged, or of another version") from None
    except (InvalidSignature, ValueError, TypeError, RecursionError):
        raise ValueError(f"{name}: was changed after it was signed") from None
    if public is not None and key != public:
        raise ValueError(f"{name}: was signed with another key, {key[:12]}… and not {public[:12]}…")
    return dict(value)


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for an object in which a name stands twice:
    of these people read the first, and programs the last."""

    def once(rows: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(rows)) < len(rows):
            raise ValueError("a name stands twice")
        return found

    return json.loads(text, object_pairs_hook=once)


def read_signed(path: Named, public: str | None = None) -> dict[str, Any]:
    """A signed JSON object from a file (:func:`check`)."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST:
            raise ValueError
        value = loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"{path}: is damaged") from None
    return check(value, str(path), public)


SCHEMA = "crtlib/release/1"
NAME = outputs.SEAL
Rate = Annotated[float, Field(ge=0, le=1)]
Unit = Literal["turn", "dialogue", "user"]
Kind = TypeVar("Kind")


# --------------------------------------------------------------------------- sources
@dataclass(frozen=True)
class Screening:
    """A pair of policies on one text, and upper bounds of its rates: ``trace``, a secret leaves a
    trace in the redacted text; ``public``, a secret stands where both policies are silent."""

    id: str
    trace: Rate
    public: Rate


NOTHING = Screening("", trace=1.0, public=0.0)
"""That of a run on raw text: no secret is left out of it."""


@dataclass(frozen=True)
class Constant:
    """Nothing of the text, or what every promise treats as known: a format, single bytes."""

    of: str
    kind: Literal["constant"] = "constant"


@dataclass(frozen=True)
class Noised:
    """The private steps of one run. ``screening`` is None where they read raw text: no secret is
    amplified then. ``holds``: how many points of a smaller unit one ``unit`` holds at the most.
    ``hides_copies``: second occurrences of a message were masked or left out, so that several
    messages of one template, masked together, become copies of each other."""

    run: str
    unit: Unit
    relation: Literal["replace", "add_or_remove"]
    events: tuple[SampledGaussian, ...]
    screening: Screening | None
    holds: tuple[tuple[Unit, int], ...] = ()
    hides_copies: bool = True
    kind: Literal["noised"] = "noised"


@dataclass(frozen=True)
class Planned:
    """The private steps of a run under a plan: pairs of a prior and of the chance that the noise
    leaves to guess a secret that the plan knows; ``keeps``: each is what was promised."""

    run: str
    plan: str
    relation: Literal["reference", "replace", "add_or_remove"]
    guesses: tuple[tuple[Rate, Rate], ...]
    keeps: bool
    kind: Literal["planned"] = "planned"


@dataclass(frozen=True)
class Screened:
    """Learned without noise where both policies are silent: it charges the public rate."""

    of: str
    screening: Screening
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True)
class Redacted:
    """Learned without noise from redacted text: it charges the trace rate."""

    of: str
    screening: Screening
    kind: Literal["redacted"] = "redacted"


@dataclass(frozen=True)
class Base:
    """An earlier model: one whose run a ledger knows, one from outside, of which it is assumed that
    it never read this text, or one of crtlib of which nobody knows the run."""

    name: str
    lineage: Literal["known", "outside", "unknown"]
    kind: Literal["base"] = "base"


@dataclass(frozen=True)
class Declared:
    """A value of the text that the releaser calls public: one of ``among``, which is a finite set
    that does not depend on the text."""

    of: str
    value: str
    among: tuple[str, ...]
    kind: Literal["declared"] = "declared"

    def __post_init__(self) -> None:
        if self.value not in self.among:
            raise ValueError(f"{self.of}={self.value!r}: must be one of {', '.join(self.among)}")

    @property
    def bits(self) -> float:
        """How much it may tell at the most."""
        return math.log2(len(self.among))


@dataclass(frozen=True)
class Raw:
    """Learned from raw text without noise, or from what one message decided about others, as the
    clause ``of`` says. It may leave; nothing is promised then."""

    of: str
    kind: Literal["raw"] = "raw"


@dataclass(frozen=True)
class Brought:
    """What the releaser brought that decided how the text is read, as a file of rules, of which it
    is assumed that it was not made from this text. ``name`` is what may be shown of it."""

    name: str
    kind: Literal["brought"] = "brought"


def not_made_from(name: str, text: str = "this text") -> str:
    """What is assumed of what somebody brought."""
    return f"{name} was not made from {text}"


Source = Constant | Noised | Planned | Screened | Redacted | Base | Declared | Raw | Brought
_SOURCES: TypeAdapter[list[Source]] = TypeAdapter(
    list[Annotated[Source, Field(discriminator="kind")]]
)


@dataclass(frozen=True)
class Value:
    """Content, or the file that holds it, and all that it may know."""

    content: bytes | Path
    sources: frozenset[Source]

    @classmethod
    def text(cls, text: str, *parts: Value | Source) -> Value:
        """A text made from these: it knows what all of them know."""
        known = (p.sources if isinstance(p, Value) else {p} for p in parts)
        return cls(text.encode(), frozenset[Source]().union(*known))


def declare(of: str, value: float, bounds: Sequence[float]) -> Declared:
    """A number as the interval between two of ``bounds`` in which it lies; one that is no number
    as the last.

    >>> declare("perplexity", 12.3, (8, 16)).value
    '8 to 16'
    """
    edges = [f"{b:g}" for b in bounds]
    names = (f"below {edges[0]}", *map(" to ".join, itertools.pairwise(edges)),
             f"{edges[-1]} or more")  # fmt: skip
    return Declared(of, names[sum(not value < b for b in bounds)], names)


POINTS = tuple(m << k for k in range(1, 29) for m in (4, 5, 6, 7))[1:]
"""Bounds between which a release says how many private points there are: four to a doubling."""


def rounded(points: int) -> int:
    """Of that many private points those of which a release may depend: rounded down to one of
    ``POINTS``, or 8, so that few single messages can change it.

    >>> [rounded(n) for n in (3, 11, 1023, 1024)]
    [8, 10, 896, 1024]
    """
    return max((b for b in POINTS if b <= points), default=8)


# --------------------------------------------------------------------------- the only door
class Release:
    """A folder that others may see, while it is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources: dict[str, frozenset[Source]] = {}

    def write(self, name: str, value: Value) -> None:
        """Put a value into the folder under a name that no text decides.

        Raises ``ValueError`` where it does not say what it may know."""
        if not value.sources:
            raise ValueError(f"{name}: does not say what it may know of private text")
        if not re.fullmatch(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*", name, re.ASCII):
            raise ValueError(f"{name!r}: is no name of a file that may leave")
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value.content, Path):
            os.replace(value.content, path)
        else:
            with files.replacing(path) as part:
                part.write_bytes(value.content)
        self.sources[name] = value.sources

    def adopt(self, folder: Path, *parts: Value | Source) -> None:
        """Write all files of a private folder, each of which knows what ``parts`` know."""
        known = Value.text("", *parts).sources
        for name in contents(folder):
            self.write(name, Value(folder / name, known))

    def close(self, key: Ed25519PrivateKey, run: str) -> None:
        """List and sign all that is there; the marker of the folder is ours too, and knows what all
        files know. Raises ``ValueError`` for a file that did not come through :meth:`write`."""
        self.sources[outputs.MARKER] = frozenset[Source]().union(*self.sources.values())
        present = set(contents(self.folder)) - {NAME}
        if strangers := present ^ set(self.sources):
            raise ValueError(f"{min(strangers)}: did not come through the gate")
        every = sorted(self.sources[outputs.MARKER], key=repr)
        listed = {
            name: _row(
                self.folder / name, [k for k, s in enumerate(every) if s in self.sources[name]]
            )
            for name in sorted(present)
        }
        content = {"schema": SCHEMA, "run": run, "files": listed}
        content["sources"] = _SOURCES.dump_python(every, mode="json")
        _list(self.folder, content, key)


def extend(folder: Path, paths: Iterable[Path], key: Ed25519PrivateKey) -> None:
    """List and sign files that were computed from the sources of all others: the certificate. A
    list that another key signed stays as it is."""
    try:
        content = read_signed(folder / NAME, key.public_key().public_bytes_raw().hex())
    except ValueError:
        return
    for path in paths:
        every = list(range(len(content["sources"])))
        content["files"][str(path.relative_to(folder.resolve()))] = _row(path, every)
    _list(folder, content, key)


def _list(folder: Path, content: Mapping[str, Any], key: Ed25519PrivateKey) -> None:
    """Sign the list of a release, and write it."""
    text = json.dumps(signed(content, key), indent=1) + "\n"
    files.write_text(folder / NAME, text, outputs.PUBLIC)


def _row(path: Path, sources: list[int]) -> dict[str, Any]:
    """A file in the list of a release, with the numbers of its sources."""
    return {"sha256": outputs.sha256(path), "sources": sources}


def contents(folder: Path) -> list[str]:
    """All that lies in a folder, links and empty folders included: a name can tell something."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    )


@dataclass(frozen=True)
class Manifest:
    """What a finished release says of itself: its run, the public key, the sources of all files
    together, the SHA-256 of each; and ``altered``, what is not as it was written."""

    run: str
    key: str
    sources: tuple[Source, ...]
    altered: tuple[str, ...]
    hashes: Mapping[str, str]


def read(folder: Named) -> Manifest:
    """The signed list of a release, compared with what is there, file by file.

    Raises ``ValueError`` where there is none, or its signature is not that of its content."""
    home = Path(folder)
    content = read_signed(home / NAME)
    try:
        every = _SOURCES.validate_python(content["sources"], strict=False)
        listed = {str(n): str(one["sha256"]) for n, one in content["files"].items()}
        known = {k for one in content["files"].values() for k in one["sources"]}
        run, key = str(content["run"]), str(content["public_key"])
        whole = content["schema"] == SCHEMA and known == set(range(len(every)))
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"{home / NAME}: is damaged, or of another version of crtlib")
    altered = []
    for name in sorted({*contents(home), *listed} - {NAME}):
        path = home / name
        plain = name in listed and path.is_file() and not path.is_symlink()
        if not plain or outputs.sha256(path) != listed[name]:
            altered.append(name)
    return Manifest(run, key, tuple(every), tuple(altered), listed)


# --------------------------------------------------------------------------- the fold
@dataclass(frozen=True)
class Fold:
    """What files with these sources promise together: the ``kind``, the private steps, and how many
    secrets leave a trace (``gamma``) or were learned without noise (``delta2``), at the most. The
    promise is void if one of what is ``assumed``, a sentence each, is false."""

    kind: Literal["none", "dp", "bayesian_confidentiality", "secret_protection"]
    unit: Unit = "turn"
    relation: str = "replace"
    events: tuple[SampledGaussian, ...] = ()
    gamma: float = 0.0
    delta2: float = 0.0
    screening: str = ""
    holds: Mapping[str, int] = field(default_factory=dict)
    hides_copies: bool = True
    plan: Planned | None = None
    declared: tuple[Declared, ...] = ()
    assumed: tuple[str, ...] = ()
    void: tuple[str, ...] = ()


def fold(sources: Iterable[Source], altered: Iterable[str] = ()) -> Fold:
    """The promise of all files together; a run counts once, in however many files it stands."""
    every = list(dict.fromkeys(sources))

    def those(kind: type[Kind]) -> tuple[Kind, ...]:
        return tuple(s for s in every if isinstance(s, kind))

    noised, plans, bases = those(Noised), those(Planned), those(Base)
    runs: list[Noised | Planned] = [*noised, *plans]
    void = [f"{name} is not what was released." for name in altered]
    if len({s.run for s in runs}) < len(runs):
        void.append("One run is declared in two ways.")
    if len(runs) > 1 and (plans or len({(s.unit, s.relation) for s in noised}) > 1):
        void.append("Runs with different promises were written into one release.")
    void += [f"{s.of}." for s in those(Raw) if runs]
    void += [f"Nobody knows what {s.name}, from which it started, has read." for s in bases
             if s.lineage == "unknown"]  # fmt: skip
    screenings = {one for s in every if (one := getattr(s, "screening", None))}
    if len({one.id for one in screenings}) < len(screenings):
        void.append("One screening is declared in two ways.")
    gamma = {one.id: one.trace for one in (s.screening or NOTHING for s in noised)}
    charged = [(s.screening.public, s.screening.id) for s in those(Screened)]
    charged += [(s.screening.trace, s.screening.id) for s in those(Redacted)]
    public = {name: rate for rate, name in sorted(charged)}  # of two of one screening, the larger
    traces = min(1.0, math.fsum(gamma.values()))
    delta2 = min(1.0, math.fsum(public.values()))
    assumed = [f"{b.name} had not read this text" for b in bases if b.lineage == "outside"]
    assumed += [not_made_from(s.name) for s in those(Brought)]
    common: dict[str, Any] = {"declared": those(Declared), "assumed": tuple(assumed),
                              "void": tuple(void)}  # fmt: skip
    if plans:
        plan = plans[0]
        return Fold("secret_protection", relation=plan.relation, gamma=1.0, plan=plan, **common)
    if not noised:
        return Fold("none", gamma=1.0, delta2=1.0, **common)
    first = noised[0]
    return Fold(
        kind_of(traces, delta2),
        first.unit,
        first.relation,
        tuple(e for s in noised for e in s.events),
        traces,
        delta2,
        "+".join(sorted({*gamma, *public} - {""})),
        dict(first.holds),
        any(s.hides_copies for s in noised),
        **common,
    )


def kind_of(gamma: float, delta2: float) -> Literal["dp", "bayesian_confidentiality"]:
    """Of any data point, where nothing is left out and nothing learned without noise; else of a
    secret drawn at random."""
    return "dp" if gamma >= 1 and not delta2 else "bayesian_confidentiality"
