// Standfast on Cloudflare: a Worker that opens the door, and a Durable Object for each namespace of a store.
//
// An object keeps the records of its namespace in its SQLite database and does one request after the other. A request
// that writes is looked at as a whole, then written in one synchronous transaction; the runtime holds its answer, and
// the messages to others, until the database has it for good (output gates). One object of each store has no
// namespace: it knows the names of the others, why the store is frozen, and which processes are connected.
//
// Every request names the last version that its sender has seen, and every answer the last one there is: an object that
// was set back to an earlier point is noticed.
//
// A message on a WebSocket is four bytes for the length of its head, the head in JSON, and the bytes of keys and
// values, one after the other in the order in which the head names their lengths.
import { DurableObject } from "cloudflare:workers";

const PROTOCOL = 1; // Raised if an older program could misread an answer. The path of every request names it.
const SCHEMA = 1; // Of the tables. They only grow.
const LEAST_SECRET = 16; // characters
const STANDSTILL = 60_000_000; // A clock that was set back by less than this many microseconds stands still meanwhile.
const SWEPT_AT_ONCE = 1_000;
const SWEEPS_AT_ONCE = 20;
const SWEEP_SECONDS = 30; // between two sweeps, at least; the variable SWEEP_SECONDS says otherwise
const ATTEMPTS_KEPT = 7 * 86_400_000_000; // microseconds
const LARGEST_REFUSAL = 8_000_000; // bytes of present records that a refusal carries
const WARN_AFTER = 1_000; // milliseconds
const UNKNOWN = -1; // what an object knows of the store until it has asked: it may be frozen

// --- the door -------------------------------------------------------------------------------------------------------

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const path = url.pathname.match(/^\/standfast\/(\d{1,6})\/([a-z_][a-z0-9_]{0,30})\/((?:[0-9a-f]{2}){0,1000})$/);
    if (path === null) return refuse(404, "no-such-path");
    const secrets = (env.SECRET ?? "").split(/[\s,]+/).filter((secret) => secret.length >= LEAST_SECRET);
    if (secrets.length === 0) return refuse(503, "no-secret");
    if (!(await isAllowed(request.headers.get("Authorization") ?? "", secrets))) return refuse(401, "wrong-secret");
    if (Number(path[1]) !== PROTOCOL) return refuse(409, "other-protocol");
    if (request.headers.get("Upgrade")?.toLowerCase() !== "websocket") return refuse(426, "no-websocket");
    return env.OBJECTS.get(env.OBJECTS.idFromName(`${path[2]}/${path[3]}`)).fetch(request);
  },
};

function refuse(status, problem) {
  return new Response(`${problem}\n`, { status, headers: said({ "Standfast-Problem": problem }) });
}

function said(headers) {
  return { "Standfast-Worker": String(PROTOCOL), "Cache-Control": "no-store", ...headers };
}

// Every secret is compared, in a time that says nothing of it: there may be two while one replaces the other.
async function isAllowed(authorization, secrets) {
  const given = await digest(authorization);
  let allowed = false;
  for (const secret of secrets) {
    const wanted = await digest(`Bearer ${secret}`);
    let different = 0;
    for (let index = 0; index < wanted.length; index++) different |= wanted[index] ^ given[index];
    allowed = different === 0 || allowed;
  }
  return allowed;
}

async function digest(text) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
}

// --- an object ------------------------------------------------------------------------------------------------------

const TABLES = `
CREATE TABLE head (
  one INTEGER PRIMARY KEY CHECK (one = 1), schema INTEGER NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL,
  count INTEGER NOT NULL, at INTEGER NOT NULL, generation INTEGER NOT NULL, frozen INTEGER NOT NULL,
  floor INTEGER NOT NULL);
CREATE TABLE records (key BLOB NOT NULL PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER, value BLOB NOT NULL);
CREATE INDEX records_that_expire ON records (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE attempts (
  handle TEXT NOT NULL PRIMARY KEY, number INTEGER NOT NULL, at INTEGER NOT NULL, first INTEGER, draws INTEGER)
  WITHOUT ROWID;
CREATE INDEX attempts_by_age ON attempts (at);
CREATE TABLE topics (
  socket TEXT NOT NULL, topic BLOB NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (socket, topic)) WITHOUT ROWID;
CREATE TABLE namespaces (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID;`;

const LIVE = "(expires_at IS NULL OR expires_at > ?)";

export class StandfastObject extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.now = 0; // the latest time that was told, in microseconds
    this.sweepAt = null; // when the alarm goes off, in milliseconds
    this.topics = null; // the sockets by topic, once they are needed
    this.warnSince = null; // the earliest generation that a committer knew whose listeners are to be told soon
    ctx.setWebSocketAutoResponse(new WebSocketRequestResponsePair("ping", "pong")); // without waking the object
    ctx.blockConcurrencyWhile(async () => {
      this.prepare();
      this.sweepAt = await ctx.storage.getAlarm();
    });
  }

  prepare() {
    if (this.all("SELECT 1 FROM sqlite_master WHERE name = 'head'").length === 0) {
      this.ctx.storage.transactionSync(() => {
        this.sql.exec(TABLES);
        const id = crypto.randomUUID().replaceAll("-", "");
        this.sql.exec("INSERT INTO head VALUES (1, ?, ?, '', 0, 0, 1, ?, 0)", SCHEMA, id, UNKNOWN);
      });
    }
    [this.head] = this.all("SELECT * FROM head");
    if (this.head.schema <= SCHEMA) this.dropTopics(this.all("SELECT DISTINCT socket FROM topics").map(({ socket }) => socket));
  }

  all(statement, ...values) {
    return this.sql.exec(statement, ...values).toArray();
  }

  // Date.now() stands still during a request. It may go back a little when the object moves to another machine.
  time() {
    const clock = Date.now() * 1_000;
    const last = Math.max(this.now, this.head.at);
    this.now = clock < last && last - clock < STANDSTILL ? last : clock;
    return this.now;
  }

  keepHead(changes) {
    const head = { ...this.head, ...changes };
    const { count, at, generation, frozen, floor } = head;
    this.sql.exec(
      "UPDATE head SET count = ?, at = ?, generation = ?, frozen = ?, floor = ?", count, at, generation, frozen, floor);
    return head;
  }

  // --- sockets ------------------------------------------------------------------------------------------------------

  async fetch(request) {
    if (this.head.schema > SCHEMA) return refuse(409, "newer-tables");
    const [, , , prefix, namespace] = new URL(request.url).pathname.split("/");
    if (this.head.name === "") {
      this.head.name = `${prefix}/${namespace}`;
      this.sql.exec("UPDATE head SET name = ?", this.head.name);
    }
    const { 0: client, 1: server } = new WebSocketPair();
    const alive = new URL(request.url).searchParams.get("alive");
    this.ctx.acceptWebSocket(server, [crypto.randomUUID(), ...(alive ? [`alive:${alive}`] : [])]);
    return new Response(null, { status: 101, webSocket: client, headers: said({}) });
  }

  async webSocketMessage(socket, message) {
    if (typeof message === "string") return;
    const bytes = new Uint8Array(message);
    let id = 0;
    try {
      const request = new Parts(bytes);
      const [number, operation, seen, ...fields] = request.head;
      id = number;
      if (!OPERATIONS.has(operation)) return answer(socket, [id, "unknown-operation", 0]);
      if (seen > this.head.count) return answer(socket, [id, "rewound", this.head.count]);
      if ((operation === "write" || operation === "load") && this.head.frozen === UNKNOWN) await this.join();
      const [[, status, ...rest], parts] = this[operation](id, fields, request, socket);
      answer(socket, [id, status, this.head.count, ...rest], parts);
    } catch (error) {
      this.topics = null;
      [this.head] = this.all("SELECT * FROM head");
      answer(socket, [id, "failed", 0, String(error?.message ?? error).slice(0, 500)]);
    }
  }

  webSocketClose(socket, code) {
    this.dropTopics(this.ctx.getTags(socket).slice(0, 1), true);
    try {
      socket.close(code >= 1000 && code < 5000 && ![1005, 1006, 1015].includes(code) ? code : 1000);
    } catch {
      // it is closed
    }
  }

  webSocketError(socket) {
    this.dropTopics(this.ctx.getTags(socket).slice(0, 1), true);
  }

  // --- writing ------------------------------------------------------------------------------------------------------

  // Ask the object that knows the whole store if writes are taken, and above which version to begin. What was said to
  // this object meanwhile is newer.
  async join() {
    const [prefix, namespace] = this.head.name.split("/");
    const store = this.env.OBJECTS.get(this.env.OBJECTS.idFromName(`${prefix}/`));
    const { frozen, floor } = await store.takeIn(namespace);
    if (this.head.frozen === UNKNOWN) {
      this.head = this.keepHead({ frozen, count: Math.max(this.head.count, floor) });
    }
  }

  // Called by other objects.
  takeIn(namespace) {
    this.sql.exec("INSERT INTO namespaces VALUES (?) ON CONFLICT DO NOTHING", namespace);
    return { frozen: Math.max(this.head.frozen, 0), floor: this.head.floor };
  }

  write(id, fields, request, socket) {
    const [handle, number, draws, exact, after, before, guards, puts, deletes, messages, known,
      acknowledged] = fields;
    const at = this.time();
    const [attempt] = this.all("SELECT number FROM attempts WHERE handle = ?", handle);
    if (attempt !== undefined && attempt.number >= number) return [[id, "closed"]];
    if ((attempt?.number ?? 0) < acknowledged) return [[id, "rewound"]];
    if (this.head.frozen > 0) return [[id, "frozen", this.head.frozen]];
    const keys = guards.map(([length]) => request.take(length));
    const lost = [];
    let lostBytes = 0;
    for (const [index, [, version]] of guards.entries()) {
      const [found] = this.all(`SELECT version FROM records WHERE key = ? AND ${LIVE}`, keys[index], at);
      if ((found?.version ?? 0) === version) continue;
      if (found !== undefined && lostBytes > LARGEST_REFUSAL) return [[id, "too-large"]];
      const [record] = found === undefined ? [] : this.all("SELECT * FROM records WHERE key = ?", keys[index]);
      lost.push([index, record]);
      lostBytes += record?.value.byteLength ?? 0;
    }
    if (lost.length > 0 || (after !== null && at < after) || (before !== null && at >= before)) {
      return refusal(id, at, lost);
    }
    const [first, last] = exact ?? [null, null];
    if (last !== null && this.head.count !== last) return [[id, "stale", at]];
    const top = Math.max(this.head.count + 1, at);
    const base = first ?? top;
    const count = first === null ? top + Math.max(draws, 1) - 1 : top;
    const values = puts.map(([, , , length]) => request.take(length));
    this.head = this.ctx.storage.transactionSync(() => {
      for (const index of deletes) this.sql.exec("DELETE FROM records WHERE key = ?", keys[index]);
      for (const [place, [index, draw, expiresAt]] of puts.entries()) {
        this.put(keys[index], base + draw, expiresAt, values[place]);
      }
      this.sql.exec(
        "INSERT INTO attempts VALUES (?, ?, ?, ?, ?) ON CONFLICT (handle) DO UPDATE SET" +
          " number = excluded.number, at = excluded.at, first = excluded.first, draws = excluded.draws",
        handle, number, at, base, draws);
      return this.keepHead({ count, at });
    });
    try {
      this.planSweep(puts.map(([, , expiresAt]) => expiresAt), at);
      this.notify(messages, request, socket);
      this.warnSoon(known);
    } catch (error) {
      console.error("standfast:", error); // it is written all the same
    }
    return [[id, "written", at, base, this.head.generation]];
  }

  put(key, version, expiresAt, value) {
    this.sql.exec(
      "INSERT INTO records VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET" +
        " version = excluded.version, expires_at = excluded.expires_at, value = excluded.value",
      key, version, expiresAt, value);
  }

  reserve(id, [count]) {
    const at = this.time();
    const first = Math.max(this.head.count + 1, at);
    this.head = this.keepHead({ count: first + count - 1, at });
    return [[id, "reserved", first]];
  }

  // A write of the attempt that arrives later finds it closed.
  close(id, [handle, number, acknowledged]) {
    const at = this.time();
    const [before] = this.all("SELECT number FROM attempts WHERE handle = ?", handle);
    if ((before?.number ?? 0) < acknowledged) return [[id, "rewound"]];
    this.sql.exec(
      "INSERT INTO attempts VALUES (?, ?, ?, NULL, NULL) ON CONFLICT (handle) DO UPDATE SET" +
        " number = excluded.number, at = excluded.at, first = NULL, draws = NULL WHERE number < excluded.number",
      handle, number, at);
    const [found] = this.all("SELECT * FROM attempts WHERE handle = ?", handle);
    this.planSweep([], at);
    return [[id, "attempt", found.number, found.at, found.first, found.draws]];
  }

  forget(id, [handle]) {
    this.sql.exec("DELETE FROM attempts WHERE handle = ?", handle);
    return [[id, "done"]];
  }

  // --- reading ------------------------------------------------------------------------------------------------------

  read(id, [lengths], request) {
    const at = this.time();
    const found = [];
    for (const [index, length] of lengths.entries()) {
      const [record] = this.all(`SELECT * FROM records WHERE key = ? AND ${LIVE}`, request.take(length), at);
      if (record !== undefined) found.push([index, record]);
    }
    const places = found.map(([index, { version, expires_at, value }]) => [
      index, version, expires_at, value.byteLength]);
    return [[id, "records", at, places], found.map(([, { value }]) => value)];
  }

  // The page ends after so many records or bytes, whichever comes first; there is more if the end was not reached.
  scan(id, [startLength, endLength, limit, most, reverse], request) {
    const at = this.time();
    const [start, end] = [request.take(startLength), request.take(endLength)];
    const rows = this.sql.exec(
      `SELECT * FROM records WHERE key >= ? AND key < ? AND ${LIVE} ORDER BY key ${reverse ? "DESC" : "ASC"} LIMIT ?`,
      start, end, at, limit + 1);
    const found = [];
    let bytes = 0;
    let more = false;
    for (const record of rows) {
      more = found.length === limit || bytes >= most;
      if (more) break;
      found.push(record);
      bytes += record.value.byteLength;
    }
    const places = found.map(({ key, version, expires_at, value }) => [
      key.byteLength, version, expires_at, value.byteLength]);
    return [[id, "page", at, places, more], found.flatMap(({ key, value }) => [key, value])];
  }

  size(id) {
    return [[id, "size", this.sql.databaseSize]];
  }

  // --- notifications ------------------------------------------------------------------------------------------------

  sockets() {
    if (this.topics === null) {
      const open = new Map(this.ctx.getWebSockets().map((socket) => [this.ctx.getTags(socket)[0], socket]));
      this.topics = new Map();
      for (const { socket, topic } of this.all("SELECT socket, topic FROM topics")) {
        const name = hex(topic);
        if (!this.topics.has(name)) this.topics.set(name, new Set());
        if (open.has(socket)) this.topics.get(name).add(open.get(socket));
      }
    }
    return this.topics;
  }

  notify(messages, request, sender) {
    for (const [topicLength, dataLength] of messages) {
      const [topic, data] = [request.take(topicLength), request.take(dataLength)];
      for (const socket of this.sockets().get(hex(topic)) ?? []) {
        if (socket !== sender) answer(socket, [0, "message", dataLength], [data]);
      }
    }
  }

  // Who commits knows the topics of some generation, and sends what is missing when it learns of a later one. It may be
  // gone before that: so those who listen since a later one are told, a little later, to look at everything.
  warnSoon(known) {
    if (known === this.head.generation) return;
    if (this.warnSince === null) setTimeout(() => this.warn(), WARN_AFTER);
    this.warnSince = Math.min(this.warnSince ?? known, known);
  }

  warn() {
    const rows = this.all("SELECT socket FROM topics WHERE since > ?", this.warnSince);
    const late = new Set(rows.map(({ socket }) => socket));
    this.warnSince = null;
    for (const socket of late.size === 0 ? [] : this.ctx.getWebSockets()) {
      if (late.has(this.ctx.getTags(socket)[0])) answer(socket, [0, "lost"]);
    }
  }

  send(id, [messages], request, socket) {
    this.notify(messages, request, socket);
    return [[id, "done"]];
  }

  // What a socket listens to lies in the database: hibernation and large lists do it no harm.
  subscribe(id, [lengths], request, socket) {
    const [name] = this.ctx.getTags(socket);
    const before = new Set(this.all("SELECT topic FROM topics WHERE socket = ?", name).map(({ topic }) => hex(topic)));
    const wanted = new Map(lengths.map((length) => request.take(length)).map((topic) => [hex(topic), topic]));
    const added = [...wanted].filter(([text]) => !before.has(text)).map(([, topic]) => topic);
    const removed = [...before].filter((text) => !wanted.has(text)).map(unhex);
    if (added.length + removed.length > 0) {
      this.topics = null;
      const generation = this.head.generation + 1;
      this.head = this.ctx.storage.transactionSync(() => {
        for (const topic of added) this.sql.exec("INSERT INTO topics VALUES (?, ?, ?)", name, topic, generation);
        for (const topic of removed) this.sql.exec("DELETE FROM topics WHERE socket = ? AND topic = ?", name, topic);
        return this.keepHead({ generation });
      });
    }
    return [[id, "done"]];
  }

  audience(id) {
    const topics = this.all("SELECT DISTINCT topic FROM topics").map(({ topic }) => topic);
    return [[id, "audience", this.head.generation, topics.map((topic) => topic.byteLength)], topics];
  }

  // Forget what sockets listened to which are closed; those named are being closed, if that is said.
  dropTopics(names, areClosing = false) {
    if (names.length === 0) return;
    const open = areClosing ? [] : this.ctx.getWebSockets().map((socket) => this.ctx.getTags(socket)[0]);
    const gone = names.filter((name) => !open.includes(name));
    const deleted = gone.map((name) => this.sql.exec("DELETE FROM topics WHERE socket = ?", name).rowsWritten);
    if (deleted.some((count) => count > 0)) {
      this.topics = null;
      this.head = this.keepHead({ generation: this.head.generation + 1 });
    }
  }

  // --- upkeep -------------------------------------------------------------------------------------------------------

  // Expired records are absent to everyone; the alarm removes them, and attempts that are too old to be asked about.
  planSweep(expiries, at) {
    const soonest = Math.min(at + ATTEMPTS_KEPT, ...expiries.filter((expiresAt) => expiresAt !== null));
    const pause = 1_000 * Number(this.env.SWEEP_SECONDS ?? SWEEP_SECONDS);
    const wanted = Math.ceil(Math.max(soonest / 1_000, Date.now() + pause));
    if (this.sweepAt === null || wanted < this.sweepAt) {
      this.sweepAt = wanted;
      this.ctx.storage.setAlarm(wanted);
    }
  }

  alarm() {
    if (this.head.schema > SCHEMA) return;
    const at = this.time();
    this.sweepAt = null;
    for (let left = SWEEPS_AT_ONCE; left > 0 && this.sweep(at) === SWEPT_AT_ONCE; left--);
    this.sql.exec("DELETE FROM attempts WHERE at <= ?", at - ATTEMPTS_KEPT);
    const [{ soonest, oldest }] = this.all(
      "SELECT (SELECT min(expires_at) FROM records WHERE expires_at IS NOT NULL) AS soonest," +
        " (SELECT min(at) FROM attempts) AS oldest");
    if (soonest !== null || oldest !== null) this.planSweep([soonest, oldest && oldest + ATTEMPTS_KEPT], at);
  }

  sweep(at) {
    return this.all(
      "DELETE FROM records WHERE rowid IN" +
        " (SELECT rowid FROM records WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?) RETURNING 1",
      at, SWEPT_AT_ONCE).length;
  }

  // --- moving a store -----------------------------------------------------------------------------------------------

  // Take writes (0), or refuse them for a reason, or leave that as it is (null); go on above a version.
  freeze(id, [frozen, least]) {
    const head = this.head;
    this.head = this.keepHead({ frozen: frozen ?? head.frozen, count: Math.max(head.count, least) });
    return [[id, "mark", this.head.count]];
  }

  load(id, [places], request) {
    this.head = this.ctx.storage.transactionSync(() => {
      for (const [keyLength, version, expiresAt, valueLength] of places) {
        this.put(request.take(keyLength), version, expiresAt, request.take(valueLength));
      }
      return this.keepHead({ count: Math.max(this.head.count, ...places.map(([, version]) => version)) });
    });
    this.planSweep(places.map(([, , expiresAt]) => expiresAt), this.time());
    return [[id, "done"]];
  }

  // --- the whole store: of the object without a namespace -----------------------------------------------------------

  about(id) {
    return [[id, "store", this.head.id, Math.max(this.head.frozen, 0), this.head.floor]];
  }

  tell(id, [frozen, floor]) {
    this.head = this.keepHead({ frozen, floor });
    return [[id, "done"]];
  }

  namespaces(id, [after, limit]) {
    const found = this.all("SELECT name FROM namespaces WHERE name > ? ORDER BY name LIMIT ?", after, limit);
    return [[id, "namespaces", found.map(({ name }) => name)]];
  }

  // Which numbers no open socket was opened with.
  unattached(id, [numbers]) {
    return [[id, "unattached", numbers.filter((number) => this.ctx.getWebSockets(`alive:${number}`).length === 0)]];
  }
}

const OPERATIONS = new Set([
  "about", "audience", "close", "forget", "freeze", "load", "namespaces", "read", "reserve", "scan", "send", "size",
  "subscribe", "tell", "unattached", "write",
]);

// --- messages -------------------------------------------------------------------------------------------------------

class Parts {
  constructor(bytes) {
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
    this.head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    this.bytes = bytes;
    this.position = 4 + length;
  }

  take(length) {
    const end = this.position + length;
    if (end > this.bytes.byteLength) throw new Error("standfast: the message is too short");
    const part = this.bytes.slice(this.position, end);
    this.position = end;
    return part;
  }
}

function answer(socket, head, parts = []) {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.byteLength, 4 + text.byteLength));
  new DataView(bytes.buffer).setUint32(0, text.byteLength);
  bytes.set(text, 4);
  let position = 4 + text.byteLength;
  for (const part of parts) {
    bytes.set(part instanceof Uint8Array ? part : new Uint8Array(part), position);
    position += part.byteLength;
  }
  try {
    socket.send(bytes);
  } catch {
    // It is closed. Its program asks again, or looks again.
  }
}

function refusal(id, at, lost) {
  const places = lost.map(([index, record]) =>
    record === undefined ? [index] : [index, record.version, record.expires_at, record.value.byteLength]);
  const values = lost.filter(([, record]) => record !== undefined).map(([, { value }]) => value);
  return [[id, "refused", at, places], values];
}

function hex(bytes) {
  return Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function unhex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => parseInt(digits, 16));
}
