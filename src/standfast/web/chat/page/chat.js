// A page to try a chat. Everything that somebody wrote is shown as text, never as markup.

const base = new URL(".", location.href);
const socketUrl = new URL(base.pathname.replace(/\/$/, ""), base);
socketUrl.protocol = location.protocol === "https:" ? "wss:" : "ws:";
const remembered = `standfast:${base.pathname}`;

const IDLE = 4000, FORBIDDEN = 1008;
const FIRST_PAUSE = 250, LONGEST_PAUSE = 10_000;

const ENDS = {
  superseded: "dropped: a newer message took its place",
  cancelled: "stopped",
  refused: "not answered",
  interrupted: "interrupted: the server went away",
  failed: "the answer failed",
  unknown: "what was answered is not known any more",
};

const at = (id) => document.getElementById(id);
const log = at("log"), form = at("form"), text = at("text"), connection = at("connection"), news = at("news");

let socket = null, cursor = "", pause = FIRST_PAUSE, timer = 0;
let isAsleep = false;
const unsent = new Map(); // messages that were not acknowledged yet, by their ids: sent again after a break
const messages = new Map(); // bubbles by the id of the message
const answers = new Map(); // bubbles by the id of the request

// --- bubbles ----------------------------------------------------------------------------------------------------

function make(tag, kind, content = "") {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = content;
  return made;
}

function keepingAtTheEnd(change) {
  const view = log.parentElement;
  const isAtTheEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
  change();
  if (isAtTheEnd) view.scrollTop = view.scrollHeight;
}

function bubble(kind, words) {
  const item = make("li", kind);
  item.append(make("p", "words", words), make("p", "note"));
  return item;
}

function part(item, name) {
  return item.querySelector(`:scope > .${name}`);
}

function note(item, words) {
  part(item, "note").textContent = words;
}

function messageBubble(id, words) {
  let item = messages.get(id);
  if (!item) {
    item = bubble("said", words);
    messages.set(id, item);
    keepingAtTheEnd(() => log.append(item));
  }
  return item;
}

function answerBubble(request) {
  let item = answers.get(request);
  if (!item) {
    item = bubble("answer", "");
    item.dataset.state = "waiting";
    answers.set(request, item);
    note(item, "waiting …");
    keepingAtTheEnd(() => log.append(item));
  }
  return item;
}

function button(words, act) {
  const made = make("button", "small", words);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

function withoutButtons(item) {
  for (const old of item.querySelectorAll(":scope > button")) old.remove();
}

// --- what the server says ---------------------------------------------------------------------------------------

const heard = {
  hello(frame) {
    localStorage.setItem(remembered, frame.session);
    text.dataset.session = frame.session;
    at("title").textContent = document.title = frame.flow;
    pause = FIRST_PAUSE;
    show("open", "connected");
    for (const [id, words] of unsent) send({ type: "message", id, text: words });
  },

  accepted(frame) {
    unsent.delete(frame.message);
    const item = messages.get(frame.message);
    if (item) delete item.dataset.state;
    if (item && frame.request && !answers.has(frame.request)) waits(answerBubble(frame.request), frame);
  },

  message(frame) {
    const item = messageBubble(frame.message, frame.text);
    unsent.delete(frame.message);
    delete item.dataset.state;
    if (frame.problem) return refuse(item, frame.message, frame.problem);
    item.classList.remove("bad");
    withoutButtons(item);
    note(item, "");
    item.dataset.request = frame.request;
    place(frame.request);
  },

  status(frame) {
    waits(answerBubble(frame.request), frame);
  },

  event(frame) {
    const item = answerBubble(frame.request);
    if (frame.number <= Number(item.dataset.heard ?? 0)) return;
    item.dataset.heard = frame.number;
    keepingAtTheEnd(() => {
      runs(item, frame.request);
      if (frame.name === "request.restarted") restart(item);
      else if (frame.name === "message" && typeof frame.data === "string") part(item, "words").textContent += frame.data;
      else item.insertBefore(make("p", "aside", `${frame.name}: ${shown(frame.data)}`), part(item, "words"));
    });
  },

  ended(frame) {
    const item = answerBubble(frame.request), words = part(item, "words");
    keepingAtTheEnd(() => {
      item.dataset.state = frame.status;
      withoutButtons(item);
      note(item, together(frame.request));
      if (frame.status === "completed") {
        if (frame.result !== null && frame.result !== undefined) words.textContent = shown(frame.result);
        news.textContent = `Answer: ${words.textContent}`;
      } else {
        item.classList.toggle("bad", !["superseded", "cancelled"].includes(frame.status));
        const why = frame.error && frame.status !== "failed" ? ` (${frame.error})` : "";
        note(item, `${ENDS[frame.status] ?? frame.status}${frame.status === "superseded" ? "" : why}`);
        news.textContent = part(item, "note").textContent;
      }
    });
  },

  refused(frame) {
    const item = messages.get(frame.message);
    unsent.delete(frame.message);
    if (item?.dataset.request) return; // it was sent again, and had been taken before
    if (item) refuse(item, frame.message, frame.problem);
    else show("closed", frame.problem.detail ?? frame.problem.title);
  },

  ping() {
    send({ type: "pong" });
  },
};

function restart(item) {
  // the action tells all of it anew
  part(item, "words").textContent = "";
  for (const old of item.querySelectorAll(":scope > .aside")) old.remove();
}

function shown(data) {
  return typeof data === "string" ? data : JSON.stringify(data, null, 1);
}

function waits(item, frame) {
  if (!["waiting", "running"].includes(item.dataset.state)) return;
  if (frame.status === "running") return runs(item, frame.request);
  const before = frame.position ?? 0;
  const since = frame.explanation?.since;
  const busy = since ? `; busy since ${new Date(since).toLocaleTimeString()}` : "";
  note(item, before ? `waiting: ${before} before it${busy}` : `waiting: next${busy}`);
}

function runs(item, request) {
  if (item.dataset.state === "running") return;
  item.dataset.state = "running";
  note(item, "");
  withoutButtons(item);
  item.append(button("Stop", () => send({ type: "cancel", request })));
}

// An answer stands below the last message that it answers: a burst has one answer.
function place(request) {
  const item = answerBubble(request);
  const last = [...log.querySelectorAll(".said")].filter((each) => each.dataset.request === request).at(-1);
  if (last && last.nextElementSibling !== item) keepingAtTheEnd(() => last.after(item));
}

function together(request) {
  const many = [...messages.values()].filter((each) => each.dataset.request === request).length;
  return many > 1 ? `one answer to ${many} messages` : "";
}

function refuse(item, id, problem) {
  item.classList.add("bad");
  delete item.dataset.state;
  note(item, `not answered: ${problem.detail ?? problem.title}`);
  withoutButtons(item);
  const words = part(item, "words").textContent;
  item.append(button("Send again", () => {
    withoutButtons(item);
    item.classList.remove("bad");
    note(item, "");
    post(id, words);
  }));
  news.textContent = part(item, "note").textContent;
}

// --- the connection ---------------------------------------------------------------------------------------------

function show(state, words) {
  connection.dataset.state = state;
  connection.textContent = words;
}

function send(frame) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame));
}

function connect() {
  clearTimeout(timer);
  isAsleep = false;
  show("connecting", "connecting …");
  const mine = new WebSocket(socketUrl);
  socket = mine;
  mine.addEventListener("open", () => {
    send({ type: "open", session: localStorage.getItem(remembered) ?? "", after: cursor });
  });
  mine.addEventListener("message", ({ data }) => {
    if (mine !== socket) return;
    const frame = JSON.parse(data);
    heard[frame.type]?.(frame);
    if (frame.cursor) cursor = frame.cursor;
  });
  mine.addEventListener("close", ({ code }) => {
    if (mine !== socket) return;
    if (code === FORBIDDEN) return;
    isAsleep = code === IDLE;
    show("closed", isAsleep ? "asleep; write to wake it" : "disconnected; trying again …");
    if (isAsleep) return;
    timer = setTimeout(connect, pause * (0.5 + Math.random()));
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  });
}

function post(id, words) {
  unsent.set(id, words);
  messageBubble(id, words).dataset.state = "sending";
  if (isAsleep) connect();
  else send({ type: "message", id, text: words });
}

// Pages that are not on this machine or behind TLS have no crypto.randomUUID.
function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, "0")).join("");
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const words = text.value.trim();
  if (!words) return;
  text.value = "";
  post(newId(), words);
  log.parentElement.scrollTop = log.parentElement.scrollHeight;
});

text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});

at("fresh").addEventListener("click", () => {
  localStorage.removeItem(remembered);
  for (const kept of [unsent, messages, answers]) kept.clear();
  log.replaceChildren();
  cursor = "";
  pause = FIRST_PAUSE;
  const old = socket;
  socket = null;
  old?.close();
  connect();
  text.focus();
});

addEventListener("online", () => {
  if (socket?.readyState === WebSocket.CLOSED) connect();
});

connect();
