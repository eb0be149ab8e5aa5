"""Runs the black-box tests: every `test_*` function of every `test_*.py` beside this file.

    HOMING_BIN=... python run.py [PATTERN ...]

A pattern is a test's name or its file's (`test_recordings*`), or both with a dot between them. One line
per test, then `N passed, N failed`. No test framework: a test is a function that raises.
"""
import faulthandler
import fnmatch
import importlib
import os
import sys
import time
import traceback

import harness

# A test that hangs is cut off with every thread's stack, and ends the run: CI's time is short.
TEST_SECONDS = 180


def collect():
    """Each test as (file, name, function), in the order of the files and within them."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    for file in sorted(os.listdir(here)):
        if file.startswith("test_") and file.endswith(".py"):
            module = importlib.import_module(file[:-3])
            for name, value in list(vars(module).items()):
                if name.startswith("test_") and callable(value) and value.__module__ == module.__name__:
                    yield file[:-3], name, value


def wanted(file, name, patterns):
    return not patterns or any(fnmatch.fnmatch(each, p) for p in patterns
                               for each in (name, file, f"{file}.{name}"))


def main(patterns):
    if not os.access(harness.BIN, os.X_OK):
        print(f"no binary at {harness.BIN}; build it and set HOMING_BIN", file=sys.stderr)
        return 1
    passed = failed = 0
    for file, name, test in collect():
        if not wanted(file, name, patterns):
            continue
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
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
