// Which tools a model has: by its task, its inputs and its labels.
import { drawsDigits } from "../lib/descriptions.js";

const TASKS = {
  tensor: "Tensors in, tensors out",
  embed: "Texts to vectors",
  classify: "Texts to labels",
  generate: "Generates text",
};

const IMAGE_TASKS = { ...TASKS, embed: "Pictures to vectors", classify: "Pictures to labels" };

/** Return what the task of a loaded model means, in a few words. */
export const meaningOf = (model) => (model.image ? IMAGE_TASKS : TASKS)[model.task] ?? model.task;

const TOOLS = {
  chat: { id: "chat", label: "Chat", load: () => import("./chat.js").then((module) => module.Chat) },
  completion: { id: "completion", label: "Completion", load: () => import("./completion.js").then((module) => module.Completion) },
  similarity: { id: "similarity", label: "Similarity", load: () => import("./similarity.js").then((module) => module.Similarity) },
  rank: { id: "rank", label: "Rank", load: () => import("./rank.js").then((module) => module.Rank) },
  classify: { id: "classify", label: "Classify", load: () => import("./classify.js").then((module) => module.Classify) },
  images: { id: "images", label: "Pictures", load: () => import("./images.js").then((module) => module.Images) },
  draw: { id: "draw", label: "Draw", load: () => import("./draw.js").then((module) => module.Draw) },
  tasks: { id: "tasks", label: "Task", load: () => import("./tasks.js").then((module) => module.Tasks) },
  tensors: { id: "tensors", label: "Tensors", load: () => import("./tensors.js").then((module) => module.Tensors) },
  browser: { id: "browser", label: "In the browser", load: () => import("../browser/in-browser.js").then((module) => module.InBrowser) },
};

/** Return the tools of a described model, the most useful first; none while it is not loaded. */
export function toolsOf(model) {
  const isOnnx = model.framework === "onnx";
  if (model.image && ["classify", "embed"].includes(model.task)) {
    // A pipeline reads files as strings.
    const readsTexts = model.framework !== "pipeline" && model.inputs.some((input) => input.dtype === "string" || input.name === "input_ids");
    return [TOOLS.images, ...(readsTexts ? [TOOLS.similarity, TOOLS.rank] : []), ...(isOnnx ? [TOOLS.tensors] : [])];
  }
  switch (model.task) {
    case "generate":
      return [TOOLS.chat, TOOLS.completion];
    case "embed": {
      // With a vector for each token, the score of a pair depends on which text is the query.
      const tools = model.vectors === "multi" ? [TOOLS.rank] : [TOOLS.similarity, TOOLS.rank];
      const isSparse = model.vectors === "sparse";
      return [...tools, ...(isOnnx ? [...(isSparse ? [] : [TOOLS.browser]), TOOLS.tensors] : [])];
    }
    case "classify":
      return isCrossEncoder(model) ? [TOOLS.rank, TOOLS.classify] : [TOOLS.classify];
    case "tensor":
      return drawsDigits(model) ? [TOOLS.draw, TOOLS.browser, TOOLS.tensors] : [TOOLS.tensors, ...(isOnnx ? [TOOLS.browser] : [])];
    case null:
      return [];
    default:
      return [TOOLS.tasks, ...(isOnnx ? [TOOLS.tensors] : [])];
  }
}

/** Whether a classifier has one label, so that its score ranks a text for a query. */
function isCrossEncoder(model) {
  // The list of models has capabilities, a single model has its labels.
  return model.capabilities?.includes("rerank") ?? model.version_details[model.active_version].labels?.length === 1;
}
