"""Every call of library and application that writes to the disk, by function, and what becomes of
its file.

Only ``Release`` writes into a folder that a certificate covers. A new call must be entered here: a
file that others may see is given to :class:`confide.release.released_folder.Release` as a value.
"""

import ast
from pathlib import Path

import confide
import crtlib

GATE = {
    "release.certify": "write_certificate",  # the certificate, which `extend` enters
    "release.released_folder": "Release.write _write_file_list",
}
"""What leaves with a model: each file with its sources."""
MADE = {
    # in a private folder, of which a release adopts each file
    "models.model_folder": "save_fast_tokenizer save_model",
    "text.tokenizer": "BpeTokenizer.save",
}
"""The files of a model before they are released."""
ASIDE = {
    "commands.training": "new _write_stamps _put_aside",
    "labels.judged_turns": "record_judged_pair",
    "labels.registry": "open_label_registry",
    "odometer": "prepare_odometer",
    "odometer_lines": "open_connection open_transaction",
    "release.seal": "ensure_signing_key",
    "text.shards": "Shards.write",
    "text_registry": "Registry._key",
    "training.checkpoints": "Checkpoint.save",
    "training.odometer_run": "_write_mark",  # a release writes its model's files
    "training.training_record": "write_training",  # a release writes its model's files
}
"""What stays with its owner (0600): registry, odometer, records, checkpoints."""
OWN = {
    "attacks.run_audit": "audit_training",
    "commands.release": "advise leaver",
    "labels.adjudication": "write_adjudication",
    "labels.drawing": "draw_label_tasks",
    "labels.forms": "write_forms",
    "labels.imports": "_write_reading",
    "labels.label_tasks": "write_label_facts",
    "models.smollm2": "smollm2_folder _convert_gguf",
    "reports.detector_card": "write_detector_card",
    "reports.leakage": "make_leakage_report _key_beside.write_key",
    "reports.leakage_page": "write_report_files",
    "reports.screening_page": "screen_into_folder",
    "screening.tagger": "save_tagger",
    "screening.teaching": "teach_tagger",
    "screening.word_scorers": "EncoderScorer.save _unpack_minilm",
    "text.corpus_folder": "CorpusWriter.__init__ CorpusWriter.add "
    "write_corpus_card save_corpus make_corpus_writer",
    "text.ingest": "ingest_sources _write_corpus _write_columns_read",
    "text.jsonl": "write_jsonl",
    "text.screened_folder": "ScreenedWriter._write",
    "training.secret_plans": "make_secret_plan _write_plan",
    "ragged_array": "RaggedArray.save",
    # the private text that a script handed over, beside its model
    "hf": "_recipe_of_rows _write_rows",
}
"""Folders and pages that a command was asked for: no certificate covers them but by what it says
of screenings, labels, audits and reports."""
TOOLS = {
    "files": "replace_atomically replace_together write_text locked_part_file",
    "outputs": "staged_folder _swap_folders _finish_killed_swap",
}
"""What the others write by."""

NAMES = {"write_text", "write_bytes", "to_parquet", "to_csv", "save_file", "save_pretrained",
         "fdopen", "write_table", "ParquetWriter", "copytree", "copyfile", "copy2", "move",
         "replace_atomically",
         "write_jsonl", "staged_folder", "ZipFile", "savefig", "symlink", "link", "mkstemp",
         "touch",
         "symlink_to", "hardlink_to", "write_parquet", "savez", "tofile", "truncate",
         "save_to_disk", "NamedTemporaryFile"}  # fmt: skip
BY_OWNER = {("sqlite3", "connect"), ("os", "rename"), ("os", "replace"), ("torch", "save"),
            ("tokenizer", "save"), ("json", "dump"), ("pickle", "dump"),
            ("np", "save"), ("np", "memmap"),
            ("shutil", "copy"), ("files", "replace_together")}  # fmt: skip


def writes(call):
    """Whether a call changes a file."""
    f = call.func
    name = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
    if name == "open":
        modes = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
        if ast.unparse(f) == "os.open":
            return any(flag in ast.unparse(call) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))
        texts = [m.value for m in modes if isinstance(m, ast.Constant) and isinstance(m.value, str)]
        if any(k.arg == "mode" and not isinstance(k.value, ast.Constant) for k in call.keywords):
            return True  # whichever it is
        return any(set(m) <= set("rwaxbt+") and set(m) & set("wax+") for m in texts)
    if name in ("rename", "replace") and isinstance(f, ast.Attribute):
        path = len(call.args) == 1 and not isinstance(call.args[0], ast.Starred)
        return (ast.unparse(f.value) == "os" or path) and not call.keywords
    if name in ("execute", "sql", "query"):  # of DuckDB
        return any("COPY" in m.value for m in ast.walk(call)
                   if isinstance(m, ast.Constant) and isinstance(m.value, str))  # fmt: skip
    if name == "connect":
        return ast.unparse(f) == "sqlite3.connect" and ast.unparse(call.args[0]) != "''"
    if name == "ZipFile":
        return len(call.args) > 1 or bool(call.keywords)  # else it is read
    owner = ast.unparse(f.value) if isinstance(f, ast.Attribute) else ""
    return name in NAMES or (owner, name) in BY_OWNER


def functions(tree, where=()):
    """The name of the function around each call that writes."""
    for node in ast.iter_child_nodes(tree):
        inner = (*where, node.name) if hasattr(node, "body") and hasattr(node, "name") else where
        if isinstance(node, ast.Call) and writes(node):
            yield ".".join(where)
        yield from functions(node, inner)


def test_every_call_that_writes_is_in_the_list():
    found = {
        (".".join(path.relative_to(root).with_suffix("").parts), name)
        for root in (Path(crtlib.__file__).parent, Path(confide.__file__).parent)
        for path in root.rglob("*.py")
        for name in functions(ast.parse(path.read_text("utf-8")))
    }
    listed = [
        (module, name)
        for table in (GATE, MADE, ASIDE, OWN, TOOLS)
        for module, names in table.items()
        for name in names.split()
    ]
    assert len(set(listed)) == len(listed)
    assert found - set(listed) == set(), (
        "a new call writes: give the file to a release, or enter it"
    )
    assert set(listed) - found == set(), "these write no more"


def test_a_call_that_writes_is_seen():
    code = "def f(p):\n    {}\n"
    for call in ("open(p, 'w')", "p.open('ab')", "p.write_text('x')", "os.replace(p, p)",
                 "torch.save({}, p)", "t.to_parquet(p)", "io.open(p, mode='r+')",
                 "open(p, mode=m)", "os.open(p, os.O_RDWR)", "p.rename(q)", "p.replace(q)",
                 "p.touch()", "np.save(p, x)", "c.execute(f'COPY t TO {p}')"):  # fmt: skip
        assert list(functions(ast.parse(code.format(call)))) == ["f"], call
    for call in ("open(p)", "p.open('rb')", "x.replace('a', 'b')", "sqlite3.connect('')",
                 "os.open(p, os.O_RDONLY)", "t.rename(columns={})"):  # fmt: skip
        assert not list(functions(ast.parse(code.format(call)))), call
