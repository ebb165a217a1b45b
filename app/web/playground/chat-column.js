// The messages of one side of a chat, with what a person may do to each of them.
import { Icon } from "../components/icons.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { asks, openCalls, plainText } from "./conversation.js";
import { CopyButton } from "./copy-button.js";
import { SentPictures } from "./picture-bar.js";
import { TextResult } from "./text-result.js";
import { ToolResults } from "./tool-results.js";

/** Pixels from the end within which a log follows its text. */
const END_PX = 24;

/**
 * `turns`: all of the conversation; see conversation.js. `textOf(turn)`: the answer of this side. `canAsk`: whether
 * nothing runs. `onAnswer(results)`: of the last calls. `onReplace(at, turn)`: ask a changed turn again, and drop
 * those after it. `onRegenerate(at)`: ask a turn again.
 */
export function Column({ side, model, turns, textOf, isNamed, canAsk, onAnswer, onReplace, onRegenerate }) {
  const log = useRef(null);
  const isAtEnd = useRef(true);
  const follow = () => {
    const { scrollHeight, scrollTop, clientHeight } = log.current;
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < END_PX;
  };
  useEffect(() => { isAtEnd.current = true; }, [turns.length]);
  useEffect(() => { if (isAtEnd.current) log.current.scrollTop = log.current.scrollHeight; });
  const shown = [...turns.entries()].filter(([, turn]) => asks(side, turn));
  const callsBefore = (place) => openCalls(place > 0 ? textOf(shown[place - 1][1]) : null);
  const calls = callsBefore(shown.length);
  // The button that had the focus is gone or disabled while a text is generated.
  const withFocus = (task) => (...given) => { log.current.focus(); task(...given); };
  return html`<div class="pg-column">
    ${isNamed ? html`<h3>${model}</h3>` : null}
    <div class="pg-log" ref=${log} onScroll=${follow} role="log" aria-live="off" aria-label=${`Conversation with ${model}`} tabindex="0">
      ${turns.length === 0 ? html`<p class="empty">Write a message to ${model}.</p>` : null}
      ${shown.map(([at, turn], place) => html`<div key=${at} class="pg-turn" role="group" aria-label=${`Message ${place + 1}`}>
        ${turn.results
          ? html`<${Results} results=${turn.results[side]} calls=${callsBefore(place)} canAsk=${canAsk}
              onSubmit=${withFocus((results) => onReplace(at, { results: { ...turn.results, [side]: results }, texts: {} }))} />`
          : html`<${Question} text=${turn.user} pictures=${turn.pictures} isLast=${place === shown.length - 1} canAsk=${canAsk}
              onSubmit=${withFocus((user) => onReplace(at, { ...turn, user, texts: {} }))} />`}
        <${Reply} text=${textOf(turn)} isLast=${place === shown.length - 1} canAsk=${canAsk} onRegenerate=${withFocus(() => onRegenerate(at))} />
      </div>`)}
      ${calls.length ? html`<${ToolResults} key=${calls[0].id} calls=${calls} isDisabled=${!canAsk} onSend=${onAnswer} />` : null}
    </div>
  </div>`;
}

/** The button Edit and its form: `{isEditing, button, cancel, leave}`. Cancel gives the focus back to the button. */
function useEdit(canAsk) {
  const [isEditing, setEditing] = useState(false);
  const isCancelled = useRef(false);
  const element = useRef(null);
  useLayoutEffect(() => {
    if (!isEditing && isCancelled.current) element.current?.focus();
    isCancelled.current = false;
  }, [isEditing]);
  const cancel = () => { isCancelled.current = true; setEditing(false); };
  const leave = () => setEditing(false);
  const button = html`<div class="pg-actions pg-actions-end"><button type="button" class="plain" ref=${element} disabled=${!canAsk}
    onClick=${() => setEditing(true)}><${Icon} name="edit" />Edit</button></div>`;
  return { isEditing, button, cancel, leave };
}

/** `pictures`: undefined without any. An edit changes the text alone. */
function Question({ text, pictures, isLast, canAsk, onSubmit }) {
  const { isEditing, button, cancel, leave } = useEdit(canAsk);
  const words = html`<p class="pg-user"><span class="visually-hidden">You: </span>${text}</p>`;
  return html`${pictures ? html`<${SentPictures} pictures=${pictures} />` : null}
    ${isEditing ? html`<${QuestionForm} text=${text} hasPictures=${Boolean(pictures)} isLast=${isLast} canAsk=${canAsk} onCancel=${cancel}
      onSubmit=${(changed) => { leave(); onSubmit(changed); }} />` : html`${text === "" ? null : words}${button}`}`;
}

function QuestionForm({ text, hasPictures, isLast, canAsk, onCancel, onSubmit }) {
  const [draft, setDraft] = useState(text);
  const area = useRef(null);
  // An effect after the paint would move the caret while a person types.
  useLayoutEffect(() => {
    area.current.focus();
    area.current.setSelectionRange(text.length, text.length);
  }, []);
  const isReady = canAsk && (hasPictures || draft.trim() !== "");
  const submit = (event) => { event.preventDefault(); if (isReady) onSubmit(draft); };
  const onKeyDown = (event) => {
    if (event.key === "Escape") onCancel();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`<form class="pg-edit stack" aria-label="Edit the message" onSubmit=${submit}>
    <textarea ref=${area} aria-label="Text of the message" rows=${Math.min(8, Math.max(2, text.split("\n").length))} value=${draft}
      onKeyDown=${onKeyDown} onInput=${(event) => setDraft(event.currentTarget.value)}></textarea>
    <div class="row"><button type="submit" class="primary" disabled=${!isReady}>Ask again</button>
      <button type="button" onClick=${onCancel}>Cancel</button>
      ${isLast ? null : html`<span class="detail">The messages after it are removed.</span>`}</div>
  </form>`;
}

function Results({ results, calls, canAsk, onSubmit }) {
  const { isEditing, button, cancel, leave } = useEdit(canAsk);
  if (isEditing) {
    return html`<${ToolResults} calls=${calls} results=${results} onCancel=${cancel} isDisabled=${!canAsk}
      onSend=${(changed) => { leave(); onSubmit(changed); }} />`;
  }
  return html`${results.map(({ id, content }) => html`<p key=${id} class="pg-user pg-result"><span
      class="visually-hidden">Result: </span>${content}</p>`)}${calls.length ? button : null}`;
}

/** `text`: null for a question that was never answered. */
function Reply({ text, isLast, canAsk, onRegenerate }) {
  const isRunning = text?.phase === "waiting" || text?.phase === "running";
  const plain = isRunning ? "" : plainText(text);
  if (!text && !canAsk) return null;
  return html`<div class="pg-reply">
    ${text ? html`<${TextResult} text=${text} />` : html`<p class="muted">There is no answer.</p>`}
    ${isRunning ? null : html`<div class="pg-actions">
      ${plain === "" ? null : html`<${CopyButton} className="plain" text=${plain} />`}
      <button type="button" class="plain" disabled=${!canAsk} onClick=${onRegenerate}
        title=${isLast ? null : "The messages after it are removed"}><${Icon} name="again" />Regenerate</button>
    </div>`}
  </div>`;
}
