"""Names, addresses and organisations of eight languages, found before anybody has read anything."""

import tomllib
import unicodedata

import pytest

from crtlib.screening import listed_names, rates
from crtlib.screening.policy_names import policy_by_name
from crtlib.text.records import Point, Secret

FOUND = (
    ("hi, my name is emily zyxwood, call me", ["emily zyxwood"]),
    ("Dear Callum, we wrote to Mr. O'Brien", ["Callum", "O'Brien"]),
    ("It went to 12 Mill Road, Apt. 4.", ["12 Mill Road, Apt. 4"]),
    ("parcel never came to 1867 Abbott Roads, Apt. 16", ["1867 Abbott Roads, Apt. 16"]),
    ("Me llamo María José de la Cruz, Calle Mayor 5, 28013 Madrid",
     ["María José de la Cruz", "Calle Mayor 5, 28013 Madrid"]),
    ("Atentamente, Goicoechea", ["Goicoechea"]),
    ("Hospital Clínico San Carlos de Madrid", ["Hospital Clínico San Carlos de Madrid"]),
    ("Sehr geehrte Frau Lindner, die Firma Schottin GmbH & Co. KG zahlt",
     ["Lindner", "Schottin GmbH & Co. KG"]),
    ("Er wohnt in der Barthstr. 82/22, 65460 Bad Mergentheim.",
     ["Barthstr. 82/22, 65460 Bad Mergentheim"]),
    ("Je m'appelle Amélie Durand, 12 rue de la Paix, 75002 Paris",
     ["Amélie Durand", "12 rue de la Paix, 75002 Paris"]),
    ("La société Joubert prendra les frais", ["Joubert"]),
    ("Mi chiamo Giulia Rossi, via Roma 10, 00184 Roma",
     ["Giulia Rossi", "via Roma 10, 00184 Roma"]),
    ("O meu nome é João Simões, R. Sá, 97, 3001-266 Vila Nova de Foz Côa",
     ["João Simões", "R. Sá, 97, 3001-266 Vila Nova de Foz Côa"]),
    ("Met vriendelijke groet, van den Bergh", ["van den Bergh"]),
    ("Juliussteeg 327, 9861LH, Domburg", ["Juliussteeg 327, 9861LH, Domburg"]),
    ("Nazywam się Łukasz Wiśniewski, ul. Długa 4/5, 00-950 Warszawa",
     ["Łukasz Wiśniewski", "ul. Długa 4/5, 00-950 Warszawa"]),
    ("Fundacja Świt-Ornat Sp. z o.o. pokryje koszty", ["Fundacja Świt-Ornat Sp. z o.o."]),
)  # fmt: skip
PLAIN = (
    "Is there anything else I can help you with today?",
    "Please mark my order as done. I will pay in May, hope for grace!",
    "I need 2 tickets for the show in March, 10 minutes walk from the road.",
    "My name is wrong on the invoice.",
    "Der Kunde hat die Rechnung nicht bezahlt und wartet auf den Rückruf. Vielen Dank für alles.",
    "Gracias por su respuesta, el pedido llegó el lunes. El paciente refiere dolor abdominal.",
    "Merci pour votre réponse, le colis est arrivé lundi. J'ai commandé deux chaises.",
    "Grazie per la risposta, il pacco è arrivato lunedì.",
    "Obrigado pela resposta, a encomenda chegou na segunda-feira.",
    "Bedankt voor uw antwoord, het pakket kwam op maandag. Ik heb twee stoelen besteld.",
    "Dziękuję za odpowiedź, paczka dotarła w poniedziałek.",
)


def found_in(text):
    (spans,) = policy_by_name("names")([Point("0", "u", text)])
    return [text[s.start : s.end] for s in spans]


@pytest.mark.parametrize(("text", "values"), FOUND)
def test_a_value_is_found_whole_before_the_first_label(text, values):
    assert found_in(text) == values


def test_accents_that_are_characters_of_their_own_change_nothing():
    text = unicodedata.normalize("NFD", "my name is josé núñez, thanks")
    assert found_in(text) == [unicodedata.normalize("NFD", "josé núñez")]


def test_messages_without_a_name_stay_as_they_are():
    assert [text for text in PLAIN if found_in(text)] == []


def test_it_finds_nothing_in_a_mask_and_the_rest_beside_one():
    assert found_in("<MASK> lives in Mill Road 5 with Emily") == ["Mill Road 5", "Emily"]


def test_a_name_that_is_found_whole_leaves_no_trace():
    points = []
    for k, (before, name, after) in enumerate((
        ("My name is ", "Emily Carter", " and I wait."), ("hello, this is ", "Anna Lindner", "!"),
    )):  # fmt: skip
        secret = Secret("name", len(before), len(before) + len(name))
        points.append(Point(str(k), f"u{k}", before + name + after, (secret,)))
    names = policy_by_name("names")
    assert rates.measure_rates(points, names, names).trace.failures == 0


def test_lists_hold_what_is_read_of_them_and_no_word_twice():
    for language in listed_names.LANGUAGES:
        file = listed_names._LIST_FOLDER / f"{language}.toml"
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        assert table.keys() == {"plain", "name", "address", "organisation"}
        assert {"given", "family", "ambiguous", "titles", "closings"} <= table["name"].keys()
        for part in ("given", "family"):
            words = table["name"][part].split()
            assert len(words) == len(set(words)) > 50
