"""Views for people: runs, steps and locks, read with plain SQL on SQLite, libSQL, MySQL and MariaDB.

Nothing in them is needed by a store itself. They lock nothing, and no value that cannot be read makes them fail:
``content`` says whether it was ``readable``, ``sealed`` or ``unreadable``. Names of views and columns only grow; what
they are made of may change with any release. PostgreSQL has the same views, made of functions of its own.

The shape of the views is written once, in :func:`view_statements`; how each thing is said in SQL is a :class:`Dialect`.
"""

from __future__ import annotations

from typing import Final, Protocol, final

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is written here

VIEWS: Final = 2
"""The number of what is below. It grows with every change, so that a store that has older views gets them anew."""

_ENDED: Final = "('completed', 'failed', 'cancelled', 'timed_out')"


class Dialect(Protocol):
    """How SQL says it. Parts of keys are bytes; each ends with 00 01, and a NUL inside of one is 00 FF."""

    @property
    def key(self) -> str:
        """The column of the key."""
        ...

    @property
    def now(self) -> str:
        """The time in microseconds."""
        ...

    def said(self, *texts: str) -> str:
        """Return texts one after the other."""
        ...

    def named(self, name: str) -> str:
        """Return a name that is a word of SQL."""
        ...

    def place(self, needle: str, where: str) -> str:
        """Return where bytes begin inside of others, from 1 on; 0: nowhere."""
        ...

    def join(self, *parts: str) -> str:
        """Return bytes one after the other."""
        ...

    def text(self, part: str) -> str:
        """Return a part of a key as text, with the symbol U+2400 for a NUL."""
        ...

    def plain(self, value: str) -> str:
        """Return bytes as text."""
        ...

    def listed(self, parts: str) -> str:
        """Return parts that follow each other as text, with commas."""
        ...

    def count(self, parts: str) -> str:
        """Return how many parts follow each other, as text."""
        ...

    def is_object(self, json: str) -> str:
        """Return the condition that a text is a JSON object."""
        ...

    def get(self, data: str, path: str) -> str:
        """Return a value as text."""
        ...

    def time(self, data: str, path: str) -> str:
        """Return microseconds as a time in UTC, whatever is there in place of them."""
        ...

    def each(self, data: str, path: str) -> str:
        """Return a table with a row for each element of an array; :meth:`at` says where each is."""
        ...

    def at(self, table: str) -> str:
        """Return the place of an element in its array, from 0 on."""
        ...

    def element(self, data: str, path: str, table: str) -> str:
        """Return an element of an array, if it is an object."""
        ...

    def has(self, data: str, path: str) -> str:
        """Return the condition that there is such a value."""
        ...

    def has_member(self, data: str, path: str, name: str) -> str:
        """Return the condition that an object has a member of a name."""
        ...

    def size(self, data: str, path: str) -> str:
        """Return how many bytes a value has as JSON; 0 if there is none."""
        ...

    def is_digits(self, text: str) -> str:
        """Return the condition that a text is made of digits."""
        ...

    def number(self, text: str) -> str:
        """Return digits as a number."""
        ...

    def granted(self, data: str, at: str) -> str:
        """Return a holder as a head would list it, from its grant, and when it was made."""
        ...


def view_statements(sql: Dialect, records: str) -> dict[str, str]:
    """Return what each view selects, by its name.

    Args:
        sql: How to say it.
        records: The table of records, quoted.
    """
    return {"runs": _runs(sql, records), "steps": _steps(sql, records), "locks": _locks(sql, records)}


# --- parts of keys, and values ---------------------------------------------------------------------------------------


def _first(sql: Dialect, key: str) -> str:
    return f"substr({key}, 1, {sql.place(_END, key)} - 1)"


def _rest(sql: Dialect, key: str) -> str:
    return f"substr({key}, {sql.place(_END, key)} + 2)"


_END: Final = "x'0001'"
_LAST: Final = "x'FF'"
_COLON: Final = "x'3A'"


def _word(word: str) -> str:
    return f"x'{word.encode().hex()}0001'"


def _data(sql: Dialect, value: str) -> str:
    json = sql.plain(f"substr({value}, 3)")
    return f"CASE WHEN (substr({value}, 1, 2) IN (x'313A', x'323A') AND {sql.is_object(json)}) THEN {json} END"


def _found(sql: Dialect, records: str, kind: str) -> str:
    """Live records whose third part is ``kind``: what stands before it, what follows it, and what is in it."""
    key, word = sql.key, kind.encode().hex()
    around = f"x'0001{word}0001'"
    live = f"(expires_at IS NULL OR expires_at > {sql.now})"
    return (
        f"one AS (SELECT {key}, version, value, {_first(sql, key)} AS part_1, {_rest(sql, key)} AS part_rest"
        f" FROM {records} WHERE {sql.place(around, key)} > 0 AND {live}),"
        f" two AS (SELECT {key}, version, value, part_1, {_first(sql, 'part_rest')} AS part_2,"
        f" {_rest(sql, 'part_rest')} AS part_rest FROM one),"
        f" three AS (SELECT two.*, {_rest(sql, 'part_rest')} AS address,"
        f" substr({key}, 1, length({key}) - length(part_rest)) AS beginning, {_data(sql, 'value')} AS data"
        f" FROM two WHERE {_first(sql, 'part_rest')} = x'{word}'),"
        f" found AS (SELECT three.*, {_rest(sql, 'address')} AS after, CASE WHEN data IS NOT NULL THEN 'readable'"
        " WHEN substr(value, 1, 6) = x'7365616C6564' THEN 'sealed' ELSE 'unreadable' END AS content FROM three)"
    )


# --- the views -------------------------------------------------------------------------------------------------------


def _runs(sql: Dialect, records: str) -> str:
    head = sql.join("f.beginning", _word("run"), "f.address")
    return (
        f"WITH {_found(sql, records, 'life')}, whole AS (SELECT f.*, {_data(sql, 'h.value')} AS head FROM found AS f"
        f" LEFT JOIN {records} AS h ON h.{sql.key} = {head}"
        f" WHERE length(f.address) > 2 AND length(f.after) = 0)"
        f" SELECT {sql.text('part_1')} AS namespace, {sql.text('part_2')} AS tenant,"
        f" {sql.text(_first(sql, 'address'))} AS run_id, {sql.get('data', 'workflow')} AS workflow,"
        f" {sql.get('data', 'version')} AS version, {sql.get('data', 'status')} AS status,"
        f" {sql.time('head', 'started_at')} AS started_at, {sql.time('data', 'changed_at')} AS changed_at,"
        f" CASE WHEN {sql.get('data', 'status')} IN {_ENDED} THEN {sql.time('data', 'changed_at')} END AS ended_at,"
        f" {sql.time('data', 'until')} AS looked_at_by, nullif({sql.get('data', 'owner')}, '') AS owner,"
        f" nullif({sql.get('data', 'waits_for')}, '') AS waits_for,"
        f" CASE WHEN data IS NOT NULL THEN coalesce({sql.get('data', 'claims')}, '0') END AS claims,"
        f" {sql.get('data', 'failure.type')} AS failure, {sql.get('head', 'idempotency_key')} AS idempotency_key,"
        f" {sql.get('head', 'schedule')} AS schedule, {sql.get('head', 'parent')} AS parent, content FROM whole"
    )


def _steps(sql: Dialect, records: str) -> str:
    place = sql.plain(_first(sql, "after"))
    return (
        f"WITH {_found(sql, records, 'step')}, marks AS (SELECT f.*, {sql.at('m')} AS mark_place,"
        f" {sql.element('f.data', 'marks', 'm')} AS mark FROM found AS f"
        f" LEFT JOIN {sql.each('f.data', 'marks')} AS m ON 1 = 1"
        f" WHERE length(f.after) > 2 AND length({_rest(sql, 'f.after')}) = 0)"
        f" SELECT {sql.text('part_1')} AS namespace, {sql.text('part_2')} AS tenant,"
        f" {sql.text(_first(sql, 'address'))} AS run_id,"
        f" CASE WHEN {sql.is_digits(place)} THEN {sql.number(place)} + coalesce(mark_place, 0) END AS place,"
        f" {sql.get('mark', 'id')} AS step_id, {sql.get('mark', 'kind')} AS kind, {sql.time('mark', 'at')} AS at,"
        f" CASE WHEN mark IS NOT NULL THEN {sql.has('mark', 'failure')} END AS failed,"
        f" {sql.get('mark', 'failure.type')} AS failure,"
        f" CASE WHEN mark IS NULL THEN length(value) ELSE {sql.size('mark', 'value')} END AS size, content FROM marks"
    )


def _locks(sql: Dialect, records: str) -> str:
    name, family = _rest(sql, "after"), _first(sql, "after")
    grants = sql.join("l.beginning", _word("grant"), "l.address")
    held = sql.join("l.beginning", _word("held"), sql.count("l.address"), _END, "l.address")
    waiting = [sql.join("l.beginning", _word(word), "l.address") for word in ("ticket", "queue", "queued")]
    waiters = " OR ".join(f"(w.{sql.key} >= {each} AND w.{sql.key} < {sql.join(each, _LAST)})" for each in waiting)
    slot = sql.join("l.beginning", _word("grant"), "l.address", sql.get("h.holder", "slot"), _END)
    made, of_grant = sql.plain("substr(g.value, 1, 16)"), f"substr(g.value, {sql.place(_COLON, 'g.value')} - 1)"
    anchor, shown = "entry.anchor", sql.said(sql.text(family), "'('", sql.listed(name), "')'")
    of_presence = sql.get(_data(sql, "g.value"), f"{anchor}.presence")
    return (
        f"WITH {_found(sql, records, 'line')}, queues AS (SELECT * FROM found WHERE length(after) > 0),"
        f" holders AS (SELECT l.{sql.key} AS line, {sql.element('l.data', 'holders', 'e')} AS holder,"
        f" NULL AS fence FROM queues AS l JOIN {sql.each('l.data', 'holders')} AS e ON 1 = 1"
        f" UNION ALL SELECT l.{sql.key}, {sql.granted(_data(sql, of_grant), made)}, g.version FROM queues AS l"
        f" JOIN {records} AS g ON g.{sql.key} >= {grants} AND g.{sql.key} < {sql.join(grants, _LAST)}"
        f" WHERE {sql.get('l.data', 'life')} = ''"
        f" AND length({made}) = 16 AND {sql.is_digits(made)}"
        f" UNION ALL SELECT l.{sql.key}, {_data(sql, 'g.value')}, g.version FROM queues AS l"
        f" JOIN {records} AS g ON g.{sql.key} >= {held} AND g.{sql.key} < {sql.join(held, _LAST)}"
        f" WHERE {sql.has('l.data', 'unseen')} AND ({of_presence} IS NULL"
        f" OR {sql.has_member('l.data', 'unseen_of', of_presence)}))"
        f" SELECT {sql.text('part_1')} AS namespace, {sql.text('part_2')} AS tenant,"
        f" CASE WHEN length({family}) = 0 THEN {sql.text(_first(sql, name))}"
        f" ELSE {shown} END AS {sql.named('key')},"
        f" {sql.get('data', 'kind')} AS kind,"
        f" CASE WHEN data IS NOT NULL THEN coalesce({sql.get('data', 'rules.permits')}, '1') END AS permits,"
        f" {sql.get('h.holder', 'entry.owner')} AS holder, nullif({sql.get('h.holder', 'entry.mode')}, '') AS mode,"
        f" nullif({sql.get('h.holder', 'entry.note')}, '') AS note,"
        f" coalesce(h.fence, (SELECT g.version FROM {records} AS g WHERE g.{sql.key} = {slot})) AS fence,"
        f" {sql.time('h.holder', 'granted_at')} AS since,"
        f" coalesce({sql.get('h.holder', f'{anchor}.presence')}, {sql.get('h.holder', f'{anchor}.run')}) AS held_by,"
        f" coalesce({sql.time('h.holder', 'ends_at')}, {sql.time('h.holder', f'{anchor}.at')}) AS ends_at,"
        f" (SELECT count(*) FROM {records} AS w WHERE {waiters}) AS waiters, content"
        f" FROM queues AS l LEFT JOIN holders AS h ON h.line = l.{sql.key}"
    )


# --- dialects --------------------------------------------------------------------------------------------------------


@final
class SqliteDialect:
    """SQLite 3.38 and what is made of it. Joining blobs makes text of the same bytes, hence the casts."""

    def __init__(self) -> None:
        self.key: Final = "key"
        self.now: Final = "(julianday('now') - 2440587.5) * 86400000000"

    def said(self, *texts: str) -> str:
        """See :class:`Dialect`."""
        return f"({' || '.join(texts)})"

    def named(self, name: str) -> str:
        """See :class:`Dialect`."""
        return f'"{name}"'

    def place(self, needle: str, where: str) -> str:
        """See :class:`Dialect`."""
        return f"instr({where}, {needle})"

    def join(self, *parts: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST({' || '.join(parts)} AS BLOB)"

    def text(self, part: str) -> str:
        """See :class:`Dialect`. ``replace`` takes no pattern that begins with a NUL, so it is done in JSON."""
        return self._unquoted(f"replace({self._quoted(part)}, '\\u0000' || CAST(x'FF' AS TEXT), char(9216))")

    def _quoted(self, value: str) -> str:
        return f"json_quote(CAST({value} AS TEXT))"

    def _unquoted(self, json: str) -> str:
        return f"json_extract('[' || {json} || ']', '$[0]')"

    def plain(self, value: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST({value} AS TEXT)"

    def listed(self, parts: str) -> str:
        """See :class:`Dialect`."""
        said = self._quoted(f"substr({parts}, 1, length({parts}) - 2)")
        return self._unquoted(
            f"replace(replace({said}, '\\u0000' || CAST(x'FF' AS TEXT), char(9216)), '\\u0000\\u0001', ', ')"
        )

    def count(self, parts: str) -> str:
        """See :class:`Dialect`."""
        said = self._quoted(parts)
        return f"((length({said}) - length(replace({said}, '\\u0000\\u0001', ''))) / 12)"

    def is_object(self, json: str) -> str:
        """See :class:`Dialect`. Half a surrogate, which our encoder never writes, would become text that is none."""
        hexes = "[0-9a-fA-F][0-9a-fA-F]"
        fits = f"json_valid({json}) AND {json} NOT GLOB '*\\u[dD][89a-fA-F]{hexes}*'"
        return f"CASE WHEN {fits} THEN json_type({json}) = 'object' ELSE 0 END"

    def get(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        return f"json_extract({data}, '$.{path}')"

    def time(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        said = f"strftime('%Y-%m-%d %H:%M:%f', {self.get(data, path)} / 1000000.0, 'unixepoch')"
        return f"CASE WHEN json_type({data}, '$.{path}') IN ('integer', 'real') THEN {said} END"

    def each(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        array = f"CASE WHEN json_type({data}, '$.{path}') = 'array' THEN {self.get(data, path)} ELSE '[]' END"
        return f"json_each({array})"

    def at(self, table: str) -> str:
        """See :class:`Dialect`."""
        return f"{table}.key"

    def element(self, data: str, path: str, table: str) -> str:
        """See :class:`Dialect`."""
        del data, path
        return f"CASE WHEN {table}.type = 'object' THEN {table}.value END"

    def has(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        return f"coalesce(json_type({data}, '$.{path}'), 'null') <> 'null'"

    def has_member(self, data: str, path: str, name: str) -> str:
        """See :class:`Dialect`."""
        return f"EXISTS (SELECT 1 FROM json_each({data}, '$.{path}') AS u WHERE u.key = {name})"

    def size(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        quoted = f"length(CAST(json_quote({self.get(data, path)}) AS BLOB))"
        return f"CASE WHEN json_type({data}, '$.{path}') IS NULL THEN 0 ELSE {quoted} END"

    def is_digits(self, text: str) -> str:
        """See :class:`Dialect`."""
        return f"({text} <> '' AND length({text}) < 17 AND {text} NOT GLOB '*[^0-9]*')"

    def number(self, text: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST({text} AS INTEGER)"

    def granted(self, data: str, at: str) -> str:
        """See :class:`Dialect`."""
        return f"json_object('entry', json_extract({data}, '$.entry'), 'slot', 0, 'granted_at', {self.number(at)})"


@final
class MysqlDialect:
    """MariaDB 10.6 and MySQL 8.0."""

    def __init__(self) -> None:
        self.key: Final = "k"
        self.now: Final = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))"

    def said(self, *texts: str) -> str:
        """See :class:`Dialect`."""
        return f"concat({', '.join(texts)})"

    def named(self, name: str) -> str:
        """See :class:`Dialect`."""
        return f"`{name}`"

    def place(self, needle: str, where: str) -> str:
        """See :class:`Dialect`."""
        return f"locate({needle}, {where})"

    def join(self, *parts: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST(concat({', '.join(parts)}) AS BINARY)"

    def text(self, part: str) -> str:
        """See :class:`Dialect`."""
        return f"convert(replace({part}, x'00FF', x'E29080') USING utf8mb4)"

    def plain(self, value: str) -> str:
        """See :class:`Dialect`."""
        return f"convert({value} USING utf8mb4)"

    def listed(self, parts: str) -> str:
        """See :class:`Dialect`."""
        return self.text(f"replace(left({parts}, greatest(length({parts}), 2) - 2), x'0001', x'2C20')")

    def count(self, parts: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST((length({parts}) - length(replace({parts}, x'0001', x''))) DIV 2 AS CHAR)"

    def is_object(self, json: str) -> str:
        """See :class:`Dialect`."""
        return f"CASE WHEN json_valid({json}) THEN json_type({json}) = 'OBJECT' ELSE 0 END"

    def get(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        found = self._part(data, path)
        return f"CASE WHEN json_type({found}) <> 'NULL' THEN json_unquote({found}) END"

    def _part(self, data: str, path: str) -> str:
        return f"json_extract({data}, '$.{path}')"

    def time(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        found = self._part(data, path)
        number = f"CAST({found} AS DECIMAL(30))"
        return (
            f"CASE WHEN json_type({found}) = 'INTEGER' AND {number} BETWEEN 0 AND 253402300799000000"
            f" THEN CAST('1970-01-01' AS DATETIME(6)) + INTERVAL {number} MICROSECOND END"
        )

    def each(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        found = self._part(data, path)
        array = f"CASE WHEN json_type({found}) = 'ARRAY' THEN {found} ELSE '[]' END"
        return f"json_table({array}, '$[*]' COLUMNS (number FOR ORDINALITY))"

    def at(self, table: str) -> str:
        """See :class:`Dialect`."""
        return f"{table}.number - 1"

    def element(self, data: str, path: str, table: str) -> str:
        """See :class:`Dialect`."""
        found = f"json_extract({data}, concat('$.{path}[', {table}.number - 1, ']'))"
        return f"CASE WHEN json_type({found}) = 'OBJECT' THEN {found} END"

    def has(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        return f"coalesce(json_type({self._part(data, path)}), 'NULL') <> 'NULL'"

    def has_member(self, data: str, path: str, name: str) -> str:
        """See :class:`Dialect`."""
        return f"""coalesce(json_contains_path({data}, 'one', concat('$.{path}."', {name}, '"')), 0)"""

    def size(self, data: str, path: str) -> str:
        """See :class:`Dialect`."""
        return f"coalesce(length({self._part(data, path)}), 0)"

    def is_digits(self, text: str) -> str:
        """See :class:`Dialect`."""
        return f"({text} REGEXP '^[0-9]{{1,16}}$')"

    def number(self, text: str) -> str:
        """See :class:`Dialect`."""
        return f"CAST({text} AS SIGNED)"

    def granted(self, data: str, at: str) -> str:
        """See :class:`Dialect`."""
        return f"json_object('entry', json_extract({data}, '$.entry'), 'slot', 0, 'granted_at', {self.number(at)})"
