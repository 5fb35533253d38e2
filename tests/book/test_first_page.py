"""The first page and the panel: the models and the accountant compute what the library does."""

import base64
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from crtbook.figures.diagrams import render_diagram
from crtlib.accounting import confidentiality, privacy_cost
from crtlib.accounting.events import SampledGaussian
from crtlib.models.recurrent_lm import RecurrentLM
from crtlib.models.specs import ModelSpec

BOOK = Path(__file__).resolve().parents[2] / "book"
ASSETS = BOOK / "_assets"
sys.path.insert(0, str(BOOK))
DATA = (ASSETS / "leak-models.js").read_text(encoding="utf-8")
LEAK = json.loads(DATA.removeprefix("const LEAK = ").rstrip(";\n"))
TYPED = ["My ID is:", "My name is", "Hi, it's 12 o'clock; my", "I live at 9-7", "", "Zoë  has"]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node")


def in_the_page(script, asked):
    run = subprocess.run(
        ["node"], input=f"{script}\nconsole.log(JSON.stringify({asked}));", text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return json.loads(run.stdout)


def model_of(name):
    """The model that the page reads, in the library."""
    size, inputs, hidden = LEAK["sizes"]
    raw, at = base64.b64decode(LEAK["models"][name]), 0

    def take(kind, *shape):
        nonlocal at
        out = np.frombuffer(raw, kind, int(np.prod(shape)), at).reshape(shape).astype(float)
        at += out.size * np.dtype(kind).itemsize
        return torch.tensor(out)

    scales = [take("<f4", n) for n in (1, 1, size, 4 * hidden, size)]
    model = RecurrentLM(ModelSpec("lstm", size, embedding=inputs, hidden=hidden)).double()
    layer, head = model.layers[0], model.head
    parts = [layer.bias, head.bias, model.embedding.weight, layer.weight, head.weight]
    with torch.no_grad():
        for k, (part, scale) in enumerate(zip(parts, scales, strict=True)):
            values = take("<i2" if k < 2 else "i1", *part.shape)
            part.copy_(values * (scale if k < 2 else scale[:, None]))
    assert at == len(raw)
    return model.eval()


def reader():
    vocabulary = {token: k for k, token in enumerate(LEAK["tokens"])}
    merges = [tuple(pair.split()) for pair in LEAK["merges"]]
    for pair in merges:  # a token that no text holds is still a step to a longer one
        for token in (*pair, "".join(pair)):
            vocabulary.setdefault(token, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges))
    apart = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([apart, bytes_])
    return lambda text: [i for i in made.encode(text).ids if i < len(LEAK["tokens"])]


def completed(model, ids, steps=40):
    out = []
    with torch.no_grad():
        for _ in range(steps):
            best = int(model(torch.tensor([ids]))[0, -1].argmax())
            if LEAK["tokens"][best] == "<EOS>":
                break
            ids, out = [*ids, best], [*out, LEAK["tokens"][best].replace("Ġ", " ")]
    return "".join(out)


@needs_node
@pytest.mark.parametrize("name", ["sgd 1", "crt 0.1"])
def test_the_first_page_reads_and_completes_as_the_library_does(name):
    script = DATA + (ASSETS / "leak.js").read_text(encoding="utf-8")
    model = f"leak.load(LEAK.models[{name!r}], LEAK.sizes)"
    page = in_the_page(
        script,
        f"{json.dumps(TYPED)}.map(t => [leak.encode('USR: ' + t, LEAK),"
        f" leak.complete({model}, t, LEAK)])",
    )
    read, library = reader(), model_of(name)
    for typed, (ids, text) in zip(TYPED, page, strict=True):
        ours = read("USR: " + typed)
        assert ids == ours and text == completed(library, [0, *ours])


def test_the_first_page_shows_a_leak_is_light_and_follows_the_diagram():
    numbers = LEAK["numbers"]
    assert numbers["sgd 1"]["exposure"] > 19 > 4.4 > numbers["crt 0.1"]["exposure"]
    assert [n for n, found in numbers.items() if found["epsilon"] is not None] == [
        n for n in numbers if n.startswith("crt")
    ]
    assert sum(path.stat().st_size for path in ASSETS.glob("leak*")) < 400_000
    assert (ASSETS / "crt.html").read_text(encoding="utf-8") == render_diagram("crt")


@needs_node
def test_the_panel_is_never_below_the_library_and_little_above_it():
    """200 random points: ten trainings, twenty of (miss rate, delta, public rate) each."""
    rng = np.random.default_rng(0)
    trainings = [
        {"q": 10 ** rng.uniform(-3, -0.3), "sigma": 10 ** rng.uniform(-0.2, 1),
         "steps": int(10 ** rng.uniform(0.5, 4)), "relation": relation}
        for relation in ("add_or_remove", "replace") for _ in range(5)
    ]  # fmt: skip
    points = [
        {"gamma": float(rng.choice([0, 1, 10 ** rng.uniform(-3, 0)], p=[0.05, 0.05, 0.9])),
         "delta": delta, "delta2": float(rng.choice([0, 10 ** rng.uniform(-9, -2)], p=[0.7, 0.3]))}
        for delta in 10 ** rng.uniform(-8, -2, 20)
    ]  # fmt: skip
    page = in_the_page(
        (ASSETS / "panel.js").read_text(encoding="utf-8"),
        f"{json.dumps(trainings)}.map(t => {{ const curve = panel.profile(t); return"
        f" {json.dumps(points)}.map(p => Math.min(1e9, panel.confidential(curve, p))); }})",
    )
    for training, row in zip(trainings, page, strict=True):
        event = SampledGaussian(training["q"], training["sigma"], training["steps"])
        for point, shown in zip(points, row, strict=True):
            truth = confidentiality.confidentiality_epsilon(
                event, gamma=point["gamma"], delta2=point["delta2"], total_delta=point["delta"],
                neighbouring_relation=training["relation"],
            )  # fmt: skip
            assert min(truth, 1e9) <= shown <= min(truth, 1e9) * 1.001 + 1e-5, (training, point)


@needs_node
def test_what_the_panel_prints_is_at_most_a_thousandth_above_the_library():
    """The printed number, where its page opens and at ten places of its sliders."""
    rng = np.random.default_rng(0)
    opened = {"gamma": 0.1, "epsilon": 3, "delta": 8e-5, "delta2": 0, "q": 0.1, "steps": 120}
    asked = [opened | {"relation": "add_or_remove"}] + [
        {"gamma": float(gamma), "epsilon": float(rng.choice([0.1, 1, 3, 8])), "delta": 8e-5,
         "delta2": 0, "q": float(rng.choice([0.01, 0.1])),
         "steps": int(rng.choice([20, 120, 1000])),
         "relation": str(rng.choice(["add_or_remove", "replace"]))}
        for gamma in 10 ** rng.uniform(-3, 0, 10)
    ]  # fmt: skip
    page = in_the_page(
        (ASSETS / "panel.js").read_text(encoding="utf-8"),
        f"{json.dumps(asked)}.map(a => {{ const sigma = panel.noise(a); return [sigma,"
        " panel.printed(panel.confidential(panel.profile({...a, sigma}), a))]; })",
    )
    assert page[0][1] == "0.699"
    for of, (sigma, printed) in zip(asked, page, strict=True):
        truth = confidentiality.confidentiality_epsilon(
            SampledGaussian(of["q"], sigma, of["steps"]), gamma=of["gamma"],
            total_delta=of["delta"], neighbouring_relation=of["relation"],
        )  # fmt: skip
        assert 0 <= float(printed) - truth <= 0.001 * max(1, truth) + 1e-5, (of, truth)


@needs_node
@pytest.mark.parametrize("relation", ["add_or_remove", "replace"])
@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps"),
    [(3, 8e-5, 0.1, 120), (0.1, 1e-8, 0.5, 10_000), (0.1, 1e-8, 0.001, 10), (10, 1e-2, 0.5, 10)],
)
def test_the_panels_noise_keeps_what_it_is_asked_for(epsilon, delta, q, steps, relation):
    """In the middle and in the corners of what its sliders reach."""
    asked = {"epsilon": epsilon, "delta": delta, "q": q, "steps": steps, "relation": relation}
    sigma, shown = in_the_page(
        (ASSETS / "panel.js").read_text(encoding="utf-8"),
        f"[{json.dumps(asked)}].flatMap(a => {{ const sigma = panel.noise(a); return"
        " [sigma, panel.profile({...a, sigma})(a.delta)]; })",
    )
    truth = privacy_cost.epsilon(
        SampledGaussian(q, sigma, steps), delta=delta, neighbouring_relation=relation
    )
    assert truth <= shown <= epsilon and truth > 0.97 * epsilon


def test_the_panels_recorded_runs_follow_from_their_table():
    computed = importlib.import_module("computed")
    assert computed.PANEL.read_text(encoding="utf-8") == computed.format_panel()


def test_every_page_takes_the_methods_colours_from_one_table():
    """The panel had CRT in the blue that is DP-SGD's everywhere else."""
    computed = importlib.import_module("computed")
    assert computed.LOOKS.read_text(encoding="utf-8") == computed.format_looks()
    for style in (ASSETS / "panel.css", ASSETS / "panel.js"):
        assert re.findall(r"#[0-9a-fA-F]{6}\b", style.read_text(encoding="utf-8")) == []
