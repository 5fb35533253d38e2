"""What may be wrong with a file, by its form: a function each, of its bytes and a coin.

>>> from random import Random
>>> KINDS["key"]["too short"](b"0" * 32, Random(1))
b'0000000'
"""

import gzip
import io
import json
import os
import re
import sqlite3
import struct
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PLANTED = "Zebulonia 7449153"
"""What a bad place may hold, too: private, so that no message may show it."""
ODD_JSON = [
    None, True, -1, 0, 2**63, 10**400, 1e308, float("nan"), float("-inf"), 1e-320, [], {}, [[]],
    "", "\ud800", "\x1b[2K\r", "a" * 5000, "=1+1", PLANTED, [PLANTED], {PLANTED: PLANTED},
]  # fmt: skip
ODD_CELLS = [
    "", "NULL", "nan", "9999-12-31T23:59:59-05:00", "31/02/2026", "1e999", "9" * 400, "=1+1", "\0",
    "a\rb", '"', "\ud800", "\x1b[2K", "inf", "-0.0", "\u202e", PLANTED, "x" * 70_000,
]  # fmt: skip


# --------------------------------------------------------------------------- any file
def flip(raw, coin):
    """Some bytes are others."""
    out = bytearray(raw or b"x")
    for _ in range(coin.choice([1, 5, 50])):
        out[coin.randrange(len(out))] = coin.randrange(256)
    return bytes(out)


def put(raw, coin, what):
    """Something stands somewhere in it."""
    at = coin.randrange(len(raw) + 1)
    return raw[:at] + what + raw[at:]


ANY = {
    "empty": lambda raw, coin: b"",
    "cut": lambda raw, coin: raw[: coin.randrange(len(raw) + 1)],
    "without its beginning": lambda raw, coin: raw[coin.randrange(len(raw) + 1) :],
    "flipped": flip,
    "random bytes": lambda raw, coin: coin.randbytes(500),
    "noughts": lambda raw, coin: b"\0" * 1000,
    "a nought within": lambda raw, coin: put(raw, coin, b"\0"),
    "no UTF-8": lambda raw, coin: put(raw, coin, b"\xff\xfe\xc3"),
    "a byte order mark": lambda raw, coin: b"\xef\xbb\xbf" + raw,
    "UTF-16": lambda raw, coin: raw.decode("latin-1").encode("utf-16"),
    "twice": lambda raw, coin: raw + raw,
    "a longer line": lambda raw, coin: put(raw, coin, b"a" * 10**6),
    "the planted name within": lambda raw, coin: put(raw, coin, PLANTED.encode()),
    "white space": lambda raw, coin: b" \r\n\t\n" * 9,
    "brackets": lambda raw, coin: b"[" * 10**5,
    "digits": lambda raw, coin: b"9" * 10**5,
    "ends of lines": lambda raw, coin: raw.replace(b"\n", coin.choice([b"\r", b"\r\n", b""])),
    "packed and torn": lambda raw, coin: gzip.compress(raw)[: -coin.randrange(1, 12)],
}


# --------------------------------------------------------------------------- JSON, and its lines
def json_changed(raw, coin):
    """One place of a JSON value holds another value, is missing, is called otherwise, or twice."""
    tree, places = json.loads(raw), []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    if isinstance(tree, (dict, list)):
        walk(tree)
    if not places:
        return json.dumps(coin.choice(ODD_JSON)).encode()
    node, key = coin.choice(places)
    way = coin.choice(["value", "value", "value", "gone", "called", "twice"])
    if way == "value" or isinstance(node, list):
        node[key] = coin.choice(ODD_JSON)
    elif way == "gone":
        del node[key]
    elif way == "called":
        node[coin.choice(["x", "", PLANTED, "__class__"])] = node.pop(key)
    else:
        return _named_twice(tree, node, key)
    return json.dumps(tree).encode()


def _named_twice(tree, node, key):
    mark = "a name that nobody else has"
    node[mark] = node[key]
    return json.dumps(tree).replace(json.dumps(mark), json.dumps(key)).encode()


def in_a_line(change):
    """The same in one of the lines of a file."""

    def changed(raw, coin):
        lines = raw.splitlines(keepends=True) or [b""]
        at = coin.randrange(len(lines))
        lines[at] = change(lines[at].rstrip(b"\n"), coin) + b"\n"
        return b"".join(lines)

    return changed


# --------------------------------------------------------------------------- tables
def cell_changed(raw, coin):
    rows = [line.split(b",") for line in raw.split(b"\n")]
    row = coin.choice(rows)
    row[coin.randrange(len(row))] = coin.choice(ODD_CELLS).encode("utf-8", "surrogatepass")
    return b"\n".join(map(b",".join, rows))


def with_header(change):
    """Another first line."""

    def changed(raw, coin):
        head, _, rest = raw.partition(b"\n")
        return change(head, coin) + b"\n" + rest

    return changed


CSV = {
    "a cell": cell_changed,
    "a column twice": with_header(lambda head, coin: coin.choice(head.split(b",")) + b"," + head),
    "a column without a name": with_header(lambda head, coin: b"," + head),
    "no header": with_header(lambda head, coin: b""),
    "other columns": with_header(lambda head, coin: re.sub(rb"\w+", b"x", head, count=9)),
    "the planted name in its header": with_header(
        lambda head, coin: head.replace(coin.choice(head.split(b",")), PLANTED.encode())
    ),
    "a line break in its header": with_header(lambda head, coin: b'"a\nb",' + head),
    "a word of a spreadsheet": lambda raw, coin: b"sep=;\n" + raw,
    "semicolons": lambda raw, coin: raw.replace(b",", b";"),
    "an open quote": lambda raw, coin: put(raw, coin, b'"'),
    "a short row": lambda raw, coin: raw + b"x\n",
    "many columns": lambda raw, coin: b",".join(b"c%d" % k for k in range(20_000)) + b"\n" + raw,
}


def parquet_changed(change):
    """Another table, made of the one that is there."""

    def changed(raw, coin):
        table, out = pq.read_table(io.BytesIO(raw)), io.BytesIO()
        pq.write_table(change(table, coin), out)
        return out.getvalue()

    return changed


def other_type(table, coin):
    """A column of a type that nobody asked for."""
    n, at = len(table), coin.randrange(table.num_columns)
    arrays = [
        pa.nulls(n), pa.array([2**62] * n, pa.timestamp("us")), pa.array([2**30] * n, pa.date32()),
        pa.array([b"\xff"] * n), pa.array([[PLANTED]] * n), pa.array([{"a": PLANTED}] * n),
        pa.array([float("nan")] * n), pa.array([-1] * n), pa.array([True] * n),
        pa.array([PLANTED] * n).dictionary_encode(), pa.array([PLANTED] * n),
    ]  # fmt: skip
    return table.set_column(at, table.column_names[at], coin.choice(arrays))


PARQUET = {
    "another type": parquet_changed(other_type),
    "no rows": parquet_changed(lambda table, coin: table.slice(0, 0)),
    "rows twice": parquet_changed(lambda table, coin: pa.concat_tables([table, table])),
    "rows in another order": parquet_changed(
        lambda t, _: t.take(pa.array(range(len(t))[::-1], pa.int64()))
    ),
    "a column twice": parquet_changed(
        lambda t, _: t.append_column(t.column_names[-1], t.column(t.num_columns - 1))
    ),
    "a column less": parquet_changed(
        lambda t, coin: t.remove_column(coin.randrange(t.num_columns))
    ),
    "another name": parquet_changed(
        lambda t, coin: t.rename_columns(
            [coin.choice([name, PLANTED, ""]) for name in t.column_names]
        )
    ),
    "missing values": parquet_changed(
        lambda t, coin: pa.concat_tables([t, t.slice(0, 1).from_pylist([{}], t.schema)])
    ),
}


# --------------------------------------------------------------------------- mail
WORD = "=?utf-8?b?a?="
HEADERS = [
    f"From: {WORD} <z@b.org>", f"Date: {WORD}", f"References: {WORD}", f"Message-ID: {WORD}",
    f"In-Reply-To: {WORD}", "From: " + "(" * 20_000, "From:", "From: a at b", "no colon",
    "Date: Fri, 31 Dec 9999 23:59:59 -0500", "Date: yesterday", "Content-Type: x/" + "y/" * 999,
    "Content-Type: text/plain; charset=no-such", "Content-Type: text/html",
    "Content-Type: multipart/mixed", "Content-Transfer-Encoding: base64",
    "Content-Transfer-Encoding: uuencode",
    "References: " + " ".join(f"<{k}@r>" for k in range(999)),
    "Subject: \x1b[2K\0", f"Subject: {PLANTED}\nX", f"From: {PLANTED}",
    "\n".join(f'Content-Type: multipart/mixed; boundary="b{k}"\n\n--b{k}' for k in range(3000)),
]  # fmt: skip


def mail_changed(raw, coin):
    """A header more in one of the mails, before its others or after them."""
    places = [m.end() for m in re.finditer(rb"^From \S+ .*\d{4}\n", raw, re.MULTILINE)] or [0]
    at = coin.choice(places)
    if coin.random() < 0.5:
        at = raw.find(b"\n\n", at) + 1
    return raw[:at] + coin.choice(HEADERS).encode() + b"\n" + raw[at:]


MAIL = {
    "a header": mail_changed,
    "a line that begins a mail": lambda raw, coin: put(raw, coin, b"\n\nFrom now on.\nFrom: z@z\n"),
    "no empty lines": lambda raw, coin: raw.replace(b"\n\n", b"\n"),
}


# --------------------------------------------------------------------------- ledgers
def statements(*some):
    """What these statements of SQL, which may name a {table}, leave of a file."""

    def changed(raw, coin):
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
            Path(file.name).write_bytes(raw)
            base = sqlite3.connect(file.name, isolation_level=None)
            tables = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            (table,) = coin.choice(tables or [("none",)])
            for statement in some:
                base.execute(statement.format(table=table, planted=PLANTED))
            base.close()
            return Path(file.name).read_bytes()

    return changed


def line_changed(raw, coin):
    """One of the lines of a ledger is other JSON."""
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(raw)
        base = sqlite3.connect(file.name, isolation_level=None)
        try:
            rows = base.execute("SELECT n, content FROM lines").fetchall()
        except sqlite3.OperationalError:
            rows = []
        for n, content in rows[:1]:
            other = json_changed(content.encode(), coin).decode()
            base.execute("UPDATE lines SET content = ? WHERE n = ?", (other, n))
        base.close()
        return Path(file.name).read_bytes()


SQLITE = {
    "a line": line_changed,
    "no rows": statements("DELETE FROM {table}"),
    "a table less": statements("DROP TABLE {table}"),
    "a table of another form": statements(
        "DROP TABLE {table}", "CREATE TABLE {table} (x)", "INSERT INTO {table} VALUES ('{planted}')"
    ),
    "of a later version": statements("PRAGMA user_version = 99"),
    "in another mode": statements("PRAGMA journal_mode = WAL"),
}


# --------------------------------------------------------------------------- others
def header_changed(raw, coin):
    """Weights whose header is other JSON, or says another length."""
    (size,) = struct.unpack("<Q", raw[:8])
    if coin.random() < 0.3:
        other = coin.choice([0, 1, size - 1, size + 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
        return struct.pack("<Q", other) + raw[8:]
    header = json_changed(raw[8 : 8 + size], coin)
    return struct.pack("<Q", len(header)) + header + raw[8 + size :]


def no_numbers(raw, coin):
    """Weights of which all are NaN or infinite."""
    (size,) = struct.unpack("<Q", raw[:8])
    one = coin.choice([b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"])
    return raw[: 8 + size] + one * ((len(raw) - 8 - size) // 4)


TEMPLATES = [
    "{% for i in range(10**9) %}x{% endfor %}", "{{ ''.__class__.__mro__ }}", "{% include 'x' %}",
    "{{ messages[99].text }}", "{{ 1 / 0 }}", "{{", "", "{{ raise_exception('no') }}", "constant",
    "{{ 'a' * 10**10 }}", "{{ range(10**10) | list }}", "{{ 2 ** 10**8 }}",
]  # fmt: skip
TOMLS = [
    b"[[ingest]]\nsource = ['a']\n", b"ingest = 7\n", b"[ingest]\nsource = 5\n", b"[nobody]\na = 1",
    b"[a]\npattern = '(a+)+$'\n", b"[a]\npattern = '('\n", b"[a]\npattern = 5\n", b"a.b.c.d = 1\n",
    b"[a]\npattern = ''\n", b"a = 1\na = 2\n", b"[a]\npattern = '(?R)?x'\n", b"t = 9999-99-99\n",
    b"[a]\npattern = '[^\\n]*'\n", b"[train]\nepochs = 1e999\n", 
    b"[ingest]\nsource = ['\\u0000']\n",
]  # fmt: skip
KEYS = {
    "too short": lambda raw, coin: raw[:7],
    "too long": lambda raw, coin: raw + raw,
    "all noughts": lambda raw, coin: bytes(32),
    "hexadecimal": lambda raw, coin: raw.hex().encode(),
}
KINDS = {
    "json": ANY | {"a place": json_changed},
    "jsonl": ANY | {"a place": in_a_line(json_changed), "a line": in_a_line(flip)},
    "csv": ANY | CSV,
    "parquet": ANY | PARQUET,
    "mail": ANY | MAIL,
    "sqlite": ANY | SQLITE,
    "key": ANY | KEYS,
    "safetensors": ANY | {"a header": header_changed, "no numbers": no_numbers},
    "toml": ANY | {"a table": lambda raw, coin: coin.choice(TOMLS)},
    "template": ANY | {"a template": lambda raw, coin: coin.choice(TEMPLATES).encode()},
    "text": ANY,
    "page": {name: ANY[name] for name in ("cut", "flipped", "the planted name within", "empty")},
}
"""By form, each kind of damage to the content."""
OWN = {form: sorted(set(kinds) - set(ANY)) for form, kinds in KINDS.items()}
"""By form, the kinds that other forms do not have: half of the cases are of these."""


# --------------------------------------------------------------------------- what is no file
def _open_to_others(path):
    path.chmod(0o666)


def _another_owner(path):
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)


def _instead(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


NODES = {
    "missing": lambda path: path.unlink(),
    "a folder": _instead(Path.mkdir),
    "a pipe": _instead(os.mkfifo),
    "a link in a circle": _instead(lambda path: path.symlink_to(path)),
    "a link to nothing": _instead(lambda path: path.symlink_to("nowhere")),
    "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "open to others": _open_to_others,
    "of another owner": _another_owner,
}
"""Each kind of damage to the file itself, by its path."""


def choose(form, coin):
    """A kind of damage to a file of this form."""
    pool = coin.choice([OWN[form] or sorted(KINDS[form]), sorted(KINDS[form]), sorted(NODES)])
    return coin.choice(pool if coin.random() < 0.9 else sorted(KINDS[form]))


def apply(path, form, kind, coin):
    """Damage a file."""
    if kind in NODES:
        NODES[kind](path)
    else:
        path.write_bytes(KINDS[form][kind](path.read_bytes(), coin))
