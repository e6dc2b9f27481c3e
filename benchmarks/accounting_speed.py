"""How long accounting takes: the whole library call, every method, nothing cached.

Run: python benchmarks/accounting_speed.py
"""

import json
import subprocess
import sys
import time

CASES = {
    "constant sigma, 10,000 steps": "6.0",
    "10,000 different sigmas": "15.757 * np.exp(-1.662e-4 * np.arange(10_000))",
}
LIMITS = {"constant sigma, 10,000 steps": 3.0, "10,000 different sigmas": 15.0}

_CALL = """
import time
start = time.perf_counter()
import numpy as np
from gradaudit.privacy import account, gaussian
answer = account(gaussian({sigma}, 0.01, 10_000), 1e-5)
seconds = time.perf_counter() - start
import json
methods = {{name: spent.epsilon for name, spent in answer.methods.items()}}
cpu = time.process_time()
print(json.dumps({{"seconds": seconds, "cpu": cpu, "methods": methods}}))
"""


def measure(sigma: str) -> dict[str, object]:
    # A fresh interpreter, so that imports count and no cache is warm.
    code = _CALL.format(sigma=sigma)
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    result: dict[str, object] = json.loads(done.stdout)
    return result


def main() -> None:
    start = time.perf_counter()
    slow = False
    for name, sigma in CASES.items():
        result = measure(sigma)
        slow |= float(str(result["seconds"])) > LIMITS[name]
        print(
            f"{name}: {result['seconds']:.2f} s (limit {LIMITS[name]:g} s), "
            f"{result['cpu']:.2f} s of processor time"
        )
        print(f"  {result['methods']}")
    print(f"total {time.perf_counter() - start:.1f} s")
    sys.exit(slow)


if __name__ == "__main__":
    main()
