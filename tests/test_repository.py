"""What keeps the repository honest: the page of its subpackages, the version, the stored keys."""

import importlib.util
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import ClassVar

import pytest

import crtlib
from crtbook import tables
from crtbook.game import GameStudy
from crtbook.leakage import LeakageStudy
from crtbook.runs import CrtStudy, ScreeningStudy
from crtbook.secrets import ExtractionStudy, MaskedStudy
from crtbook.study import Study
from crtlib.values import NonNegativeInt, checked_dataclass

ROOT = Path(__file__).resolve().parent.parent


def script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_names_every_room():
    page = (ROOT / "book" / "how_it_is_built.md").read_text(encoding="utf-8")
    for package in ("crtlib", "confide"):
        rooms = [p.parent.name for p in (ROOT / package).glob("*/__init__.py")]
        assert rooms and [n for n in rooms if f"| `{package}.{n}` |" not in page] == []


def test_this_version_has_an_entry_and_another_has_none():
    release = script(ROOT / "benchmarks" / "release.py")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    ahead = "Unreleased" if "\n## Unreleased\n" in changes else crtlib.__version__
    assert release.entry(changes, ahead)
    with pytest.raises(ValueError, match=r"no entry for version 9\.9\.9"):
        release.entry(changes, "9.9.9")
    source = (ROOT / "crtlib" / "version.py").read_text(encoding="utf-8")
    assert release.version(source) == crtlib.__version__
    assert f"version: {crtlib.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version = "{crtlib.__version__}"\n' in (ROOT / "book" / "pyproject.toml").read_text()


def test_release_refuses_what_is_left_out_or_misnamed():
    release = script(ROOT / "benchmarks" / "release.py")
    metadata = (
        b"Metadata-Version: 2.4\nName: crtlib\nVersion: 1.0\nSummary: s\nLicense-Expression: MIT\n"
        b"Requires-Python: >=3.11\n\nreadme\n"
    )
    release.check(metadata, "1.0", set(release.DATA))
    with pytest.raises(ValueError, match=r"must be 2\.0"):
        release.check(metadata, "2.0", set(release.DATA))
    with pytest.raises(ValueError, match=r"left out: .*words\.txt"):
        release.check(metadata, "1.0", set(release.DATA) - {"crtlib/screening/words.txt"})


def test_a_field_that_came_later_leaves_the_old_keys_alone():
    @checked_dataclass
    class Before(Study):
        kind: ClassVar[str] = "toy"
        size: NonNegativeInt = 1

    @checked_dataclass
    class After(Study):
        kind: ClassVar[str] = "toy"
        LATER: ClassVar[frozenset[str]] = frozenset({"depth"})
        size: NonNegativeInt = 1
        depth: NonNegativeInt = 0

    old, new = Before(seed=3), After(seed=3)
    assert "depth" in asdict(new) and new.key == old.key
    assert After(seed=3, depth=1).key != old.key
    assert After(seed=3, size=2).key != old.key


STORED = {
    CrtStudy: "seed method model gamma corpus variety dialogues heldout unit policy conservative "
    "labelled per duplicates dedup canaries copies vocab_size embedding hidden layers heads "
    "context init init_epochs epochs batch_size learning_rate pub_passes private_learning_rate "
    "sampling_probability clip_norm normaliser epsilon delta accountant neighbouring_relation "
    "noise_multiplier",
    LeakageStudy: "seed method corpus unit dialogues heldout public public_epochs canaries copies "
    "bots policy gamma min_users dedup init model embedding hidden layers vocab_size epochs "
    "snapshots batch_size learning_rate pub_passes private_learning_rate sampling_probability "
    "noise_multiplier clip_norm delta prior posterior threshold left_out detail",
    MaskedStudy: "seed targets scale noisy corpus dialogues first secrets prior posterior_low "
    "posterior_high vocab_size hidden layers heads context steps batch_size clip_norm "
    "learning_rate",
    ExtractionStudy: "seed noise_multiplier corpus dialogues probes others prefix suffix model "
    "vocab_size hidden layers heads epochs sampling_probability clip_norm learning_rate",
    GameStudy: "seed learns candidates copies others steps batch_size posterior noise clip_norm "
    "learning_rate",
    ScreeningStudy: "seed policy conservative corpus unit labelled heldout",
}
"""Of each kind of study, the fields that the key of every stored result rests on."""


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.kind)
def test_a_new_field_of_a_study_is_named_later_or_every_stored_run_is_lost(kind):
    in_the_key = {f.name for f in fields(kind)} - kind.LATER
    assert in_the_key == set(STORED[kind].split()), f"name it in {kind.__name__}.LATER"


def test_every_recorded_table_is_named_where_the_data_is_described():
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    names = [p.name for p in tables.FOLDER.iterdir() if p.name.endswith(".parquet")]
    assert names and [name for name in names if f"`{name}`" not in text] == []
