"""CustomerSim: simulated customer-service dialogues in which every secret's place is known.

It has a fixed agenda and templates, after the corpus of Shi et al. (Selective Differential Privacy
for Language Modeling, 2022), which CRT uses. The bot asks what is wrong, then for the customer's
name, then for one of phone, order number and address, and answers with a tracking number. The
wording is our own.

>>> dialogue = simulate_corpus(1, seed=0).dialogues[0]
>>> [(turn.speaker, [s.kind for s in turn.secrets]) for turn in dialogue.turns[2:5]]
[('SYS', []), ('USR', ['name']), ('SYS', [])]
>>> all(turn.text[s.start : s.end] for turn in dialogue.turns for s in turn.secrets)
True
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crtlib.text import sources
from crtlib.text.identity import hash_text
from crtlib.text.package_data import read_package_file
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

CUSTOMERSIM_KINDS = ("name", "phone", "order", "address", "tracking")
"""The five kinds of secret of CustomerSim (CRT, section 4)."""

TWO_SLOTS_PROBABILITY = (
    0.01  # an answer that also gives the other slot, in the original 209 of 20,000
)
FOLLOW_UP_PROBABILITY = (
    0.0222  # one more question before the goodbye, in the original 227 in 10,000 dialogues
)

CUSTOMER_COUNT = 20_000
_SENTENCE_START = re.compile(r"(^|[.!?] )([a-z])")
_TEMPLATE_SLOT = re.compile(r"\{(\w+)\}")


def _read_grammar() -> dict[str, dict[str, str]]:
    """The templates of each variety, by act; their file describes how they are written."""
    tables = tomllib.loads(read_package_file("customersim.toml"))
    parts = tables.pop("parts")
    return {
        variety: {act: re.sub(r"<(\w+)>", lambda m: parts[m[1]], t) for act, t in acts.items()}
        for variety, acts in tables.items()
    }


VARIETIES = MappingProxyType(_read_grammar())
PAPER_GRAMMAR, RICH_GRAMMAR = VARIETIES["paper"], VARIETIES["rich"]


@dataclass(frozen=True, slots=True)
class Identity:
    """One invented customer: a row of the database. Each dialogue has its own tracking number."""

    user: str
    name: str
    phone: str
    order: str
    address: str


def _digit_filler(rng: random.Random) -> Callable[[str], str]:
    """Return a function that replaces each ``#`` by a digit: the one that
    ``rng.choice("0123456789")`` would draw, without the calls that take four fifths of its time."""
    bits = rng.getrandbits

    def digit() -> str:
        while (drawn := bits(4)) > 9:
            pass
        return "0123456789"[drawn]

    return lambda pattern: "".join([digit() if c == "#" else c for c in pattern])


@functools.cache
def make_identities(seed: int = 0) -> tuple[Identity, ...]:
    """A database of 20,000 invented customers, which depends on ``seed`` alone.

    Names and addresses are put together from Faker's word lists; calling ``Faker().address()`` for
    each row would take 20 times as long. First names are American, by their frequency. Last names
    are drawn uniformly from four English-speaking countries; with the American ones alone, names
    would repeat more than in the original. Addresses are American, 3 in 28 of them military as in
    Faker. Nothing global is seeded. The database is small, so customers, and with them names and
    addresses, recur across splits, as in the original.
    """
    # Takes a fifth of a second, and only a simulation needs it.
    from faker.providers.address.en_US import Provider as Place
    from faker.providers.person import en_GB, en_IE, en_NZ
    from faker.providers.person.en_US import Provider as Person

    rng = random.Random(f"identities/{seed}")
    people = (Person, en_GB.Provider, en_IE.Provider, en_NZ.Provider)
    pick, digits = rng.choice, _digit_filler(rng)
    lists = [set(person.last_names) for person in people]
    last_names = sorted(name for name in set.union(*lists) if " " not in name)
    first_names = rng.choices(*zip(*Person.first_names.items(), strict=True), k=3 * CUSTOMER_COUNT)

    def address(first: str, other: str) -> str:
        last = pick(last_names)
        if rng.random() < 3 / 28:
            box = pick(("PSC ####, Box #### APO", "Unit #### Box #### DPO", "ship"))
            ship = f"{pick(Place.military_ship_prefix)} {last} FPO"
            where = ship if box == "ship" else digits(box)
            return f"{where} {pick(Place.military_state_abbr)} {digits('#####')}"
        street = f"{digits(pick(('#####', '####', '###')))} {pick((first, last))}"
        flat = pick(("", "", " Apt. ###", " Suite ###"))
        prefix, suffix = pick(Place.city_prefixes) + " ", pick(Place.city_suffixes)
        city = pick((prefix + other + suffix, prefix + other, other + suffix, last + suffix))
        state, code = pick(Place.states_abbr), digits("#####")
        return f"{street} {pick(Place.street_suffixes)}{digits(flat)} {city}, {state} {code}"

    return tuple(
        Identity(
            user=f"user-{i:05d}",
            name=f"{first_names[3 * i]} {pick(last_names)}",
            phone=digits(pick(("###-###-####", "###.###.####", "##########"))),
            order=digits("###-#####-####"),
            address=address(*first_names[3 * i + 1 : 3 * i + 3]),
        )
        for i in range(CUSTOMER_COUNT)
    )


@functools.cache
def _parse_template(template: str) -> tuple:
    """The template as a tree: a tuple of strings and of lists, a list being a choice of trees."""
    stack: list[list] = [[[]]]  # per open bracket its alternatives, each a list of parts
    for token in re.split(r"([(|)])", template):
        if token == "(":
            stack.append([[]])
        elif token == "|":
            stack[-1].append([])
        elif token == ")":
            choice = stack.pop()
            stack[-1][-1].append([tuple(parts) for parts in choice])
        elif token:
            stack[-1][-1].append(token)
    [[parts]] = stack
    return tuple(parts)


def _expand_template(parts: tuple, rng: random.Random) -> str:
    def one(part: str | list) -> str:
        return (
            part
            if isinstance(part, str)
            else _expand_template(part[int(rng.random() * len(part))], rng)
        )

    return "".join(map(one, parts))


def _fill_turn(speaker: str, template: str, values: Mapping[str, str]) -> Turn:
    """The turn that a template gives with ``values`` in its slots, which are its secrets."""
    template = " ".join(template.split()).lstrip(".!, ").replace(" .", ".").replace(" ,", ",")
    text, secrets, last = "", [], 0
    for slot in _TEMPLATE_SLOT.finditer(template):
        text += template[last : slot.start()]
        value, last = values[slot[1]], slot.end()
        secrets.append(Secret(slot[1], len(text), len(text) + len(value)))
        text += value
    return Turn(speaker, text + template[last:], tuple(secrets))


def _follow_agenda(
    rng: random.Random, variety: str, people: tuple[Identity, ...], customer: Identity
) -> tuple[Turn, ...]:
    """The turns of one dialogue that follows the agenda."""
    grammar, turns = VARIETIES[variety], []
    values = {kind: getattr(customer, kind) for kind in CUSTOMERSIM_KINDS[:4]}
    values["tracking"] = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=10))

    def say(speaker: str, *acts: str, values: Mapping[str, str] = values) -> None:
        text = " ".join(_expand_template(_parse_template(grammar[act]), rng) for act in acts)
        if variety == "rich":
            text = _SENTENCE_START.sub(lambda m: m[1] + m[2].upper(), text)
        turns.append(_fill_turn(speaker, text, values))

    topic = "" if variety == "paper" else rng.choice((" late", " late", " damaged", " wrong"))
    say("SYS", "open")
    say("USR", "request" + topic)
    if topic and rng.random() < 0.4:
        say("SYS", "ask detail" + topic)
        say("USR", "detail")
    say("SYS", "ask name")
    asked = rng.choice(CUSTOMERSIM_KINDS[1:4])
    if rng.random() < TWO_SLOTS_PROBABILITY:
        say("USR", "name", asked)
    else:
        say("USR", "name")
        say("SYS", f"ask {asked}")
        say("USR", asked, *(["name"] if rng.random() < TWO_SLOTS_PROBABILITY else []))
    say("SYS", "tracking")
    while (
        rng.random() < FOLLOW_UP_PROBABILITY
    ):  # half of the time about another person, as in the original
        other, kind = rng.choice(people), rng.choice(("name",) * 3 + CUSTOMERSIM_KINDS[1:4])
        say("USR", kind, values={kind: getattr(other, kind)})
        say("SYS", "tracking")
    if rng.random() < 0.5:
        say("USR", "satisfied")
    else:
        say("USR", "satisfied", "thanks")
        say("SYS", "goodbye")
    return tuple(turns)


def stream_dialogues(
    n: int, seed: int, variety: str, *, database_seed: int = 0
) -> Iterator[Dialogue]:
    """The dialogues of ``simulate_corpus`` one by one, for corpora larger than memory."""
    if n < 1:
        raise ValueError(f"n={n}: must be at least 1 dialogue")
    if variety not in VARIETIES:
        raise ValueError(f"variety={variety!r}: must be one of {', '.join(VARIETIES)}")
    people = make_identities(database_seed)
    rng = random.Random(f"customersim/{variety}/{seed}")

    def dialogue(i: int) -> Dialogue:
        customer = rng.choice(people)
        return Dialogue(
            f"s{seed}-d{i}", customer.user, _follow_agenda(rng, variety, people, customer)
        )

    return map(dialogue, range(n))


class SimulationCheck:
    """Which of a text's dialogues, taken in their order, come from a simulation: each is simulated
    again and compared, its secrets included.

    A dialogue counts as real if it is out of the order of its simulation, too far after the
    previous one, or from a simulation beyond the first ``MOST_SIMULATIONS``.

    >>> made = [*stream_dialogues(3, 7, "rich")]
    >>> forged = Dialogue("s7-d1", "ann", made[1].turns)
    >>> check = SimulationCheck()
    >>> [check.holds(d) for d in (made[0], forged, made[2])]
    [True, False, True]
    """

    MOST_SIMULATIONS, FARTHEST = 64, 64

    def __init__(self) -> None:
        self.streams: dict[int, list[Iterator[Dialogue]]] = {}
        self.taken: dict[int, int] = {}
        self.all_held = True

    def holds(self, d: Dialogue) -> bool:
        """Whether the next dialogue of the text comes from a simulation. ``all_held`` states
        whether each one so far did."""
        held = self._equals_its_simulation(d)
        self.all_held &= held
        return held

    def _equals_its_simulation(self, d: Dialogue) -> bool:
        name = re.fullmatch(r"s(\d{1,9})-d(\d{1,9})", d.id)
        if name is None:
            return False
        seed, number = int(name[1]), int(name[2])
        if seed not in self.streams:
            if len(self.streams) == self.MOST_SIMULATIONS:
                return False
            self.streams[seed] = [
                iter(stream_dialogues(10**9, seed, variety)) for variety in VARIETIES
            ]
            self.taken[seed] = 0
        skipped = number - self.taken[seed]
        if not 0 <= skipped <= self.FARTHEST:
            return False
        self.taken[seed] = number + 1
        streams = self.streams[seed]
        again = [next(itertools.islice(stream, skipped, None)) for stream in streams]
        same = [stream for stream, made in zip(streams, again, strict=True) if made == d]
        self.streams[seed] = same or streams
        return bool(same)


def are_simulated(dialogues: Iterable[Dialogue]) -> bool:
    """Whether all dialogues of a text come from a simulation."""
    check = SimulationCheck()
    return all(map(check.holds, dialogues))


def simulate_corpus(n: int, seed: int, variety: str = "paper", *, database_seed: int = 0) -> Corpus:
    """``n`` dialogues with exact spans, like those of CustomerSim (CRT, Section 4).

    Every dialogue belongs to a row of ``make_identities(database_seed)`` drawn with replacement,
    and ``user`` names the row.

    Args:
        n: The number of dialogues.
        seed: The seed of the dialogues. Another seed with the same ``database_seed`` gives another
            split of the same world.
        variety: "paper" has as many templates as the original: 61 secret-free turns and no more.
            "rich" has so many phrasings that the secret-free part is a language.
        database_seed: The seed of the people.

    Returns:
        The corpus. It depends neither on the process nor on random numbers that others draw.

    Raises:
        ValueError: For ``n < 1`` or an unknown variety.

    Guarantee:
        ``simulate_corpus(m, seed)`` is the beginning of ``simulate_corpus(n, seed)`` for ``m < n``,
        and two seeds have no dialogue id in common. Test: ``tests/text/test_customersim.py::
        test_deterministic_prefix_and_no_global_state``.
    """
    made = stream_dialogues(n, seed, variety, database_seed=database_seed)
    return Corpus(f"customersim-{variety}", tuple(made))


@functools.cache
def _generator_hash() -> str:
    """The hash of all that a dialogue is made from except the seed; that includes Faker's lists."""
    made_from = (
        TWO_SLOTS_PROBABILITY,
        FOLLOW_UP_PROBABILITY,
        dict(PAPER_GRAMMAR),
        dict(RICH_GRAMMAR),
        make_identities(),
    )
    return hash_text(repr(made_from))


CUSTOMERSIM_SOURCE = sources.simulated_source(
    "customersim",
    "CustomerSim",
    simulate_corpus,
    sizes={"train": 10_000, "valid": 1_000, "test": 1_000},
    content=_generator_hash,
    by_rule=True,
)
"""Without a limit it is as large as the original: 10,000 training and 1,000 test dialogues."""
