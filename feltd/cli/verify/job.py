"""The work of a verification as a program: what FELTD_JOB runs, for workers that run programs.

Input `{"sleep_ms": n, "fail"?: "transient"|"permanent", "say"?: text}`; the output is the input.
It needs nothing of feltd, and ends when the process that started it is gone.
"""

import json
import os
import sys
import time


def main() -> int:
    """Sleep, then fail or complete as the input says."""
    parent = os.getppid()
    given = json.load(sys.stdin)
    ends_s = time.monotonic() + given["sleep_ms"] / 1000
    while time.monotonic() < ends_s:
        time.sleep(min(0.2, max(0.0, ends_s - time.monotonic())))
        if os.getppid() != parent:
            return 1
    if "fail" in given:
        sys.stderr.write(given.get("say", given["fail"]))
        return 75 if given["fail"] == "transient" else 1
    json.dump(given, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
