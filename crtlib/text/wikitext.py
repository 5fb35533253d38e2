"""WikiText-2, the corpus of CRT's earlier version, where every number is a secret.

>>> corpus = parse([" = Lobsters = ", " ", " It grows to 60 cm ( 24 in ) . "], "train")
>>> turn = next(corpus.turns())
>>> turn.text, turn.values(), corpus.skipped
('It grows to 60 cm ( 24 in ) .', ('60', '24'), (('heading', 1),))
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from crtlib.files import Named, reading
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.source import fetched, register

SPLITS = ("train", "valid", "test")
_NUMBER = re.compile(r"\d+")
_HEADING = re.compile(r"= .* =")


def files(folder: Named, split: str) -> list[Path]:
    """The one file of a split: ``wiki.SPLIT.tokens`` or ``wiki.SPLIT.raw``, plain or ``.gz``."""
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: must be one of {', '.join(SPLITS)}")
    for end in ("tokens", "tokens.gz", "raw", "raw.gz"):
        path = Path(folder) / f"wiki.{split}.{end}"
        if path.is_file():
            return [path]
    raise ValueError(f"split={split!r}: {folder} has no wiki.{split}.tokens or .raw, plain or .gz")


def read(folder: Named, split: str) -> Corpus:
    """A split from its file; ``ValueError`` names one that is missing, damaged or not UTF-8."""
    (path,) = files(folder, split)
    with reading(path) as file:
        try:
            lines = file.read().decode().split("\n")
        except UnicodeDecodeError:
            raise ValueError(f"{path}: is not UTF-8") from None
    return parse(lines, split)


def parse(lines: Iterable[str], split: str) -> Corpus:
    """Each paragraph (line) as a dialogue of one turn that nobody speaks, a user of its own.

    Every run of digits is a secret of kind ``number`` ("we treat all the digits as secrets", CRT's
    first version, section 4.1). Headings are left out and counted; empty lines are no paragraphs.
    """
    dialogues: list[Dialogue] = []
    headings = 0
    for line in lines:
        text = line.strip()
        if _HEADING.fullmatch(text):
            headings += 1
        elif text:
            secrets = tuple(Secret("number", *m.span()) for m in _NUMBER.finditer(text))
            name = f"{split}-{len(dialogues)}"
            dialogues.append(Dialogue(name, name, (Turn("", text, secrets),)))
    if not dialogues:
        raise ValueError(f"wikitext2, split={split!r}: holds no paragraph")
    return Corpus("wikitext2", tuple(dialogues), (("heading", headings),) if headings else ())


def _both(folder: Named, split: str) -> list[Path]:
    if split != "train":
        raise ValueError(f"split={split!r}: must be train")
    return [path for part in SPLITS[1:] for path in files(folder, part)]


def cut(folder: Named) -> Corpus:
    """Validation and test text as one: what there is to train on where the training text is not."""
    one, two = (read(folder, part) for part in SPLITS[1:])
    headings = sum(n for part in (one, two) for _, n in part.skipped)
    return Corpus("wikitext2_cut", (*one.dialogues, *two.dialogues), (("heading", headings),))


WHERE = "https://huggingface.co/datasets/Salesforce/wikitext; data/README.md writes its files"
SOURCE = register(
    fetched(
        "wikitext2",
        "WikiText-2",
        ("wikitext-2",),
        files,
        lambda folder, split, _: read(folder, split),
        WHERE,
        by_rule=True,
    )
)
CUT = register(
    fetched(
        "wikitext2_cut",
        "WikiText-2, validation and test text",
        ("wikitext-2",),
        _both,
        lambda folder, *_: cut(folder),
        WHERE,
        by_rule=True,
    )
)
