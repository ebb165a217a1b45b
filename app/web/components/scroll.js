// A part that scrolls to the side where its content is wider. It then takes the focus, so that keys can scroll it.
import { html, useEffect, useRef, useState } from "../lib/html.js";

/** `label`: what is inside, for screen readers. */
export function Scroll({ label, children }) {
  const element = useRef(null);
  const [isWider, setIsWider] = useState(false);
  useEffect(() => {
    const measure = () => setIsWider(element.current !== null && element.current.scrollWidth > element.current.clientWidth);
    const observer = new ResizeObserver(measure);
    observer.observe(element.current);
    if (element.current.firstElementChild) observer.observe(element.current.firstElementChild);
    return () => observer.disconnect();
  });  // After each rendering: the first child may be another one.
  return html`<div class="scroll-x" ref=${element} tabindex=${isWider ? 0 : null} role=${isWider ? "region" : null}
    aria-label=${isWider ? label : null}>${children}</div>`;
}
