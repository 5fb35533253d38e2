"""Show what differs from the pins, or write them anew: ``python -m tests.pins [--write] NAME``."""

import argparse
import sys

from tests import pins


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=(*pins.NAMES, "all"), metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write them anew")
    given = parser.parse_args()
    different = 0
    for name in pins.NAMES if "all" in given.names else given.names:
        value = pins.made(name)
        if given.write:
            pins.write(name, value)
            continue
        for line in pins.differences(pins.read(name), value):
            print(f"{name}{line}")
            different = 1
    return different


if __name__ == "__main__":
    sys.exit(main())
