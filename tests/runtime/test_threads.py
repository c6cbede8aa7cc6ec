"""The OpenMP environment is settled before torch is there, and what the user set stays."""

import json
import os
import subprocess
import sys

from ramet.runtime.threads import num_physical_cores

SCRIPT = """
import json, os, sys
from ramet.runtime.threads import settle_environment
assert "torch" not in sys.modules
chosen = settle_environment({argument})
names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")
print(json.dumps([chosen, *(os.environ.get(name) for name in names)]))
"""


def settled(argument: object = None, **environment: str) -> list[object]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(argument=argument)],
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[object] = json.loads(ran.stdout)
    return found


def test_threads_sleep_and_are_as_many_as_physical_cores() -> None:
    cores = num_physical_cores()
    assert 1 <= cores <= (os.cpu_count() or 1)
    assert settled() == [cores, "PASSIVE", "0", str(cores)]


def test_what_the_user_set_stays() -> None:
    assert settled(OMP_NUM_THREADS="3,1", OMP_WAIT_POLICY="ACTIVE") == [3, "ACTIVE", "0", "3,1"]
    assert settled(argument=2, OMP_NUM_THREADS="3") == [2, "PASSIVE", "0", "3"]
    assert settled(OMP_NUM_THREADS="many")[0] == num_physical_cores()
