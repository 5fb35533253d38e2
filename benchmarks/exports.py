"""How many tries an export takes until it is a corpus, by a user who does what a refusal says.

``python benchmarks/exports.py [--python PATH] [--module confide]`` writes exports anew (a help
desk, hospital letters, mails, chats), calls ``ingest`` on each until it ends with 0 or nothing new
is asked for, and prints tries, seconds and what was left out. Nothing of them is anybody's.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HISTORY = (
    "-----Ursprüngliche Nachricht-----\nVon: Hilfe <help@shop.example>\nIhre Nummer 030 1234567"
)
MAIL = "From: {}@x.org\nMIME-Version: 1.0\nContent-Type: text/{}; charset=utf-8\n\n{}\n"
ANSWERS = {
    "person": {"letters.csv": ["--user", "paciente"], "desk.csv": ["--user", "customer_no"]},
    "text": {"letters.csv": ["--text", "texto"], "desk.csv": ["--text", "message"]},
}
"""What a user knows of his own columns."""


def write_exports(home: Path, coin: random.Random) -> list[str]:
    """The exports, with the slips that real ones have."""
    words = ["my", "order", "phone", "name", "is", "late", "please", "call", "account", "thanks"]

    def talk() -> str:
        return " ".join(coin.choices(words, k=8)) + f" {coin.randint(10**6, 10**7)}"

    with (home / "desk.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ticket_id", "customer_no", "received_at", "channel", "message"])
        table.writerows(
            [k // 9, k // 11, f"2026-03-{1 + k % 28:02} 10:00", "web", talk()] for k in range(4000)
        )
    with (home / "letters.csv").open("w", newline="", encoding="cp1252", errors="replace") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(["episodio", "paciente", "fecha", "texto"])
        table.writerows(
            [k // 20, f"P{k // 20}", f"{1 + k % 28:02}/04/2016", f"Señor Núñez, {talk()}"]
            for k in range(4000)
        )
    (home / "mails").mkdir()
    for k in range(60):
        form = "html" if k % 3 == 0 else "plain"
        text = f"<p>{talk()}</p>" if form == "html" else f"{talk()}\n\n{HISTORY}"
        (home / f"mails/{k}.eml").write_text(MAIL.format(f"u{k}", form, text))
    (home / "slack/general").mkdir(parents=True)
    (home / "slack/users.json").write_text('[{"id": "U1", "name": "ann"}]')
    day = [
        {"type": "message", "user": "U1", "text": talk(), "ts": f"17724456{k:02}.0"}
        for k in range(60)
    ]
    (home / "slack/general/2026-03-02.json").write_text(json.dumps(day))
    chat = [f"[{1 + k % 28:02}.03.26, 10:00:05] Ann: {talk()}" for k in range(60)]
    (home / "whatsapp.txt").write_text("\n".join(chat))
    return ["desk.csv", "letters.csv", "mails", "slack", "whatsapp.txt"]


def ingest(command: list[str], name: str, home: Path) -> tuple[int, float, str]:
    """Tries, CPU seconds, and what the last one said."""
    flags: list[str] = []
    began, tries = os.times(), 0
    while tries < 8:
        tries += 1
        done = subprocess.run(
            [*command, "ingest", str(home / name), *flags, "--out", str(home / f"{name}.corpus")],
            capture_output=True, text=True,
        )  # fmt: skip
        said = (done.stdout if not done.returncode else done.stderr).strip()
        if not done.returncode:
            break
        more: list[str] = []
        for sign, known in ANSWERS.items():
            if f"looks like the {sign}" in said or f"or the {sign}" in said:
                more += known.get(name, [])
        if "--dates dmy" in said:
            more += ["--dates", "dmy"]
        if "--encoding cp1252" in said:
            more += ["--encoding", "cp1252"]
        if "--yes takes" in said:
            more += ["--yes"]
        if "--skip-bad" in said:
            more += ["--skip-bad", "--max-bad", "1"]
        if not set(more) - set(flags):
            said = f"refused: {said}"
            break
        flags += [word for word in more if word not in flags]
    ended = os.times()
    seconds = ended.children_user + ended.children_system
    return tries, seconds - began.children_user - began.children_system, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--module", default="confide")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for name in write_exports(home, random.Random(0)):
            tries, seconds, said = ingest([chosen.python, "-m", chosen.module], name, home)
            kept = re.search(r"turns [\d,]+", said)
            left = re.search(r"left out [^\n]*?(?=\s{3}|$)", said, re.M)
            told = " · ".join(m[0] for m in (kept, left) if m) or said.splitlines()[-1][:160]
            print(f"{name:13} {tries} tries {seconds:6.1f} CPU s   {told.replace(place, '')}")


if __name__ == "__main__":
    main()
