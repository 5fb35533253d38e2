"""The functions that a promise hangs on say all of it: what goes in, what comes out, what is
refused, from which paper it is, and what holds, with a test that was seen to fail without it."""

import ast
import inspect
import re

import pytest

from tests.faults.table import FAULTS
from tests.test_legible import GUARANTEE, ROOT, TEST, is_a_test, parse

NONE = ""
PROMISES = {
    # function: the source that it names; none where it is our own
    "crtlib.accounting.privacy_cost:epsilon": "CRT, Definition 3",
    "crtlib.accounting.privacy_cost:noise_multiplier": NONE,
    "crtlib.accounting.confidentiality:account_training": "CRT, footnote 3",
    "crtlib.accounting.confidentiality:confidentiality_epsilon": "Theorem 8.3",
    "crtlib.accounting.confidentiality:crt_guarantee": "Theorem 8.3",
    "crtlib.accounting.selective_privacy:selective_guarantee": "CRT, Section 2",
    "crtlib.accounting.guarantees:BoundedRate.from_rate": NONE,
    "crtlib.accounting.guess_bounds:guess_advantage": "Jensen",
    "crtlib.accounting.guess_bounds:value_guess_rate": NONE,
    "crtlib.accounting.secret_protection:plan_protection": "Hush!, Algorithm 2",
    "crtlib.accounting.secret_protection:noise_multiplier_for_promises": "Hush!, Algorithm 2",
    "crtlib.accounting.secret_protection:secret_guess_bounds": "Hush!",
    "crtlib.attacks.one_run_bound:one_run_lower_bound": "Steinke, Nasr and Jagielski 2023",
    "crtlib.attacks.run_audit:audit_training": "Steinke, Nasr and Jagielski 2023",
    "crtlib.intervals:clopper_pearson_upper": "Clopper-Pearson",
    "crtlib.models.model_folder:load_model": NONE,
    "crtlib.screening.deduplication:TextCounts.stands_elsewhere": NONE,
    "crtlib.screening.deduplication:mark_repeats": "CRT",
    "crtlib.screening.policy:Policy.__call__": NONE,
    "crtlib.screening.policy_digests:policy_digest": NONE,
    "crtlib.screening.preparation:prepare_points": "Algorithm 1",
    "crtlib.screening.rates:RateCounter.all_secrets": NONE,
    "crtlib.screening.rates:measure_rates": "CRT, Theorem 8.3",
    "crtlib.screening.rate_values:rate_upper_bound": "Clopper and Pearson",
    "crtlib.screening.redaction:find_missed_secrets": NONE,
    "crtlib.screening.redaction:redact": NONE,
    "crtlib.screening.secret_shares:bound_share_of_secrets": "Waudby-Smith and Ramdas 2024",
    "crtlib.studies.study_data:split_by_coins": NONE,
    "crtlib.text.customersim:simulate_corpus": "CRT, Section 4",
    "crtlib.text.data_points:make_points": NONE,
    "crtlib.training.clipping:add_clipped_gradients": "Abadi et al. 2016, Algorithm 1",
    "crtlib.training.gradient_recorder:GradientRecorder.norms": NONE,
    "crtlib.training.noise:add_noise": NONE,
    "crtlib.training.phases:PrivatePhase.batches": NONE,
    "crtlib.training.phases:PrivatePhase.event": NONE,
    "crtlib.training.probe:refuse_mixing": NONE,
    "crtlib.training.steps:set_private_gradient": NONE,
    "crtlib.attacks.leakage:measure_leakage": "Inan et al. 2021, Algorithm 1",
    "crtlib.screening.policy_registry:register_policy": NONE,
    "crtlib.screening.policy_names:policy_by_name": "CRT, A.4",
    "crtlib.text.corpora:load_corpus": NONE,
    "confide.labels.drawing:draw_label_tasks": NONE,
    "confide.labels.imports:import_labels": NONE,
    "confide.labels.registry:register_judged_pairs": NONE,
    "confide.odometer:add_entry": NONE,
    "confide.odometer:prepare_odometer": NONE,
    "confide.odometer:strike_run": NONE,
    "confide.release.certificate_parts:collect_certificate_parts": NONE,
    "confide.release.certify:compare_certificate_with_run": NONE,
    "confide.release.certify:write_certificate": NONE,
    "confide.release.released_folder:Release.close": NONE,
    "confide.release.released_folder:Release.write": NONE,
    "confide.release.seal:check_signature": NONE,
    "confide.release.source_fold:combine_sources": NONE,
    "confide.release.verify:find_certificate_fault": NONE,
    "confide.release.void_reasons:list_void_reasons": NONE,
    "confide.reports.leakage:make_leakage_report": NONE,
    "confide.reports.screening_page:screen_into_folder": "CRT, Algorithm 1",
    "confide.spending:SpentBudget.rates": "union bound",
    "confide.spending:sum_spending": NONE,
    "confide.text.ingest:ingest_sources": NONE,
    "confide.text_registry:register_text": NONE,
    "confide.training.record_sources:collect_sources_of_steps": NONE,
    "confide.training.train_on_corpus:Session": NONE,
    "confide.training.train_on_corpus:train": NONE,
}
REFUSES_NOTHING = {
    "crtlib.screening.deduplication:TextCounts.stands_elsewhere",
    "crtlib.screening.rates:RateCounter.all_secrets",
    "crtlib.screening.redaction:find_missed_secrets",
    "crtlib.screening.redaction:redact",
    "crtlib.screening.secret_shares:bound_share_of_secrets",
    "crtlib.training.gradient_recorder:GradientRecorder.norms",
    "crtlib.training.phases:PrivatePhase.event",
    "confide.release.source_fold:combine_sources",
    "confide.release.verify:find_certificate_fault",
    "confide.release.void_reasons:list_void_reasons",
    "confide.spending:SpentBudget.rates",
    "confide.spending:sum_spending",
    "confide.training.record_sources:collect_sources_of_steps",
}
"""They have no section Raises: whatever has the right type has an answer."""
SECTION = re.compile(r"^(Args|Returns|Raises|Guarantee):$", re.MULTILINE)
ARGUMENT = re.compile(r"^    (\w+): ", re.MULTILINE)


def find_definition(target):
    """The class or function of ``module:Owner.name``, as it is written."""
    module, _, path = target.partition(":")
    node = parse(ROOT / f"{module.replace('.', '/')}.py")
    for name in path.split("."):
        kinds = ast.FunctionDef | ast.ClassDef
        node = next(n for n in node.body if isinstance(n, kinds) and n.name == name)
    return node


def sections(doc):
    """The sections of a docstring by name, in order."""
    parts = SECTION.split(doc)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def signature(node):
    """The names of what a function takes, or of what makes an instance of a class."""
    if isinstance(node, ast.ClassDef):
        node = next(n for n in node.body if getattr(n, "name", "") == "__init__")
    args = node.args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [a.arg for a in every if a and a.arg not in ("self", "cls")]


def faults_of_docstring(node, *, refuses=True):
    """What a docstring lacks, or has too much of."""
    found = sections(inspect.cleandoc(ast.get_docstring(node) or ""))
    wanted = ["Args"] if signature(node) else []
    returns = getattr(node, "returns", None)
    gives = isinstance(node, ast.FunctionDef) and ast.unparse(returns) != "None"
    wanted += ["Returns"] * gives + ["Raises"] * refuses + ["Guarantee"]
    if [*found] != wanted:
        yield f"sections {[*found]}, not {wanted}"
    if (named := ARGUMENT.findall(found.get("Args", ""))) != signature(node):
        yield f"arguments {named}, not {signature(node)}"


def named_tests(node):
    doc = ast.get_docstring(node) + "\n"
    told = (test for said in GUARANTEE.findall(doc) for test in TEST.findall(said))
    return {re.sub(r"\s", "", test) for test in told}


def test_forty_functions_that_a_promise_hangs_on():
    assert len(PROMISES) >= 40 and PROMISES.keys() >= REFUSES_NOTHING


@pytest.mark.parametrize("target", PROMISES)
def test_a_promise_is_said_whole(target):
    node = find_definition(target)
    refuses = target not in REFUSES_NOTHING
    assert list(faults_of_docstring(node, refuses=refuses)) == []
    assert PROMISES[target] in " ".join(ast.get_docstring(node).split())


@pytest.mark.parametrize("target", PROMISES)
def test_its_test_was_seen_to_fail(target):
    """A planted fault of the function itself is guarded by a test that its Guarantee names, so
    ``python -m tests.faults`` breaks the function and sees that very test fail."""
    named = named_tests(find_definition(target))
    assert all(map(is_a_test, named))
    own = (target, f"{target}.")  # of a class a method
    guards = {
        f.guard.partition("[")[0] for f in FAULTS if f.target in own or f.target.startswith(own[1])
    }
    assert named & guards, f"{named} and {guards}"


WHOLE = '''
def f(a: int, *, b: str = "") -> int:
    """One line.

    Args:
        a: A number of
            two lines.
        b: A text.

    Returns:
        A number.

    Raises:
        ValueError: For none.

    Guarantee:
        It holds. Test: ``tests/test_promises.py::test_what_is_left_out_is_seen``.
    """
'''


@pytest.mark.parametrize(("old", "new"), [
    ("", ""),
    ("        b: A text.\n", ""),
    ("b: A text", "c: A text"),
    ("    Returns:\n        A number.\n", ""),
    ("    Raises:\n        ValueError: For none.\n", ""),
    ("Guarantee", "Promise"),
    ("-> int", "-> None"),
    ("*, b", "*, c, b"),
])  # fmt: skip
def test_what_is_left_out_is_seen(old, new):
    (node,) = ast.parse(WHOLE.replace(old, new)).body
    assert bool(list(faults_of_docstring(node))) == bool(old)
