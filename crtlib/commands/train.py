"""``crtlib train``: screen, train, attack, promise."""

from __future__ import annotations

from crtlib import recipe as recipes
from crtlib.options import Answer, Refused

NEXT = "what it may give away, on one sheet: crtlib certify {} --out certificate.html"


def train(recipe: recipes.Recipe) -> Answer:
    """Train on a corpus by a method; write the model, and what is promised of it.

    What is shown here are the options of one method: --method NAME --help shows another's. With
    torchrun --nproc-per-node N -m crtlib train ... N processes train one model together.

    Example: crtlib train dialogues.jsonl --method crt --out run
    """
    if recipe.out is None:
        raise Refused("out", "is missing")
    from crtlib.experiments import own
    from crtlib.reports import pages
    from crtlib.training import parallel

    with parallel.joined():
        trained = own.train(recipe, card=pages.of_training, progress=True)
        if not parallel.crew().leads:
            return Answer({})
    return Answer(trained.facts, [*trained.lines, NEXT.format(recipe.out)])


train.choose = recipes.choose  # type: ignore[attr-defined]
