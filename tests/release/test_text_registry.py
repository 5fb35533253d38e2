"""By what the registry of a person knows a text again, and what a certificate says of it."""

import json
import random

from confide import text_registry
from confide.labels import drawing, imports, label_tasks, registry
from confide.release import certifiable_run, certificate_parts, certify
from confide.reports import screening_page, sentences
from confide.screening.corpus import ScreeningOptions
from confide.training import train_on_corpus
from crtlib.text import corpora, jsonl
from crtlib.text.records import Dialogue, Turn

SMALL = {"method": "dpsgd", "width": 2, "epochs": 1, "epsilon": 3.0, "delta": 1e-4}
WORDS = [
    "order",
    "box",
    "late",
    "blue",
    "name",
    "card",
    "door",
    "bill",
    "post",
    "lost",
    "kind",
    "parcel",
]


def long_messages(seed, number):
    """So many messages of more than 80 characters, each its own."""
    coin = random.Random(seed)
    return [" ".join([*coin.choices(WORDS, k=18), f"{seed}-{k}"]) for k in range(number)]


def write(path, talks, user=""):
    """A text of conversations, of nobody who is named or of one person."""
    jsonl.write_jsonl(
        [
            Dialogue(f"{path.stem}-{k}", user, tuple(Turn("USR", text) for text in texts))
            for k, texts in enumerate(talks)
        ],
        path,
    )
    return path


def related(*paths):
    """What the registry finds of the first text in common with each of the others."""
    registry = text_registry.Registry(text_registry.registry_home())
    names = [corpora.hash_corpus(path) for path in paths]
    for path in paths:
        text_registry.register_text(path)
    found = registry.related(names[0])
    return [found.get(name) for name in names[1:]]


def two_queues(home):
    """Each ticket stands in the first export twice, and has one answer more in the second."""
    tickets = [long_messages(f"t{k}", 2) for k in range(30)]
    january = tickets + [[*texts, "Moved to queue B."] for texts in tickets]
    february = [[*texts, *long_messages(f"a{k}", 1)] for k, texts in enumerate(tickets)]
    return write(home / "january.jsonl", january), write(home / "february.jsonl", february)


def test_an_export_that_has_each_long_message_twice_is_known(tmp_path):
    """All long messages of February stood in January, and its certificate counted February alone
    and said that no earlier run was known, as far as messages of 80 characters or more tell."""
    texts = two_queues(tmp_path)
    (found,) = related(*texts)
    assert found and found["message"] == 60
    for text in texts:
        train_on_corpus.train(text, out=tmp_path / text.stem, **SMALL)
    trained = certifiable_run.read_certifiable_run(tmp_path / "february")
    value = certificate_parts.collect_certificate_parts(trained)
    assert value["spent_before"]["runs"] == 1


def test_a_standing_phrase_makes_no_two_texts_the_same(tmp_path):
    """What an agent says to everybody, and a text of another desk says to everybody, too."""
    phrase, few = long_messages("phrase", 1), corpora.MOST_CONVERSATIONS_OF_A_MESSAGE
    one, two = ([long_messages(f"{n}{k}", 1) + phrase for k in range(9)] for n in "ab")
    texts = write(tmp_path / "one.jsonl", one), write(tmp_path / "two.jsonl", two)
    assert related(*texts) == [None]
    first = write(tmp_path / "few.jsonl", one[:few])
    (found,) = related(first, write(tmp_path / "also.jsonl", two[:few]))
    assert found and found["message"] == 1
    own = write(tmp_path / "own.jsonl", one, "ann")  # her own words, however often
    (found,) = related(own, write(tmp_path / "hers.jsonl", two, "ann@x.org"))
    assert found and found["message"] == 1


def test_what_screening_left_is_known_though_the_text_was_entered_before(tmp_path):
    """A text that was trained on, then screened, and what was left taken in again: nothing knew
    that, as the text was in the registry already."""
    talks = [[f"my phone 555-010-{k:04d}, {long_messages(k, 1)[0]}"] for k in range(20)]
    raw = write(tmp_path / "raw.jsonl", talks)
    text_registry.register_text(raw)
    options = ScreeningOptions("regex:customersim", "none")
    screening_page.screen_into_folder(raw, tmp_path / "s", options)
    text_registry.register_text(tmp_path / "s")
    left = [[d.turns[0].text] for d in corpora.read_dialogues(tmp_path / "s")]
    assert not any("555-010" in text for (text,) in left)
    again = text_registry.register_text(write(tmp_path / "again.jsonl", left))
    found = text_registry.Registry(text_registry.registry_home()).related(again)
    assert corpora.hash_corpus(raw) in found


def test_the_page_says_by_what_a_text_is_known(tmp_path):
    """It said that all messages of 80 characters or more are."""
    text = write(tmp_path / "one.jsonl", [long_messages(k, 2) for k in range(30)])
    train_on_corpus.train(text, out=tmp_path / "m", **SMALL)
    value = certify.write_certificate(tmp_path / "m", tmp_path / "page.html", copies=())
    said = " ".join(sentences.select_sentences(value)["O9n"])
    for compared in (
        f"or all that one person says, of {corpora.SHORT_TALK_CHARACTERS} characters or more",
        f"message of {corpora.LONG_MESSAGE_CHARACTERS} characters or more",
        f"at most {corpora.MOST_CONVERSATIONS_OF_A_MESSAGE} conversations, or one person, have",
        f"{corpora.MAX_IDENTIFYING_MESSAGES:,} messages",
        "who speaks, other white space, marks that nobody sees",
        "Nothing else is compared",
    ):
        assert compared in said


# --------------------------------------------------------------------------- labels
def labelled(home, name, user):
    """How many pairs have judged so far, after a draw of five turns from one text of sixty people,
    whose conversations and people are called by ``name``, was read and judged a pair."""
    text, folder = home / f"{name}.jsonl", home / f"labels-{name}"
    talks = [
        Dialogue(
            f"{name}-{k}", user.format(k), (Turn("USR", f"order {k}: my number is 555-{k:04d}"),)
        )
        for k in range(60)
    ]
    jsonl.write_jsonl(talks, text)
    seed = sum(map(ord, name))
    drawing.draw_label_tasks(text, folder, turns=5, seed=seed, forms=["jsonl"])
    page = {"schema": "crtlib/labels/1", "labels": label_tasks.read_label_facts(folder)["labels"]}
    tasks = []
    for t in label_tasks.read_tasks(folder):
        number = {"kind": "id", "start": t.text.index("555-"), "end": len(t.text)}
        tasks.append({"task": t.task, "done": True, "secrets": [number]})
    (home / "read.json").write_text(json.dumps(page | {"annotator": "ann", "tasks": tasks}))
    imports.import_labels(text, home / "read.json", folder)
    out, options = home / f"screened-{name}", ScreeningOptions("regex:customersim", "everything")
    screening_page.screen_into_folder(text, out, options, labels=folder)
    return json.loads((out / "private" / "summary.json").read_text())["labels"]["judged"]


def test_draws_from_one_text_under_other_names_count(tmp_path):
    """Six draws of one text whose conversations and people were called otherwise each time: each
    judged "1", the bounds were 36 to 58 %, and the kindest was certified."""
    assert labelled(tmp_path, "a", "ann{}@x.org") == 1
    assert labelled(tmp_path, "b", "customer {}") == 2
    assert labelled(tmp_path, "c", "") == 3
    folder = label_tasks.read_label_facts(tmp_path / "labels-a")
    told = {"labels": folder["labels"]}
    assert registry.register_judged_pairs(told, folder["corpus"]) == 3  # of the first, by now


def test_draws_from_a_text_of_strangers_do_not_count(tmp_path):
    registry.register_judged_pairs({"labels": "others"}, "c" * 64, [("p", "q")], ["another turn"])
    assert labelled(tmp_path, "a", "ann{}@x.org") == 1
