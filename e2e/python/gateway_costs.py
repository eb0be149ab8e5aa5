"""What a request costs the gateway where `../shared/bench/run.py` doesn't look: prompts never seen, the next turn of a long
conversation, and open streams. By the router's own CPU time and memory, so that a busy machine matters little.

    HOMING_BIN=target/release/homing python3 e2e/python/gateway_costs.py [--tokenizer FOLDER] [--requests N] [--streams N]
    ... --workers http://127.0.0.1:9001,http://127.0.0.1:9002

The first form asks one request at a time, of mock engines that publish what they hold. The second one asks 32 at a time, as
`run.py` does, of workers of `test-model` that are there already and answer at once (its `mockworker`), and leaves the streams
out; one mock engine beside them, which is drained then, tells the router the size of a block.

The figures of docs/benchmarks.md ("What run.py doesn't measure") are its.
"""
import argparse
import asyncio
import http.client
import json
import os
import random
import threading
from contextlib import ExitStack
from types import SimpleNamespace

from harness import MODEL, TOKENIZER, Mock, Serve, call, eventually
from recording_worker import RecordingWorker

ENGINES = 4
WORDS = [f"{a}{b}" for a in ("re", "con", "pro", "in", "ex", "sub", "de", "trans") for b in
         ("port", "form", "tract", "sist", "pose", "cede", "dict", "scribe", "struct", "vert")]


def text(length, seed):
    """Words that no other seed has in this order."""
    draw, out, size = random.Random(repr(seed)), [], 0
    while size < length:
        out.append(draw.choice(WORDS))
        size += len(out[-1]) + 1
    return " ".join(out)


def cpu_us(pid):
    """All CPU time that a process has had, user's and system's."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as f:
            total += int(f.read().split()[0])
    return total / 1e3


def resident_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


class Asks:
    """One kept connection to the gateway."""

    def __init__(self, router):
        self.router, self.connection = router, http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)

    def chat(self, messages, **headers):
        body = json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1})
        self.connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **headers})
        answer = self.connection.getresponse()
        read = answer.read()
        assert answer.status == 200, (answer.status, read[:300])

    def cost(self, requests):
        """Each of these lists of messages once, one after the other -> CPU us of the router a request."""
        requests = list(requests)
        before = cpu_us(self.router.proc.pid)
        for n, messages in enumerate(requests):
            self.chat(messages, **{"x-session-id": f"s{n % 64}"})
        return (cpu_us(self.router.proc.pid) - before) / len(requests)


class Many:
    """As many kept connections to the gateway as `run.py` has for long prompts, all at once."""

    CONNECTIONS = 32

    def __init__(self, router):
        self.router = router

    def cost(self, requests):
        """Each of these lists of messages once -> CPU us of the router a request."""
        bodies = [json.dumps({"model": MODEL, "messages": messages, "max_tokens": 1}).encode() for messages in requests]
        left = [(f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\nX-Session-Id: s{n % 64}\r\n"
                 f"Content-Length: {len(body)}\r\n\r\n").encode() + body for n, body in enumerate(bodies)]

        async def one(requests):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port)
            while requests:
                writer.write(requests.pop())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 "), head
                length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
                await reader.readexactly(int(length))
            writer.close()

        async def all_of_them():
            await asyncio.gather(*(one(left) for _ in range(self.CONNECTIONS)))

        before = cpu_us(self.router.proc.pid)
        asyncio.run(all_of_them())
        return (cpu_us(self.router.proc.pid) - before) / len(bodies)


def user(words):
    return [{"role": "user", "content": words}]


def prompts(asks, count, seed):
    """The costs of short prompts: never seen, and seen before."""
    asks.cost(user(text(1024, (seed, "warm", n))) for n in range(200))
    fresh = [user(text(1024, (seed, n))) for n in range(count)]
    return asks.cost(fresh), asks.cost(fresh)


def turns(asks, count):
    """The cost of a turn that adds 1 KB to a conversation of 64 KB, and of one that adds nothing new (its repetition)."""
    talks = [user(text(64 << 10, ("talk", n))) for n in range(count)]
    whole = asks.cost(talks)
    longer = [talk + [{"role": "assistant", "content": text(512, ("a", n))}] + user(text(512, ("u", n)))
              for n, talk in enumerate(talks)]
    return whole, asks.cost(longer), asks.cost(longer)


async def open_streams(port, count):
    """Opens so many streams, each up to its first event -> their writers."""
    body = json.dumps({"model": MODEL, "messages": user(text(900, "stream")), "stream": True, "max_tokens": 64}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: r\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        await reader.readuntil(b"\n\n")
        return writer

    writers = []
    for start in range(0, count, 50):
        writers += await asyncio.gather(*(one() for _ in range(min(50, count - start))))
    return writers


def streams(count):
    """KiB of memory for each open stream."""
    with Held() as worker, Serve([worker], extra='[index]\nsource = "off"\n') as router:
        pid = router.proc.pid

        async def measure():
            first = await open_streams(router.port, 20)
            before = resident_kib(pid)
            rest = await open_streams(router.port, count)
            after = resident_kib(pid)
            for writer in first + rest:
                writer.close()
            return (after - before) / count

        return asyncio.run(measure())


class Held(RecordingWorker):
    """An engine whose streams begin and don't end."""

    def __init__(self):
        self.gate = threading.Event()
        super().__init__(gate=self.gate)

    def __exit__(self, *failure):
        self.gate.set()
        return super().__exit__(*failure)


def main():
    says = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    says.add_argument("--tokenizer", default=TOKENIZER, help="a model's folder (Homing's own small one)")
    says.add_argument("--requests", type=int, default=1000)
    says.add_argument("--streams", type=int, default=1000)
    says.add_argument("--workers", help="URLs of workers that are there, with commas between them: many requests at a time")
    args = says.parse_args()
    there = [SimpleNamespace(url=url) for url in args.workers.split(",")] if args.workers else []
    kind, most = (Many, args.requests // 4) if there else (Asks, args.requests // 20)
    with ExitStack() as stack:
        engines = [stack.enter_context(Mock("--speedup", "1000", "--tokenizer", args.tokenizer, "--blocks", "65536"))
                   for _ in range(1 if there else ENGINES)]
        tokens = f'[[models]]\nname = "{MODEL}"\ntokenizer = "{args.tokenizer}"\n'
        source = '[index]\nsource = "events"\n' if there else ""
        exact = stack.enter_context(Serve(engines + there, extra=f'[routing]\npolicy = "kv"\n{source}{tokens}'))
        plain = stack.enter_context(Serve(there or engines, extra='[index]\nsource = "off"\n'))
        eventually(lambda: (Asks(engines[0]).chat(user("hello")), exact.workers()[0]["index"] == "events")[1], "exact tokens")
        for n in range(8):
            Asks(engines[0]).chat(user(text(4096, ("block", n))))
        eventually(lambda: exact.metric("homing_kv_events_total", kind="stored") > 0, "events")
        if there:
            name = exact.workers()[0]["id"]
            status, _, answer = call(exact.admin, "POST", f"/admin/workers/{name}/drain")
            assert status < 300, answer
        by_tokens, by_load = kind(exact), kind(plain)
        (unseen, seen), (routed, _) = prompts(by_tokens, args.requests, "e"), prompts(by_load, args.requests, "p")
        whole, turn, again = turns(by_tokens, max(8, most))
        long_plain, _, _ = turns(by_load, max(8, most))
    print("| CPU us a request | |\n|---|---|")
    for name, cost in (("1 KB, no tokens, no index", routed), ("1 KB, exact, never seen", unseen), ("1 KB, exact, seen before", seen),
                       ("64 KB, no tokens, no index", long_plain), ("64 KB, exact, never seen", whole),
                       ("64 KB known and 1 KB new", turn), ("the same again", again)):
        print(f"| {name} | {cost:,.0f} |")
    if not there:
        print(f"\n{streams(args.streams):.1f} KiB of memory for each of {args.streams} open streams")


if __name__ == "__main__":
    main()
