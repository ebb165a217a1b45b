// The parameters of a task, as the server describes them, as rows of a form of options.

const KINDS = { boolean: "choice", string: "text", template: "text", strings: "lines", numbers: "json", object: "json" };
/** First values of parameters that a request must have. */
const EXAMPLES = { candidate_labels: "railway\nkitchen\nstar" };

/** Return `[[title, rows]]` as generation-options.js has them. `parameters`: as in the description of a model. */
export function parameterGroups(parameters) {
  return [["Parameters", parameters.map(rowOf)]];
}

function rowOf({ name, type, choices, minimum, maximum, default: usual, required, description }) {
  const isChoice = type === "boolean" || choices.length > 0;
  const isNumber = type === "number" || type === "integer";
  return {
    name,
    kind: isChoice ? "choice" : KINDS[type] ?? type,
    values: type === "boolean" ? ["true", "false"] : choices,
    ...(isNumber ? { min: minimum, max: maximum, step: type === "number" ? "any" : 1 } : {}),
    ...(required ? { initial: EXAMPLES[name] ?? "" } : {}),
    hint: [description, type === "strings" ? "One per line." : "", usual === null ? "" : `Default: ${JSON.stringify(usual)}.`].filter(Boolean).join(" "),
  };
}
