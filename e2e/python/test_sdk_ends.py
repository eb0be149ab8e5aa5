"""How requests of the official Python SDKs end that don't end well: refused, tried again, too slow, given up.

The same list as in ../node; whole answers are in test_openai_sdk and test_other_apis.
"""
import asyncio
import time

import anthropic
import openai
from harness import MODEL, Mock, Serve, call, eventually, metric
from scripted_worker import Reset, ScriptedWorker

HI = [{"role": "user", "content": "Hi 你好 🙂"}]
TOOL = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
# More words than a test waits for.
ENDLESS = {"extra_body": {"ignore_eos": True}, "max_tokens": 20_000}
# A name that the configuration knows and nobody serves: 503 from the start.
PLANNED = '[[models]]\nname = "planned"\n'


def openai_of(router, **options):
    return openai.OpenAI(**{"base_url": router.url + "/v1", "api_key": "sk-test", "max_retries": 0, "timeout": 30,
                            **options})


def anthropic_of(router, **options):
    return anthropic.Anthropic(**{"base_url": router.url, "api_key": "sk-ant-test", "max_retries": 0, "timeout": 30,
                                  **options})


def chat(sdk, **more):
    return sdk.chat.completions.create(**{"model": MODEL, "messages": HI, **more})


def message(sdk, **more):
    return sdk.messages.create(**{"model": MODEL, "messages": HI, "max_tokens": 16, **more})


# (package, client, what asks for an answer)
BOTH = ((openai, openai_of, chat), (anthropic, anthropic_of, message))


def raised(kind, ask, *args, **more):
    """The error of this kind that asking must raise."""
    try:
        got = ask(*args, **more)
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__} but {got}")


def engines_idle(*mocks):
    """True if no engine runs anything or lets it wait, by their own word."""
    pages = [call(mock.port, "GET", "/metrics")[2].decode() for mock in mocks]
    return all(metric(page, f"vllm:num_requests_{state}") == 0 for page in pages for state in ("running", "waiting"))


def prompt_tokens(answer):
    """Of a message: those that were reused are counted apart."""
    return answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def quiet(router, *mocks):
    """Waits until nothing runs: neither at an engine, nor by the router's books."""
    eventually(lambda: engines_idle(*mocks), "the engines are idle")
    eventually(lambda: all(w["active_requests"] == 0 for w in router.workers()), "the router knows it")
    assert router.admin_json("/admin/sessions")["leases"] == 0


def test_refusals_are_the_sdks_own_and_come_once():
    with Mock() as mock, Serve([mock]) as router:
        for i, (package, client, ask) in enumerate(BOTH, 1):
            sdk = client(router, max_retries=2)
            unknown = raised(package.NotFoundError, ask, sdk, model="nope")
            assert unknown.response.headers["x-should-retry"] == "false", unknown.response.headers
            assert unknown.response.headers["x-request-id"], unknown.response.headers
            assert router.metric("homing_requests_total", status="404") == i
            # The first is refused here, the second by the engine, whose own words pass.
            for body in ({"extra_body": {"model": 5}}, {"max_tokens": -1}):
                assert raised(package.BadRequestError, ask, sdk, **body).body, body
            assert router.metric("homing_requests_total", status="400") == 2 * i


def test_no_worker_is_tried_again_when_the_sdk_was_told_to():
    with Mock() as mock, Serve([mock], extra=PLANNED) as router:
        for i, (package, client, ask) in enumerate(BOTH, 1):
            began = time.monotonic()
            gone = raised(package.InternalServerError, ask, client(router, max_retries=1), model="planned")
            # By itself an SDK comes again after half a second; this is what it was told, no matter of speed.
            assert time.monotonic() - began >= 1, "it came again before it was told to"
            assert gone.status_code == 503, gone
            headers = gone.response.headers
            assert int(headers["retry-after"]) * 1000 >= int(headers["retry-after-ms"]) >= 1000, headers
            assert "x-should-retry" not in headers, headers
            assert router.metric("homing_requests_total", status="503") == 2 * i


def test_what_may_have_run_is_not_tried_again():
    with ScriptedWorker() as worker, Serve([worker], extra="[retry]\nattempts = 0\n") as router:
        for i, (package, client, ask) in enumerate(BOTH, 1):
            worker.will(Reset())
            broken = raised(package.InternalServerError, ask, client(router, max_retries=2))
            assert broken.status_code == 502, broken
            assert broken.response.headers["x-should-retry"] == "false", broken.response.headers
            assert len(worker.seen) == i


def test_an_sdk_that_is_out_of_time_frees_the_worker():
    with Mock() as mock, Serve([mock]) as router:
        for package, client, ask in BOTH:
            raised(package.APITimeoutError, ask, client(router, timeout=0.3), **ENDLESS)
            quiet(router, mock)
        assert router.metric("homing_requests_total", status="499") == 2


def test_a_stream_that_its_reader_leaves_frees_the_worker():
    with Mock() as a, Mock() as b, Serve([a, b]) as router:
        for _, client, ask in BOTH:
            with ask(client(router), stream=True, **ENDLESS) as stream:
                assert next(iter(stream))
            quiet(router, a, b)
        with openai_of(router).responses.create(model=MODEL, input="Hi", stream=True,
                                                max_output_tokens=20_000) as stream:
            assert next(iter(stream)).type == "response.created"
        quiet(router, a, b)
        assert chat(openai_of(router), max_tokens=4).choices


def test_a_cancelled_task_frees_the_worker():
    async def leave(router, mock):
        async with openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="k", max_retries=0, timeout=30) as sdk:
            task = asyncio.create_task(chat(sdk, **ENDLESS))
            while engines_idle(mock):
                assert not task.done(), task
                await asyncio.sleep(0.01)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return
            raise AssertionError("it was answered")

    with Mock() as mock, Serve([mock]) as router:
        asyncio.run(leave(router, mock))
        quiet(router, mock)


def test_messages_streamed_event_by_event_and_with_tools():
    with Mock() as mock, Serve([mock]) as router:
        sdk = anthropic_of(router)
        kinds = [event.type for event in message(sdk, stream=True)]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
        assert "content_block_delta" in kinds, kinds
        tools = [{"name": "weather", "input_schema": TOOL}]
        first = message(sdk, tools=tools)
        use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Rome"}}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny, 31 degrees"}
        second = message(sdk, tools=tools, messages=[
            *HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}])
        assert second.content and prompt_tokens(second) > prompt_tokens(first), (first, second)


def test_responses_with_tools():
    with Mock() as mock, Serve([mock]) as router:
        sdk = openai_of(router)
        tools = [{"type": "function", "name": "weather", "parameters": TOOL}]
        first = sdk.responses.create(model=MODEL, input=HI, tools=tools, max_output_tokens=16)
        second = sdk.responses.create(model=MODEL, tools=tools, max_output_tokens=16, input=[
            *HI, {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place":"Rome"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny, 31 degrees"}])
        assert second.output_text and second.usage.input_tokens > first.usage.input_tokens, (first, second)
