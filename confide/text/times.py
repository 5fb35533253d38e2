"""Read the times that programs and people write, and refuse those that no message can have.

>>> parse_time("2026-02-28T12:00:00+01:00"), parse_time(0), parse_time("")
(1772276400000, 0, None)
>>> parse_time("28.2.2026 12:00") == parse_time("02/28/26, 12:00 PM", dates="mdy")
True
>>> parse_time("20260228120000") == parse_time(46081.5) == parse_time("2026-02-28 12:00")
True
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from crtlib.arguments import argument
from crtlib.text.jsonl import BadRow

EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_WITHOUT_ZONE = datetime(1970, 1, 1)
"""The epoch for times without a time zone."""
MILLISECOND = timedelta(milliseconds=1)
NUMERIC_DATE = re.compile(
    r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})"
    r"(?:,?\s+(\d{1,2})[:.](\d\d)(?:[:.](\d\d))?)?\s*(?:([ap])\.?m\.?|Uhr)?",
    re.I,
)
"""A date of three numbers, with an optional time of day."""
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_COMPACT_DATE = re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)?)?")
"""A date of digits alone, 20260228, with an optional time of day, 1200 or 120000."""
_SPREADSHEET_EPOCH = datetime(1899, 12, 30)
"""The day 0 of spreadsheets, which write a time as a number of days."""
_FIRST_SPREADSHEET_DAY = (EPOCH_WITHOUT_ZONE - _SPREADSHEET_EPOCH).days
_FIRST_SECOND_AS_TEXT, _FIRST_MILLISECOND = 10**8, 10**11
"""The least numbers that, as text, are seconds since 1970, and those that are milliseconds."""


def parse_time(value: Any, column: str = "time", dates: str = "auto") -> int | None:
    """Parse a time to milliseconds since 1970; None for an empty cell.

    It may be in ISO 8601, as in e-mails, like 28.2.2026 12:00 or 2026/2/28, like 28/2/2026 if
    ``dates`` states what comes first, like 20260228 or 20260228120000, a spreadsheet's number of
    days, or seconds or milliseconds since 1970. Without a zone it is in UTC. A year of two digits
    is the latest one that ends so, up to the next year.

    Raises:
        BadRow: For anything else, and for a time before 1970 or after the next year, which is what
            a form that is misread mostly gives.

    Guarantee:
        The days that a certificate shows as the first and the last are none that were misread by
        decades. Test: ``tests/text/test_exports.py::test_a_time_is_not_misread_in_silence``.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, bool):  # which Python counts as a number
            raise TypeError
        time = _parse_datetime(value, dates, column)
        since = (time - (EPOCH_UTC if time.tzinfo else EPOCH_WITHOUT_ZONE)) // MILLISECOND
    except BadRow:
        raise
    except (ValueError, TypeError, OverflowError, OSError, IndexError):
        raise BadRow("no time", "is not a time in a known form", column) from None
    end = (datetime(_next_year() + 1, 1, 1) - EPOCH_WITHOUT_ZONE) // MILLISECOND
    if not 0 <= since < end:
        says = "is a time before 1970 or after the next year, so it is wrong or was misread"
        raise BadRow("an implausible time", says, column)
    return since


def _next_year() -> int:
    return datetime.now(UTC).year + 1


def _parse_datetime(value: Any, dates: str, column: str) -> datetime:
    """A time from a cell: a date, or a text or number in any of the known forms."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        value = value.strip()[:64]
        if not _NUMBER.fullmatch(value):
            return _parse_written_time(value, dates, column)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("no time")
    if match := _COMPACT_DATE.fullmatch(f"{number:.0f}" if number.is_integer() else ""):
        return datetime(*(int(part or 0) for part in match.groups()))  # type: ignore[arg-type]
    last_day = (datetime(_next_year(), 12, 31) - _SPREADSHEET_EPOCH).days
    if _FIRST_SPREADSHEET_DAY < number < last_day + 1:
        return _SPREADSHEET_EPOCH + timedelta(seconds=round(number * 24 * 60 * 60))
    if isinstance(value, str) and number < _FIRST_SECOND_AS_TEXT:
        raise ValueError("a number that is no time")
    return datetime.fromtimestamp(
        number / 1000 if abs(number) > _FIRST_MILLISECOND else number, UTC
    )


def _parse_written_time(text: str, dates: str, column: str) -> datetime:
    """A time that is more than a number."""
    if match := NUMERIC_DATE.fullmatch(text):
        return _read_numeric_date(match, dates, column)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)


def _read_numeric_date(match: re.Match[str], dates: str, column: str) -> datetime:
    """Read a date of three numbers; if they are separated by points, the day is first."""
    separator, half_of_day = match[2], match[8] or ""
    first, second, third = (int(match[k]) for k in (1, 3, 4))
    hours, minutes, seconds = (int(match[k] or 0) for k in (5, 6, 7))
    if half_of_day and 1 <= hours <= 12:
        hours = hours % 12 + 12 * (half_of_day in "pP")
    clock = (hours, minutes, seconds)
    if len(match[1]) > 2:
        return datetime(first, second, third, *clock)
    if len(match[4]) not in (2, 4):
        raise ValueError("no year")
    if separator != "." and dates == "auto":
        raise BadRow(
            "day or month first",
            f"begins with day or month: use {argument('dates', 'dmy', 'mdy')}",
            column,
        )
    day, month = (second, first) if separator != "." and dates == "mdy" else (first, second)
    if len(match[4]) == 2:
        third += 2000 if 2000 + third <= _next_year() else 1900
    return datetime(third, month, day, *clock)
