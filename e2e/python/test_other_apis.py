"""The Responses API with the official OpenAI SDK, and Anthropic's Messages with theirs, over simulated engines:
whole, streamed, turns that stay at home and are reused there, and errors as the SDK's own types."""
import anthropic
import openai
from harness import MODEL, Mock, Serve, ServeFlags, check_error, eventually, tokenized

# Longer than several KV blocks, so that a second turn has something to find in the cache.
LONG = "You answer questions about a very large code base. " * 60
SESSION = {"x-homing-session-id": "s-1"}


def messages_of(router):
    return anthropic.Anthropic(base_url=router.url, api_key="sk-ant-test", max_retries=0, timeout=30).messages


def responses_of(router):
    return openai.OpenAI(base_url=router.url + "/v1", api_key="sk-test", max_retries=0, timeout=30).responses


def user(text):
    return {"role": "user", "content": text}


def test_messages():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        answer = messages_of(router).create(model=MODEL, max_tokens=16, system="Be brief.",
                                            messages=[user("Hi 你好 🙂")])
        assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL), answer
        assert answer.content[0].type == "text" and answer.content[0].text, answer
        assert answer.stop_reason in ("end_turn", "max_tokens"), answer
        assert answer.usage.input_tokens > 0 and 0 < answer.usage.output_tokens <= 16, answer.usage
        counted = messages_of(router).count_tokens(model=MODEL, system="Be brief.", messages=[user("Hi 你好 🙂")])
        assert counted.input_tokens == answer.usage.input_tokens, (counted, answer.usage)
        assert router.metric("homing_requests_total", endpoint="count_tokens", status="200") == 1
        assert router.metric("homing_requests_total", endpoint="messages", status="200") == 1


def test_messages_streamed_as_claude_code_does():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        client = anthropic.Anthropic(base_url=router.url, api_key="sk-ant-test", max_retries=0, timeout=30)
        with client.beta.messages.stream(model=MODEL, max_tokens=40, messages=[user("Tell me a story.")],
                                         extra_headers={"x-claude-code-session-id": "c-1"}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
            headers = stream.response.headers
        assert text and final.content[0].text == text, final
        assert final.usage.output_tokens > 0 and final.usage.input_tokens > 0, final.usage
        assert headers["x-homing-affinity"] == "new" and headers["x-homing-worker"], headers


def test_messages_of_a_session_stay_home_and_are_reused_in_part():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        client = messages_of(router)
        conversation, homes, cached = [], set(), []
        for turn in range(4):
            conversation.append(user(f"Question {turn}?"))
            raw = client.with_raw_response.create(
                model=MODEL, max_tokens=40, messages=conversation, extra_headers=SESSION,
                system=[{"type": "text", "text": f"x-anthropic-billing-header: cch={turn};"},
                        {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}])
            answer = raw.parse()
            conversation.append({"role": "assistant", "content": answer.content[0].text})
            homes.add(raw.headers["x-homing-worker"])
            predicted = raw.headers.get("x-homing-cached-tokens")
            cached.append((None if predicted is None else int(predicted), answer.usage))
            eventually(lambda: sum(w["cached_blocks"] for w in router.workers()) > 0, "the events have come")
        assert len(homes) == 1, homes
        for predicted, usage in cached[1:]:
            assert usage.cache_read_input_tokens > 300, usage
            assert usage.input_tokens < usage.cache_read_input_tokens, usage
            # By text until the block size was known, then exactly.
            assert predicted and predicted > 200, (predicted, usage)
        last, usage = cached[-1]
        assert abs(last - usage.cache_read_input_tokens) <= 16, (last, usage)
        assert router.metric("homing_prompts_untokenized_total") == 0
        trust = next(w["trust"] for w in router.workers() if w["id"] in homes)
        assert trust["messages"]["trust"] == 1.0, trust


def test_responses():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        answer = responses_of(router).create(model=MODEL, input="Hi 你好 🙂", instructions="Be brief.",
                                             max_output_tokens=16)
        assert answer.object == "response" and answer.model == MODEL and answer.output_text, answer
        assert answer.status in ("completed", "incomplete"), answer
        usage = answer.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0, usage


def test_responses_streamed():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        events = list(responses_of(router).create(model=MODEL, input=[user("Tell me a story.")], stream=True,
                                                  prompt_cache_key="conv-9"))
        kinds = [e.type for e in events]
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
        assert [e.sequence_number for e in events] == list(range(len(events)))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text and events[-1].response.output_text == text, text
        assert events[-1].response.usage.output_tokens > 0
        assert router.admin_json("/admin/sessions")["count"] == 1


def test_responses_of_a_session_stay_home_and_report_what_was_reused():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        items, homes, cached = [], set(), []
        for turn in range(4):
            items.append(user(f"Question {turn}?"))
            raw = responses_of(router).with_raw_response.create(
                model=MODEL, input=items, instructions=LONG, max_output_tokens=40, extra_headers=SESSION)
            answer = raw.parse()
            items += [item.to_dict() for item in answer.output]
            homes.add(raw.headers["x-homing-worker"])
            cached.append((int(raw.headers.get("x-homing-cached-tokens", -1)),
                           answer.usage.input_tokens_details.cached_tokens))
            eventually(lambda: sum(w["cached_blocks"] for w in router.workers()) > 0, "the events have come")
        assert len(homes) == 1, homes
        assert all(reported > 300 for _, reported in cached[1:]), cached
        assert abs(cached[-1][0] - cached[-1][1]) <= 16, cached
        trust = next(w["trust"] for w in router.workers() if w["id"] in homes)
        assert trust["responses"]["trust"] == 1.0, trust


def test_one_prompt_in_three_apis_is_one_prefix():
    """What a chat has left in a cache is found by the other two, whatever their sessions."""
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "system", "content": LONG}, user("Hi")]}
        eventually(lambda: router.post("/v1/chat/completions", body)[1].get("x-homing-cached-tokens", "0") != "0",
                   "the chat is known")
        first = router.post("/v1/chat/completions", body)[1]
        system = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
        for path, same in (("/v1/messages", {"system": [system], "messages": [user("Hi")], "max_tokens": 8}),
                           ("/v1/responses", {"instructions": LONG, "input": "Hi", "max_output_tokens": 8})):
            status, headers, data = router.post(path, {"model": MODEL, **same})
            assert status == 200, (path, data[:300])
            for name in ("x-homing-worker", "x-homing-cached-tokens"):
                assert headers[name] == first[name], (path, headers, first)


def test_a_stock_fleet_is_known_by_text():
    with Mock("--stock") as a, Mock("--stock") as b, ServeFlags([a, b]) as router:
        marked = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
        plain = {"type": "text", "text": LONG}
        turns = [[{"role": "user", "content": [marked]}], [{"role": "user", "content": [plain]}, user("Go on.")]]
        seen = []
        for said in turns:
            raw = messages_of(router).with_raw_response.create(model=MODEL, max_tokens=8, messages=said)
            assert raw.parse().usage.cache_read_input_tokens is None
            seen.append((raw.headers["x-homing-worker"], int(raw.headers["x-homing-cached-tokens"])))
        assert seen[0][1] == 0 and seen[1][1] > 500 and seen[0][0] == seen[1][0], seen


def test_errors_are_the_sdks_own():
    with Mock() as a, Serve([a]) as router:
        for model, raised in (("nope", anthropic.NotFoundError), (MODEL, anthropic.BadRequestError)):
            try:
                # The second reaches the engine, whose own error passes.
                messages_of(router).create(model=model, max_tokens=-1, messages=[user("Hi")])
                raise AssertionError("it was served")
            except raised as e:
                assert e.body["type"] == "error" and e.body["error"]["message"], e.body
                assert e.response.headers["x-request-id"], e.response.headers
        try:
            messages_of(router).create(model=MODEL, max_tokens=8, messages=[user("Hi")],
                                       extra_headers={"x-homing-worker": "nobody"})
            raise AssertionError("it was served")
        except anthropic.BadRequestError as e:
            assert e.body["error"]["type"] == "invalid_request_error", e.body
        try:
            responses_of(router).create(model="nope", input="Hi")
            raise AssertionError("it was served")
        except openai.NotFoundError as e:
            assert e.code == "model_not_found", e.body
        try:
            responses_of(router).create(model=MODEL, input="Hi", previous_response_id="resp_1")
            raise AssertionError("it was served")
        except openai.BadRequestError as e:
            assert "previous_response_id" in str(e.body), e.body
        status, _, body = router.post("/v1/responses", {"model": MODEL})
        check_error(status, body, 400, "invalid_request")
