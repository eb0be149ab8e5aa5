"""What sharing costs, over real servers: starts a nats-server and an etcd of its own on free ports, and runs
`homing bench --only replication` over both.

    HOMING_BIN=target/release/homing python3 e2e/python/replication_check.py [--quick] [--json]

No test: its figures are written down in docs/benchmarks.md and docs/scaling.md. Filling etcd with a million bindings takes
minutes.
"""
import subprocess
import sys

from etcd_server import Etcd
from harness import BIN
from nats_server import Nats


def version(*command):
    """The first line of what a server says of itself."""
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]


def main():
    print(version("nats-server", "--version"), "/", version("etcd", "--version"), file=sys.stderr)
    with Nats() as nats, Etcd() as etcd:
        return subprocess.run([BIN, "bench", "--only", "replication", "--nats", nats.url, "--etcd", etcd.url,
                               *sys.argv[1:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
