// The conversations that this browser keeps: an entry of its local storage each, bounded in number and bytes.
import { packConversation, unpackConversation } from "./conversation-record.js";

const MAX_CONVERSATIONS = 100;
/** Of all conversations of a server. Browsers give the pages of an origin 5 MiB or more. */
const MAX_BYTES = 4 * 1024 * 1024;
const BYTES_PER_CHARACTER = 2;

// Servers below different paths of one host share its storage.
const SERVER = new URL(".", document.baseURI).pathname;
const PREFIX = `roundhouse.chat ${SERVER} `;
const SWITCH = `roundhouse.chats ${SERVER}`;
const OFF = "off";

let isOff = false;

/** Return the number of a new conversation. */
export const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;

/** Whether the browser allows the page a storage. */
export function hasStorage() {
  return withStorage(() => true, false);
}

export function isKeeping() {
  return !isOff && withStorage((storage) => storage.getItem(SWITCH) !== OFF, false);
}

/** Keep conversations from now on, or none: then all of this server are deleted, of every model. */
export function setKeeping(isOn) {
  isOff = !isOn;
  if (!isOn) withStorage((storage) => keysOf(storage).forEach((key) => storage.removeItem(key)));
  withStorage((storage) => (isOn ? storage.removeItem(SWITCH) : storage.setItem(SWITCH, OFF)));
}

/** Return how many conversations of all models are kept. */
export function countKept() {
  return withStorage((storage) => keysOf(storage).length, 0);
}

/** Return the conversations with a model, the newest first. Damaged entries are left out. */
export function listConversations(model) {
  const all = withStorage(entriesOf, []).map((entry) => entry.conversation);
  return all.filter((each) => each?.model === model).reverse();
}

/**
 * Keep a conversation in place of its last state. Returns whether it is kept.
 *
 * Where the room is too small, the oldest others are deleted; if that is not enough, they stay.
 */
export function saveConversation(conversation) {
  if (!isKeeping()) return false;
  const key = PREFIX + conversation.id;
  const value = JSON.stringify(packConversation(conversation));
  return withStorage((storage) => {
    const others = entriesOf(storage).filter((each) => each.key !== key);
    const dropped = [];
    const drop = () => {
      const oldest = others.shift();
      storage.removeItem(oldest.key);
      dropped.push(oldest);
    };
    let bytes = [{ key, value }, ...others].reduce((sum, each) => sum + bytesOf(each), 0);
    if (bytesOf({ key, value }) > MAX_BYTES) return false;
    while (others.length >= MAX_CONVERSATIONS || bytes > MAX_BYTES) {
      bytes -= bytesOf(others[0]);
      drop();
    }
    while (!couldSet(storage, key, value)) {
      if (others.length === 0) {
        dropped.forEach((each) => couldSet(storage, each.key, each.value));
        return false;
      }
      drop();
    }
    return true;
  }, false);
}

export function removeConversations(ids) {
  withStorage((storage) => ids.forEach((id) => storage.removeItem(PREFIX + id)));
}

/** Call `listener` after another tab has changed a conversation. Returns a function that ends it. */
export function onOtherTab(listener) {
  const take = ({ key }) => { if (key === null || key === SWITCH || key.startsWith(PREFIX)) listener(); };
  addEventListener("storage", take);
  return () => removeEventListener("storage", take);
}

/** Return the id of the conversation with a model that this tab shows; null without one. */
export function openId(model) {
  try { return sessionStorage.getItem(PREFIX + model); } catch { return null; }
}

/** Remember which conversation this tab shows, until the tab is closed. Nothing is remembered while none is kept. */
export function setOpenId(model, id) {
  try {
    if (id === null || !isKeeping()) sessionStorage.removeItem(PREFIX + model);
    else sessionStorage.setItem(PREFIX + model, id);
  } catch { /* a new load of the page then begins with no conversation */ }
}

/** Return `task(storage)`, or a value where the browser refuses the storage. */
function withStorage(task, otherwise = undefined) {
  try { return task(localStorage); } catch { return otherwise; }
}

const keysOf = (storage) => Object.keys(storage).filter((key) => key.startsWith(PREFIX));
const bytesOf = ({ key, value }) => BYTES_PER_CHARACTER * (key.length + value.length);

/** Return `{key, value, conversation}` of all entries, the oldest first. Damaged ones are the oldest, without conversation. */
function entriesOf(storage) {
  const entries = keysOf(storage).map((key) => {
    const value = storage.getItem(key) ?? "";
    const conversation = unpackConversation(parsed(value));
    return { key, value, conversation: conversation && PREFIX + conversation.id === key ? conversation : null };
  });
  const ageOf = ({ conversation }) => conversation?.updated ?? 0;
  return entries.sort((a, b) => ageOf(a) - ageOf(b));
}

function parsed(value) {
  try { return JSON.parse(value); } catch { return null; }
}

function couldSet(storage, key, value) {
  try {
    storage.setItem(key, value);
    return true;
  } catch {
    return false;
  }
}
