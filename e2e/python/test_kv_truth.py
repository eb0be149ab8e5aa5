"""What the router believes of the engines' caches against what is truly in them: with every event, with events
lost, doubled and reordered on their way, and where nothing can be asked for again.

The mocks have small caches, so that conversations push each other out; `GET` and `POST /mock/cache` are the
truth.
"""
import concurrent.futures
import json
import random
from contextlib import ExitStack, contextmanager

from faulting_proxy import FaultingProxy
from harness import MODEL, Mock, Serve, call, eventually, tokenized

BLOCK = 16
CHAT = "/v1/chat/completions"
WORDS = ("the router keeps a session at home while its worker is ready and moves it only when it must "
         "because a prompt that is cached costs less than one that is computed anew").split()


def words(dice, count):
    return " ".join(dice.choice(WORDS) for _ in range(count))


class Conversation:
    """Turns of one session. Some open alike, as agents with one system prompt do."""

    def __init__(self, number, seed):
        self.dice = random.Random(seed * 1000 + number)
        opener = words(random.Random(seed * 1000 + number % 3), 120)
        self.messages = [{"role": "system", "content": opener}]
        self.headers = {"x-homing-session-id": f"s-{number}"}

    def ask(self):
        """The body of the next turn."""
        return {"model": MODEL, "max_tokens": 40, "ignore_eos": True,
                "messages": self.messages + [{"role": "user", "content": "Go on."}]}

    def turn(self, router):
        """One turn -> (predicted cached tokens or None, reported ones)."""
        self.messages.append({"role": "user", "content": words(self.dice, self.dice.randint(20, 120))})
        body = {"model": MODEL, "max_tokens": self.dice.randint(20, 60), "ignore_eos": True,
                "messages": self.messages}
        status, headers, data = router.post(CHAT, body, self.headers)
        assert status == 200, (status, data[:300])
        answer = json.loads(data)
        self.messages.append(answer["choices"][0]["message"])
        predicted = headers.get("x-homing-cached-tokens")
        reported = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return None if predicted is None else int(predicted), reported


def trace(router, sessions=18, turns=5, threads=6, seed=1):
    """Conversations, several at a time, each turn after turn -> the conversations."""
    all_of_them = [Conversation(n, seed) for n in range(sessions)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for _ in range(turns):
            list(pool.map(lambda one: one.turn(router), all_of_them))
    return all_of_them


def truth(mock):
    """How many different blocks it holds, over all ranks."""
    return sum(len(set(rank["blocks"])) for rank in mock.get("/mock/cache").values())


def differences(router, mocks, conversations):
    """Where the index says something else than the caches: of counts, and of each conversation's prefix."""
    found = []
    for i, mock in enumerate(mocks):
        told = next(w for w in router.workers() if w["id"] == f"w{i}")
        if (told["cached_blocks"], told["index"]) != (truth(mock), "events"):
            found.append((f"w{i}", told["cached_blocks"], told["index"], truth(mock)))
    if found:
        return found
    for conversation in conversations:
        body = conversation.ask()
        status, _, data = call(router.admin, "POST", "/admin/preview", {"endpoint": CHAT, "body": body})
        assert status == 200, (status, data[:300])
        believed = {(c["worker"], c["dp_rank"]): c["overlap_blocks"] for c in json.loads(data)["candidates"]}
        for i, mock in enumerate(mocks):
            status, _, data = call(mock.port, "POST", "/mock/cache", body)
            assert status == 200, (status, data[:300])
            for rank, held in json.loads(data).items():
                overlap = believed.get((f"w{i}", int(rank)))
                if overlap != held["cached_tokens"] // BLOCK:
                    found.append((f"w{i}", rank, conversation.headers, overlap, held))
    return found


def until_true(router, mocks, conversations, seconds=90):
    last = []

    def equal():
        last[:] = differences(router, mocks, conversations)
        return not last

    try:
        eventually(equal, "the index equals the caches", seconds)
    except AssertionError as e:
        raise AssertionError(f"{e}: {last[:5]}\n{router.log()}") from None


def warm(router, mocks):
    """Each engine stores something, and the router knows: until then it has no block size, and predicts nothing.
    What is published before a subscriber is known is lost; so more is stored until something arrives."""
    first = iter(range(200, 20_000, BLOCK))

    def arrived():
        for mock in mocks:
            start = next(first)
            body = {"model": MODEL, "prompt": list(range(start, start + BLOCK)), "max_tokens": 1}
            assert call(mock.port, "POST", "/v1/completions", body)[0] == 200
        return all(w["cached_blocks"] > 0 for w in router.workers())

    eventually(arrived, "a block of each worker")


@contextmanager
def fleet(count, *flags, settings="", proxied=None):
    """Mocks, the proxies in front of their events where `proxied` makes them, and a router. `settings` are lines
    of each worker's own table."""
    with ExitStack() as stack:
        mocks = [stack.enter_context(Mock("--blocks", "160", "--speedup", "300", "--seed", str(i), *flags))
                 for i in range(count)]
        proxies = []
        if proxied:
            for i, mock in enumerate(mocks):
                source = mock.get("/kv_event_sources")["0"]
                proxies.append(stack.enter_context(proxied(source, i)))
                mock.settings = proxies[-1].settings
        for mock in mocks:
            mock.settings = getattr(mock, "settings", "") + settings
        router = stack.enter_context(Serve(mocks, tokenized()))
        yield router, mocks, proxies


def test_predictions_are_what_engines_report():
    # One turn at a time: nothing is evicted between the prediction and the engine's own look.
    with fleet(2) as (router, mocks, _):
        warm(router, mocks)
        conversations = [Conversation(n, 3) for n in range(8)]
        hits = 0
        for _ in range(5):
            for one in conversations:
                predicted, reported = one.turn(router)
                assert predicted is not None and abs(predicted - reported) <= BLOCK, (predicted, reported)
                hits += reported > 0
                # The answer comes before the events of its last step.
                until_true(router, mocks, conversations)
        assert hits > 20, hits
        assert any(len(rank["blocks"]) > 150 for m in mocks for rank in m.get("/mock/cache").values()), "full"


def test_ranks_hybrid_groups_and_a_cleared_cache_are_followed():
    flags = ("--dp-size", "2", "--kv-groups", "hybrid", "--kv-hashes", "bytes")
    # No `dp_size`: the router learns it from its engines.
    with fleet(2, *flags) as (router, mocks, _):
        assert [w["ranks"] for w in router.workers()] == [2, 2]
        conversations = trace(router, sessions=12, turns=3)
        until_true(router, mocks, conversations)
        assert all(len(set(rank["blocks"])) > 20 for m in mocks for rank in m.get("/mock/cache").values())
        assert router.metric("homing_kv_events_total", kind="ignored") > 0, "the windows' groups"
        assert router.metric("homing_kv_events_total", kind="malformed") == 0
        for mock in mocks:
            eventually(lambda: call(mock.port, "POST", "/reset_prefix_cache", {})[0] == 200, "nothing runs")
        assert sum(map(truth, mocks)) == 0
        # The engine tells it with its next step; so each rank gets one.
        for mock in mocks:
            for rank in ("0", "1"):
                body = {"model": MODEL, "prompt": list(range(300, 340)), "max_tokens": 1}
                assert call(mock.port, "POST", "/v1/completions", body, {"x-data-parallel-rank": rank})[0] == 200
        until_true(router, mocks, conversations)
        assert router.metric("homing_kv_events_total", kind="cleared") == 4


def test_events_lost_doubled_and_reordered_are_made_good():
    def proxied(source, i):
        return FaultingProxy(source, seed=i)

    with fleet(3, proxied=proxied) as (router, mocks, proxies):
        warm(router, mocks)
        for proxy in proxies:
            proxy.harm()
        lives = [w["incarnation"] for w in router.workers()]
        conversations = trace(router)
        faults = [sum(getattr(p, kind) for p in proxies) for kind in ("lost", "doubled", "reordered")]
        assert min(faults) >= 5, faults
        for proxy in proxies:
            proxy.heal()
        # Whatever was lost last shows with the next message.
        for mock in mocks:
            body = {"model": MODEL, "prompt": list(range(400, 460)), "max_tokens": 1}
            assert call(mock.port, "POST", "/v1/completions", body)[0] == 200
        until_true(router, mocks, conversations)
        assert router.metric("homing_kv_event_gaps_total") > 0
        assert router.metric("homing_kv_event_gaps_lost_total") == 0
        assert router.metric("homing_index_uncertain_ranks") == 0
        assert [w["incarnation"] for w in router.workers()] == lives, "an event that came late is no restart"


def test_without_a_replay_what_is_lost_makes_uncertain_until_it_is_learned_anew():
    def proxied(source, i):
        return FaultingProxy(source, seed=7, lose=0.3, double=0, reorder=0, replay=False)

    with fleet(1, "--kv-replay", "", proxied=proxied) as (router, mocks, proxies):
        warm(router, mocks)
        proxies[0].harm()
        trace(router, sessions=6, turns=3)
        assert proxies[0].lost > 3

        def shown():
            # What is lost last shows by what comes after it; and what has been learned anew meanwhile is lost again.
            if router.workers()[0]["index"] == "uncertain" and router.metric("homing_index_uncertain_ranks") == 1:
                return True
            trace(router, sessions=2, turns=2, seed=9)
            return False

        eventually(shown, "it is shown", 60)
        assert router.metric("homing_kv_event_gaps_lost_total") > 0
        proxies[0].heal()
        # The engine tells of a block once, when it is stored; so conversations with other openers push out all
        # that there was, until every block was told of.
        seed = 100
        def learned():
            nonlocal seed
            seed += 1
            conversations = trace(router, sessions=6, turns=2, seed=seed)
            return not differences(router, mocks, conversations)

        eventually(learned, "the cache is known again", 120)
        assert router.metric("homing_index_uncertain_ranks") == 0
