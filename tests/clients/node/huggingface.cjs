// Hugging Face's client for JavaScript, at an endpoint of one's own.
const assert = require("node:assert");
const { test } = require("node:test");
const { InferenceClient } = require("@huggingface/inference");

const url = process.env.ROUNDHOUSE_URL;
const client = new InferenceClient("none", { endpointUrl: url });

test("a streamed chat equals the whole one", async () => {
  const asked = { messages: [{ role: "user", content: "How warm is it?" }], max_tokens: 16, temperature: 0 };
  const textOf = (message) => (message.reasoning_content ?? "") + (message.content ?? "");
  const whole = await client.chatCompletion(asked);
  let text = "";
  for await (const chunk of client.chatCompletionStream(asked)) text += textOf(chunk.choices[0].delta);
  assert.ok(text);
  assert.equal(text, textOf(whole.choices[0].message));
});

test("a streamed text equals the whole one", async () => {
  const asked = { inputs: "A list is", parameters: { max_new_tokens: 8, temperature: 0 } };
  const whole = await client.textGeneration(asked);
  let text = "";
  // The events are those of /v1/completions, to which the client sends the text.
  for await (const event of client.textGenerationStream(asked)) text += event.choices[0].text;
  assert.ok(text);
  assert.equal(text, whole.generated_text);
});

test("texts are embedded, compared and classified", async () => {
  const vectors = await client.featureExtraction({ inputs: ["a", "b"] });
  assert.deepEqual(vectors.map((each) => each.length), [384, 384]);
  const inputs = { source_sentence: "a", sentences: ["a", "b"] };
  assert.ok(Math.abs((await client.sentenceSimilarity({ inputs }))[0] - 1) < 1e-3);
});
