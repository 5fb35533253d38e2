"""A released folder by itself: what may leave, what follows from it, and who notices a change."""

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from confide import odometer_lines, spending
from confide.release import (
    certifiable_run,
    certificate_parts,
    composed_promise,
    file_sources,
    released_folder,
    seal,
    source_fold,
    verify,
)
from confide.reports import certificate_pages
from crtlib import outputs
from crtlib.accounting import privacy_cost
from crtlib.accounting.events import SampledGaussian, count_private_steps

STEP = SampledGaussian(0.01, 1.0, 500)
S, T = file_sources.Screening("5" * 64, 0.05, 0.002), file_sources.Screening("6" * 64, 0.03, 0.001)
RUN = file_sources.NoisedSource("a", "turn", "replace", (STEP,), S)
RAW_RUN = file_sources.NoisedSource("a", "turn", "replace", (STEP,), None)
KEY = released_folder.Ed25519PrivateKey.generate()


def released(folder, *sources, key=KEY, texts=("README.md", "model.safetensors")):
    folder.mkdir()
    out = released_folder.Release(folder)
    (folder / "crtlib.json").write_text("{}")
    for name in texts:
        out.write(name, file_sources.SourcedContent.text(name, *sources))
    out.close(key, "a")
    return folder


def test_what_a_file_may_know_decides_what_is_promised():
    kind = "bayesian_confidentiality"
    alone = source_fold.combine_sources([RAW_RUN, file_sources.ConstantSource("bytes")])
    assert (alone.kind, alone.gamma, alone.delta2, alone.events) == ("dp", 1.0, 0.0, (STEP,))
    screened = source_fold.combine_sources([RAW_RUN, file_sources.ScreenedSource("vocabulary", S)])
    assert (screened.kind, screened.delta2) == (kind, S.public)  # not "any one message"
    assert (
        source_fold.combine_sources([RAW_RUN, file_sources.RedactedSource("templates", S)]).delta2
        == S.trace
    )
    crt = source_fold.combine_sources(
        [
            RUN,
            file_sources.ScreenedSource("public steps", S),
            file_sources.ScreenedSource("vocabulary", S),
        ]
    )
    assert (crt.kind, crt.gamma, crt.delta2) == (kind, S.trace, S.public)  # one screening, once
    two = source_fold.combine_sources(
        [
            RUN,
            file_sources.ScreenedSource("public steps", S),
            file_sources.ScreenedSource("vocabulary", T),
        ]
    )
    assert two.delta2 == pytest.approx(S.public + T.public)
    assert source_fold.combine_sources([file_sources.RawSource("weights")]).kind == "none"
    assert source_fold.combine_sources(
        [RUN, file_sources.RawSource("The card was learned from raw text")]
    ).void
    assert source_fold.combine_sources([RUN, RUN]).events == (STEP,)  # in two files, and run once


@pytest.mark.parametrize("sources, says", [
    ([RUN, RAW_RUN], "declared in two ways"),
    ([RAW_RUN, RUN], "declared in two ways"),
    ([RUN, file_sources.ScreenedSource("vocabulary", replace(S, public=0.0))],
     "screening is declared"),
    ([RUN, replace(RUN, run="b", unit="user")], "different promises"),
    ([RUN, file_sources.PlannedSource("p", "0" * 64, "reference", (), True)], "different promises"),
    ([RUN, file_sources.BaseSource("m0", "unknown")], "It is not known what m0"),
])  # fmt: skip
def test_what_contradicts_itself_is_void(sources, says):
    assert says in " ".join(source_fold.combine_sources(sources).void)


def test_bases_from_outside_are_assumed_and_known_ones_are_not():
    assert not source_fold.combine_sources(
        [RUN, file_sources.BaseSource("m0", "known"), file_sources.BaseSource("x", "outside")]
    ).void


def test_nothing_leaves_that_does_not_say_what_it_knows(tmp_path):
    out = released_folder.Release(tmp_path)
    with pytest.raises(ValueError, match="does not state what it may know"):
        out.write("a.txt", file_sources.SourcedContent(b"", frozenset()))
    for name in ("../a.txt", "/a.txt", ".a", "a b.txt", "müller.txt", "a/../b", ""):
        with pytest.raises(ValueError, match="not an allowed name for a released file"):
            out.write(name, file_sources.SourcedContent.text("", RUN))
    (tmp_path / "notes.txt").write_text("Ada Lovelace")
    (tmp_path / "crtlib.json").write_text("{}")
    with pytest.raises(ValueError, match=r"notes\.txt: was not written as part of the release"):
        out.close(KEY, "a")
    assert not (tmp_path / seal.RELEASE_FILE).exists()


def test_a_text_knows_what_all_its_parts_know():
    whole = file_sources.SourcedContent.text(
        "x", file_sources.SourcedContent.text("", RUN), file_sources.BaseSource("m", "known")
    )
    assert whole.sources == {RUN, file_sources.BaseSource("m", "known")}


def test_a_release_is_read_as_it_was_written(tmp_path):
    folder = released(tmp_path / "m", RUN, file_sources.ScreenedSource("vocabulary", S))
    known = released_folder.read_release(folder)
    assert (
        set(known.sources) == {RUN, file_sources.ScreenedSource("vocabulary", S)}
        and known.altered == ()
    )
    assert known.key == KEY.public_key().public_bytes_raw().hex() and known.run == "a"
    (folder / "README.md").write_text("other  .m")
    (folder / "b").mkdir()
    (folder / "b" / "c").write_text("")
    assert released_folder.read_release(folder).altered == ("README.md", "b/c")


def test_a_change_of_the_marker_is_a_change(tmp_path):
    folder = released(tmp_path / "m", RUN)
    (folder / "crtlib.json").write_text("[]")
    assert released_folder.read_release(folder).altered == ("crtlib.json",)


def test_a_declared_value_is_one_of_a_finite_set():
    d = file_sources.declare_interval("perplexity", 12.3, (8, 16))
    assert (d.value, d.bits) == ("8 to 16", pytest.approx(1.585, abs=1e-3))
    assert file_sources.declare_interval("perplexity", 16.0, (8, 16)).value == "16 or more"
    with pytest.raises(ValueError, match="must be one of"):
        file_sources.DeclaredSource("perplexity", "12.345", ("8 to 16", "16 or more"))


def test_a_signature_is_of_this_content_by_this_key():
    value = seal.sign_value({"a": 1}, KEY)
    assert seal.check_signature(value, "x") == value
    for other in ({"a": 2}, {"b": 1}, {"signature": "00" * 64}, {"public_key": "00" * 32}):
        with pytest.raises(ValueError, match="changed after it was signed"):
            seal.check_signature(value | other, "x")
    stranger = seal.sign_value({"a": 1}, released_folder.Ed25519PrivateKey.generate())
    with pytest.raises(ValueError, match="signed with another key"):
        seal.check_signature(stranger, "x", value["public_key"])


def test_the_key_is_private_and_stays(tmp_path):
    with contextlib.suppress(ValueError):  # one that others may read is refused as well
        seal.ensure_signing_key(tmp_path)
    assert (tmp_path / seal.SIGNING_KEY_FILE).stat().st_mode & 0o777 == 0o600
    first = seal.ensure_signing_key(tmp_path)
    assert seal.ensure_signing_key(tmp_path).private_bytes_raw() == first.private_bytes_raw()
    assert os.listdir(tmp_path) == [seal.SIGNING_KEY_FILE]


# --------------------------------------------------------------------------- who receives it
def certified(folder, key=KEY, **changes):
    """A certificate of a release, of what its sources alone promise, signed."""
    own = source_fold.combine_sources(released_folder.read_release(folder).sources)
    promise = composed_promise.compose_promise(own, None, delta=1e-5)
    value = {
        "verdict": "holds", "unit": own.unit,
        "model": {"sha256": outputs.hash_file(folder / "model.safetensors")},
        "guarantee": promise.guarantee(),
        "value_guess": [
            {"prior": p, "at_most": q} for p, q in promise.value_guesses()
        ],
        "right_guess": [
            {"who": who, "copies": k, "at_most": p}
            for who, k, p in promise.right_guesses((2,))
        ],
        "spent_before": {
            "alone": composed_promise.pair_as_json(promise.random_secret_bound()),
            "gamma": promise.gamma, "delta2": promise.delta2,
        },
        "mechanism": {"phases": [
            {"kind": "private", "noise_multiplier": noise, "sampling_probability": q, "steps": n}
            for (noise, q), n in count_private_steps(own.events).items()
        ]},
        "declared": [{"of": d.of, "value": d.value, "bits": d.bits} for d in own.declared],
        "treated_as_public": [*certificate_parts.ALWAYS_KNOWN],
        "not_promised": certificate_parts.list_not_promised(own.unit, own),
    }  # fmt: skip
    value = json.loads(json.dumps(value))
    for path, new in changes.items():
        part, _, last = path.rpartition("__")
        place = value
        for name in part.split("__") if part else ():
            place = place[int(name)] if name.isdigit() else place[name]
        place[int(last) if last.isdigit() else last] = new
    sealed = certificate_pages.assemble_certificate(value, issued="2026-01-01T00:00:00Z")
    return seal.sign_value(sealed, key)


HEARD = file_sources.declare_interval("perplexity", 12.3, (8, 16))
PLANNED = file_sources.PlannedSource("a", "0" * 64, "reference", ((0.001, 0.09),), True)


@pytest.mark.parametrize("sources", [
    (RUN, file_sources.ScreenedSource("public steps", S)), (RAW_RUN,), (RAW_RUN, HEARD), (PLANNED,),
])  # fmt: skip
def test_who_receives_an_honest_release_is_told_so(tmp_path, sources):
    folder = released(tmp_path / "m", *sources)
    value = certified(folder)
    public = value["public_key"]
    assert verify.find_certificate_fault(folder, value, public) is None
    assert "another key" in verify.find_certificate_fault(folder, value, "ab" * 32)
    (folder / "README.md").unlink()
    assert verify.find_certificate_fault(folder, value) == "README.md: is not what was released"


@pytest.mark.parametrize("changes, says", [
    ({"guarantee__missed__epsilon": 0.5}, "smaller than the noise allows"),
    ({"guarantee__secret__epsilon": 0.001}, "can be"),
    ({"guarantee__secret__delta": 1e-5}, "leaves out what was learned without noise"),
    ({"guarantee__missed__delta": -1}, "delta is not a probability"),
    ({"guarantee__missed__delta": 1e308}, "delta is not a probability"),
    ({"guarantee__kind": "dp"}, "another kind"),
    ({"guarantee__relation": "add_or_remove"}, "another kind"),
    ({"unit": "user"}, "another unit"),
    ({"declared": []}, "declared public"),
    ({"declared": [{"of": HEARD.of, "value": HEARD.value, "bits": 0.1}]}, "reveals more bits"),
    ({"treated_as_public": ["nothing"]}, "treated as public"),
    ({"treated_as_public": [certificate_parts.EXACT_COUNTS_NOTE]}, "treated as public"),
    ({"not_promised": certificate_parts.NOT_PROMISED[1:]}, "what is not promised"),
    ({"verdict": "void"}, "no promise"),
    ({"model__sha256": "0" * 64}, "another model"),
    ({"model__sha256": None}, "another model"),
    ({"value_guess": [{"prior": 1e-6, "at_most": 0.5}]}, "omits promises about values"),
    ({"value_guess": [{"prior": 1e-6, "at_most": 1e-6}, {"prior": 1e-3, "at_most": 0.5}]},
     "a value can be guessed more often"),
    ({"value_guess": [{"prior": 0.1, "at_most": 0.01}, {"prior": 1e-3, "at_most": 0.5}]},
     "a value can be guessed more often"),
    ({"right_guess": []}, "omits right guesses"),
    ({"right_guess": [{"who": w, "copies": 1, "at_most": 0.5001}
                      for w in ("random", "missed", "public")]}, "a guess can be right more often"),
    ({"right_guess": [{"who": w, "copies": 1, "at_most": p} for w, p in (
        ("random", 1.0), ("missed", 1.0), ("public", 1.0), ("found", 0.5))]},
     "a guess can be right more often"),
    ({"spent_before__alone__epsilon": 0.001}, "this model alone"),
    ({"spent_before__alone__delta": 1e-9}, "this model alone"),
    ({"spent_before__gamma": 1e-9}, "with what was spent before"),
    ({"spent_before__delta2": 1e-9}, "with what was spent before"),
    ({"mechanism__phases__0__noise_multiplier": 99.0}, "private steps are not those of the files"),
    ({"mechanism__phases__0__steps": 1}, "private steps are not those of the files"),
    ({"mechanism__phases": []}, "private steps are not those of the files"),
])  # fmt: skip
def test_a_certificate_that_promises_more_than_its_files_keep_is_refused(tmp_path, changes, says):
    folder = released(tmp_path / "m", RUN, file_sources.ScreenedSource("public steps", S), HEARD)
    assert verify.find_certificate_fault(folder, certified(folder)) is None
    assert says in (verify.find_certificate_fault(folder, certified(folder, **changes)) or "")


def test_a_plan_that_promises_more_than_it_keeps_is_refused(tmp_path):
    folder = released(tmp_path / "m", PLANNED)
    less = [{"prior": 0.001, "at_most": 0.01}]
    assert "more often" in verify.find_certificate_fault(
        folder, certified(folder, value_guess=less)
    )
    assert "omits promises" in verify.find_certificate_fault(
        folder, certified(folder, value_guess=[])
    )
    row = {"who": "missed", "copies": 1, "at_most": 0.5}  # a plan promises none
    assert "right more often" in verify.find_certificate_fault(
        folder, certified(folder, right_guess=[row])
    )


def test_a_certificate_of_another_key_or_of_void_files_is_refused(tmp_path):
    folder = released(tmp_path / "m", RUN, file_sources.ScreenedSource("public steps", S))
    other = certified(folder, key=released_folder.Ed25519PrivateKey.generate())
    assert "another key than the certificate" in (
        verify.find_certificate_fault(folder, other) or ""
    )
    void = released(
        tmp_path / "n", RUN, file_sources.RawSource("The card was learned from raw text")
    )
    assert "raw text" in verify.find_certificate_fault(void, certified(void))


def test_it_compares_with_the_line_of_the_odometer():
    line = odometer_lines.OdometerEntry(
        entry="e", previous=None, time="", corpus="c", run="a", state="finished", unit="turn",
        method="crt", relation="replace", events=(STEP,), screening="5", gamma=S.trace,
        delta2=S.public, holds={}, model="m", repeats_counted=True,
    )  # fmt: skip
    own = source_fold.combine_sources([RUN, file_sources.ScreenedSource("public steps", S)])
    record = {"model": {"sha256": "m"}, "searched": {"trials": 1}}
    assert certifiable_run._check_odometer_lines([line], own, record) == []
    for change, name in (
        ({"events": (STEP, STEP)}, "events"), ({"unit": "user"}, "unit"), ({"model": "x"}, "model"),
        ({"relation": "add_or_remove"}, "relation"), ({"gamma": 0.01}, "trace rate"),
        ({"delta2": 0.0}, "public rate"), ({"trials": 2}, "trials"),
    ):  # fmt: skip
        said = certifiable_run._check_odometer_lines([replace(line, **change)], own, record)
        assert said == [f"The odometer disagrees about the {name} of this run."]


def test_earlier_runs_compose_by_their_groups_and_rates():
    earlier = odometer_lines.OdometerEntry(
        entry="e", previous=None, time="", corpus="c", run="b", state="finished", unit="turn",
        method="crt", relation="replace", events=(STEP,), screening=T.id, gamma=T.trace,
        delta2=T.public, holds={}, about={"user": {"turn": 3}}, hides_copies=False, void=(),
    )  # fmt: skip
    own = source_fold.combine_sources(
        [replace(RUN, unit="user"), file_sources.ScreenedSource("public steps", S)]
    )
    both = composed_promise.compose_promise(own, spending.SpentBudget((earlier,)), delta=1e-5)
    assert both.groups == (1, 3) and both.events == (STEP, STEP)
    assert both.gamma == 1.0 and both.delta2 == 1.0  # rates of messages bound nothing of persons
    hidden = spending.SpentBudget((replace(earlier, hides_copies=True),))
    assert (
        composed_promise.compose_promise(own, hidden, delta=1e-5).gamma == 1.0
    )  # three messages masked together
    theirs = spending.SpentBudget((replace(earlier, unit="user"),))
    added = composed_promise.compose_promise(own, theirs, delta=1e-5)
    assert added.gamma == pytest.approx(S.trace + T.trace)
    assert added.delta2 == pytest.approx(S.public + T.public)
    exact = privacy_cost.epsilon(
        (STEP, STEP), delta=1e-5, neighbouring_relation="replace", group=(1, 3)
    )
    assert both.missed_bound()[0] == pytest.approx(exact, rel=1e-6)


KINDS = ("ConstantSource|NoisedSource|PlannedSource|ScreenedSource|RedactedSource|BaseSource|"
         "DeclaredSource|declare_value|RawSource|BroughtSource|TaughtSource")  # fmt: skip
PLACES = {
    "commands/release.py", "release/evidence.py", "training/odometer_run.py",
    "training/record_sources.py", "training/training_with_plan.py",
}  # fmt: skip


def test_few_places_say_what_something_may_know():
    """Who adds one decides what a certificate promises: read it twice."""
    home = Path(released_folder.__file__).parents[1]
    found = {
        str(p.relative_to(home)) for p in home.rglob("*.py")
        if re.search(rf"\b({KINDS})\(", p.read_text())
    }  # fmt: skip
    assert found - {"release/released_folder.py", "release/file_sources.py"} == PLACES
    writers = {str(p.relative_to(home)) for p in home.rglob("*.py") if "Release(" in p.read_text()}
    assert writers == {"release/released_folder.py", "training/training_record.py"}


def test_the_verifier_is_short_and_needs_no_torch():
    tree = ast.parse(Path(verify.__file__).read_text())
    for node in ast.walk(tree):  # what it says of itself may be as long as it has to be
        if isinstance(node, ast.FunctionDef | ast.Module) and ast.get_docstring(node):
            node.body = node.body[1:]
    assert len(ast.unparse(tree).splitlines()) <= 230
    code = "import sys, confide.release.verify; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
