r"""Screening policies: which characters of a point may be secret, and how often that is right.

A policy is called on points and answers with the flagged spans of each, sorted and disjoint.

>>> from crtlib.text.records import Point
>>> points = [Point("0", "u", "USR: I am Ada Lovelace."), Point("1", "u", "SYS: Anything else?")]
>>> regex("customersim")(points)
[(Secret(kind='name', start=10, end=22),), ()]
>>> miss(regex("customersim"), gamma=1.0, seed=0)(points)
[(), ()]
>>> everything(points)
[(Secret(kind='text', start=0, end=23),), (Secret(kind='text', start=0, end=19),)]

Of one's own are values from a list, expressions from a file, and words that are plain:

>>> import tempfile, pathlib
>>> file = pathlib.Path(tempfile.mkdtemp()) / "names.txt"
>>> _ = file.write_text("José O’Neill\n4111111111111111\n")
>>> text = "It is jose  o'neill, card 4111-1111 1111.1111 03/27"
>>> [text[s.start : s.end] for s in listed(str(file))([Point("0", "u", text)])[0]]
["jose  o'neill", '4111-1111 1111.1111']

Where a learned policy is silent its text trains without noise, so silence has to be earned:
between it and "everything" stands one that flags whatever plain words are not.

>>> text = "Please call Ada at 555 1234 about the zyzzyva."
>>> [text[s.start : s.end] for s in cautious()([Point("0", "u", text)])[0]]
['Ada', '555 1234', 'zyzzyva']

The one place that knows all policies by name.

>>> policy_by_name("everything").name
'everything'
>>> policy_by_name("regex:multiwoz+everything").name
'regex:multiwoz+everything'
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import re
import tomllib
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import import_module, resources, util
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import ahocorasick
import regex as regular
from pydantic import BaseModel, Field, ValidationError

from crtlib.checks import MachineError, check, check_choice
from crtlib.screening.policy import (
    MAKERS,
    THRESHOLD,
    Flag,
    Maker,
    Policy,
    Unanswered,
    checked,
    spoken,
    words,
)
from crtlib.screening.redaction import (
    Spans,
    masks,
    merged,
    overlaps,
    redact,
)
from crtlib.text import folders, records
from crtlib.text.records import MASK, Point, Secret

if TYPE_CHECKING:
    import pandas as pd

# Each piece starts with a sign or a capital: an optional start would take exponential time. What
# can go on over many words has a most, or a text of nothing but such words takes quadratic time.
_WORD = (
    r"[A-ZÀ-ÖØ-Þ](?:['’][A-ZÀ-ÖØ-Þ])?[a-zà-öø-ÿ]{1,64}"
    r"(?:(?:['’-][A-ZÀ-ÖØ-Þ]?|[A-ZÀ-ÖØ-Þ])[a-zà-öø-ÿ]{1,64}){0,8}"
)
# Words that start a sentence, and are no first names: "Hello Ada Lovelace" holds one name.
_NO_NAME = (
    r"(?!(?:An?|And|At|But|By|Call|Certainly|Dear|For|From|Good|Here|Hello|Hey|Hi|How|If|In|Is|It|"
    r"Mister|Mrs?|Ms|My|No|Ok|Okay|On|Please|Right|Send|Shipping|Since|Sure|Thanks?|That|The|"
    r"They?|This|To|We|What|When|Where|Who|Why|Yea|Yeah|Yep|Yes|You|Your|"
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)\b)"
)
_NUMERAL = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|"
    r"forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|and)"
)
_ROAD = (
    r"(?i:street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|way|court|ct|place|pl|plaza|"
    r"square|sq|parkway|pkwy|highway|hwy|circle|terrace|real|row|broadway|alameda|embarcadero|"
    r"camino|mall|walk|hill|center|centre)\b\.?"
)
_SIDE = r"(?i:north|south|east|west|northeast|northwest|southeast|southwest|[ns]\.?[ew]\.?)\b"
_SHAPES = {
    "customersim": {
        "address": (
            r"(?<![\w-])(?:\d{1,6}(?: (?:Apt\.|#?\d+|[A-Z][\w'’-]+)){1,16}, [A-Z]{2} "
            r"\d{5}(?:-\d{4})?"
            rf"|(?:PSC \d+, Box \d+|Unit \d+ Box \d+|US[A-Z]+ {_WORD}) [ADF]PO A[AEP] \d{{5}})\b"
        ),
        "order": r"(?<![\w-])\d{3}-\d{5}-\d{1,4}(?![\w-])",
        "phone": r"(?<![\w.-])(?:\+?1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-]?)\d{3}[ .-]?\d{4}(?![\w-])",
        "tracking": r"\b[A-Z0-9]{10}\b",
        "name": rf"\b{_NO_NAME}{_WORD}(?: [A-Z]\.)? {_WORD}\b",
    },
    "schema_guided": {
        "phone": r"(?<![\w$-])\+?\d{1,4}(?:[ .-]\d{1,4}){2,4}(?![\w-])",
        "address": (
            rf"(?<![\w$:-])\d[\w/-]*(?: {_SIDE})?(?: [\w.'’-]+){{0,4}}? {_ROAD}(?: {_SIDE})?"
            r"(?:,? (?:#|(?i:ste|suite|apt|unit|room|floor)\b\.?) ?\w+)?(?: #? ?\d+\w*)?"
            r"(?:, [A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)*"
        ),
        "amount": (
            r"\$ ?\d[\d,]*(?:\.\d+)?|\b(?:\d[\d,]{0,32}(?:\.\d{1,32})?"
            rf"|(?i:{_NUMERAL}(?:[ -]{_NUMERAL}){{0,16}})) (?i:dollars|bucks)\b"
        ),
        # One capitalised word is anything; what a doctor has about it, and whom money goes to.
        "name": (
            rf"\b(?:Dr\.? {_WORD}(?: [A-Z]\b\.?)?(?: {_WORD})*"
            rf"|{_WORD}(?: (?:[A-Z]\b\.?|{_WORD})){{0,8}},? "
            r"(?:M\.?D\b\.?|DDS\b|D\.D\.S\.|OD\b|Ph\.?D\b\.?))"
            rf"|(?<=\bto )(?!the |my |your ){_WORD}"
            r"(?=(?:['’]s)?(?: (?:from|in|savings|checking|account)|[.?,!]|$))"
        ),
    },
    "multiwoz": {
        "reference": r"\b(?=[A-Z0-9]*[A-Z])[A-Z0-9]{8}\b",
        "phone": r"(?<![\w-])0\d{3,4}[ -]?\d{5,6}(?![\w-])",
        "postcode": r"\b(?i:[a-z]{2}\.? ?\d{1,2},? ?\d[a-z]{2})\b",
        "address": (
            r"(?<![\w-])(?:\d[\w/-]*(?: - \d+)?(?: [A-Z][\w'’-]*){1,8}?"
            rf"|[A-Z][\w'’-]+(?: [A-Z][\w'’-]+){{0,8}}?) {_ROAD}"
            r"(?:,? (?:City Centre|Chesterton|Fen Ditton|Cherry Hinton|[A-Z][\w'’-]+))*"
        ),
    },
    "wikitext2": {"number": r"\d+"},
}
_SHAPES["wikitext2_cut"] = _SHAPES["wikitext2"]


SHAPES = tuple(_SHAPES)
"""The corpora whose secrets ``regex`` knows by shape."""


def matching(name: str, pattern: re.Pattern[str]) -> Policy:
    """Flags what ``pattern`` finds; the kind is the name of the group that matched.

    A pattern whose character classes have no ``<`` and ``>`` labels a text that holds ``<MASK>``
    around the mask as if the mask were not there (Proposition 5 needs labels that do not change
    elsewhere when one secret is masked). Where people wrote the text a span may still take a
    neighbour along: :func:`crtlib.screening.rates.rates` counts the traces.
    """

    def found(p: Point) -> Iterator[Secret]:
        for m in pattern.finditer(p.text):
            yield Secret(m.lastgroup or "", *m.span(m.lastgroup or 0))

    return Policy(name, partial(map, found))


@lru_cache
def regex(corpus: str = "customersim") -> Policy:
    """The regular expressions for the kinds of a corpus, and for the digits of a canary.

    Made from the *shape* of the secrets (two capitalised words in a row, ten capitals or digits,
    a street and a postcode, ...), without labels, for points without context. That is perfect
    where a simulator made the shapes (customersim) or where every digit is a secret (wikitext2);
    people who write as they like are another matter (schema_guided, multiwoz: see ``tagger``).
    """
    check_choice("corpus", corpus, SHAPES)
    kinds = [f"(?P<{kind}>{pattern})" for kind, pattern in _SHAPES[corpus].items()]
    pattern = re.compile("|".join([r"\bID is:? (?P<id>\d{4,})", *kinds]))
    return matching(f"regex:{corpus}", pattern)


oracle = Policy("oracle", lambda points: [p.secrets for p in points])
"""Flags the labelled secrets: the perfect policy of the paper's "non-private with masks"."""

none = Policy("none", lambda points: [()] * len(points))
"""Flags nothing: as ``pi_c`` it leaves the split to ``pi``."""

everything = Policy(
    "everything",
    lambda points: [(Secret("text", 0, len(p.text)),) if p.text else () for p in points],
    total=True,
)
"""Flags the whole text of every point: as ``pi_c`` it makes every point private."""


def _changed(policy: Flag, change: Callable[[Point, Spans], Iterable[Secret]]) -> Policy:
    """``policy``, with what it flags in a point put through ``change``."""
    pi = checked(policy)

    def flag(points: Sequence[Point]) -> Iterator[Iterable[Secret]]:
        return map(change, points, pi(points))

    return replace(pi, flag=flag, own_words=False, batched=True)


# --------------------------------------------------------------------------- the dial
Per = Literal["occurrence", "value"]
Coin = Literal["text", "point"]
"""What else than the seed and the value a coin of the dial is drawn from: see :func:`miss`."""


def _uniform(*drawn_from: object) -> float:
    """Uniform on [0, 1), a function of what is hashed and of nothing else."""
    said = "\x1f".join(map(str, drawn_from))
    digest = hashlib.blake2b(said.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def miss(
    policy: Flag, gamma: float, seed: int, per: Per = "occurrence", *, coin: Coin = "text"
) -> Policy:
    """The dial: ``policy`` with miss rate ``gamma`` in [0, 1] on what it would have found.

    ``per="occurrence"`` tosses a coin for each point and value, so that a secret which stands in
    twenty points is missed in about ``20 * gamma`` of them; ``per="value"`` tosses one coin for a
    value wherever it stands. The coin is a hash, not the next number of a generator: masking one
    secret, or adding a point, changes no other label, which Proposition 5 needs. For the same
    reason equal values within one point share their coin: counting them would let the mask of
    the first change the second. What is missed at some ``gamma`` is missed at every larger one.

    ``coin="text"`` draws it from the value and from the rest of its point, in which all that
    ``policy`` flags is masked: of two points with one text the same is missed, so deduplication
    may follow. ``coin="point"`` draws it from the value and the point's id: copies have coins of
    their own. That is a dial of recorded experiments; a policy with it reads ids.
    """
    check("gamma", gamma, 0 <= gamma <= 1, "in [0, 1]")
    check_choice("per", per, get_args(Per))
    check_choice("coin", coin, get_args(Coin))

    def found(p: Point, spans: Spans) -> Iterator[Secret]:
        if per == "value":
            place: tuple[str, ...] = ()
        else:
            place = (p.id,) if coin == "point" else (redact(p, spans).text,)
        return (s for s in spans if _uniform(seed, *place, p.text[s.start : s.end]) >= gamma)

    made = _changed(policy, found)
    name = f"{made.name} (misses {gamma:g} per {per})"
    by_id = gamma > 0 and per == "occurrence" and coin == "point"
    return replace(made, name=name, total=False, reads_ids=made.reads_ids or by_id)


# --------------------------------------------------------------------------- unions
def union(*parts: Flag) -> Policy:
    """Flags what any of ``parts`` flags; spans that touch or overlap become one.

    A span has the kind of the first part, in the order given, that has a share in it.
    """
    check("parts", len(parts), bool(parts), "at least one policy")
    policies = [checked(policy) for policy in parts]
    return Policy(
        "+".join(p.name for p in policies),
        lambda points: map(merged, zip(*(policy(points) for policy in policies), strict=True)),
        learned=any(p.learned for p in policies),
        taught_by=tuple(t for p in policies for t in p.taught_by),
        total=any(p.total for p in policies),
        batched=True,
        reads_ids=any(p.reads_ids for p in policies),
    )


# --------------------------------------------------------------------------- whole turns
def whole_turns(policy: Flag) -> Policy:
    """Flags the whole of each turn of which ``policy`` flags anything, or that holds a ``<MASK>``.

    A turn with a secret and the same with a mask in its place then both become one mask, whatever
    ``policy`` says of the words around: a secret leaves a trace only where nothing in its turn is
    flagged. The price is the rest of these turns, which nothing is learned from.

    >>> from crtlib.text.records import Point
    >>> [redact(p, whole_turns(regex("customersim"))([p])[0]).text
    ...  for p in (Point("0", "u", "I am Ada Lovelace."), Point("1", "u", "I am <MASK>."))]
    ['<MASK>', '<MASK>']
    """

    def found(p: Point, spans: Spans) -> Spans:
        turns = [Secret("turn", a, b) for a, b in spoken(p) if a < b]
        hit = overlaps(turns, merged([spans, masks(p.text)]))
        return merged([spans, list(dict.fromkeys(turn for turn, _ in hit))])

    made = _changed(policy, found)
    return replace(made, name=f"{made.name}+whole_turns")


# --------------------------------------------------------------------------- of one's own
SHORTEST = 3
"""Characters of the shortest value to look for."""

COMMON = 0.01
"""A value that stands in more than this share of the turns is warned of, by its row."""


# --------------------------------------------------------------------------- both sides alike
_ALIKE = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bc`\u00b4", "'"),
    "\u0131": "i",
    "\u0640": "",  # lengthens an Arabic word
}
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)
"""Scripts in which a word is written to the next one, or to what bends it."""


@lru_cache(maxsize=2**14)
def _normal(char: str) -> str:
    """One character as it is compared; nothing for what is dropped, " " for white space."""
    if char in _ALIKE:
        return _ALIKE[char]
    if char.isspace():
        return " "
    if unicodedata.category(char) == "Cf":  # not seen: of no width, or a direction
        return ""
    parts = (c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))
    folded = unicodedata.normalize("NFKD", "".join(parts).casefold())
    return "".join(str(unicodedata.decimal(c, "")) or c for c in folded)


def _normalised(text: str) -> tuple[str, list[int]]:
    """The text as it is compared, and from which character each of its characters comes."""
    chars: list[str] = []
    at: list[int] = []
    for i, char in enumerate(text):
        for c in _normal(char):
            if c == " " and chars and chars[-1] == " ":
                continue
            chars.append(c)
            at.append(i)
    return "".join(chars), at


_BETWEEN = re.compile(r"(?<=\d)[ .\-/()_·•]{1,3}(?=\d)")


def _compact(text: str, at: list[int]) -> tuple[str, list[int]]:
    """The same without the signs that people write between the digits of a number."""
    pieces, places, last = [], [], 0
    for m in _BETWEEN.finditer(text):
        pieces.append(text[last : m.start()])
        places += at[last : m.start()]
        last = m.end()
    return "".join([*pieces, text[last:]]), places + at[last:]


def entry(value: str) -> tuple[str, bool]:
    """A value as it is sought, and whether in the text without signs between digits."""
    text, at = _normalised(value)
    number = sum(c.isdigit() for c in text) >= 4
    if number:
        text, _ = _compact(text, at)
    inside = re.search(r"[^\W_](?:.*[^\W_])?", text, re.DOTALL)
    return (inside[0] if inside else ""), number


# --------------------------------------------------------------------------- lists of values
@dataclass(frozen=True)
class Listed:
    """A value to look for, its kind, and in which row of its file it stands."""

    value: str = field(repr=False)
    kind: str
    number: int


def table(path: Path, where: str) -> pd.DataFrame:
    """A CSV or Parquet file as texts, or a text file, a line each, as the column ``secret``. Raises
    ``ValueError``, which begins with ``where`` and quotes nothing of it."""
    import pandas as pd

    if not path.is_file():
        raise ValueError(f"{where}: no such file")
    if path.suffix not in (".txt", ".csv", ".parquet"):
        raise ValueError(f"{where}: must be a .txt, .csv or .parquet file")
    try:
        if path.suffix == ".txt":
            return pd.DataFrame({"secret": path.read_text(encoding="utf-8-sig").splitlines()})
        if path.suffix == ".parquet":
            return pd.read_parquet(path).fillna("").astype(str)
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except Exception as error:  # pandas and pyarrow raise a dozen kinds, and may quote the file
        raise ValueError(f"{where}: cannot be read ({type(error).__name__})") from None


def _within(beside: str, edge: str) -> bool:
    """Whether the character ``beside`` one at the edge of a value makes it a part of a word."""
    return beside.isalnum() and not _UNSPACED.match(edge)


class Finder:
    """Of a text, the spans that some values have in it, the longest first, and the numbers of the
    rows that they are of; ``file`` is for errors."""

    def __init__(self, file: str, rows: Iterable[Listed]) -> None:
        # One for values sought as they are, one for those sought without signs.
        self.automata = ahocorasick.Automaton(), ahocorasick.Automaton()
        for row in rows:
            sought, number = entry(row.value)
            if len(sought) < SHORTEST:
                raise ValueError(
                    f"{file}, row {row.number}: is too short to look for; {len(sought)} characters"
                )
            if sought in self.automata[number]:
                self.automata[number].get(sought)[2].append(row.number)
            else:
                self.automata[number].add_word(sought, (len(sought), row.kind, [row.number]))
        for automaton in self.automata:
            automaton.make_automaton()

    def __call__(self, text: str) -> tuple[list[Spans], set[int]]:
        normal, at = _normalised(text)
        forms = [(normal, at), _compact(normal, at) if len(self.automata[1]) else ("", [])]
        spans: list[Secret] = []
        found = set[int]()
        for automaton, (form, places) in zip(self.automata, forms, strict=True):
            for last, (length, kind, numbers) in automaton.iter(form) if len(automaton) else ():
                start, end = places[last - length + 1], places[last] + 1
                before, after = text[max(0, start - 1) : start], text[end : end + 1]
                if _within(before, text[start]) or _within(after, text[end - 1]):
                    continue
                while end < len(text) and unicodedata.combining(text[end]):
                    end += 1  # the accent of the last letter
                spans.append(Secret(kind, start, end))
                found.update(numbers)
        spans.sort(key=lambda s: s.start - s.end)
        return [(s,) for s in spans], found


def listed(file: str) -> Policy:
    """Flags the values of a ``.txt`` (one a line), or of the column ``secret`` of a ``.csv`` or
    ``.parquet``, however their case, accents, dashes and spaces are written.

    Other columns that count: ``kind``; ``parts``, where "yes" also looks for each word of at least
    three letters.

    Both sides are normalised one character at a time, so that places are kept. A value with four
    digits or more is found with up to three signs between two of its digits. What stands right
    before and after a match must be neither letter nor digit. All values are sought at once
    (Aho and Corasick 1975): twice as many take no longer. Raises ``ValueError`` without quoting a
    value.
    """
    path, where = Path(file), f"policy='list:{file}'"
    cells = table(path, where)
    if "secret" not in cells:
        raise ValueError(f"{where}: .csv and .parquet need a column secret")
    rows = []
    for number, row in enumerate(cells.to_dict("records"), 1 + (path.suffix == ".csv")):
        values = [row["secret"]] * bool(row["secret"].strip())
        if values and row.get("parts", "").strip().lower() in ("yes", "true", "1"):
            values += re.findall(r"[^\W\d_]{3,}", row["secret"])
        rows += [Listed(value, row.get("kind") or "listed", number) for value in values]
    if not rows:
        raise ValueError(f"{where}: holds no value")
    find = Finder(file, rows)

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        hits: Counter[int] = Counter()
        for p in points:
            spans, found = find(p.text)
            yield merged(spans)
            hits.update(found)
        for number, count in hits.items():
            if len(points) >= 100 and count > COMMON * len(points):
                says = f"stands in {100 * count / len(points):.1f} % of the turns"
                warnings.warn(f"{file}, row {number}: {says}", stacklevel=2)

    return Policy(f"list:{file}", flag, own_words=True, batched=True)


# --------------------------------------------------------------------------- expressions
SECONDS = 5.0
"""An expression may take so long on a turn, and five microseconds more for each character."""


class _Table(BaseModel, extra="forbid", strict=True):
    """One kind of a file of expressions."""

    pattern: str
    flags: str = Field("", pattern="^[ix]*$")
    examples: list[str] = []
    excluded: list[str] = Field([], alias="not")


_RULES = {
    "pattern": "must be a text",
    "flags": "must be of i and x",
    "examples": "must be a list of texts",
    "not": "must be a list of texts",
}


def _expression(where: str, kind: str, value: object) -> Callable[[str, str], list[Secret]]:
    """What one table of a file of expressions finds in a text, which is called so in errors.
    ``ValueError`` says what is wrong with the table."""

    def wrong(key: str, why: str) -> ValueError:
        return ValueError(f"{where}, [{kind}] {key}: {why}")

    def spans(text: str, turn: str) -> list[Secret]:
        """Raises ``ValueError`` where that takes too long: an expression may take exponential
        time, whatever it looks like."""
        seconds = SECONDS + 5e-6 * len(text)
        try:
            found = [(m[group], *m.span(group)) for m in pattern.finditer(text, timeout=seconds)]
        except TimeoutError:
            raise Unanswered(
                f"{where}, [{kind}] pattern: takes longer than {seconds:.0f} s on "
                f"{turn}; let no two repeats match the same characters"
            ) from None
        return [Secret(kind, a, b) for said, a, b in found if a < b and said not in excluded]

    try:
        table = _Table.model_validate(value)
    except ValidationError as error:
        key = str((*error.errors()[0]["loc"], "pattern")[0])
        why = _RULES.get(key, f"must be one of {', '.join(_RULES)}")
        raise wrong(key, why) from None
    excluded = frozenset(table.excluded)
    try:
        bits = sum(regular.RegexFlag[flag.upper()] for flag in set(table.flags))
        pattern = regular.compile(table.pattern, bits)
        group = "secret" if "secret" in pattern.groupindex else 0
        if pattern.match("", timeout=SECONDS):
            raise wrong("pattern", "matches the empty text")
        for number, example in enumerate(table.examples, 1):
            whole = pattern.fullmatch(example, timeout=SECONDS)
            if not whole or not spans(example, f"example {number}"):
                raise wrong("examples", f"number {number} does not match whole")
    except (regular.error, RecursionError, OverflowError) as error:
        raise wrong("pattern", f"is no regular expression ({error})") from None
    except TimeoutError:
        raise wrong("pattern", f"takes longer than {SECONDS:.0f} s on its examples") from None
    return spans


def expressions(file: str) -> Policy:
    """Flags what the expressions of a TOML file match: one table a kind.

    ``pattern`` is a regular expression as of the package ``regex``, which reads those of ``re``;
    the span is the group ``secret`` if there is one. ``flags`` of i and x, ``examples`` that must
    match whole, ``not``: values that are no secrets. An expression that takes longer than
    ``SECONDS`` on a turn ends the call with a ``ValueError`` that names both.
    """
    where = Path(file).name
    if not Path(file).is_file():
        raise ValueError(f"policy='regex:{file}': no such file")
    try:
        tables = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"policy='regex:{file}': is no TOML ({type(error).__name__})") from None
    if not tables:
        raise ValueError(f"policy='regex:{file}': holds no table")
    made = [_expression(where, *item) for item in tables.items()]

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        for k, p in enumerate(points, 1):
            yield merged([spans(p.text, f"turn {k}") for spans in made])

    return Policy(f"regex:{file}", flag, own_words=True, batched=True)


def either(argument: str) -> Policy:
    """What ``regex:`` names: a file of expressions, or a corpus."""
    return expressions(argument) if argument.endswith(".toml") else regex(argument)


# --------------------------------------------------------------------------- whatever is not plain
RANKS = 5_000
"""A word is rare beyond this rank of the list."""

_SIGNS = re.compile(
    rf"(?P<mask>{re.escape(MASK)})"
    r"|(?P<address>(?:https?://|www\.)[^\s<>]+"  # a URL, an e-mail address, a @name, a domain
    r"|[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}|@\w+"
    r"|\w[\w-]{0,62}(?:\.\w[\w-]{0,62}){0,8}\.(?:com|org|net|edu|gov|io|info|co|uk|de|eu|us)\b)"
    r"|(?P<word>\w+(?:['’]\w+|(?<=\d)[.,:/-]\d\w*)*)"
    r"|(?P<stop>[.!?:\n])"
)
_ENDINGS = {"s", "t", "d", "m", "ll", "re", "ve", "em", "n"}  # what stands after an apostrophe


@lru_cache(maxsize=4)
def common_words(file: str = "") -> frozenset[str]:
    """The first 5,000 words of ``file``, one a line, or of the list that comes with the library.

    Lines that begin with ``#`` are comments. ``words.txt`` is the ranking of wordfreq without the
    words that WikiText-2 writes with a capital: text of nobody whom a corpus is about. Raises
    ``ValueError`` where there is no file, or no word in it.
    """
    try:
        path = Path(file) if file else resources.files(__package__) / "words.txt"
        if not path.is_file():  # a pipe would be waited for
            raise OSError
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ValueError(f"policy='cautious:{file}': is no readable file of words") from None
    listed = [line.strip().lower().replace("’", "'") for line in lines]
    words = [w for w in listed if w and not w.startswith("#")]
    check(f"policy='cautious:{file}', words", len(words), bool(words), "at least 1")
    return frozenset(words[:RANKS])


def _kind(token: str, starts: bool, common: frozenset[str]) -> str:
    """Of what kind a word is that may not be plain; "" where it is plain."""
    if not token.isalpha() and any(c.isdecimal() for c in token):
        return "number"
    lower = token.lower().replace("’", "'")
    stem = lower.split("'")
    if stem[0] == "i":  # I, I'm
        return ""
    if not starts and token != lower and any(c.isupper() for c in token):
        return "capital"
    if lower in common or (stem[0] in common and all(e in _ENDINGS for e in stem[1:])):
        return ""
    return "rare"


def _bold(common: frozenset[str], p: Point) -> list[Secret]:
    """Flagged tokens; those with nothing but spaces between them are one span."""
    spans: list[Secret] = []
    starts = True
    for m in _SIGNS.finditer(p.text):
        group = m.lastgroup
        kind = _kind(m[0], starts, common) if group == "word" else group
        starts = group == "stop"
        if kind not in ("address", "number", "capital", "rare"):
            continue
        if spans and not p.text[spans[-1].end : m.start()].strip(" "):
            spans[-1] = replace(spans[-1], end=m.end())
        else:
            spans.append(Secret(kind, *m.span()))
    return spans


def cautious(words: str = "") -> Policy:
    """Flags each token with a digit, each with a capital that does not start a sentence, each
    e-mail address, URL or @name, and each word beyond the first 5,000 of ``words``.

    A sentence starts with the turn, and after ``.``, ``!``, ``?``, ``:`` or a line break; "I" is
    no capital. It reads one turn and nothing else, so masking one secret changes no label
    elsewhere but for words right beside it. ``words``: a file of your own, frequent words first,
    that was not made from the text which is screened: a word's frequency there follows from each
    message that says it, so one message would decide what is flagged in others.
    """
    name = f"cautious:{words}" if words else "cautious"
    found = partial(_bold, common_words(words))
    return Policy(name, partial(map, found), own_words=True)


# --------------------------------------------------------------------------- Presidio
SPACY_MODELS = tuple(f"en_core_web_{size}" for size in ("trf", "lg", "md", "sm"))
"""English models of spaCy, the largest first."""


def _engine(policy: str, model: str) -> Any:
    """Presidio's engine on a spaCy model that is installed: ``model``, or the largest."""
    if util.find_spec("presidio_analyzer") is None:
        raise ValueError(
            f"policy={policy!r}: needs the package presidio_analyzer: pip install presidio-analyzer"
        )
    packages = ("spacy", "presidio_analyzer", "presidio_analyzer.nlp_engine")
    spacy, analyzer, nlp = map(import_module, packages)
    wanted = (model,) if model else SPACY_MODELS
    here = [name for name in wanted if spacy.util.is_package(name)]
    if not here:
        raise ValueError(
            f"policy={policy!r}: needs a language model: python -m spacy download {wanted[0]}"
        )
    models = [{"lang_code": "en", "model_name": here[0]}]
    how = {"nlp_engine_name": "spacy", "models": models}
    provider = nlp.NlpEngineProvider(nlp_configuration=how)
    return analyzer.AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=["en"])


def presidio(model: str = "", *, engine: Any = None) -> Policy:
    """Flags the words in which Microsoft's Presidio, in English, finds something with a score of
    at least 0.3 (CRT, A.4), on a spaCy ``model`` that is installed (the largest of
    ``SPACY_MODELS`` by default); ``engine`` is an ``AnalyzerEngine`` of your own.

    It gets the turn's own words, without the speaker: to Presidio "USR" is an organisation."""
    name = f"presidio:{model}" if model else "presidio"
    engine = engine or _engine(name, model)

    def found(p: Point) -> Spans:
        whole = []
        for r in engine.analyze(text=p.text, language="en", score_threshold=THRESHOLD):
            touched = [at for at in words(p.text) if at[0] < r.end and r.start < at[1]]
            if touched:
                whole.append([Secret(r.entity_type, touched[0][0], touched[-1][1])])
        return merged(whole)

    return Policy(name, partial(map, found), learned=True, own_words=True)


# --------------------------------------------------------------------------- of a screened folder
def private_part(folder: str) -> Policy:
    """As pi_c on a screened folder: flags its private points, so that its split stays.

    They are read again as dialogues of one turn, which are called as their rows are; where people
    are the unit a point is called as its user."""
    by_user = folders.summary(folder)["unit"] == "user"
    private = frozenset(row["user" if by_user else "id"] for row in folders.rows(folder, "private"))

    def found(p: Point) -> Spans:
        apart = p.text and (p.user if by_user else p.thread) in private
        return (Secret("private", 0, len(p.text)),) if apart else ()

    return Policy(f"screened:{Path(folder).name}", partial(map, found), reads_ids=True)


# --------------------------------------------------------------------------- by name
def _tagger(folder: str) -> Policy:
    from crtlib.screening import tagger  # it needs torch, as the three below

    return tagger.by_folder(folder)


def _tagger_conservative(folder: str) -> Policy:
    from crtlib.screening import tagger

    return tagger.conservative_by_folder(folder)


def _ner(model: str) -> Policy:
    from crtlib.screening import tagger

    return tagger.ner(model)


def _ner_conservative(model: str) -> Policy:
    from crtlib.screening import tagger

    return tagger.ner_conservative(model)


GROUP = "crtlib.policies"
"""The entry point group through which an installed package adds policies."""

_OURS = {
    maker.name: maker
    for maker in (
        Maker("oracle", "", lambda _: oracle),
        Maker("none", "", lambda _: none),
        Maker("everything", "", lambda _: everything),
        Maker("whole_turns", "", lambda _: whole_turns(none)),
        Maker("regex", ":CORPUS or :FILE.toml", either),
        Maker("list", ":FILE", listed),
        Maker("cautious", "[:WORDS]", cautious),
        Maker("screened", ":FOLDER", private_part),
        Maker("tagger", ":FOLDER", _tagger, learned=True),
        Maker("tagger_conservative", ":FOLDER", _tagger_conservative, learned=True),
        Maker("ner", ":MODEL", _ner, learned=True),
        Maker("ner_conservative", ":MODEL", _ner_conservative, learned=True),
        Maker("presidio", "[:SPACY_MODEL]", presidio, learned=True),
    )
}
"""What the library makes by name; no name of theirs can be taken by another package."""


def known() -> dict[str, str]:
    """Each name a policy can have, and what it takes: ours, registered, of installed packages.

    >>> known()["list"]
    ':FILE'
    """
    names = {e.name: "[:...]" for e in entry_points(group=GROUP)}
    names |= {m.name: m.takes for m in MAKERS.values()}
    return names | {name: maker.takes for name, maker in _OURS.items()}


def policy_by_name(name: str, corpus: str | None = None) -> Policy:
    """The policy called ``name``: parts joined by ``+``, each one of ``known()``.

    ``ValueError`` says in one line what is allowed. ``regex:CORPUS`` looks for the shapes of that
    corpus' secrets, ``regex`` alone for those of ``corpus`` where the caller names one. Names that
    end in ``_conservative`` also flag plain text with a score under 0.9 (A.4). A ``+`` inside a
    path is written ``%2B``, a ``%`` ``%25``. The part ``whole_turns`` is what is done with what the
    others flag (:func:`crtlib.screening.policies.whole_turns`).
    """
    whole = ("whole_turns", "")
    made = [_made(*part, name, corpus) for part in parts(name) if part != whole]
    joined = made[0] if len(made) == 1 else union(*made or [none])
    return whole_turns(joined) if whole in parts(name) else joined


def parts(name: str) -> Iterator[tuple[str, str]]:
    """Of each part its kind and what it takes, as it was before it was written.

    >>> list(parts("cautious+list:a%2Bb.csv"))
    [('cautious', ''), ('list', 'a+b.csv')]
    """
    for part in name.split("+"):
        kind, _, written = part.partition(":")
        argument = written.replace("%2B", "+").replace("%25", "%")
        yield kind, argument


def _made(kind: str, argument: str, name: str, corpus: str | None) -> Policy:
    if kind == "regex" and not argument:
        if corpus is None:
            raise ValueError(
                f"policy={name!r}: regex must say whose; regex:customersim or regex:FILE.toml"
            )
        argument = corpus
    maker = _maker(kind)
    if maker is None or (argument and not maker.takes) or (not argument and maker.takes[:1] == ":"):
        allowed = ", ".join(f"{kind}{takes}" for kind, takes in known().items())
        near = difflib.get_close_matches(kind, known(), 1)
        told = f":{argument}" if argument else ""
        hint = f"; did you mean {near[0]}{told}?" if near and near[0] != kind else ""
        raise ValueError(f"policy={name!r}: must be one of {allowed}, joined by +{hint}")
    return checked(maker.make(argument))


def _maker(kind: str) -> Maker | None:
    if kind in _OURS:
        return _OURS[kind]
    if kind not in MAKERS:
        for e in entry_points(group=GROUP, name=kind):
            return Maker(kind, "[:...]", e.load())
    return MAKERS.get(kind)


def learned(name: str) -> bool:
    """Whether a part of ``name`` is taught from labels, so that only other labels may judge it.

    >>> learned("regex:multiwoz+cautious"), learned("tagger")
    (False, True)
    """
    for kind, argument in parts(name):
        if kind == "screened" and argument:  # as the policies were that screened it
            before = folders.summary(argument)
            if learned(before["policy"]) or learned(before["conservative"]):
                return True
        maker = _maker(kind)
        if maker is not None and maker.learned:
            return True
    return False


def ours(part: str) -> bool:
    """Whether a part of a policy's name is this library's own, and not another package's."""
    return part.partition(":")[0] in _OURS


def brought(name: str) -> tuple[str, ...]:
    """The parts of ``name``, as :func:`plain` shows them, that decide by what their user brought: a
    file or folder, a model, or code of another package. Nobody here can tell whether that was made
    from the text that they screen, where one message may then decide how others are read. What
    comes with this library was not; a tagger says itself what taught it.

    >>> brought("list:/home/ann/names.txt+regex:customersim+cautious+tagger:T")
    ('list:names.txt',)
    """
    own = ("tagger", "tagger_conservative")
    ships = {"regex": SHAPES, "presidio": SPACY_MODELS}
    return tuple(
        dict.fromkeys(
            plain(part)
            for part in name.split("+")
            for kind, argument in parts(part)
            if kind not in own
            and (kind not in _OURS or (argument and argument not in ships.get(kind, ())))
        )
    )


def plain(name: str) -> str:
    """``name`` without the folders of its files: what may be shown.

    >>> plain("list:/home/ann/customers.csv+cautious")
    'list:customers.csv+cautious'
    """
    split = [part.partition(":") for part in name.split("+")]
    return "+".join(kind + sign + argument.rpartition("/")[2] for kind, sign, argument in split)


def digest(name: str) -> str:
    """SHA-256 of a policy: of its name, and of what its files and folders hold.

    >>> digest("cautious") == digest("everything")
    False
    """
    hashes = []
    for kind, argument in parts(name):
        path = Path(argument)
        known = bool(argument) and path.exists()  # without one it would be the current folder
        if known:
            files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        made = "" if kind in _OURS else _code(kind)  # another package's is another in each version
        hashes.append(f"{kind}:{records.digest(files) if known else argument}{made}")
    return hashlib.sha256("+".join(hashes).encode()).hexdigest()


def _code(kind: str) -> str:
    """SHA-256 of all files of the package that makes policies, or of the one file that does."""
    maker = _maker(kind)
    source_file = maker and inspect.getsourcefile(inspect.unwrap(maker.make))
    file = Path(source_file or "nowhere")
    whole = (file.parent / "__init__.py").is_file()
    files = sorted(file.parent.rglob("*")) if whole else [file]
    return records.digest([p for p in files if p.is_file() and "__pycache__" not in p.parts])


def of_a_file(part: str) -> bool:
    """Whether a part of a policy is read from a file or folder of somebody's own, or is his code,
    that does not say what taught it, as a tagger does."""
    ((kind, argument),) = parts(part)
    known = kind in ("tagger", "tagger_conservative")
    own = bool(argument) and Path(argument).exists()
    return not known and (own or kind not in _OURS)


def check_same(names: Iterable[str], shas: Iterable[str]) -> None:
    """Raise :class:`MachineError` where a policy's files are not those whose hash was taken: all
    workers must flag alike."""
    for name, sha in zip(names, shas, strict=True):
        if digest(name) != sha:
            raise MachineError(
                f"policy={plain(name)!r}: is another one now, or where a worker reads it; what was "
                "finished is kept: give all workers the same files"
            )
