"""A file that is not UTF-8 is refused with a command that works as it is printed."""

import gzip
import itertools
import json
import shutil
import subprocess

import pytest

from confide.text import ingest
from crtlib.screening.policy_names import policy_by_name
from crtlib.text import corpora, encodings

SAID = {
    "CP932": "ご注文番号は{}です。住所は東京都です。",
    "EUC-JP": "ご注文番号は{}です。電話してください。",
    "GB18030": "您好，我的订单号是{}，还没有到",
    "BIG5": "您好，我的訂單號是{}，還沒有到",
    "CP949": "안녕하세요 주문 번호는 {} 입니다",
    "CP1251": "Здравствуйте, мой заказ {} не пришел",
    "KOI8-R": "Здравствуйте, мой заказ {} не пришел",
    "CP866": "Здравствуйте, мой заказ {} не пришел",
    "CP1250": "Dzień dobry, moje zamówienie {} jeszcze nie przyszło, proszę",
    "ISO-8859-2": "Dzień dobry, jeśli zamówienie {} źle przyszło, proszę o pomoc, są",
    "CP850": "Größe für café {}",
    "CP1253": "Καλημέρα, η παραγγελία {} δεν ήρθε ακόμα",
    "CP1255": "שלום ההזמנה שלי {} לא הגיעה",
    "CP1256": "مرحبا طلبي {} لم يصل",
    "CP874": "สวัสดี คำสั่งซื้อ {} ยังไม่มา",
}


def write_talk(path, code):
    """Dialogues in our own form, in a code."""
    rows = (
        {"id": f"d{k}", "user": f"u{k % 3}", "turns": [{"speaker": "USR", "text": text}]}
        for k, text in enumerate(SAID[code].format(n) for n in range(1000, 1030))
    )
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(code)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return [SAID[code].format(n) for n in range(1000, 1030)]


@pytest.mark.parametrize("code", SAID)
def test_the_option_that_is_named_reads_the_file(tmp_path, code):
    path = tmp_path / "talk.csv"
    rows = "".join(f'ann,"{SAID[code].format(n)}"\n' for n in range(1000, 1030))
    path.write_bytes(f"user,text\n{rows}".encode(code))
    with pytest.raises(ValueError, match=f"talk.csv: is not UTF-8 .*: encoding='{code.lower()}';"):
        ingest.ingest_sources([path], tmp_path / "o")
    ingest.ingest_sources([path], tmp_path / "o", encoding=code.lower())
    said = [t.text for d in corpora.read_dialogues(tmp_path / "o") for t in d.turns]
    assert said == [SAID[code].format(n) for n in range(1000, 1030)]


@pytest.mark.skipif(not shutil.which("iconv"), reason="no iconv here")
@pytest.mark.parametrize("name", ["talk.jsonl", "our talk.jsonl", "talk.jsonl.gz"])
@pytest.mark.parametrize("code", ["CP932", "KOI8-R"])
def test_the_command_that_is_printed_makes_the_file_readable(tmp_path, name, code):
    said = write_talk(tmp_path / name, code)
    with pytest.raises(ValueError, match=r"line 1: is not UTF-8 \(byte 0x..\); it looks like") as e:
        list(corpora.read_dialogues(tmp_path / name))
    subprocess.run(str(e.value).rpartition(": ")[2], shell=True, check=True)
    read = corpora.read_dialogues(
        tmp_path / name.replace(".jsonl", ".utf8.jsonl").removesuffix(".gz")
    )
    assert [t.text for d in read for t in d.turns] == said


WESTERN = {
    "German": "Grüße aus Köln, die Straße ist schön",
    "French": "L’été dernier, où est passé le garçon ?",
    "Spanish": "¿Cuándo llegará mi pedido, señor?",
    "Portuguese": "Não, a encomenda ainda está atrás",
    "Italian": "Perché non è già arrivato? È così",
    "Norwegian": "Jeg får ikke bestillingen på søndag, ærlig talt",
    "English": "It’s “broken” – £20 back, please… the café",
}
OTHERS = {
    "CP1250": ["Dobrý den, moje objednávka ještě nedorazila", "Őrült a csomag, hűtő és űrhajó"],
    "CP1254": ["Günaydın, siparişim gelmedi, çağrı merkezi"],
    "CP1255": ["שלום ההזמנה שלי לא הגיעה"],
    "CP1256": ["مرحبا طلبي لم يصل"],
}


@pytest.mark.parametrize("written", [*WESTERN.values(), *itertools.chain(*OTHERS.values())])
def test_json_lines_are_read_as_cp1252_where_that_makes_a_western_language(tmp_path, written):
    """Beside keys and names in ASCII, Hebrew in few letters looked Western once."""
    code = next((c for c, texts in OTHERS.items() if written in texts), "CP1252")
    row = {"conversation": "d1", "speaker": "customer", "user": "bob", "text": written}
    (path := tmp_path / "x.jsonl").write_bytes(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for _ in range(9)).encode(code)
    )
    assert encodings.find_encoding(path) == ("cp1252" if code == "CP1252" else "auto")
    assert encodings.find_likely_code(path) == code


@pytest.mark.parametrize("code", ["cp1252", "utf-16", "utf-16-le", "utf-8-sig"])
def test_json_lines_are_read_in_any_code_that_a_table_is(tmp_path, code):
    rows = [{"user": "josé", "text": "Grüße aus Köln, “señor”"}] * 3
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    (tmp_path / "x.jsonl").write_bytes(lines.encode(code))
    made = ingest.ingest_sources([tmp_path / "x.jsonl"], tmp_path / "o")
    read = [t.text for d in corpora.read_dialogues(tmp_path / "o") for t in d.turns]
    assert read == [row["text"] for row in rows]
    told = f"x.jsonl: read as {code}; encoding sets another"
    assert (told in made.notes) == (code in ("cp1252", "utf-16-le"))


def test_an_encoding_that_does_not_fit_is_named_and_is_not_named_again(tmp_path):
    write_talk(tmp_path / "x.jsonl", "CP932")
    with pytest.raises(ValueError, match=r"is not cp1252 .*\(Shift-JIS\): encoding='cp932'"):
        ingest.ingest_sources([tmp_path / "x.jsonl"], tmp_path / "o", encoding="cp1252")
    (tmp_path / "y.csv").write_bytes(b"user,text\nann,\xe3\x81\x82\nbob,\xff\n")
    with pytest.raises(
        ValueError, match=r"not UTF-8 .*; skip_bad=True leaves out what is damaged$"
    ):
        ingest.ingest_sources([tmp_path / "y.csv"], tmp_path / "o")
    (tmp_path / "z.mbox").write_bytes(b"From a@b.c\n\nhello\n")
    with pytest.raises(
        ValueError, match=r"^encoding: is for csv, tsv, jsonl, text, lines, .* mbox"
    ):
        ingest.ingest_sources([tmp_path / "z.mbox"], tmp_path / "o", encoding="cp932")


def test_what_no_language_is_written_in_is_asked_for(tmp_path):
    (path := tmp_path / "x.txt").write_bytes(b"\x01\xff\xfe\x9d\x81" * 9)
    assert encodings.find_likely_code(path) is None
    assert encodings.describe_recoding(path) == (
        "put its encoding for CODE ('iconv -l' lists them): "
        f"iconv -f CODE -t UTF-8 {path} > {tmp_path}/x.utf8.txt"
    )


@pytest.mark.parametrize("end", ["csv", "txt", "toml"])
def test_a_policy_out_of_a_file_in_another_code_names_the_command(tmp_path, end):
    content = {"toml": '[name]\npattern = "東京都です"\n'}.get(end, "secret\n東京都です\n")
    (path := tmp_path / f"x.{end}").write_bytes(content.encode("cp932"))
    kind = "regex" if end == "toml" else "list"
    with pytest.raises(ValueError, match=r"is not UTF-8; .*iconv -f CP932 -t UTF-8") as error:
        policy_by_name(f"{kind}:{path}")([])
    assert "\n" not in str(error.value)
