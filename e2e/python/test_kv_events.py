"""The mock's KV events, read as another consumer of vLLM's would: pyzmq and msgspec, structs written here.

The structs follow vLLM >= 0.30: an array batch of maps, the field `type` telling the event. The golden
(testdata/kv-events/publisher-golden) was published by vLLM's own code; what the mock publishes must have
the same keys, types and omissions.
"""
import json
import os
import socket
import threading
from contextlib import contextmanager
from typing import Any, Optional, Union

import msgspec
import zmq
from harness import MODEL, TESTDATA, Mock, Serve, call, eventually, tokenized


class KVCacheEvent(msgspec.Struct, tag_field="type", omit_defaults=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[list[Optional[list[Any]]]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None
    session_id: Optional[str] = None


class BlockRemoved(KVCacheEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: Optional[str]
    group_idx: Optional[int] = None
    locality: Optional[str] = None
    ownership: Optional[str] = None


class AllBlocksCleared(KVCacheEvent, tag="AllBlocksCleared"):
    pass


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


DECODER = msgspec.msgpack.Decoder(EventBatch)

# The keys that an event has in the golden, whatever it tells; the others may be left out.
GOLDEN = os.path.join(TESTDATA, "kv-events/publisher-golden/vllm-0.30.0-int-dp0.json")


def golden():
    with open(GOLDEN) as f:
        return json.load(f)


def shapes(decoded_batches):
    """Of each kind of event: the keys that it always has, and the types seen at each key."""
    always, types = {}, {}
    for batch in decoded_batches:
        for event in batch[1]:
            kind = event["type"]
            always[kind] = always.get(kind, set(event)) & set(event)
            for key, value in event.items():
                types.setdefault((kind, key), set()).add(type(value))
    return always, types


class Listener:
    """A subscriber that keeps each message's frames."""

    def __init__(self, source):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, source["topic"])
        self.socket.connect(source["endpoint"])
        # a publisher drops what it publishes before its subscriber is known; so wait until it is
        assert monitor.poll(20_000), f"no ZMTP handshake with {source['endpoint']}"
        self.socket.disable_monitor()
        self.messages, self.stopped = [], threading.Event()
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()
        # the subscription itself follows the handshake at once; give it time to arrive
        self.stopped.wait(0.3)

    def _listen(self):
        while not self.stopped.is_set():
            if self.socket.poll(50):
                self.messages.append(self.socket.recv_multipart())

    def batches(self):
        return [DECODER.decode(payload) for _, _, payload in list(self.messages)]

    def events(self, kind):
        return [e for batch in self.batches() for e in batch.events if isinstance(e, kind)]

    def close(self):
        self.stopped.set()
        self.thread.join()
        self.context.destroy(linger=0)


@contextmanager
def listening(*flags):
    """A mock and a listener at its one event source."""
    with Mock(*flags) as mock:
        sources = mock.get("/kv_event_sources")
        assert list(sources) == ["0"], sources
        listener = Listener(sources["0"])
        try:
            yield mock, listener
        finally:
            listener.close()


def complete(mock, prompt, max_tokens=4, **more):
    status, _, body = call(mock.port, "POST", "/v1/completions",
                           {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, **more})
    assert status == 200, (status, body[:300])
    return json.loads(body)


def test_the_structs_here_read_the_golden():
    # before anything of ours is judged by them
    live = golden()["live"]
    assert len(live) == 18
    for message in live:
        topic, seq, payload = map(bytes.fromhex, message["frames_hex"])
        assert topic == b"kv-events" and int.from_bytes(seq, "big") == message["seq"]
        batch = DECODER.decode(payload)
        assert msgspec.to_builtins(batch) == message["decoded"], message["note"]


def test_the_source_is_described_as_vllm_does():
    with Mock() as mock:
        source = mock.get("/kv_event_sources")["0"]
        assert {"enable_kv_cache_events", "publisher", "endpoint", "replay_endpoint", "buffer_steps", "hwm",
                "max_queue_size", "topic"} == set(source), source
        assert source["enable_kv_cache_events"] is True and source["publisher"] == "zmq", source
        endpoint = source["endpoint"]
        assert endpoint.startswith("tcp://") and "*" not in endpoint and not endpoint.endswith(":0"), endpoint


def test_stored_events_have_the_goldens_shape():
    with listening() as (mock, listener):
        ids = list(range(100, 500))
        complete(mock, ids)
        stored = eventually(lambda: listener.events(BlockStored), "a BlockStored event")
        root = stored[0]
        size = root.block_size
        assert root.parent_block_hash is None and size > 0, root
        eventually(lambda: sum(len(e.block_hashes) for e in listener.events(BlockStored)) >= len(ids) // size,
                   "every full block of the prompt stored")

        # only full blocks, each event's tokens exactly those of its blocks, the chain unbroken
        tokens, previous = [], None
        for event in listener.events(BlockStored):
            assert event.block_size == size, event
            assert event.parent_block_hash == previous, event
            assert len(event.token_ids) == len(event.block_hashes) * size, event
            assert len(event.extra_keys or []) in (0, len(event.block_hashes)), event
            assert all(0 <= h < 2**64 for h in event.block_hashes), event
            tokens += event.token_ids
            previous = event.block_hashes[-1]
        full = len(ids) // size * size
        assert tokens[:full] == ids[:full], "the tokens of the prompt"
        check_shape(listener)


def check_shape(listener):
    """Keys, types, topic and sequence are those of the golden."""
    known = golden()
    always, types = shapes(m["decoded"] for m in known["live"])
    for topic, seq, payload in listener.messages:
        assert topic.decode() == known["topic"], topic
        assert len(seq) == 8, seq
        DECODER.decode(payload)
        decoded = msgspec.msgpack.decode(payload)
        assert isinstance(decoded, list) and len(decoded) == 3, decoded
        assert isinstance(decoded[0], float) and decoded[0] > 1.7e9, decoded[0]
        assert decoded[2] == 0, decoded[2]
        for event in decoded[1]:
            kind = event["type"]
            assert always[kind] <= set(event), (always[kind] - set(event), event)
            for key, value in event.items():
                assert (kind, key) in types, f"{kind} has no {key} in vLLM 0.30"
                assert type(value) in types[kind, key], (kind, key, value)
    numbers = [int.from_bytes(seq, "big") for _, seq, _ in listener.messages]
    assert numbers == list(range(len(numbers))), numbers


def test_a_repeated_prompt_is_found_and_stored_once():
    with listening() as (mock, listener):
        ids = list(range(1000, 1400))
        first = complete(mock, ids)
        eventually(lambda: listener.events(BlockStored), "a BlockStored event")
        second = complete(mock, ids)
        size = listener.events(BlockStored)[0].block_size
        cached = [(a["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") for a in (first, second)]
        # the last token is never taken from the cache
        assert cached == [0, (len(ids) - 1) // size * size], cached
        # a prompt of its own afterwards: when its blocks are told, those of the repetition would have been
        complete(mock, list(range(5000, 5000 + size)))
        eventually(lambda: any(5000 in e.token_ids for e in listener.events(BlockStored)), "the marker's block")
        hashes = [h for e in listener.events(BlockStored) if 5000 not in e.token_ids for h in e.block_hashes]
        prompt_blocks = hashes[:len(ids) // size]
        assert len(set(prompt_blocks)) == len(ids) // size, prompt_blocks
        assert all(hashes.count(h) == 1 for h in prompt_blocks[:(len(ids) - 1) // size]), hashes
        check_shape(listener)


def test_a_full_cache_removes_what_it_had_stored():
    # so small that a few prompts overflow it
    with listening("--blocks", "64") as (mock, listener):
        for prompt in range(12):
            complete(mock, list(range(prompt * 1000, prompt * 1000 + 300)))
        removed = eventually(lambda: listener.events(BlockRemoved), "a BlockRemoved event")
        held = set()
        for batch in listener.batches():
            for event in batch.events:
                if isinstance(event, BlockStored):
                    held |= set(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    assert set(event.block_hashes) <= held, "removed what was not stored"
                    held -= set(event.block_hashes)
        assert len(held) <= 64, len(held)
        assert removed[0].medium == "GPU", removed[0]
        check_shape(listener)


def test_decode_blocks_are_told_too():
    with listening() as (mock, listener):
        ids = list(range(300, 600))
        answer = complete(mock, ids, max_tokens=300, ignore_eos=True)
        total = answer["usage"]["total_tokens"]
        assert answer["usage"]["completion_tokens"] == 300, answer["usage"]

        def blocks():
            return [h for e in listener.events(BlockStored) for h in e.block_hashes]

        size = eventually(lambda: listener.events(BlockStored), "a BlockStored event")[0].block_size
        # the last token that was sampled has no entry in the cache yet
        eventually(lambda: len(blocks()) >= (total - 1) // size, "the blocks of the generated tokens")
        assert len(set(blocks())) == len(blocks()) <= total // size, blocks()
        tokens = [t for e in listener.events(BlockStored) for t in e.token_ids]
        assert tokens[:len(ids)] == ids, "the prompt first, then what was generated"
        check_shape(listener)


def test_a_stock_engine_tells_nothing():
    with Mock("--stock") as mock:
        status, _, body = call(mock.port, "GET", "/kv_event_sources")
        assert status == 404 or not json.loads(body) or not any(
            s.get("enable_kv_cache_events") for s in json.loads(body).values()), (status, body)
        answer = complete(mock, list(range(400)))
        assert answer["usage"].get("prompt_tokens_details") is None, answer["usage"]


def test_the_mock_connects_where_it_is_told_to():
    """As vLLM does where its endpoint names one address; the router that listens there follows it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Mock("--kv-connect", f"tcp://127.0.0.1:{port}") as mock:
        assert mock.get("/kv_event_sources")["0"]["endpoint"] == f"tcp://127.0.0.1:{port}"
        mock.settings = f'kv_events = "tcp://*:{port}"'
        with Serve([mock], extra=tokenized()) as router:
            eventually(lambda: router.workers()[0]["index"] == "events", "it has connected")
            body = {"model": MODEL, "prompt": list(range(400)), "max_tokens": 1}
            assert call(mock.port, "POST", "/v1/completions", body)[0] == 200
            eventually(lambda: router.workers()[0]["cached_blocks"] > 0, "its blocks are known")
