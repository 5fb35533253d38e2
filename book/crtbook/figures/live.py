"""A model that is trained in the page itself, each time that the reader moves something.

>>> model = Counts(["my code is 4711. "] * 3 + ["my code is here. "] * 3)
>>> model.exposure("my code is ", "4711") > 13, round(model.exposure("a code: ", "9"), 2) >= 0
(True, True)
>>> page = render_sentence_field(["hello there. "], sentence="my code is 4711", copies=3)
>>> page.count('type="range"'), "4711" in page
(1, True)

The model is the smallest that remembers: counts of what follows the last characters, smoothed by
Witten and Bell's rule (Computer Speech & Language, 1991). ``live.js`` has the same model, and a
test checks that the two agree.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from markupsafe import Markup

from crtbook.figures.theme import TEMPLATES, render_page

ORDER = 6
"""The number of characters that the model looks back."""
ALPHABET = 64
"""The number of characters that are equally likely to a model that has read nothing."""
SCRIPT = (TEMPLATES / "live.js").read_text("utf-8")


class Counts:
    """Next-character probabilities from counts of the last ``ORDER`` characters of ``texts``."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.after: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            for position, character in enumerate(text):
                for back in range(min(position, ORDER) + 1):
                    self.after[text[position - back : position]][character] += 1

    def probability(self, context: str, character: str) -> float:
        """Of ``character`` after ``context``; each order is mixed with the next shorter one."""
        value = 1 / ALPHABET
        for back in range(min(len(context), ORDER) + 1):
            counts = self.after.get(context[len(context) - back :])
            if counts:
                value = (counts[character] + len(counts) * value) / (counts.total() + len(counts))
        return value

    def exposure(self, prefix: str, digits: str) -> float:
        """Bits of exposure of ``digits`` after ``prefix`` among all numbers of that length (CRT,
        Definition 9); numbers that are equally likely count half."""
        scores = {"": 0.0}
        for _ in digits:
            scores = {
                number + digit: score + math.log(self.probability(prefix + number, digit))
                for number, score in scores.items()
                for digit in "0123456789"
            }
        truth = scores[digits]
        above = sum(score > truth + 1e-9 for score in scores.values())
        equal = sum(abs(score - truth) <= 1e-9 for score in scores.values())
        return len(digits) * math.log2(10) - math.log2(above + (equal + 1) / 2)


def _embed_json(values: object) -> Markup:
    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def render_sentence_field(texts: Sequence[str], *, sentence: str, copies: int) -> str:
    """A field for a sentence that ends in a number of at most four digits, and a slider for how
    often it follows one of ``texts``; below it the exposure of the number. As HTML."""
    number = sentence[len(sentence.rstrip("0123456789")) :]
    prefix = sentence[: -len(number)]
    bits = Counts([*texts, *[sentence] * copies]).exposure(prefix, number)
    model_data = _embed_json({"texts": list(texts), "order": ORDER, "alphabet": ALPHABET})
    return render_page(
        "live_type.html.j2", data=model_data, script=Markup(SCRIPT), sentence=sentence,
        copies=copies, bits=f"{bits:.1f}", most=f"{len(number) * math.log2(10):.1f}",
    )  # fmt: skip
