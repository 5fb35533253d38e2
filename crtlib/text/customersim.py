"""CustomerSim: simulated customer-service dialogues in which every secret's place is known.

A fixed agenda and templates, after the corpus of Shi et al. (Selective Differential Privacy for
Language Modeling, 2022), which CRT uses: the bot asks what is wrong, then the customer's name, then
one of phone, order number and address, and answers with a tracking number. The wording is our own.

>>> dialogue = simulate(1, seed=0).dialogues[0]
>>> [(turn.speaker, [s.kind for s in turn.secrets]) for turn in dialogue.turns[2:5]]
[('SYS', []), ('USR', ['name']), ('SYS', [])]
>>> all(turn.text[s.start : s.end] for turn in dialogue.turns for s in turn.secrets)
True
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from crtlib.text import source
from crtlib.text.records import Corpus, Dialogue, Secret, Turn

KINDS = ("name", "phone", "order", "address", "tracking")
"""The five kinds of secret of CustomerSim (CRT, section 4)."""

TWO_SLOTS = 0.01  # an answer that also gives the other slot, in the original 209 of 20,000
FOLLOW_UP = 0.0222  # one more question before the goodbye, in the original 227 in 10,000 dialogues


# A template is a string in which "(a|b|c)" stands for one of a, b and c with equal probability,
# nested as deep as one likes, and "{kind}" for a secret.
PAPER: Mapping[str, str] = {
    "open": "Good day to you, this is the online shop's help desk. "
    "(How may I assist?|What seems to be the trouble?|Tell me your question.)",
    "request": "(Hey.|Good morning.|Well, hello!) "
    "((My kettle|My desk|My backpack|My rice cooker|My raincoat) should have come by now but "
    "it hasn't.|Can you find out where my parcel is?|When will it arrive?"
    "|I paid for something but nobody tells me when it will leave.)",
    "ask name": "(Who placed this order, please?|First of all, your full name, please."
    "|Under which full name?)",
    "ask phone": "(And on which phone number?|Now I need a phone number.)",
    "ask order": "(What is the order number?|Kindly give me the order number too."
    "|The order number, please.)",
    "ask address": "(And where should we deliver it?|Tell me the delivery address, please.)",
    "name": "({name}|{name}.|This is {name}.|The name is {name}.|Certainly, {name}."
    "|Right, {name}.|Of course - it's {name}.)",
    "phone": "({phone}.|Please call {phone}|{phone} is mine.|Call me back on {phone}."
    "|the phone is {phone}.)",
    "order": "({order}|That's {order}.|The number is {order}.|Right, {order}.|Here it is, {order})",
    "address": "({address}.|Right away, {address}.|It goes to {address}.|I live at {address}."
    "|Send it to {address}.)",
    "tracking": "(Follow your parcel with this number here, {tracking}."
    "|The carrier's number is {tracking}."
    "|Your parcel is on its way, and you can follow it under {tracking}.) "
    "(Does this solve your problem now?|Is there some other thing you would ask?|More questions?"
    "|May I do anything more?)",
    "satisfied": "(Very well.|That is quite clear now.|Perfect.|Perfect. Great!|Nothing more, no.)",
    "thanks": "(Many thanks.|Cheers.|Take care.)",
    "goodbye": "(Farewell.|So long.|Thanks, and enjoy your day.|We were very happy to help.)",
}

_ITEM = (
    "((|new |blue |red |grey |white |green |)(kettle|desk|backpack|rice cooker|raincoat|"
    "toaster|printer|keyboard|bicycle pump|coffee grinder|bookshelf|yoga mat|tent|sleeping bag|"
    "wall clock|pair of boots|winter coat|garden hose|drill|microphone|guitar stand|frying pan|"
    "blanket|pillow|suitcase|headset|monitor|dog bed|fish tank|watering can|board game|lunch box))"
)
_SINCE = (
    "((two|three|four|five|six|nine|ten) (days|weeks) ago|last (week|month|Monday|Tuesday|Friday)|"
    "(before|after) the holidays|the day before yesterday|on the (first|third|tenth|twentieth))"
)
_HI = "(hi|hey|hello|hello there|good (morning|evening))(. |! |, )"
_PLEASE = "(|please |kindly )"
_OKAY = "(|all right, |okay, |fine, |got it, |thank you, |thanks for that, |I see, |very good, )"
_WHY = (
    "(|I need it to open your file: |so that I can look this up, |to be on the safe side, |"
    "before we go on, |for our records, |to find the parcel, |one more thing: )"
)
_ASK = "((could|can|would|will) you (|please |kindly )(tell me|give me|confirm|send me|let me know)"
_SOON = "(today|tomorrow|this week|within (two|three|four|five) (working |)days|by (Monday|Friday))"

RICH: Mapping[str, str] = {
    "open": "(hello|hi|welcome|welcome back|good (morning|afternoon|evening)|thanks for writing)"
    "(!|.|, and thank you for waiting.|, and thank you for your patience.) "
    "(|this is the (help desk|support team|shop's assistant). |you are talking to a robot. )"
    "(how (can|may) I (help|assist)( you|)|what (can|may) I do for you"
    "|what (brings you here|seems to be the (matter|trouble|problem)|went wrong))( today|)?",
    "request late": f"{_HI}(|I hope you are well. )(I (bought|ordered) (a|the|my) {_ITEM} {_SINCE} "
    f"(and it (never came|is still not here|has not left the warehouse)|but nothing has come)."
    f"|my {_ITEM} (is late|is not here yet|should have come {_SINCE})(|, and I need it {_SOON})."
    f"|(where is|when will I get|do you know what happened to) (the|my) {_ITEM}"
    f"(| that I ordered {_SINCE})?)",
    "request damaged": f"{_HI}(|I am sorry. )(my|the) {_ITEM} (arrived|came|was delivered) "
    f"(broken|scratched|in pieces|wet|without its (cable|lid|manual|screws)) (|{_SINCE})"
    "(. can I have another one?|, and I (want|would like) (a new one|my money back|a repair).)",
    "request wrong": f"{_HI}(|this is odd. )I (ordered|paid for|asked for) a {_ITEM} {_SINCE} and "
    f"(got|received|was sent) a {_ITEM}( instead|)."
    "(| how do I send it back?| please (help|sort this out|exchange it).)",
    "ask detail late": f"{_OKAY}(when (was|did you expect) (it|the parcel) (to arrive|to be there)?"
    "|did you (look|ask) at the (post office|front desk)?|do you still (want|need) it?)",
    "ask detail damaged": f"{_OKAY}(was the (box|carton|wrapping) (open|torn|wet)( as well|)?"
    "|did you (keep|throw away) the (box|carton|wrapping)?|can you still use it( at all|)?)",
    "ask detail wrong": f"{_OKAY}(is (it|the box) still (closed|sealed|unused)?"
    "|(would|do) you (like|want) (to keep it|an exchange|a refund)?|what does the label say?)",
    "detail": "(|well, |hmm, |honestly, |let me (see|think). )(yes|no|not really|I doubt it|"
    "I am (quite |not |)sure|as far as I can tell, (yes|no))(|, (but I can check (again|later)|"
    f"and I (need|want) it {_SOON}|and that is (annoying|all I know)|I looked (twice|{_SINCE})|"
    "my (wife|son|neighbour|flatmate|husband) (says so|looked|was at home)))(.|!)",
    "ask name": f"{_OKAY}(sorry (about that|to hear that|for the wait). |){_WHY}"
    f"({_ASK} your (full|first and last|complete) name)?|(what is|may I have) your "
    f"(full |complete |)name(|, please)?|{_PLEASE}(type|write|enter) your (full |)name.)",
    "ask phone": f"{_OKAY}{_WHY}({_ASK} (your|the) (phone|telephone|mobile) number)?"
    "|(on which|at which) (phone |telephone |)number (can|may|should) we call you?"
    f"|{_PLEASE}(type|write|enter) your (phone|mobile) number.)",
    "ask order": f"{_OKAY}{_WHY}({_ASK} (the number of the order|(your|the) order number))?"
    "|(what is|which is) the (order number|number (on the receipt|of this order))(|, please)?"
    f"|{_PLEASE}(type|write|enter) the order number.)",
    "ask address": f"{_OKAY}{_WHY}({_ASK} (your|the) (|delivery |shipping |full )address)?"
    "|(where|to which address) (should|did|shall) we (send|deliver|ship) (it|the parcel)?"
    f"|{_PLEASE}(type|write|enter) the (delivery |shipping |)address.)",
    "name": "({name}|(|yes, |sure, |certainly, )({name}|(I am|I'm|this is|it is|it's|"
    "(my|the) name is|find me under) {name}|{name} (here|speaking|is the name|is my name)))(|.)",
    "phone": "({phone}|(|yes, |sure, |of course, )({phone}|(my (number|mobile|phone) is|"
    "(please |)(call me on|try|ring me on)|I can be reached (on|at)|it is) {phone}|"
    "{phone} (is (the best|my) number|is my mobile|works best|in the evening)))(|.)",
    "order": "({order}|(|yes, |sure, |of course, |one moment, )({order}|((my|the) order number is|"
    "it (is|says|reads)|the receipt says|I have) {order}|{order} (is what it says|if I read it "
    "right|is the number)))(|.)",
    "address": "({address}|(|yes, |sure, |of course, )({address}|((I live|we live|I am) at|"
    "(my|the) (address|place) is|(please |)(send|ship|deliver) it to|it (goes|should go) to) "
    "{address}))(|.)",
    "tracking": f"{_OKAY}(I (found|have found|see) (it|the parcel|your order). |)"
    "((your|the) (tracking number|number to follow it|parcel's number) is {tracking}"
    "|you (can|may) follow (it|the parcel) (with|under) {tracking}"
    "|(look|search) for {tracking} on (our page|the carrier's page|the website)"
    f"|{{tracking}} is (your|the) tracking number)(|, and it should (be there|arrive) {_SOON}). "
    "((is there |)anything else( I can do|)( for you|)( today|)?|(does|did) (this|that) (help|"
    "answer your question)?|what (else|more) (can|may) I do( for you|)?)",
    "satisfied": "(|no, |oh, |well, |okay, )(that is (all|everything|it)( for (now|today)|)|"
    "(that|this) (helps|answers my question|is what I needed|was (quick|easy|all))|I (have|know) "
    "(all|everything|what) I (need|wanted|came for)|nothing (else|more)( for (now|today)|)|"
    "(great|perfect|wonderful|lovely|excellent)(, (that|this) (helps|is good to know)|))(.|!)",
    "thanks": "((many |)thanks|thank you)(| (so much|a lot|very much|again|for (the help|your time|"
    "being so (quick|kind|patient))))(.|!)( (bye|goodbye|see you|take care|have a good one)(.|!)|)",
    "goodbye": "(|my pleasure|you are welcome|gladly|any time|no problem at all)(.|!) "
    "(goodbye|bye|take care|have a (nice|good|great|lovely) (day|evening|week|weekend)|"
    "(come|write) (back|again) (soon|any time)|(enjoy|have fun with) your (order|parcel)|"
    "(we|I) (hope|trust) (it|the parcel) (arrives|comes) (soon|safely|in good shape))(.|!)",
}
VARIETIES = MappingProxyType({"paper": PAPER, "rich": RICH})


@dataclass(frozen=True, slots=True)
class Identity:
    """One invented customer: a row of the database. The tracking number is new per dialogue."""

    user: str
    name: str
    phone: str
    order: str
    address: str


def _digits(rng: random.Random) -> Callable[[str], str]:
    """A function that puts a digit for each ``#``: ``rng.choice("0123456789")``, without the calls
    that take four fifths of its time."""
    bits = rng.getrandbits

    def digit() -> str:
        while (drawn := bits(4)) > 9:
            pass
        return "0123456789"[drawn]

    return lambda pattern: "".join([digit() if c == "#" else c for c in pattern])


PEOPLE = 20_000


@functools.cache
def identities(seed: int = 0) -> tuple[Identity, ...]:
    """A database of 20,000 invented customers, a function of ``seed`` alone.

    Names and addresses are put together from Faker's word lists (calling ``Faker().address()``
    per row would take 20 times as long): American first names by their frequency, last names
    uniformly from four English-speaking countries (with the American ones alone, names would
    repeat more than in the original), American addresses, 3 in 28 of them military as in Faker.
    Nothing global is seeded. The database is small, so that customers, and with them names and
    addresses, come back across splits, as in the original.
    """
    from faker.providers.address.en_US import Provider as Place
    from faker.providers.person import en_GB, en_IE, en_NZ
    from faker.providers.person.en_US import Provider as Person

    rng = random.Random(f"identities/{seed}")
    people = (Person, en_GB.Provider, en_IE.Provider, en_NZ.Provider)
    pick, digits = rng.choice, _digits(rng)
    lists = [set(person.last_names) for person in people]
    last_names = sorted(name for name in set.union(*lists) if " " not in name)
    first_names = rng.choices(*zip(*Person.first_names.items(), strict=True), k=3 * PEOPLE)

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
        for i in range(PEOPLE)
    )


@functools.cache
def _parse(template: str) -> tuple:
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


def _expand(parts: tuple, rng: random.Random) -> str:
    def one(part: str | list) -> str:
        return part if isinstance(part, str) else _expand(part[int(rng.random() * len(part))], rng)

    return "".join(map(one, parts))


_SENTENCE = re.compile(r"(^|[.!?] )([a-z])")
_SLOT = re.compile(r"\{(\w+)\}")


def _turn(speaker: str, template: str, values: Mapping[str, str]) -> Turn:
    """The template with ``values`` in its slots, and where they are."""
    template = " ".join(template.split()).lstrip(".!, ").replace(" .", ".").replace(" ,", ",")
    text, secrets, last = "", [], 0
    for slot in _SLOT.finditer(template):
        text += template[last : slot.start()]
        value, last = values[slot[1]], slot.end()
        secrets.append(Secret(slot[1], len(text), len(text) + len(value)))
        text += value
    return Turn(speaker, text + template[last:], tuple(secrets))


def _agenda(
    rng: random.Random, variety: str, people: tuple[Identity, ...], customer: Identity
) -> tuple[Turn, ...]:
    """Follow the agenda once."""
    grammar, turns = VARIETIES[variety], []
    values = {kind: getattr(customer, kind) for kind in KINDS[:4]}
    values["tracking"] = "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=10))

    def say(speaker: str, *acts: str, values: Mapping[str, str] = values) -> None:
        text = " ".join(_expand(_parse(grammar[act]), rng) for act in acts)
        if variety == "rich":
            text = _SENTENCE.sub(lambda m: m[1] + m[2].upper(), text)
        turns.append(_turn(speaker, text, values))

    topic = "" if variety == "paper" else rng.choice((" late", " late", " damaged", " wrong"))
    say("SYS", "open")
    say("USR", "request" + topic)
    if topic and rng.random() < 0.4:
        say("SYS", "ask detail" + topic)
        say("USR", "detail")
    say("SYS", "ask name")
    asked = rng.choice(KINDS[1:4])
    if rng.random() < TWO_SLOTS:
        say("USR", "name", asked)
    else:
        say("USR", "name")
        say("SYS", f"ask {asked}")
        say("USR", asked, *(["name"] if rng.random() < TWO_SLOTS else []))
    say("SYS", "tracking")
    while rng.random() < FOLLOW_UP:  # half of the time about another person, as in the original
        other, kind = rng.choice(people), rng.choice(("name",) * 3 + KINDS[1:4])
        say("USR", kind, values={kind: getattr(other, kind)})
        say("SYS", "tracking")
    if rng.random() < 0.5:
        say("USR", "satisfied")
    else:
        say("USR", "satisfied", "thanks")
        say("SYS", "goodbye")
    return tuple(turns)


def is_simulated(first: Dialogue) -> bool:
    """Whether this is the first dialogue of some simulation: it is simulated anew, and compared.

    >>> is_simulated(next(stream(1, 7, "rich")))
    True
    """
    name = re.fullmatch(r"s(\d{1,9})-d0", first.id)
    return name is not None and any(
        next(iter(stream(1, int(name[1]), variety))) == first for variety in ("paper", "rich")
    )


def stream(n: int, seed: int, variety: str, *, database_seed: int = 0) -> Iterator[Dialogue]:
    """The dialogues of ``simulate`` one by one, for corpora larger than memory."""
    if n < 1:
        raise ValueError(f"n={n}: must be at least 1 dialogue")
    if variety not in VARIETIES:
        raise ValueError(f"variety={variety!r}: must be one of {', '.join(VARIETIES)}")
    people = identities(database_seed)
    rng = random.Random(f"customersim/{variety}/{seed}")

    def dialogue(i: int) -> Dialogue:
        customer = rng.choice(people)
        return Dialogue(f"s{seed}-d{i}", customer.user, _agenda(rng, variety, people, customer))

    return map(dialogue, range(n))


def simulate(n: int, seed: int, variety: str = "paper", *, database_seed: int = 0) -> Corpus:
    """``n`` dialogues with exact spans; ``simulate(m, seed)`` is the beginning for ``m < n``.

    ``variety="paper"`` has as many templates as the original: 61 secret-free turns and no more.
    ``variety="rich"`` has so many phrasings that the secret-free part is a language. Every
    dialogue belongs to a row of ``identities(database_seed)`` drawn with replacement, and ``user``
    names the row; another ``seed`` with the same ``database_seed`` is another split of the same
    world. Raises ``ValueError`` for ``n < 1`` or an unknown variety.
    """
    made = stream(n, seed, variety, database_seed=database_seed)
    return Corpus(f"customersim-{variety}", tuple(made))


@functools.cache
def _content() -> str:
    """Hash of all that a dialogue is made from but the seed; Faker's word lists are part of it."""
    made_from = (TWO_SLOTS, FOLLOW_UP, dict(PAPER), dict(RICH), identities())
    return hashlib.sha256(repr(made_from).encode()).hexdigest()


SOURCE = source.register(
    source.simulated(
        "customersim",
        "CustomerSim",
        simulate,
        sizes={"train": 10_000, "valid": 1_000, "test": 1_000},
        content=_content,
        by_rule=True,
    )
)
"""Without a limit as large as the original: 10,000 training and 1,000 test dialogues."""
