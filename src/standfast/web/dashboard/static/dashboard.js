// Keeps a page up to date: one stream says when something changed, and the changing part is fetched again.
// At most twice a second, not while the tab is hidden, and not while paused. Without it every page still works.
"use strict";

const SHORTEST = 500;
const main = document.getElementById("main");
const button = document.getElementById("pause");
const address = document.body.dataset.live;

let source = null;
let last = 0;
let timer = 0;
let busy = false;
let isMissed = false;
let isPaused = sessionStorage.getItem("standfast-paused") === "yes";

// A form that is filled in, a page that asks before it acts, and one that is read or copied, are left alone.
const isStill = () => main.querySelector("form[method=post],[data-still]") !== null;
const isUsed = () => {
  const active = document.activeElement;
  return active !== null && main.contains(active) && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName);
};
const hasSelection = () => {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && main.contains(selection.anchorNode);
};

async function refresh() {
  timer = 0;
  if (busy) isMissed = true;
  if (busy || isPaused || document.hidden || isUsed() || hasSelection()) return;
  busy = true;
  last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { "Standfast-Part": "main" }, redirect: "error" });
    if (!answer.ok) return;
    const part = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (part !== null && !isUsed()) replace(part);
  } catch {
    // The stream comes back by itself, and then the page is fetched again.
  } finally {
    busy = false;
    if (isMissed) changed();
    isMissed = false;
  }
}

// Scrolled parts and the focus stay where they were.
function replace(part) {
  const scrolled = [...main.querySelectorAll(".scroll,pre")].map((each) => [each.scrollLeft, each.scrollTop]);
  const focused = [...main.querySelectorAll("a,button,.scroll")].indexOf(document.activeElement);
  if (main.innerHTML === part.innerHTML) return;
  main.replaceChildren(...part.childNodes);
  main.querySelectorAll(".scroll,pre").forEach((each, place) => {
    [each.scrollLeft, each.scrollTop] = scrolled[place] ?? [0, 0];
  });
  if (focused >= 0) main.querySelectorAll("a,button,.scroll")[focused]?.focus({ preventScroll: true });
  main.dataset.drawn = String(Number(main.dataset.drawn ?? 0) + 1);
}

function changed() {
  if (timer === 0) timer = setTimeout(refresh, Math.max(0, last + SHORTEST - Date.now()));
}

function listen() {
  const wanted = !isPaused && !document.hidden && !isStill();
  if (wanted && source === null) {
    source = new EventSource(address);
    source.addEventListener("changed", changed);
    source.addEventListener("open", () => { document.body.dataset.state = "live"; });
  } else if (!wanted && source !== null) {
    source.close();
    source = null;
    document.body.dataset.state = "paused";
  }
}

function show() {
  button.hidden = isStill();
  button.textContent = isPaused ? "Resume" : "Pause";
  button.setAttribute("aria-pressed", String(isPaused));
  sessionStorage.setItem("standfast-paused", isPaused ? "yes" : "no");
}

// Windows that are open count down between two looks at the store.
setInterval(() => {
  if (document.hidden || isPaused) return;
  for (const each of main.querySelectorAll("[data-left]")) {
    const left = Math.max(0, Number(each.dataset.left) - 1);
    each.dataset.left = String(left);
    each.textContent = `${left.toFixed(1)} s`;
  }
}, 1000);

for (const each of document.querySelectorAll("[data-copy]")) {
  each.hidden = !navigator.clipboard;
  each.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(each.dataset.copy).textContent);
    each.textContent = "Copied";
  });
}

if (main !== null && button !== null && address) {
  button.addEventListener("click", () => {
    isPaused = !isPaused;
    show();
    listen();
    if (!isPaused) changed();
  });
  document.addEventListener("visibilitychange", () => {
    listen();
    if (!document.hidden) changed();
  });
  addEventListener("pagehide", () => source?.close());
  show();
  listen();
}
