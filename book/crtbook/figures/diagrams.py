"""How the three papers work, as pictures: boxes, stores, questions and arrows, from top to bottom.

>>> page = crt_pipeline()
>>> page.count("<svg"), 'role="img"' in page, "DP-SGD" in page
(1, True, True)
>>> sorted(name for name in DIAGRAMS)
['crt', 'hush', 'leakage', 'products', 'threat', 'training']

A diagram is a list of :class:`Box` and :class:`Arrow` on a grid that is as wide as a telephone.
Each has a text that says the same in sentences, for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from crtbook.figures.theme import page

WIDTH = 360
"""Pixels of a diagram: a telephone shows it without shrinking it."""
LINE = 15.5
"""Pixels from a line of text to the next."""


@dataclass(frozen=True)
class Box:
    """A box around a centre, in pixels. ``kind``: step, store, question, promise (what is
    protected) or risk (what is in clear)."""

    name: str
    text: str
    x: float
    y: float
    width: float = 150
    kind: str = "step"

    @property
    def lines(self) -> list[str]:
        """The lines of its text."""
        return self.text.split("\n")

    @property
    def height(self) -> float:
        """Room for its lines."""
        return LINE * len(self.lines) + (22 if self.kind == "question" else 14)


@dataclass(frozen=True)
class Arrow:
    """From one box to another, straight, or over ``via``; ``dashed`` where knowledge flows and no
    data."""

    start: str
    end: str
    label: str = ""
    via: tuple[tuple[float, float], ...] = ()
    dashed: bool = False


def _edge(box: Box, toward: tuple[float, float]) -> tuple[float, float]:
    """Where a line from the centre of ``box`` toward a point leaves the box."""
    dx, dy = toward[0] - box.x, toward[1] - box.y
    half_x, half_y = box.width / 2 + 2, box.height / 2 + 2
    share = min(half_x / abs(dx) if dx else 9e9, half_y / abs(dy) if dy else 9e9)
    return box.x + share * dx, box.y + share * dy


def _route(arrow: Arrow, boxes: dict[str, Box]) -> list[tuple[float, float]]:
    """The corners of an arrow; one that is nearly upright is made so."""
    start, end = boxes[arrow.start], boxes[arrow.end]
    if arrow.via:
        return [_edge(start, arrow.via[0]), *arrow.via, _edge(end, arrow.via[-1])]
    reach = min(start.width, end.width) / 2
    if abs(start.x - end.x) < reach:
        x = end.x if end.width < start.width else start.x
        down = 1 if end.y > start.y else -1
        top, low = start.y + down * (start.height / 2 + 2), end.y - down * (end.height / 2 + 2)
        return [(x, top), (x, low)]
    return [_edge(start, (end.x, end.y)), _edge(end, (start.x, start.y))]


def diagram(boxes: Sequence[Box], arrows: Sequence[Arrow], *, height: float, alt: str) -> str:
    """The picture as HTML: an SVG in the page's own colours."""
    by_name = {box.name: box for box in boxes}
    paths = []
    for arrow in arrows:
        points = _route(arrow, by_name)
        (ax, ay), (bx, by) = points[len(points) // 2 - 1 : len(points) // 2 + 1]
        paths.append({
            "points": " ".join(f"{x:.0f},{y:.0f}" for x, y in points), "label": arrow.label,
            "x": (ax + bx) / 2 + (-42 if arrow.via else 6), "y": (ay + by) / 2 + 4,
            "dashed": arrow.dashed,
        })  # fmt: skip
    return Markup(page("diagram.svg.j2", boxes=boxes, arrows=paths, width=WIDTH, height=height,
                       line=LINE, alt=alt))  # fmt: skip


def crt_pipeline() -> str:
    """Confidentially redacted training (CRT, Algorithm 1), from the text to the guarantee."""
    boxes = [
        Box("D", "text D", 180, 24, 110, "store"),
        Box("points", "cut into points\n(one turn each)", 180, 82),
        Box("dedup", "deduplicate: a second\noccurrence leaves", 180, 152, 180),
        Box("pi", "redact with π:\nfound secrets become MASK", 180, 222, 210),
        Box("split", "is a MASK inside,\nor does π_c speak?", 180, 302, 180, "question"),
        Box("pub", "public points\nplus secrets that\nboth missed: δ₂", 84, 398, 140, "risk"),
        Box("pri", "private points\nplus secrets that\nπ missed: γ", 276, 398, 140, "promise"),
        Box("sgd", "SGD,\nno noise", 84, 486, 120),
        Box("dp", "DP-SGD:\nclip, add noise", 276, 486, 130),
        Box("model", "one model,\nboth take turns", 100, 574, 140, "store"),
        Box("ledger", "ledger:\nq, σ, steps", 284, 574, 110, "store"),
        Box("promise", "guarantee: ε, δ\nfrom the ledger, γ and δ₂", 196, 650, 210, "promise"),
    ]
    pairs = [("D", "points"), ("points", "dedup"), ("dedup", "pi"), ("pi", "split"),
             ("pub", "sgd"), ("pri", "dp"), ("sgd", "model"), ("dp", "model"), ("dp", "ledger"),
             ("ledger", "promise")]  # fmt: skip
    arrows = [Arrow(a, b) for a, b in pairs]
    arrows += [Arrow("split", "pub", "no"), Arrow("split", "pri", "yes")]
    return diagram(boxes, arrows, height=684, alt=DIAGRAMS["crt"])


def leakage_report() -> str:
    """The leakage report: from a trained model to a page about what it completes."""
    boxes = [
        Box("D", "training text,\nby user", 94, 32, 130, "store"),
        Box("model", "trained model:\ntop guesses at\neach place", 266, 40, 140),
        Box("runs", "runs of right guesses", 180, 122, 180),
        Box("count", "how many users\nhave the sequence?", 180, 196, 180, "question"),
        Box("many", "several users:\ncommon phrase", 72, 290, 130),
        Box("unique", "one user:\nunique sequence", 270, 290, 140, "risk"),
        Box("public", "public model,\nor one that has not\nread the owner", 84, 386, 150),
        Box("ratio", "perplexity ratio:\nhow much likelier\nthan without the text?", 266, 386, 160),
        Box("page", "page: counts, lengths,\nusers; text only\nwhere you ask for it", 180, 484, 190,
            "store"),
    ]  # fmt: skip
    pairs = [("D", "runs"), ("model", "runs"), ("runs", "count"), ("public", "ratio"),
             ("unique", "ratio"), ("ratio", "page")]  # fmt: skip
    arrows = [Arrow(a, b) for a, b in pairs]
    arrows += [Arrow("count", "many", "more"), Arrow("count", "unique", "one")]
    return diagram(boxes, arrows, height=524, alt=DIAGRAMS["leakage"])


def deployments() -> str:
    """Two products that ask a language model: e-mail and keyboard (Inan et al. 2021, Figure 1)."""
    boxes = [
        Box("mail", "e-mail, typed so far:\n“Thank you for your”", 92, 32, 166, "store"),
        Box("keys", "keyboard, typed so far:\n“See you”", 270, 32, 166, "store"),
        Box("model", "language model:\nhow likely is each next word?", 180, 112, 230),
        Box("one", "its first choice, in grey:\n“help with this”\n(the TAB key takes it)",
            92, 206, 166),
        Box("three", "its first three choices:\n“soon”, “later”, “there”\n(a touch takes one)",
            270, 206, 166),
    ]  # fmt: skip
    pairs = [("mail", "model"), ("keys", "model"), ("model", "one"), ("model", "three")]
    return diagram(boxes, [Arrow(a, b) for a, b in pairs], height=246, alt=DIAGRAMS["products"])


def threat_model() -> str:
    """Who may ask what of a deployed model (Inan et al. 2021, Figure 2)."""
    boxes = [
        Box("D", "what users wrote", 180, 24, 150, "store"),
        Box("model", "trained model,\nbehind an interface", 180, 88, 160),
        Box("curious", "curious user types a\nbeginning of her own:\n“Ann lives at”", 88, 198, 160),
        Box("other", "adversary types one\nabout his target:\n“call Ann at”", 272, 198, 156),
        Box("answer", "top-k next words,\nno probabilities", 180, 292, 170, "question"),
        Box("leak", "words that follow in Ann’s\ntext: her data leak", 180, 384, 200, "risk"),
    ]
    pairs = [("D", "model"), ("curious", "model"), ("other", "model"), ("model", "answer"),
             ("answer", "leak")]  # fmt: skip
    return diagram(boxes, [Arrow(a, b) for a, b in pairs], height=416, alt=DIAGRAMS["threat"])


def next_word_training() -> str:
    """How a recurrent language model is trained (Inan et al. 2021, Figure 3)."""
    boxes, arrows, x = [], [], (66, 180, 294)
    for k, at in enumerate(x, 1):
        boxes += [
            Box(f"w{k}", f"reads w{k}", at, 196, 92, "store"),
            Box(f"h{k}", f"state h{k}", at, 130, 92),
            Box(f"y{k}", f"law of w{k + 1}", at, 72, 92),
        ]
        arrows += [Arrow(f"w{k}", f"h{k}"), Arrow(f"h{k}", f"y{k}"), Arrow(f"y{k}", "loss")]
    arrows += [Arrow("h1", "h2"), Arrow("h2", "h3")]
    boxes.append(Box("loss", "loss: sum of −log (chance of the true next word)", 180, 20, 336))
    return diagram(boxes, arrows, height=216, alt=DIAGRAMS["training"])


def secret_protection() -> str:
    """Hush!: from promises about secrets to the probability with which an example is drawn."""
    boxes = [
        Box("who", "which example holds\nwhich secret (public)", 88, 32, 164, "store"),
        Box("promise", "promise per secret:\nprior p to posterior r", 254, 32, 152, "promise"),
        Box("budget", "budget c\nof each secret", 254, 110, 130),
        Box(
            "lp",
            "linear program: weights,\nso that no secret's load\nis over its budget",
            172,
            200,
            200,
        ),
        Box("prob", "weights become\nprobabilities to be drawn", 172, 292, 200),
        Box("sigma", "least noise σ that\nkeeps every promise", 172, 366, 180),
        Box("dp", "DP-SGD", 172, 430, 120),
        Box("model", "model", 88, 498, 100, "store"),
        Box("game", "game: draw, train,\nlet her name the secret", 240, 504, 172),
    ]
    pairs = [("who", "lp"), ("promise", "budget"), ("budget", "lp"), ("lp", "prob"),
             ("prob", "sigma"), ("sigma", "dp"), ("dp", "model")]  # fmt: skip
    arrows = [Arrow(a, b) for a, b in pairs]
    around = ((350, 504), (350, 32))
    arrows += [
        Arrow("dp", "game"),
        Arrow("game", "promise", "audits", via=around, dashed=True),
    ]
    return diagram(boxes, arrows, height=540, alt=DIAGRAMS["hush"])


DIAGRAMS = {
    "crt": "CRT from top to bottom: text is cut into points, deduplicated and redacted. Points "
    "with a mask or a warning train with noise, the others without; both train one model. The "
    "noisy steps fill a ledger, from which the guarantee is computed.",
    "leakage": "Leakage report: the model's right guesses on its training text form runs. A run "
    "that one user alone has is unique. It is compared with a model that has not read the text. "
    "A page gives counts and lengths.",
    "products": "Two products: an e-mail program shows the first choice of a language model in "
    "grey, and the TAB key takes it; a keyboard shows its first three, and a touch takes one.",
    "threat": "Threat model: a model trained on what users wrote answers each typed text with its "
    "k most likely next words. A curious user tries a beginning of her own text, an adversary one "
    "about somebody else. If the answer goes on as the text did, it leaks.",
    "training": "Training: at each position the model reads a word, passes its state on, and gives "
    "a law of the next word. The loss adds up minus the logarithm of the chance of the true one.",
    "hush": "Hush!: who holds which secret and what is promised go into a linear program. Its "
    "weights become sampling probabilities, these the least noise, and DP-SGD trains. A game "
    "audits the promise.",
}
"""The sentences that stand for the diagrams."""
