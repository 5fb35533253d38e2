"""Bring in a box of mails whose headers are broken: ``python benchmarks/broken_mails.py``.

Each mail says in its text who wrote it. A third of the mails have a header that is broken in one of
30 ways, or a text that looks like the beginning of another mail. Printed are how many mails came
in, how many were left out by kind, whether any two people came in as one or the words of one
as another's, and the CPU seconds of ``ingest``.
"""

import argparse
import contextlib
import csv
import io
import json
import random
import re
import resource
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from confide.__main__ import CRTLIB_PROGRAM
from crtlib.text import corpora

WORD = "=?utf-8?b?a?="
DATE = "Mon, 02 Mar 2026 10:00:00 +0100"
BROKEN_HEADERS = {
    f"{name} in half base64": {name: f"{WORD} <z@b.org>"}
    for name in ("Message-ID", "In-Reply-To", "References", "Subject", "To")
} | {
    "name in half base64": {"From": f"{WORD} <{{address}}>"},
    "name in an unknown charset": {"From": "=?no-such?q?Ann?= <{address}>"},
    "name with a comma": {"From": "Quux, Ann <{address}>"},
    "name with quotes that stay open": {"From": '"Ann <{address}>'},
    "name with a control character": {"From": "Ann\x1b[2K <{address}>"},
    "address alone": {"From": "{address}"},
    "address in capitals": {"From": "<{ADDRESS}>"},
    "address with at": {"From": "{at}"},
    "comments in From": {"From": "((((Ann)))) <{address}>"},
    "20,000 comments in From": {"From": "(" * 20_000 + " <{address}>"},
    "no From": {"From": None},
    "empty From": {"From": ""},
    "no Date": {"Date": None},
    "Date in half base64": {"Date": WORD},
    "Date of no calendar": {"Date": "Fri, 31 Dec 9999 23:59:59 -0500"},
    "Date in words": {"Date": "yesterday"},
    "no such charset": {"Content-Type": "text/plain; charset=no-such"},
    "no such type": {"Content-Type": "x/" + "y/" * 99},
    "multipart without a boundary": {"Content-Type": "multipart/mixed"},
    "no such encoding": {"Content-Transfer-Encoding": "rot13"},
    "999 references": {"References": " ".join(f"<{k}@r>" for k in range(999))},
    "a Message-ID in brackets": {"Message-ID": "<[x@y]>"},
}
BROKEN_TEXTS = {
    "From as a first word": "\nFrom now on use it.\nFrom: boss@corp.org\n\nI agree.",
    "From that is escaped": "\n>From my heart.",
    "a header in the text": "\nFrom: boss@corp.org\nSubject: no",
}


def write_mails(file, count, people, seed):
    """Write the box; returns what each mail has."""
    coin, made = random.Random(seed), []
    ways = [*BROKEN_HEADERS, *BROKEN_TEXTS]
    with file.open("w", newline="\n") as out:
        for number in range(count):
            person = coin.randrange(people)
            address = f"p{person}@site{person % 7}.org"
            way = coin.choice(ways) if number % 3 == 0 else "whole"
            made.append(way)
            headers = {"From": "P <{address}>", "Date": DATE, "Message-ID": f"<{number}@x>"}
            headers |= BROKEN_HEADERS.get(way, {})
            told = {"address": address, "ADDRESS": address.upper(),
                    "at": address.replace("@", " at ")}  # fmt: skip
            lines = [f"{k}: {v.format(**told)}" for k, v in headers.items() if v is not None]
            text = f"owner{person}x writes mail{number}x." + BROKEN_TEXTS.get(way, "")
            head = "\n".join(lines)
            out.write(f"From x@y Mon Mar  2 10:00:00 2026\n{head}\n\n{text}\n\n")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mails", type=int, default=100_000)
    parser.add_argument("--people", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        box, out = Path(place) / "mails.mbox", Path(place) / "corpus"
        made = write_mails(box, options.mails, options.people, options.seed)
        words = ["ingest", str(box), "--yes", "--skip-bad", "--max-bad", "1", "--out", str(out)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = CRTLIB_PROGRAM.main(words, standalone_mode=False)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        owners, found, foreign, named = defaultdict(set), set(), 0, Counter()
        other_names = Counter()
        for dialogue in corpora.read_dialogues(out):
            for turn in dialogue.turns:
                people = set(re.findall(r"owner(\d+)x", turn.text))
                numbers = [int(n) for n in re.findall(r"mail(\d+)x", turn.text)]
                found |= {*numbers}
                right = {f"p{p}@site{int(p) % 7}.org" for p in people}
                other_names.update(made[n] for n in numbers if {dialogue.user} != right)
                foreign += not people
                named[bool(dialogue.user)] += 1
                if dialogue.user:
                    owners[dialogue.user] |= people
        with (out / "rejected.csv").open(newline="") as file:
            left_out = Counter(row.get("reason") or str(row) for row in csv.DictReader(file))
        told = {
            "code": code, "mails": options.mails, "broken": options.mails - made.count("whole"),
            "ways": len({*made}) - 1, "came_in": len(found), "left_out": dict(left_out),
            "turns": named.total(), "of_nobody": named[False],
            "names_of_several_people": sum(len(p) > 1 for p in owners.values()),
            "turns_without_their_owner": foreign,
            "under_another_name_of_theirs": dict(other_names),
            "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
        }  # fmt: skip
        print(json.dumps(told, indent=1))
        print(said.getvalue()[-600:])


if __name__ == "__main__":
    main()
