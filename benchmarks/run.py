"""The only door to a kernel's numbers: run its test, then its benchmark, and append the rows to a CSV keyed by the
device.

    python benchmarks/run.py kernels/decode_attention
    python benchmarks/run.py kernels/all

A red or skipped test gets no numbers. Each benchmark file has `rows()`, which yields dicts: sizes, ours_ms,
reference_ms, and
what was achieved (gb_per_s or gflop_per_s); here the measured ceiling of the device is put beside it.
"""

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results.csv"
FIELDS = ("name", "commit", "device", "sizes", "ours_ms", "reference_ms", "gb_per_s", "gflop_per_s", "of_ceiling")


def main(name: str) -> None:
    folder, stem = name.split("/")
    stems = [path.stem.removeprefix("bench_") for path in sorted((ROOT / "benchmarks" / folder).glob("bench_*.py"))]
    for each in stems if stem == "all" else [stem]:
        measure(folder, each)


def measure(folder: str, stem: str) -> None:
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / folder / f"bench_{stem}.py"))
    test = ROOT / "tests" / folder / f"test_{benchmark.get('TEST', stem)}.py"
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", test], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0 or " passed" not in done.stdout:  # a run in which everything is skipped exits 0 too
        sys.exit(f"{done.stdout}\nno numbers for {folder}/{stem}: its test is red or was skipped; mend that first")
    ceiling = measured_bandwidth()
    for row in benchmark["rows"]():
        append(f"{folder}/{stem}", row, ceiling)


def append(name: str, row: dict[str, object], ceiling: float) -> None:
    given = {field: row.pop(field) for field in FIELDS if field in row}
    if "gb_per_s" in given:
        given["of_ceiling"] = round(float(str(given["gb_per_s"])) / ceiling, 3)
    sizes = " ".join(f"{key}={value}" for key, value in row.items())
    record = {"name": name, "commit": commit(), "device": device_name(), "sizes": sizes, **given}
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if is_new:
            writer.writeheader()
        writer.writerow(record)
    print(record)


def measured_bandwidth() -> float:
    """GB/s of a large copy on the device: read and write both counted."""
    from triton.testing import do_bench

    source = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / do_bench(lambda: target.copy_(source)) / 1e6


def device_name() -> str:
    return torch.cuda.get_device_name()


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("kernel benchmarks need a CUDA device; the CPU path is measured by `ramet bench engine`")
    main(sys.argv[1] if len(sys.argv) > 1 else "kernels/all")
