"""Train the models of the first page, and write them where it reads them: ``python book/leak.py``.

One small LSTM is trained for each position of the switches, on the same simulated dialogues with
one planted secret. The file holds the models themselves, each weight in eight bits, and what was
measured on them in that form. Runs are kept in ``--store``: what is there is not trained again.
"""

import argparse
import base64
import json
from pathlib import Path

import numpy as np
import torch

from crtbook import tables
from crtbook.figures.diagrams import render_diagram
from crtbook.runner import sweep
from crtbook.runs import CrtStudy, restore_training
from crtbook.study import Store
from crtlib.studies.study_run import measure_study

BOOK = Path(__file__).resolve().parent
MODELS = BOOK / "_assets" / "leak-models.js"
GAMMAS = (1.0, 0.5, 0.1, 0.0)
"""Miss rates of the search; 1 means no search."""
SHAPE = {"model": "lstm", "seed": 0, "dialogues": 200, "canaries": 1, "vocab_size": 320}
SHAPE |= {"embedding": 32, "hidden": 36, "batch_size": 16, "learning_rate": 0.01}
NOISY = {"epochs": 10, "pub_passes": 3, "private_learning_rate": 0.06, "sampling_probability": 0.2}
STUDIES = {
    f"{method} {gamma:g}": CrtStudy(
        method=method, gamma=gamma, **SHAPE, **(NOISY if method == "crt" else {"epochs": 30})
    ).ready()
    for method in ("sgd", "dedup", "crt")
    for gamma in GAMMAS[method == "crt" :]
}
"""One run for each position; CRT has none without a search."""


def round_and_pack(model: torch.nn.Module, tokens: list[int]) -> bytes:
    """Pack the model: eight bits for each weight, one scale for each row, sixteen bits for each
    bias, without the tokens that are not among ``tokens``. ``model`` becomes what was written."""
    lstm, head = model.layers[0], model.head
    scales, small, large = [], [], []
    with torch.no_grad():
        for bias, rows in ((lstm.bias, slice(None)), (head.bias, tokens)):
            scale = bias[rows].abs().max() / 32767
            small.append((bias[rows] / scale).round())
            scales.append(scale[None])
            bias[rows] = small[-1] * scale
        for weight, rows in (
            (model.embedding.weight, tokens), (lstm.weight, slice(None)), (head.weight, tokens)
        ):  # fmt: skip
            scale = weight[rows].abs().amax(1) / 127
            large.append((weight[rows] / scale[:, None]).round())
            scales.append(scale)
            weight[rows] = large[-1] * scale[:, None]
        left = [i for i in range(len(head.bias)) if i not in tokens]
        head.bias[left] = -1e4  # no text contains them, so the page has no place for them
    parts = ((scales, "<f4"), (small, "<i2"), (large, "i1"))
    return b"".join(x.numpy().astype(kind).tobytes() for part, kind in parts for x in part)


def collect_page_data(store: Store) -> dict[str, object]:
    """The data that the page reads: tokens, merges, models, and the measurements of each."""
    sized = "sgd 1"
    plain = restore_training(STUDIES[sized], store.model(STUDIES[sized].key))
    assert plain is not None
    tokenizer, texts = plain.data.tokenizer, [p.text for p in plain.data.read]
    used = {i for ids in tokenizer.encode([*texts, "0123456789<MASK>"]) for i in ids}
    token_ids, spelled = sorted(used), json.loads(tokenizer.json)["model"]
    names = {i: token for token, i in spelled["vocab"].items()}
    out: dict[str, object] = {
        "tokens": [names.get(i, "<MASK>") for i in token_ids],
        "merges": [x if isinstance(x, str) else " ".join(x) for x in spelled["merges"]],
        "sizes": [len(token_ids), STUDIES[sized].embedding, STUDIES[sized].hidden],
        "canary": plain.data.canaries[0],
        "secrets": sorted(
            {p.text[s.start : s.end] for p in plain.data.points for s in p.secrets}, key=len
        )[::-1],
    }
    models, numbers = {}, {}
    for name, study in STUDIES.items():
        fitted = restore_training(study, store.model(study.key))
        assert fitted is not None
        models[name] = base64.b64encode(round_and_pack(fitted.run.model, token_ids)).decode()
        rows = {row[0]: row[3] for row in measure_study(study, fitted)}
        copies = sum(plain.data.canaries[0] in p.text for p in fitted.data.read)
        promise = fitted.guarantee(study) if study.method == "crt" else None
        numbers[name] = {
            "exposure": round(float(np.floor(rows["exposure"] * 100)) / 100, 2),
            "ppl": round(rows["test_ppl_words"], 2),
            "copies": copies,
            "epsilon": promise and float(np.ceil(promise.epsilon * 1e3) / 1e3),
            "delta": promise and float(np.ceil(promise.delta * 1e4) / 1e4),
        }
        print(name, numbers[name], flush=True)
    table = store.table([study.key for study in STUDIES.values()])
    return out | {"models": models, "numbers": numbers, "made": tables.caption(table)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default=BOOK.parent / "_build" / "leak", type=Path)
    store = Store(parser.parse_args().store)
    sweep(STUDIES.values(), store, profile="first page", workers=1, executor="threads:")
    text = json.dumps(collect_page_data(store), ensure_ascii=False, separators=(",", ":"))
    MODELS.write_text(f"const LEAK = {text};\n", encoding="utf-8")
    (BOOK / "_assets" / "crt.html").write_text(render_diagram("crt"), encoding="utf-8")
