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
    band, measures = {"band": [round(chance.low, 2), round(chance.high, 2)]}, []
    for metric, title, ticks, more in (
        ("exposure", "Exposure of the luckiest of ten canaries (bits)", range(0, 21, 5), band),
        ("test_ppl_words", "Perplexity of held-out words", range(1, 5), {}),
    ):
        runs = table[table.metric == metric].groupby(["method", "gamma", "seed"]).value.max()
        means = runs.groupby(["method", "gamma"]).mean().round(3)
        lines = [
            {"name": name, "points": [[g, float(means.get((method, g), means[method].iloc[0]))]
                                      for g in sorted(means["crt"].index)]}
            for method, name in LINES.items()
        ]  # fmt: skip
        ends = {"low": ticks[0], "high": ticks[-1], "ticks": [*ticks]}
        measures.append({"title": title, "lines": lines, **ends, **more})
    made = f"Recorded runs: LSTM, CustomerSim, {tables.caption(table)}; means over seeds"
    made += "; grey: what luck alone gives, in 95 of 100 cases"
    held = {"most": float(table.gamma.max()), "measures": measures, "made": made}
    return f"const PANEL = {json.dumps(held, ensure_ascii=False)};\n"


if __name__ == "__main__":
    TARGET.write_text(script(), encoding="utf-8")
