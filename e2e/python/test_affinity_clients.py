"""Sessions by the official OpenAI SDK: with an id in a header, with a cache key in the body, and, under
`affinity.infer`, with nothing at all."""
import openai
from harness import MODEL, Mock, Serve, eventually
from scripted_worker import Hold
from sessions import Background, Fleet, chat_body

ROUND = '[routing]\npolicy = "round_robin"\n[index]\nsource = "off"\n'
INFER = "infer = true"


def client(router, **options):
    return openai.OpenAI(base_url=router.url + "/v1", api_key="sk-test", max_retries=0, timeout=30, **options)


def user(text):
    return {"role": "user", "content": text}


class Conversation:
    """As a plain chat client has it: all of it goes along each time."""

    def __init__(self, sdk, opener, system="You are helpful."):
        self.sdk, self.messages = sdk, [{"role": "system", "content": system}, user(opener)]

    def turn(self, **options):
        """One turn -> (worker, affinity word)."""
        raw = self.sdk.chat.completions.with_raw_response.create(
            model=MODEL, messages=self.messages, max_tokens=8, **options)
        answer = raw.parse().choices[0].message.content
        self.messages += [{"role": "assistant", "content": answer}, user("Go on")]
        return raw.headers["x-homing-worker"], raw.headers["x-homing-affinity"]


def test_the_sdk_names_a_session_by_a_header_or_by_a_cache_key():
    with Mock() as a, Mock() as b, Mock() as c, Serve([a, b, c], extra=ROUND) as router:
        sdk = client(router)
        by_header = {"extra_headers": {"x-session-id": "agent-7"}}
        whole = client(router, default_headers={"X-Session-Id": "agent-8"})
        for options, sdk in ((by_header, sdk), ({"prompt_cache_key": "app-7"}, sdk), ({}, whole)):
            # conversations that have nothing in common but the name of their session
            told = [Conversation(sdk, f"question {i}").turn(**options) for i in range(6)]
            assert len({worker for worker, _ in told}) == 1, (options, told)
            assert [word for _, word in told] == ["new"] + ["hit"] * 5, (options, told)
        told = [Conversation(client(router), f"question {i}").turn() for i in range(3)]
        assert {word for _, word in told} == {"none"} and len({w for w, _ in told}) == 3, told
        assert router.admin_json("/admin/sessions")["count"] == 3


def test_a_header_comes_before_a_cache_key():
    with Mock() as a, Mock() as b, Serve([a, b], extra=ROUND) as router:
        sdk = client(router)
        first = Conversation(sdk, "x").turn(extra_headers={"x-session-id": "s"})
        # many conversations of one application
        for i in range(4):
            told = Conversation(sdk, "x").turn(extra_headers={"x-session-id": "s"}, prompt_cache_key=f"k{i}")
            assert told == (first[0], "hit"), told
        assert router.admin_json("/admin/sessions")["count"] == 1


def test_a_stream_of_the_sdk_holds_its_session():
    with Mock() as a, Mock() as b, Serve([a, b], extra=ROUND) as router:
        sdk = client(router)
        with sdk.chat.completions.with_streaming_response.create(
                model=MODEL, messages=[user("Tell me a lot")], max_tokens=64, stream=True,
                extra_headers={"x-session-id": "s"}) as raw:
            assert raw.headers["x-homing-affinity"] == "new"
            text = "".join(line for line in raw.iter_lines())
        assert "[DONE]" in text
        eventually(lambda: router.admin_json("/admin/sessions")["leases"] == 0, "the lease ends")
        assert router.admin_json("/admin/sessions")["count"] == 1


def test_infer_a_plain_chat_stays_where_it_began_and_others_go_where_they_like():
    with Mock() as a, Mock() as b, Mock() as c, Serve([a, b, c], extra=ROUND + f"[affinity]\n{INFER}") as router:
        sdk = client(router)
        chats = [Conversation(sdk, f"question {i}") for i in range(6)]
        told = [[chat.turn() for chat in chats] for _ in range(4)]
        homes = [worker for worker, _ in told[0]]
        assert set(homes) == {"w0", "w1", "w2"}, homes
        assert all([worker for worker, _ in turn] == homes for turn in told), told
        assert {word for _, word in told[0]} == {"new"}, told
        assert {word for turn in told[1:] for _, word in turn} == {"hit"}, told
        # other instructions, other tools: another conversation
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        assert Conversation(sdk, "question 0", system="Be brief.").turn()[1] == "new"
        assert Conversation(sdk, "question 0").turn(tools=[tool])[1] == "new"
        assert Conversation(sdk, "question 0").turn() == (homes[0], "hit"), "one that opens alike"
        # an id outranks the guess, and `off` is off
        assert Conversation(sdk, "question 0").turn(extra_headers={"x-session-id": "s"})[1] == "new"
        assert Conversation(sdk, "question 0").turn(extra_headers={"x-homing-affinity": "off"})[1] == "none"
        # what the engine is asked beside the conversation is no part of it
        assert Conversation(sdk, "question 0").turn(temperature=0.5, seed=7)[1] == "hit"
        assert router.admin_json("/admin/sessions")["count"] == 9


def test_infer_is_off_by_default():
    with Fleet(2) as fleet:
        assert {fleet.ok(text="same").word for _ in range(4)} == {"none"}
        assert fleet.sessions()["count"] == 0


def test_infer_a_shared_opener_beyond_max_parallel_is_surplus():
    with Fleet(3, affinity=INFER + "\nmax_parallel = 4") as fleet:
        hold = Hold()
        for worker in fleet.workers:
            worker.default = hold
        turns = [Background(lambda: fleet.ok(text="hello")) for _ in range(12)]
        eventually(lambda: fleet.seen() == 12, "all are at a worker: nobody waits for another")
        hold.open.set()
        told = [turn.result() for turn in turns]
        words = sorted(turn.word for turn in told)
        assert words == ["joined"] * 3 + ["new"] + ["surplus"] * 8, words
        assert len({turn.worker for turn in told if turn.word != "surplus"}) == 1, told
        assert len({turn.worker for turn in told}) > 1, "the surplus is not pinned"
        fleet.quiet()
        assert fleet.ok(text="hello").word == "hit"


def test_infer_binds_softly():
    with Fleet(2, affinity=INFER) as fleet:
        home = fleet.worker(fleet.ok(text="hello").worker)
        away = {"x-homing-allowed-workers": fleet.others(home)[0].name}
        assert fleet.ok(text="hello", headers=away).word == "rebound"
        assert fleet.ok(text="hello").worker == fleet.others(home)[0].name


def test_infer_finds_no_conversation_in_what_is_none():
    with Fleet(1, affinity=INFER) as fleet:
        for messages in ([], [{"role": "system", "content": "x"}], [{"role": "assistant", "content": "x"}]):
            status, headers, _ = fleet.router.post("/v1/chat/completions", chat_body() | {"messages": messages})
            assert headers["x-homing-affinity"] == "none", (messages, status, headers)
        status, headers, _ = fleet.router.post("/v1/completions", {"model": MODEL, "prompt": "hello"})
        assert (status, headers["x-homing-affinity"]) == (200, "none"), (status, headers)
        # a child without an id is nobody's session, and not to be guessed
        assert fleet.ok(headers={"x-homing-parent-session-id": "boss"}).word == "none"
        assert fleet.sessions()["count"] == 0
