"""Why an audit of a large model sees little: how much one canary's gradient is like another's.

    python benchmarks/canary_gradients.py [--pairs 40] [--rank 8]

SmolLM2 with adapters, before any training. A step of DP-SGD adds up the clipped gradients of all
canaries. What it moves in favour of one, against its control, is its own share (``signal``) and
what each other canary adds by being more like the canary than like the control (``other``, a
standard deviation). So among m of them, to first order and with no noise at all, who reads one pair
at a time is right in Phi(signal / (sqrt(m) other)) of them; ``noise`` is what a unit of it adds.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from scipy import stats

from crtlib.models import pretrained
from crtlib.text import canaries, tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--rank", type=int, default=8)
    o = parser.parse_args()
    started = time.process_time()
    place = pretrained.resolve_model_path("smollm2")
    read = tokenizer.load_pretrained_tokenizer(place)
    model = pretrained.with_lora(pretrained.load_pretrained(place), o.rank, seed=0)
    learned = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for word in (w for pair in canaries.make_canary_pairs(o.pairs, seed=0) for w in pair):
        ids = torch.tensor([read.encode(word).ids])
        loss = F.cross_entropy(model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="sum")
        found = torch.autograd.grad(loss, learned, allow_unused=True, materialize_grads=True)
        rows.append(F.normalize(torch.cat([g.flatten() for g in found]), dim=0))
    alike = torch.stack(rows) @ torch.stack(rows).T
    own = 1 - alike[0::2, 1::2].diagonal()
    shares = alike[0::2, 0::2] - alike[0::2, 1::2]  # of each canary, in each pair
    other = shares[~torch.eye(o.pairs, dtype=torch.bool)].std().item()
    signal, noise = own.mean().item(), (2 * own).sqrt().mean().item()
    print(f"signal {signal:.3f}, other {other:.3f}, noise {noise:.3f}")
    for m in (200, 500, 1000, 2000):
        print(f"{m} canaries: right in {stats.norm.cdf(signal / (m**0.5 * other)):.3f}")
    print(f"{time.process_time() - started:.0f} CPU s")


if __name__ == "__main__":
    main()
