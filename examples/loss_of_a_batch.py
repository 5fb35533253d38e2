"""What one record moves if hooks clip the loss of `transformers` 5, and what it moves here.

    python examples/loss_of_a_batch.py

That loss is the mean over all targets of the batch, so a long record makes the gradients of all
others smaller: the clipped sum of 32 short records moves by eight times the bound that is
accounted. Opacus' hooks do what they are asked to do, but the loss no longer splits into one loss
for each record. In crtlib the loss is the mean over the record's own targets, and your own losses
are tried for this property.
"""

import warnings

import torch
import transformers
from opacus import GradSampleModule

from crtlib.training.clipping import add_clipped_gradients

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, tie_word_embeddings=False,
    )
).train()  # fmt: skip
model.transformer.wpe.requires_grad_(False)  # to hooks, a table of positions is one row for all
learning = [p for p in model.parameters() if p.requires_grad]


def padded(records):
    lengths = torch.tensor([len(record) for record in records])
    return torch.nn.utils.rnn.pad_sequence(records, batch_first=True), lengths


def by_hooks(records, clip_norm=torch.inf):
    """The clipped sum, and the norms, for the loss that the model computes of a batch."""
    hooked = GradSampleModule(model)
    tokens, lengths = padded(records)
    labels = tokens.masked_fill(torch.arange(tokens.shape[1]) >= lengths[:, None], -100)
    hooked(input_ids=tokens, labels=labels).loss.backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in learning], 1)
    hooked.remove_hooks()
    hooked.to_standard_module()
    norms = each.norm(dim=1)
    return ((clip_norm / norms).clamp(max=1)[:, None] * each).sum(0), norms


def by_rows(records, clip_norm=1e9):
    """The same for the mean over each record's own targets."""
    for p in model.parameters():
        p.grad = None
    norms = add_clipped_gradients(model, *padded(records), clip_norm=clip_norm).norms
    return torch.cat([p.grad.flatten() for p in learning]), norms


short, *others = (torch.randint(1, 97, (n,)) for n in (6, 6, 20, 60))
for more in others:
    for name, clipped in (("hooks", by_hooks), ("rows", by_rows)):
        clip_norm = float(clipped([short] * 32)[1].max())
        without, beside = (clipped([short] * 32 + x, clip_norm)[0] for x in ([], [more]))
        moved = float((beside - without).norm()) / clip_norm
        print(f"{name}: one record of {len(more)} tokens more moves {moved:.2f} (at most 1)")
