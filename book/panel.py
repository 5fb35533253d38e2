"""Write the recorded runs that the panel shows: ``python book/panel.py``. A test holds them in
step with their table."""

import json
from pathlib import Path

from crtbook import tables
from crtlib.attacks.exposure import chance_band

TARGET = Path(__file__).resolve().parent / "_assets" / "panel-runs.js"
LINES = {"sgd": "non-private, masked", "crt": "CRT", "dpsgd": "DP-SGD (reads no γ)"}


def script() -> str:
    """The runs of the LSTM on CustomerSim as JavaScript: means over seeds by method and gamma."""
    table = tables.recorded("crt_laptop").query("model == 'lstm' and corpus == 'customersim'")
    table = table[table.method.isin(LINES)]
    chance = chance_band(canaries=10, seeds=int(table.seed.nunique()))
    measures = []
    for metric, title, more in (
        ("exposure", "Exposure of the luckiest of ten canaries (bits)",
         {"low": 0, "high": 20, "ticks": [0, 5, 10, 15, 20],
          "band": [round(chance.low, 2), round(chance.high, 2)]}),
        ("test_ppl_words", "Perplexity of held-out words",
         {"low": 1, "high": 4, "ticks": [1, 2, 3, 4]}),
    ):  # fmt: skip
        runs = table[table.metric == metric].groupby(["method", "gamma", "seed"]).value.max()
        means = runs.groupby(["method", "gamma"]).mean().round(3)
        lines = [
            {"name": name, "points": [[g, float(means.get((method, g), means[method].iloc[0]))]
                                      for g in sorted(means["crt"].index)]}
            for method, name in LINES.items()
        ]  # fmt: skip
        measures.append({"title": title, "lines": lines, **more})
    made = f"Recorded runs: LSTM, CustomerSim, {tables.caption(table)}; means over seeds"
    made += "; grey: what luck alone gives, in 95 of 100 cases"
    held = {"most": float(table.gamma.max()), "measures": measures, "made": made}
    return f"const PANEL = {json.dumps(held, ensure_ascii=False)};\n"


if __name__ == "__main__":
    TARGET.write_text(script(), encoding="utf-8")
