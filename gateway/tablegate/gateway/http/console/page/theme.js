// Light or dark: as the system has it, unless somebody has chosen here.
const KEY = "tablegate-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };

export function theme() {
  return localStorage.getItem(KEY) ?? "auto";
}

export function nextTheme() {
  const next = NEXT[theme()] ?? "auto";
  localStorage.setItem(KEY, next);
  apply();
  return next;
}

function apply() {
  document.documentElement.dataset.theme = theme();
}

apply();
