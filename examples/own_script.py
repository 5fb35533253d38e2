"""The training of `crtlib train`, with your own lines between its steps.

    python examples/own_script.py

A step is one act: gradient, clipping, noise, optimizer. So there is no batch to choose, no gradient
to touch and no empty sample to skip. A script may look at the model, set the learning rate, and log
the loss of public steps. The loss of a private step is itself private.
"""

import tempfile
from pathlib import Path

import confide
from crtlib.text import customersim, jsonl

with tempfile.TemporaryDirectory() as home:
    talk, model = Path(home) / "talk.jsonl", Path(home) / "model"
    jsonl.write_jsonl(customersim.simulate_corpus(60, seed=0, variety="paper"), talk)
    options = {"unit": "turn", "policy": "regex:customersim", "width": 16, "epsilon": 3}
    with confide.Session(talk, out=model, epochs=2, **options) as session:
        for step in session:
            loss = step(learning_rate_factor=1 - step.number / (1 + len(session)))
            if loss is not None and step.number % 8 == 1:
                print(f"step {step.number} of {len(session)}: loss {loss:.2f}")
        print(session.close().promise)
    value = confide.certify(model, Path(home) / "certificate.html")
    print(value["verdict"], "if", value["assumed"][0])
