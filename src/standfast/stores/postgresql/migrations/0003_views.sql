-- Views for people: runs, steps and locks, as psql can show them. Nothing in them is needed by the store itself, they
-- lock nothing, and no value that cannot be read makes them fail: "content" says whether it was "readable",
-- "sealed" or "unreadable". What they are made of is the store's own affair and may change with any release.

-- The parts of a key, escaped as they are stored: each ends with 00 01, and a NUL inside of one is 00 FF.
CREATE FUNCTION @schema@.key_parts(key bytea) RETURNS bytea[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    parts bytea[] := '{}';
    size int;
BEGIN
    LOOP
        size := position('\x0001'::bytea IN key) - 1;
        EXIT WHEN size < 0;
        parts := parts || substring(key FROM 1 FOR size);
        key := substring(key FROM size + 3);
    END LOOP;
    RETURN parts;
END $$;

CREATE FUNCTION @schema@.key_of(parts bytea[]) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT string_agg(p.part || '\x0001'::bytea, ''::bytea ORDER BY p.place) FROM unnest(parts) WITH ORDINALITY AS p (part, place)
$$;

-- One part as text. PostgreSQL has no NUL in text: it is shown as its symbol, U+2400.
CREATE FUNCTION @schema@.part_text(part bytea) RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(decode(replace(encode(part, 'escape'), '\000\377', '\342\220\200'), 'escape'), 'UTF8');
EXCEPTION WHEN OTHERS THEN
    RETURN encode(part, 'escape');
END $$;

-- What a value is: its format number, a colon and JSON; or sealed, which begins with "sealed" and a number.
CREATE FUNCTION @schema@.content_of(value bytea, OUT content text, OUT data jsonb) LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    IF substring(value FROM 1 FOR 6) = 'sealed'::bytea THEN
        content := 'sealed';
    ELSE
        content := 'readable';
        data := regexp_replace(
            convert_from(substring(value FROM position(':'::bytea IN value) + 1), 'UTF8'),
            '(?<!\\)((?:\\\\)*)\\u0000', '\1\\u2400', 'g'
        )::jsonb;
        IF substring(value FROM 1 FOR 2) <> '1:'::bytea OR jsonb_typeof(data) <> 'object' THEN
            content := 'unreadable';
            data := NULL;
        END IF;
    END IF;
EXCEPTION WHEN OTHERS THEN
    content := 'unreadable';
    data := NULL;
END $$;

-- Microseconds as a time, whatever is there instead of them.
CREATE FUNCTION @schema@.time_of(micros jsonb) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(micros) = 'number' THEN (
        SELECT to_timestamp(n.micros / 1000000) FROM (SELECT (micros #>> '{}')::numeric AS micros) AS n
        WHERE n.micros BETWEEN 0 AND 253402300799000000
    ) END
$$;

CREATE FUNCTION @schema@.elements_of(data jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN jsonb_typeof(data) = 'array' THEN data ELSE '[]'::jsonb END
$$;

-- How the address of a line is shown: name(part, part); a key that is mere text is shown as it is.
CREATE FUNCTION @schema@.line_name(address bytea[]) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN address[2] = ''::bytea THEN @schema@.part_text(address[3])
    ELSE @schema@.part_text(address[2]) || '(' || (
        SELECT coalesce(string_agg(@schema@.part_text(p.part), ', ' ORDER BY p.place), '')
        FROM unnest(address[3:]) WITH ORDINALITY AS p (part, place)
    ) || ')' END
$$;

-- All live records of one kind, the third part of a key. The rough test comes first: it is much cheaper.
CREATE FUNCTION @schema@.live_records(kind text)
RETURNS TABLE (parts bytea[], value bytea, version bigint) LANGUAGE sql STABLE AS $$
    SELECT k.parts, r.value, r.version
    FROM @schema@.records AS r CROSS JOIN LATERAL (SELECT @schema@.key_parts(r.key) AS parts) AS k
    WHERE position('\x0001'::bytea || convert_to(kind, 'UTF8') || '\x0001'::bytea IN r.key) > 0
      AND (r.expires_at IS NULL OR r.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
      AND k.parts[3] = convert_to(kind, 'UTF8')
$$;

CREATE FUNCTION @schema@.show_runs() RETURNS TABLE (
    namespace text, tenant text, run_id text, workflow text, version text, status text,
    started_at timestamptz, changed_at timestamptz, ended_at timestamptz, looked_at_by timestamptz,
    owner text, waits_for text, claims text, failure text, idempotency_key text, schedule text, parent text, content text
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT @schema@.part_text(l.parts[1]), @schema@.part_text(l.parts[2]), @schema@.part_text(l.parts[4]),
           life.data ->> 'workflow', life.data ->> 'version', life.data ->> 'status',
           @schema@.time_of(head.data -> 'started_at'), @schema@.time_of(life.data -> 'changed_at'),
           CASE WHEN life.data ->> 'status' IN ('completed', 'failed', 'cancelled', 'timed_out')
                THEN @schema@.time_of(life.data -> 'changed_at') END,
           @schema@.time_of(life.data -> 'until'),
           nullif(life.data ->> 'owner', ''), nullif(life.data ->> 'waits_for', ''), CASE WHEN life.data IS NOT NULL THEN coalesce(life.data ->> 'claims', '0') END,
           life.data -> 'failure' ->> 'type',
           head.data ->> 'idempotency_key', head.data ->> 'schedule', head.data ->> 'parent', life.content
    FROM @schema@.live_records('life') AS l
    CROSS JOIN LATERAL @schema@.content_of(l.value) AS life
    LEFT JOIN @schema@.records AS h
        ON h.key = @schema@.key_of(l.parts[1:2] || convert_to('run', 'UTF8') || l.parts[4:])
    LEFT JOIN LATERAL @schema@.content_of(h.value) AS head ON true
    WHERE cardinality(l.parts) = 4
$$;

CREATE FUNCTION @schema@.show_steps() RETURNS TABLE (
    namespace text, tenant text, run_id text, place bigint, step_id text, kind text, at timestamptz,
    failed boolean, failure text, size int, content text
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT @schema@.part_text(c.parts[1]), @schema@.part_text(c.parts[2]), @schema@.part_text(c.parts[4]),
           CASE WHEN encode(c.parts[5], 'escape') ~ '^[0-9]{1,15}$' THEN encode(c.parts[5], 'escape')::bigint END
               + coalesce(m.place, 1) - 1,
           m.mark ->> 'id', m.mark ->> 'kind', @schema@.time_of(m.mark -> 'at'),
           CASE WHEN m.mark IS NOT NULL THEN coalesce(m.mark -> 'failure', 'null'::jsonb) <> 'null'::jsonb END,
           m.mark -> 'failure' ->> 'type',
           CASE WHEN m.mark IS NULL THEN octet_length(c.value) ELSE coalesce(octet_length((m.mark -> 'value')::text), 0) END,
           b.content
    FROM @schema@.live_records('step') AS c
    CROSS JOIN LATERAL @schema@.content_of(c.value) AS b
    LEFT JOIN LATERAL jsonb_array_elements(@schema@.elements_of(b.data -> 'marks')) WITH ORDINALITY AS m (mark, place) ON true
    WHERE cardinality(c.parts) = 5
$$;

CREATE FUNCTION @schema@.show_locks() RETURNS TABLE (
    namespace text, tenant text, key text, kind text, permits text, holder text, mode text, note text,
    fence bigint, since timestamptz, held_by text, ends_at timestamptz, waiters bigint, content text
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT @schema@.part_text(l.parts[1]), @schema@.part_text(l.parts[2]), @schema@.line_name(l.parts[4:]),
           b.data ->> 'kind', coalesce(b.data -> 'rules' ->> 'permits', CASE WHEN b.data IS NOT NULL THEN '1' END),
           h.holder -> 'entry' ->> 'owner', nullif(h.holder -> 'entry' ->> 'mode', ''), nullif(h.holder -> 'entry' ->> 'note', ''),
           (SELECT g.version FROM @schema@.records AS g WHERE g.key = @schema@.key_of(
               l.parts[1:2] || convert_to('grant', 'UTF8') || l.parts[4:] || convert_to(h.holder ->> 'slot', 'UTF8'))),
           @schema@.time_of(h.holder -> 'granted_at'),
           coalesce(h.holder -> 'entry' -> 'anchor' ->> 'presence', h.holder -> 'entry' -> 'anchor' ->> 'run'),
           coalesce(@schema@.time_of(h.holder -> 'ends_at'), @schema@.time_of(h.holder -> 'entry' -> 'anchor' -> 'at')),
           (SELECT count(*) FROM @schema@.records AS w
            WHERE w.key >= t.tickets AND w.key < t.tickets || '\xff'::bytea),
           b.content
    FROM @schema@.live_records('line') AS l
    CROSS JOIN LATERAL @schema@.content_of(l.value) AS b
    CROSS JOIN LATERAL (
        SELECT @schema@.key_of(l.parts[1:2] || convert_to('ticket', 'UTF8') || l.parts[4:]) AS tickets
    ) AS t
    LEFT JOIN LATERAL jsonb_array_elements(@schema@.elements_of(b.data -> 'holders')) AS h (holder) ON true
    WHERE cardinality(l.parts) > 4
$$;

CREATE VIEW @schema@.runs AS SELECT * FROM @schema@.show_runs();
CREATE VIEW @schema@.steps AS SELECT * FROM @schema@.show_steps();
CREATE VIEW @schema@.locks AS SELECT * FROM @schema@.show_locks();
COMMENT ON VIEW @schema@.runs IS 'Runs of workflows, and how they are.';
COMMENT ON VIEW @schema@.steps IS 'The history of runs: what was recorded, without the values.';
COMMENT ON VIEW @schema@.locks IS 'Keys that are held or waited for: a row for each holder.';

REVOKE EXECUTE ON FUNCTION @schema@.show_runs(), @schema@.show_steps(), @schema@.show_locks() FROM PUBLIC;

-- Let a role look at the views, and at nothing else.
CREATE FUNCTION @schema@.grant_views_to(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role);
    EXECUTE format('GRANT SELECT ON @schema@.runs, @schema@.steps, @schema@.locks TO %I', role);
    EXECUTE format(
        'GRANT EXECUTE ON FUNCTION @schema@.show_runs(), @schema@.show_steps(), @schema@.show_locks() TO %I', role);
END $$;
