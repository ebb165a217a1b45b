// Sets the chosen colours before the first paint. Without a choice the system decides.
(() => {
  let theme = null;
  try { theme = localStorage.getItem("roundhouse.theme"); } catch { /* storage may be switched off */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
