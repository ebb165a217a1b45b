// A generated text whose tokens show their log probabilities, when pointed at or by the arrow keys.
import { html, useId, useLayoutEffect, useRef, useState } from "../lib/html.js";

/** Pixels between a token and its card. */
const GAP = 6;

/** Return the probability of a log probability as text: 84 %, 0.31 %. */
export function percentOf(logprob) {
  const percent = 100 * Math.exp(logprob);
  return percent >= 10 ? `${percent.toFixed(0)} %` : percent >= 0.01 ? `${percent.toPrecision(2)} %` : "< 0.01 %";
}

/** Write what a reader cannot see: spaces at the ends, line breaks, special tokens without characters. */
function visible(token) {
  return token === "" ? "∅" : token.replaceAll("\n", "⏎").replace(/^ | $/g, "␣");
}

/** How unlikely a token was: 0 (more than half) to 3 (less than 2 %). */
function surprise(logprob) {
  return [0.5, 0.15, 0.02].filter((share) => Math.exp(logprob) < share).length;
}

/** `pieces`: as generation.js gathers them. The text is one stop of the Tab key; arrows move between its tokens. */
export function TokenText({ pieces, isRunning }) {
  const [current, setCurrent] = useState(null);
  const [stop, setStop] = useState(0);
  const box = useRef(null);
  const id = useId();
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -pieces.length, End: pieces.length }[event.key];
    if (event.key === "Escape") setCurrent(null);
    if (step === undefined) return;
    event.preventDefault();
    let next = stop;
    do next += Math.sign(step);
    while (pieces[next] && pieces[next].tokens.length === 0);
    if (Math.abs(step) > 1) next = step < 0 ? 0 : pieces.length - 1;
    if (pieces[next]?.tokens.length) box.current.querySelector(`[data-at="${next}"]`)?.focus();
  };
  return html`<div class="pg-text" ref=${box} onKeyDown=${move} onPointerLeave=${() => setCurrent(null)}>
    ${pieces.map((piece, at) => piece.tokens.length === 0
      ? html`<span key=${at}>${piece.text}</span>`
      : html`<span key=${at} data-at=${at} class=${`pg-token pg-surprise-${surprise(Math.min(...piece.tokens.map(logprobOf)))}`}
          tabindex=${at === stop ? 0 : -1} aria-describedby=${current === at ? id : null}
          onPointerEnter=${() => setCurrent(at)} onFocus=${() => { setCurrent(at); setStop(at); }} onBlur=${() => setCurrent(null)}
        >${piece.text === "" ? "∅" : piece.text}</span>`)}${isRunning ? html`<span class="pg-caret" aria-hidden="true"></span>` : null}
    ${current !== null && pieces[current] ? html`<${Details} id=${id} piece=${pieces[current]} box=${box} at=${current} />` : null}
  </div>`;
}

// The first token of a prompt has no log probability.
const logprobOf = (token) => token.logprob ?? 0;

/** The card of one piece, below it or above it, inside the window. */
function Details({ id, piece, box, at }) {
  const card = useRef(null);
  useLayoutEffect(() => {
    const token = box.current.querySelector(`[data-at="${at}"]`).getClientRects()[0];
    const { offsetWidth: width, offsetHeight: height, style } = card.current;
    const isBelow = token.bottom + GAP + height < innerHeight;
    style.left = `${Math.max(GAP, Math.min(token.left, innerWidth - width - GAP))}px`;
    style.top = `${isBelow ? token.bottom + GAP : Math.max(GAP, token.top - height - GAP)}px`;
  }, [at, piece]);
  return html`<div class="pg-token-card" role="tooltip" id=${id} ref=${card}>
    ${piece.tokens.map((token, index) => html`<div key=${index}>
      <p><code>${visible(token.token)}</code> ${token.logprob === null ? "first token" : html`
        <strong>${percentOf(token.logprob)}</strong> <span class="detail">log ${token.logprob.toFixed(3)}</span>`}</p>
      ${token.top.length ? html`<table><tbody>${[...token.top].sort((a, b) => b.logprob - a.logprob).map((each) => html`
        <tr key=${each.token} class=${each.token === token.token ? "pg-chosen" : ""}>
          <td><code>${visible(each.token)}</code>
            ${each.token === token.token ? html`<span class="visually-hidden"> (chosen)</span>` : null}</td>
          <td class="pg-token-bar"><span style=${{ width: `${100 * Math.exp(each.logprob)}%` }}></span></td>
          <td class="number">${percentOf(each.logprob)}</td></tr>`)}</tbody></table>` : null}
    </div>`)}
  </div>`;
}
