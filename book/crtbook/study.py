"""Studies and their store. A study is one run as a value: it names itself, states what it reads,
and knows how to run itself.

>>> @checked_dataclass
... class Coin(Study):
...     tosses: NonNegativeInt = 10
...     def run(self, desk):
...         return [("heads", 0, 0, float(self.tosses // 2))]
>>> Coin(seed=0).key == Coin(seed=0, tosses=10).key, Coin(seed=0).key == Coin(seed=1).key
(True, False)
>>> @checked_dataclass
... class Later(Coin):  # a field that came after runs were stored
...     kind, LATER = Coin.kind, frozenset({"bias"})
...     bias: NonNegativeInt = 5
>>> Later(seed=0).key == Coin(seed=0).key, Later(seed=0, bias=6).key == Coin(seed=0).key
(True, False)
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd

from crtlib import files
from crtlib.checks import ParameterError
from crtlib.files import StrPath
from crtlib.values import NonNegativeInt, checked_dataclass

STORE_VERSION = "3"
"""Raised whenever the same study would train a different model than before."""

Row = tuple[str, int, int, float]
"""``(metric, epoch, item, value)``; ``item`` numbers canaries, 0 where there is but one."""


def make_rows(metrics: Mapping[str, float], epoch: int = 0) -> list[Row]:
    """One row for each fact that belongs to no item."""
    return [(name, epoch, 0, float(number)) for name, number in metrics.items()]


@dataclass(frozen=True)
class Desk:
    """What a run may use: where it keeps its state until it is finished, where it keeps its model,
    and the device. ``None`` means that it keeps none."""

    checkpoint: Path | None = None
    model: Path | None = None
    device: str = "cpu"

    def part(self, name: str) -> Path | None:
        """The file of a separate checkpoint, for each of several trainings in one run."""
        return self.checkpoint and self.checkpoint.with_suffix(f".{name}.pt")


@checked_dataclass
class Study:
    """One run as a frozen, validated value; all that :func:`crtbook.runner.sweep` knows.

    ``LATER`` names fields that were added after results had been stored: at their default they
    stay out of the key, so that stored results are still found. ``seed`` decides everything random.
    ``kind`` is the name of the class, without "Study".
    """

    LATER: ClassVar[frozenset[str]] = frozenset()
    kind: ClassVar[str] = "study"

    seed: NonNegativeInt

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__.lower().removesuffix("study") or "study"

    def ready(self) -> Self:
        """The same run with fixed values for what it does not read, and its noise filled in."""
        return self

    def reads(self) -> Iterable[str]:
        """Fingerprints of the files and folders that the run reads."""
        return ()

    def lacks(self) -> str | None:
        """What is missing on this machine for it to run, in one sentence, or None."""
        return None

    def cost(self) -> float:
        """Estimated CPU seconds on one core; the long runs start first."""
        return 1.0

    def memory(self) -> float:
        """Estimated peak memory, in GiB."""
        return 0.6

    def run(self, desk: Desk) -> Iterable[Row]:
        """Train and measure: ``(metric, epoch, item, value)`` rows."""
        raise TypeError(f"{type(self).__name__}: does not define run()")

    @property
    def key(self) -> str:
        """The hash that names the result: of the kind, the fields, and the files that are read."""
        study = self.ready()
        default = {f.name: f.default for f in fields(study) if f.default is not MISSING}
        entries = {
            name: entry
            for name, entry in asdict(study).items()
            if name not in study.LATER or entry != default.get(name)
        }
        text = json.dumps([STORE_VERSION, study.kind, entries], sort_keys=True)
        return hashlib.sha256("".join([text, *study.reads()]).encode()).hexdigest()[:24]


# --- the store of runs ----------------------------------------------------------------------------
MEASUREMENTS = 4
"""Raised whenever a trained model is measured differently than before."""


class Store:
    """A folder of finished runs, with one JSON file for each run, named by the hash of its study.
    It is private, because a model may have memorised its text. Raises ``ValueError`` for a name
    that cannot be a folder's, or a store of another version.

    A file is written atomically and carries its own SHA-256, so it is complete or absent, and
    damage shows. A run that is there need not be run again. The trained model is kept beside it:
    when the list of measurements grows, it is scored again, not trained again.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> store.write("abc", {"method": "crt"}, {"seed": 1}, [("exposure", 1, 0, 2.5)])
    >>> store.table(["abc"])[["method", "metric", "epoch", "item", "value", "seed"]].values.tolist()
    [['crt', 'exposure', 1, 0, 2.5, 1]]
    """

    def __init__(self, folder: StrPath) -> None:
        if not str(folder) or "://" in str(folder) or "\0" in str(folder):
            raise ParameterError(f"store={str(folder)!r}: must be a folder")
        self.folder = Path(folder)
        try:
            version = (self.folder / "VERSION").read_text("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            if any(self.folder.glob("*.json")):
                raise ValueError(
                    f"store={str(folder)!r}: holds JSON files but no VERSION: not a store"
                ) from None
        else:
            if version != STORE_VERSION:
                raise ValueError(
                    f"store={str(folder)!r}: has version {version!r}, this library reads "
                    f"{STORE_VERSION!r}; name another folder or remove this one"
                )

    def path(self, key: str) -> Path:
        """Where the run with this hash is, or will be."""
        return self.folder / f"{key}.json"

    def unfinished(self, key: str) -> Path:
        """Where a run keeps its state until it is finished."""
        return self.folder / "unfinished" / f"{key}.pt"

    def model(self, key: str) -> Path:
        """The folder of the trained model (:mod:`crtlib.models.model_folder`)."""
        return self.folder / "models" / key

    def failures(self, key: str) -> Path:
        """The failure records of a run, one line for each attempt."""
        return self.folder / "failures" / f"{key}.jsonl"

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[bool]:
        """Yield True if no other sweep is running this study now. This is a lock of the operating
        system, which ends with its process."""
        lock_path = self.folder / "running" / key
        with contextlib.ExitStack() as stack:
            try:
                lock_path.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(files.lock_folder(lock_path, "taken"))
                stack.callback(lock_path.rmdir)
            except (ValueError, FileNotFoundError):  # another sweep's; or it has just ended
                is_ours = False
            else:
                is_ours = True
            yield is_ours

    def begin(self) -> None:
        """Make the folder a store, if it is not one yet, and remove what killed sweeps left."""
        for folder in (self.folder, self.folder / "running"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / "VERSION").exists():
            files.write_text(self.folder / "VERSION", STORE_VERSION + "\n")
        for path in self.folder.glob("unfinished/*"):
            key = path.name.lstrip(".").partition(".")[0]
            if self.has(key):  # left by a sweep that was killed after it had finished the run
                with self.alone(key) as is_idle:
                    if is_idle:
                        path.unlink(missing_ok=True)

    def read(self, key: str) -> dict[str, Any] | None:
        """The run's cell, or None where there is none. A damaged file is set aside, as
        ``KEY.json.damaged``, so that the run is done again."""
        path = self.path(key)
        try:
            cell: dict[str, Any] = json.loads(path.read_text("utf-8"))
            intact = cell.pop("sha256") == _hash_cell(cell)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, AttributeError, TypeError):
            intact = False
        if not intact:
            path.rename(path.with_suffix(".json.damaged"))
            return None
        return cell

    def damaged(self) -> list[Path]:
        """The files that were set aside because their content and their SHA-256 differ."""
        return sorted(self.folder.glob("*.json.damaged"))

    def has(self, key: str) -> bool:
        """True where the run is finished, with today's measurements."""
        cell = self.read(key)
        return cell is not None and cell["measured"] == MEASUREMENTS

    def write(
        self, key: str, study: dict[str, Any], provenance: dict[str, Any], rows: Iterable[Row]
    ) -> None:
        """Record a finished run atomically, and remove the state that it kept meanwhile."""
        cell: dict[str, Any] = {"study": study, "provenance": provenance}
        cell |= {"rows": [list(row) for row in rows], "measured": MEASUREMENTS}
        files.write_text(self.path(key), json.dumps(cell | {"sha256": _hash_cell(cell)}))
        for path in self.folder.glob(f"unfinished/*{key}*"):
            path.unlink(missing_ok=True)

    def table(self, keys: Sequence[str]) -> pd.DataFrame:
        """The long table of the runs ``keys``: one row for each measurement, with study and
        provenance as columns. Raises ``KeyError`` for a run that is not finished."""
        frames = []
        for key in keys:
            cell = self.read(key)
            if cell is None or cell["measured"] != MEASUREMENTS:
                raise KeyError(f"run {key} is not in the store")
            frame = pd.DataFrame(cell["rows"], columns=["metric", "epoch", "item", "value"])
            constants = {"run": key, **cell["study"], **cell["provenance"]}
            front = pd.DataFrame({k: [v] * len(frame) for k, v in constants.items()})
            frames.append(pd.concat([front, frame], axis=1))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _hash_cell(cell: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
