// Anthropic's official SDK for Node against the gateway over simulated engines: nothing of ours in the client.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Anthropic, MODEL, breaking, fleet } from "./harness.mjs";

const LIMIT = { timeout: 120_000 };
const HI = [{ role: "user", content: "Hi 你好 🙂" }];
const ASK = { model: MODEL, messages: HI, max_tokens: 40 };
// More words than a test waits for.
const LONG = { ...ASK, max_tokens: 20_000, ignore_eos: true };
const PLANNED = '[[models]]\nname = "planned"\n';

const client = (fleet, options = {}) =>
  new Anthropic({ baseURL: fleet.url, apiKey: "sk-ant-test", maxRetries: 0, timeout: 30_000, ...options });

test("messages, whole, and their tokens counted", LIMIT, () =>
  fleet(async (fleet) => {
    const system = [{ type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } }];
    const { data, response } = await client(fleet).messages.create({ ...ASK, system }).withResponse();
    assert.equal(data.type, "message");
    assert.equal(data.content[0].type, "text");
    assert.ok(data.content[0].text);
    assert.ok(["end_turn", "max_tokens"].includes(data.stop_reason));
    assert.ok(response.headers.get("x-homing-worker"));
    const counted = await client(fleet).messages.countTokens({ model: MODEL, system, messages: HI });
    assert.equal(counted.input_tokens, data.usage.input_tokens);
    assert.equal(await fleet.metric("homing_requests_total", 'endpoint="count_tokens"', 'status="200"'), 1);
  }));

test("messages, streamed: events, and the helper that assembles them", LIMIT, () =>
  fleet(async (fleet) => {
    const kinds = [];
    for await (const event of await client(fleet).messages.create({ ...ASK, stream: true })) kinds.push(event.type);
    assert.equal(kinds[0], "message_start");
    assert.equal(kinds.at(-1), "message_stop");
    assert.ok(kinds.includes("content_block_delta"));
    const stream = client(fleet).messages.stream(ASK, { headers: { "x-claude-code-session-id": "c-1" } });
    let text = "";
    stream.on("text", (delta) => (text += delta));
    const whole = await stream.finalMessage();
    assert.ok(text);
    assert.equal(whole.content[0].text, text);
    assert.ok(whole.usage.input_tokens > 0 && whole.usage.output_tokens > 0);
    assert.equal(stream.response.headers.get("x-homing-affinity"), "new");
  }));

test("tools and their results", LIMIT, () =>
  fleet(async (fleet) => {
    const tools = [{ name: "weather", input_schema: { type: "object", properties: { place: { type: "string" } } } }];
    const first = await client(fleet).messages.create({ ...ASK, tools });
    const second = await client(fleet).messages.create({
      ...ASK,
      tools,
      messages: [
        ...HI,
        { role: "assistant", content: [{ type: "tool_use", id: "t1", name: "weather", input: { place: "Rome" } }] },
        { role: "user", content: [{ type: "tool_result", tool_use_id: "t1", content: "sunny, 31 degrees" }] },
      ],
    });
    assert.ok(second.content[0].text);
    // Those that were reused are counted apart.
    const prompt = ({ usage }) => usage.input_tokens + (usage.cache_read_input_tokens ?? 0);
    assert.ok(prompt(second) > prompt(first));
  }));

test("errors are the SDK's own, and what can't be cured is not tried again", LIMIT, () =>
  fleet(async (fleet) => {
    const sdk = client(fleet, { maxRetries: 2 });
    const unknown = await sdk.messages.create({ ...ASK, model: "nope" }).catch((e) => e);
    assert.ok(unknown instanceof Anthropic.NotFoundError, String(unknown));
    assert.equal(unknown.error.type, "error");
    assert.equal(unknown.error.error.type, "not_found_error");
    assert.equal(unknown.headers.get("x-should-retry"), "false");
    assert.equal(await fleet.metric("homing_requests_total", 'status="404"'), 1);
    // The first is refused here, the second by the engine, whose own words pass.
    for (const body of [{ ...ASK, model: 5 }, { ...ASK, max_tokens: -1 }]) {
      const bad = await sdk.messages.create(body).catch((e) => e);
      assert.ok(bad instanceof Anthropic.BadRequestError, String(bad));
      assert.equal(bad.error.type, "error");
      assert.ok(bad.error.error.message);
    }
    assert.equal(await fleet.metric("homing_requests_total", 'status="400"'), 2);
    const uncounted = await sdk.messages.countTokens({ model: "nope", messages: HI }).catch((e) => e);
    assert.ok(uncounted instanceof Anthropic.NotFoundError, String(uncounted));
  }));

test("no worker: 503, tried again as often as the SDK was told, when it was told", LIMIT, () =>
  fleet(
    async (fleet) => {
      const began = Date.now();
      const gone = await client(fleet, { maxRetries: 1 })
        .messages.create({ ...ASK, model: "planned" })
        .catch((e) => e);
      assert.ok(gone instanceof Anthropic.InternalServerError, String(gone));
      assert.equal(gone.status, 503);
      assert.equal(gone.error.error.type, "overloaded_error");
      assert.ok(Date.now() - began >= 1_000, "it came again before it was told to");
      assert.equal(await fleet.metric("homing_requests_total", 'status="503"'), 2);
    },
    { mocks: 1, extra: PLANNED },
  ));

test("what may have run is not tried again by the SDK", LIMIT, () =>
  breaking((worker) =>
    fleet(
      async (fleet) => {
        const broken = await client(fleet, { maxRetries: 2 }).messages.create(ASK).catch((e) => e);
        assert.ok(broken instanceof Anthropic.InternalServerError, String(broken));
        assert.equal(broken.status, 502);
        assert.equal(broken.error.error.type, "api_error");
        assert.equal(worker.seen, 1);
      },
      { mocks: 0, urls: [worker.url], extra: "[retry]\nattempts = 0\n" },
    ),
  ));

test("a client that is out of time, or patience, frees the worker", LIMIT, () =>
  fleet(async (fleet) => {
    const sdk = client(fleet);
    const late = await sdk.messages.create(LONG, { timeout: 300 }).catch((e) => e);
    assert.ok(late instanceof Anthropic.APIConnectionTimeoutError, String(late));
    await fleet.quiet();

    const patience = new AbortController();
    const whole = sdk.messages.create(LONG, { signal: patience.signal, timeout: 30_000 }).catch((e) => e);
    while ((await fleet.engineRequests()) === 0);
    patience.abort();
    assert.ok((await whole) instanceof Anthropic.APIUserAbortError);
    await fleet.quiet();

    const stream = sdk.messages.stream(LONG);
    stream.on("text", () => stream.abort());
    assert.ok((await stream.done().catch((e) => e)) instanceof Anthropic.APIUserAbortError);
    await fleet.quiet();
    for await (const event of await sdk.messages.create({ ...LONG, stream: true }))
      if (event.type === "content_block_delta") break;
    await fleet.quiet();
    assert.equal((await sdk.messages.create(ASK)).role, "assistant");
  }));
