"""No ``repr`` of a record shows private text: a log, a traceback and a notebook may quote it."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import confide
import crtlib
from confide.labels.label_tasks import LabelTask
from confide.reports.screening_page import screen_into_folder
from confide.screening.corpus_screening import ScreeningOptions
from crtlib.screening.rates import RateCounter
from crtlib.screening.regex_policies import none_policy
from crtlib.text.records import Point, Secret
from tests.texts import write_talks

NO_TEXT = frozenset(
    re.findall(
        r"\w+",
        """int float bool None Literal tuple list dict set Mapping Sequence Callable Array ndarray
        NDArray csr_array int64 StrictInt PositiveInt NonNegativeInt PositiveFloat NonNegativeFloat
        Probability OpenProbability UnitInterval""",
    )
)
"""Types of which no value is text."""
MODULES = frozenset(("np", "sparse", "rates", "spending", "file_sources"))
MAY_BE_SHOWN = {
    "LabelTask": "task part",
    "OdometerEntry":
        "entry previous time corpus run state unit method relation screening holds model because "
        "base tensors base_tensors about counted void assumed treated_as_public declared law",
    "CertifiableRun": "folder record void_reasons key",
    "ComposedPromise": "accountant",
    "BaseSource": "name",
    "BroughtSource": "name",
    "ConstantSource": "of",
    "DeclaredSource": "of value among",
    "NoisedSource": "run unit holds",
    "PlannedSource": "run plan",
    "RawSource": "of",
    "RedactedSource": "of",
    "ScreenedSource": "of",
    "Screening": "id",
    "ScriptSource": "name sha256",
    "SourcedContent": "content sources",
    "Manifest": "run key sources altered hashes",
    "FilesPromise": "unit neighbouring_relation screening holds assumed void kind",
    "ReportCover": "model corpus unit public note",
    "LotReader": "tokenizer unit scorer public",
    "PolicyPair": "names unit miss_setting",
    "ScreeningOptions":
        "policy conservative unit dedup dedup_by duplicates",
    "ScreeningOutcome": "summary notes",
    "TaughtTagger": "rates summary",
    "SpendingHistory": "recut_texts corpus_sha256",
    "SpentBudget": "inherited_unprotected ancestors recut_texts corpus_sha256",
    "IngestSummary": "out form columns rejected notes",
    "IngestSource": "path name form columns shape notes",
    "RecordShape": "called read options",
    "Registry": "folder",
    "Advice": "why commands owners",
    "AdviceRow": "policy conservative unit rates judged_limits tried_epsilons void_reasons",
    "OdometerRun":
        "folder facts init mark options run registry conditions",
    "SecretPlanResult": "summary why",
    "PendingTraining": "begin odometer_fields finish template conditions void_before shape",
    "_PlannedTraining": "recipe summary",
    "TrainingResult": "facts settings sources record promise lines",
    "AccountantBound": "accountant",
    "BoundedRate": "origin",
    "Guarantee": "unit neighbouring_relation accountant kind public",
    "GaussianMixturePair": "direction",
    "ProtectionPlan": "budget_growth neighbouring_relation",
    "ExampleWeights": "solver",
    "Attack": "name label statistic measure summary",
    "Subject": "model reference",
    "LeakageReport": "documents scores",
    "MembershipProbe": "kinds",
    "Failure": "where what hint",
    "PrefixState": "layers",
    "Head": "weight bias",
    "ModelSpec": "kind",
    "CommandResult": "facts lines",
    "Option": "name default node word group text needs metavar",
    "_Lists":
        "ordinary_words common sure ambiguous endings titles phrases streets street_endings units "
        "organisations",
    "Policy": "name",
    "PolicyMaker": "name takes make",
    "PolicyRates": "by_kind cluster",
    "Rate": "origin",
    "SecretOutcome": "traits second_reader",
    "Tagger": "kinds net backbone",
    "ListedValue": "kind",
    "CrtStudy":
        "method corpus policy conservative template init lora_targets",
    "JudgedPoints": "flags conservative_flags",
    "PreparedData": "flags texts labels",
    "TrainedStudy": "schedule before",
    "Abstract": "topics created",
    "CorpusSummary": "sha256 users_are policy first last",
    "Identity": "user name phone order address",
    "Corpus": "name skipped",
    "Secret": "kind",
    "Shards": "folder recipe part",
    "CorpusSource": "name label check read content draw",
    "Template": "name source bos eos",
    "BpeTokenizer": "bos_token eos_token",
    "Checkpoint": "path identity",
    "GuaranteeTerms": "unit accountant neighbouring_relation public",
    "Method": "name label phases promise reads searched solver models",
    "HeadPositions": "weights places",
    "SortedExamples": "weights lengths order",
    "PrivatePhase": "part",
    "PublicPhase": "part",
    "TrainingRun": "model events history updates receipt",
    "TrainingState": "optimizers generators optimizer_name non_finite",
    "SelectivePhase": "part",
    "_SegmentedBatch": "state",
    "OptimizerSeal": "optimizers settings sums",
    "ReadingSeal": "marks attributes changing",
    "SettingsSeal": "settings",
    "WeightSeal": "model marks sums",
    "_ValueReader": "kept_alive _settings",
    "SavedModel": "folder hashes",
    "Assumption": "kind subject sha256 model",
    "IngestOptions": "format columns encoding split",
    "_PairOnTrial": "odometer origin limits",
}  # fmt: skip
"""Fields of other types that may be shown: names of settings, methods, policies and files that a
command was given; hashes of whole texts and of folders; counts by kind; sentences that are printed
anyway; parts of models; and records whose own ``repr`` hides their text."""


def list_dataclasses():
    found = {}
    for package in (crtlib, confide):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(("__main__", "noise_kernel")):  # the kernel is for a GPU
                continue
            for value in vars(importlib.import_module(module.name)).values():
                ours = getattr(value, "__module__", "").startswith(("crtlib.", "confide."))
                if ours and inspect.isclass(value) and dataclasses.is_dataclass(value):
                    found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def test_each_field_that_a_repr_shows_may_be_shown():
    """A new field is hidden (``field(repr=False)``), or somebody has thought about it."""
    classes = list_dataclasses()
    known = NO_TEXT | {name.rpartition(".")[2] for name in classes} | MODULES
    shown = set()
    for made in classes.values():
        for f in dataclasses.fields(made):
            types = re.findall(r"[A-Za-z]\w*", re.sub(r"Literal\[[^]]*\]", "", str(f.type)))
            if f.repr and not known.issuperset(types):
                shown.add(f"{made.__name__} {f.name}")
    listed = {f"{name} {one}" for name, fields in MAY_BE_SHOWN.items() for one in fields.split()}
    assert len(classes) > 100 and sorted(shown - listed) == []


def test_what_is_known_of_a_person_is_in_no_repr(tmp_path):
    """Fault: the outcome of a screening quoted its examples, that of a secret named the person and
    an unkeyed hash of the message, and a task named the conversation."""
    path = write_talks(tmp_path / "c.jsonl", [f"Hello, I am Zebulon {k}" for k in range(9)])
    outcome = screen_into_folder(path, tmp_path / "s", ScreeningOptions("cautious"), reveal=3)
    assert outcome.examples and "Zebulon" not in repr(outcome) and "Hello" not in repr(outcome)
    counter = RateCounter(none_policy, none_policy)
    secret = Secret("Zebulon's", 5, 12)
    (judged,) = counter.add([Point("z/0", "zebulon", "I am Zebulon", (secret,))])
    task = LabelTask("judge-00001", "zebulon-talk", "zebulon", 0, "judge", "I am Zebulon", "", "")
    for record in (judged, task):
        assert "zebulon" not in repr(record).lower()
    assert str(judged.text_hash) not in repr(judged) and str(judged.order) not in repr(judged)
