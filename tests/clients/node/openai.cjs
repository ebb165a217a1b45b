// OpenAI's client for JavaScript. The model has random weights, and tools in its chat template.
const assert = require("node:assert");
const { test } = require("node:test");
const OpenAI = require("openai").default;

const client = new OpenAI({ baseURL: `${process.env.ROUNDHOUSE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "How warm is it in Bern?" }];
const asked = { model: "caller", messages, temperature: 0, max_tokens: 20 };
const schema = {
  type: "object", properties: { city: { enum: ["Bern", "Oslo"] } }, required: ["city"], additionalProperties: false,
};
const textOf = (message) => (message.reasoning_content ?? "") + (message.content ?? "");

test("a streamed chat equals the whole one", async () => {
  const whole = await client.chat.completions.create(asked);
  const chunks = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  let text = "";
  let usage;
  for await (const chunk of chunks) {
    if (chunk.choices.length) text += textOf(chunk.choices[0].delta);
    usage = chunk.usage ?? usage;
  }
  assert.ok(text);
  assert.equal(text, textOf(whole.choices[0].message));
  assert.equal(usage.completion_tokens, 20);
});

test("a forced tool is called, whole and as a stream", async () => {
  const tools = [{ type: "function", function: { name: "weather", parameters: schema, strict: true } }];
  const forced = { type: "function", function: { name: "weather" } };
  const calling = { model: "caller", messages, max_tokens: 600, seed: 1, tools, tool_choice: forced };
  const [call] = (await client.chat.completions.create(calling)).choices[0].message.tool_calls;
  assert.ok(["Bern", "Oslo"].includes(JSON.parse(call.function.arguments).city));
  const final = await client.chat.completions.stream(calling).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
});

test("completions and responses", async () => {
  const whole = await client.completions.create({ model: "caller", prompt: "A list is", max_tokens: 8, temperature: 0 });
  assert.ok(whole.choices[0].text);
  const text = { format: { type: "json_schema", name: "place", schema, strict: true } };
  const asking = { model: "caller", input: messages, max_output_tokens: 600, seed: 1, text };
  const answer = await client.responses.create(asking);
  assert.ok(["Bern", "Oslo"].includes(JSON.parse(answer.output_text).city));
  let streamed = "";
  for await (const event of await client.responses.create({ ...asking, stream: true })) {
    if (event.type === "response.output_text.delta") streamed += event.delta;
  }
  assert.equal(streamed, answer.output_text);
});

test("texts are embedded, as base64 and as numbers", async () => {
  // The client asks for base64 by default.
  const answers = await Promise.all(
    [undefined, "float"].map((form) => client.embeddings.create({ model: "minilm", input: ["a"], encoding_format: form })),
  );
  const [one, other] = answers.map((each) => each.data[0].embedding);
  assert.equal(one.length, 384);
  assert.ok(one.every((value, index) => Math.abs(value - other[index]) < 1e-5));
});

test("models are listed", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("caller"));
});

test("an unknown model and a wrong field are refused", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, model: "absent" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...asked, top_p: 3 }), OpenAI.BadRequestError);
});
