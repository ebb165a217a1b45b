// The API key: kept for this tab only, sent as a header, never part of an address.
const NAME = "roundhouse.key";
const listeners = new Set();
let key = read();

function read() {
  try { return sessionStorage.getItem(NAME) || null; } catch { return null; }
}

export function currentKey() {
  return key;
}

/** Keep a key, or forget it with null. Listeners are called after it. */
export function setKey(value) {
  key = value || null;
  try {
    if (key === null) sessionStorage.removeItem(NAME);
    else sessionStorage.setItem(NAME, key);
  } catch { /* the key then lasts until the page is loaded again */ }
  for (const listener of [...listeners]) listener(key);
}

/** Call `listener(key)` after each change. Returns a function that ends it. */
export function onKey(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Headers of a request, with the key if there is one. */
export function withKey(headers = {}) {
  return key === null ? headers : { ...headers, authorization: `Bearer ${key}` };
}

/** Why a text cannot be a key, or null. A header holds printable ASCII only. */
export function faultOfKey(text) {
  if (text === "") return "Enter a key.";
  return /^[\x21-\x7e]+$/.test(text) ? null : "A key has letters, digits and signs, without spaces.";
}
