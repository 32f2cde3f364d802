"""The SQL that is sent, for one prefix of table names.

Every statement that judges by time reads the clock once. ``now`` is the same throughout one row of one statement, so
where a statement returns several rows, the time is put into a materialized table expression first.
"""

from __future__ import annotations

from typing import Final, final

_NOW: Final = "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) * 1000"
"""The server's time in microseconds. It counts milliseconds."""

_GUARDED: Final = (
    'json_each({list}) AS g LEFT JOIN "{p}records" AS r'
    " ON r.key = substr({blob}, g.value ->> 0, g.value ->> 1) AND (r.expires_at IS NULL OR r.expires_at > c.at)"
    " WHERE ifnull(r.version, 0) <> g.value ->> 2"
)
"""The keys that are not at their version at the time of ``c``."""

_JUDGE: Final = """\
UPDATE "{p}clock" SET (at, count) = (
  SELECT c.at, CASE WHEN
      NOT EXISTS (SELECT 1 FROM "{p}attempts" WHERE handle = ?1 AND number >= ?2)
      AND (?3 IS NULL OR c.at >= ?3) AND (?4 IS NULL OR c.at < ?4) AND (?5 IS NULL OR c.count = ?5)
      AND NOT EXISTS (SELECT 1 FROM {guarded})
    THEN CASE WHEN ?6 = 0 THEN c.count + 1 ELSE max(c.count + 1, c.at) + ?6 - 1 END END
  FROM (SELECT max(at, {now}) AS at, count FROM "{p}clock" LIMIT 1) AS c)
RETURNING at, count"""
"""Guards, window and attempt; then the time and the versions. What does not hold makes the count NULL, an error.

The ``LIMIT`` keeps SQLite from working the time out anew for each place where it is used.
"""

_DIAGNOSE: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at, count FROM "{p}clock")
SELECT at, count, (SELECT number FROM "{p}attempts" WHERE handle = ?1), NULL FROM c
UNION ALL
SELECT g.key, r.version, r.expires_at, r.value FROM c CROSS JOIN {guarded}"""

_COUNT: Final = """\
INSERT INTO "{p}attempts" (handle, number, at, first, draws)
SELECT ?1, ?2, at, ifnull(?3, count - max(?4, 1) + 1), ?4 FROM "{p}clock" WHERE true
ON CONFLICT (handle) DO UPDATE SET
  number = excluded.number, at = excluded.at, first = excluded.first, draws = excluded.draws"""

_PUT: Final = """\
INSERT INTO "{p}records" (key, version, expires_at, value)
SELECT substr(?1, p.value ->> 0, p.value ->> 1),
  ifnull(?3, (SELECT count FROM "{p}clock") - ?4 + 1) + (p.value ->> 4), p.value ->> 5,
  substr(?1, p.value ->> 2, p.value ->> 3)
FROM json_each(?2) AS p WHERE true
ON CONFLICT (key) DO UPDATE SET
  version = excluded.version, expires_at = excluded.expires_at, value = excluded.value"""

_DELETE: Final = """\
DELETE FROM "{p}records" WHERE key IN (SELECT substr(?1, k.value ->> 0, k.value ->> 1) FROM json_each(?2) AS k)"""

_CLOSE: Final = """\
INSERT INTO "{p}attempts" (handle, number, at) SELECT ?1, ?2, max(at, {now}) FROM "{p}clock" WHERE true
ON CONFLICT (handle) DO UPDATE SET number = excluded.number, at = excluded.at, first = NULL, draws = NULL
WHERE number < excluded.number"""

_RESERVE: Final = """\
UPDATE "{p}clock" SET count = max(count + 1, at, {now}) + ?1 - 1, at = max(at, {now}) RETURNING count"""

_READ: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at FROM "{p}clock")
SELECT at, NULL, NULL, NULL FROM c
UNION ALL
SELECT k.key, r.version, r.expires_at, r.value
FROM c CROSS JOIN json_each(?2) AS k CROSS JOIN "{p}records" AS r ON r.key = substr(?1, k.value ->> 0, k.value ->> 1)
WHERE r.expires_at IS NULL OR r.expires_at > c.at"""

_SCAN: Final = """\
WITH c AS MATERIALIZED (SELECT max(at, {now}) AS at FROM "{p}clock")
SELECT at, NULL, NULL, NULL FROM c
UNION ALL
SELECT * FROM (
  SELECT r.key, r.version, r.expires_at, r.value FROM "{p}records" AS r
  WHERE r.key >= ?1 AND r.key < ?2 AND (r.expires_at IS NULL OR r.expires_at > (SELECT at FROM c))
  ORDER BY r.key {order} LIMIT ?3)"""

_SWEEP: Final = """\
DELETE FROM "{p}records" WHERE rowid IN (
  SELECT rowid FROM "{p}records" WHERE expires_at <= (SELECT max(at, {now}) FROM "{p}clock") LIMIT ?1)"""


@final
class Statements:
    """The statements for tables that begin with ``prefix``, which must be harmless."""

    def __init__(self, prefix: str) -> None:
        def made(sql: str, order: str = "") -> str:
            guarded = {
                _JUDGE: _GUARDED.format(p=prefix, blob="?7", list="?8"),
                _DIAGNOSE: _GUARDED.format(p=prefix, blob="?2", list="?3"),
            }
            return sql.format(p=prefix, now=_NOW, guarded=guarded.get(sql, ""), order=order)

        self.judge: Final = made(_JUDGE)
        self.diagnose: Final = made(_DIAGNOSE)
        self.count: Final = made(_COUNT)
        self.put: Final = made(_PUT)
        self.delete: Final = made(_DELETE)
        self.close: Final = made(_CLOSE)
        self.closed: Final = made('SELECT number, at, first, draws FROM "{p}attempts" WHERE handle = ?1')
        self.forget: Final = made('DELETE FROM "{p}attempts" WHERE handle = ?1')
        self.reserve: Final = made(_RESERVE)
        self.read: Final = made(_READ)
        self.scan: Final = made(_SCAN, "ASC")
        self.scan_back: Final = made(_SCAN, "DESC")
        self.sweep: Final = made(_SWEEP)
        self.sweep_attempts: Final = made('DELETE FROM "{p}attempts" WHERE at < {now} - ?1')
        self.mark: Final = made('SELECT count FROM "{p}clock"')
