"""A script reads the arguments that it wrote, a command line its options; the rest is the same."""

import pytest

import confide
from confide.training.advise import advise_on_limits
from confide.training.secret_plans import make_secret_plan
from crtlib.text import customersim, jsonl

INGEST = {
    "who.csv": (
        "x,y\n1,2\n", {"no_users": True},
        "who.csv: no column looks like the text; use columns['text'] (its first row does not look "
        "like a header)",
        "use --text (its first",
    ),
    "gap.csv": (
        "user,body\nann,x\n,y\n", {},
        "gap.csv, row 3, column user: is empty; skip_bad=True leaves it out, "
        "columns['user']='user', no_users=True counts it by its thread",
        "--skip-bad leaves it out, --user user --no-users counts it by its thread",
    ),
    "day.csv": (
        "user,body,date\nann,x,1/2/2026\n", {},
        "begins with day or month: use dates='dmy' or 'mdy'; skip_bad=True",
        "begins with day or month: use --dates dmy or mdy; --skip-bad",
    ),
    "twice.csv": (
        "user,user,body\na,b,c\n", {},
        "twice.csv: columns 2 and 1 have the same name; rename={'2': 'NAME'} gives it another",
        "have the same name; --rename 2=NAME gives it another",
    ),
    "talk.txt": (
        "Hello\nBye\n", {},
        "talk.txt: names no person; no_users=True counts each file as a person (read as one "
        "message of 2 lines; format='lines' makes each line a message)",
        "--no-users counts each file as a person (read as one message of 2 lines; --format lines",
    ),
    "agents.csv": (
        "user,body\nann,x\n", {"agents": ["eve"]},
        "agents: none of these wrote a message here",
        "--agents: none of these wrote a message here",
    ),
    "odd.csv": (
        "user,body\nann,x\n", {"encoding": "foo"},
        "encoding: 'foo' is not an encoding that Python knows",
        "--encoding: 'foo' is not an encoding that Python knows",
    ),
}  # fmt: skip
"""What is ingested and how, what a script reads, and what a command line reads in its place."""


def as_typed(options):
    """Arguments of :func:`confide.ingest` as words of a command line."""
    for name, value in options.items():
        yield f"--{name.replace('_', '-')}"
        yield from [] if value is True else [",".join(value) if name == "agents" else value]


@pytest.mark.parametrize("name", INGEST)
def test_what_ingest_refuses_names_what_the_caller_wrote(run, tmp_path, name):
    content, options, by_script, by_command = INGEST[name]
    (path := tmp_path / name).write_text(content)
    with pytest.raises(ValueError) as refused:
        confide.ingest(path, tmp_path / "o", **options)
    assert by_script in str(refused.value) and "--" not in str(refused.value)
    code, _, said = run("ingest", path, "--yes", *as_typed(options), "--out", tmp_path / "o")
    assert code == 2 and by_command in said


def test_what_is_read_only_with_tables_is_called_as_the_caller_calls_it(run, tmp_path):
    (path := tmp_path / "x.jsonl").write_text('{"messages": [{"role": "u", "content": "Hi"}]}\n')
    with pytest.raises(ValueError, match=r"^columns\['text'\]=body: is read only with tables"):
        confide.ingest(path, tmp_path / "o", columns={"text": "body"}, no_users=True)
    code, _, said = run("ingest", path, "--text", "body", "--no-users", "--out", tmp_path / "o")
    assert code == 2 and said.startswith("crtlib: error: --text body: is read only with tables")


def test_a_folder_that_is_there_is_replaced_with_force(run, tmp_path):
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), tmp_path / "c.jsonl")
    confide.screen(tmp_path / "c.jsonl", tmp_path / "s", policy="cautious")
    told = f"{tmp_path / 's'} holds what 'crtlib screen' made; choose another folder or "
    with pytest.raises(ValueError) as refused:
        confide.screen(tmp_path / "c.jsonl", tmp_path / "s", policy="everything")
    assert str(refused.value) == f"out: {told}force=True"
    refused = run("screen", tmp_path / "c.jsonl", "--policy", "everything", "--out", tmp_path / "s")
    assert refused == (2, "", f"crtlib: error: --out: {told}--force\n")
    with pytest.raises(ValueError, match=r"^out: .* or force=True$"):  # as before that command
        confide.screen(tmp_path / "c.jsonl", tmp_path / "s", policy="everything")


CALLS = {
    "ingest": (
        lambda text, out: confide.ingest([], out), ["ingest", "--out", "OUT"],
        "sources: is missing", "SOURCE: is missing",
    ),
    "label_sample": (
        lambda text, out: confide.label_sample(text, out, forms=["odt"]),
        ["label", "sample", "TEXT", "--for", "odt", "--out", "OUT"],
        "forms: 'odt' must be one of", "--for: 'odt' must be one of",
    ),
    "label_import": (
        lambda text, out: confide.label_import(text, text, labels=out),
        ["label", "import", "TEXT", "TEXT", "--labels", "OUT"],
        "labels: OUT is not there", "--labels: OUT is not there",
    ),
    "train": (
        lambda text, out: confide.train(text, out=out, odometer=out / "spent"),
        ["train", "TEXT", "--out", "OUT", "--odometer", "OUT/spent"],
        "odometer: OUT/spent must lie outside of out, OUT",
        "--odometer: OUT/spent must lie outside of --out, OUT",
    ),
    "make_secret_plan": (
        lambda text, out: make_secret_plan(text, out, neighbouring_relation="replace"),
        ["protect", "TEXT", "--out", "OUT"],
        "table, policy: give exactly one of the two",
        "--secrets, --from-policy: give exactly one of the two",
    ),
    "certify": (
        lambda text, out: confide.certify(text, out, audience="judge"),
        ["certify", "TEXT", "--for", "judge", "--out", "OUT"],
        "audience='judge': must be one of", "for='judge': must be one of",
    ),
    "advise": (
        lambda text, out: advise_on_limits(text, out, []),
        ["advise", "TEXT", "--labels", "OUT"],
        "require: is missing; give", "--require: is missing; give",
    ),
}  # fmt: skip
"""A call and the same by a command line, both refused, and what each of the two reads."""


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_names_what_the_caller_wrote(run, tmp_path, name):
    call, words, by_script, by_command = CALLS[name]
    text, out = tmp_path / "c.jsonl", tmp_path / "o"
    jsonl.write_jsonl(customersim.simulate_corpus(20, 0), text)
    with pytest.raises(ValueError) as refused:
        call(text, out)
    assert str(refused.value).startswith(by_script.replace("OUT", str(out)))
    typed = [word.replace("TEXT", str(text)).replace("OUT", str(out)) for word in words]
    code, _, said = run(*typed)
    assert code == 2
    assert said.startswith("crtlib: error: " + by_command.replace("OUT", str(out)))
