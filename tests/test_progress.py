"""What a log shows of a long command: whole lines, and none of a short one."""

import io
import sys

from tqdm import tqdm

from crtlib import progress


def printed(monkeypatch, seconds, steps=3):
    """What a bar writes where standard error is no terminal."""
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", seconds)
    options = progress.bar_options(True, total=steps)
    for _ in tqdm(range(steps), "training", unit="step", file=out, **options):
        pass
    return out.getvalue()


def test_a_log_has_lines_with_the_time_left(monkeypatch):
    said = printed(monkeypatch, 0)
    assert "training: 3 of 3 step, " in said and "left\n" in said and "\x1b" not in said
    assert printed(monkeypatch, 30) == ""
