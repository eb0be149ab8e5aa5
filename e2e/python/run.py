"""Runs the black-box tests: every `test_*` function of every `test_*.py` beside this file.

    HOMING_BIN=... python run.py [--jobs N] [PATTERN ...]

A pattern is a test's name or its file's (`test_recordings*`), or both with a dot between them. One line
per test, then `N passed, N failed`. No test framework: a test is a function that raises. The tests of a file run one
after the other in a process of their own; `--jobs` is how many files run at once.
"""
import argparse
import faulthandler
import fnmatch
import importlib
import os
import re
import subprocess
import sys
import threading
import time
import traceback

import harness

# A test that hangs is cut off with every thread's stack, and ends its file's run: CI's time is short.
TEST_SECONDS = 180
HERE = os.path.dirname(os.path.abspath(__file__))


def collect():
    """Each test as (file, name, function), in the order of the files and within them."""
    sys.path.insert(0, HERE)
    for file in sorted(os.listdir(HERE)):
        if file.startswith("test_") and file.endswith(".py"):
            module = importlib.import_module(file[:-3])
            for name, value in list(vars(module).items()):
                if name.startswith("test_") and callable(value) and value.__module__ == module.__name__:
                    yield file[:-3], name, value


def wanted(file, name, patterns):
    return not patterns or any(fnmatch.fnmatch(each, p) for p in patterns
                               for each in (name, file, f"{file}.{name}"))


def run_here(tests):
    """Runs tests in this process -> how many passed and failed."""
    passed = failed = 0
    for file, name, test in tests:
        began = time.monotonic()
        faulthandler.dump_traceback_later(TEST_SECONDS, exit=True)
        try:
            test()
            passed += 1
            print(f"ok    {file}.{name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception as e:
            failed += 1
            print(f"FAIL  {file}.{name}: {type(e).__name__}: {e}", flush=True)
            for frame in traceback.extract_tb(e.__traceback__)[1:]:
                print(f"        {os.path.basename(frame.filename)}:{frame.lineno}: {frame.line}", flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
    return passed, failed


class Files:
    """Files handed out to `jobs` processes, one after the other; what they print comes out by whole tests."""

    def __init__(self, tests):
        self._waiting = {}
        for file, name, _ in tests:
            self._waiting.setdefault(file, []).append(f"{file}.{name}")
        self._lock = threading.Lock()
        self.passed = self.failed = 0

    def run(self, jobs):
        threads = [threading.Thread(target=self._serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.passed, self.failed

    def _serve(self):
        while True:
            with self._lock:
                if not self._waiting:
                    return
                file = next(iter(self._waiting))
                names = self._waiting.pop(file)
            self._file(file, names)

    def _file(self, file, names):
        command = [sys.executable, "-B", os.path.abspath(__file__), "--jobs", "1", *names]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        said, told = [], None
        for line in child.stdout:
            if told := re.fullmatch(r"(\d+) passed, (\d+) failed\n", line):
                break
            if line.startswith(("ok    ", "FAIL  ")):
                self._print(said)
                said = []
            said.append(line)
        child.communicate()
        self._print(said)
        with self._lock:
            if told:
                self.passed += int(told[1])
                self.failed += int(told[2])
            else:
                self.failed += 1
                print(f"FAIL  {file}: its run ended with {child.returncode} before its tests did", flush=True)

    def _print(self, lines):
        with self._lock:
            print("".join(lines), end="", flush=True)


def main():
    says = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    says.add_argument("--jobs", type=int, default=1, metavar="N", help="files at once (1)")
    says.add_argument("patterns", nargs="*", metavar="PATTERN")
    args = says.parse_args()
    if not os.access(harness.BIN, os.X_OK):
        print(f"no binary at {harness.BIN}; build it and set HOMING_BIN", file=sys.stderr)
        return 1
    tests = [test for test in collect() if wanted(*test[:2], args.patterns)]
    passed, failed = Files(tests).run(args.jobs) if args.jobs > 1 else run_here(tests)
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
