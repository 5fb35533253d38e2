"""Find names, addresses and organisations by lists in eight languages and by the words before them.

This is what a search can find before anybody has read anything. The lists are files beside this
module, ``names/LANGUAGE.toml``, from general knowledge. Words are compared without case and
accents. A name that is also a word ("ambiguous") counts only beside a title or another name, or
after words that introduce one. After a name without a capital, one word that is in no list still
belongs to the name. All lists are read together, since a help desk answers in several languages.

>>> text = "Hi, my name is josé núñez, 12 Mill Road. Frau Anna Lindner, Lange Straße 5. Nova GmbH"
>>> [text[s.start : s.end] for s in names_policy([Point("0", "u", text)])[0]]
['josé núñez', '12 Mill Road', 'Anna Lindner', 'Lange Straße 5', 'Nova GmbH']
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import resources

from crtlib.screening.cautious import common_words
from crtlib.screening.letter_folding import fold_text
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import merge_spans
from crtlib.text.package_data import read_package_file
from crtlib.text.records import Point, Secret

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt")
_LIST_FOLDER = resources.files("crtlib.screening") / "names"
_LETTERS = r"(?:[^\W\d_][\u0300-\u036f]*)+"  # accents may be characters of their own
_TOKEN = re.compile(rf"\d[\w/-]*|{_LETTERS}(?:[.'’-]+{_LETTERS})*|[^\w\s]|_")
_PARTICLES = frozenset((
    "al", "d", "da", "das", "de", "dei", "del", "della", "den", "der", "di", "do", "dos", "du", "e",
    "el", "la", "las", "le", "los", "of", "san", "sankt", "santa", "st", "te", "ten", "ter", "van",
    "vom", "von", "y", "zu",
))  # fmt: skip
_POSTCODE = re.compile(r"\d{5}|\d{2}-\d{3}|\d{4}-\d{3}|\d{4}|\d{4}[A-Z]{2}")
_BRITISH_CODE = re.compile(r"\b[A-Z]{1,2}\d[A-Z\d]? ?\d[ABD-HJLNP-UW-Z]{2}\b", re.IGNORECASE)
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
_MAX_NAME_WORDS, _MAX_STREET_WORDS = 5, 5
_SIGNS_BEFORE_A_NAME = frozenset((":", ",", "-", "é", "è"))
"""What may stand between a phrase that introduces a name and the name; "é" and "è" are "is", as in
"o meu nome é Ana" and "il mio nome è Ada"."""
_NO_CITY = frozenset(("eur", "euro", "euros", "usd", "dollar", "dollars", "pln"))


@dataclass(frozen=True)
class _Word:
    """A word, number or sign in a turn; ``is_first``: it begins a sentence."""

    start: int
    end: int
    text: str = field(repr=False)
    fold: str = field(repr=False)
    is_first: bool

    @property
    def is_capital(self) -> bool:
        return self.text[:1].isupper()

    @property
    def is_number(self) -> bool:
        return self.text[:1].isdecimal()

    @property
    def is_word(self) -> bool:
        return self.text[:1].isalpha()


def _split_into_words(text: str) -> list[_Word]:
    words: list[_Word] = []
    first = True
    for m in _TOKEN.finditer(text):
        words.append(_Word(*m.span(), m[0], fold_text(m[0]), first))
        first = m[0] in ".!?:" or "\n" in text[m.end() : m.end() + 2]
    return words


@dataclass(frozen=True)
class _Lists:
    """The lists of several languages, joined. ``sure`` are names that need no company; one that is
    also a ``common`` word needs a capital. ``ordinary_words`` are part of no
    name. ``phrases`` has, by
    their last word, the phrases that precede a name: their kind, and their words."""

    ordinary_words: frozenset[str]
    common: frozenset[str]
    sure: frozenset[str]
    ambiguous: frozenset[str]
    endings: tuple[str, ...]
    titles: frozenset[str]
    phrases: dict[str, list[tuple[str, tuple[str, ...]]]]
    streets: dict[str, frozenset[str]]
    street_endings: tuple[str, ...]
    units: frozenset[str]
    organisations: dict[str, frozenset[str]]


@lru_cache(maxsize=1)
def _read_lists() -> _Lists:
    tables = [tomllib.loads(read_package_file(f"{x}.toml", _LIST_FOLDER)) for x in LANGUAGES]

    def fold_words(section: str, key: str) -> frozenset[str]:
        words = " ".join(table[section].get(key, "") for table in tables).split()
        return frozenset(map(fold_text, words))

    phrases: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for kind in ("introductions", "closings", "openings"):
        texts = {x for table in tables for x in re.split(r"[|\n]+", table["name"][kind].strip())}
        for phrase in sorted((tuple(fold_text(x).split()) for x in texts), key=len, reverse=True):
            phrases.setdefault(phrase[-1], []).append((kind, phrase))

    ordinary_words = frozenset(
        fold_text(word) for table in tables for word in table["plain"].split()
    )
    given_names, family_names = fold_words("name", "given"), fold_words("name", "family")
    ambiguous = (
        fold_words("name", "ambiguous")
        | (family_names & common_words())
        | ((given_names | family_names) & ordinary_words)
    )
    return _Lists(
        ordinary_words=ordinary_words,
        common=ordinary_words | common_words(),
        sure=(given_names | family_names) - ambiguous,
        ambiguous=ambiguous,
        endings=tuple(fold_words("name", "family_endings")),
        titles=fold_words("name", "titles"),
        phrases=phrases,
        streets={k: fold_words("address", k) for k in (
            "street_first", "street_first_numbered", "street_last", "street_last_numbered"
        )},
        street_endings=tuple(fold_words("address", "street_endings")),
        units=fold_words("address", "unit"),
        organisations={
            k: fold_words("organisation", k) for k in ("before", "first", "last", "forms")
        },
    )  # fmt: skip


# --------------------------------------------------------------------------- one turn
class _Turn:
    """What the lists find in a turn: each search yields (first word, word after the last)."""

    def __init__(self, text: str, lists: _Lists) -> None:
        self.text, self.lists, self.words = text, lists, _split_into_words(text)

    def _word(self, index: int) -> _Word | None:
        return self.words[index] if 0 <= index < len(self.words) else None

    def _is_apart(self, index: int) -> bool:
        """Whether a line break, or a gap of more than two characters, is before word ``index``."""
        gap = self.text[self.words[index - 1].end : self.words[index].start] if index else ""
        return "\n" in gap or len(gap) > 2

    def _is_sure(self, w: _Word) -> bool:
        pieces = re.split("['-]", w.fold)
        if len(pieces) > 1:
            return all(piece in self.lists.sure for piece in pieces)
        if w.fold in self.lists.sure:
            return w.is_capital or w.fold not in self.lists.common
        is_long = len(w.fold) > 5 and w.fold.endswith(self.lists.endings)
        return is_long and w.is_capital and not w.is_first and w.fold not in self.lists.common

    def _is_possible(self, w: _Word) -> bool:
        """Whether a word may be a name if another name or a title is beside it."""
        if not w.is_word or w.fold in self.lists.ordinary_words:
            return False
        is_listed = w.fold in self.lists.ambiguous or w.fold in self.lists.sure
        return w.is_capital or is_listed or self._is_sure(w)

    def find_names(self) -> Iterator[tuple[int, int]]:
        for index, w in enumerate(self.words):
            if self._is_sure(w) or self._has_company(index, w):
                yield self._begin_of_name(index), self._end_of_name(index)
            elif first := self._after_title(index) or self._after_introducing_phrase(index):
                yield first, self._end_of_name(first)

    def _has_company(self, index: int, w: _Word) -> bool:
        """Whether word ``index`` is an ambiguous name beside another name, both with a capital."""
        if w.fold not in self.lists.ambiguous or not w.is_capital:
            return False
        neighbours = [self._word(index + 1)] if not self._ends_before(index + 1) else []
        neighbours += [self._word(index - 1)] if not self._ends_before(index) else []
        return any(
            n is not None and n.is_capital and (self._is_sure(n) or n.fold in self.lists.ambiguous)
            for n in neighbours
        )

    def _ends_before(self, index: int) -> bool:
        return not 0 < index < len(self.words) or self._is_apart(index)

    def _after_title(self, index: int) -> int | None:
        """The first word after a title at word ``index``, if a name can begin there."""
        if self.words[index].fold not in self.lists.titles:
            return None
        index += 1
        while (w := self._word(index)) and (w.text == "." or w.fold in self.lists.titles):
            index += 1
        next_index = self._after_particles(index) if w is not None else index
        w = self._word(next_index)
        if (
            w is None
            or not w.is_word
            or self._is_apart(index)
            or w.fold in self.lists.ordinary_words
        ):
            return None
        is_known_name = self._is_sure(w) or w.fold in self.lists.ambiguous
        return index if w.is_capital or is_known_name else None

    def _after_introducing_phrase(self, index: int) -> int | None:
        """The first word of a name after a phrase that ends with word ``index`` and introduces one,
        or may do so."""
        for kind, phrase in self.lists.phrases.get(self.words[index].fold, ()):
            first = index + 1 - len(phrase)
            if first >= 0 and phrase == tuple(w.fold for w in self.words[first : index + 1]):
                next_index = index + 1
                while (w := self._word(next_index)) and w.text in _SIGNS_BEFORE_A_NAME:
                    next_index += 1
                return (
                    next_index if w is not None and self._may_follow(next_index, w, kind) else None
                )
        return None

    def _may_follow(self, next_index: int, w: _Word, kind: str) -> bool:
        """Whether a word is a name after a phrase of this kind. After "my name is" it is any word
        that is not common, is a listed name or has a capital, and after "dear" any word with a
        capital. After "this is" it is a word with a capital that is an ambiguous name, or that a
        possible name with a capital follows. An ordinary word never is."""
        second = self._word(next_index + 1)
        if w.fold in _PARTICLES and second is not None:
            is_name = second.fold in _PARTICLES or second.is_capital
            return is_name and self._may_follow(next_index + 1, second, kind)
        if not w.is_word or w.fold in self.lists.ordinary_words:
            return False
        if kind == "introductions":
            return w.is_capital or w.fold not in self.lists.common or self._is_possible(w)
        if kind == "closings":
            return w.is_capital
        is_followed_by_name = second is not None and second.is_capital and self._is_possible(second)
        return w.is_capital and (w.fold in self.lists.ambiguous or is_followed_by_name)

    def _begin_of_name(self, index: int) -> int:
        """The first word of the name to which word ``index`` surely belongs."""
        while index and not self._is_apart(index) and (w := self.words[index - 1]).is_word:
            is_name = w.fold in self.lists.ambiguous or (w.is_capital and not w.is_first)
            if not w.is_capital or not is_name or w.fold in self.lists.ordinary_words:
                break
            if w.fold in self.lists.titles or w.fold in self.lists.organisations["first"]:
                break
            index -= 1
        return index

    def _end_of_name(self, index: int) -> int:
        """The end of the name that begins with word ``index``. Whoever writes that word without a
        capital writes the next one without a capital, too."""
        limit, has_guessed = index + _MAX_NAME_WORDS, self.words[index].is_capital
        index = self._after_particles(index) + 1
        while index < limit and (w := self._word(index)) and not self._is_apart(index):
            next_word = self._word(index + 1)
            after_particles = self._after_particles(index)
            if after_particles > index and self._is_possible(self.words[after_particles]):
                index = after_particles + 1
            elif self._is_possible(w):
                index += 2 if len(w.text) == 1 and next_word and next_word.text == "." else 1
            elif has_guessed or len(w.text) < 3 or not w.is_word or w.fold in self.lists.common:
                break
            else:
                index, has_guessed = index + 1, True
        return index

    def _after_particles(self, index: int) -> int:
        """The first word from ``index`` on that is not a particle."""
        next_index = index
        while (
            (w := self._word(next_index))
            and w.fold in _PARTICLES
            and not self._ends_before(next_index + 1)
        ):
            next_index += 1
        return next_index

    def _is_capital(self, index: int) -> bool:
        w = self._word(index)
        return w is not None and w.is_capital

    def find_addresses(self) -> Iterator[tuple[int, int]]:
        streets = self.lists.streets
        for index, w in enumerate(self.words):
            if w.fold in streets["street_last"] | streets["street_last_numbered"]:
                yield from self._end_with_street(index, w.fold in streets["street_last_numbered"])
            elif w.fold in streets["street_first"] | streets["street_first_numbered"]:
                if w.fold in self.lists.ordinary_words and not w.is_capital:
                    continue
                if end := self._end_of_street(index, w.fold in streets["street_first_numbered"]):
                    yield self._house_number_before(index), self._end_of_address(end)
            elif w.is_word and len(w.fold) > 6 and w.fold.endswith(self.lists.street_endings):
                house = index + 1 + (self._sign(index + 1) == ".")
                if w.fold not in self.lists.ordinary_words and self._is_number(house):
                    yield index, self._end_of_address(house + 1)
            elif w.is_number and (end := self._end_of_place(index)):
                yield index, end
            elif w.fold in self.lists.units and (number := self._number_of_flat(index)):
                yield self._begin_of_flat(index), self._end_of_address(number + 1)
        for m in _BRITISH_CODE.finditer(self.text):
            touched = [
                index
                for index, w in enumerate(self.words)
                if w.start < m.end() and m.start() < w.end
            ]
            yield touched[0], touched[-1] + 1

    def _sign(self, index: int) -> str:
        w = self._word(index)
        return w.text if w is not None and not w.is_word else ""

    def _is_number(self, index: int) -> bool:
        w = self._word(index)
        return w is not None and w.is_number

    def _end_with_street(self, index: int, asks_for_number: bool) -> Iterator[tuple[int, int]]:
        """The address whose street ends with word ``index``, if it has a number or a capital."""
        first = self._begin_of_street(index)
        has_number = self.words[first].is_number
        is_behind = not has_number and self._is_number(index + 1)
        is_named = first < index and self._is_capital(index) and not asks_for_number
        if (has_number and (self._is_capital(index) or not asks_for_number)) or (
            first < index and (is_behind or is_named)
        ):
            yield first, self._end_of_address(index + 1 + is_behind)

    def _number_of_flat(self, index: int) -> int | None:
        """The place of the number after "Apt." or a similar word."""
        next_index = index + 1
        while (w := self._word(next_index)) and w.text in ".#":
            next_index += 1
        return next_index if self._is_number(next_index) else None

    def _begin_of_flat(self, index: int) -> int:
        """The first word of the address of a flat: the number of a street, whatever its name."""
        first = index
        while first and index - first <= _MAX_STREET_WORDS and not self._is_apart(first):
            w = self.words[first - 1]
            if w.is_number:
                return first - 1
            if not (w.text == "," or (w.is_word and w.fold not in self.lists.ordinary_words)):
                break
            first -= 1
        return index

    def _begin_of_street(self, index: int) -> int:
        """The first word of the street that ends with word ``index``: its number, or a capital."""
        first = index
        while first and index - first < _MAX_STREET_WORDS and not self._is_apart(first):
            w = self.words[first - 1]
            if w.is_number and not _ORDINAL.fullmatch(w.fold):
                return first - 1 if first < index else index
            is_name = (
                self._is_capital_in_a_name(first - 1) or w.fold not in self.lists.ordinary_words
            )
            if not w.is_number and not (w.is_word and is_name):
                break
            first -= 1
        while first < index and self.words[first].is_word and not self._is_capital(first):
            first += 1
        return first

    def _end_of_street(self, index: int, asks_for_number: bool) -> int | None:
        """The end of the street that begins with word ``index``: after its number or capitals."""
        next_index = index + 1
        while (
            (w := self._word(next_index))
            and next_index - index <= _MAX_STREET_WORDS + 1
            and not self._is_apart(next_index)
        ):
            if w.is_number and next_index - index > 1:
                return next_index + 1
            is_sign = w.text in ".,/º°" or w.fold in ("n", "no", "nº", "num", "numero")
            if not (is_sign or w.fold in _PARTICLES or (w.is_word and w.is_capital)):
                break
            next_index += 1
        while next_index > index + 1 and not self.words[next_index - 1].is_capital:
            next_index -= 1
        return next_index if next_index > index + 1 and not asks_for_number else None

    def _house_number_before(self, index: int) -> int:
        first = index - 1 if index > 1 and self.words[index - 1].text == "," else index
        return first - 1 if first and self.words[first - 1].is_number else index

    def _end_of_address(self, index: int) -> int:
        """The end of an address: after the flat, the postcode and the place that follow a street
        which ends before word ``index``."""
        last, is_flat = index, False
        while w := self._word(index):
            if w.text in ",.#-" or w.fold in self.lists.units:
                is_flat |= w.text == "#" or w.fold in self.lists.units
                index += 1
            elif w.is_number and is_flat:
                index = last = index + 1
                is_flat = False
            elif w.is_number and (end := self._end_of_place(index)):
                return end
            elif _POSTCODE.fullmatch(w.text) or self._is_place_before_code(index):
                index = last = index + 1
            else:
                break
        return last

    def _is_place_before_code(self, index: int) -> bool:
        """Whether word ``index`` begins a place after a comma: capitals before a number, or at the
        end of a line."""
        if self.words[index - 1].text != "," or not self._is_capital(index):
            return False
        while (w := self._word(index)) and w.is_word and w.is_capital:
            index += 1
        return w is None or w.is_number or w.text in ",." or self._is_apart(index)

    def _end_of_place(self, index: int) -> int | None:
        """The end of the place whose postcode begins with word ``index``."""
        code = self.words[index].text
        if not _POSTCODE.fullmatch(code):
            return None
        is_dutch, next_index = code[:4].isdecimal() and len(code) in (4, 6), index + 1
        if len(code) == 4:
            if not (w := self._word(next_index)) or not re.fullmatch("[A-Z]{2}", w.text):
                return None
            next_index += 1
        first = next_index + (
            is_dutch and next_index < len(self.words) and self.words[next_index].text == ","
        )
        end = first
        while (w := self._word(end)) and end - first < 5 and not self._is_apart(end):
            is_name = (
                w.is_word and w.is_capital and w.fold not in self.lists.ordinary_words | _NO_CITY
            )
            if not (is_name or (w.fold in _PARTICLES and end > first)):
                break
            end += 1
        while end > first and not self.words[end - 1].is_capital:
            end -= 1
        return end if end > first else next_index if is_dutch else None

    def find_organisations(self) -> Iterator[tuple[int, int]]:
        kinds = self.lists.organisations
        for index, w in enumerate(self.words):
            end = self._end_of_capitals(index + 1)
            if w.fold in kinds["before"] and end > index + 1 and not self._is_apart(index + 1):
                yield index + 1, end
            if w.is_capital and w.fold in kinds["forms"] | kinds["last"]:
                first = index
                while (
                    first
                    and not self._is_apart(first)
                    and (self._is_capital_in_a_name(first - 1) or self._sign(first - 1) == "&")
                ):
                    first -= 1
                if first < index:
                    yield first, self._end_of_form(index)
            if w.is_capital and w.fold in kinds["first"] and end > index + 1:
                yield index, end

    def _end_of_form(self, index: int) -> int:
        """The end of the legal form at word ``index``: "GmbH & Co. KG", "Sp. z o.o."."""
        end = index + 1
        while (w := self._word(end)) and not self._is_apart(end):
            if w.text not in ".&/" and w.fold not in self.lists.organisations["forms"] | {"z", "a"}:
                break
            end += 1
        return end if self._sign(end - 1) in ("", ".") else end - 1

    def _end_of_capitals(self, index: int) -> int:
        """The end of the capitals that begin with word ``index``, with the words that join them."""
        next_index = index
        while (w := self._word(next_index)) and not self._is_apart(next_index):
            if not (
                w.fold in _PARTICLES or w.text == "&" or self._is_capital_in_a_name(next_index)
            ):
                break
            next_index += 1
        while next_index > index and not self.words[next_index - 1].is_capital:
            next_index -= 1
        return next_index

    def _is_capital_in_a_name(self, index: int) -> bool:
        w = self.words[index]
        is_other = w.fold in self.lists.organisations["before"] | self.lists.titles
        return (
            w.is_word and w.is_capital and not is_other and w.fold not in self.lists.ordinary_words
        )


def _flag_listed_names(lists: _Lists, p: Point) -> Iterable[Secret]:
    turn = _Turn(p.text, lists)
    searches = (
        ("address", turn.find_addresses), ("organisation", turn.find_organisations),
        ("name", turn.find_names),
    )  # fmt: skip
    return merge_spans([
        [Secret(kind, turn.words[a].start, turn.words[b - 1].end)]
        for kind, search in searches
        for a, b in search()
    ])  # fmt: skip


def _flag_points(points: Sequence[Point]) -> Iterator[Iterable[Secret]]:
    return map(partial(_flag_listed_names, _read_lists()), points)


names_policy = Policy("names", _flag_points, own_words=True)
"""Flags names, addresses and organisations in eight languages; it reads one turn, nothing else."""
