// A conversation with one model, or with two models side by side.
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { CompareWith, useTexts } from "./columns.js";
import { asks, messagesOf, openCalls } from "./conversation.js";
import { CHAT_OPTIONS, initialValues, readOptions, usageOf } from "./generation-options.js";
import { OptionsForm } from "./options-form.js";
import { Field } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { TextResult } from "./text-result.js";
import { TextTiming } from "./timing.js";
import { ToolResults } from "./tool-results.js";

const PATH = "v1/chat/completions";
const FIRST = "left";
const SECOND = "right";

export function Chat({ name, models }) {
  const [values, setValues] = useState(() => initialValues(CHAT_OPTIONS));
  const [system, setSystem] = useState("");
  const [draft, setDraft] = useState("What is a list?");
  const [turns, setTurns] = useState([]); // {user or results, texts: {left, right}}; see conversation.js
  const [second, setSecond] = useState(null);
  const [sent, setSent] = useState(null); // the last request, for its snippets
  const { texts, isRunning, start, stop, clear } = useTexts();
  const { members, faults } = readOptions(CHAT_OPTIONS, values);
  const sides = [[FIRST, name], ...(second === null ? [] : [[SECOND, second]])];
  const current = turns.at(-1);
  const textOf = (side, turn) => (turn === current && texts[side] ? texts[side] : turn.texts[side]);
  const requestOf = (side, model, next) => ({
    name: side,
    path: PATH,
    body: {
      model,
      messages: messagesOf(side, system, turns, (turn) => textOf(side, turn)?.choices[0], next),
      ...members,
      ...usageOf(members),
    },
  });
  const ask = async (turn) => {
    if (isRunning || Object.keys(faults).length) return;
    setTurns([...turns, turn]);
    const requests = sides.filter(([side]) => asks(side, turn)).map(([side, model]) => requestOf(side, model, turn));
    setSent(requests[0]);
    const ended = await start(requests);
    setTurns((all) => all.map((each) => (each === turn ? { ...each, texts: ended } : each)));
  };
  const send = (event) => {
    event?.preventDefault();
    if (draft.trim() === "" || isRunning || Object.keys(faults).length) return;
    setDraft("");
    ask({ user: draft, texts: {} });
  };
  const sendResults = (side) => (results) => ask({ results: { [side]: results }, texts: {} });
  const reset = () => { clear(); setTurns([]); setSent(null); };
  const onKeyDown = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  const last = current ? textOf(FIRST, current) : null;
  return html`<div class="pg-split">
    <div class="pg-main">
      <section class="panel" aria-label="Conversation">
        <div class=${`pg-columns pg-columns-${sides.length}`}>${sides.map(([side, model]) => html`
          <${Column} key=${side} side=${side} model=${model} turns=${turns} isNamed=${sides.length > 1}
            textOf=${(turn) => textOf(side, turn)} onResults=${isRunning ? null : sendResults(side)} />`)}</div>
        <form class="pg-composer" onSubmit=${send}>
          <${Field} label="Message" render=${(id) => html`<textarea id=${id} rows="2" value=${draft} onKeyDown=${onKeyDown}
            placeholder="Enter sends, Shift+Enter starts a line" onInput=${(event) => setDraft(event.currentTarget.value)}></textarea>`} />
          <div class="row">
            ${isRunning ? html`<button type="button" onClick=${stop}>Stop</button>`
              : html`<button type="submit" class="primary" disabled=${draft.trim() === ""}>Send</button>`}
            <button type="button" onClick=${reset} disabled=${turns.length === 0}>Clear</button>
            <span class="spacer"></span>
            <${CompareWith} name=${name} models=${models} second=${second} onChange=${(other) => { reset(); setSecond(other); }} />
          </div>
        </form>
      </section>
      <${RequestPanel} request=${draft.trim() === "" && sent ? sent : requestOf(FIRST, name, { user: draft || "Hello" })}
        timing=${last && last.totalMs !== null && !last.error ? html`<${TextTiming} text=${last} />` : null} />
    </div>
    <div class="pg-aside">
      <section class="panel"><${Field} label="System message" render=${(id) => html`<textarea id=${id} rows="2" value=${system}
        onInput=${(event) => setSystem(event.currentTarget.value)} placeholder="none"></textarea>`} /></section>
      <${OptionsForm} groups=${CHAT_OPTIONS} values=${values} faults=${faults} onChange=${setValues} />
    </div>
  </div>`;
}

function Column({ side, model, turns, textOf, isNamed, onResults }) {
  const log = useRef(null);
  useEffect(() => { log.current.scrollTop = log.current.scrollHeight; });
  const shown = turns.filter((turn) => asks(side, turn));
  const calls = shown.length ? openCalls(textOf(shown.at(-1))) : [];
  return html`<div class="pg-column">
    ${isNamed ? html`<h3>${model}</h3>` : null}
    <div class="pg-log" ref=${log} role="log" aria-live="off" aria-label=${`Conversation with ${model}`} tabindex="0">
      ${turns.length === 0 ? html`<p class="empty">Write a message to ${model}.</p>` : null}
      ${shown.map((turn, at) => html`<div key=${at} class="pg-turn">
        ${turn.results
          ? turn.results[side].map(({ id, content }) => html`<p key=${id} class="pg-user pg-result"><span
              class="visually-hidden">Result: </span>${content}</p>`)
          : html`<p class="pg-user"><span class="visually-hidden">You: </span>${turn.user}</p>`}
        ${textOf(turn) ? html`<div class="pg-reply"><${TextResult} text=${textOf(turn)} /></div>` : null}
      </div>`)}
      ${calls.length && onResults ? html`<${ToolResults} key=${calls[0].id} calls=${calls} onSend=${onResults} />` : null}
    </div>
  </div>`;
}
