// An embedding model in the page: texts to vectors, by the tokenizer and the pooling of its files.
import { WordPiece } from "./wordpiece.js";

const POOLINGS = { pooling_mode_mean_tokens: meanOf, pooling_mode_cls_token: firstOf };

export class TextEncoder {
  /**
   * `model`: a BrowserModel. `inputs`: `[{name, dtype}]` of its graph. `files`: the JSON of `{tokenizer, pooling,
   * modules}`, the last two null without the file.
   * Raises an Error that names the file whose settings are not supported here.
   */
  constructor(model, inputs, files, maxTokens) {
    this.model = model;
    this.inputs = inputs;
    this.tokenizer = new WordPiece(files.tokenizer);
    this.maxTokens = maxTokens;
    const pooling = files.pooling ?? { pooling_mode_mean_tokens: true };
    const modes = Object.keys(pooling).filter((name) => name.startsWith("pooling_mode_") && pooling[name]);
    this.pool = POOLINGS[modes[0]];
    if (modes.length !== 1 || this.pool === undefined) {
      throw new Error(`1_Pooling/config.json: expected the mean or the first token, got ${modes.join(", ")}`);
    }
    this.normalizes = files.modules === null || files.modules.some((module) => module.type.endsWith(".Normalize"));
  }

  /** Return one vector per text, as arrays of numbers. All texts are one batch. */
  async encode(texts) {
    const rows = texts.map((text) => this.tokenizer.encode(text, this.maxTokens));
    const length = Math.max(...rows.map((row) => row.length));
    const padded = (value) => rows.flatMap((row) => Array.from({ length }, (_, at) => value(row, at)));
    const values = {
      input_ids: () => padded((row, at) => row[at] ?? 0),
      attention_mask: () => padded((row, at) => (at < row.length ? 1 : 0)),
      token_type_ids: () => padded(() => 0),
      position_ids: () => padded((_, at) => at),
    };
    const inputs = {};
    for (const { name, dtype } of this.inputs) inputs[name] = { dtype, shape: [rows.length, length], data: values[name]() };
    const outputs = await this.model.run(inputs);
    const whole = outputs.sentence_embedding;
    const hidden = outputs.last_hidden_state ?? outputs.token_embeddings ?? Object.values(outputs).find((each) => each.shape.length === 3);
    if (!whole && !hidden) throw new Error("outputs: expected one of shape [texts, tokens, size], got none");
    const size = (whole ?? hidden).shape.at(-1);
    return rows.map((row, text) => {
      const vector = whole ? firstOf(whole.data, text * size, 1, size) : this.pool(hidden.data, text * length * size, row.length, size);
      return this.normalizes ? normalized(vector) : vector;
    });
  }
}

function meanOf(data, start, tokens, size) {
  const vector = new Array(size).fill(0);
  for (let token = 0; token < tokens; token += 1) {
    for (let at = 0; at < size; at += 1) vector[at] += data[start + token * size + at] / tokens;
  }
  return vector;
}

function firstOf(data, start, _tokens, size) {
  return Array.from(data.subarray(start, start + size));
}

function normalized(vector) {
  const norm = Math.hypot(...vector);
  return norm === 0 ? vector : vector.map((value) => value / norm);
}
