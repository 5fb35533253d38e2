"""A certificate says by what an earlier text would be known: each clause of it is turned
into pairs of texts that differ in what it says makes no difference, and found."""

import csv
import itertools
import random
import unicodedata

import pytest

from confide import spending, text_registry
from confide.text import ingest, registry_units
from confide.training import training_record
from crtlib.text import corpora, data_points, jsonl
from crtlib.text.records import Corpus, Dialogue, Turn

WORDS = ["order", "café", "late", "blue", "name", "Zürich", "door", "bill", "Ångström", "lost"]


def say(seed, words):
    """A message that nobody else says."""
    coin = random.Random(seed)
    return " ".join([*coin.choices(WORDS, k=words), f"{coin.randrange(10**8):08d}"])


def fill(name, number=5):
    """Conversations of people of this text alone, too short to be known by."""
    return [(f"{name}{k}", f"{name}@{k}", [say(f"{name}{k}", 2)]) for k in range(number)]


def one_conversation(name):
    return [("c", f"{name}1", [say("a", 3), say("b", 3)])]


def a_message_without_a_person(name):
    return [("c", "", [say("only", 7)])]


def a_person_of_several_conversations(name):
    """All that a person says, which is one data point, and in the other text one conversation."""
    first, second = [say("a", 2)], [say("b", 2), say("c", 1)]
    if name == "one":
        return [("c", "p1", first), ("d", "p1", second)]
    return [("e", "p2", first + second)]


def the_name_of_a_person(name):
    return [("c", "Ada Lovelace Zoë", [say(f"her {name}", 2)])]


def a_long_message(name):
    return [("c", f"{name}1", [say("long", 14), say(f"other {name}", 2)])]


def half_of_the_short_messages(name):
    said = [say(f"short {k}", 2) for k in range(16)]
    return [
        (f"{n}", f"{name}p{n}", [x]) for n in range(2) for x in said[:: 1 - 2 * (name == "one")]
    ]


def an_eighth_of_the_rare_messages(name):
    shared = [(f"r{k}", f"{name}r{k}", [say(f"rare {k}", 2), say(f"{name} {k}", 2)])
              for k in range(16)]  # fmt: skip
    return [*shared, *fill(f"{name} more ", 80)]


def stretches_of_short_messages(name):
    said = [[say(f"{t} {k}", 3) for k in range(7)] for t in range(4)]
    ends = [[f"{name} begins {t}", *some, f"{name} ends {t}"] for t, some in enumerate(said)]
    return [*((f"t{t}", f"{name}t{t}", x) for t, x in enumerate(ends)), *fill(f"{name} more ", 200)]


CLAUSES = [
    one_conversation, a_message_without_a_person, a_person_of_several_conversations,
    the_name_of_a_person, a_long_message, half_of_the_short_messages,
    an_eighth_of_the_rare_messages, stretches_of_short_messages,
]  # fmt: skip
ROLES = ("USR", "SYS")
FORMS = {  # the speakers, and how a text, or a name, is written
    "as it is": (ROLES, str),
    "other roles": (("customer", "agent"), str),
    "names of speakers": (("Ann B.", "Bob"), str),
    "nobody": (("", ""), str),
    "roles in the text": (("", ""), lambda x: f"USR: {x}"),
    "white space": (ROLES, lambda x: f"\t{x.replace(' ', '  ', 1)}\u00a0\n"),
    "no-break spaces": (ROLES, lambda x: x.replace(" ", "\u00a0")),
    "line breaks": (ROLES, lambda x: x.replace(" ", "\r\n", 1)),
    "each word a line": (ROLES, lambda x: x.replace(" ", "\n")),
    "decomposed": (ROLES, lambda x: unicodedata.normalize("NFD", x)),
    "full width": (ROLES, lambda x: x.replace("0", "\uff10").replace("L", "\uff2c")),
    "unseen marks": (ROLES, lambda x: f"\ufeff{x[:2]}\u200b{x[2:]}\u00ad"),
    "variants and fillers": (ROLES, lambda x: f"{x[:2]}\ufe0f{x[2:]}\u3164\x07"),
    "quotation marks": (ROLES, lambda x: f'"{x}"'),
    "curly quotation marks": (ROLES, lambda x: f"\u201c{x}\u201d"),
}


def write(path, talks, form="as it is"):
    """A text of conversations (id, person, messages) in one of the ``FORMS``."""
    speakers, spell = FORMS[form]
    jsonl.write_jsonl(
        [
            Dialogue(
                f"{path.stem}-{talk}-{k}",
                user if form == "roles in the text" else spell(user),
                tuple(Turn(s, spell(x)) for s, x in zip(itertools.cycle(speakers), said)),
            )
            for k, (talk, user, said) in enumerate(talks)
        ],
        path,
    )
    return path


def related(first, *others):
    """Which of the other texts the registry knows as related to the first."""
    names = [text_registry.register_text(path) for path in (first, *others)]
    found = text_registry.Registry(text_registry.registry_folder()).find_related_texts(names[0])
    return [name in found for name in names[1:]]


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_each_clause_of_the_sentence_finds_what_it_names(tmp_path, clause):
    """Seven whole conversations of 97 characters stood in both texts, byte for byte the same data
    points, whose speakers were called Ann here and Ann B. there: runs 0, (1.0, 1e-4)."""
    one = write(tmp_path / "one.jsonl", clause("one") + fill("one"))
    others = [
        write(tmp_path / f"{k}.jsonl", clause("other") + fill(f"other {k} "), form)
        for k, form in enumerate(FORMS)
    ]
    stranger = write(tmp_path / "stranger.jsonl", fill("stranger"))
    found = dict(zip([*FORMS, "a stranger"], related(one, *others, stranger), strict=True))
    assert not found.pop("a stranger")
    assert not [form for form, known in found.items() if not known]


@pytest.mark.parametrize(
    "said", ["to Ann@Example.com", "in all 7.00", 'he said "yes it was"', "so it said agent: wait"]
)
def test_a_line_that_ends_elsewhere_is_the_same_words(tmp_path, said):
    """An address, a whole number, a quotation and a role were read in another way where a line
    began or ended beside them: a conversation that another export wraps was not known again,
    though "other white space ... make no difference"."""
    message = f"{say('a', 3)} {said} Thanks ANN"
    assert 40 <= len(message) < 80
    texts = [[("c", "one1", [message])], [("c", "other1", [message.replace(" ", "\n")])]]
    one, other = (
        write(tmp_path / f"{name}.jsonl", talks + fill(name))
        for name, talks in zip(("one", "other"), texts, strict=True)
    )
    assert related(one, other) == [True]


def test_what_is_one_data_point_in_two_texts_is_known(tmp_path):
    """Points as they are trained on, drawn at random: of those that are equal the words are."""
    coin = random.Random(3)
    parts = ["Ann", "", "usr", "USR", "S1", ": ", "\n", '"', " ", "7.0", "a@B", "hi", "yes", "ﬁ"]
    seen = {}
    for _ in range(4000):
        turns = tuple(
            Turn(coin.choice(parts[:5]), "".join(coin.choices(parts, k=coin.randrange(1, 4))))
            for _ in range(coin.randrange(1, 3))
        )
        d = Dialogue("d", "u", turns)
        (point,) = data_points.make_points(Corpus("c", (d,)), "dialogue")
        texts = [registry_units._compared_words(t.text) for t in turns]
        seen.setdefault(point.text, set()).add(" ".join(filter(None, texts)))
    assert len(seen) < 3000 and {len(words) for words in seen.values()} == {1}


def test_half_of_the_messages_is_half_of_those_that_are_compared(tmp_path):
    """Messages that crtlib 0.3 knew by other characters count once."""
    shared = [say(f"s{k}", 2) for k in range(16)]
    texts = []
    for name, before in (("one", ""), ("other", "USR: ")):
        own = [f"USR: {say(f'{name} {k}', 2)}" for k in range(16)]
        said = [*(before + x for x in shared), *own]
        talks = [(f"{n}", f"{name}p{n}", [x]) for n in range(2) for x in said]
        texts.append(write(tmp_path / f"{name}.jsonl", talks))
    assert related(*texts) == [True]


def chats(path, month, thread):
    """A table of messages of 30 customers, two each."""
    coin = random.Random(month)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["customer", "conversation_id", "sender", "body"])
        for k in [k for k in range(30) for _ in range(2)]:
            rows.writerow([f"cust{k}", thread(k), "USR", f"order {coin.randrange(10**8)} please"])
    return path


def test_a_person_who_is_called_like_the_conversation_is_a_person(tmp_path):
    """Two months of 300 customers, each with one conversation that has the customer's number: "any
    one person (1.0, 1e-4)", runs 0, and "No earlier run is known here ... the name of a person"."""
    texts = []
    for month in (1, 2):
        path = chats(tmp_path / f"{month}.csv", month, lambda k: f"cust{k}")
        made = ingest.ingest_sources([path], tmp_path / f"t{month}", yes=True)
        assert made.facts.users_are == "column"
        texts.append(tmp_path / f"t{month}")
    said = training_record.describe_corpus(texts[0], corpora.read_corpus_at(texts[0]), "0" * 64)
    assert said["users_are"] == "column"
    jsonl.write_jsonl(corpora.read_dialogues(texts[1]), tmp_path / "t.jsonl")
    texts.append(tmp_path / "t.jsonl")
    names = [text_registry.register_text(path) for path in texts]
    found = text_registry.Registry(text_registry.registry_folder()).find_related_texts(names[0])
    assert [found.get(name, {"user": 0})["user"] for name in names[1:]] == [30, 30]
    assert spending._has_same_people(found[names[1]])


def test_conversations_of_nobody_are_no_people_of_the_same_name(tmp_path):
    """Each export numbers its rows from one."""
    texts = []
    for month in (1, 2):
        path = chats(tmp_path / f"{month}.csv", month, lambda k: "")
        path.write_text(path.read_text().replace(",,", ",").replace("conversation_id,", ""))
        ingest.ingest_sources(
            [path], tmp_path / f"t{month}", columns={"text": "body"}, no_users=True, yes=True
        )
        texts.append(tmp_path / f"t{month}")
    assert {d.id for d in corpora.read_dialogues(texts[0])} & {"row-1"}
    assert related(*texts) == [False]
