"""Train with your own phases: public text, then DP-SGD, then public text with smaller steps.

    python examples/own_loop.py

A phase is a value made of public constants. `train_model` runs any list of phases, and returns the
event of each phase that adds noise. The accountant reads these events, so that no step is left out.
"""

import crtlib
from crtlib.models import construction, specs
from crtlib.text import tokenizer
from crtlib.training import loop
from crtlib.training.phases import PrivatePhase, PublicPhase

points = crtlib.points(crtlib.simulate(300, seed=0), "turn")
flags = crtlib.policy("regex:customersim")(points)
conservative_flags = crtlib.policy("cautious")(points)
text = crtlib.prepare(points, flags, conservative_flags)  # Algorithm 1: what is flagged is private

bpe = tokenizer.train_bpe([p.text for p in text.public], vocab_size=400)  # from public text only
parts = {
    "public": bpe.encode(p.text for p in text.public),
    "private": bpe.encode(p.text for p in text.private),
}
q, steps = 1 / 32, 64
terms = {"delta": 1e-5, "neighbouring_relation": "replace"}
noise = crtlib.noise_multiplier(epsilon=4, sampling_probability=q, steps=steps, **terms)
phases = [
    PublicPhase(epoch=1, part="public", passes=2, batch_size=16, learning_rate=5e-3),
    PrivatePhase(
        epoch=1, sampling_probability=q, steps=steps, noise_multiplier=noise, clip_norm=1.0,
        normaliser=64, learning_rate=1e-3,
    ),
    PublicPhase(epoch=2, part="public", passes=1, batch_size=16, learning_rate=1e-3),
]  # fmt: skip
model = construction.build_model(specs.ModelSpec("lstm", bpe.vocab_size, hidden=64), seed=0)
run = loop.train_model(model, phases, parts, seed=0, secure=True)
for event in run.events:
    print(event, f"epsilon {crtlib.epsilon(event, **terms):.3f}")
