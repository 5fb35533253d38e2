"""The models in the page: the script computes what the library computes."""

import json
import random
import shutil
import subprocess

import pytest

from crtbook.figures import live

TEXTS = ["USR: my code is 4711.", "SYS: is it 47?", "USR: my code is 4711.", "SYS: thanks 12."]
ASKED = [("my code is ", "4711"), ("my code is ", "47"), ("nothing like it ", "123"), ("", "7")]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node")
def test_the_script_and_the_library_agree():
    call = (
        f"const after = counts({json.dumps(TEXTS)}, {live.ORDER});"
        f"console.log(JSON.stringify({json.dumps(ASKED)}.map(([p, d]) =>"
        f" exposure(after, {live.ORDER}, {live.ALPHABET}, p, d))));"
    )
    run = subprocess.run(["node", "-e", live.SCRIPT + call], capture_output=True, check=True)
    model = live.Counts(TEXTS)
    assert json.loads(run.stdout) == pytest.approx([model.exposure(*asked) for asked in ASKED])


def test_probabilities_sum_to_one_over_the_alphabet():
    letters = sorted(set("".join(TEXTS)))
    model = live.Counts(TEXTS)
    unseen = (live.ALPHABET - len(letters)) * model.probability("my code", "#")
    assert sum(model.probability("my code", c) for c in letters) + unseen == pytest.approx(1)


def test_a_number_that_nobody_said_has_the_exposure_of_a_guess():
    """The mean over all numbers of two digits is that of uniform ranks."""
    model = live.Counts(["no digits here"])
    assert model.exposure("code ", "42") == pytest.approx(6.644 - 5.658, abs=0.01)


def test_copies_raise_the_exposure_and_typed_text_is_escaped():
    rng = random.Random(0)
    noise = [f"order {rng.randrange(10**5):05d}" for _ in range(30)]
    few, many = (live.Counts([*noise, *["pin 8264"] * k]).exposure("pin ", "8264") for k in (0, 5))
    assert many > few + 3
    page = live.render_sentence_field(["</script>"], sentence='"<b>" 12', copies=1)
    assert page.count("</script>") == 2 and "<b>" not in page
