"""The leakage report: a worked example value by value, the paper's Table 1, and real models."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from crtbook import leakage as leakage_studies
from crtbook import mitigations
from crtbook.mitigations import measure_report_recall
from crtlib.attacks import leakage
from crtlib.attacks.leakage import Document, TokenScores
from crtlib.models import generation
from crtlib.models.construction import build_model
from crtlib.models.model_folder import load_model
from crtlib.models.specs import ModelSpec
from crtlib.screening.redaction import redact
from crtlib.text import canaries, customersim, data_points
from crtlib.text import tokenizer as tokenizer_module
from crtlib.text.records import MASK, Corpus, Dialogue, Point, Secret, Turn
from crtlib.text.tokenizer import bos_id_of, train_bpe
from crtlib.training import schedules

# --------------------------------------------------------------------------- a worked example
BIGRAM = {
    "thank": ("you", 0.5), "you": ("very", 0.25), "very": ("much", 0.5), "much": ("here", 0.25),
    "i": ("like", 0.5), "like": ("dogs", 0.5), "cats": ("are", 0.5), "my": ("name", 0.5),
    "code": ("is", 0.5), "is": ("seven", 0.25), "seven": ("one", 0.5), "one": (".", 0.5),
    "we": ("are", 0.5), "she": ("was", 0.5), "here": (".", 0.5), "all": (".", 0.5),
    "now": (".", 0.5),
}  # fmt: skip
SAID = {
    "U1": ["thank you very much", "i like cats very much"],
    "U2": ["my code is seven one .", "we thank you"],
    "U3": ["she is very much here now", "thank you all"],
}
WORDS = sorted({w for texts in SAID.values() for t in texts for w in t.split()})
CORPUS = [
    Document(user, f"{user}/{j}", [WORDS.index(w) for w in text.split()])
    for user, texts in SAID.items()
    for j, text in enumerate(texts)
]


def bigram_scores(document):
    """Log-probabilities and ranks under the table above: its guess, or a tenth and rank 1."""
    said = [WORDS[t] for t in document.tokens]
    logprobs, ranks = [np.nan], [leakage.NO_CONTEXT_RANK]  # no BOS: the first token has no context
    for before, word in itertools.pairwise(said):
        guess, p = BIGRAM[before]
        logprobs.append(np.log(p if guess == word else 0.1))
        ranks.append(0 if guess == word else 1)
    return np.array(logprobs), np.array(ranks)


SCORES = TokenScores(*map(list, zip(*map(bigram_scores, CORPUS), strict=True)))
PUBLIC = TokenScores(
    [np.array([np.nan] + [-np.log(16)] * (len(d.tokens) - 1)) for d in CORPUS], SCORES.ranks
)
EXPECTED = {  # W: (#S, users S, #D, users D, contexts, perplexities, ratio, times in verbatim S)
    "you very much": (1, 1, 1, 1, ["thank"], [2.519842], 6.349604, 0),
    "like": (1, 1, 1, 1, ["i"], [2], 8, 1),
    "much": (1, 1, 3, 2, ["i like cats very"], [2], 8, 0),
    "is seven one .": (1, 1, 1, 1, ["my code"], [2.378414], 6.727171, 0),
    "you": (2, 2, 3, 3, ["we thank", "thank"], [2, 2], 8, 1),
    "much here": (1, 1, 1, 1, ["she is very"], [2.828427], 5.656854, 1),
}


def report(**options):
    runs = leakage.find_runs(CORPUS, SCORES, k=1, public=PUBLIC, **options)
    table = leakage.sequence_features(runs, CORPUS)
    table.index = [" ".join(WORDS[t] for t in w) for w in table.tokens]
    return runs, table


def test_worked_example_every_feature():
    runs, table = report()
    assert len(runs) == 7 and set(table.index) == set(EXPECTED)
    for name, (total_s, users_s, total_d, users_d, contexts, pp, ratio, _) in EXPECTED.items():
        row = table.loc[name]
        assert (row.total_in_s, row.users_in_s) == (total_s, users_s)
        assert (row.total_in_d, row.users_in_d) == (total_d, users_d)
        shown = [" ".join(WORDS[t] for t in CORPUS[i].tokens[:n]) for i, n in row.contexts]
        assert shown == contexts
        assert row.perplexities == pytest.approx(pp, abs=5e-7)
        assert row.public_perplexities == pytest.approx([16] * len(pp))
        assert row.ratio == pytest.approx(ratio, abs=5e-7)


def test_worked_example_metrics():
    _, table = report()
    above = {t: leakage.leakage_metrics(table, t)["unique_above"] for t in (6, 6.5, 7, 9)}
    assert above == {6: 3, 6.5: 2, 7: 1, 9: 0}
    assert (
        leakage.leakage_metrics(table, table.ratio["like"])["unique_above"] == 1
    )  # equal to t is kept
    told = leakage.leakage_metrics(table)
    assert told["unique"] == 4 and told["unique_above"] is None
    assert told["leakage_epsilon"] == pytest.approx(8)
    assert set(table[table.users_in_d == 1].index) == {
        "you very much", "like", "is seven one .", "much here"
    }  # fmt: skip


def test_worked_example_verbatim_loses_runs_at_the_end():
    runs, table = report(flush=False)
    assert len(runs) == 3
    assert {n: int(x) for n, x in table.total_in_s.items()} == {
        n: row[-1] for n, row in EXPECTED.items() if row[-1]
    }
    assert set(runs.user[runs.tokens == (WORDS.index("you"),)]) == {"U3"}
    told = leakage.leakage_metrics(table, 7)
    assert (told["unique"], told["unique_above"]) == (2, 1)
    assert told["leakage_epsilon"] == pytest.approx(8)


def test_minimum_length_filters_runs():
    runs, _ = report(min_length=3)
    assert sorted(runs.length) == [3, 4]


def test_the_first_row_is_the_most_worrying():
    _, table = report()
    assert list(table.index)[:2] == ["like", "is seven one ."]
    assert (table.users_in_d.to_numpy()[:4] == 1).all() and table.users_in_d.iloc[4] > 1


def test_secrets_come_first_then_what_few_have_then_what_is_rare():
    """Length decides nothing: a long run of everyday words stands behind a short rare one."""
    common, rare, name = [0, 1, 2, 3], [8, 9], [7]
    said = [("a", [4, *common]), ("b", [5, *rare]), ("c", [6, *name]), ("d", [6, *name])]
    said += [("e", [0, 1]), ("e", [2, 3]), ("e", [1, 0]), ("e", [3, 2])]
    corpus = [
        Document(u, str(j), t, (("name", 1, 2),) if t[1:] == name else ())
        for j, (u, t) in enumerate(said)
    ]
    guessed = [np.array([9, *[0] * (len(t) - 1)]) for _, t in said[:4]]
    guessed += [np.full(2, 9) for _ in said[4:]]
    runs = leakage.find_runs(
        corpus, TokenScores([np.full(len(t), -1.0) for _, t in said], guessed), k=1
    )
    table = leakage.sequence_features(runs, corpus)
    assert table.tokens.tolist() == [tuple(name), tuple(rare), tuple(common)]
    assert table.users_in_d.tolist() == [2, 1, 1]


def test_table_1_of_the_paper():
    """ "very much": twice in S, of one user; ten times in D, of five; 1.3 and 3.6."""
    thank, you, i, like, cats, very, much, other = range(8)
    said = [("u0", [thank, you, very, much, other]), ("u0", [i, like, cats, very, much, other])]
    said += [(f"u{1 + k % 4}", [other, very, much]) for k in range(8)]
    corpus = [Document(u, str(j), t) for j, (u, t) in enumerate(said)]
    logprobs = [np.full(len(t), -5.0) for _, t in said]
    ranks = [np.full(len(t), 9) for _, t in said]
    for j, (at, pp) in enumerate([(2, 1.3), (3, 3.6)]):
        logprobs[j][at : at + 2], ranks[j][at : at + 2] = -np.log(pp), 0
    runs = leakage.find_runs(corpus, TokenScores(logprobs, ranks), k=1)
    (row,) = leakage.sequence_features(runs, corpus).itertuples()
    assert (row.total_in_s, row.users_in_s, row.total_in_d, row.users_in_d) == (2, 1, 10, 5)
    contexts = [list(corpus[i].tokens[:n]) for i, n in row.contexts]
    assert contexts == [[thank, you], [i, like, cats]]
    assert row.perplexities == pytest.approx([1.3, 3.6])


def test_larger_k_joins_runs():
    document = Document("u", "d", [1, 2, 3, 4])
    scores = TokenScores([np.full(4, -1.0)], [np.array([0, 2, 0, 1])])
    found = {k: leakage.find_runs([document], scores, k=k).tokens.tolist() for k in (1, 2, 3)}
    assert found == {1: [(1,), (3,)], 2: [(1,), (3, 4)], 3: [(1, 2, 3, 4)]}


def test_nothing_guessed_is_an_empty_report():
    silent = TokenScores(
        SCORES.logprobs, [r + 1 for r in SCORES.ranks[:-1]] + [SCORES.ranks[-1] + 1]
    )
    silent = TokenScores(SCORES.logprobs, [np.full(len(r), 5) for r in silent.ranks])
    runs = leakage.find_runs(CORPUS, silent, k=1, public=PUBLIC)
    table = leakage.sequence_features(runs, CORPUS)
    assert len(runs) == len(table) == 0
    told = leakage.leakage_metrics(table, 2.0)
    assert told == {"unique": 0, "unique_above": 0, "leakage_epsilon": None}


def test_a_public_model_that_excludes_a_token_makes_the_ratio_infinite():
    blocked = TokenScores(
        [np.where(np.isnan(x), x, -np.inf) for x in SCORES.logprobs], SCORES.ranks
    )
    runs = leakage.find_runs(CORPUS, SCORES, k=1, public=blocked)
    assert (
        leakage.leakage_metrics(leakage.sequence_features(runs, CORPUS))["leakage_epsilon"]
        == np.inf
    )


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 1, "min_length": 0}])
def test_numbers_below_one_are_refused(options):
    with pytest.raises(ValueError, match=r"=0: must be at least 1"):
        leakage.find_runs(CORPUS, SCORES, **options)


# --------------------------------------------------------------------------- real models
PLAIN = customersim.simulate_corpus(10, 0, "paper")
SECRETS = canaries.make_canaries(3, seed=0)
PLANTED = data_points.make_points(
    canaries.insert_canaries(PLAIN, SECRETS, copies=20, seed=0), unit="turn"
)
BPE = train_bpe([p.text for p in PLANTED if not p.secrets], vocab_size=300)
SHAPE = ModelSpec("lstm", vocab_size=BPE.vocab_size, embedding=32, hidden=96)
CANARY_USERS = {p.user for p in PLANTED if p.user.startswith(canaries.CANARY_USER_PREFIX)}


def brief(epochs):
    plan = schedules.sgd_phases(epochs=epochs, batch_size=16, learning_rate=1e-2)
    return leakage_studies.make_trainer(SHAPE, BPE, phases=plan, seed=0)


@pytest.fixture(scope="module")
def memorised():
    """A model that read the canaries twenty times in each of a few epochs."""
    return brief(16)(PLANTED)


def test_the_report_lists_every_secret_that_prompting_completes(memorised):
    found = leakage.measure_leakage(memorised, BPE, PLANTED, k=1)
    told = measure_report_recall(memorised, found, bos=BPE.bos, users=CANARY_USERS)
    assert told.planted == 3 * 20
    assert told.completed >= 20, "the model must memorise something for this test to say anything"
    assert told.recall == 1.0 and told.listed_unique == told.listed
    # A secret that ends its text is what the printed Algorithm 1 never lists.
    verbatim = leakage.measure_leakage(memorised, BPE, PLANTED, k=1, flush=False)
    told = measure_report_recall(memorised, verbatim, bos=BPE.bos, users=CANARY_USERS)
    assert told.completed >= 20 and told.listed == 0 and told.recall == 0.0
    assert "id" in {k for kinds in found.unique().kinds for k in kinds}


def test_users_left_out_make_their_secrets_surprising(memorised):
    found = leakage.measure_leakage(memorised, BPE, PLANTED, k=1)
    owners = found.owners() & CANARY_USERS
    assert owners
    public = leakage_studies.leave_users_out(brief(16), PLANTED, owners)
    compared = leakage.measure_leakage(memorised, BPE, PLANTED, k=1, public=public)
    theirs = compared.runs[compared.runs.user.isin(owners) & (compared.runs.secret_tokens > 5)]
    assert len(theirs) and theirs.ratio.median() > 3
    assert leakage.leakage_metrics(compared.sequences, 3.0)["unique_above"] >= 1
    with pytest.raises(ValueError, match="users: 1 of 1 have no point"):
        leakage_studies.leave_users_out(brief(1), PLANTED, {"nobody"})
    with pytest.raises(ValueError, match="nobody remains"):
        leakage_studies.leave_users_out(brief(1), PLANTED, {p.user for p in PLANTED})


def test_runs_are_what_the_model_says_token_by_token(memorised):
    """Against the stepping interface, which shares no code with the scores: k = 3."""
    some = leakage.tokenise_documents(PLANTED[:12], BPE)
    runs = leakage.find_runs(some, leakage.score_documents(memorised, some, bos=BPE.bos), k=3)
    found = {(r.index_, r.start + j) for r in runs.rename(columns={"index": "index_"}).itertuples()
             for j in range(r.length)}  # fmt: skip
    truth = set()
    for i, d in enumerate(some):
        state, logprobs = generation.read_prefix(memorised, [BPE.bos])
        for j, t in enumerate(d.tokens):
            if int(logprobs[0].argsort(descending=True).tolist().index(t)) < 3:
                truth.add((i, j))
            state, logprobs = generation.extend_prefix(memorised, state, torch.tensor([t]))
    assert found == truth


def test_hardening_costs_accuracy_and_hides_sequences(memorised):
    found = leakage.measure_leakage(memorised, BPE, PLANTED, k=1)
    scores, sure = mitigations.score_with_next_perplexity(memorised, found.documents, bos=BPE.bos)
    assert all(map(np.array_equal, scores.ranks, found.scores.ranks))
    strict = {"k": 1, "thresholds": [20, 2, 1.05, 0]}
    table = mitigations.harden_interface(found.documents, found.scores, sure, **strict)
    assert table.accuracy[0] == pytest.approx(found.accuracy)
    assert table.unique[0] == len(found.unique())
    for column in ("answered", "accuracy"):
        assert (np.diff(table[column]) <= 0).all()
    assert table.unique.iloc[-1] == 0 and table.answered.iloc[-1] == 0
    assert 0 < table.answered[2] < 1


def test_next_perplexity_is_that_of_the_distribution(memorised):
    some = leakage.tokenise_documents(PLANTED[:3], BPE)
    _, logprobs = generation.read_prefix(memorised, [BPE.bos, *some[2].tokens[:4]])
    p = logprobs[0].double().exp()
    expected = float(torch.exp(-(p * p.log()).sum()))
    _, values = mitigations.score_with_next_perplexity(memorised, some, bos=BPE.bos)
    assert values[2][4] == pytest.approx(expected, rel=1e-4)
    assert [len(v) for v in values] == [len(d.tokens) for d in some]
    _, bare = mitigations.score_with_next_perplexity(memorised, some, bos=None)
    assert bare[2][0] == 1 and len(bare[2]) == len(some[2].tokens)


def test_texts_beyond_the_context_are_windowed_and_counted():
    shape = ModelSpec("gpt2", vocab_size=BPE.vocab_size, hidden=16, layers=1, context=24)
    model = build_model(shape, 0)
    points = [Point("a", "u", "USR: hello " * 30), Point("b", "v", "USR: hi"), Point("c", "v", "")]
    found = leakage.measure_leakage(model, BPE, points, k=1)
    assert (found.windowed, found.empty, len(found.documents)) == (1, 1, 2)
    assert not np.isnan(np.concatenate(found.scores.logprobs)).any()
    _, sure = mitigations.score_with_next_perplexity(model, found.documents, bos=BPE.bos)
    assert [len(x) for x in sure] == [len(x) for x in found.scores.ranks]
    assert all((np.asarray(x) > 1).all() for x in sure)
    assert measure_report_recall(model, found, bos=BPE.bos).planted == 0


def test_secrets_cover_the_tokens_that_touch_them():
    text = "USR: my ID is: 123456 ok"
    point = Point("0", "u", text, (Secret("id", 15, 21),))
    (document,) = leakage.tokenise_documents([point], BPE)
    ((kind, a, b),) = document.secrets
    assert kind == "id" and BPE.decode(document.tokens[a:b]).strip() == "123456"


def test_lengths_only_holds_no_text(memorised):
    found = leakage.measure_leakage(memorised, BPE, PLANTED, k=1)
    runs, table = mitigations.hide_text_of_report(found)
    for part in (runs, table):
        assert not {"tokens", "user", "document", "kinds", "contexts", "index"} & set(part)
    assert table.length[runs.sequence].tolist() == runs.length.tolist()
    assert json.dumps(table.context_lengths.tolist())  # numbers and nothing else


def test_sequences_of_few_users_are_more_than_the_unique_ones(memorised):
    report = leakage.measure_leakage(memorised, BPE, PLANTED, k=1)
    most = int(report.sequences.users_in_s.max())
    sizes = [len(report.fewer(p)) for p in (1, 2, most + 1)]
    assert sizes[0] == 0 < sizes[1] < sizes[2] == len(report.sequences)
    alone = set(report.unique().tokens)
    assert alone <= set(report.fewer(2).tokens)  # who has it in S is one of those in D


def test_more_guesses_raise_the_accuracy(memorised):
    one, three = (leakage.measure_leakage(memorised, BPE, PLANTED, k=k) for k in (1, 3))
    assert 0 < one.accuracy < three.accuracy <= 1
    assert one.runs.length.sum() < three.runs.length.sum()


def test_the_vocabulary_rule_flags_words_of_few_users():
    points = [Point("0", "a", "Hello Zorro"), Point("1", "b", "hello you"), Point("2", "b", "you")]
    flagged = mitigations.rare_words(2)(points)
    assert [[p.text[s.start : s.end] for s in spans] for p, spans in
            zip(points, flagged, strict=True)] == [["Zorro"], ["you"], ["you"]]  # fmt: skip
    assert mitigations.share_of_masked_words(points, flagged) == pytest.approx(3 / 5)
    with pytest.raises(ValueError, match="min_users=0: must be at least 1"):
        mitigations.rare_words(0)


def test_the_vocabulary_rule_leaves_words_of_many_users_alone():
    """As a vocabulary of these words would, in which any other word is unknown."""
    points = data_points.make_points(customersim.simulate_corpus(40, 0), unit="turn")
    spans = mitigations.rare_words(10)(points)
    read = [redact(p, s).text.replace(MASK, " ") for p, s in zip(points, spans, strict=True)]
    users = {}
    for p in points:
        for word in re.findall(r"\w+", p.text.lower()):
            users.setdefault(word, set()).add(p.user)
    common = {word for word, whose in users.items() if len(whose) >= 10}
    assert set(re.findall(r"\w+", " ".join(read).lower())) == common != set(users)


# --------------------------------------------------------------------------- bad input
def test_bad_input_is_named(memorised):
    points = PLANTED[:5]
    other = train_bpe(["hello"], vocab_size=262)
    with pytest.raises(ValueError, match=r"its tokenizer has \d+ tokens, its model \d+"):
        leakage.measure_leakage(memorised, other, points, k=1)
    with pytest.raises(ValueError, match="top_k=0: must be at least 1"):
        leakage.measure_leakage(memorised, BPE, points, k=0)
    with pytest.raises(ValueError, match="top_k=999: must be at least 1 and at most"):
        leakage.measure_leakage(memorised, BPE, points, k=999)
    with pytest.raises(ValueError, match="no user id; give each"):
        leakage.measure_leakage(memorised, BPE, [Point("0", "", "hi")], k=1)
    with pytest.raises(ValueError, match="all of its texts are empty"):
        leakage.measure_leakage(memorised, BPE, [Point("0", "u", "")], k=1)
    small = build_model(ModelSpec("lstm", vocab_size=20, hidden=4), 0)
    with pytest.raises(ValueError, match="public: must read the model's tokenizer"):
        leakage.measure_leakage(memorised, BPE, points, k=1, public=small)


def test_transformers_folders(tmp_path):
    """Weights as safetensors are read, pickled ones refused unopened; a padded vocabulary is fine,
    another tokenizer is not."""

    def save(folder, rows):
        ends = {"bos_token_id": 0, "eos_token_id": 1}
        shape = GPT2Config(vocab_size=rows, n_embd=16, n_layer=1, n_head=2, n_positions=32, **ends)
        GPT2LMHeadModel(shape).save_pretrained(folder)
        backend = tokenizer_module.copy_backend_tokenizer(BPE)
        PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<BOS>").save_pretrained(folder)
        return folder

    model, tokenizer = load_model(save(tmp_path / "good", BPE.vocab_size))
    assert bos_id_of(tokenizer) == BPE.bos
    found = leakage.measure_leakage(model, tokenizer, PLANTED[:20], k=3)
    assert [d.tokens for d in found.documents[:3]] == [
        ids[1:-1] for ids in BPE.encode(p.text for p in PLANTED[:3])
    ]
    assert BPE.vocab_size == 300
    load_model(save(tmp_path / "padded", 320))
    with pytest.raises(ValueError, match="it must be the model's"):
        load_model(save(tmp_path / "other", BPE.vocab_size + 200))
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text("{}")
    (pickled / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(ValueError, match=r"pickled weights \(pytorch_model.bin\).*safetensors"):
        load_model(pickled)
    with pytest.raises(ValueError, match="no such folder"):
        load_model(tmp_path / "nowhere")


def test_dialogues_keep_their_users():
    turns = (Turn("USR", "hi"), Turn("SYS", "bye"))
    corpus = Corpus("c", (Dialogue("d", "ann", turns),))
    assert [
        d.user
        for d in leakage.tokenise_documents(data_points.make_points(corpus, unit="turn"), BPE)
    ] == [
        "ann",
        "ann",
    ]


def test_no_value_of_a_report_shows_text_or_what_stands_for_it():
    said = (leakage.Document("ann", "a", [1234, 5678]),)
    scores = leakage.TokenScores([np.array([-0.5432])], [np.array([9])])
    for value in (*said, scores, leakage.ScoredPoints(said, scores, [np.ones(2, dtype=bool)])):
        assert not {"ann", "1234", "0.5432"} & set(re.findall(r"[\w.]+", repr(value)))
