-- "choose" as in 0006, with one kind of guard more: n, so many records are below the key. "expected" has how many there are at least, "ends" how many at the
-- most, or NULL. ADR 133 says how it is locked.
CREATE OR REPLACE FUNCTION @schema@.choose(
    handle text, number bigint, origin bytea, longest int, locked bytea[], locks int[],
    choices int[], counts int[], kinds text, keys bytea[], expected bigint[], puts bytea[], rests bytea[], ends bigint[],
    afters bigint[], befores bigint[], speakers int[], channels text[], payloads text[]
) RETURNS TABLE (
    status int, at bigint, version bigint, generation bigint, chosen int,
    asked int[], found_keys bytea[], found_values bytea[], found_versions bigint[], found_ends bigint[]
) LANGUAGE plpgsql @fixed_plans@ AS $$
DECLARE
    first_alternative int;
    last_alternative int := 0;
    before_it int := 0;
    first int;
    last int;
    kind text;
    counts_records boolean := strpos(kinds, 'n') > 0;
    counted bigint;
    own bytea[];
    each record;
    holds boolean;
    wrote boolean;
    made boolean;
    seen_value bytea;
    seen_version bigint;
    seen_end bigint;
    ticket_key bytea;
    ticket_value bytea;
    ticket_version bigint;
    stamp bytea;
    moved bytea;
    inbox bytea;
    is_short boolean;
    message text;
    written_at bigint;
    drawn bigint[];
BEGIN
    IF locked IS NOT NULL AND counts_records AND kinds ~ '[aA]' THEN
        -- Those that append count all that there is, so that is locked as well. What is to be created is not: it is met when it is made.
        FOR each IN
            SELECT s.key, bool_or(s.writes) AS writes, bool_or(s.compares) AS compares FROM (
                SELECT g.key, g.kind NOT IN ('r', 'c') AS writes, g.kind = 'c' AS compares
                FROM unnest(keys, expected, string_to_array(kinds, NULL)) AS g (key, expected, kind)
                WHERE g.kind IN ('r', 'c', 'd', 'm') OR g.kind IN ('p', 's') AND g.expected > 0
                UNION ALL
                SELECT r.key, false, false
                FROM (
                    SELECT DISTINCT g.key FROM unnest(keys, string_to_array(kinds, NULL)) AS g (key, kind) WHERE g.kind = 'n'
                ) AS n
                CROSS JOIN LATERAL (
                    SELECT r.key FROM @schema@.records AS r
                    WHERE r.key >= n.key || '\x00'::bytea AND r.key < n.key || '\xff'::bytea ORDER BY r.key
                ) AS r
            ) AS s GROUP BY s.key ORDER BY s.key
        LOOP
            IF each.writes THEN
                PERFORM FROM @schema@.records AS r WHERE r.key = each.key FOR UPDATE;
            ELSIF each.compares THEN
                PERFORM FROM @schema@.records AS r WHERE r.key = each.key FOR SHARE;
            ELSE
                PERFORM FROM @schema@.records AS r WHERE r.key = each.key FOR KEY SHARE;
            END IF;
        END LOOP;
    ELSIF locked IS NOT NULL THEN
        PERFORM @schema@.hold(locked, array_fill(0::bigint, ARRAY[cardinality(locked)]), 0, locks);
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    FOR choice IN 1 .. cardinality(choices) LOOP
    first_alternative := last_alternative + 1;
    last_alternative := last_alternative + choices[choice];
    status := 1;
    FOR pass IN 1 .. 2 LOOP  -- by the second time what the first one met is locked, or has gone
    last := before_it;
    FOR alternative IN first_alternative .. last_alternative LOOP
        first := last + 1;
        last := last + counts[alternative];
        holds := true;
        wrote := false;
        made := false;
        version := NULL;
        chosen := alternative - first_alternative;
        asked := NULL;
        found_keys := NULL;
        found_values := NULL;
        found_versions := NULL;
        found_ends := NULL;
        -- Most often this shows that an alternative with a count does not hold, and then it locks nothing.
        IF counts_records AND strpos(substr(kinds, first, counts[alternative]), 'n') > 0 THEN
            at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            FOR place IN first .. last LOOP
                kind := substr(kinds, place, 1);
                IF kind = 'e' THEN
                    PERFORM FROM @schema@.records AS r
                    WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                      AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                    ORDER BY r.key LIMIT 1;
                    holds := NOT FOUND;
                ELSIF kind = 'n' THEN
                    SELECT count(*) INTO counted FROM (
                        SELECT FROM @schema@.records AS r
                        WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                          AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                        ORDER BY r.key LIMIT greatest(expected[place], ends[place] + 1)
                    ) AS s;
                    holds := counted >= expected[place] AND counted <= coalesce(ends[place], counted);
                END IF;
                EXIT WHEN NOT holds;
            END LOOP;
            CONTINUE WHEN NOT holds;
        END IF;
        -- Guards at keys. A row that is only compared or replaced may be seen by those who need it to be there.
        FOR place IN first .. last LOOP
            kind := substr(kinds, place, 1);
            seen_version := NULL;
            IF kind IN ('e', 'a', 'A', 'n') THEN
                CONTINUE;
            ELSIF kind = 'r' THEN
                SELECT r.value, r.version, r.expires_at INTO seen_value, seen_version, seen_end
                FROM @schema@.records AS r WHERE r.key = keys[place] FOR KEY SHARE;
                IF seen_version IS NULL OR seen_end <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN
                    holds := false;
                    EXIT;
                END IF;
                asked := asked || place;
                found_values := found_values || seen_value;
                found_versions := found_versions || seen_version;
                found_ends := array_append(found_ends, seen_end);
                CONTINUE;
            ELSIF expected[place] = 0 THEN
                made := true;
                SELECT r.version, r.expires_at INTO seen_version, seen_end FROM @schema@.records AS r WHERE r.key = keys[place];
                IF seen_end <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN
                    -- To everyone it is absent already.
                    DELETE FROM @schema@.records AS r WHERE r.key = keys[place] AND r.version = seen_version;
                ELSIF seen_version IS NOT NULL THEN
                    holds := false;
                    EXIT;
                END IF;
                CONTINUE;
            ELSIF kind = 'd' THEN
                SELECT r.version, r.expires_at INTO seen_version, seen_end
                FROM @schema@.records AS r WHERE r.key = keys[place] FOR UPDATE;
            ELSIF kind = 'c' THEN
                SELECT r.version, r.expires_at INTO seen_version, seen_end
                FROM @schema@.records AS r WHERE r.key = keys[place] FOR SHARE;
            ELSE
                SELECT r.version, r.expires_at INTO seen_version, seen_end
                FROM @schema@.records AS r WHERE r.key = keys[place] FOR NO KEY UPDATE;
            END IF;
            IF seen_version IS DISTINCT FROM expected[place]
                OR seen_end <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint THEN
                holds := false;
                EXIT;
            END IF;
        END LOOP;
        -- As many as there have to be are locked, so that they stay. One that deletes below the prefix itself has its own
        -- record locked by now: it waits only for keys behind that one, so that no two of those wait for each other.
        IF counts_records AND holds THEN
            at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            FOR place IN first .. last LOOP
                CONTINUE WHEN substr(kinds, place, 1) <> 'n' OR expected[place] = 0;
                SELECT array_agg(g.key ORDER BY g.key) INTO own
                FROM unnest(keys[first:last], expected[first:last], string_to_array(substr(kinds, first, counts[alternative]), NULL))
                    AS g (key, expected, kind)
                WHERE g.kind IN ('p', 's', 'd', 'm', 'c') AND g.expected > 0
                  AND g.key >= keys[place] || '\x00'::bytea AND g.key < keys[place] || '\xff'::bytea;
                IF own IS NULL AND locked IS NOT NULL THEN  -- all that was there is locked already; it waits for no more
                    SELECT count(*) INTO counted FROM (
                        SELECT FROM @schema@.records AS r
                        WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                          AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                        ORDER BY r.key LIMIT expected[place] FOR KEY SHARE SKIP LOCKED
                    ) AS s;
                ELSIF own IS NULL THEN
                    SELECT count(*) INTO counted FROM (
                        SELECT FROM @schema@.records AS r
                        WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                          AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                        ORDER BY r.key LIMIT expected[place] FOR KEY SHARE
                    ) AS s;
                ELSE
                    counted := cardinality(own);
                    IF counted < expected[place] THEN
                        SELECT counted + count(*) INTO counted FROM (
                            SELECT FROM @schema@.records AS r
                            WHERE r.key > own[1] AND r.key < keys[place] || '\xff'::bytea AND r.key <> ALL (own)
                              AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                            ORDER BY r.key LIMIT expected[place] - counted FOR KEY SHARE SKIP LOCKED
                        ) AS s;
                    END IF;
                    IF counted < expected[place] THEN
                        SELECT counted + count(*) INTO counted FROM (
                            SELECT FROM @schema@.records AS r
                            WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < own[1]
                              AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                            ORDER BY r.key LIMIT expected[place] - counted FOR KEY SHARE SKIP LOCKED
                        ) AS s;
                    END IF;
                    IF counted < expected[place] THEN
                        SELECT cardinality(own) + count(*) INTO counted FROM (
                            SELECT FROM @schema@.records AS r
                            WHERE r.key > own[cardinality(own)] AND r.key < keys[place] || '\xff'::bytea
                              AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                            ORDER BY r.key LIMIT expected[place] - cardinality(own) FOR KEY SHARE
                        ) AS s;
                    END IF;
                END IF;
                holds := counted >= expected[place];
                EXIT WHEN NOT holds;
            END LOOP;
        END IF;
        -- Ranges, by a snapshot that is younger than the locks.
        at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        IF NOT holds OR at < afters[alternative] OR at >= befores[alternative] THEN
            CONTINUE;
        END IF;
        FOR place IN first .. last LOOP
            kind := substr(kinds, place, 1);
            IF kind = 'e' THEN
                PERFORM FROM @schema@.records AS r
                WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                  AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                ORDER BY r.key LIMIT 1;
                holds := NOT FOUND;
            ELSIF kind = 'n' AND ends[place] IS NOT NULL THEN
                SELECT count(*) INTO counted FROM (
                    SELECT FROM @schema@.records AS r
                    WHERE r.key >= keys[place] || '\x00'::bytea AND r.key < keys[place] || '\xff'::bytea
                      AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                    ORDER BY r.key LIMIT ends[place] + 1
                ) AS s;
                holds := counted <= ends[place];
            ELSIF kind = 'm' THEN
                LOOP
                    SELECT r.key, r.value, r.version INTO ticket_key, ticket_value, ticket_version FROM @schema@.records AS r
                    WHERE r.key >= rests[place] || '\x00'::bytea AND r.key < rests[place] || '\xff'::bytea
                      AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                    ORDER BY r.key LIMIT 1 FOR UPDATE;
                    EXIT WHEN FOUND;
                    -- If it was deleted while we waited for it, another one may be the first now.
                    PERFORM FROM @schema@.records AS r
                    WHERE r.key >= rests[place] || '\x00'::bytea AND r.key < rests[place] || '\xff'::bytea
                      AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                    ORDER BY r.key LIMIT 1;
                    EXIT WHEN NOT FOUND;
                END LOOP;
                holds := coalesce(octet_length(ticket_key) > octet_length(rests[place]) + 18, false);
            END IF;
            EXIT WHEN NOT holds;
        END LOOP;
        CONTINUE WHEN NOT holds;
        -- It is to be done. What is created comes first: another one may be faster.
        stamp := convert_to(lpad(at::text, 16, '0'), 'UTF8');
        IF made THEN
            FOR place IN first .. last LOOP
                kind := substr(kinds, place, 1);
                IF expected[place] = 0 AND kind IN ('p', 's', 'm') THEN
                    -- Several choices never wait for another transaction that creates: that one may wait for this one.
                    IF counts_records AND locked IS NOT NULL
                        AND NOT pg_try_advisory_xact_lock(hashtextextended(encode(keys[place], 'hex'), 0)) THEN
                        IF wrote THEN
                            RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
                        END IF;
                        holds := false;
                        EXIT;
                    END IF;
                    version := coalesce(version, nextval('@schema@.versions'::regclass));
                    INSERT INTO @schema@.records (key, value, version, expires_at) VALUES (
                        keys[place],
                        CASE kind WHEN 'p' THEN puts[place] WHEN 's' THEN stamp || puts[place] ELSE stamp || ticket_value END,
                        choose.version, ends[place]
                    ) ON CONFLICT DO NOTHING;
                    IF NOT FOUND AND wrote THEN
                        RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
                    ELSIF NOT FOUND THEN
                        holds := false;
                        EXIT;
                    END IF;
                    wrote := true;
                END IF;
            END LOOP;
            CONTINUE WHEN NOT holds;
            IF pg_sequence_last_value('@schema@.versions'::regclass) <> version THEN
                -- A key may have come and gone with a higher version between the drawing and the creating.
                version := nextval('@schema@.versions'::regclass);
                FOR place IN first .. last LOOP
                    IF expected[place] = 0 AND substr(kinds, place, 1) IN ('p', 's', 'm') THEN
                        UPDATE @schema@.records AS r SET version = choose.version WHERE r.key = keys[place];
                    END IF;
                END LOOP;
            END IF;
        END IF;
        FOR place IN first .. last LOOP
            kind := substr(kinds, place, 1);
            CONTINUE WHEN kind IN ('r', 'e', 'c', 'n');
            wrote := true;
            version := coalesce(version, nextval('@schema@.versions'::regclass));
            IF kind = 'd' THEN
                DELETE FROM @schema@.records AS r WHERE r.key = keys[place];
            ELSIF kind IN ('p', 's') AND expected[place] > 0 THEN
                UPDATE @schema@.records AS r
                SET value = CASE kind WHEN 's' THEN stamp || puts[place] ELSE puts[place] END,
                    version = choose.version, expires_at = ends[place]
                WHERE r.key = keys[place];
            ELSIF kind IN ('a', 'A') THEN
                INSERT INTO @schema@.records (key, value, version) VALUES (
                    keys[place] || convert_to(lpad(choose.version::text, 16, '0'), 'UTF8') || '\x0001'::bytea || rests[place],
                    CASE kind WHEN 'A' THEN stamp || puts[place] ELSE puts[place] END, choose.version
                );
            ELSIF kind = 'm' THEN
                moved := stamp || ticket_value;
                IF expected[place] > 0 THEN
                    UPDATE @schema@.records AS r SET value = moved, version = choose.version, expires_at = NULL
                    WHERE r.key = keys[place];
                END IF;
                DELETE FROM @schema@.records AS r WHERE r.key = ticket_key;
                found_keys := ARRAY[ticket_key];
                found_values := found_values || ticket_value;
                found_versions := found_versions || ticket_version;
                inbox := puts[place] || substring(ticket_key FROM octet_length(rests[place]) + 19);
                is_short := octet_length(inbox) + octet_length(keys[place]) + octet_length(moved) <= longest;
                message := translate(encode(
                    '\x01'::bytea || origin || convert_to(
                        CASE WHEN is_short THEN lpad(version::text, 16, '0') ELSE repeat('0', 16) END
                        || lpad(octet_length(inbox)::text, 16, '0') || lpad(octet_length(keys[place])::text, 16, '0'), 'UTF8'
                    ) || inbox || keys[place] || CASE WHEN is_short THEN moved ELSE ''::bytea END,
                    'base64'), E'\n', '');
                PERFORM pg_notify(@schema@.channel_of(inbox), message), pg_notify(@schema@.channel_of(puts[place]), message);
            END IF;
        END LOOP;
        IF wrote AND channels IS NOT NULL THEN
            PERFORM pg_notify(m.channel, m.payload) FROM unnest(speakers, channels, payloads) AS m (speaker, channel, payload)
            WHERE m.speaker = alternative;
        END IF;
        status := 0;
        EXIT;
    END LOOP;
    EXIT WHEN status = 0;
    END LOOP;
    IF status = 0 THEN
        drawn := drawn || coalesce(version, 0) || chosen::bigint;
        IF version IS NOT NULL THEN
            written_at := at;
        END IF;
    ELSE
        -- None held, each at its moment. What is there is read at one: the caller sees if one would hold by now.
        drawn := drawn || 0::bigint || (-1)::bigint;
        version := NULL;
        at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        SELECT array_agg(s.place), array_agg(s.key), array_agg(s.value), array_agg(s.version), array_agg(s.expires_at)
        INTO asked, found_keys, found_values, found_versions, found_ends
        FROM (
            SELECT g.place::int, r.key, r.value, r.version, r.expires_at
            FROM unnest(keys, string_to_array(kinds, NULL)) WITH ORDINALITY AS g (key, kind, place)
            JOIN @schema@.records AS r ON r.key = g.key
            WHERE g.place > before_it AND g.place <= last AND g.kind NOT IN ('e', 'a', 'A', 'n')
              AND (r.expires_at IS NULL OR r.expires_at > choose.at)
            UNION ALL
            SELECT -g.place::int, r.key, r.value, r.version, r.expires_at
            FROM unnest(keys, string_to_array(kinds, NULL), rests) WITH ORDINALITY AS g (key, kind, rest, place)
            CROSS JOIN LATERAL @schema@.first_below(CASE g.kind WHEN 'e' THEN g.key ELSE g.rest END, choose.at) AS r
            WHERE g.place > before_it AND g.place <= last AND g.kind IN ('e', 'm') AND r.key IS NOT NULL
            UNION ALL
            SELECT g.place::int, r.key, r.value, r.version, r.expires_at
            FROM unnest(keys, string_to_array(kinds, NULL), expected, ends) WITH ORDINALITY AS g (key, kind, least, most, place)
            CROSS JOIN LATERAL (
                SELECT * FROM @schema@.records AS r
                WHERE r.key >= g.key || '\x00'::bytea AND r.key < g.key || '\xff'::bytea
                  AND (r.expires_at IS NULL OR r.expires_at > choose.at)
                ORDER BY r.key LIMIT greatest(g.least, g.most + 1)
            ) AS r
            WHERE g.place > before_it AND g.place <= last AND g.kind = 'n'
        ) AS s;
    END IF;
    RETURN NEXT;
    FOR alternative IN first_alternative .. last_alternative LOOP
        before_it := before_it + counts[alternative];
    END LOOP;
    END LOOP;
    IF written_at IS NULL THEN
        RETURN;
    END IF;
    UPDATE @schema@.attempts AS a SET number = choose.number, at = written_at, versions = drawn, touched_at = now()
    WHERE a.handle = choose.handle AND a.number < choose.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (choose.handle, choose.number, written_at, drawn) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;
