-- "show_locks" as in 0009, with the holders and waiters of semaphores that have a record a permit. ADR 133 says how they lie.
CREATE OR REPLACE FUNCTION @schema@.show_locks() RETURNS TABLE (
    namespace text, tenant text, key text, kind text, permits text, holder text, mode text, note text,
    fence bigint, since timestamptz, held_by text, ends_at timestamptz, waiters bigint, content text
) LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT @schema@.part_text(l.parts[1]), @schema@.part_text(l.parts[2]), @schema@.line_name(l.parts[4:]),
           b.data ->> 'kind', coalesce(b.data -> 'rules' ->> 'permits', CASE WHEN b.data IS NOT NULL THEN '1' END),
           h.holder -> 'entry' ->> 'owner', nullif(h.holder -> 'entry' ->> 'mode', ''), nullif(h.holder -> 'entry' ->> 'note', ''),
           coalesce(h.fence, (SELECT g.version FROM @schema@.records AS g WHERE g.key = @schema@.key_of(
               l.parts[1:2] || convert_to('grant', 'UTF8') || l.parts[4:] || convert_to(h.holder ->> 'slot', 'UTF8')))),
           @schema@.time_of(h.holder -> 'granted_at'),
           coalesce(h.holder -> 'entry' -> 'anchor' ->> 'presence', h.holder -> 'entry' -> 'anchor' ->> 'run'),
           coalesce(@schema@.time_of(h.holder -> 'ends_at'), @schema@.time_of(h.holder -> 'entry' -> 'anchor' -> 'at')),
           (SELECT count(*) FROM @schema@.records AS w
            WHERE (w.key >= t.tickets AND w.key < t.tickets || '\xff'::bytea)
               OR (w.key >= t.queue AND w.key < t.queue || '\xff'::bytea)
               OR (w.key >= t.queued AND w.key < t.queued || '\xff'::bytea)),
           b.content
    FROM @schema@.live_records('line') AS l
    CROSS JOIN LATERAL @schema@.content_of(l.value) AS b
    CROSS JOIN LATERAL (
        SELECT @schema@.key_of(l.parts[1:2] || convert_to('ticket', 'UTF8') || l.parts[4:]) AS tickets,
               @schema@.key_of(l.parts[1:2] || convert_to('queue', 'UTF8') || l.parts[4:]) AS queue,
               @schema@.key_of(l.parts[1:2] || convert_to('queued', 'UTF8') || l.parts[4:]) AS queued,
               @schema@.key_of(l.parts[1:2] || convert_to('grant', 'UTF8') || l.parts[4:]) AS grants,
               @schema@.key_of(l.parts[1:2] || convert_to('held', 'UTF8')
                   || convert_to((cardinality(l.parts) - 3)::text, 'UTF8') || l.parts[4:]) AS held
    ) AS t
    LEFT JOIN LATERAL (
        SELECT e.holder, NULL::bigint AS fence FROM jsonb_array_elements(@schema@.elements_of(b.data -> 'holders')) AS e (holder)
        UNION ALL
        SELECT jsonb_build_object(
            'entry', c.data -> 'entry', 'slot', 0, 'granted_at', encode(substring(g.value FROM 1 FOR 16), 'escape')::bigint),
            g.version
        FROM @schema@.records AS g
        CROSS JOIN LATERAL @schema@.content_of(substring(g.value FROM position(':'::bytea IN g.value) - 1)) AS c
        WHERE g.key >= t.grants AND g.key < t.grants || '\xff'::bytea AND b.data ->> 'life' = ''
          AND encode(substring(g.value FROM 1 FOR 16), 'escape') ~ '^[0-9]{16}$'
        UNION ALL
        SELECT c.data, g.version
        FROM @schema@.records AS g CROSS JOIN LATERAL @schema@.content_of(g.value) AS c
        WHERE b.data ? 'unseen' AND g.key >= t.held AND g.key < t.held || '\xff'::bytea
          AND coalesce(b.data -> 'unseen_of' ? (c.data -> 'entry' -> 'anchor' ->> 'presence'), NOT c.data -> 'entry' -> 'anchor' ? 'presence')
    ) AS h ON true
    WHERE cardinality(l.parts) > 4
$$;
