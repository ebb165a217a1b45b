// A conversation with one model, or with two models side by side.
import { html, useState } from "../lib/html.js";
import { Column } from "./chat-column.js";
import { useChosenPictures, visionsOf } from "./chat-pictures.js";
import { FIRST, useChat } from "./chat-state.js";
import { CompareWith } from "./columns.js";
import { contextsOf } from "./context-room.js";
import { asSent } from "./generation.js";
import { usePictureFiles } from "./image-files.js";
import { KeptConversations } from "./kept-conversations.js";
import { OptionsForm } from "./options-form.js";
import { Field } from "./parts.js";
import { ChosenPictures, MissingPictures, PictureButtons } from "./picture-bar.js";
import { RequestPanel } from "./request-panel.js";
import { TextTiming } from "./timing.js";

export function Chat({ model, name, models }) {
  const chat = useChat(name, contextsOf(name, model, models), visionsOf(name, model, models), models);
  const { turns, sides, second, isRunning, canAsk, bounds } = chat;
  const [draft, setDraft] = useState(turns.length ? "" : "What is a list?");
  const shown = turns.flatMap((turn) => turn.pictures ?? []);
  const chosen = useChosenPictures(bounds, chat.sentPictures, shown);
  const { pictures } = chosen;
  const { isOver, target, add } = usePictureFiles(bounds && chosen.add);
  const isTooMany = pictures.length > 0 && chat.sentPictures + pictures.length > bounds?.max_images;
  const isEmpty = draft.trim() === "" && pictures.length === 0;
  const isReady = !isEmpty && !isTooMany && !chosen.isReading;
  const turnOf = (user) => ({ user, ...(pictures.length ? { pictures } : {}) });
  const send = (event) => {
    event?.preventDefault();
    if (!isReady || !canAsk) return;
    setDraft("");
    chosen.clear();
    chat.ask(turns, { ...turnOf(draft), texts: {} });
  };
  const onKeyDown = (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); };
  const request = isEmpty ? (chat.sent ?? chat.lastRequest()) : chat.requestOf(FIRST, name, turns, turnOf(draft));
  const last = chat.sent && turns.length ? chat.textOf(FIRST, turns.at(-1)) : null;
  return html`<div class="pg-split pg-split-text">
    <section class="panel" aria-label="Conversation">
      <div class=${`pg-columns pg-columns-${sides.length}`}>${sides.map(([side, model]) => html`
        <${Column} key=${`${chat.id} ${side}`} side=${side} model=${model} turns=${turns} isNamed=${sides.length > 1}
          textOf=${(turn) => chat.textOf(side, turn)} canAsk=${canAsk} onRegenerate=${(at) => chat.regenerate(side, at)}
          onReplace=${(at, turn) => chat.ask(turns.slice(0, at), turn)}
          onAnswer=${(results) => chat.ask(turns, { results: { [side]: results }, texts: {} })} />`)}</div>
      <form class=${`pg-composer ${isOver ? "pg-drop-over" : ""}`} onSubmit=${send} ...${target}>
        <${MissingPictures} blind=${shown.length + pictures.length ? chat.blind : []} lost=${shown.filter(({ url }) => url === null).length} />
        ${bounds ? html`<${ChosenPictures} chosen=${chosen} bounds=${bounds} isTooMany=${isTooMany} />` : null}
        <${Field} label="Message" render=${(id) => html`<textarea id=${id} rows="2" value=${draft} onKeyDown=${onKeyDown}
          placeholder="Enter sends, Shift+Enter starts a line" onInput=${(event) => setDraft(event.currentTarget.value)}></textarea>`} />
        <div class="row">
          ${isRunning ? html`<button type="button" onClick=${chat.stop}>Stop</button>`
            : html`<button type="submit" class="primary" disabled=${!isReady}>Send</button>`}
          ${bounds ? html`<${PictureButtons} onChoose=${add} onDraw=${chosen.add} />` : null}
          <button type="button" onClick=${chat.begin} disabled=${turns.length === 0}>New conversation</button>
          <span class="spacer"></span>
          <${CompareWith} name=${name} models=${models} second=${second} onChange=${chat.compareWith} />
        </div>
      </form>
    </section>
    <div class="pg-aside">
      <${KeptConversations} kept=${chat.kept} model=${name} openId=${chat.id} onOpen=${chat.open} onRemove=${chat.remove} onSwitch=${chat.setKept} />
      <section class="panel"><${Field} label="System message" render=${(id) => html`<textarea id=${id} rows="2" value=${chat.system}
        onInput=${(event) => chat.setSystem(event.currentTarget.value)} placeholder="none"></textarea>`} /></section>
      <${OptionsForm} groups=${chat.options} values=${chat.values} faults=${chat.faults} onChange=${chat.setValues} />
    </div>
    <div class="pg-main">
      <${RequestPanel} request=${asSent(request, last)}
        timing=${last && last.totalMs !== null && !last.error ? html`<${TextTiming} text=${last} />` : null} />
    </div>
  </div>`;
}
