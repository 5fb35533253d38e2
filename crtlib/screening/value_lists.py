"""Policies from a list of values: they flag each value wherever it occurs, however written."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import ahocorasick
import pandas as pd
import pyarrow.parquet as pq
import regex as regular

from crtlib import files
from crtlib.checks import find_repeated_name
from crtlib.intervals import count_of
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import Spans, merge_spans
from crtlib.text.encodings import describe_recoding
from crtlib.text.identity import without_unseen_marks
from crtlib.text.records import Point, Secret

# --------------------------------------------------------------------------- limits and names
MIN_VALUE_CHARACTERS = 3
"""Characters of the shortest value to look for."""

MAX_VALUE_CHARACTERS = 100_000
"""Characters of the longest value: freeing the automaton recurses once for each character."""

COMMON_VALUE_SHARE = 0.01
"""A warning names the row of a value that occurs in more than this share of the turns."""
MOST_ROWS_TOLD = 3
"""The most rows that a warning names: those whose values occur in most turns."""
LIST_SUFFIXES = (".txt", ".csv", ".parquet")
"""The suffixes of files with a list of values."""


PEOPLE_COLUMNS = {
    "name": "name names fullname firstname lastname surname givenname familyname nachname vorname "
    "nom prenom nombre apellido apellidos nome cognome sobrenome apelido naam voornaam achternaam "
    "imie nazwisko kunde customer client cliente contact contactname customername kundenname",
    "phone": "phone telephone mobile cell phonenumber mobilephone telefon telefonnummer handy "
    "mobil tel telefono movil cellulare telemovel telefone telefoon telefoonnummer komorka",
    "email": "email mail emailaddress emailadresse correo correoelectronico courriel",
    "address": "address street streetaddress adresse anschrift strasse direccion calle "
    "indirizzo via endereco rua morada adres straat ulica rue domicilio",
    "id": "iban account accountnumber kontonummer customerid customernumber customerno kundennr "
    "kundennummer clientid passport ssn dni nif taxid policynumber card cardnumber",
}
"""Names of the columns in a list of people, by kind, in lower case and without accents, "_", "-",
"." and spaces."""


# --------------------------------------------------------------------------- normal forms
_EQUIVALENT_CHARACTERS = {
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u2018\u2019\u201b\u02bc`\u00b4", "'"),
    "\u0131": "i",
    "\u0640": "",  # lengthens an Arabic word
}
UNSPACED_SCRIPTS = (
    "\u0590-\u08ff\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u1aaf\u3005-\u3007"
    "\u3021-\u31ff\u3400-\u9fff\ua960-\ua97f\ua9e0-\ua9ff\uaa60-\uaadf\uac00-\ud7ff\uf900-\ufaff"
    "\uff66-\uffdc\U00020000-\U0003ffff"
)
"""Scripts that write a word without a space before the next one or before its inflection, as a
character set of a regular expression: Hebrew, Arabic and related scripts, Thai, Lao, Tibetan,
Burmese, Khmer, Hangul, Kana and Han."""
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED_SCRIPTS}]")

_ORDINAL_SIGNS = "\u00aa\u00ba"  # as in "N\u00ba 5"
_DIGIT_SEPARATORS = re.compile(r"(?<=\d)[ .\-/()_·•]{1,3}(?=\d)")


@lru_cache(maxsize=2**14)
def _normalise_character(char: str) -> str:
    """One character as it is compared; empty if it is dropped, " " for white space."""
    if char in _EQUIVALENT_CHARACTERS:
        return _EQUIVALENT_CHARACTERS[char]
    if char.isspace():
        return " "
    if not without_unseen_marks(char):
        return ""
    parts = (c for c in unicodedata.normalize("NFKD", char) if not _is_accent(c))
    folded = unicodedata.normalize("NFKD", "".join(parts).casefold())
    return "".join(
        str(unicodedata.decimal(c, "")) or _EQUIVALENT_CHARACTERS.get(c, c) for c in folded
    )


def _is_accent(char: str) -> bool:
    """Whether a character is an accent, or encloses the one before it as a keycap does."""
    return bool(unicodedata.combining(char)) or unicodedata.category(char) == "Me"


_ASCII_AS_COMPARED = {code: _normalise_character(chr(code)) for code in range(128)}
"""How each ASCII character is compared; an empty text leaves it out."""


def _normalise_with_places(text: str) -> tuple[str, list[int]]:
    """The text as it is compared, and for each of its characters the place in ``text``."""
    if text.isascii():
        normal = text.translate(_ASCII_AS_COMPARED)
        if "  " not in normal and len(normal) == len(text):
            return normal, list(range(len(text)))
    chars: list[str] = []
    at: list[int] = []
    for i, char in enumerate(text):
        for c in _normalise_character(char):
            if c == " " and chars and chars[-1] == " ":
                continue
            chars.append(c)
            at.append(i)
    return "".join(chars), at


def _drop_digit_separators(text: str, at: list[int]) -> tuple[str, list[int]]:
    """A compared text and its places, without the signs that people write between digits."""
    pieces, places, last = [], [], 0
    for m in _DIGIT_SEPARATORS.finditer(text):
        pieces.append(text[last : m.start()])
        places += at[last : m.start()]
        last = m.end()
    return "".join([*pieces, text[last:]]), places + at[last:]


@lru_cache(maxsize=2**10)  # called twice for each labelled value
def search_form_of(value: str) -> tuple[str, bool]:
    """A value in the form that is searched for, and whether the text is searched without the signs
    between digits."""
    text, at = _normalise_with_places(value)
    is_number = sum(c.isdigit() for c in text) >= 4
    if is_number:
        text, _ = _drop_digit_separators(text, at)
    inside = re.search(r"[^\W_](?:.*[^\W_])?", text, re.DOTALL)
    return (inside[0] if inside else ""), is_number


# --------------------------------------------------------------------------- lists of values
@dataclass(frozen=True)
class ListedValue:
    """A value to look for, its kind, and the number of its row in its file."""

    value: str = field(repr=False)
    kind: str
    number: int


def read_value_table(path: Path, where: str) -> pd.DataFrame:
    """Read a CSV or Parquet file as texts, or the lines of a text file as the column ``secret``.
    The index has the numbers of the rows as a spreadsheet counts them, header and blank rows
    included.

    Raises ``ValueError``, which begins with ``where`` and quotes nothing from the file, also where
    two columns have one name or a row has another number of cells than the header.

    Guarantee:
        No value of a list is skipped in silence. Test:
        ``tests/text/test_names_that_stand_twice.py``.
    """
    if reason := files.why_not_regular(path):
        raise ValueError(f"{where}: {reason}")
    if path.suffix not in LIST_SUFFIXES:
        hint = f"; regex:{path} reads expressions" if path.suffix == ".toml" else ""
        raise ValueError(f"{where}: must be a .txt, .csv or .parquet file{hint}")
    try:
        if path.suffix == ".txt":
            lines = files.read_text(path, "utf-8-sig").splitlines()
            return pd.DataFrame({"secret": lines}, index=range(1, 1 + len(lines)))
        rows: list[tuple[int, list[str]]] = []
        if path.suffix == ".parquet":
            names = pq.read_schema(files.check_regular_file(path)).names
        else:
            raw = files.open_regular_file(path)
            with io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
                sign = max(",;\t|", key=file.readline(1 << 16).count)
                file.seek(0)
                numbered = enumerate(csv.reader(file, delimiter=sign, strict=True), 1)
                (_, names), *rows = [(number, row) for number, row in numbered if row]
        if not (both := find_repeated_name(names)) and path.suffix == ".parquet":
            table = pd.read_parquet(files.check_regular_file(path)).fillna("").astype(str)
            return table.set_axis(range(1, 1 + len(table)))
    except UnicodeDecodeError:
        raise ValueError(f"{where}: is not UTF-8; {describe_recoding(path)}") from None
    except Exception as error:  # pandas and pyarrow raise a dozen kinds, and may quote the file
        raise ValueError(f"{where}: cannot be read ({type(error).__name__})") from None
    if both:
        raise ValueError("{}: columns {} and {} have one name".format(where, *both))
    for number, row in rows:
        if len(row) != len(names):
            what = f"has {len(row)} cells, the header has {len(names)}"
            raise ValueError(f"{where}: row {number} {what}; a value with a separator needs quotes")
    numbers = [number for number, _ in rows]
    return pd.DataFrame([row for _, row in rows], columns=names, index=numbers, dtype=str)


def is_cut_inside_word(text: str, place: int) -> bool:
    """Whether a span that begins or ends at ``place`` cuts a word in two.

    >>> is_cut_inside_word("Annabel", 3), is_cut_inside_word("Ann Lee", 3)
    (True, False)
    >>> is_cut_inside_word("\u6211\u662f\u738b\u4f1f", 2)  # Chinese has no spaces
    False
    """
    if not 0 < place < len(text):
        return False
    before, after = text[place - 1], text[place]
    return _is_within_word(before, after) or _is_within_word(after, before)


def _is_within_word(beside: str, edge: str) -> bool:
    """Whether the character ``beside`` the ``edge`` of a value makes the value part of a longer
    word. It does not where one of the two is from a script without spaces, as in a sentence about a
    number, where it is a raised or circled number, or where the edge is a sign such as "@"."""
    if edge.isdecimal() and beside.isdecimal():  # in any script, a number ends with its digits
        return True
    unspaced = _UNSPACED_CHARACTER.match(edge) or _UNSPACED_CHARACTER.match(beside)
    is_part_of_word = _is_letter_or_digit(edge) or unicodedata.category(edge)[0] == "M"
    return is_part_of_word and _is_letter_or_digit(beside) and not unspaced


def _is_letter_or_digit(char: str) -> bool:
    return (char.isalpha() or char.isdecimal()) and char not in _ORDINAL_SIGNS


def find_as_written(value: str, text: str) -> Iterator[tuple[int, int]]:
    """The places of a value as it is written, unless it is part of a longer word or number there.

    >>> [list(find_as_written(x, y))
    ...  for x, y in (("12", "no. 12a"), ("12", "\\u7b2c12\\u53f7"), ("\\u7530", "\\u5c71\\u7530"))]
    [[], [(1, 3)], [(1, 2)]]
    """
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        before, after = text[max(0, start - 1) : start], text[end : end + 1]
        if not (_is_within_word(before, value[0]) or _is_within_word(after, value[-1])):
            yield start, end
        start = text.find(value, start + 1)


def _words_of_name(name: str) -> list[str]:
    """The words of a name that have at least three letters, with their accents and vowel signs.

    >>> _words_of_name("Nu\\u0303n\\u0303ez de la Cruz") == ["Nu\\u0303n\\u0303ez", "Cruz"]
    True
    """
    words: list[str] = regular.findall(r"(?:[^\W\d_\p{M}][\p{M}\p{Cf}]*){3,}", name)
    return words


def _values_of_people(cells: pd.DataFrame) -> list[ListedValue]:
    """The values of a list of people, as a CRM writes it (``name;phone;email``): also each word of
    at least three letters in a name. Values that are too short to look for are left out."""
    names = {column: _normalise_with_places(str(column))[0] for column in cells.columns}
    kinds = {
        column: kind
        for column, name in names.items()
        for kind, called in PEOPLE_COLUMNS.items()
        if re.sub(r"[_\-. ]", "", name) in called.split()
    }
    listed = []
    for number, row in zip(cells.index, cells.to_dict("records"), strict=True):
        for column, kind in kinds.items():
            values = [row[column]]
            if kind == "name":
                values += _words_of_name(row[column])
            listed += [
                ListedValue(value, kind, number)
                for value in dict.fromkeys(values)
                if len(search_form_of(value)[0]) >= MIN_VALUE_CHARACTERS
            ]
    return listed


class ValueFinder:
    """Finds the spans of some values in a text, the longest first, and the numbers of their rows;
    ``file`` is for error messages."""

    def __init__(self, file: str, rows: Iterable[ListedValue]) -> None:
        self._text_automaton = ahocorasick.Automaton()
        # Its values are searched for in the text without the signs between digits.
        self._number_automaton = ahocorasick.Automaton()
        for row in rows:
            sought, is_number = search_form_of(row.value)
            if len(sought) < MIN_VALUE_CHARACTERS:
                raise ValueError(
                    f"{file}, row {row.number}: is too short to look for; {len(sought)} characters"
                )
            if len(sought) > MAX_VALUE_CHARACTERS:
                raise ValueError(
                    f"{file}, row {row.number}: is too long to look for; at most "
                    f"{MAX_VALUE_CHARACTERS:,} characters"
                )
            automaton = self._number_automaton if is_number else self._text_automaton
            if sought in automaton:
                _, _, row_numbers = automaton.get(sought)
                row_numbers.append(row.number)
            else:
                automaton.add_word(sought, (len(sought), row.kind, [row.number]))
        self._text_automaton.make_automaton()
        self._number_automaton.make_automaton()

    def __call__(self, text: str) -> tuple[list[Spans], set[int]]:
        normal, at = _normalise_with_places(text)
        searches = []
        if len(self._text_automaton):
            searches.append((self._text_automaton, normal, at))
        if len(self._number_automaton):
            searches.append((self._number_automaton, *_drop_digit_separators(normal, at)))
        spans: list[Secret] = []
        row_numbers = set[int]()
        for automaton, form, places in searches:
            for last, (length, kind, numbers) in automaton.iter(form):
                start, end = places[last - length + 1], places[last] + 1
                before, after = text[max(0, start - 1) : start], text[end : end + 1]
                if _is_within_word(before, text[start]) or _is_within_word(after, text[end - 1]):
                    continue
                while end < len(text) and unicodedata.category(text[end])[0] == "M":
                    end += 1  # the accents and vowel signs of the last letter
                spans.append(Secret(kind, start, end))
                row_numbers.update(numbers)
        spans.sort(key=lambda s: s.start - s.end)
        return [(s,) for s in spans], row_numbers


def list_policy(file: str) -> Policy:
    """A policy that flags the values of a list, however case, accents, dashes and spaces are
    written.

    The list is a ``.txt`` file with one value a line, or the column ``secret`` of a ``.csv`` or
    ``.parquet`` file. A file without that column is read as a list of people
    (``name;phone;email``; ``PEOPLE_COLUMNS``). Two other columns count: ``kind``, and ``parts``,
    where "yes" makes it look for each word of at least three letters as well.

    Both the values and the text are normalised one character at a time, so that places are kept. A
    value with four digits or more is found with up to three signs between two of its digits. The
    characters right before and after a match must be neither letters nor digits, except in a script
    without spaces. All values are searched for at once (Aho and Corasick 1975), so twice as many
    take no longer. Raises ``ValueError`` without quoting a value.
    """
    path, where = Path(file), f"policy='list:{file}'"
    rows: list[ListedValue] = []
    cells = read_value_table(path, where)
    if "secret" not in cells:
        rows = _values_of_people(cells)
        if not rows:
            raise ValueError(
                f"{where}: .csv and .parquet need a column secret, or those of a list of people, "
                "such as name, phone, email"
            )
    numbered = zip(cells.index, cells.to_dict("records"), strict=True)
    for number, row in numbered if "secret" in cells else ():
        values = [row["secret"]] * bool(row["secret"].strip())
        if values and row.get("parts", "").strip().lower() in ("yes", "true", "1"):
            values += _words_of_name(row["secret"])
        rows += [ListedValue(value, row.get("kind") or "listed", number) for value in values]
    if not rows:
        raise ValueError(f"{where}: holds no value")
    find = ValueFinder(file, rows)

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        hits: Counter[int] = Counter()
        for p in points:
            spans, row_numbers = find(p.text)
            yield merge_spans(spans)
            hits.update(row_numbers)
        common = [n for n, count in hits.items() if count > COMMON_VALUE_SHARE * len(points)]
        if len(points) >= 100 and common:
            most = sorted(common, key=lambda number: (-hits[number], number))[:MOST_ROWS_TOLD]
            told = ", ".join(f"row {n} in {100 * hits[n] / len(points):.1f} %" for n in most)
            says = count_of(len(common), "row occurs", "rows occur")
            warnings.warn(
                f"{file}: {says} in more than {100 * COMMON_VALUE_SHARE:g} % of the turns "
                f"({told}{', ...' * (len(common) > len(most))}); a value that is also a common "
                "word masks much that is not secret",
                stacklevel=2,
            )

    return Policy(f"list:{file}", flag, own_words=True, batched=True)
