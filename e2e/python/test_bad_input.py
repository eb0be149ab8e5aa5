"""What a wrong flag, file, request, worker or event leads to: a clear word, and nothing else breaks."""
import json
import struct
import tempfile
from contextlib import contextmanager

import msgspec
import zmq
from harness import MODEL, Serve, call, check_error, eventually, run, tokenized
from recording_worker import RecordingWorker, free_port


def check_usage_error(args, *words, **env):
    """Exit code 2, nothing on stdout, and the words in the message."""
    code, out, err = run(*args, **env)
    assert code == 2, (args, code, out, err)
    assert out == "", out
    for word in words:
        assert word in err, (word, err)


def check_config_error(text, *words):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
        f.write(text)
        f.flush()
        check_usage_error(["serve", "--config", f.name], *words)


def test_a_wrong_flag_names_the_nearest():
    check_usage_error(["serve", "--wroker", "http://127.0.0.1:1"], "--wroker", "--worker")
    check_usage_error(["mock", "--modle", "m"], "--modle", "--model")
    check_usage_error(["mock", "--stock", "--kv-endpoint", "tcp://127.0.0.1:5557"], "--stock", "--kv-endpoint")


def test_a_wrong_command_names_the_nearest():
    check_usage_error(["srve"], "srve", "serve")


def test_a_wrong_value_of_a_flag_is_told():
    check_usage_error(["serve", "--worker", "http://127.0.0.1:1", "--policy", "magic"], "magic", "least_loaded")
    check_usage_error(["serve", "--worker", "not a url"], "not a url")
    check_usage_error(["serve", "--worker", "http://127.0.0.1:1", "--session-ttl", "soon"], "soon")


def test_a_wrong_key_names_the_nearest():
    check_config_error('[gateway]\nlisen = "127.0.0.1:0"\n', "lisen", "listen")
    check_config_error('[affinity]\nttl = "30m"\nmax_sesions = 5\n', "max_sesions", "max_sessions")
    check_config_error('[gatway]\nlisten = "127.0.0.1:0"\n', "gatway", "gateway")
    check_config_error('[[workers]]\nid = "a"\nulr = "http://127.0.0.1:1"\n', "ulr", "url")


def test_a_wrong_value_in_the_file_is_told():
    check_config_error('[routing]\npolicy = "magic"\n', "routing.policy", "magic")
    check_config_error('[affinity]\nttl = "soon"\n', "affinity.ttl", "soon")
    check_config_error('[affinity]\nttl = 30\n', "affinity.ttl")
    check_config_error("[gateway\n", "TOML")


def test_a_wrong_key_in_the_environment_is_told():
    # the message may name the variable or the key that it stands for
    check_usage_error(["serve", "--worker", "http://127.0.0.1:1"], "TTTL", HOMING_AFFINITY__TTTL="30m")
    check_usage_error(["serve", "--worker", "http://127.0.0.1:1"], "soon", HOMING_AFFINITY__TTL="soon")


def test_a_section_of_a_later_version_is_refused():
    check_config_error('[selection]\nlisten = "127.0.0.1:0"\n', "selection")


def test_a_missing_file_is_told():
    check_usage_error(["serve", "--config", "/no/such/homing.toml"], "/no/such/homing.toml")


class LateWorker:
    """A worker that is not there yet."""

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"


def test_a_worker_that_is_down_at_start_is_named_and_taken_in_when_it_comes():
    late = LateWorker()
    with Serve([late], ready=False) as router:
        status, _, body = call(router.admin, "GET", "/ready")
        assert status == 503 and body, (status, body)
        eventually(lambda: "w0" in router.stderr() and str(late.port) in router.stderr(),
                   "the log names the worker that is down")
        assert router.proc.poll() is None
        status, headers, body = router.post(
            "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
        assert status == 503 and json.loads(body)["error"]["code"] in ("no_worker", "starting"), (status, body)
        assert 1 <= int(headers["retry-after"]) <= 60, headers
        with RecordingWorker(port=late.port) as worker:
            router.wait_ready(1)
            status, _, body = router.post(
                "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
            assert status == 200 and len(worker.seen) == 1, (status, body)


def test_one_worker_down_does_not_keep_the_others():
    with RecordingWorker() as worker, Serve([worker, LateWorker()], ready=False) as router:
        eventually(lambda: call(router.admin, "GET", "/ready")[0] == 200, "ready with one of two")
        for _ in range(4):
            status, headers, body = router.post(
                "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
            assert status == 200 and headers["x-homing-worker"] == "w0", (status, headers, body)
        states = {w["id"]: w["state"] for w in router.workers()}
        assert states["w0"] == "ready" and states["w1"] != "ready", states


def test_a_malformed_request_is_refused_here():
    bodies = [b"", b"nonsense", b'{"model": "test-model", "messages": [', b"[]", b"null", b'"text"',
              b'{"model": 5, "messages": []}', b'{"model": "test-model", "messages": []} trailing', b"\xff\xfe{}",
              b"[" * 10_000]
    with RecordingWorker() as worker, Serve([worker]) as router:
        for path in ("/v1/chat/completions", "/v1/completions"):
            for body in bodies:
                status, headers, answer = router.post(path, body)
                try:
                    check_error(status, answer, 400, "invalid_request")
                except AssertionError as e:
                    raise AssertionError(f"{path} {body[:60]!r}: {e}") from None
                assert headers["x-request-id"], headers
        assert not worker.seen, [r.body for r in worker.seen]
        # and the gateway is as well as before
        status, _, _ = router.post("/v1/chat/completions",
                                   {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]})
        assert status == 200 and len(worker.seen) == 1


class Publisher:
    """A publisher of KV events as vLLM's, but one that can also publish nonsense."""

    def __init__(self):
        self.context = zmq.Context()
        # XPUB, because it tells when the router has subscribed
        self.socket = self.context.socket(zmq.XPUB)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.sources = {"0": {
            "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{port}",
            "replay_endpoint": None, "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000,
            "topic": "kv-events"}}
        self.seq = 0

    def wait_subscribed(self):
        assert self.socket.poll(30_000), "the router did not subscribe"
        assert self.socket.recv()[:1] == b"\x01"

    def publish(self, payload):
        """One message, the sequence number going on whatever the payload is."""
        self.socket.send_multipart([b"kv-events", struct.pack(">Q", self.seq), payload])
        self.seq += 1

    def stored(self, first, blocks, size=16):
        tokens = list(range(first, first + blocks * size))
        return msgspec.msgpack.encode([1795972882.5, [{
            "type": "BlockStored", "block_hashes": [first * 1000 + i for i in range(blocks)],
            "parent_block_hash": None, "token_ids": tokens, "block_size": size, "lora_id": None,
            "medium": "GPU", "lora_name": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}], 0])

    def close(self):
        self.context.destroy(linger=0)


@contextmanager
def published():
    """A router that hears a publisher of ours, behind a worker that names it."""
    publisher = Publisher()
    try:
        with RecordingWorker(kv_event_sources=publisher.sources) as worker, \
                Serve([worker], extra=tokenized()) as router:
            publisher.wait_subscribed()
            yield publisher, router
    finally:
        publisher.close()


def cached_blocks(router):
    return router.workers()[0]["cached_blocks"]


def test_a_malformed_kv_event_is_counted_and_the_feed_goes_on():
    good = msgspec.msgpack.encode
    with published() as (publisher, router):
        publisher.publish(publisher.stored(100, blocks=3))
        eventually(lambda: cached_blocks(router) == 3, "the first event applied")
        malformed = [
            b"",
            b"\xc1",
            b"not msgpack at all",
            publisher.stored(500, blocks=2)[:-9],
            good({"events": []}),
            good([1795972882.5, "no list", 0]),
            good([1795972882.5, [{"type": "BlockStored", "token_ids": [1]}], 0]),
            good([1795972882.5, [{"type": "BlockStored", "block_hashes": "x", "parent_block_hash": None,
                                  "token_ids": [1], "block_size": 1}], 0]),
            b"\xdd\xff\xff\xff\xff",                      # an array of four thousand million
            b"\x93" * 100_000,                            # a hundred thousand levels deep
        ]
        for payload in malformed:
            publisher.publish(payload)
        publisher.publish(publisher.stored(900, blocks=4))
        # a message that can't be read may have told of removals: what came before is not believed any more
        eventually(lambda: cached_blocks(router) == 4, "the event after them applied")
        counted = router.metric("homing_kv_events_total", kind="malformed")
        assert counted == len(malformed), counted
        assert router.metric("homing_index_blocks", worker="w0") == 4
        # lines gather for some milliseconds before they are written
        told = lambda: [line for line in router.stderr().splitlines() if "malformed" in line.lower()]
        eventually(told, "the log tells of it")
        assert len(told()) == 1 and "w0" in told()[0], told()
        assert router.proc.poll() is None


def test_an_unknown_event_is_skipped_alone():
    with published() as (publisher, router):
        batch = msgspec.msgpack.decode(publisher.stored(100, blocks=2))
        batch[1].insert(0, {"type": "SomethingNew", "field": [1, 2, {"a": None}]})
        batch[1][1]["a_new_field"] = {"of": ["any", "shape"]}
        publisher.publish(msgspec.msgpack.encode(batch))
        eventually(lambda: cached_blocks(router) == 2, "the known event of the batch applied")
