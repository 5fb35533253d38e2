"""Who receives a model is told what is wrong, in one line that no name of a file can change; and a
certificate is written as a pair or not at all."""

import errno
import json
import os
import shutil
import sys

import pytest

from confide.release import certify, seal, verify
from confide.reports import certificate_pages
from tests import trainings
from tests.release.test_certify import TINY, corpus_in
from tests.texts import write_simulated_text
from tests.trainings import CRT, copy_folder, make_certificate


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model with its certificate beside it."""
    home = tmp_path_factory.mktemp("made")
    trainings.train(corpus_in(home), out=home / "m", method="crt", **TINY)
    certify.write_certificate(home / "m", home / "c.html", secrets_per_person=(2,), audience="both")
    return home


@pytest.fixture
def home(made, tmp_path):
    return shutil.copytree(made, tmp_path / "home", symlinks=True)


@pytest.fixture
def told(monkeypatch, capsys):
    """What the verifier says, and its exit code."""

    def call(home, *more):
        words = ["verify", str(home / "m"), str(home / "c.json"), *more]
        monkeypatch.setattr(sys, "argv", words)
        code = verify.main()
        said = capsys.readouterr().out
        assert said.count("\n") == 1 and said.rstrip("\n").isprintable()
        return code, said

    return call


def key_of(home):
    return json.loads((home / "c.json").read_text())["public_key"]


def sign_again(home, **changes):
    """A releaser who says something else, in his own name."""
    value = json.loads((home / "c.json").read_text())
    for path, new in changes.items():
        *above, last = [int(k) if k.isdecimal() else k for k in path.split("__")]
        place = value
        for name in above:
            place = place[name]
        place[last] = new
    value["id"] = certificate_pages.hash_certificate(value)
    signed = seal.sign_value(value, seal.ensure_signing_key(home / "talk.jsonl.odometer"))
    (home / "c.json").write_text(json.dumps(signed))


LIE = "m. **Nothing of anybody can be learned from it.** It"


def test_the_name_of_a_folder_says_nothing(home):
    """The page said "Model m. **Nothing of anybody can be learned from it.** It was trained on"."""
    (home / "m").rename(home / LIE)
    (home / "m.work").rename(home / f"{LIE}.work")
    value = certify.write_certificate(home / LIE, home / "lie.html", secrets_per_person=())
    assert value["model"]["name"] == "m_Nothing_of_anybody_can_be_learned_from_it_It"
    page = (home / "lie.html").read_text()
    assert "Model “m_Nothing" in page and "<strong>Nothing" not in page
    assert f"crtlib certify &#39;{LIE}&#39; --out lie.html" in page


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": LIE},
        {"name": "x is harmless: nothing can leak"},
        {"name": ""},
        {"secrets_per_person": (0,)},
        {"secrets_per_person": 2},
        {"secrets_per_person": "2"},
    ],
)
def test_a_name_that_is_a_sentence_is_refused(home, wrong):
    with pytest.raises(ValueError, match=r"^(name|secrets_per_person)=.*: must be "):
        certify.write_certificate(home / "m", home / "lie.html", **wrong)
    assert not (home / "lie.html").exists()


@pytest.mark.parametrize("form", [str, str.upper, " {} ".format])
def test_an_honest_release_is_as_it_was_signed(home, told, form):
    code, said = told(home, "--key", form(key_of(home)))
    assert code == 0 and said.startswith("as it was signed") and "no " not in said


def test_what_people_read_is_compared(home, told):
    page = home / "c.html"
    text = page.read_text()
    page.write_text(text.replace("at most", "at the most", 1))
    assert told(home)[0] == 4 and "the page beside" in told(home)[1]
    page.unlink()
    assert told(home)[0] == 0 and "there is no page c.html to compare" in told(home)[1]


def test_a_key_that_is_none_is_refused(home, told):
    assert told(home, "--key", "abc")[1].startswith("refused: --key: must be 64")
    assert "another key" in told(home, "--key", "ab" * 32)[1]


def test_a_list_that_is_a_link_is_refused(home, told):
    os.rename(home / "m" / "release.json", home / "elsewhere.json")
    (home / "m" / "release.json").symlink_to(home / "elsewhere.json")
    code, said = told(home)
    assert code == 4 and "is a link" in said


NAMES = [
    b"\x1b[2K\ras it was signed, by key KEY\x1b[8m", b"a\nas it was signed", b"\xff\xfe", b"\x9b2K",
    "\u202edengis saw ti sa".encode(), "\u2028as it was signed".encode(), b"\x07\x08\x08",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", NAMES, ids=["escape", "line", "bytes", "csi", "turned", "separator", "back"]
)
def test_a_name_of_a_file_cannot_change_the_answer(home, told, name):
    with open(os.fsencode(home / "m") + b"/" + name, "w"):
        pass
    code, said = told(home)
    assert code == 4 and said.startswith("refused: ")


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("rates__public__upper", -1), ("rates__trace__rate", True), ("rates__trace__upper", 1e-9),
        ("rates__trace__upper", 7), ("guarantee__missed__delta", 10**400), ("searched", {}),
        ("guarantee__missed__epsilon", "nan"), ("right_guess__0__prior", 1e308),
        ("not_promised__1", True), ("issued", 5), ("unit", "word"),
        ("assumed__0", "nothing"), ("labels", None), ("rates__miss__all", []),
        ("rates__miss__all__1", 0), ("rates__miss__rate", 1), ("labels__secrets", 0),
        ("rates__by_kind__tracking__trace__upper", 1e-9),
        ("model__name", LIE), ("model__name", "a\nb"),
        pytest.param("rates__miss__count", 10**400, id="more missed"),
        pytest.param("rates__by_kind__tracking__trace__all__1", 10**400, id="more of a kind"),
        pytest.param("model__trained_parameters", 10**400, id="more trained"),
    ],
)  # fmt: skip
def test_a_number_that_no_certificate_has_is_refused(home, told, path, new):
    sign_again(home, **{path: new})
    code, said = told(home)
    assert code == 4 and "as it was signed" not in said


FORGED = {
    "more parameters were trained": {"model__trained_parameters": 4753},
    "trace rate is smaller than that of the files": {
        # Its own counts allow it, and those of the labels: the files keep the true one.
        "labels__secrets": 10**6, "rates__trace__of": 10**5, "rates__trace__all": [0, 10**5],
        "rates__trace__upper": 1e-4,
    },
}  # fmt: skip


@pytest.mark.parametrize("words", FORGED)
def test_a_number_that_only_one_check_can_see_is_refused_by_it(home, told, words):
    sign_again(home, **FORGED[words])
    code, said = told(home)
    assert code == 4 and words in said


@pytest.mark.parametrize("content", ["", "[]", "{", "7", '{"a": 1, "a": 2}', "[" * 10**5])
def test_what_is_no_certificate_is_one_line(home, told, content):
    (home / "c.json").write_text(content)
    assert told(home)[0] == 4


# --------------------------------------------------------------------------- both files, or none
def files_of(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("out", ["new.html", "m/new.html"])
@pytest.mark.parametrize("names", range(4))
def test_a_certificate_that_was_stopped_between_its_files_is_made_by_the_same_command(
    home, told, monkeypatch, out, names
):
    """Before each change of a name the disk breaks; nothing is cleaned up, as after a kill."""
    real, calls = os.replace, []

    def replace(a, b):
        calls.append(b)
        if len(calls) > names:
            raise OSError(errno.EIO, "broken", str(b))
        real(a, b)

    monkeypatch.setattr(os, "replace", replace)
    before = files_of((home / out).parent)
    whole = names >= (2 if out == "new.html" else 3)
    try:
        certify.write_certificate(home / "m", home / out, secrets_per_person=(2,))
        assert whole
    except OSError:
        assert not whole
    assert ((home / out).with_suffix(".json").exists()) == whole
    assert names or files_of((home / out).parent) == before
    monkeypatch.setattr(os, "replace", real)
    try:
        certify.write_certificate(home / "m", home / out, secrets_per_person=(2,), force=whole)
    except ValueError as error:
        raise AssertionError("the same command is refused") from error
    shutil.copy((home / out).with_suffix(".json"), home / "c.json")
    shutil.copy(home / out, home / "c.html")
    assert told(home)[0] == 0, told(home)
    assert not list(home.rglob("*.part"))


def test_a_page_that_is_not_ours_is_not_replaced(home):
    (home / "new.html").write_text("<title>Shopping</title>")
    with pytest.raises(ValueError, match="exists"):
        certify.write_certificate(home / "m", home / "new.html", secrets_per_person=(2,))


def test_who_receives_a_model_is_not_told_of_another(
    certified_model, tmp_path, monkeypatch, capsys
):
    """The certificate of an earlier model was "as it was signed" for a later one; without
    a key to compare, whoever signed a release anew was believed."""
    key = seal.ensure_signing_key(certified_model / "c.jsonl.odometer")
    value = json.loads((certified_model / "m.json").read_text())

    def told(*words, **changes):
        path = tmp_path / "m.json"
        path.write_text(json.dumps(sign_certificate(value | changes, key)))
        monkeypatch.setattr(sys, "argv", ["verify", str(certified_model / "m"), str(path), *words])
        return verify.main(), capsys.readouterr().out

    code, said = told()
    assert code == 0 and "no key was compared, so anybody may have signed it" in said
    code, said = told("--key", value["public_key"])
    assert code == 0 and "compared" not in said
    code, said = told(model=value["model"] | {"sha256": "0" * 64})
    assert code == 4 and "is of another model" in said
    rows = [row | {"at_most": 0.5} for row in value["right_guess"]]
    code, said = told(right_guess=rows)
    assert code == 4 and "a guess can be right more often than it states" in said


def sign_certificate(value, key):
    return seal.sign_value(value | {"id": certificate_pages.hash_certificate(value)}, key)


def test_a_page_that_was_edited_is_not_verified(certified_model, tmp_path, run):
    """The page said another epsilon than its JSON, and was "verified"."""
    home = copy_folder(certified_model, tmp_path)
    page = home / "m.html"
    words = ["certify", home / "m", "--out", page]
    for audience in ("both", "officer"):
        assert run(*words, "--for", audience, "--force")[0] == 0
        assert run(*words, "--verify")[0] == 0
    page.write_text(page.read_text().replace("</body>", "<p>It is safe.</p></body>"))
    code, said, _ = run(*words, "--verify")
    assert code == 4 and "m.html: the page differs from its certificate" in said
    page.unlink()
    assert run(*words, "--verify")[0] == 4


@pytest.mark.parametrize("how", ["certify", "verify"])
def test_what_stands_twice_in_a_certificate_is_not_as_it_was_signed(
    tmp_path, run, monkeypatch, how
):
    """Whoever opens the file reads epsilon 0.001; both verifiers read the other one."""
    trainings.train(write_simulated_text(tmp_path / "c.jsonl"), out=tmp_path / "m", **CRT)
    make_certificate(tmp_path / "m", tmp_path / "m.html")
    page = tmp_path / "m.json"
    first = '{"guarantee": {"secret": {"epsilon": 0.001, "delta": 1e-9}},'
    page.write_text(first + page.read_text().lstrip()[1:])
    if how == "certify":
        code = run("certify", tmp_path / "m", "--out", tmp_path / "m.html", "--verify")[0]
    else:
        monkeypatch.setattr(sys, "argv", ["verify", str(tmp_path / "m"), str(page)])
        code = verify.main()
    assert code != 0
