// A conversation with one model, or with two models side by side.
import { html, useState } from "../lib/html.js";
import { Column } from "./chat-column.js";
import { CompareWith, useTexts } from "./columns.js";
import { asks, messagesOf } from "./conversation.js";
import { CHAT_OPTIONS, initialValues, readOptions, usageOf } from "./generation-options.js";
import { OptionsForm } from "./options-form.js";
import { Field } from "./parts.js";
import { RequestPanel } from "./request-panel.js";
import { TextTiming } from "./timing.js";

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
  const requestOf = (side, model, before, next) => ({
    name: side,
    path: PATH,
    body: {
      model,
      messages: messagesOf(side, system, before, (turn) => textOf(side, turn)?.choices[0], next),
      ...members,
      ...usageOf(members),
    },
  });
  const canAsk = !isRunning && Object.keys(faults).length === 0;
  /** Ask a turn after those before it, on the sides that it is for; the texts of other sides stay. */
  const ask = async (before, turn, isAsked = (side) => asks(side, turn)) => {
    if (!canAsk) return;
    setTurns([...before, turn]);
    const requests = sides.filter(([side]) => isAsked(side)).map(([side, model]) => requestOf(side, model, before, turn));
    setSent(requests[0]);
    const ended = await start(requests);
    setTurns((all) => all.map((each) => (each === turn ? { ...each, texts: { ...each.texts, ...ended } } : each)));
  };
  const send = (event) => {
    event?.preventDefault();
    if (draft.trim() === "" || !canAsk) return;
    setDraft("");
    ask(turns, { user: draft, texts: {} });
  };
  const regenerate = (side) => (at) => {
    const { [side]: dropped, ...kept } = turns[at].texts;
    ask(turns.slice(0, at), { ...turns[at], texts: kept }, (each) => each === side);
  };
  const reset = () => { clear(); setTurns([]); setSent(null); };
  const onKeyDown = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  const last = current ? textOf(FIRST, current) : null;
  return html`<div class="pg-split">
    <div class="pg-main">
      <section class="panel" aria-label="Conversation">
        <div class=${`pg-columns pg-columns-${sides.length}`}>${sides.map(([side, model]) => html`
          <${Column} key=${side} side=${side} model=${model} turns=${turns} isNamed=${sides.length > 1}
            textOf=${(turn) => textOf(side, turn)} canAsk=${canAsk} onRegenerate=${regenerate(side)}
            onReplace=${(at, turn) => ask(turns.slice(0, at), turn)}
            onAnswer=${(results) => ask(turns, { results: { [side]: results }, texts: {} })} />`)}</div>
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
      <${RequestPanel} request=${draft.trim() === "" && sent ? sent : requestOf(FIRST, name, turns, { user: draft || "Hello" })}
        timing=${last && last.totalMs !== null && !last.error ? html`<${TextTiming} text=${last} />` : null} />
    </div>
    <div class="pg-aside">
      <section class="panel"><${Field} label="System message" render=${(id) => html`<textarea id=${id} rows="2" value=${system}
        onInput=${(event) => setSystem(event.currentTarget.value)} placeholder="none"></textarea>`} /></section>
      <${OptionsForm} groups=${CHAT_OPTIONS} values=${values} faults=${faults} onChange=${setValues} />
    </div>
  </div>`;
}
