// What a model is for, from its description in GET /models.
const TASKS = { tensor: "tensors", embed: "embeddings", classify: "classification", generate: "text generation" };

/** What a model does and where it runs, in one line. */
export function describe(model) {
  const kind = { onnx: "ONNX", pytorch: "PyTorch", pipeline: "pipeline" }[model.framework] ?? model.framework;
  return [TASKS[model.task] ?? model.task, kind, model.device, model.dtype].filter(Boolean).join(" · ");
}

/** Whether the model reads an image of 8 x 8 grey values, as the embedded model of digits does. */
export function drawsDigits(model) {
  const [input, ...others] = model.inputs ?? [];
  return others.length === 0 && input?.name === "image" && input.shape?.length === 2 && input.shape[1] === 64;
}
