"""Exports as programs write them: mail with HTML and histories, Slack, WhatsApp, tables of eight
languages, codes other than UTF-8; and a refusal that says all that is wrong at once."""

import csv
import json
import zipfile

import pytest

from confide.text import columns, ingest, readers, times
from confide.text.html_text import html_to_text
from confide.text.quotes import looks_quoted, strip_quotes
from crtlib.text import corpora

OLD = "Ihre Telefonnummer 030 1234567 ist notiert."


def said(place):
    """Who said what, in the order of a corpus."""
    return [(d.user, t.text) for d in corpora.read_dialogues(place) for t in d.turns]


# --------------------------------------------------------------------------- what is quoted
MAILBOX = "Bob Long <bob@shop.example>"
HISTORIES = {
    "gmail": f"On Mon, Mar 2, 2026 at 10:00 AM {MAILBOX} wrote:\n\n> {OLD}\n",
    "gmail without marks": f"On Mon, Mar 2, 2026 at 10:00 AM {MAILBOX} wrote:\n\n{OLD}",
    "three lines": f"On Mon, Mar 2, 2026 at 10:00 Bob\nLong <bob@shop.example>\nwrote:\n> {OLD}",
    "thunderbird": f"On 2/3/26 10:00, {MAILBOX} wrote:\n> {OLD}",
    "german": f"Am Mo., 2. März 2026 um 10:00 Uhr schrieb {MAILBOX}:\n\n> {OLD}",
    "german, broken": f"{MAILBOX} schrieb am Mo., 2.\nMärz 2026, 10:00:\n\n> {OLD}",
    "french": f"Le lun. 2 mars 2026 à 10:00, {MAILBOX} a écrit :\n\n{OLD}",
    "spanish": f"El lun, 2 mar 2026 a las 10:00, {MAILBOX} escribió:\n\n{OLD}",
    "italian": f"Il giorno lun 2 mar 2026 alle ore 10:00 {MAILBOX} ha scritto:\n{OLD}",
    "portuguese": f"Em seg., 2 de mar. de 2026 às 10:00, {MAILBOX} escreveu:\n{OLD}",
    "dutch": f"Op ma 2 mrt 2026 om 10:00 schreef {MAILBOX}:\n{OLD}",
    "swedish": f"Den mån 2 mars 2026 kl 10:00 skrev {MAILBOX}:\n{OLD}",
    "finnish": f"ma 2. maalisk. 2026 klo 10.00 {MAILBOX} kirjoitti:\n{OLD}",
    "polish": f"pon., 2 mar 2026 o 10:00 {MAILBOX} napisał(a):\n{OLD}",
    "russian": f"пн, 2 мар. 2026 г. в 10:00, {MAILBOX}:\n\n{OLD}",
    "japanese": f"2026年3月2日(月) 10:00 {MAILBOX}:\n\n{OLD}",
    "no colon": f"On Mon, 2 Mar 2026 10:00:00 +0100 {MAILBOX} wrote\n\n{OLD}",
    "a broken mailbox": f"man. 2. mars 2026 kl. 10:00 skrev Bob <bob@shop.example\n>:\n\n> {OLD}",
    "three lines, commas": f"On Mar 2, 2026,\nat 10:00,\n{MAILBOX} wrote:\n\n> {OLD}",
    "no year": f"On Mon, Mar 2, Bob\n<bob@shop.example>\nwrote:\n> {OLD}",
    "when before who": f"Message du : 02/03/2026 10:00\nDe : {MAILBOX}\nA : Ann\n\n{OLD}",
    "zoho": f"---- On Mon, 02 Mar 2026 10:00:00 +0100 bob@shop.example wrote ----\n{OLD}",
    "outlook": f"From: {MAILBOX}\nSent: Monday, March 2, 2026 10:00\nTo: Ann\nSubject: x\n\n{OLD}",
    "outlook, a line": f"________________\nFrom: {MAILBOX}\nSent: Monday\nTo: Ann\n\n{OLD}",
    "outlook, a broken line": "From: Bob \n<bob@shop.example>\nSent: Monday\nTo: Ann\n\n" + OLD,
    "outlook, bold": f"*From:* Bob\n*Sent:* Monday\n*To:* Ann\n*Subject:* x\n\n{OLD}",
    "german outlook": f"-----Ursprüngliche Nachricht-----\nVon: Shop\n{OLD}",
    "german header": f"Von: {MAILBOX}\nGesendet: Montag\nAn: Ann\nBetreff: x\n\n{OLD}",
    "french header": f"De : {MAILBOX}\nEnvoyé le : lundi\nÀ : Ann\nObjet : x\n\n{OLD}",
    "italian header": f"Da: {MAILBOX}\nInviato: lunedì\nA: Ann\nOggetto: x\n\n{OLD}",
    "windows mail": f"От: Bob\nОтправлено: четверг, 2 марта 2026 г. 10:00\nКому: Ann\n\n{OLD}",
    "danish": f"-----Oprindelig meddelelse-----\nFra: Bob\n{OLD}",
    "forwarded": f"---------- Forwarded message ---------\nFrom: {MAILBOX}\n\n{OLD}",
    "apple": f"Begin forwarded message:\n\nFrom: {MAILBOX}\n\n{OLD}",
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_another_mail_said_is_left_out_and_counted(name):
    text, lines = strip_quotes(f"Danke, bis 10:30.\n\n{HISTORIES[name]}")
    assert text == "Danke, bis 10:30." and lines > 1


@pytest.mark.parametrize(
    "text",
    [
        "From: Berlin\nTo: Munich\nDate: 3 May 2026, 10:00\nTwo seats, please.",
        "My order of 2024 was sent to ann@x.org\nand is the following:\n12 chairs",
        "In 2024 my doctor wrote:\ntake two of them",
        "Mails come from: john@example.com and from: jane@example.com\n\nIs that right?",
        "Bob <bob@x.org> is who wrote\non 2 March 2026",
        "Date: 3 May 2026\nFrom: Ulm\nTo: Bonn",
        "On Monday it was 10:00, as bob@x.org wrote",
        "On the surface, this looks like it:\nbut it is not.",
    ],
)
def test_what_only_resembles_a_history_stays(text):
    assert strip_quotes(text) == (text, 0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_quotations_are_found_whatever_ends_a_line(end):
    """Fault: after a lone carriage return, or a separator of Unicode, all of it was one line."""
    mail = end.join(["Yes.", "", "On Monday, Bob wrote:", "> my PIN is 4821", "Ann"])
    text, quoted = strip_quotes(mail)
    assert (text.split(), quoted) == (["Yes.", "Ann"], 2) and looks_quoted(mail)


@pytest.mark.parametrize("mark", ["\u200f", "\u202b", "\u2067", "\u200e\ufeff", "\u200b"])
def test_a_mark_that_nobody_sees_does_not_hide_a_quotation(mark):
    """Fault: a mark of direction before ``>`` or ``From:`` made the line the answerer's own."""
    marked = "\n".join(f"{mark}{line}" for line in ["On Monday, Bob wrote:", "> PIN 4821"])
    assert strip_quotes(f"\u200fכן.\n{marked}\nAnn") == ("\u200fכן.\nAnn", 2)
    headed = f"Ok.\n{mark}From: Bob <bob@x.org>\n{mark}Sent: Monday\n{mark}To: Ann\nPIN 4821"
    assert strip_quotes(headed)[0] == "Ok."


def test_answers_between_quotations_stay_and_what_is_left_is_counted(tmp_path):
    assert (
        strip_quotes("On Monday Bob wrote:\n> Shall we?\nYes.\n> When?\nAt 5.")[0] == "Yes.\nAt 5."
    )
    assert looks_quoted("Ok.\nVon: Bob <bob@x.org>\nAm Montag") and not looks_quoted("Ok: 5\nYes")
    rows = ["user,text", 'ann,"Yes.', f'-----Original Message-----\n{OLD}"', "bob,Hello", ""]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    assert (made.quoted, made.look_quoted) == (0, 1)
    assert "still look as if they quoted another message: 1" in ingest.format_ingest_summary(made)
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "p", drop_quotes=True)
    assert (made.quoted, made.look_quoted) == (2, 0) and said(tmp_path / "p")[0] == ("ann", "Yes.")


# --------------------------------------------------------------------------- mail in HTML
HEAD = "From: ann@x.org\nMIME-Version: 1.0\n"
HTML = "Content-Type: text/html; charset=utf-8\n\n<p>My phone is <b>030&nbsp;123</b></p>"
PLAIN = "Content-Type: text/plain; charset=utf-8\n\n"
PARTS = 'Content-Type: multipart/{}; boundary="b"\n\n--b\n{}\n--b\n{}\n--b--\n'
FILE = 'Content-Disposition: attachment; filename="Ann Lee.txt"\n' + PLAIN + "Dear Ann Lee"
WITHIN = "Content-Type: message/rfc822\n\n"
MAILS = {
    "html alone": HTML,
    "plain is blank": PARTS.format("alternative", PLAIN + " \n", HTML),
    "html and a file": PARTS.format("mixed", HTML, FILE),
    "html and a mail": PARTS.format("mixed", HTML, f"{WITHIN}{HEAD}{PLAIN}Hi"),
    "plain first": PARTS.format("alternative", PLAIN + "My phone is 030 123", HTML + "!"),
    "an image's name": PLAIN + "My phone is 030 123\n[image: Ann Lee.png]\n<Ann-Lee.pdf>\n",
    "html quotes": HTML + "<div class='gmail_quote'>On Mon<blockquote>Ann Lee</blockquote></div>",
}


@pytest.mark.parametrize("name", MAILS)
def test_a_mail_is_what_its_writer_sees_of_it(tmp_path, name):
    (tmp_path / "a.eml").write_text(HEAD + MAILS[name])
    ingest.ingest_sources([tmp_path / "a.eml"], tmp_path / "o")
    assert said(tmp_path / "o") == [("ann@x.org", "My phone is 030 123")]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<span style="display:block">Anna</span><span style="display: block;">Smith</span>',
         "Anna\nSmith"),
        ('<b style="color:red;DISPLAY:Flex">Anna</b>Smith', "Anna\nSmith"),
        ("<select><option>Anna<option>Smith</select>!", "Anna\nSmith\n!"),
        *((f"<{tag}>Anna</{tag}><{tag}>Smith</{tag}>", "Anna\nSmith")
          for tag in ("legend", "dialog", "figcaption", "summary", "caption", "menu", "hgroup",
                      "thead", "optgroup", "dir", "xmp", "search")),
        *((f"<{tag}>Anna</{tag}><{tag}>Smith</{tag}>", "Anna Smith")
          for tag in ("td", "button", "textarea")),
        ("Anna<img src=x>Smith<input>.", "Anna Smith ."),
        ('<i style="display:inline-block">Anna</i><i style="display:table-cell">Smith</i>',
         "Anna Smith"),
        ('<i style="float:left">Anna</i>Smith', "Anna\nSmith"),
        ('<p style="display:flex"><i>A<b>nn</b>a</i><i>Smith</i></p>', "Anna Smith"),
        ('<p>An<b style="font-display:block">n</b><i>a</i> <u style="display:inline">Sm</u>ith</p>',
         "Anna Smith"),
        ('<div style="display:inline">An</div><div style="display:inline">na</div>', "Anna"),
        ("<ruby>山<rp>(</rp><rt>やま</rt><rp>)</rp>田<rt>だ</rt></ruby>", "山田"),
    ],
)  # fmt: skip
def test_what_stands_apart_in_html_stays_apart(html, text):
    """Fault: a list with Anna Smith did not find "AnnaSmith"."""
    assert html_to_text(html) == text


@pytest.mark.parametrize(
    "html",
    ["<" * 200_000, "<!--" * 100_000, "<a b='" * 50_000, "<div>" * 9_000, "<p " + "x " * 50_000],
)
def test_html_that_is_never_closed_takes_no_longer(html):
    assert len(html_to_text(html)) <= len(html)  # minutes, where its time grows with the square


def test_rows_of_a_folder_of_mails_are_named_by_their_file_in_private_alone(tmp_path):
    (tmp_path / "m").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"m/{name}.eml").write_text(HEAD + (PLAIN + "Hi" if name == "a" else ""))
    with pytest.raises(ValueError, match=r"^m, row 2: has no part") as error:
        ingest.ingest_sources([tmp_path / "m"], tmp_path / "o")
    assert "b.eml" not in str(error.value)
    ingest.ingest_sources([tmp_path / "m"], tmp_path / "o", skip_bad=True, max_bad=1)
    assert "m/b.eml,2,,no text" in (tmp_path / "o/rejected.csv").read_text()


# --------------------------------------------------------------------------- chats
def slack(folder):
    """A workspace of two people, a bot and a channel."""
    people = [{"id": "U1", "name": "ann", "profile": {"display_name": "Ann Lee"}}, {"id": "U2"}]
    day = [
        {"type": "message", "subtype": "channel_join", "user": "U2", "text": "<@U2> has joined"},
        {"type": "message", "user": "U1", "text": "a &lt; b", "ts": "1772445600.000200"},
        {"type": "message", "user": "U2", "text": "Ask <@U1> <mailto:a@x.org|a@x.org>",
         "ts": "1772445601.0", "thread_ts": "1772445600.000200"},
        {"type": "message", "bot_id": "B1", "text": "Done", "ts": "1772445602.0"},
        {"type": "message", "user": "U2", "text": "", "files": [{"name": "Ann Lee.pdf"}]},
    ]  # fmt: skip
    (folder / "general").mkdir(parents=True)
    (folder / "users.json").write_text(json.dumps(people))
    (folder / "channels.json").write_text("[]")
    (folder / "general/2026-03-02.json").write_text(json.dumps(day))
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_a_workspace_of_slack(tmp_path, packed):
    source = slack(tmp_path / "export")
    if packed:
        with zipfile.ZipFile(tmp_path / "export.zip", "w") as file:
            for one in sorted(source.rglob("*.json")):
                file.write(one, one.relative_to(source))
        source = tmp_path / "export.zip"
    made = ingest.ingest_sources([source], tmp_path / "o")
    assert (made.form, made.facts.first) == ("slack", "2026-03-02")
    assert sorted(said(tmp_path / "o")) == [
        ("U1", "Done"), ("U1", "a < b"), ("U2", "Ask @Ann Lee a@x.org")
    ]  # fmt: skip
    assert made.facts.users == 2 and made.facts.users_are == "column"


def test_who_is_a_bot_on_slack(tmp_path):
    """Fault: bots counted as people, with a promise of their own."""
    source = slack(tmp_path / "export")
    members = [{"id": "U1", "is_bot": False}, {"id": "U7", "is_bot": True}, {"id": "U1B"}]
    (source / "users.json").write_text(json.dumps(members))
    said_by = {
        "a person": {"user": "U1"},
        "a person, by a program": {"user": "U1", "bot_id": "B1"},
        "a bot": {"user": "U7"},
        "slackbot": {"user": "U2", "subtype": "bot_message"},
        "an integration": {"bot_id": "B1", "user": "U9"},
        "a hook": {"subtype": "bot_message", "username": "hook"},
    }
    day = [{"text": who, "ts": "1772445600.0", **record} for who, record in said_by.items()]
    (source / "general/2026-03-02.json").write_text(json.dumps(day))
    made = ingest.ingest_sources([source], tmp_path / "o")
    (talk,) = corpora.read_dialogues(tmp_path / "o")
    assert [t.text for t in talk.turns if t.speaker == "USR"] == list(said_by)[:2]
    assert (talk.user, len(talk.turns), made.facts.users) == ("U1", 6, 1)


@pytest.mark.parametrize(
    "members",
    ["{}", "null", "7", '[null, 7, {"id": "U1", "profile": 7}, {"profile": [], "name": {}}]', "["],
)
def test_a_list_of_members_of_another_form_names_nobody(tmp_path, members):
    """Fault: a traceback."""
    source = slack(tmp_path / "export")
    (source / "users.json").write_text(members)
    ingest.ingest_sources([source], tmp_path / "o")
    assert ("U2", "Ask @U1 a@x.org") in said(tmp_path / "o")


IOS = """\u200e[02.03.26, 10:00:05] Help: \u200eMessages and calls are end-to-end encrypted.
[02.03.26, 10:00:07] Ann: My name is
Ann Lee: so.
\u200e[02.03.26, 10:01:00] Ann: \u200eimage omitted
[02.03.26, 10:02:00] Bob: Hello"""
ANDROID = """3/2/26, 9:41\u202fAM - Messages and calls are end-to-end encrypted.
3/2/26, 9:42\u202fAM - Ann: My name is\nAnn Lee: so.
3/2/26, 9:43\u202fAM - Ann: IMG-20260302-WA0001.jpg (file attached)
3/14/26, 9:44\u202fPM - Bob: Hello"""


@pytest.mark.parametrize("name", ["ios.txt", "android.txt", "ios.zip"])
def test_a_chat_of_whatsapp(tmp_path, name):
    text = ANDROID if "android" in name else IOS
    if name.endswith("zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("_chat.txt", text)
            file.writestr("1-PHOTO.jpg", b"\xff\xd8")
    else:
        (tmp_path / name).write_text(text)
    made = ingest.ingest_sources([tmp_path / name], tmp_path / "o")
    assert said(tmp_path / "o") == [("Ann", "My name is\nAnn Lee: so."), ("Bob", "Hello")]
    assert made.facts.first == "2026-03-02"


@pytest.mark.parametrize("code", ["cp1252", "utf-16", "utf-16-be", "utf-8-sig"])
def test_a_chat_of_whatsapp_in_another_code_is_found(tmp_path, code):
    """Fault: it was refused, as if JSON had held half a surrogate pair, and so was --encoding."""
    text = IOS.replace("Bob: Hello", "Jürgen: Grüße aus Köln, señor") * 3
    text = text.replace("\u200e", "") if code == "cp1252" else text
    mark = b"\xfe\xff" if code == "utf-16-be" else b""
    (tmp_path / "chat.txt").write_bytes(mark + text.encode(code))
    made = ingest.ingest_sources([tmp_path / "chat.txt"], tmp_path / "o")
    assert made.form == "whatsapp" and ("Jürgen", "Grüße aus Köln, señor") in said(tmp_path / "o")


def test_a_chat_of_whatsapp_in_a_code_that_is_asked_for(tmp_path, run):
    text = IOS.replace("Bob: Hello", "Пётр: Привет, как дела").replace("\u200e", "") * 9
    (tmp_path / "chat.txt").write_bytes(text.encode("cp1251"))
    words = ["ingest", tmp_path / "chat.txt", "--yes", "--out", tmp_path / "o"]
    code, _, err = run(*words)
    assert code == 2 and "is not UTF-8 (byte 0x" in err and "--encoding cp1251" in err
    assert run(*words, "--encoding", "cp1251")[0] == 0
    assert ("Пётр", "Привет, как дела") in said(tmp_path / "o")
    with zipfile.ZipFile(tmp_path / "chat.zip", "w") as file:
        file.writestr("_chat.txt", text.encode("cp1251"))
    words = ["ingest", tmp_path / "chat.zip", "--yes", "--out", tmp_path / "p"]
    code, _, err = run(*words)
    assert code == 2 and "is not UTF-8 (byte 0x" in err and "--encoding" not in err
    code, _, err = run(*words, "--encoding", "cp1251")
    assert code == 2 and "is a zip file, which has UTF-8" in err


def test_other_texts_and_zip_files_are_no_chats(tmp_path):
    (tmp_path / "a.txt").write_text("10.03.26 10:00 we met.\nThen: nothing")
    assert readers.format_by_name(tmp_path / "a.txt") == "text"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a.csv", "user,text\n")
    with pytest.raises(ValueError, match="is neither a Slack nor a WhatsApp export; unpack it"):
        readers.format_by_name(tmp_path / "a.zip")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.msg").write_bytes(b"\xd0\xcf")
    with pytest.raises(ValueError, match=r"holds no .*; a .msg file is .* 'msgconvert FILE.msg'"):
        readers.format_by_name(tmp_path / "m")


# --------------------------------------------------------------------------- tables
TABLES = {
    "helpdesk": ("ticket_id", "customer_no", "received_at", "channel", "message"),
    "zendesk": ("id", "requester_id", "created_at", "subject", "plain_body"),
    "german": ("Vorgangs-Nr.", "Kundennummer", "Eingangsdatum", "Kanal", "Nachricht"),
    "spanish": ("Episodio", "Paciente", "Fecha", "Servicio", "Texto"),
    "french": ("N° de dossier", "ID client", "Date d'envoi", "Canal", "Message"),
    "italian": ("Pratica", "Codice", "Data", "Utente", "Testo"),
    "portuguese": ("Protocolo", "Cliente", "Criado em", "Canal", "Mensagem"),
    "dutch": ("Zaaknummer", "Klantnummer", "Tijdstip", "Kanaal", "Bericht"),
    "polish": ("Rozmowa", "Użytkownik", "Data wysłania", "Kanał", "Treść"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_eight_languages_needs_no_option(tmp_path, name):
    row = ["7", "4711", "02.03.2026", "x y", "a longer text"]
    if name == "italian":
        row[1], row[3] = "x", "4711"
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([TABLES[name], row])
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    assert said(tmp_path / "o") == [("4711", "a longer text")]
    assert made.facts.first == (None if name in ("french", "polish") else "2026-03-02") or name


def test_of_a_number_and_a_name_of_one_thing_the_number_is_taken():
    found = columns.guess_columns(["Customer name", "customer_id", "text"], {}, where="x")
    assert found["user"] == "customer_id"
    with pytest.raises(ValueError, match="'customer' and 'patient' could both be the user"):
        columns.guess_columns(["customer", "patient", "text"], {}, where="x")


@pytest.mark.parametrize("code", ["cp1252", "utf-16-le", "utf-16", "utf-8-sig", "utf-8"])
def test_a_code_is_found_and_said(tmp_path, code):
    text = "user,text\n" + "josé,Grüße aus Köln, “señor”\n".replace("Köln,", "Köln") * 3
    (tmp_path / "x.csv").write_bytes(text.encode(code))
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    assert said(tmp_path / "o")[0] == ("josé", "Grüße aus Köln “señor”")
    told = f"x.csv: read as {code}; encoding sets another"
    assert (told in made.notes) == (code in ("cp1252", "utf-16-le"))


@pytest.mark.parametrize("code", ["cp1251", "mac_roman", "cp850", "iso8859-2"])
def test_a_code_that_makes_no_words_is_asked_for(tmp_path, code):
    text = {"cp1251": "Привет, как дела", "iso8859-2": "wpisał złe hasło, złoty"}.get(
        code, "Müller José"
    )
    (tmp_path / "x.csv").write_bytes(("user,text\n" + f"ann,{text}\n" * 9).encode(code))
    with pytest.raises(ValueError, match="not UTF-8"):
        ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")


def test_dates_that_allow_one_order_need_no_option(tmp_path):
    (tmp_path / "x.csv").write_text("user,text,date\na,b,3/4/2026\na,c,13/4/2026\n")
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    assert made.facts.first == "2026-04-03" and "have the day first" in made.notes[0]


def test_a_refusal_says_all_that_is_wrong_and_what_answers_it(tmp_path):
    rows = ["user,text,date", "a,b,3/4/2026", "a,,3/4/2026", ",x,3/4/2026", "a,d,soon", ""]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    with pytest.raises(ValueError, match="begins with day or month") as error:
        ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    told = str(error.value)
    assert "in all 4 of 4 rows" in told and "1 day or month first (dates='dmy' or 'mdy')" in told
    assert "1 no text (skip_bad=True, max_bad=0.5)" in told and "1 no user (no_users=True" in told
    assert "\n" not in told and not (tmp_path / "o").exists()
    (tmp_path / "y.csv").write_text("remark,date\nsome words here,2026-03-02\n")
    told = r"use columns\['text'\] and columns\['user'\].*, perhaps with the name of column 1 \("
    with pytest.raises(ValueError, match=told):
        ingest.ingest_sources([tmp_path / "y.csv"], tmp_path / "o")


def test_a_column_called_data_that_holds_no_times_is_none(tmp_path):
    (tmp_path / "x.csv").write_text("user,text,data\na,b,gold\n")
    made = ingest.ingest_sources([tmp_path / "x.csv"], tmp_path / "o")
    assert "time" not in made.columns and "columns['time'] names it" in made.notes[0]
    assert times.parse_time("2/3/2026", dates="dmy")
