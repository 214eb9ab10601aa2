"""The work of a verification as a program: what FELTD_JOB runs, for workers that run programs.

Input `{"sleep_ms": n, "fail"?: "transient"|"permanent", "say"?: text, "apart"?: network namespace
it must not run in}`; the output is the input.
It needs nothing of feltd, and ends with the verification: when the file it is given the path of is
gone, or the process that started it.
"""

import json
import os
import sys
import time


def main() -> int:
    """Sleep, then fail or complete as the input says."""
    parent, under_way = os.getppid(), sys.argv[1]
    given = json.load(sys.stdin)
    if "apart" in given and os.readlink("/proc/self/ns/net") == given["apart"]:
        sys.stderr.write("it has the network of the machine")
        return 1
    ends_s = time.monotonic() + given["sleep_ms"] / 1000
    while time.monotonic() < ends_s:
        time.sleep(min(0.2, max(0.0, ends_s - time.monotonic())))
        if os.getppid() != parent or not os.path.exists(under_way):
            return 1
    if "fail" in given:
        sys.stderr.write(given.get("say", given["fail"]))
        return 75 if given["fail"] == "transient" else 1
    json.dump(given, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
