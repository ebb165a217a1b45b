// Starts the page: one frame, one view at a time. A view is loaded when it is first shown.
import { KeyDialog } from "./components/key-dialog.js";
import { Busy, Empty, ErrorNotice } from "./components/message.js";
import { Header } from "./components/shell.js";
import { REFUSED } from "./lib/events.js";
import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./lib/html.js";
import { currentKey } from "./lib/key.js";
import { useObservable } from "./lib/observable.js";
import { link, useRoute } from "./lib/router.js";
import { connect, connection } from "./lib/server.js";

const LOADERS = {
  overview: () => import("./views/overview.js").then((module) => module.Overview),
  models: () => import("./views/models.js").then((module) => module.Models),
  playground: () => import("./playground/playground.js").then((module) => module.Playground),
  collections: () => import("./views/collections.js").then((module) => module.Collections),
  requests: () => import("./views/requests.js").then((module) => module.Requests),
  manual: () => import("./views/manual.js").then((module) => module.Manual),
};
const TITLES = { overview: "Overview", models: "Models", playground: "Playground", collections: "Collections", requests: "Requests", manual: "Manual" };
const loaded = new Map();

function App() {
  const route = useRoute();
  const { phase, error } = useObservable(connection);
  const [asksForKey, setAsksForKey] = useState(false);
  const main = useRef(null);
  const isFirst = useRef(true);
  const title = TITLES[route.view] ?? "Not found";
  useEffect(() => {
    document.title = `${route.name ?? title} · Roundhouse`;
    // A reader with a screen reader or a keyboard starts at the new view, not at the link that opened it.
    if (!isFirst.current) main.current.focus({ preventScroll: true });
    isFirst.current = false;
  }, [route.view, route.name]);
  // The manual needs no key.
  const needsKey = phase === REFUSED && route.view !== "manual";
  useEffect(() => { if (needsKey) setAsksForKey(true); }, [needsKey, error]);
  return html`
    <${Header} route=${route} onEnterKey=${() => setAsksForKey(true)} />
    <main id="content" tabindex="-1" ref=${main}>
      <${View} key=${route.view} route=${route} />
    </main>
    ${asksForKey ? html`<${KeyDialog} error=${currentKey() ? error : null} onClose=${() => setAsksForKey(false)} />` : null}`;
}

function View({ route }) {
  const [fault, reset] = useErrorBoundary((error) => console.error(error));
  const [, redraw] = useState(0);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    if (!route.known || loaded.has(route.view)) return;
    LOADERS[route.view]().then(
      (view) => { loaded.set(route.view, view); redraw((count) => count + 1); },
      (error) => setFailure(error),
    );
  }, [route.view]);
  if (!route.known) {
    return html`<h1>Not found</h1><${Empty} title="The page has no such view.">
      <p><a href=${link("overview")}>Go to the overview</a></p><//>`;
  }
  if (fault) return html`<${ErrorNotice} error=${fault} title="This view has a fault" onRetry=${reset} />`;
  // After an update of the server the files of this page have other addresses: only a new page has them.
  if (failure) return html`<${ErrorNotice} error=${failure} title="The view could not be loaded" onRetry=${() => location.reload()} />`;
  const Current = loaded.get(route.view);
  return Current ? html`<${Current} name=${route.name} query=${route.query} />` : html`<${Busy} />`;
}

connect();
render(html`<${App} />`, document.getElementById("page"));
