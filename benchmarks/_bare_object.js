// A bare Durable Object: guarded puts, the attempt and the counter of versions, in one transaction, and nothing else.
import { DurableObject } from "cloudflare:workers";

export default {
  fetch(request, env) {
    return env.OBJECTS.get(env.OBJECTS.idFromName("bare")).fetch(request);
  },
};

export class StandfastObject extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    this.sql.exec(`
      CREATE TABLE IF NOT EXISTS records (
        key TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, expires_at INTEGER, value TEXT NOT NULL);
      CREATE TABLE IF NOT EXISTS counters (handle TEXT NOT NULL PRIMARY KEY, count INTEGER NOT NULL, at INTEGER);
      INSERT OR IGNORE INTO counters VALUES ('', 0, 0);`);
    this.count = this.sql.exec("SELECT count FROM counters WHERE handle = ''").one().count;
  }

  fetch() {
    const { 0: client, 1: server } = new WebSocketPair();
    this.ctx.acceptWebSocket(server);
    return new Response(null, { status: 101, webSocket: client });
  }

  webSocketMessage(socket, message) {
    const [handle, number, puts] = JSON.parse(message);
    for (const [key, version] of puts) {
      const [found] = this.sql.exec("SELECT version FROM records WHERE key = ?", key).toArray();
      if ((found?.version ?? 0) !== version) return socket.send("lost");
    }
    const first = this.count + 1;
    this.ctx.storage.transactionSync(() => {
      for (const [key, , value] of puts) {
        this.sql.exec(
          "INSERT INTO records VALUES (?, ?, NULL, ?) ON CONFLICT (key) DO UPDATE SET" +
            " version = excluded.version, value = excluded.value", key, ++this.count, value);
      }
      this.sql.exec("UPDATE counters SET count = ?, at = ? WHERE handle = ''", this.count, Date.now());
      this.sql.exec("INSERT OR REPLACE INTO counters VALUES (?, ?, ?)", handle, number, Date.now());
    });
    socket.send(String(first));
  }
}
