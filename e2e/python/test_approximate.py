"""Engines that publish nothing: the router knows what they have by what it sent there, without a tokenizer."""
import collections

from harness import MODEL, Mock, Serve, ServeFlags, Server, call, eventually

WORDS = "the quick brown fox jumps over the lazy dog and goes on to the next field "


def opening(n, size=3000):
    """The start of a conversation, unlike any other's."""
    return [{"role": "user", "content": (f"conversation {n}: " + WORDS * 60)[:size]}]


def turn(router, messages, **more):
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, **more}
    status, headers, answer = router.post("/v1/chat/completions", body)
    assert status == 200, answer
    return headers


def play(router, conversations, turns):
    """Plays them in turns, one beside the other; the workers that each was sent to."""
    said = {n: opening(n) for n in conversations}
    went = collections.defaultdict(list)
    for i in range(turns):
        for n in conversations:
            headers = turn(router, said[n])
            went[n].append(headers["x-homing-worker"])
            said[n] += [{"role": "assistant", "content": f"answer {i}"},
                        {"role": "user", "content": f"and then? {i} " + WORDS * 4}]
    return went


def test_a_stock_fleet_is_cache_aware_out_of_the_box():
    with Mock("--stock") as a, Mock("--stock") as b, Mock("--stock") as c:
        with ServeFlags([a, b, c]) as router:
            eventually(lambda: all(w["index"] == "approximate" for w in router.workers()), "sources")
            went = play(router, range(9), 4)
            for n, workers in went.items():
                assert len(set(workers)) == 1, f"conversation {n} went to {workers}"
            assert len({workers[0] for workers in went.values()}) > 1, "and not all to one"
            known = router.workers()
            assert sum(w["cached_chunks"] for w in known) > 50, known
            assert all(w["cached_blocks"] == 0 for w in known), "nobody has said anything"
            assert router.metric("homing_index_text_chunks") > 50
            assert router.metric("homing_index_bytes") > 0
            # What was sent is known; somebody else's is not.
            cached = int(turn(router, opening(0))["x-homing-cached-tokens"])
            assert cached > 500, cached
            assert turn(router, opening(100))["x-homing-cached-tokens"] == "0"
            assert router.logged("--kv-events-config"), "the flag that would make it exact"
            # Stock engines don't say what they reused, so nothing was compared.
            text = call(router.admin, "GET", "/metrics")[2].decode()
            assert "homing_index_trust{" in text and "homing_cache_prediction_error{" not in text


def test_other_fields_and_another_order_of_them_change_nothing():
    with Mock("--stock") as a, Mock("--stock") as b:
        with ServeFlags([a, b]) as router:
            tools = [{"type": "function", "function": {"name": f"tool_{i}", "description": WORDS,
                                                       "parameters": {"type": "object"}}} for i in range(9)]
            first = turn(router, opening(1), tools=tools)["x-homing-worker"]
            body = {"temperature": 0.5, "tools": tools, "max_tokens": 4, "messages": opening(1), "model": MODEL,
                    "seed": 7}
            _, headers, _ = router.post("/v1/chat/completions", body)
            assert headers["x-homing-worker"] == first
            assert int(headers["x-homing-cached-tokens"]) > 900
            # Without the tools it is another prompt from its first byte on.
            assert turn(router, opening(1))["x-homing-cached-tokens"] == "0"
            # A salt keeps tenants apart.
            salted = turn(router, opening(1), tools=tools, cache_salt="other")
            assert salted["x-homing-cached-tokens"] == "0"


def test_a_worker_that_restarts_has_nothing():
    with Mock("--stock") as a:
        with ServeFlags([a]) as router:
            turn(router, opening(1))
            assert turn(router, opening(1))["x-homing-cached-tokens"] != "0"
            port = a.port
            a.close()
            eventually(lambda: router.workers()[0]["state"] == "down", "it is gone")
            with Server("mock", "--listen", f"127.0.0.1:{port}", "--model", MODEL, "--stock"):
                eventually(lambda: router.workers()[0]["state"] == "ready", "it is back")
                assert turn(router, opening(1))["x-homing-cached-tokens"] == "0"


def test_the_sources_that_do_without():
    with Mock("--stock") as a:
        for source, index in (("off", "off"), ("events", "none")):
            with Serve([a], extra=f'[index]\nsource = "{source}"') as router:
                assert "x-homing-cached-tokens" not in turn(router, opening(1))
                turn(router, opening(1))
                worker = router.workers()[0]
                assert (worker["index"], worker["cached_chunks"]) == (index, 0), worker
    with Mock() as a:
        with Serve([a], extra='[index]\nsource = "approximate"') as router:
            turn(router, opening(1))
            assert turn(router, opening(1))["x-homing-cached-tokens"] != "0"
            worker = router.workers()[0]
            assert (worker["index"], worker["cached_blocks"]) == ("approximate", 0), worker


def test_completions_are_known_by_their_text_too():
    with Mock("--stock") as a:
        with ServeFlags([a]) as router:
            def cached(prompt):
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 4}
                status, headers, answer = router.post("/v1/completions", body)
                assert status == 200, answer
                return int(headers["x-homing-cached-tokens"])
            text = WORDS * 30
            assert cached(text) == 0
            assert cached(text + "and more") > 400
            ids = list(range(1000, 1400))
            assert cached(ids) == 0
            assert cached([*ids, 7]) > 100
