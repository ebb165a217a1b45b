// Runs an input in the page and on the server, and shows both times.
import { ErrorNotice } from "../components/message.js";
import { call } from "../lib/api.js";
import { formatDuration } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { bodyText } from "../playground/snippets.js";

/**
 * Return `[both, run]`. `run(request, local)` sends the request and calls `local()`, one after the other: each alone
 * has the processor. `both`: `{phase, server: {value, ms, computeMs}, page: {value, ms}, error}`, kept until the next.
 */
export function useBoth() {
  const [both, setBoth] = useState({ phase: "idle", server: null, page: null, error: null });
  const isWarm = useRef(false);
  const run = async (request, local) => {
    setBoth((before) => ({ ...before, phase: "busy", error: null }));
    try {
      // The first run of a session allocates its memory.
      if (!isWarm.current) await local();
      isWarm.current = true;
      const startMs = performance.now();
      const value = await local();
      const page = { value, ms: performance.now() - startMs };
      const answer = await call("POST", request.path, { body: bodyText(request) });
      const compute = answer.timings.find((phase) => phase.name === "compute");
      const server = { value: answer.value, ms: answer.elapsedMs, computeMs: compute?.durationMs ?? null };
      setBoth({ phase: "done", server, page, error: null, request });
    } catch (error) {
      setBoth((before) => ({ ...before, phase: "failed", error }));
    }
  };
  return [both, run];
}

/** Two columns with their times. `render(side)` draws the answer of `"server"` or `"page"`; `verdict`: how they agree. */
export function BothAnswers({ both, render, verdict, empty }) {
  if (both.error) return html`<${ErrorNotice} error=${both.error} />`;
  if (!both.page) return html`<p class="empty">${empty}</p>`;
  const { server, page } = both;
  const inModel = server.computeMs === null ? "" : `, ${formatDuration(server.computeMs / 1000)} in the model`;
  return html`
    <p class="pg-verdict" role="status" data-phase=${both.phase}>${verdict}</p>
    <div class="pg-both">
      <div data-side="server"><h3>Server</h3>
        <p class="detail"><strong>${formatDuration(server.ms / 1000)}</strong> with the network${inModel}</p>
        ${render("server")}</div>
      <div data-side="page"><h3>This page</h3>
        <p class="detail"><strong>${formatDuration(page.ms / 1000)}</strong> without a network</p>
        ${render("page")}</div>
    </div>`;
}
