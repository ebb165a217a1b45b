// Reads server-sent events from a response, because EventSource sends neither headers nor a body.

const MAX_EVENT_CHARACTERS = 16 * 1024 * 1024;

/** Splits text into events. `take(text)` returns the events that the text completes: {event, data, id}. */
export class EventParser {
  #rest = "";
  #event = "";
  #data = [];
  #size = 0;
  #id = "";

  take(text) {
    const found = [];
    this.#rest += text;
    let start = 0;
    for (;;) {
      const end = nextBreak(this.#rest, start);
      if (end === null) break;
      this.#line(this.#rest.slice(start, end.at), found);
      start = end.next;
    }
    this.#rest = this.#rest.slice(start);
    if (this.#rest.length + this.#size > MAX_EVENT_CHARACTERS) throw new RangeError("an event of the server is too long");
    return found;
  }

  #line(line, found) {
    if (line === "") {
      if (this.#data.length) found.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
      this.#event = "";
      this.#data = [];
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "data") {
      this.#data.push(value);
      this.#size += value.length;
    } else if (name === "event") this.#event = value;
    else if (name === "id") this.#id = value;
  }
}

function nextBreak(text, from) {
  const line = text.indexOf("\n", from);
  if (line < 0) return null;
  return { at: line > from && text[line - 1] === "\r" ? line - 1 : line, next: line + 1 };
}

/** Yield the events of a response. `onBytes(count)` is called for each part, also of comments that keep it alive. */
export async function* readEvents(response, { onBytes = () => {} } = {}) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes(value.length);
      yield* parser.take(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
