"""Masked language models: which tokens are hidden, weighted DP-SGD on them, and their loss.

>>> from crtlib.models.networks import build
>>> from crtlib.models.networks import ModelSpec
>>> tokens, lengths = torch.tensor([[0, 5, 6, 7, 1]]), torch.tensor([5])
>>> inputs, targets = hide(tokens, lengths, mask=2, share=1.0, vocab_size=9,
...                        generator=torch.Generator().manual_seed(0))
>>> targets.tolist()  # the frame, first and last, is never asked for
[[-100, 5, 6, 7, -100]]
>>> bert = build(ModelSpec("bert", 9, hidden=8, heads=2), seed=0)
>>> bool(abs(loss(bert, [[0, 5, 6, 7, 1]] * 40, mask=2, seed=0) - 2.197) < 0.3)  # log 9: a guess
True
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crtlib.checks import check
from crtlib.models import networks
from crtlib.text.records import Point, Secret
from crtlib.training.clipping import IGNORED
from crtlib.training.devices import sent
from crtlib.training.noise import Random
from crtlib.training.phases import Batch, PrivatePhase, collate

SHARE = 0.15
"""Share of the tokens that are asked for (BERT, Devlin et al. 2019)."""


def hide(
    tokens: Tensor,
    lengths: Tensor,
    *,
    mask: int,
    vocab_size: int,
    generator: Random,
    share: float = SHARE,
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, L) of ``tokens`` (B, L): each token but the first and the last is
    asked for with probability ``share``; of those 80 % read ``mask``, 10 % a random token, 10 %
    what they are. Targets are ``IGNORED`` elsewhere.

    The draws depend on nothing but ``generator`` and the lengths. Raises ValueError for a share
    outside (0, 1].
    """
    check("share", share, 0 < share <= 1, "in (0, 1]")
    place = torch.arange(tokens.shape[1], device=tokens.device)
    inside = (place > 0) & (place < sent(lengths, tokens.device)[:, None] - 1)
    asked = inside & (_uniforms(tokens, generator) < share)
    fate = _uniforms(tokens, generator)
    other = (_uniforms(tokens, generator) * vocab_size).long()
    inputs = tokens.masked_fill(asked & (fate < 0.8), mask)
    inputs = torch.where(asked & (fate >= 0.9), other, inputs)
    return inputs, tokens.masked_fill(~asked, IGNORED)


def _uniforms(tokens: Tensor, generator: Random) -> Tensor:
    # What is hidden guards no secret, so where noise is secure any good generator will do.
    seeded = generator if isinstance(generator, torch.Generator) else None
    return torch.rand(tokens.shape, device=tokens.device, dtype=torch.float64, generator=seeded)


@dataclass(frozen=True)
class MaskedPhase(PrivatePhase):
    """A `PrivatePhase` for masked language models, with fresh masks at every step.

    An example's gradient is clipped whatever was hidden of it, so the guarantee is unchanged.
    """

    mask: int = 2
    vocab_size: int = 512

    draws: ClassVar[bool] = True

    def examples(self, batch: Batch, noise: Random) -> Iterator[tuple[Tensor, ...]]:
        """``(inputs, lengths, targets)``: see :func:`hide`."""
        for tokens, lengths in batch:
            inputs, targets = hide(
                tokens, lengths, mask=self.mask, vocab_size=self.vocab_size, generator=noise
            )
            yield inputs, lengths, targets


@dataclass(frozen=True)
class InvariantPhase(MaskedPhase):
    """A :class:`MaskedPhase` without noise, on texts that no secret changes: nothing to account."""

    def event(self) -> None:  # type: ignore[override]
        """Every point that this phase reads is the same for all adjacent datasets."""
        return None


def invariant(phase: MaskedPhase, points: int) -> InvariantPhase:
    """As many steps as ``phase`` on the part "public", with as large batches: every one of its
    ``points`` is as likely as the others, as no promise asks for less."""
    given = {f.name: getattr(phase, f.name) for f in fields(phase)}
    share = min(1.0, phase.normaliser / points)
    return InvariantPhase(
        **given | {"part": "public", "sampling_probability": share, "noise_multiplier": 0.0}
    )


@torch.no_grad()
def loss(model: nn.Module, sequences: Sequence[Sequence[int]], *, mask: int, seed: int) -> float:
    """Mean cross entropy in nats of the tokens asked for; the same ones for the same ``seed``."""
    if networks.is_causal(model):
        raise ValueError("model: must be a masked language model")
    head, training = networks.head(model), model.training
    device = head.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    total, count = 0.0, 0
    model.eval()
    for tokens, lengths in collate(sequences, range(len(sequences)), device):
        inputs, targets = hide(
            tokens, lengths, mask=mask, vocab_size=len(head.weight), generator=generator
        )
        asked = targets != IGNORED
        logits = head.logits(networks.hidden(model, inputs, lengths)[asked])
        total += float(F.cross_entropy(logits.float(), targets[asked], reduction="sum"))
        count += int(asked.sum())
    model.train(training)
    return total / max(count, 1)


_END = re.compile(r"(?:(?<=\s[.!?]|\w[!?])|(?<=[a-z]{4}\.))\s+(?![a-z]|[\"'”)]\s*$)|\n")


def sentences(points: Iterable[Point]) -> tuple[Point, ...]:
    """Each point cut after its sentences, for paragraphs longer than a model's context.

    Ids get ``/j``. A sentence ends at a mark that stands alone, as in WikiText, or closes a word of
    four letters or more, never before a lower-case letter or a last quotation mark: a missed cut
    leaves a longer point, one too many cuts a sentence in two (CRT, A.6.3). The cuts are made as if
    each labelled secret read ``<MASK>``, so no secret is cut, and a point and its neighbour with
    the secret masked are cut alike (A.6.2; neither holds for a secret without a label).
    """
    pieces: list[Point] = []
    for p in points:
        masked = p.text
        for s in p.secrets:  # no sign of a mask ends a sentence or begins a word
            masked = masked[: s.start] + "<" * (s.end - s.start) + masked[s.end :]
        cuts = [at for end in _END.finditer(masked) for at in end.span()]
        spans = zip([0, *cuts[1::2]], [*cuts[::2], len(p.text)], strict=True)
        for j, (a, b) in enumerate((a, b) for a, b in spans if a < b):
            inside = (Secret(s.kind, s.start - a, s.end - a) for s in p.secrets if a <= s.start < b)
            own = tuple((max(c, a) - a, min(e, b) - a) for c, e in p.spoken if c < b and a < e)
            pieces.append(Point(f"{p.id}/{j}", p.user, p.text[a:b], tuple(inside), own, p.thread))
    return tuple(pieces)
