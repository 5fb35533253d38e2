"""The board after a round: ``python book/board.py round-1.csv round-2.csv ... --out board.html``
adds up the tables of ``crtbook grade``, of either lab, and shows no more than teams and points.
"""

import argparse
from pathlib import Path

import pandas as pd

import render


def board(paths: list[Path]) -> str:
    """The page. A team that handed in nothing has no points in that round. Raises ``ValueError``
    for a file that is no table of marks, or names a team twice."""
    rounds = {}
    for path in paths:
        table = pd.read_csv(path)
        if not {"name", "total"} <= set(table) or table.name.duplicated().any():
            raise ValueError(f"{path}: is no table of crtbook grade")
        rounds[path.stem] = table.set_index("name").total
    points = pd.DataFrame(rounds).fillna(0.0).rename_axis("team")
    points.insert(0, "points", points.sum(axis=1))
    points.insert(0, "place", points["points"].rank(ascending=False, method="min").astype(int))
    shown = points.sort_values(["place", "team"]).reset_index()
    body = shown.to_html(index=False, border=0, float_format="{:g}".format)
    return render.document("Board", f"<main><h1>Board</h1>{body}</main>")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path, help="one of each round, in order")
    parser.add_argument("--out", type=Path, default=Path("board.html"))
    options = parser.parse_args()
    try:
        options.out.write_text(board(options.tables), "utf-8")
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(options.out)
