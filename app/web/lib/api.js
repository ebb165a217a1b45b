// Calls to the server. Addresses are relative, so that the page also works below a prefix of a proxy.
import { withKey } from "./key.js";
import { readEvents } from "./sse.js";

/**
 * A refusal of the server, or no answer at all.
 * `status`: of HTTP, 0 without an answer. `code`: as in the manual's list of errors, `unreachable` without an answer.
 * `message`: the whole text. `problem` and `advice`: its parts before and after the semicolon (`field: …; do …`).
 */
export class ApiError extends Error {
  constructor(status, code, message, requestId = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.requestId = requestId;
    const at = message.lastIndexOf("; ");
    this.problem = at < 0 ? message : message.slice(0, at);
    this.advice = at < 0 ? "" : message.slice(at + 2);
  }

  /** Whether another key may help. */
  get needsKey() {
    return this.status === 401 || this.status === 403;
  }
}

/** Path of a model's route; names may hold any character. */
export function modelPath(name, rest = "") {
  return `models/${encodeURIComponent(name)}${rest}`;
}

/**
 * Send one request and return {status, headers, value, timings, elapsedMs}. Nothing is sent twice.
 * `body`: sent as JSON unless it is a string, a form, a Blob or bytes. Raises ApiError; AbortError if `signal` ends it.
 */
export async function call(method, path, { body, headers = {}, signal } = {}) {
  const start = performance.now();
  const response = await open(method, path, { body, headers, signal });
  const value = await read(response, signal);
  return {
    status: response.status,
    headers: response.headers,
    value,
    timings: parseServerTiming(response.headers.get("server-timing")),
    elapsedMs: performance.now() - start,
  };
}

export async function getJson(path, options) {
  return (await call("GET", path, options)).value;
}

export async function sendJson(method, path, body, options) {
  return (await call(method, path, { ...options, body })).value;
}

/** Send one request and return its Response as soon as the head is here. Raises as `call`. */
export async function open(method, path, { body, headers = {}, signal } = {}) {
  const isForm = body instanceof FormData;
  const isRaw = isForm || typeof body === "string" || body instanceof Blob || body instanceof ArrayBuffer || ArrayBuffer.isView(body);
  const sent = body === undefined || isRaw ? body : JSON.stringify(body);
  // The browser writes the type of a form, with its boundary.
  const all = withKey({ ...(body === undefined || isForm ? {} : { "content-type": "application/json" }), ...headers });
  let response;
  try {
    response = await fetch(path, { method, body: sent, headers: all, signal, cache: "no-store", credentials: "omit" });
  } catch (error) {
    throw asUnreachable(error, signal);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** Yield the events of a streamed response as {event, data}. `onOpen(response)` is called first. Raises as `call`. */
export async function* stream(method, path, { body, headers, signal, onOpen = () => {} } = {}) {
  const response = await open(method, path, { body, headers, signal });
  onOpen(response);
  try {
    yield* readEvents(response);
  } catch (error) {
    throw asUnreachable(error, signal);
  }
}

/** Return [{name, durationMs}] of a Server-Timing header. */
export function parseServerTiming(text) {
  if (!text) return [];
  return text.split(",").flatMap((part) => {
    const [name, ...parameters] = part.split(";").map((each) => each.trim());
    const duration = parameters.find((each) => each.startsWith("dur="));
    const durationMs = duration === undefined ? NaN : Number(duration.slice(4));
    return name && Number.isFinite(durationMs) ? [{ name, durationMs }] : [];
  });
}

async function read(response, signal) {
  try {
    const isJson = (response.headers.get("content-type") || "").includes("json");
    const text = await response.text();
    return isJson && text ? JSON.parse(text) : text;
  } catch (error) {
    throw asUnreachable(error, signal);
  }
}

function asUnreachable(error, signal) {
  if (signal?.aborted || error.name === "AbortError" || error instanceof ApiError) return error;
  if (error instanceof SyntaxError) return new ApiError(0, "invalid_answer", "the answer of the server is not valid JSON");
  return new ApiError(0, "unreachable", "the server does not answer; see whether it runs");
}

/** Return the error of a response in any of the server's formats. */
async function errorOf(response) {
  let body = null;
  try { body = JSON.parse(await response.text()); } catch { /* a proxy in between may answer with HTML */ }
  const error = body !== null && typeof body.error === "object" && body.error !== null ? body.error : body || {};
  const message = [error.message, body?.error, body?.message].find((each) => typeof each === "string");
  return new ApiError(
    response.status,
    String(error.code || error.type || response.status),
    message || `expected an answer, got HTTP status ${response.status} ${response.statusText}`.trim(),
    error.request_id || response.headers.get("x-request-id"),
  );
}
