"""The official OpenAI SDK against the gateway over two simulated engines: nothing of ours in the client."""
import asyncio

import openai
from harness import MODEL, Mock, Serve, ServeFlags, call, check_error, eventually, tokenized

# Longer than several KV blocks, so that a second turn has something to find in the cache.
LONG = "You answer questions about a very large code base. " * 60


def client(router, **options):
    return openai.OpenAI(base_url=router.url + "/v1", api_key="sk-test", max_retries=0, timeout=30, **options)


def user(text):
    return {"role": "user", "content": text}


def fleet(test, **serve):
    """Runs test(router) over two engines."""
    with Mock() as a, Mock() as b, Serve([a, b], **serve) as router:
        test(router)


def check_usage(usage):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage


def test_chat():
    def test(router):
        answer = client(router).chat.completions.create(
            model=MODEL, messages=[{"role": "system", "content": "Be brief."}, user("Hi 你好 🙂")], max_tokens=16)
        assert answer.object == "chat.completion" and answer.model == MODEL and answer.id, answer
        choice = answer.choices[0]
        assert choice.message.role == "assistant" and choice.message.content, choice
        assert choice.finish_reason in ("stop", "length"), choice
        check_usage(answer.usage)
        assert answer.usage.completion_tokens <= 16, answer.usage
    fleet(test)


def test_chat_stream_with_and_without_usage():
    def test(router):
        def stream(**more):
            return list(client(router).chat.completions.create(
                model=MODEL, messages=[user("Tell me")], max_tokens=20, stream=True, **more))

        plain = stream()
        assert not any(c.usage for c in plain), plain
        assert "".join(c.choices[0].delta.content or "" for c in plain), plain
        assert plain[0].choices[0].delta.role == "assistant", plain[0]
        assert plain[-1].choices[0].finish_reason in ("stop", "length"), plain[-1]
        assert len({c.id for c in plain}) == 1, "one id for the whole stream"

        with_usage = stream(stream_options={"include_usage": True})
        last = with_usage[-1]
        assert last.choices == [], last
        check_usage(last.usage)
        assert not any(c.usage for c in with_usage[:-1]), with_usage
    fleet(test)


def test_the_stream_helper_assembles_a_whole_answer():
    def test(router):
        with client(router).chat.completions.stream(
                model=MODEL, messages=[user("Some words, please")], max_tokens=4096) as stream:
            pieces = [event.delta for event in stream if event.type == "content.delta"]
            answer = stream.get_final_completion()
        assert pieces and answer.choices[0].message.content == "".join(pieces), (answer, pieces)
    fleet(test)


def test_async_client_with_many_streams_at_once():
    async def one(sdk, i):
        text = ""
        stream = await sdk.chat.completions.create(
            model=MODEL, messages=[user(f"question {i}")], max_tokens=12, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def all_of_them(router):
        async with openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="sk-test", max_retries=0,
                                      timeout=30) as sdk:
            texts = await asyncio.gather(*(one(sdk, i) for i in range(16)))
            assert all(texts), texts
            plain = await sdk.chat.completions.create(model=MODEL, messages=[user("Hi")], max_tokens=4)
            assert plain.choices[0].message.content, plain

    fleet(lambda router: asyncio.run(all_of_them(router)))


def test_completions_of_text_and_of_token_ids():
    def test(router):
        sdk = client(router)
        answer = sdk.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8)
        assert answer.object == "text_completion" and answer.choices[0].text, answer
        check_usage(answer.usage)
        answer = sdk.completions.create(model=MODEL, prompt=[1, 2, 3, 4, 5], max_tokens=8)
        assert answer.choices[0].text and answer.usage.prompt_tokens == 5, answer
        chunks = list(sdk.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, stream=True))
        assert "".join(c.choices[0].text for c in chunks if c.choices), chunks
    fleet(test)


def test_embeddings():
    def test(router):
        sdk = client(router)
        texts = ["a cat", "a dog", "a cat"]
        # The SDK asks for base64 by itself, and unpacks it.
        answer = sdk.embeddings.create(model=MODEL, input=texts)
        assert [d.index for d in answer.data] == [0, 1, 2] and answer.model == MODEL, answer.usage
        cat, dog, again = (d.embedding for d in answer.data)
        assert cat == again != dog and len(cat) == 384
        assert abs(sum(x * x for x in cat) - 1) < 1e-3
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0, answer.usage
        floats = sdk.embeddings.create(model=MODEL, input="a cat", encoding_format="float").data[0].embedding
        assert max(abs(a - b) for a, b in zip(cat, floats)) < 1e-6, "both forms say the same"
        assert len(sdk.embeddings.create(model=MODEL, input=[[1, 2], [3]], dimensions=8).data[1].embedding) == 8
        try:
            sdk.embeddings.create(model=MODEL, input="a cat", dimensions=0)
            raise AssertionError("it was served")
        except openai.BadRequestError as e:
            assert "dimensions" in str(e), e
    fleet(test)


def test_models():
    def test(router):
        models = client(router).models.list().data
        assert [m.id for m in models] == [MODEL], models
        assert models[0].object == "model", models
    fleet(test)


def test_tools_and_their_results():
    tool = {"type": "function", "function": {
        "name": "weather", "description": "The weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}

    def test(router):
        sdk = client(router)
        first = sdk.chat.completions.create(
            model=MODEL, messages=[user("Weather in Rome?")], tools=[tool], max_tokens=24)
        message = first.choices[0].message
        assert message.content or message.tool_calls, first
        # a whole exchange, as an agent sends it back
        call_of_tool = {"id": "call_1", "type": "function",
                        "function": {"name": "weather", "arguments": '{"place":"Rome"}'}}
        second = sdk.chat.completions.create(model=MODEL, tools=[tool], max_tokens=24, messages=[
            user("Weather in Rome?"), {"role": "assistant", "content": None, "tool_calls": [call_of_tool]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 31 degrees"}])
        assert second.choices[0].message.content or second.choices[0].message.tool_calls, second
        assert second.usage.prompt_tokens > first.usage.prompt_tokens, (first.usage, second.usage)
    fleet(test)


def test_content_in_parts():
    def test(router):
        sdk = client(router)
        parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "this? Answer briefly."}]
        answer = sdk.chat.completions.create(model=MODEL, messages=[user(parts)], max_tokens=8)
        assert answer.choices[0].message.content, answer
        less = sdk.chat.completions.create(model=MODEL, messages=[user(parts[:1])], max_tokens=8)
        assert answer.usage.prompt_tokens > less.usage.prompt_tokens, (answer.usage, less.usage)
    fleet(test)


def test_errors_have_the_shape_that_the_sdk_expects():
    def test(router):
        try:
            client(router).chat.completions.create(model="no-such-model", messages=[user("Hi")])
        except openai.NotFoundError as e:
            assert e.status_code == 404 and e.code == "model_not_found", e
            assert "no-such-model" in e.message, e
            assert e.request_id, "an error has a request id too"
        else:
            raise AssertionError("an unknown model was answered")
        status, _, body = call(router.port, "POST", "/v1/chat/completions", b'{"model": "test-model", "messages": [')
        check_error(status, body, 400, "invalid_request")
    fleet(test)


def turns(router, count, headers, after=lambda: None):
    """A growing conversation -> (worker, affinity word, cached tokens) of each turn."""
    sdk, told = client(router), []
    messages = [{"role": "system", "content": LONG}]
    for turn in range(count):
        messages.append(user(f"Question number {turn}: what comes next?"))
        raw = sdk.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=24, extra_headers=headers)
        answer = raw.parse()
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        told.append((raw.headers["x-homing-worker"], raw.headers["x-homing-affinity"],
                     answer.usage.prompt_tokens_details.cached_tokens))
        after()
    return told


def test_a_session_stays_at_home_and_finds_its_cache():
    def test(router):
        for session in range(4):
            told = turns(router, 4, {"x-homing-session-id": f"agent-{session}"})
            assert len({worker for worker, _, _ in told}) == 1, told
            assert [word for _, word, _ in told] == ["new", "hit", "hit", "hit"], told
            cached = [cached for _, _, cached in told]
            assert all(c > 0 for c in cached[1:]) and cached[1:] == sorted(cached[1:]), told
        sessions = router.admin_json("/admin/sessions?limit=100")
        assert sessions["count"] == 4 and sessions["leases"] == 0, sessions
    # a policy that would move each turn, so that only the session can keep it at home
    fleet(test, extra='[routing]\npolicy = "round_robin"')


def test_without_a_session_the_cache_is_found_by_its_content():
    def test(router):
        # the engines' events come by another way than their answers, and may come later
        told = turns(router, 4, {}, after=lambda: eventually(
            lambda: sum(w["cached_blocks"] for w in router.workers()), "the router knows of blocks"))
        assert len({worker for worker, _, _ in told}) == 1, told
        assert {word for _, word, _ in told} == {"none"}, told
        assert all(cached > 0 for _, _, cached in told[1:]), told
    fleet(test, extra=tokenized())


def test_a_prediction_is_made_of_whole_prompts_only():
    def test(router):
        turns(router, 2, {}, after=lambda: eventually(
            lambda: sum(w["cached_blocks"] for w in router.workers()), "the router knows of blocks"))

        def predicted(**body):
            raw = client(router).chat.completions.with_raw_response.create(
                model=MODEL, messages=[user(LONG)], max_tokens=4, extra_body=body)
            return raw.headers.get("x-homing-cached-tokens")

        assert predicted() is not None
        # what the engine leaves of it only the engine knows
        assert predicted(truncate_prompt_tokens=16) is None
        assert router.metric("homing_prompts_untokenized_total") == 1
    fleet(test, extra=tokenized())


def test_the_router_runs_by_flags_alone():
    with Mock() as a, Mock() as b, ServeFlags([a, b], "--policy", "round_robin", "--session-ttl", "30m") as router:
        workers = {turns(router, 1, {"x-homing-session-id": f"s{i}"})[0][0] for i in range(4)}
        assert len(workers) == 2, workers
        told = turns(router, 3, {"x-homing-session-id": "s"})
        assert len({worker for worker, _, _ in told}) == 1, told
