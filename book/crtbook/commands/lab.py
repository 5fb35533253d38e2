"""``crtbook lab``: make what the students of the attack lab get."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crtlib.options import Answer, opt


def lab(
    out: Annotated[Path, opt("New folder for models, questions and an empty form.", "place")],
    seed: Annotated[int, opt("Seed of the class: its key; keep it to yourself.")],
) -> Answer:
    """Train the two models of the attack lab for a class, and write what its students get.

    Who knows the seed can make the key, so choose a large one and do not hand it out. The defence
    lab needs no files: its form is in the notebook.

    Example: crtbook lab --seed 48213 --out class
    """
    from crtcourse import attack

    folder = attack.hand_out(seed, out)
    return Answer({"folder": folder}, [str(folder)])
