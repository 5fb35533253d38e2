"""One training path: a plan is a method like another."""

from safetensors.torch import load_file

from crtlib.experiments import own, plans
from crtlib.text import customersim, jsonl


def test_the_plan_as_a_method_has_the_weights_of_the_old_path(tmp_path):
    corpus = tmp_path / "c.jsonl"
    jsonl.write_jsonl(customersim.simulate(30, 0), corpus)
    plans.make(corpus, tmp_path / "plan", policy="regex:customersim", by="user", posterior=0.1,
               scales=(5.0,), steps=20, batch_size=8)  # fmt: skip
    for model in ("lstm", "gpt2"):
        old = plans.train_with(
            corpus, tmp_path / "plan", out=tmp_path / f"old-{model}", epochs=2, hidden=8,
            model=model, seed=3, repeatable_noise=True, device="cpu",
        )  # fmt: skip
        new = own.train(
            corpus, plan=tmp_path / "plan", out=tmp_path / f"new-{model}", epochs=2, width=8,
            model=model, seed=3, repeatable_noise=True, device="cpu",
        )  # fmt: skip
        assert old.promise == new.promise
        assert old.secrets.equals(new.secrets)
        names = [
            sorted(p.name for p in (tmp_path / f"{w}-{model}").iterdir()) for w in ("old", "new")
        ]
        assert names[0] == names[1]
        one, two = (load_file(tmp_path / f"{w}-{model}/model.safetensors") for w in ("old", "new"))
        assert one.keys() == two.keys()
        assert all((one[k] == two[k]).all() for k in one)
