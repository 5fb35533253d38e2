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
    "confide.labels.label_tasks.LabelTask": "task part",
    "confide.odometer_lines.OdometerEntry":
        "entry previous time corpus run state unit method relation screening holds model because "
        "base tensors base_tensors about counted void assumed treated_as_public declared law",
    "confide.release.certifiable_run.CertifiableRun": "folder record void_reasons key",
    "confide.release.composed_promise.ComposedPromise": "accountant",
    "confide.release.file_sources.BaseSource": "name",
    "confide.release.file_sources.BroughtSource": "name",
    "confide.release.file_sources.ConstantSource": "of",
    "confide.release.file_sources.DeclaredSource": "of value among",
    "confide.release.file_sources.NoisedSource": "run unit holds",
    "confide.release.file_sources.PlannedSource": "run plan",
    "confide.release.file_sources.RawSource": "of",
    "confide.release.file_sources.RedactedSource": "of",
    "confide.release.file_sources.ScreenedSource": "of",
    "confide.release.file_sources.Screening": "id",
    "confide.release.file_sources.ScriptSource": "name sha256",
    "confide.release.file_sources.SourcedContent": "content sources",
    "confide.release.released_folder.Manifest": "run key sources altered hashes",
    "confide.release.source_fold.FilesPromise":
        "unit neighbouring_relation screening holds assumed void",
    "confide.reports.leakage.ReportCover": "model corpus unit public note",
    "confide.reports.leakage._LotReader": "tokenizer unit scorer public",
    "confide.screening.corpus_screening.PolicyPair": "names unit miss_setting",
    "confide.screening.corpus_screening.ScreeningOptions":
        "policy conservative unit dedup dedup_by duplicates",
    "confide.screening.corpus_screening.ScreeningOutcome": "summary notes",
    "confide.screening.teaching.TaughtTagger": "rates summary",
    "confide.spending.SpendingHistory": "recut_texts corpus",
    "confide.spending.SpentBudget": "inherited_unprotected ancestors recut_texts corpus",
    "confide.text.ingest.IngestSummary": "out form columns rejected notes",
    "confide.text.message_forms.IngestSource": "path name form columns shape notes",
    "confide.text.message_forms.RecordShape": "called read options",
    "confide.text.readers.How": "format columns encoding split",
    "confide.text_registry.Registry": "folder",
    "confide.training.advise.Advice": "why commands owners",
    "confide.training.advise.AdviceRow": "policy conservative unit rates judged tried void",
    "confide.training.odometer_run.OdometerRun":
        "folder facts init mark options run registry conditions",
    "confide.training.secret_plans.SecretPlanResult": "summary why",
    "confide.training.train_on_corpus.PendingTraining":
        "begin odometer_fields finish template conditions void_before",
    "confide.training.train_on_corpus._PlannedTraining": "recipe summary",
    "confide.training.training_record.TrainingResult":
        "facts settings model_files sources record promise lines",
    "crtlib.accounting.accountants.AccountantBound": "accountant",
    "crtlib.accounting.guarantees.BoundedRate": "origin",
    "crtlib.accounting.guarantees.Guarantee": "unit neighbouring_relation accountant kind public",
    "crtlib.accounting.privacy_loss.GaussianMixturePair": "direction",
    "crtlib.accounting.secret_protection.ProtectionPlan": "budget_growth neighbouring_relation",
    "crtlib.accounting.secret_weights.ExampleWeights": "solver",
    "crtlib.attacks.attack.Attack": "name label statistic measure summary",
    "crtlib.attacks.attack.Subject": "model reference",
    "crtlib.attacks.leakage.LeakageReport": "documents scores",
    "crtlib.attacks.membership.MembershipProbe": "kinds",
    "crtlib.cli.Failure": "where what hint",
    "crtlib.models.generation.PrefixState": "layers",
    "crtlib.models.interface.Head": "weight bias",
    "crtlib.models.specs.ModelSpec": "kind",
    "crtlib.options.CommandResult": "facts lines",
    "crtlib.options.Option": "name default node word group text needs metavar",
    "crtlib.screening.listed_names._Lists":
        "ordinary_words common sure ambiguous endings titles phrases streets street_endings units "
        "organisations",
    "crtlib.screening.policy.Policy": "name",
    "crtlib.screening.policy_registry.PolicyMaker": "name takes make",
    "crtlib.screening.rate_values.PolicyRates": "by_kind cluster",
    "crtlib.screening.rate_values.Rate": "origin",
    "crtlib.screening.secret_outcomes.SecretOutcome": "traits second_reader",
    "crtlib.screening.tagger.Tagger": "kinds net backbone",
    "crtlib.screening.value_lists.ListedValue": "kind",
    "crtlib.studies.crt_study.CrtStudy":
        "method corpus policy conservative template init lora_targets",
    "crtlib.studies.study_data.JudgedPoints": "flags conservative_flags",
    "crtlib.studies.study_data.PreparedData": "flags texts labels",
    "crtlib.studies.study_run.TrainedStudy": "schedule before",
    "crtlib.text.arxiv.Abstract": "topics created",
    "crtlib.text.corpus_folder.CorpusSummary": "sha256 users_are policy first last",
    "crtlib.text.customersim.Identity": "user name phone order address",
    "crtlib.text.records.Corpus": "name skipped",
    "crtlib.text.records.Secret": "kind",
    "crtlib.text.shards.Shards": "folder recipe part",
    "crtlib.text.sources.CorpusSource": "name label check read content draw",
    "crtlib.text.templates.Template": "name source bos eos",
    "crtlib.text.tokenizer.BpeTokenizer": "bos_token eos_token",
    "crtlib.training.checkpoints.Checkpoint": "path identity",
    "crtlib.training.methods.GuaranteeTerms": "unit accountant neighbouring_relation public",
    "crtlib.training.methods.Method": "name label phases promise reads searched solver models",
    "crtlib.training.micro_batch.HeadPositions": "weights places",
    "crtlib.training.micro_batch.SortedExamples": "weights lengths order",
    "crtlib.training.phases.PrivatePhase": "part",
    "crtlib.training.phases.PublicPhase": "part",
    "crtlib.training.run_state.TrainingRun": "model events history updates",
    "crtlib.training.run_state.TrainingState": "optimizers generators optimizer_name non_finite",
    "crtlib.training.selective.SelectivePhase": "part",
    "crtlib.training.selective._SegmentedBatch": "state",
    "crtlib.training.weight_seal.OptimizerSeal": "optimizers settings sums",
    "crtlib.training.weight_seal.ReadingSeal": "marks",
    "crtlib.training.weight_seal.SettingsSeal": "settings",
    "crtlib.training.weight_seal.WeightSeal": "model marks sums",
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
    for name, made in classes.items():
        for f in dataclasses.fields(made):
            types = re.findall(r"[A-Za-z]\w*", re.sub(r"Literal\[[^]]*\]", "", str(f.type)))
            if f.repr and not known.issuperset(types):
                shown.add(f"{name} {f.name}")
    listed = {f"{name} {one}" for name, fields in MAY_BE_SHOWN.items() for one in fields.split()}
    assert len(classes) > 100 and sorted(shown - listed) == [] and sorted(listed - shown) == []


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
