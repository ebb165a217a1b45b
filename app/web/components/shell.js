// The frame of every view: name, navigation, state of the connection, key and colours.
import { Icon } from "./icons.js";
import { AWAY, CONNECTED, CONNECTING, RECONNECTING, REFUSED } from "../lib/events.js";
import { html, useEffect, useState } from "../lib/html.js";
import { currentKey, onKey } from "../lib/key.js";
import { useObservable } from "../lib/observable.js";
import { link } from "../lib/router.js";
import { connection } from "../lib/server.js";
import { THEMES, currentTheme, setTheme } from "../lib/theme.js";

const TABS = [["overview", "Overview"], ["models", "Models"], ["playground", "Playground"], ["collections", "Collections"], ["requests", "Requests"], ["manual", "Manual"]];

const PHASES = {
  [CONNECTING]: ["Connecting", "wait"],
  [CONNECTED]: ["Live", "good"],
  [RECONNECTING]: ["Reconnecting", "wait"],
  [AWAY]: ["Server away", "bad"],
  [REFUSED]: ["Key needed", "bad"],
};

export function Header({ route, onEnterKey }) {
  return html`<header class="top">
    <a class="skip" href="#content" onClick=${skip}>Skip to the content</a>
    <div class="top-row">
      <a class="brand" href=${link("overview")}><${Mark} />Roundhouse</a>
      <nav aria-label="Views">
        <ul>${TABS.map(([view, label]) => html`<li key=${view}>
          <a href=${link(view)} aria-current=${route.view === view ? "page" : null}>${label}</a></li>`)}
          <li class="wide-only"><a href="docs">API</a></li></ul>
      </nav>
      <div class="top-tools">
        <${ConnectionState} />
        <${KeyButton} onClick=${onEnterKey} />
        <${ThemeButton} />
      </div>
    </div>
  </header>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("content").focus();
}

export function ConnectionState() {
  const { phase } = useObservable(connection);
  const [label, kind] = PHASES[phase];
  return html`<span class="connection connection-${kind}" role="status" data-phase=${phase}>
    <span class="dot" aria-hidden="true"></span><span class="connection-label">${label}</span></span>`;
}

function KeyButton({ onClick }) {
  const [key, setCurrent] = useState(currentKey());
  useEffect(() => onKey(setCurrent), []);
  return html`<button type="button" class="plain" onClick=${onClick}
    aria-label=${key === null ? "Enter an API key" : "Change or forget the API key"}
    title=${key === null ? "Enter an API key" : "Change or forget the API key"}>
    <${Icon} name="key" /><span class="wide-only">${key === null ? "Key" : "Key set"}</span></button>`;
}

function ThemeButton() {
  const [theme, setCurrent] = useState(currentTheme());
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  const change = () => { setTheme(next); setCurrent(next); };
  return html`<button type="button" class="plain" onClick=${change} title="Colours: ${theme}; change to ${next}"
    aria-label="Colours: ${theme}; change to ${next}"><${Icon} name=${theme} /></button>`;
}

function Mark() {
  return html`<svg class="mark" viewBox="0 0 32 32" width="24" height="24" aria-hidden="true">
    <rect width="32" height="32" rx="7" fill="currentColor" />
    <g fill="none" stroke="var(--on-accent)" stroke-width="2.6" stroke-linecap="round">
      <path d="M5.5 24a10.5 10.5 0 0 1 21 0" /><path d="M16 24V14.5M16 24l-7-5.5M16 24l7-5.5" /></g>
    <circle cx="16" cy="24" r="2.6" fill="var(--on-accent)" /></svg>`;
}
