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
from crtlib.screening.letter_folding import FOLDED_ASCII, fold_character
from crtlib.screening.policy import Policy
from crtlib.screening.redaction import Spans, merge_spans
from crtlib.text.encodings import describe_recoding
from crtlib.text.records import Point, Secret

# --------------------------------------------------------------------------- limits and names
MIN_VALUE_CHARACTERS = 3
"""Characters of the shortest value to look for; see :func:`is_long_enough`."""

MAX_VALUE_CHARACTERS = 100_000
"""Characters of the longest value: freeing the automaton recurses once for each character."""

COMMON_VALUE_SHARE = 0.01
"""A warning names the row of a value that occurs in more than this share of the turns."""
MOST_ROWS_NAMED = 3
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
_SCRIPTS_WITHOUT_SPACES = UNSPACED_SCRIPTS.removeprefix("\u0590-\u08ff")
"""Those of them that separate no words: without Hebrew, Arabic and related scripts."""
_SPACE_OF_UNSPACED = re.compile(
    rf"(?<=[{_SCRIPTS_WITHOUT_SPACES}])[ ·\u30fb]{{1,3}}(?=[^\W_])"
    rf"|(?<=[^\W_])[ ·\u30fb]{{1,3}}(?!\u30fb)(?=[{_SCRIPTS_WITHOUT_SPACES}])"
)
_CODE_SEPARATORS = re.compile(r"(?<=[^\W_])[ .,:;~|+'/()_·•\u30fb]{1,3}(?=[^\W_])")
_DIGIT = re.compile(r"\d")
_DOUBLE_SIGNS = re.compile(
    r"[\u3005-\u3007\u3021-\u31ff\u3400-\u9fff\uac00-\ud7ff\uf900-\ufaff"
    r"\U00020000-\U0003ffff]"
)
_COMPARED_ASCII = FOLDED_ASCII | {ord("-"): " "}


def _normalise_with_places(text: str) -> tuple[str, list[int]]:
    """The text as it is compared, and for each of its characters the place in ``text``. A dash is a
    space, and beside a script without spaces there is none."""
    if text.isascii():
        normal = text.translate(_COMPARED_ASCII)
        if "  " not in normal and len(normal) == len(text):
            return normal, list(range(len(text)))
    chars: list[str] = []
    places: list[int] = []
    for i, char in enumerate(text):
        for folded in fold_character(char):
            c = " " if folded == "-" else folded
            if c == " " and chars and chars[-1] == " ":
                continue
            chars.append(c)
            places.append(i)
    normal = "".join(chars)
    if normal.isascii():
        return normal, places
    return _SPACE_OF_UNSPACED.sub("", normal), _places_without(_SPACE_OF_UNSPACED, normal, places)


def _places_without(signs: re.Pattern[str], text: str, all_places: list[int]) -> list[int]:
    """The places of the characters of a compared text that stay when some ``signs`` are dropped."""
    places, last = [], 0
    for m in signs.finditer(text):
        places += all_places[last : m.start()]
        last = m.end()
    return places + all_places[last:]


@lru_cache(maxsize=2**10)  # called twice for each labelled value
def search_form_of(value: str) -> tuple[str, bool]:
    """A value in the form that is searched for, and whether it is a code, which is searched for in
    the text without the signs between letters and digits: one with four digits, or with a digit
    among six letters and digits."""
    text, _ = _normalise_with_places(value)
    is_code = sum(c.isdigit() for c in text) >= 4 or (
        any(c.isdigit() for c in text) and sum(c.isalnum() for c in text) >= 6
    )
    if is_code:
        text = _CODE_SEPARATORS.sub("", text)
    core = re.search(r"[^\W_](?:.*[^\W_])?", text, re.DOTALL)
    return (core[0] if core else ""), is_code


def is_long_enough(value: str) -> bool:
    """Whether a value says enough to be looked for wherever it may stand: at least
    :data:`MIN_VALUE_CHARACTERS`, of which a sign of Chinese, Japanese or Korean counts as two.

    >>> [is_long_enough(value) for value in ("Al", "Ann", "\\u738b\\u4f1f", "\\u738b", "\\uae40")]
    [False, True, True, False, False]
    """
    return _measure(value) >= MIN_VALUE_CHARACTERS


def _measure(value: str) -> int:
    sought = unicodedata.normalize("NFC", search_form_of(value)[0])
    return len(sought) + len(_DOUBLE_SIGNS.findall(sought))


# --------------------------------------------------------------------------- lists of values
@dataclass(frozen=True)
class ListedValue:
    """A value to look for, its kind, and the number of its row in its file."""

    value: str = field(repr=False)
    kind: str
    number: int


def read_value_table(path: Path, label: str) -> pd.DataFrame:
    """Read a CSV or Parquet file as texts, or the lines of a text file as the column ``secret``.
    The index has the numbers of the rows as a spreadsheet counts them, header and blank rows
    included.

    Raises ``ValueError``, which begins with ``label`` and quotes nothing from the file, also where
    two columns have one name or a row has another number of cells than the header.

    Guarantee:
        No value of a list is skipped in silence. Tests:
        ``tests/text/test_names_that_stand_twice.py``,
        ``tests/screening/test_own_policies.py::test_what_is_too_short_to_look_for_is_counted``.
    """
    if reason := files.why_not_regular(path):
        raise ValueError(f"{label}: {reason}")
    if path.suffix not in LIST_SUFFIXES:
        hint = f"; regex:{path} reads expressions" if path.suffix == ".toml" else ""
        raise ValueError(f"{label}: must be a .txt, .csv or .parquet file{hint}")
    try:
        if path.suffix == ".txt":
            lines = files.read_text(path, "utf-8-sig").splitlines()
            return pd.DataFrame({"secret": lines}, index=range(1, 1 + len(lines)))
        rows: list[tuple[int, list[str]]] = []
        if path.suffix == ".parquet":
            names = pq.read_schema(files.check_regular_file(path)).names
        else:
            raw_file = files.open_regular_file(path)
            with io.TextIOWrapper(raw_file, encoding="utf-8-sig", newline="") as file:
                sign = max(",;\t|", key=file.readline(1 << 16).count)
                file.seek(0)
                numbered = enumerate(csv.reader(file, delimiter=sign, strict=True), 1)
                (_, names), *rows = [(number, row) for number, row in numbered if row]
        if not (repeated := find_repeated_name(names)) and path.suffix == ".parquet":
            table = pd.read_parquet(files.check_regular_file(path)).fillna("").astype(str)
            return table.set_axis(range(1, 1 + len(table)))
    except UnicodeDecodeError:
        raise ValueError(f"{label}: is not UTF-8; {describe_recoding(path)}") from None
    except Exception as error:  # pandas and pyarrow raise a dozen kinds, and may quote the file
        raise ValueError(f"{label}: cannot be read ({type(error).__name__})") from None
    if repeated:
        raise ValueError("{}: columns {} and {} have one name".format(label, *repeated))
    for number, row in rows:
        if len(row) != len(names):
            fault = f"has {len(row)} cells, the header has {len(names)}"
            raise ValueError(
                f"{label}: row {number} {fault}; a value with a separator needs quotes"
            )
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
    char_before, char_after = text[place - 1], text[place]
    return _is_within_word(char_before, char_after) or _is_within_word(char_after, char_before)


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
        char_before, char_after = text[max(0, start - 1) : start], text[end : end + 1]
        if not (_is_within_word(char_before, value[0]) or _is_within_word(char_after, value[-1])):
            yield start, end
        start = text.find(value, start + 1)


def _words_of_name(name: str) -> list[str]:
    """The words of a name that have at least three letters, with their accents and vowel signs.

    >>> _words_of_name("Nu\\u0303n\\u0303ez de la Cruz") == ["Nu\\u0303n\\u0303ez", "Cruz"]
    True
    """
    words: list[str] = regular.findall(r"(?:[^\W\d_\p{M}][\p{M}\p{Cf}]*){3,}", name)
    return words


def _values_of_people(file: str, cells: pd.DataFrame) -> list[ListedValue]:
    """The values of a list of people, as a CRM writes it (``name;phone;email``): also each word of
    at least three letters in a name. A warning counts the values that are too short to look for,
    and gives their rows."""
    names = {column: _normalise_with_places(str(column))[0] for column in cells.columns}
    kinds = {
        column: kind
        for column, name in names.items()
        for kind, called in PEOPLE_COLUMNS.items()
        if re.sub(r"[_\-. ]", "", name) in called.split()
    }
    listed_values: list[ListedValue] = []
    short_rows: list[int] = []
    for number, row in zip(cells.index, cells.to_dict("records"), strict=True):
        for column, kind in kinds.items():
            values = [row[column]]
            if kind == "name":
                values += _words_of_name(row[column])
            for value in filter(str.strip, dict.fromkeys(values)):
                if is_long_enough(value):
                    listed_values.append(ListedValue(value, kind, number))
                else:
                    short_rows.append(number)
    if short_rows:
        count_text = count_of(len(short_rows), "value is", "values are")
        warnings.warn(
            f"{file}: {count_text} too short to look for and left out ({_tell_rows(short_rows)})",
            stacklevel=3,
        )
    return listed_values


def _tell_rows(numbers: Sequence[int]) -> str:
    """The first of some rows, by their numbers.

    >>> _tell_rows([2, 5]), _tell_rows([2, 2, 5, 7, 8])
    ('row 2, row 5', 'row 2, row 5, row 7, ...')
    """
    rows = list(dict.fromkeys(numbers))
    row_names = ", ".join(f"row {number}" for number in rows[:MOST_ROWS_NAMED])
    return row_names + ", ..." * (len(rows) > MOST_ROWS_NAMED)


class ValueFinder:
    """Finds the spans of some values in a text, the longest first, and the numbers of their rows;
    ``file`` is for error messages."""

    def __init__(self, file: str, rows: Iterable[ListedValue]) -> None:
        self._text_automaton = ahocorasick.Automaton()
        # Its values are searched for in the text without the signs between letters and digits.
        self._code_automaton = ahocorasick.Automaton()
        for row in rows:
            sought, is_code = search_form_of(row.value)
            if not is_long_enough(row.value):
                raise ValueError(
                    f"{file}, row {row.number}: is too short to look for; {len(sought)} characters"
                )
            if len(sought) > MAX_VALUE_CHARACTERS:
                raise ValueError(
                    f"{file}, row {row.number}: is too long to look for; at most "
                    f"{MAX_VALUE_CHARACTERS:,} characters"
                )
            automaton = self._code_automaton if is_code else self._text_automaton
            if sought in automaton:
                _, _, row_numbers = automaton.get(sought)
                row_numbers.append(row.number)
            else:
                automaton.add_word(sought, (len(sought), row.kind, [row.number]))
        self._text_automaton.make_automaton()
        self._code_automaton.make_automaton()

    def __call__(self, text: str) -> tuple[list[Spans], set[int]]:
        normal, text_places = _normalise_with_places(text)
        hits = list(self._text_automaton.iter(normal)) if len(self._text_automaton) else []
        matches = [(text_places, *hit) for hit in hits]
        if len(self._code_automaton) and _DIGIT.search(normal):  # each code has one
            hits = list(self._code_automaton.iter(_CODE_SEPARATORS.sub("", normal)))
            places = _places_without(_CODE_SEPARATORS, normal, text_places) if hits else []
            matches += [(places, *hit) for hit in hits]
        spans: list[Secret] = []
        row_numbers = set[int]()
        for places, last, (length, kind, numbers) in matches:
            start, end = places[last - length + 1], places[last] + 1
            char_before, char_after = text[max(0, start - 1) : start], text[end : end + 1]
            if _is_within_word(char_before, text[start]):
                continue
            if _is_within_word(char_after, text[end - 1]):
                continue
            while end < len(text) and unicodedata.category(text[end])[0] == "M":
                end += 1  # the accents and vowel signs of the last letter
            spans.append(Secret(kind, start, end))
            row_numbers.update(numbers)
        spans.sort(key=lambda s: s.start - s.end)
        return [(s,) for s in spans], row_numbers


def list_policy(file: str) -> Policy:
    """A policy that flags the values of a list, whatever the case, accents and dashes in which they
    are written.

    The list is a ``.txt`` file with one value a line, or the column ``secret`` of a ``.csv`` or
    ``.parquet`` file. A file without that column is read as a list of people
    (``name;phone;email``; ``PEOPLE_COLUMNS``). Two other columns count: ``kind``, and ``parts``,
    where "yes" makes it look for each word of at least three letters as well.

    Letters are compared by :mod:`crtlib.screening.letter_folding`, one character at a time, so that
    places are kept. A dash is a space, and several spaces are one: "Ann-Marie" is found as "ann
    marie", and not as "annmarie". Beside Chinese, Japanese, Korean and other scripts without spaces
    a space does not count. In a value with four digits, or with a digit among six letters and
    digits, up to three signs between two of them do not count: "AB 12345" is found as "ab-123.45".
    The characters right before and after a match must be neither letters nor digits, except in a
    script without spaces. All values are searched for at once (Aho and Corasick 1975), so twice as
    many take no longer. Raises ``ValueError`` without quoting a value; a warning gives the rows of
    a list of people that hold values too short to look for.
    """
    path, label = Path(file), f"policy='list:{file}'"
    rows: list[ListedValue] = []
    cells = read_value_table(path, label)
    if "secret" not in cells:
        rows = _values_of_people(file, cells)
        if not rows:
            raise ValueError(
                f"{label}: .csv and .parquet need a column secret, or those of a list of people, "
                "such as name, phone, email"
            )
    numbered = zip(cells.index, cells.to_dict("records"), strict=True)
    for number, row in numbered if "secret" in cells else ():
        values = [row["secret"]] * bool(row["secret"].strip())
        if values and row.get("parts", "").strip().lower() in ("yes", "true", "1"):
            values += _words_of_name(row["secret"])
        rows += [ListedValue(value, row.get("kind") or "listed", number) for value in values]
    if not rows:
        raise ValueError(f"{label}: holds no value")
    find = ValueFinder(file, rows)

    def flag(points: Sequence[Point]) -> Iterator[Spans]:
        hit_counts: Counter[int] = Counter()
        for p in points:
            spans, row_numbers = find(p.text)
            yield merge_spans(spans)
            hit_counts.update(row_numbers)
        common_rows = [
            n for n, count in hit_counts.items() if count > COMMON_VALUE_SHARE * len(points)
        ]
        if len(points) >= 100 and common_rows:
            common_rows.sort(key=lambda number: (-hit_counts[number], number))
            most_common = common_rows[:MOST_ROWS_NAMED]
            shares = [(n, 100 * hit_counts[n] / len(points)) for n in most_common]
            row_shares = ", ".join(f"row {n} in {percent:.1f} %" for n, percent in shares)
            count_text = count_of(len(common_rows), "row occurs", "rows occur")
            warnings.warn(
                f"{file}: {count_text} in more than {100 * COMMON_VALUE_SHARE:g} % of the turns "
                f"({row_shares}{', ...' * (len(common_rows) > len(most_common))}); a value that is "
                "also a common word masks much that is not secret",
                stacklevel=2,
            )

    return Policy(f"list:{file}", flag, own_words=True, batched=True)
