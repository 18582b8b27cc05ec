"""Takes samples of another process as Python 3.15's `profiling.sampling` does, and prints which stacks it saw and how long one took.

    python3.15 remote_unwinder.py PID SAMPLES [--blocking]

Prints {"failed", "seconds", "stacks": [[count, [[function, line], ...]], ...]}, the innermost frame first: `seconds` are
those of taking the samples alone. Has to run in the version of Python that it samples.
"""
import collections
import json
import sys
import time

from profiling.sampling.sample import SampleProfiler


def main():
    pid, samples = map(int, sys.argv[1:3])
    profiler = SampleProfiler(pid, 1, all_threads=True, gc=False, blocking="--blocking" in sys.argv)
    seen, failed, seconds = collections.Counter(), 0, 0.0
    for _ in range(samples):
        began = time.perf_counter()
        try:
            interpreters = profiler._get_stack_trace()
        except (RuntimeError, OSError, UnicodeDecodeError, MemoryError):
            interpreters = []
            failed += 1
        seconds += time.perf_counter() - began
        for interpreter in interpreters:
            for thread in interpreter.threads:
                if thread.frame_info:
                    # A frame is (file, (line, ...) or None, function, ...).
                    seen[tuple((frame[2], frame[1][0] if frame[1] else 0) for frame in thread.frame_info)] += 1
    print(json.dumps({"failed": failed, "seconds": seconds, "stacks": [[count, stack] for stack, count in seen.items()]}))


if __name__ == "__main__":
    main()
