// Ollama's client for JavaScript. The model has random weights, and tools in its chat template.
const assert = require("node:assert");
const { test } = require("node:test");
const { Ollama } = require("ollama");

const client = new Ollama({ host: process.env.ROUNDHOUSE_URL });
const messages = [{ role: "user", content: "How warm is it in Bern?" }];
const asked = { model: "caller", options: { seed: 1, num_predict: 20 } };
const textOf = (message) => (message.thinking ?? "") + message.content;

test("a streamed chat equals the whole one", async () => {
  const whole = await client.chat({ ...asked, messages });
  let text = "";
  for await (const part of await client.chat({ ...asked, messages, stream: true })) text += textOf(part.message);
  assert.ok(text);
  assert.equal(text, textOf(whole.message));
});

test("tools and a format are accepted", async () => {
  const parameters = { type: "object", properties: { city: { type: "string" } } };
  const tools = [{ type: "function", function: { name: "weather", description: "Tell.", parameters } }];
  assert.ok((await client.chat({ ...asked, messages, tools })).done);
  const drawn = { model: "caller", options: { seed: 1, num_predict: 600 }, prompt: "Hi", format: { enum: ["a", "b"] } };
  const answer = await client.generate(drawn);
  assert.ok(["a", "b"].includes(JSON.parse(answer.response)));
});

test("texts are embedded", async () => {
  const { embeddings } = await client.embed({ model: "minilm", input: ["a", "b"] });
  assert.deepEqual(embeddings.map((each) => each.length), [384, 384]);
});

test("models are listed and described", async () => {
  assert.ok((await client.list()).models.some((each) => each.name === "caller"));
  assert.ok((await client.ps()).models.some((each) => each.name === "caller"));
  assert.ok((await client.show({ model: "caller" })).capabilities.includes("tools"));
  assert.ok((await client.version()).version);
});

test("an unknown model is refused", async () => {
  await assert.rejects(client.chat({ model: "absent", messages }), /absent/);
});
