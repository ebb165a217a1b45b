// The list of the kept conversations with a model: opened, deleted, or kept no more.
import { Confirm } from "../components/dialog.js";
import { Icon } from "../components/icons.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { titleOf } from "./conversation-record.js";
import {
  countKept, hasStorage, isKeeping, listConversations, onOtherTab, removeConversations, saveConversation, setKeeping,
} from "./conversation-store.js";
import { Check, Fold } from "./parts.js";

/**
 * Return `{list, isOn, isLost, save, remove, setOn}` of the conversations with a model.
 *
 * `isLost`: whether the browser refused the last one. `save(conversation)`, `remove(ids)`: see conversation-store.js.
 */
export function useKept(model) {
  const [state, setState] = useState(() => stateOf(model, false));
  const refresh = (isLost) => setState((before) => stateOf(model, isLost ?? before.isLost));
  useEffect(() => onOtherTab(() => refresh()), [model]);
  return {
    ...state,
    save: (conversation) => refresh(!saveConversation(conversation) && isKeeping()),
    remove: (ids) => { removeConversations(ids); refresh(); },
    setOn: (isOn) => { setKeeping(isOn); refresh(false); },
  };
}

const stateOf = (model, isLost) => ({ list: listConversations(model), isOn: isKeeping(), isLost });

const CONFIRMATIONS = {
  one: { title: "Delete the conversation?", action: "Delete" },
  all: { title: "Delete the conversations?", action: "Delete all" },
  off: { title: "Keep no conversations?", action: "Delete and keep none" },
};

/** `kept`: of `useKept`. `openId`: of the conversation that is shown. `onOpen(conversation)`. */
export function KeptConversations({ kept, model, openId, onOpen, onRemove, onSwitch }) {
  const [question, setQuestion] = useState(null);
  const fold = useRef(null);
  const { list, isOn, isLost } = kept;
  const number = useRef(list.length);
  useEffect(() => {
    // The focused button is removed with its conversation.
    if (list.length < number.current && document.activeElement === document.body) fold.current.querySelector("summary").focus();
    number.current = list.length;
  }, [list.length]);
  const change = (value) => (value || countKept() === 0 ? onSwitch(value) : setQuestion({ kind: "off", number: countKept() }));
  const confirm = () => (question.kind === "off" ? onSwitch(false) : onRemove(question.ids));
  return html`<${Fold} title="Conversations" detail=${list.length ? `${list.length} kept` : null} element=${fold}>
    ${list.length === 0 ? null : html`<ul class="pg-kept" aria-label="Kept conversations">${list.map((each) => html`<li key=${each.id}>
      <button type="button" class="plain" aria-current=${each.id === openId ? "true" : null} onClick=${() => onOpen(each)}>
        <span class="pg-cut">${titleOf(each)}</span><span class="detail">${whenOf(each)}</span></button>
      <button type="button" class="plain" aria-label=${`Delete ${titleOf(each)}`} title="Delete"
        onClick=${() => setQuestion({ kind: "one", ids: [each.id], title: titleOf(each) })}><${Icon} name="close" /></button></li>`)}</ul>`}
    ${isLost ? html`<p class="field-error" role="alert">The browser has no room for this conversation. Delete others, or copy its texts.</p>` : null}
    ${hasStorage() ? html`<div class="pg-kept-foot"><${Check} label="Keep conversations in this browser" checked=${isOn} onChange=${change} />
      ${list.length ? html`<button type="button" onClick=${() => setQuestion({ kind: "all", ids: list.map(({ id }) => id) })}>Delete all</button>` : null}
      </div>` : html`<p class="detail">The browser allows this page no storage. A conversation lasts until the page is closed.</p>`}
    ${question ? html`<${Confirm} ...${CONFIRMATIONS[question.kind]} onClose=${() => setQuestion(null)} onConfirm=${confirm}>
      <p>${textOf(question, model)}</p><//>` : null}
  <//>`;
}

function textOf({ kind, title, ids, number }, model) {
  if (kind === "one") return html`This deletes “${title}”.`;
  if (kind === "all") return html`This deletes ${counted(ids.length)} with <strong>${model}</strong>.`;
  return html`This deletes ${counted(number)} with all models of this server. Later ones are not kept.`;
}

const counted = (number) => `${number} conversation${number === 1 ? "" : "s"}`;

/** Return the day and the time of the last message. */
const whenOf = ({ updated }) => new Date(updated).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
