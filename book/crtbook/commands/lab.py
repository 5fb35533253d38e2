"""``crtbook lab``: make the key of a class, and what its students get."""

from dataclasses import asdict
from pathlib import Path

from crtlib.options import CommandResult


def lab(key: Path, students: Path | None = None, out: Path = Path("class")) -> CommandResult:
    """Make the key of a class, and train the three models of the attack lab for each student.

    The key has 256 random bits. Each student's task follows from it and from the name, and no
    hand-out shows anything of it. If the key is there already, it is read, and only new names get a
    hand-out, which takes about 40 seconds each. The defence lab needs only the key.

    Example: crtbook lab --key class.key --students names.txt --out class

    Files:
        --key: Key file of the class; keep it to yourself.
        --students: Text file with one name on each line, for the attack lab.
        --out: Folder for a hand-out for each student.
    """
    from crtcourse import attack, keys

    class_key = keys.read_key(key) if key.exists() else keys.make_key()
    names = keys.read_names(students) if students else []
    keys.write_key(class_key, key)
    for name in [n for n in names if n not in class_key["students"]]:
        seed = keys.derive_seed(bytes.fromhex(class_key["secret"]), "attack", name)
        class_key["students"][name] = asdict(attack.hand_out(seed, out / name))
        keys.write_key(class_key, key)
    return CommandResult({"key": key, "students": len(class_key["students"])}, [str(key)])
