// Any other task of transformers: a text or a file, with the parameters of the task, to its predictions.
import { ErrorNotice } from "../components/message.js";
import { modelPath } from "../lib/api.js";
import { html, useMemo, useState } from "../lib/html.js";
import { initialValues, readOptions } from "./generation-options.js";
import { OptionsForm } from "./options-form.js";
import { RunButtons, TextField } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { useRun } from "./run.js";
import { TaskAnswer } from "./task-answers.js";
import { parameterGroups } from "./task-parameters.js";
import { FileField } from "./task-files.js";
import { Timing } from "./timing.js";

const TEXT = "A roundhouse in Berlin is where engines wait for their train.";
/** Members of an input by task, with examples. One that is no string is written as JSON. */
const MEMBERS = {
  "question-answering": { question: "Where do engines wait?", context: TEXT },
  "table-question-answering": { query: "How many wheels has the tender?", table: { part: ["engine", "tender"], wheels: ["8", "6"] } },
  "document-question-answering": {
    question: "What is the number?",
    word_boxes: [["number", [10, 10, 200, 40]], ["42", [210, 10, 300, 40]]],
  },
  "fill-mask": { text: "A roundhouse is where engines [MASK]." },
};
/** Kinds of files, by the name of their field. The words of a document are enough: its picture is not asked for. */
const FILES = ["image", "audio", "video"];
const ONE_LINE = ["question", "query"];

export function Tasks({ model, name }) {
  const kind = MEMBERS[model.task] ? undefined : FILES.find((each) => model.reads.includes(each));
  const examples = kind ? {} : MEMBERS[model.task] ?? { text: TEXT };
  const groups = useMemo(() => parameterGroups(model.parameters), [model]);
  const [texts, setTexts] = useState(() => Object.fromEntries(Object.entries(examples).map(([key, value]) => [key, written(value)])));
  const [values, setValues] = useState(() => initialValues(groups));
  const [files, setFiles] = useState([]);
  const { run, start, stop } = useRun();
  const { members: parameters, faults } = readOptions(groups, values);
  const wanted = kind === undefined ? 0 : model.task === "keypoint-matching" ? 2 : 1;
  const input = readInput(examples, texts);
  const isValid = input !== null && files.length === wanted && Object.keys(faults).length === 0;
  const request = isValid ? requestOf(modelPath(name, "/infer"), kind, files, input, parameters) : null;
  const add = (more) => setFiles((all) => [...all, ...more].slice(-wanted));
  const submit = (event) => { event.preventDefault(); if (request) start(request); };
  return html`<div class="pg-split pg-split-even">
    <div class="stack">
      <section class="panel" aria-label="Input">
        <form class="stack" onSubmit=${submit}>
          ${Object.keys(texts).map((key) => html`<${TextField} key=${key} label=${capital(key.replaceAll("_", " "))} value=${texts[key]}
            rows=${ONE_LINE.includes(key) ? 1 : 4} onChange=${(text) => setTexts({ ...texts, [key]: text })} />`)}
          ${kind ? html`<${FileField} kind=${kind} files=${files} wanted=${wanted} onAdd=${add} />` : null}
          <${RunButtons} phase=${run.phase} onStop=${stop} disabled=${request === null} />
        </form>
      </section>
      ${groups[0][1].length ? html`<${OptionsForm} groups=${groups} values=${values} faults=${faults} onChange=${setValues} />` : null}
    </div>
    <div class="pg-main">
      <section class="panel" aria-label="Predictions" aria-busy=${run.phase === "busy"}>
        <h2>Predictions</h2>
        ${run.error ? html`<${ErrorNotice} error=${run.error} />` : null}
        ${run.answer ? html`<${TaskAnswer} prediction=${run.answer.value.predictions[0]} sent=${run.answer.request} />`
          : run.error ? null : html`<p class="empty">The predictions appear here.</p>`}
      </section>
      <${RequestPanel} request=${request} timing=${run.answer && html`<${Timing} ...${run.answer} />`} />
    </div>
  </div>`;
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Return the members of an input as the form has them; null while one is empty or not the JSON that it should be. */
function readInput(examples, texts) {
  const read = {};
  for (const [key, text] of Object.entries(texts)) {
    if (text.trim() === "") return null;
    if (typeof examples[key] === "string") read[key] = text;
    else try { read[key] = JSON.parse(text); } catch { return null; }
  }
  return read;
}

function requestOf(path, kind, files, input, parameters) {
  const hasParameters = Object.keys(parameters).length > 0;
  if (kind) return { path, form: { field: kind, files, options: hasParameters ? { parameters: JSON.stringify(parameters) } : {} } };
  return { path, body: { text: input.text ?? input, ...(hasParameters ? { parameters } : {}) } };
}
