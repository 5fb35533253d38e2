"""A folder is written as a whole or not at all; nobody's file is lost; private stays private."""

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from crtlib import files, outputs
from crtlib.text import corpus_folder


def write(folder, text="a", **options):
    keys = {"command": "demo", "options": {"n": 1}} | options
    with outputs.staged_folder(folder, **keys) as part:
        (part / "sub").mkdir(exist_ok=True)
        (part / "sub/a.txt").write_text(text)
        (part / "page.html").write_text(text)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    """Sets the umask of this test alone."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_the_marker_says_of_what_a_folder_was_made(tmp_path):
    (tmp_path / "in.csv").write_text("x")
    facts = {}
    with outputs.staged_folder(
        tmp_path / "o",
        command="ingest",
        options={"b": None, "a": [1, "x"]},
        inputs={"in.csv": tmp_path / "in.csv", "base": "f" * 64},
        facts=facts,
    ) as part:
        (part / "a.txt").write_text("hello")
        facts["turns"] = 3
    content = json.loads((tmp_path / "o/crtlib.json").read_text())
    assert content["schema"] == "crtlib/output/2" and content["command"] == "ingest"
    assert content["options"] == {"b": None, "a": [1, "x"]} and content["facts"] == {"turns": 3}
    assert content["inputs"] == {
        "in.csv": outputs.hash_file(tmp_path / "in.csv"),
        "base": "f" * 64,
    }
    assert list(content["files"]) == ["a.txt"] and str(tmp_path) not in json.dumps(content)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.csv", "o"]


@pytest.mark.parametrize(
    ("mask", "private", "public", "closed", "shown"),
    [
        (0o022, 0o600, 0o644, 0o700, 0o755),
        (0o077, 0o600, 0o600, 0o700, 0o700),
        (0o027, 0o600, 0o640, 0o700, 0o750),
        (0o000, 0o600, 0o644, 0o700, 0o755),
    ],
)
def test_modes_are_private_unless_named_public_less_the_umask(
    tmp_path, umask, mask, private, public, closed, shown
):
    umask(mask)
    write(tmp_path / "o", public=["*.html"])
    assert mode(tmp_path / "o/sub/a.txt") == private and mode(tmp_path / "o/sub") == closed
    assert mode(tmp_path / "o/page.html") == public == mode(tmp_path / "o/crtlib.json")
    assert mode(tmp_path / "o") == shown
    write(tmp_path / "p")
    assert mode(tmp_path / "p") == 0o700 and mode(tmp_path / "p/crtlib.json") == 0o600


def test_a_private_file_stays_private_when_it_is_replaced(tmp_path, umask):
    write(tmp_path / "o", public=["*"])
    os.chmod(tmp_path / "o/page.html", 0o600)
    write(tmp_path / "o", public=["*"], force=True)
    assert mode(tmp_path / "o/page.html") == 0o600 and mode(tmp_path / "o/sub/a.txt") == 0o644


def test_while_it_is_written_nobody_else_can_look(tmp_path, umask):
    umask(0)
    with outputs.staged_folder(tmp_path / "o", command="d", options={}) as part:
        assert mode(part) == 0o700 and not (tmp_path / "o").exists()


def test_an_error_leaves_all_as_it_was(tmp_path):
    def failing(force):
        with outputs.staged_folder(tmp_path / "o", command="d", options={}, force=force) as part:
            (part / "half").write_text("x")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        failing(False)
    assert not list(tmp_path.iterdir())
    write(tmp_path / "o")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(OSError, match="No space"):
        failing(True)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_results_are_replaced_with_force_only(tmp_path):
    write(tmp_path / "o")
    with pytest.raises(ValueError, match=r"holds what 'crtlib demo' made; choose"):
        write(tmp_path / "o", "b")
    assert (tmp_path / "o/page.html").read_text() == "a"
    write(tmp_path / "o", "b", force=True)
    assert (tmp_path / "o/page.html").read_text() == "b"
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_ours_is_never_replaced(tmp_path, monkeypatch, force):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("ten years")
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/crtlib.json").write_text('{"schema": "other"}')
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "added")
    (tmp_path / "added/notes.txt").write_text("mine")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    for out, message in (
        ("", "is empty; name"),
        ("mine", "holds files that are not ours"),
        (".", "holds files that are not ours"),
        ("fake", "holds files that are not ours"),
        ("file", "is a file; a folder is needed"),
        ("pipe", "is a pipe or a device"),
        ("/dev/null", "is a pipe or a device"),
        ("added", "files that no command wrote" if force else "choose another folder"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            write(out, force=force)
        assert "\n" not in str(error.value)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_an_output_is_no_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("o")
    (tmp_path / "link").symlink_to("o")
    for out, made_from in (
        ("o", "o"),
        ("link", "o"),
        ("o", "link"),
        ("o", "o/page.html"),
        ("../" + tmp_path.name + "/o", "o"),
        ("o/sub", "o"),
        ("o/new", "o"),
    ):
        with pytest.raises(ValueError, match="input"):
            write(out, inputs={"in": made_from}, force=True)
    with pytest.raises(ValueError, match="is an input"):
        outputs.check_output_file("o/page.html", inputs=["link/page.html"], force=True)
    assert outputs.find_marker("o") and (tmp_path / "o/page.html").read_text() == "a"


def test_a_file_is_replaced_with_force_only_and_a_device_never(tmp_path):
    path = tmp_path / "a.jsonl"
    assert outputs.check_output_file(path) == path
    path.write_text("x")
    with pytest.raises(ValueError, match="exists; choose another name or force=True"):
        outputs.check_output_file(path)
    assert outputs.check_output_file(path, force=True) == path
    for out in ("/dev/null", "/dev/full", tmp_path, ""):
        with pytest.raises(ValueError, match=r"^out: "):
            outputs.check_output_file(out, force=True)


def test_the_same_again_is_up_to_date(tmp_path):
    (tmp_path / "in").write_text("1")
    recipe = {"command": "d", "options": {"n": (1, 2)}, "inputs": {"in": tmp_path / "in"}}
    assert not outputs.is_up_to_date(tmp_path / "o", **recipe)
    write(tmp_path / "o", **recipe)
    assert outputs.is_up_to_date(tmp_path / "o", **recipe)
    assert not outputs.is_up_to_date(tmp_path / "o", **recipe | {"command": "e"})
    assert not outputs.is_up_to_date(tmp_path / "o", **recipe | {"options": {"n": [1]}})
    (tmp_path / "in").write_text("2")
    assert not outputs.is_up_to_date(tmp_path / "o", **recipe)
    (tmp_path / "in").write_text("1")
    (tmp_path / "o/page.html").write_text("changed")
    assert not outputs.is_up_to_date(tmp_path / "o", **recipe)


def test_a_reader_demands_the_marker_and_the_hashes(tmp_path):
    write(tmp_path / "o")
    assert outputs.require_marker(tmp_path / "o")["command"] == "demo"
    (tmp_path / "o/page.html").write_text("b")
    outputs.require_marker(tmp_path / "o", names=["sub/*"])
    message = r"page.html: does not match its SHA-256 in crtlib.json; make it again with 'crtlib d"
    with pytest.raises(ValueError, match=message):
        outputs.require_marker(tmp_path / "o")
    (tmp_path / "o/page.html").unlink()
    with pytest.raises(ValueError, match=message):
        outputs.require_marker(tmp_path / "o")
    for text in ("", "[]", "[" * 10**5, '{"schema": "crtlib/output/2"}', "\x00"):
        (tmp_path / "o/crtlib.json").write_text(text)
        with pytest.raises(
            ValueError, match=r"has no intact crtlib.json; it is unfinished or not ours"
        ):
            outputs.require_marker(tmp_path / "o")
    with pytest.raises(ValueError, match="no such file"):
        outputs.require_marker(tmp_path / "no")
    with pytest.raises(ValueError, match="is not a folder"):
        outputs.require_marker(tmp_path / "o/sub/a.txt")


@pytest.mark.parametrize(
    ("facts", "is_ours"),
    [
        ([], False),
        ("no", False),
        ({"corpus": 1.5}, False),
        ({}, True),
        ({"corpus": {"turns": "x"}}, True),
    ],
)
def test_a_marker_of_another_form_is_refused_in_one_line(tmp_path, facts, is_ours):
    write(tmp_path / "o")
    marker = json.loads((tmp_path / "o/crtlib.json").read_text()) | {"facts": facts}
    del marker["sum"]
    marker["sum"] = outputs._marker_checksum(marker)
    (tmp_path / "o/crtlib.json").write_text(json.dumps(marker))
    assert (outputs.find_marker(tmp_path / "o") is not None) == is_ours
    said = "is not a corpus folder" if is_ours else "has no intact"
    with pytest.raises(ValueError, match=rf"^[^\n]*{said}[^\n]*$"):
        corpus_folder.read_corpus_summary(tmp_path / "o")


def test_what_is_added_keeps_the_rest(tmp_path):
    write(tmp_path / "o")
    (tmp_path / "o/export.json").write_text("{}")
    with outputs.staged_folder(tmp_path / "o", command="demo two", options={}, add=True) as part:
        (part / "more.txt").write_text("b")
    assert set(outputs.require_marker(tmp_path / "o")["files"]) == {
        *("export.json", "more.txt", "page.html", "sub/a.txt")
    }
    with (
        pytest.raises(ValueError, match="no such file"),
        outputs.staged_folder(tmp_path / "p", command="x", options={}, add=True),
    ):
        pass


SLEEPER = """
import sys, time
from crtlib import outputs
with outputs.staged_folder(sys.argv[1], command="d", options={}) as part:
    (part / "half").write_text("x")
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_kill_leaves_what_the_next_run_sweeps_and_two_at_once_are_refused(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, str(tmp_path / "o")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(ValueError, match="being written by another process"):
            write(tmp_path / "o")
        assert (tmp_path / ".o.part/half").exists()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert not (tmp_path / "o").exists()
    write(tmp_path / "o")
    assert [p.name for p in tmp_path.iterdir()] == ["o"]
    assert not (tmp_path / "o/half").exists()


def test_a_kill_between_the_two_renames_is_mended(tmp_path):
    write(tmp_path / "o")
    os.rename(tmp_path / "o", tmp_path / ".o.old")
    with pytest.raises(ValueError, match="choose another folder or force=True"):
        write(tmp_path / "o", "b")
    assert (tmp_path / "o/page.html").read_text() == "a"
    write(tmp_path / ".o.old")
    write(tmp_path / "o", "b", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_pipes_and_devices_are_refused_at_once(tmp_path, ends):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path / "none"):
        with pytest.raises(ValueError, match=r"pipe or a device|no such file"):
            outputs.hash_file(path)


def test_a_place_that_cannot_be_made_is_refused_before_the_work(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("x")
    for check in (outputs.check_output_file, outputs.check_output_folder):
        with pytest.raises(ValueError, match=r"loop is a link (to nothing|in a circle)"):
            check(tmp_path / "loop")
        with pytest.raises(ValueError, match=r"is in .*file, which is not a folder"):
            check(tmp_path / "file" / "deep" / "out")
        check(tmp_path / "new" / "deep" / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_folder_with_a_key_shows_no_hash_of_what_is_private(tmp_path):
    (tmp_path / "in.csv").write_text("text")
    recipe = {"command": "demo", "options": {"list_sha256": "a" * 64}, "key": "private/key",
              "inputs": {"in": tmp_path / "in.csv"}}  # fmt: skip
    for name in ("one", "two"):
        with outputs.staged_folder(tmp_path / name, **recipe, public=["shown"]) as part:
            (part / "shown").write_text("x")
            (part / "private" / "kept").write_text("y")
        assert outputs.is_up_to_date(tmp_path / name, **recipe)
    one, two = (outputs.require_marker(tmp_path / name) for name in ("one", "two"))
    assert (
        one["files"]["shown"] == two["files"]["shown"] == outputs.hash_file(tmp_path / "one/shown")
    )
    assert one["files"]["private/kept"] != two["files"]["private/kept"]
    assert not {one["inputs"]["in"], one["options"]["list_hmac"]} & {
        two["inputs"]["in"], two["options"]["list_hmac"],
        outputs.hash_file(tmp_path / "in.csv"), "a" * 64,
    }  # fmt: skip
    with outputs.staged_folder(tmp_path / "one", **recipe, public=["shown"], force=True) as part:
        (part / "private" / "kept").write_text("y")
    assert outputs.require_marker(tmp_path / "one")["inputs"] == one["inputs"]  # the key stays
    (tmp_path / "one" / "private" / "kept").write_text("z")
    with pytest.raises(ValueError, match="does not match its SHA-256"):
        outputs.require_marker(tmp_path / "one")


def written(folder, name="a.txt", **more):
    with outputs.staged_folder(folder, command="demo", options={"n": name}, **more) as part:
        (part / name).write_text(name)
        return part


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a second file system")
def test_a_link_to_another_disk_is_written_through(tmp_path):
    """All work was done, the budget was spent, and then: invalid cross-device link."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        link = tmp_path / "link"
        (Path(other) / "out").mkdir()
        link.symlink_to(Path(other) / "out")
        part = written(link)
        assert part.parent == Path(other).resolve() and link.is_symlink()
        assert sorted(os.listdir(Path(other) / "out")) == ["a.txt", "crtlib.json"]
        assert os.listdir(other) == ["out"]
        outputs.require_marker(link)


def test_a_mount_point_is_written_into(tmp_path, monkeypatch):
    """Nothing can take its place: "device or resource busy", after all the work."""
    out = tmp_path / "out"
    (out / "lost+found").mkdir(parents=True)
    monkeypatch.setattr(Path, "is_mount", lambda self: self == out)
    assert written(out).parent == out
    assert sorted(os.listdir(out)) == ["a.txt", "crtlib.json", "lost+found"]
    outputs.require_marker(out)
    written(out, "b.txt", force=True)
    assert sorted(os.listdir(out)) == ["b.txt", "crtlib.json", "lost+found"]
    with (
        pytest.raises(ZeroDivisionError),
        outputs.staged_folder(out, command="demo", options={}, force=True) as part,
    ):
        (part / "c.txt").write_text(str(1 / 0))
    assert sorted(os.listdir(out)) == ["b.txt", "crtlib.json", "lost+found"]
    outputs.require_marker(out)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_full_disk_is_no_place_that_cannot_be_written(tmp_path, monkeypatch, number):
    """Only of a mode or a mount is another name the remedy."""

    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(outputs.tempfile, "TemporaryFile", fail)
    machine = number != errno.EACCES
    for check in (outputs.check_output_file, outputs.check_output_folder):
        with pytest.raises((OSError, ValueError)) as caught:
            check(tmp_path / "out")
        assert ("cannot be written" in str(caught.value)) is not machine


def test_a_folder_that_cannot_be_locked_is_not_taken(tmp_path, monkeypatch):
    """As on a broken disk: nobody else is writing there."""

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files.fcntl, "flock", fail)
    with (
        pytest.raises((OSError, ValueError)) as caught,
        files.lock_folder(tmp_path, "is taken"),
    ):
        pass
    assert "is taken" not in str(caught.value)
