"""mypy --strict on a user's file: what it accepts, what it infers and what it refuses."""

from pathlib import Path

import pytest
from mypy import api


@pytest.mark.slow
def test_users_see_types(tmp_path: Path) -> None:
    file = Path(__file__).with_name("program_types.py")
    out, err, code = api.run(
        ["--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path), "--follow-imports=silent", str(file)]
    )
    assert code == 0, out + err
