"""Make crtlib/screening/words.txt: 5,000 frequent English words, most frequent first, no names.

    pip install wordfreq
    CRTLIB_DATA=... python benchmarks/common_words.py

The order is that of wordfreq (Robyn Speer), which counts subtitles, the web, books and news alike,
so that "hi" and "okay" are there. Its first thousands hold names too ("john", "london"), which a
cautious policy must not take for plain words: WikiText-2, which keeps capitals, tells them. A
word that stands there with a capital inside a sentence more often than without is left out.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

WORDS = 5_000
OUT = Path(__file__).resolve().parents[1] / "crtlib" / "screening" / "words.txt"
HEAD = f"""\
# The {WORDS:,} most frequent English words, first the most frequent; names are left out.
# Order: wordfreq 3.1.1 (Robyn Speer, 2022), CC BY-SA 4.0, https://github.com/rspeer/wordfreq
# Names: words that WikiText-2 (validation and test part) writes with a capital inside a sentence
# more often than without; Merity and others (2017), CC BY-SA 3.0. This list: CC BY-SA 4.0.
# Made by benchmarks/common_words.py.
"""


def capitals() -> tuple[Counter[str], Counter[str]]:
    """How often WikiText-2 writes a word small, and with a capital inside a sentence."""
    from crtlib.text import corpora

    small: Counter[str] = Counter()
    capital: Counter[str] = Counter()
    for part in ("valid", "test"):
        for turn in corpora.load("wikitext2", part).turns():
            before = "."
            for token in turn.text.split():
                if re.fullmatch(r"[^\W\d_]+", token):
                    if token.islower():
                        small[token] += 1
                    elif token[0].isupper() and before[-1] not in '.!?:="':
                        capital[token.lower()] += 1
                before = token
    return small, capital


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    from wordfreq import top_n_list

    from crtlib import files

    small, capital = capitals()
    words = [
        w.replace("’", "'")
        for w in top_n_list("en", 2 * WORDS)
        if re.fullmatch(r"[a-z]+(?:['’][a-z]+)*", w) and capital[w] <= small[w]
    ]
    words = list(dict.fromkeys(words))[:WORDS]
    files.write_text(OUT, HEAD + "\n".join(words) + "\n")
    print(f"{OUT}: {len(words)} words")


if __name__ == "__main__":
    main()
