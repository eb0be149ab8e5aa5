// The official OpenAI SDK for Node against the gateway over simulated engines: nothing of ours in the client.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MODEL, OpenAI, breaking, fleet } from "./harness.mjs";

const LIMIT = { timeout: 120_000 };
const HI = [{ role: "user", content: "Hi 你好 🙂" }];
// More words than a test waits for.
const LONG = { max_tokens: 30_000, ignore_eos: true };
const PLANNED = '[[models]]\nname = "planned"\n';

const client = (fleet, options = {}) =>
  new OpenAI({ baseURL: `${fleet.url}/v1`, apiKey: "sk-test", maxRetries: 0, timeout: 30_000, ...options });

function checkUsage(usage) {
  assert.ok(usage.prompt_tokens > 0 && usage.completion_tokens > 0, JSON.stringify(usage));
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
}

test("chat, whole", LIMIT, () =>
  fleet(async (fleet) => {
    const { data, response, request_id } = await client(fleet)
      .chat.completions.create({ model: MODEL, messages: HI, max_tokens: 16 })
      .withResponse();
    assert.equal(data.object, "chat.completion");
    assert.ok(data.choices[0].message.content);
    checkUsage(data.usage);
    assert.ok(response.headers.get("x-homing-worker"));
    assert.equal(request_id, response.headers.get("x-request-id"));
  }));

test("chat, streamed, with its usage", LIMIT, () =>
  fleet(async (fleet) => {
    const stream = await client(fleet).chat.completions.create({
      model: MODEL,
      messages: HI,
      max_tokens: 20,
      stream: true,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.ok(chunks.map((c) => c.choices[0]?.delta.content ?? "").join(""));
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
    checkUsage(chunks.at(-1).usage);
    assert.ok(["stop", "length"].includes(chunks.at(-2).choices[0].finish_reason));
  }));

test("the stream helper assembles a whole answer", LIMIT, () =>
  fleet(async (fleet) => {
    const runner = client(fleet).chat.completions.stream({ model: MODEL, messages: HI, max_tokens: 2_000 });
    let text = "";
    runner.on("content", (delta) => (text += delta));
    assert.equal(await runner.finalContent(), text);
    assert.ok(text);
  }));

test("tools, their calls and their results", LIMIT, () =>
  fleet(async (fleet) => {
    const weather = { name: "weather", parameters: { type: "object", properties: { place: { type: "string" } } } };
    const ask = (messages) =>
      client(fleet).chat.completions.create({
        model: MODEL,
        messages,
        max_tokens: 24,
        tools: [{ type: "function", function: weather }],
      });
    const first = await ask(HI);
    const called = { id: "call_1", type: "function", function: { name: "weather", arguments: '{"place":"Rome"}' } };
    const second = await ask([
      ...HI,
      { role: "assistant", content: null, tool_calls: [called] },
      { role: "tool", tool_call_id: "call_1", content: "sunny, 31 degrees" },
    ]);
    assert.ok(second.choices[0].message.content);
    assert.ok(second.usage.prompt_tokens > first.usage.prompt_tokens);
  }));

test("completions and models", LIMIT, () =>
  fleet(async (fleet) => {
    const answer = await client(fleet).completions.create({ model: MODEL, prompt: "Once upon a time", max_tokens: 8 });
    assert.ok(answer.choices[0].text);
    checkUsage(answer.usage);
    const models = await client(fleet).models.list();
    assert.deepEqual(models.data.map((m) => m.id), [MODEL]);
  }));

test("responses, whole and streamed", LIMIT, () =>
  fleet(async (fleet) => {
    const ask = { model: MODEL, input: "Tell me a story.", instructions: "Be brief.", max_output_tokens: 30 };
    const answer = await client(fleet).responses.create(ask);
    assert.equal(answer.object, "response");
    assert.ok(answer.output_text);
    assert.equal(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens);
    const events = [];
    for await (const event of await client(fleet).responses.create({ ...ask, stream: true })) events.push(event);
    assert.equal(events[0].type, "response.created");
    assert.ok(["response.completed", "response.incomplete"].includes(events.at(-1).type), events.at(-1).type);
    assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
    const deltas = events.filter((e) => e.type === "response.output_text.delta").map((e) => e.delta);
    assert.equal(deltas.join(""), answer.output_text);
  }));

test("a session stays at home", LIMIT, () =>
  fleet(
    async (fleet) => {
      const homes = new Set();
      const words = [];
      for (let turn = 0; turn < 4; turn++) {
        const { response } = await client(fleet)
          .chat.completions.create(
            { model: MODEL, messages: HI, max_tokens: 4 },
            { headers: { "x-homing-session-id": "agent-1" } },
          )
          .withResponse();
        homes.add(response.headers.get("x-homing-worker"));
        words.push(response.headers.get("x-homing-affinity"));
      }
      assert.equal(homes.size, 1);
      assert.deepEqual(words, ["new", "hit", "hit", "hit"]);
    },
    { extra: '[routing]\npolicy = "round_robin"\n' },
  ));

test("errors are the SDK's own, and what can't be cured is not tried again", LIMIT, () =>
  fleet(async (fleet) => {
    const sdk = client(fleet, { maxRetries: 2 });
    const unknown = await sdk.chat.completions.create({ model: "nope", messages: HI }).catch((e) => e);
    assert.ok(unknown instanceof OpenAI.NotFoundError, String(unknown));
    assert.equal(unknown.code, "model_not_found");
    assert.ok(unknown.requestID);
    assert.equal(unknown.headers.get("x-should-retry"), "false");
    assert.equal(await fleet.metric("homing_requests_total", 'status="404"'), 1);
    // The first is refused here, the second by the engine, whose own words pass.
    for (const body of [{ model: 5 }, { model: MODEL, messages: HI, max_tokens: -1 }]) {
      const bad = await sdk.chat.completions.create(body).catch((e) => e);
      assert.ok(bad instanceof OpenAI.BadRequestError, String(bad));
      assert.ok(bad.error.message, JSON.stringify(bad.error));
    }
    assert.equal(await fleet.metric("homing_requests_total", 'status="400"'), 2);
    const nobody = await sdk.responses.create({ model: "nope", input: "Hi" }).catch((e) => e);
    assert.ok(nobody instanceof OpenAI.NotFoundError, String(nobody));
  }));

test("a body that is too large is said to be", LIMIT, () =>
  fleet(async (fleet) => {
    const pad = "x".repeat(40 << 20);
    for (let i = 0; i < 5; i++) {
      const large = await client(fleet)
        .chat.completions.create({ model: MODEL, messages: [{ role: "user", content: pad }] })
        .catch((e) => e);
      assert.equal(large.status, 413, `${large}, ${large.cause?.cause?.code}`);
    }
    assert.equal(await fleet.metric("homing_requests_total", 'status="413"'), 5);
  }));

test("no worker: 503, tried again as often as the SDK was told, when it was told", LIMIT, () =>
  fleet(
    async (fleet) => {
      const began = Date.now();
      const sdk = client(fleet, { maxRetries: 1 });
      const gone = await sdk.chat.completions.create({ model: "planned", messages: HI }).catch((e) => e);
      assert.ok(gone instanceof OpenAI.InternalServerError, String(gone));
      assert.equal(gone.status, 503);
      assert.equal(gone.code, "no_worker");
      // By itself the SDK would come again after half a second.
      assert.ok(Date.now() - began >= 1_000, "it came again before it was told to");
      const [after, exactly] = ["retry-after", "retry-after-ms"].map((name) => Number(gone.headers.get(name)));
      assert.ok(after * 1_000 >= exactly && exactly >= 1_000, `${after} s, ${exactly} ms`);
      assert.equal(gone.headers.get("x-should-retry"), null);
      assert.equal(await fleet.metric("homing_requests_total", 'status="503"'), 2);
    },
    { mocks: 1, extra: PLANNED },
  ));

test("what may have run is not tried again by the SDK", LIMIT, () =>
  breaking((worker) =>
    fleet(
      async (fleet) => {
        const sdk = client(fleet, { maxRetries: 2 });
        const broken = await sdk.chat.completions.create({ model: MODEL, messages: HI }).catch((e) => e);
        assert.ok(broken instanceof OpenAI.InternalServerError, String(broken));
        assert.equal(broken.status, 502);
        assert.equal(broken.code, "worker_error");
        assert.equal(broken.headers.get("x-should-retry"), "false");
        assert.equal(worker.seen, 1);
      },
      { mocks: 0, urls: [worker.url], extra: "[retry]\nattempts = 0\n" },
    ),
  ));

test("a client that is out of time, or patience, frees the worker", LIMIT, () =>
  fleet(async (fleet) => {
    const sdk = client(fleet);
    const ask = { model: MODEL, messages: HI, ...LONG };
    const late = await sdk.chat.completions.create(ask, { timeout: 300 }).catch((e) => e);
    assert.ok(late instanceof OpenAI.APIConnectionTimeoutError, String(late));
    await fleet.quiet();

    const patience = new AbortController();
    const whole = sdk.chat.completions.create(ask, { signal: patience.signal }).catch((e) => e);
    while ((await fleet.engineRequests()) === 0);
    patience.abort();
    assert.ok((await whole) instanceof OpenAI.APIUserAbortError);
    await fleet.quiet();

    for (const leave of [(stream) => stream.controller.abort(), () => {}]) {
      const stream = await sdk.chat.completions.create({ ...ask, stream: true });
      let seen = 0;
      for await (const _ of stream)
        if (++seen === 3) {
          leave(stream);
          break;
        }
      assert.equal(seen, 3);
      await fleet.quiet();
    }
    const told = await sdk.responses.create({ model: MODEL, input: "Hi", stream: true, max_output_tokens: 30_000 });
    for await (const _ of told) break;
    await fleet.quiet();
    assert.equal((await sdk.chat.completions.create({ model: MODEL, messages: HI, max_tokens: 4 })).choices.length, 1);
  }));
