"""The doctor has a next step for every reason that health may give."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from feltd.cli.doctor.asked import HELPS, TOLD_ELSEWHERE

#: How a reason is held or ended, wherever it is.
NOTE = re.compile(r"""\.note\(\s*"([A-Z_]+)",""")
CODES = sorted(
    {
        code
        for file in Path(str(files("feltd"))).rglob("*.py")
        for code in NOTE.findall(file.read_text(encoding="utf-8"))
    }
)


@pytest.mark.parametrize("code", CODES)
def test_each_reason_of_health_has_its_next_step(code: str) -> None:
    assert code in HELPS or code in TOLD_ELSEWHERE


def test_no_next_step_is_for_what_is_never_told() -> None:
    assert len(CODES) > 10
    assert set(HELPS) <= set(CODES)
