"""A router in bad company: engines that are killed, stopped, replaced and flap, clients that vanish at random bytes.

    HOMING_BIN=... python chaos.py [--minutes 60] [--seed 7]     (or: cargo xtask soak)

What is asked afterwards is what a long life asks: is every gauge at 0, is memory where it was after the warm-up, are
all descriptors back, has nobody got an answer that looks whole and isn't. Who does what is drawn from the seed, which
is printed first; when it happens is up to the machine.
"""
import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import struct
import sys
import time

from harness import MODEL, Serve, Server, answers, call, eventually, metric, tokenized

ENGINES, CLIENTS = 4, 24
# Settings under which everything happens within seconds: time-outs, Down and back, waiting, expiry of sessions.
SETTINGS = """
[health]
interval = "200ms"
timeout = "500ms"
failures = 2
[upstream]
connect_timeout = "500ms"
first_token_timeout = "3s"
idle_timeout = "3s"
[queue]
max_requests = 64
max_wait = "2s"
busy_active_requests = 4
[affinity]
ttl = "5s"
[log]
access = false
"""
# What a request may come to; anything else is a finding.
STATUSES = {200, 429, 499, 502, 503, 504}
# Memory: how much more than after the warm-up is no leak but tables and caches that fill up to their bounds.
FLAT_FACTOR, FLAT_BYTES = 1.10, 16 << 20
# Descriptors: probes and feeds come and go by themselves.
FLAT_FDS = 4
LINGER_NOT = struct.pack("ii", 1, 0)


class Engine(Server):
    """One `homing mock` at a port of its own, which its successors take over; `url` is a worker's."""

    def __init__(self, port, life=0):
        self.port, self.life = port, life
        self.url = f"http://127.0.0.1:{port}"
        # Another life has other names for its blocks. Slow enough that requests meet what happens.
        super().__init__("mock", "--listen", f"127.0.0.1:{port}", "--model", MODEL, "--speedup", "4",
                         "--seed", str(life))

    def successor(self):
        self.close()
        return Engine(self.port, self.life + 1)

    def check_alive(self):
        assert self.proc.poll() is None, f"{self.url} ended with {self.proc.returncode}: {self.log()}"

    def requests(self):
        """What it runs and lets wait, by its own word."""
        page = call(self.port, "GET", "/metrics")[2].decode()
        return sum(metric(page, f"vllm:num_requests_{state}") for state in ("running", "waiting"))


class Trouble:
    """What happens to the engines: drawn from the seed, one thing at a time for each, several engines at once."""

    def __init__(self, seed, engines, admin):
        self.engines, self.admin, self.count, self.until = engines, admin, {}, 0
        self._dice = [random.Random(f"{seed}/engine/{i}") for i in range(len(engines))]

    async def run(self, i, until):
        """The troubles of one engine, until it is time to be well."""
        dice, self.until = self._dice[i], until
        while time.monotonic() < until:
            await self._pause(dice.uniform(0.2, 4))
            kind = dice.choice([self.kill, self.stop, self.flap, self.end, self.replace, self.drain])
            self.count[kind.__name__] = self.count.get(kind.__name__, 0) + 1
            await kind(i, dice)

    async def kill(self, i, dice):
        """Gone for a while."""
        self.engines[i].proc.kill()
        await self._pause(dice.uniform(0, 3))
        await self._again(i)

    async def replace(self, i, _):
        """Another life at the same address, before anybody has looked."""
        self.engines[i].proc.kill()
        await self._again(i)

    async def end(self, i, dice):
        """Asked to stop, as in an update: what runs may finish, or not."""
        self.engines[i].terminate()
        await self._pause(dice.uniform(0, 1))
        self.engines[i].proc.kill()
        await self._again(i)

    async def flap(self, i, dice):
        for _ in range(dice.randint(2, 5)):
            await self.kill(i, random.Random(dice.random()))

    async def stop(self, i, dice):
        """Its port takes connections and nothing comes back; then it goes on as if nothing had been."""
        self.engines[i].proc.send_signal(signal.SIGSTOP)
        await self._pause(dice.choice([0.1, 0.7, 2, 5]) * dice.uniform(0.5, 1))
        self.engines[i].proc.send_signal(signal.SIGCONT)

    async def drain(self, i, dice):
        for verb in ("drain?move_sessions=true", "undrain"):
            await asyncio.to_thread(call, self.admin, "POST", f"/admin/workers/w{i}/{verb}")
            await self._pause(dice.uniform(0, 2))

    async def _pause(self, seconds):
        """Not beyond the time to be well."""
        await asyncio.sleep(min(seconds, max(0, self.until - time.monotonic())))

    async def _again(self, i):
        # In this thread: a process dies with the thread that has started it (harness._die_with_parent).
        self.engines[i] = self.engines[i].successor()


class Clients:
    """Requests of every kind, many of which are left in their middle. `seen` counts what came of them."""

    PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")

    def __init__(self, seed, port):
        self.seed, self.port, self.seen, self.wrong = seed, port, {}, []

    async def run(self, i, until):
        """The life of one client."""
        dice = random.Random(f"{self.seed}/client/{i}")
        while time.monotonic() < until:
            try:
                outcome = await asyncio.wait_for(self._connection(dice, until), 60)
            except asyncio.TimeoutError:
                outcome = "hung"
                self.wrong.append("a request took more than a minute, with request_timeout at 20 s")
            except (OSError, asyncio.IncompleteReadError) as e:
                # The router never refuses a connection, nor leaves one without an answer.
                outcome = type(e).__name__
                self.wrong.append(f"{outcome}: {e}")
            self.seen[outcome] = self.seen.get(outcome, 0) + 1

    async def _connection(self, dice, until):
        """Some requests on one connection -> what became of the last one."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        try:
            outcome = "none"
            while outcome in ("none", "200") and time.monotonic() < until:
                outcome = await self._one(dice, reader, writer)
                self.seen[outcome] = self.seen.get(outcome, 0) + (dice.random() < 0.7 and outcome == "200")
                if dice.random() < 0.5:
                    break
            return outcome
        finally:
            writer.transport.abort()

    async def _one(self, dice, reader, writer):
        path, streams = dice.choice(self.PATHS), dice.random() < 0.7
        request = self._request(dice, path, streams)
        fate = dice.choice(["whole"] * 6 + ["sending", "reading", "reading", "slow"])
        if fate == "sending":
            writer.write(request[:dice.randrange(len(request))])
            await writer.drain()
            await asyncio.sleep(dice.choice([0, 0.05]))
            return vanish(dice, writer)
        writer.write(request)
        await writer.drain()
        if fate == "reading":
            # By bytes, or by time: in the queue, in the prefill.
            wanted, patience = dice.choice([0, 1, 200, 500, 2_000, 9_000]), dice.choice([0.05, 0.3, 1, 3])
            try:
                await asyncio.wait_for(reader.readexactly(wanted), patience)
            except (asyncio.TimeoutError, asyncio.IncompleteReadError):
                pass
            return vanish(dice, writer)
        status, body, whole = await read_answer(reader, 0.002 if fate == "slow" else 0)
        if status not in STATUSES:
            self.wrong.append(f"{path}: {status} {body[:300]}")
        elif not ends_well(path, streams, status, body, whole):
            self.wrong.append(f"{path}: {status}, whole: {whole}, but {body[-300:]}")
        return str(status) if whole else "cut"

    def _request(self, dice, path, streams):
        # Few conversations, so that they meet in caches and sessions; of any length.
        topic = dice.randrange(40)
        text = f"Topic {topic}. " + "some words of it, " * (topic * topic)
        body = {"model": MODEL, "stream": streams and not path.endswith("count_tokens"),
                "max_tokens": dice.choice([1, 16, 120])}
        if path == "/v1/completions":
            body["prompt"] = text
        elif path == "/v1/responses":
            body |= {"input": text, "max_output_tokens": body.pop("max_tokens")}
        else:
            body["messages"] = [{"role": "user", "content": text}]
        data = json.dumps(body).encode()
        session = f"X-Homing-Session-Id: s-{topic}\r\n" if dice.random() < 0.6 else ""
        mode = "X-Homing-Affinity: soft\r\n" if dice.random() < 0.2 else ""
        head = (f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n{session}{mode}"
                f"Content-Length: {len(data)}\r\n\r\n")
        return head.encode() + data


def free_ports(count):
    """Ports below those that the system gives to outgoing connections: one of these could take an engine's while it is
    dead, or even connect to itself there."""
    found = set()
    while len(found) < count:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", random.randrange(12_000, 32_000)))
                found.add(s.getsockname()[1])
            except OSError:
                pass
    return sorted(found)


def vanish(dice, writer):
    """Polite or not. The connection is cut by whoever asked for the request."""
    if dice.random() < 0.5:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
    return "left"


async def read_answer(reader, pause):
    """-> (status, body, whether it came to the end of its framing)."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, lower = int(head[9:12]), head.lower()
    body = bytearray()
    try:
        if b"transfer-encoding: chunked" in lower:
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
                await asyncio.sleep(pause)
            await reader.readexactly(2)
        else:
            length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
            while len(body) < length:
                data = await reader.read(min(length - len(body), 4096))
                if not data:
                    raise EOFError
                body += data
                await asyncio.sleep(pause)
        return status, bytes(body), True
    except (EOFError, ValueError, ConnectionError):
        # IncompleteReadError is an EOFError; a chunk's size that is none is the end of the connection.
        return status, bytes(body), False


LAST = {"/v1/chat/completions": b"data: [DONE]\n\n", "/v1/completions": b"data: [DONE]\n\n",
        "/v1/responses": b'"type":"response.', "/v1/messages": b"message_stop"}


def ends_well(path, streams, status, body, whole):
    """Whether an answer is whole, or says that it isn't."""
    if status != 200:
        return whole and b'"error"' in body
    if not whole:
        # Of a stream an error event is the last word. One whose length was told is only cut.
        return not streams or b'"error"' in body[body.rindex(b"data: "):] if body else True
    if streams and path in LAST:
        return LAST[path] in body[body.rindex(b"data: "):]
    json.loads(body)
    return True


class Samples:
    """What the router's process takes, every second."""

    def __init__(self, pid):
        self.pid, self.rss, self.fds = pid, [], []

    def now(self):
        with open(f"/proc/{self.pid}/statm") as f:
            rss = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return rss, len(os.listdir(f"/proc/{self.pid}/fd"))

    async def run(self, until, report):
        while time.monotonic() < until:
            rss, fds = self.now()
            self.rss.append(rss)
            self.fds.append(fds)
            report(rss, fds)
            await asyncio.sleep(1)

    def check_flat(self):
        """The last quarter against the second: the first is the warm-up."""
        quarter = len(self.rss) // 4
        before = statistics.median(self.rss[quarter:2 * quarter])
        after = statistics.median(self.rss[-quarter:])
        assert after <= before * FLAT_FACTOR + FLAT_BYTES, f"{before / 2**20:.1f} MiB became {after / 2**20:.1f}"
        return before, after


def settled(router, samples):
    """The descriptors of a router that knows all of its engines' feeds and has nothing to do."""
    eventually(lambda: all(w["index"] == "events" for w in router.workers()), "every feed is there")
    seen = [samples.now()[1]]

    def still():
        seen.append(samples.now()[1])
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    eventually(still, "the number of descriptors stands still")
    return seen[-1]


def check_quiet(router, engines):
    """Everything is at 0: by the router's gauges, and by the engines' own word."""
    for engine in engines:
        eventually(lambda e=engine: answers(e.port, "/health"), f"{engine.url} is back: {engine.log()}")
    router.wait_ready(len(engines))

    def at_rest():
        page = call(router.admin, "GET", "/metrics")[2].decode()
        return all(metric(page, name) == 0 for name in (
            "homing_worker_active_requests", "homing_affinity_leases", "homing_queue_depth", "homing_affinity_waiters"))

    eventually(at_rest, "every gauge at 0")
    for engine in engines:
        engine.check_alive()
        eventually(lambda e=engine: e.requests() == 0, f"{engine.url} runs nothing")
    # Sessions expire, so those of the run do too.
    eventually(lambda: router.metric("homing_affinity_bindings") == 0, "every session has expired")


async def disturb(seconds, trouble, clients, samples, report):
    """All of it at once, for so long."""
    until = time.monotonic() + seconds
    await asyncio.gather(samples.run(until, report), *(trouble.run(i, until) for i in range(ENGINES)),
                         *(clients.run(i, until) for i in range(CLIENTS)))


def run(seconds, seed, every=None):
    """One run; raises what is wrong. `every` so many seconds a line says how it goes."""
    print(f"chaos: seed {seed}, {seconds:.0f} s", flush=True)
    engines = [Engine(port) for port in free_ports(ENGINES)]
    try:
        for engine in engines:
            eventually(lambda e=engine: answers(e.port, "/health"), engine.url)
        extra = SETTINGS + tokenized()
        with Serve(engines, extra=extra, gateway='request_timeout = "20s"\nmax_body = "1MiB"\n') as router:
            clients, samples = Clients(seed, router.port), Samples(router.proc.pid)
            trouble = Trouble(seed, engines, router.admin)
            fds_before = settled(router, samples)
            began = last = time.monotonic()

            def report(rss, fds):
                nonlocal last
                assert router.proc.poll() is None, router.log()
                if every and time.monotonic() - last >= every:
                    last = time.monotonic()
                    print(f"{last - began:7.0f} s: {rss / 2**20:.1f} MiB, {fds} fds, {clients.seen}, {trouble.count}, "
                          f"{len(clients.wrong)} wrong", flush=True)

            asyncio.run(disturb(seconds, trouble, clients, samples, report))
            check_quiet(router, engines)
            try:
                eventually(lambda: samples.now()[1] <= fds_before + FLAT_FDS, "the descriptors are back")
            except AssertionError as e:
                raise AssertionError(f"{e}: {fds_before} before, {samples.now()[1]} now") from None
            before, after = samples.check_flat()
            print(f"chaos: {clients.seen}; {trouble.count}; {before / 2**20:.1f} -> {after / 2**20:.1f} MiB; "
                  f"{fds_before} -> {samples.now()[1]} descriptors, {max(samples.fds)} at most", flush=True)
            assert not clients.wrong, (len(clients.wrong), clients.wrong[:5])
            assert clients.seen.get("200", 0) > 0, clients.seen
            assert "panicked" not in router.stderr(), router.log()
    finally:
        for engine in engines:
            engine.proc.send_signal(signal.SIGCONT)
            engine.close()


def main():
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--minutes", type=float, default=60)
    flags.add_argument("--seed", type=int, default=None, help="repeats what a run drew; else a new one")
    given = flags.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    run(given.minutes * 60, seed, every=60)


if __name__ == "__main__":
    sys.exit(main())
