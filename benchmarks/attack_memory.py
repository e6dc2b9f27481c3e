"""Does an attack's memory depend on the number of victims? Peak RSS of two runs.

    python benchmarks/attack_memory.py [--victims 1000 10000] [--iterations 1]

Each run is `gradaudit.attack` on MNIST in a process of its own, at equal slots. The bar
is 20 %. One iteration streams everybody through (3 minutes); the kept result is of
whole attacks, `--iterations 300` (45 minutes). Writes results/attack_memory.json.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results" / "attack_memory.json"
LIMIT = 0.2


def attack(victims: int, iterations: int, slots: int) -> dict[str, Any]:
    """Attacks in this process; returns its peak memory at every stage."""
    import gradaudit

    stages: dict[str, float] = {}
    began = time.perf_counter()

    def progress(finished: int, total: int) -> None:
        del total
        stages.setdefault("first_answer", peak_megabytes())
        if finished == victims:
            stages.setdefault("attacked", peak_megabytes())

    result = gradaudit.attack(
        dataset="mnist",
        method=f"cpl:iterations={iterations}",
        victims=victims,
        slots=slots,
        progress=progress,
    )
    stages["scored"] = peak_megabytes()
    return {
        "victims": len(result.scores),
        "seconds": time.perf_counter() - began,
        "peak_megabytes": stages,
    }


def peak_megabytes() -> float:
    """Returns the largest resident set so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(victims: int, iterations: int, slots: int) -> dict[str, Any]:
    """Returns what a fresh process reports."""
    command = [sys.executable, __file__, "--one", "--victims", str(victims)]
    command += ["--iterations", str(iterations), "--slots", str(slots)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    """Runs both sizes and compares them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--victims", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        report = attack(options.victims[0], options.iterations, options.slots)
        print(json.dumps(report))
        return
    # Compiling has a peak of its own: the cache is filled before anything counts.
    in_process(4 * options.slots, options.iterations, options.slots)
    reports = []
    for victims in options.victims:
        report = in_process(victims, options.iterations, options.slots)
        reports.append(report)
        stages = report["peak_megabytes"].items()
        said = ", ".join(f"{name} {value:.0f} MB" for name, value in stages)
        print(f"{victims:>6} victims: {said} ({report['seconds']:.0f} s)")
    peaks = [report["peak_megabytes"]["scored"] for report in reports]
    growth = peaks[-1] / peaks[0] - 1
    print(f"growth: {growth:.1%} (limit {LIMIT:.0%})")
    RESULTS.parent.mkdir(exist_ok=True)
    settings = {"iterations": options.iterations, "slots": options.slots}
    result = {**settings, "runs": reports, "growth": growth}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(growth > LIMIT)


if __name__ == "__main__":
    main()
