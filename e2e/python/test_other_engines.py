"""Engines that are not vLLM, as a router meets them: what they say of their events, and that it is taken in.

SGLang says in /server_info where it publishes; TensorRT-LLM publishes nothing and answers whoever asks it
(`POST /kv_cache_events`), once; a vLLM whose endpoint names one address connects to it. All are played here by
scripts, per docs/kv-cache.md.
"""
import json
import socket
import threading
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

import msgspec
import zmq
from harness import MODEL, Serve, eventually, run, tokenized
from scripted_worker import ScriptedWorker, send

BLOCK = 32
# What a request asks for: a prompt of token ids, three whole blocks of it and a bit.
IDS = list(range(1000, 1000 + 3 * BLOCK + 5))


def blocks(ids=IDS):
    """The token ids of each whole block."""
    return [ids[at:at + BLOCK] for at in range(0, len(ids) // BLOCK * BLOCK, BLOCK)]


def predicted(router, ids=IDS):
    """How many tokens of such a prompt the router takes for cached; -1 where it says nothing."""
    status, headers, body = router.post("/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 1})
    assert status == 200, (status, body[:300])
    return int(headers.get("x-homing-cached-tokens", -1))


class Sglang(ScriptedWorker):
    """Publishes arrays, as SGLang up to 0.5.19 does; its names of blocks are signed."""

    def __init__(self):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.port_of_events = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.seq = 0
        super().__init__()

    def _probe(self, wfile, path):
        if path != "/server_info":
            return super()._probe(wfile, path)
        send(wfile, 200, json.dumps({
            "model_path": "/m", "page_size": BLOCK, "dp_size": 1, "version": "0.5.20",
            "kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": self.port_of_events,
                          "topic": "", "block_size": BLOCK, "dp_size": 1}}).encode())

    def publish(self, *events):
        payload = msgspec.msgpack.encode([1.7e9, list(events), 0])
        self.socket.send_multipart([b"", self.seq.to_bytes(8, "big"), payload])
        self.seq += 1

    def stop(self):
        super().stop()
        self.context.destroy(linger=0)


class Connecting(ScriptedWorker):
    """A vLLM that connects its publisher to the router, at a port that is free now."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("0.0.0.0", 0))
            self.port_of_events = free.getsockname()[1]
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.XPUB)
        self.socket.connect(f"tcp://127.0.0.1:{self.port_of_events}")
        super().__init__(settings=f'kv_events = "tcp://*:{self.port_of_events}"')

    def stop(self):
        super().stop()
        self.context.destroy(linger=0)


class TensorRtLlm(ScriptedWorker):
    """Numbers what it tells, and tells it once."""

    def __init__(self):
        self.told, self.next, self.lock = [], 0, threading.Lock()
        super().__init__()

    def _probe(self, wfile, path):
        if path == "/kv_cache_events":
            send(wfile, 405, b'{"detail":"Method Not Allowed"}', {"allow": "POST"})
        elif path == "/metrics":
            send(wfile, 200, b"[]")
        else:
            super()._probe(wfile, path)

    def _is_no_completion(self, wfile, path):
        if path == "/kv_cache_events":
            send(wfile, 200, json.dumps(self.take()).encode())
        return path == "/kv_cache_events"

    def tells(self, data, lost=0):
        with self.lock:
            self.told.append({"event_id": self.next + lost, "window_size": 4096, "data": data})
            self.next += 1 + lost

    def take(self):
        with self.lock:
            told, self.told = self.told, []
            return told


def stored(first, hashes, ids):
    """TensorRT-LLM's event of blocks that begin a sequence (or follow `first`)."""
    def block(name, tokens):
        return {"type": "stored_block", "block_hash": name, "cache_level": 0, "priority": 35,
                "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in tokens]}
    return {"type": "stored", "parent_hash": first, "blocks": [block(*b) for b in zip(hashes, ids)]}


@contextmanager
def routed(engine):
    with engine, Serve([engine], extra=tokenized()) as router:
        yield router


def test_sglang_is_known_by_what_its_server_info_says():
    engine = Sglang()
    with routed(engine) as router:
        assert engine.socket.poll(30_000), "nobody subscribes"
        assert engine.socket.recv() == b"\x01"
        names = [-5, 7, -9]
        engine.publish(["BlockStored", names, None, [t for b in blocks() for t in b], BLOCK, None])
        eventually(lambda: router.workers()[0]["cached_blocks"] == 3, "three blocks known")
        assert router.workers()[0]["index"] == "events", router.workers()
        assert predicted(router) == 3 * BLOCK
        engine.publish(["BlockRemoved", [-9]])
        eventually(lambda: predicted(router) == 2 * BLOCK, "the last one is gone")


def test_an_engine_that_connects_finds_the_router_listening():
    engine = Connecting()
    with routed(engine) as router:
        assert engine.socket.poll(30_000), "nobody subscribes"
        assert engine.socket.recv() == b"\x01"
        event = {"type": "BlockStored", "block_hashes": [1, 2, 3], "parent_block_hash": None,
                 "token_ids": [t for b in blocks() for t in b], "block_size": BLOCK, "lora_id": None,
                 "medium": "GPU", "lora_name": None}
        engine.socket.send_multipart([b"kv-events", bytes(8), msgspec.msgpack.encode([1.7e9, [event], 0])])
        eventually(lambda: router.workers()[0]["cached_blocks"] == 3, "three blocks known")
        assert router.workers()[0]["index"] == "events", router.workers()
        assert predicted(router) == 3 * BLOCK


def test_two_workers_on_one_port_that_is_listened_to_are_refused():
    with Connecting() as engine:
        url, port = engine.url, engine.port_of_events
        with NamedTemporaryFile("w", suffix=".toml") as config:
            for at in (f"tcp://*:{port}", f"tcp://0.0.0.0:{port}"):
                config.write(f'[[workers]]\nid = "{at}"\nurl = "{url}/{len(at)}"\nkv_events = "{at}"\n')
            config.flush()
            code, _, said = run("check", "--config", config.name)
        assert code == 2 and "listens on a port of `workers[0]`; give each worker ports" in said, said


def test_tensorrt_llm_is_asked_for_its_events():
    engine = TensorRtLlm()
    engine.tells({"type": "created", "num_blocks_per_cache_level": [100, 0]})
    with routed(engine) as router:
        eventually(lambda: router.workers()[0]["index"] == "events", "it has told something")
        # three whole blocks and a partial one, with names beyond 63 bits
        names = [2**64 - 1, 5, -7, 11]
        engine.tells(stored(None, names, blocks() + [IDS[-5:]]))
        eventually(lambda: router.workers()[0]["cached_blocks"] == 3, "three blocks known")
        assert predicted(router) == 3 * BLOCK
        # the partial one was never there; the third is gone
        engine.tells({"type": "removed", "block_hashes": [11, -7]})
        eventually(lambda: router.workers()[0]["cached_blocks"] == 2, "two are left")
        assert predicted(router) == 2 * BLOCK
        assert router.metric("homing_kv_events_total", kind="stored") == 1
        assert router.metric("homing_kv_events_total", kind="malformed") == 0


def test_a_hole_in_tensorrt_llms_numbers_is_a_loss():
    engine = TensorRtLlm()
    engine.tells(stored(None, [1, 2, 3], blocks()))
    with routed(engine) as router:
        eventually(lambda: router.workers()[0]["cached_blocks"] == 3, "three blocks known")
        engine.tells({"type": "removed", "block_hashes": [3]}, lost=4)
        eventually(lambda: router.metric("homing_kv_event_gaps_lost_total") == 1, "the hole is seen")
        assert router.workers()[0]["index"] == "uncertain", router.workers()
        assert router.workers()[0]["cached_blocks"] == 0 and predicted(router) <= 0
        # it has told as much again
        engine.tells(stored(None, [1, 2, 3], blocks()))
        eventually(lambda: router.workers()[0]["index"] == "events", "certain again")
        assert predicted(router) == 3 * BLOCK
