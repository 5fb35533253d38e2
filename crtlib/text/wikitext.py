"""WikiText-2, the corpus of CRT's earlier version, where every number is a secret.

>>> corpus = parse_wikitext([" = Lobsters = ", " ", " It grows to 60 cm ( 24 in ) . "], "train")
>>> turn = next(corpus.turns())
>>> turn.text, turn.values(), corpus.skipped
('It grows to 60 cm ( 24 in ) .', ('60', '24'), (('heading', 1),))
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from crtlib.files import StrPath, open_plain_or_gzip
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.sources import fetched_source

WIKITEXT_SPLITS = ("train", "valid", "test")
WIKITEXT_ORIGIN = (
    "https://huggingface.co/datasets/Salesforce/wikitext; data/README.md writes its files"
)
_NUMBER_PATTERN = re.compile(r"\d+")
_HEADING_PATTERN = re.compile(r"= .* =")


def wikitext_files(folder: StrPath, split: str) -> list[Path]:
    """The one file of a split: ``wiki.SPLIT.tokens`` or ``wiki.SPLIT.raw``, plain or ``.gz``."""
    if split not in WIKITEXT_SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(WIKITEXT_SPLITS)}")
    for end in ("tokens", "tokens.gz", "raw", "raw.gz"):
        path = Path(folder) / f"wiki.{split}.{end}"
        if path.is_file():
            return [path]
    raise ValueError(f"split={split!r}: {folder} has no wiki.{split}.tokens or .raw, plain or .gz")


def read_wikitext(folder: StrPath, split: str) -> Corpus:
    """A split, read from its file. ``ValueError`` names a file that is missing, damaged or not
    UTF-8."""
    (path,) = wikitext_files(folder, split)
    with open_plain_or_gzip(path) as file:
        try:
            lines = file.read().decode().split("\n")
        except UnicodeDecodeError:
            raise ValueError(f"{path}: is not UTF-8") from None
    return parse_wikitext(lines, split)


def parse_wikitext(lines: Iterable[str], split: str) -> Corpus:
    """Each paragraph (line) as a dialogue of one turn without a speaker, and a user of its own.

    Every run of digits is a secret of kind ``number`` ("we treat all the digits as secrets", CRT's
    first version, section 4.1). Headings are left out and counted; empty lines are no paragraphs.
    """
    dialogues: list[Dialogue] = []
    headings = 0
    for line in lines:
        text = line.strip()
        if _HEADING_PATTERN.fullmatch(text):
            headings += 1
        elif text:
            secrets = tuple(Secret("number", *m.span()) for m in _NUMBER_PATTERN.finditer(text))
            name = f"{split}-{len(dialogues)}"
            dialogues.append(Dialogue(name, name, (Turn("", text, secrets),)))
    if not dialogues:
        raise ValueError(f"wikitext2, split={split!r}: holds no paragraph")
    return Corpus("wikitext2", tuple(dialogues), (("heading", headings),) if headings else ())


def _held_out_files(folder: StrPath, split: str) -> list[Path]:
    if split != "train":
        raise ValueError(f"split={split!r}: must be train")
    return [path for part in WIKITEXT_SPLITS[1:] for path in wikitext_files(folder, part)]


def read_held_out_wikitext(folder: StrPath) -> Corpus:
    """The validation and test texts as one corpus, to train on where the training text is
    missing."""
    one, two = (read_wikitext(folder, part) for part in WIKITEXT_SPLITS[1:])
    headings = sum(n for part in (one, two) for _, n in part.skipped)
    return Corpus("wikitext2_cut", (*one.dialogues, *two.dialogues), (("heading", headings),))


WIKITEXT_SOURCE = fetched_source(
    "wikitext2",
    "WikiText-2",
    ("wikitext-2",),
    wikitext_files,
    lambda folder, split, _: read_wikitext(folder, split),
    WIKITEXT_ORIGIN,
    by_rule=True,
)
WIKITEXT_CUT_SOURCE = fetched_source(
    "wikitext2_cut",
    "WikiText-2, validation and test text",
    ("wikitext-2",),
    _held_out_files,
    lambda folder, *_: read_held_out_wikitext(folder),
    WIKITEXT_ORIGIN,
    by_rule=True,
)
