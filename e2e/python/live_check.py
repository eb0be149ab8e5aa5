"""Holds a replay against the world: agent sessions through `homing serve` and `homing mock`, in real time and recorded by
`gateway.record`; then the recording through `homing replay`, in virtual time. Both should come to the same.

    HOMING_BIN=target/release/homing python3 e2e/python/live_check.py [--policy latency] [--seconds 60]

No test, since it measures time: it prints what it found, and ends with 1 where the two are farther than 15 % apart.
`docs/routing-quality.md` has what came of it. It wants a machine with nothing else to do.
"""
import argparse
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time

from harness import MODEL, Mock, Serve, eventually, run, tokenized

WORDS = "pigeon home loft wing map sun north wind field river stone tower night light road hill".split()


def prose(dice, words):
    return " ".join(dice.choice(WORDS) + str(dice.randint(0, 999)) for _ in range(words))


class Session(threading.Thread):
    """A closed loop: a turn, a thought, the next turn with all that was said before."""

    def __init__(self, port, number, openers, start, until):
        super().__init__(daemon=True)
        self.port, self.number, self.start_at, self.until = port, number, start, until
        self.dice = random.Random(number)
        self.talk = [{"role": "system", "content": openers[number % len(openers)]}]
        self.seen = []

    def run(self):
        time.sleep(max(0.0, self.start_at - time.monotonic()))
        while time.monotonic() < self.until:
            self.talk.append({"role": "user", "content": prose(self.dice, self.dice.randint(50, 500))})
            answer = self.turn()
            self.talk.append({"role": "assistant", "content": answer})
            time.sleep(self.dice.expovariate(1 / 2.5))

    def turn(self):
        body = {"model": MODEL, "messages": self.talk, "max_tokens": self.dice.randint(20, 120), "stream": True,
                "stream_options": {"include_usage": True}}
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        began, first, text, usage = time.monotonic(), None, [], None
        conn.request("POST", "/v1/chat/completions", json.dumps(body),
                     {"content-type": "application/json", "x-homing-session-id": f"s-{self.number}"})
        answer = conn.getresponse()
        assert answer.status == 200, (answer.status, answer.read()[:300])
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            first = first or time.monotonic()
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            text += [c["delta"].get("content") or "" for c in event["choices"]]
        conn.close()
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        self.seen.append((first - began, usage["prompt_tokens"], cached))
        return "".join(text)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--policy", default="latency")
    args.add_argument("--affinity", default="hard", choices=["hard", "soft"])
    args.add_argument("--seconds", type=float, default=60)
    args.add_argument("--workers", type=int, default=4)
    args.add_argument("--sessions", type=int, default=24)
    args.add_argument("--blocks", type=int, default=6000)
    args = args.parse_args()
    mocks = [Mock("--blocks", str(args.blocks)) for _ in range(args.workers)]
    with tempfile.TemporaryDirectory(prefix="homing-live-") as folder:
        trace = os.path.join(folder, "trace.jsonl")
        extra = tokenized() + f'[routing]\npolicy = "{args.policy}"\n[affinity]\nmode = "{args.affinity}"\n'
        with Serve(mocks, extra=extra, gateway=f'record = "{trace}"\n') as router:
            # Whoever comes before the first events can't be told in blocks.
            router.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": prose(random.Random(0), 100)}], "max_tokens": 1})
            eventually(lambda: any(w["cached_blocks"] for w in router.workers()), "blocks are known")
            openers = [prose(random.Random(-1 - i), 1000) for i in range(4)]
            now, dice = time.monotonic(), random.Random(9)
            starts = sorted(dice.uniform(0, args.seconds / 2) for _ in range(args.sessions))
            sessions = [Session(router.port, i, openers, now + at, now + args.seconds) for i, at in enumerate(starts)]
            for session in sessions:
                session.start()
            for session in sessions:
                session.join()
            router.terminate()
            router.wait()
        for mock in mocks:
            mock.close()
        seen = [one for session in sessions for one in session.seen]
        live = {"hit_rate": sum(s[2] for s in seen) / sum(s[1] for s in seen),
                "ttft_ms": 1e3 * sum(s[0] for s in seen) / len(seen)}
        code, out, err = run("replay", "--json", "--trace", trace, "--workers", str(args.workers), "--blocks",
                             str(args.blocks), "--block-size", "16", "--policy", args.policy, "--affinity", args.affinity,
                             timeout=300)
        assert code == 0, err
        row = json.loads(out)["policies"][args.policy]
        replayed = {"hit_rate": row["hit_rate"], "ttft_ms": row["ttft_ms"]["mean"]}
    apart = {key: replayed[key] / live[key] - 1 for key in live}
    print(json.dumps({"requests": len(seen), "prompt_tokens": sum(s[1] for s in seen), "live": live, "replay": replayed,
                      "apart": apart}))
    sys.exit(any(abs(part) > 0.15 for part in apart.values()))


if __name__ == "__main__":
    main()
