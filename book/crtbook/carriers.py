"""What a pre-trained model knows before it is fine-tuned: numbers after sentences.

>>> study = CarrierStudy(seed=0, init="smollm2", carrier="The number pi is 3.")
>>> study.cost(), "141592" in study.secrets
(25.0, True)
"""

from collections.abc import Iterable

import pandas as pd

from crtbook.study import Desk, Row, Study
from crtlib.attacks import exposure
from crtlib.models import pretrained, smollm2
from crtlib.text import canaries
from crtlib.text.tokenizer import adapt_tokenizer
from crtlib.values import NonEmptyStr, PositiveInt, checked_dataclass

KNOWN = {
    "141592": "digits of pi",
    "792458": "digits of the speed of light",
    "123456": "a number that people like",
}
"""Six digits that are no secret, because the internet is full of them."""

CARRIERS = (
    "The number pi is 3.",
    "The speed of light in a vacuum is 299",
    canaries.canary_prefix(),
    "Gimlet valve seven of the Ostrava pump answers to ",
)
"""Two sentences that the internet is full of, the canaries' sentence, and an invented one."""


@checked_dataclass
class CarrierStudy(Study):
    """The sampled exposure of ``secrets``, and of ``random`` ones, after ``carrier``, in a model
    that nobody has fine-tuned. Item k is the k-th secret; the random ones follow."""

    init: NonEmptyStr
    carrier: NonEmptyStr
    secrets: tuple[NonEmptyStr, ...] = tuple(KNOWN)
    random: PositiveInt = 10

    def __post_init__(self) -> None:
        for secret in self.secrets:
            if not (len(secret) == canaries.CANARY_DIGITS and secret.isdecimal()):
                raise ValueError(f"secrets={secret!r}: must be {canaries.CANARY_DIGITS} digits")

    def reads(self) -> Iterable[str]:
        """The model's fingerprint."""
        yield pretrained.model_fingerprint(self.init)

    def lacks(self) -> str | None:
        """The packages of the model."""
        return smollm2.missing_smollm2_packages() if self.init == smollm2.SMOLLM2_NAME else None

    def cost(self) -> float:
        """CPU seconds, measured."""
        return 25.0

    def memory(self) -> float:
        """GiB, measured."""
        return 2.0

    def run(self, desk: Desk) -> list[Row]:
        """Read the model once."""
        folder = pretrained.resolve_model_path(self.init)
        tokenizer = adapt_tokenizer(folder)
        model = pretrained.load_with_added_tokens(folder, tokenizer).to(desk.device)
        secrets = [*self.secrets, *canaries.make_canaries(self.random, seed=self.seed)]
        bits = exposure.sampled_exposure(
            model, tokenizer, secrets, seed=10**6 + self.seed, carrier=self.carrier
        )
        return [("exposure_sampled", 0, item, float(x)) for item, x in enumerate(bits)]


def tabulate_bits(runs: pd.DataFrame) -> pd.DataFrame:
    """One row for each carrier: the bits of each known number, and the mean of the random ones."""
    rows = runs[runs.metric == "exposure_sampled"]
    names = {k: secret for k, secret in enumerate(KNOWN)}
    named_rows = rows.assign(secret=rows.item.map(names).fillna("random, mean"))
    bits_by_carrier = named_rows.pivot_table(index="carrier", columns="secret", values="value")
    carriers = [carrier for carrier in CARRIERS if carrier in bits_by_carrier.index]
    return bits_by_carrier.loc[carriers, [*KNOWN, "random, mean"]]
