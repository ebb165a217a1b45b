// Choice of colours: of the system, light or dark. theme.js in the root applies it before the first paint.
const NAME = "roundhouse.theme";

export const THEMES = ["auto", "light", "dark"];

export function currentTheme() {
  return document.documentElement.dataset.theme || "auto";
}

/** Apply and keep a choice. Charts listen for the event `roundhouse:theme`. */
export function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "auto") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, theme);
  } catch { /* the choice then lasts until the page is loaded again */ }
  dispatchEvent(new Event("roundhouse:theme"));
}

/** Call `listener` when colours change, by the switch or by the system. Returns a function that ends it. */
export function onTheme(listener) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  addEventListener("roundhouse:theme", listener);
  system.addEventListener("change", listener);
  return () => {
    removeEventListener("roundhouse:theme", listener);
    system.removeEventListener("change", listener);
  };
}

/** Value of a colour variable as a canvas needs it. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
