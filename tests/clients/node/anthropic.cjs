// Anthropic's client for JavaScript. The model has random weights, and tools in its chat template.
const assert = require("node:assert");
const { test } = require("node:test");
const Anthropic = require("@anthropic-ai/sdk").default;

const client = new Anthropic({ baseURL: process.env.ROUNDHOUSE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "How warm is it in Bern?" }];
const asked = { model: "caller", max_tokens: 20, messages, temperature: 0 };

test("a streamed message equals the whole one", async () => {
  const whole = await client.messages.create(asked);
  const streamed = await client.messages.stream(asked).finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, "max_tokens");
});

test("a forced tool is called", async () => {
  const input_schema = { type: "object", properties: { city: { enum: ["Bern", "Oslo"] } }, required: ["city"] };
  const tools = [{ name: "weather", description: "Tell.", input_schema, strict: true }];
  const calling = { ...asked, temperature: 1, max_tokens: 600, seed: 1, tools, tool_choice: { type: "tool", name: "weather" } };
  const message = await client.messages.create(calling);
  assert.ok(["Bern", "Oslo"].includes(message.content.at(-1).input.city));
});

test("tokens are counted", async () => {
  assert.ok((await client.messages.countTokens({ model: "caller", messages })).input_tokens > 3);
});

test("a wrong field is refused", async () => {
  await assert.rejects(client.messages.create({ ...asked, top_p: 3 }), Anthropic.BadRequestError);
});
