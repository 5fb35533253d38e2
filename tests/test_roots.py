"""Input and output by URL: copies, what is sent, and what is said where it fails."""

import json
import tempfile
from pathlib import Path

import pytest

from crtlib import outputs, roots
from crtlib.__main__ import app
from crtlib.checks import MachineError
from crtlib.cli import POLICIES
from crtlib.text import shards

SCREEN = ("screen", "c.jsonl", "--policy", "none", "--out")


def folder(place, files, **options):
    """Write an output of these files there."""
    with (
        roots.written(roots.root(place)) as out,
        outputs.staged(out, command="demo", options=files, **options) as part,
    ):
        for name, text in files.items():
            (part / name).write_text(text)


def names(place):
    return sorted(path.name for path in roots.here(place).iterdir())


def test_a_copy_is_kept_until_what_lies_there_changes(place):
    at = roots.root(place) / "c.jsonl"
    roots.write(at, "one")
    first = roots.here(str(at))
    assert first.read_text() == "one" and roots.here(str(at)) == first
    assert roots.told(f"{first}: is damaged") == f"{at}: is damaged"
    roots.write(at, "three")
    assert roots.here(str(at)).read_text() == "three"
    if not roots.is_local(at):
        with pytest.raises(ValueError, match="no such file"):
            roots.here(f"{place}/nothing")


def test_an_output_is_found_again_and_replaced_whole(place):
    folder(place, {"a": "1", "b": "1"})
    assert names(place) == ["a", "b", outputs.MARKER]
    with roots.written(roots.root(place)) as out, pytest.raises(ValueError, match="--force"):
        outputs.check_folder(out)
    folder(place, {"a": "2"}, force=True)
    assert names(place) == ["a", outputs.MARKER] and outputs.demand(roots.here(place))
    assert not roots.matching(roots.root(place).parent, ".*")


@pytest.mark.parametrize("before", [{}, {"a": "0", "old": "0"}])
def test_a_kill_while_it_is_sent_leaves_nothing_in_the_way(bucket, monkeypatch, before):
    if before:
        folder(bucket, before)
    honest, sent = roots.put, []

    def put(path, place):
        sent.append(path)
        if len(sent) > 2:
            raise MachineError("the network is gone")
        honest(path, place)

    new = {name: name for name in ("a", "b", "c")}
    with monkeypatch.context() as patch, pytest.raises(MachineError):
        patch.setattr(roots, "put", put)
        patch.setattr(roots, "_mend", lambda *_: None)
        folder(bucket, new, force=True)
    folder(bucket, new, force=bool(before))
    assert names(bucket) == ["a", "b", "c", outputs.MARKER]


def test_what_failed_is_not_sent(bucket):
    folder(bucket, {"a": "old"})
    with pytest.raises(OSError), roots.written(roots.root(bucket)) as out:
        (out / "a").write_text("new")
        raise OSError(28, "full")
    assert roots.read(roots.root(bucket) / "a") == "old"


def test_shards_stay_until_what_they_are_for_has_been_sent(bucket, monkeypatch):
    place = roots.root(bucket)
    there = place.with_name(".runs.shards")

    def work(known, error=None):
        with (
            roots.written(place) as out,
            outputs.staged(out, command="demo", options={}),
            shards.beside(place, {}) as some,
        ):
            assert some.read("0") == known
            some.write("0", 1)
            assert roots.matching(there, "*")  # a kill runs no last line
            if error:
                raise error

    def failing(path, place):
        raise MachineError("the network is gone")

    with pytest.raises(KeyboardInterrupt):
        work(None, KeyboardInterrupt())
    with monkeypatch.context() as patch, pytest.raises(MachineError):
        patch.setattr(roots, "put", failing)
        work(1)
    with pytest.raises(ValueError, match="row 3"):
        work(1, ValueError("row 3: is empty"))  # a mistake leaves none
    assert not roots.matching(there, "*")
    work(None)
    assert names(bucket) == [outputs.MARKER] and not roots.matching(there, "*")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("s4://x/s", "out='s4://x/s': must be a folder or a URL that fsspec knows"),
        ("s3://me:word@x/s", "out: the URL holds a password; give it to fsspec, not to us"),
        ("memory://", "memory://: must name a folder in it"),
    ],
)
def test_what_can_be_no_output_is_one_line(run, tmp_path, monkeypatch, out, message):
    monkeypatch.chdir(tmp_path)
    Path("c.jsonl").write_text('{"id": "d", "user": "u", "turns": []}\n')
    code, said, err = run(*SCREEN, out)
    assert (code, said) == (2, "") and err.splitlines()[-1].startswith("crtlib: error: ")
    assert message in err and "word" not in err.replace("password", "")


def test_without_credentials_it_is_one_line_and_nothing_is_left(run, bucket, monkeypatch, tmp_path):
    import s3fs

    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    code, out, err = run("screen", f"{bucket}/c.jsonl", "--policy", "none", "--out", tmp_path / "s")
    s3fs.S3FileSystem.clear_instance_cache()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "c.jsonl: does not let us in (NoCredentialsError); fsspec takes" in err
    assert not list(tmp_path.iterdir())


def test_files_of_others_stay(run, bucket):
    roots.write(roots.root(bucket) / "all" / "theirs.txt", "theirs")
    code, _, err = run(*SCREEN, f"{bucket}/all")
    assert code == 2 and f"{bucket}/all: holds files that are not ours; choose another" in err
    assert roots.read(roots.root(bucket) / "all" / "theirs.txt") == "theirs"


def test_an_output_is_no_input(run, bucket):
    words = ("screen", f"{bucket}/c", "--policy", "none", "--out", f"{bucket}/c/s")
    code, _, err = run(*words)
    assert code == 2 and f"--out: {bucket}/c/s is, holds or lies in what --corpus names" in err


def test_what_is_said_of_a_bucket_names_the_bucket(run, bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = roots.root(bucket) / "in.jsonl"
    roots.write(source, "{")
    words = ("screen", source, "--policy", "none", "--out", f"{bucket}/s")
    code, _, err = run(*words)
    assert code == 2 and f"{bucket}/in.jsonl" in err and str(tmp_path) not in err
    roots.write(source, '{"id": "d", "user": "u", "turns": [{"speaker": "USR", "text": "a"}]}\n')
    code, out, err = run(*words)
    note = f"private files lie in {bucket}/s: their protection is the bucket's\n"
    assert (code, err) == (0, note) and f"{bucket}/s/screening.html" in out
    code, out, _ = run(*words)
    assert code == 0 and f"{bucket}/s: up to date" in out
    code, out, _ = run(*words, "--json")
    assert code == 0 and str(tmp_path) not in out and json.loads(out)["ok"]
    code, _, err = run(*words, "--reveal", 1)
    assert code == 2 and f"--out: {bucket}/s was made by 'crtlib screen'" in err
    assert str(tmp_path) not in err


URL = "s3://nobody/x"


@pytest.mark.parametrize("name", sorted(app.every()))
def test_no_other_argument_of_any_command_is_a_url(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    command = app.every()[name]
    for option in command.known(None):
        may = name == "screen" and option.name in (*POLICIES, "corpus", "out")
        if may or not (option.is_path or option.name in POLICIES):
            continue
        given = {o.flag: "x" for o in command.known(None) if o.by_place} | {option.flag: URL}
        words = [w for k, v in given.items() for w in ([k, v] if k.startswith("--") else [v])]
        says = f"crtlib: error: {option.flag} {URL}: is a URL, must be a local file or folder\n"
        assert run(*name.split(), *words) == (2, "", says)
    assert not list(tmp_path.iterdir())
