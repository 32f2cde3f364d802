-- The two choices that semaphores with a record a permit make all the time (ADR 133), as 0011 has those of mutexes. They decide, lock and write as
-- "choose" does. Where something is otherwise than it mostly is, they write nothing and return a row of NULLs, or raise: then "choose" is called.

-- In the order of these numbers, which say the place of the alternative, from 0: "begins", create head, gate and the first of the grants; "takes", as
-- the gate is there, create the first of the grants that is not there (one alternative each); "joins", as the gate is there and as many records as
-- "permits" below "prefix", append a ticket. NULL: it is not among them. "found_value" and "found_version" are of the gate.
CREATE FUNCTION @schema@.enter_slot(
    handle text, number bigint, begins int, takes int, joins int, gate_key bytea, head_key bytea, head_value bytea,
    grants bytea[], stamped_value bytea, prefix bytea, permits bigint, queue bytea, suffix bytea,
    OUT generation bigint, OUT at bigint, OUT version bigint, OUT chosen int, OUT found_value bytea, OUT found_version bigint
) LANGUAGE plpgsql AS $$
DECLARE
    counted bigint;
    expires bigint;
    made int;
    taken bytea;
BEGIN
    SELECT r.value, r.version INTO found_value, found_version
    FROM @schema@.records AS r WHERE r.key = gate_key AND r.expires_at IS NULL FOR KEY SHARE;
    IF NOT FOUND THEN
        IF begins IS NULL THEN
            RETURN;
        END IF;
        PERFORM FROM @schema@.records AS r WHERE r.key = head_key;
        IF FOUND THEN
            RETURN;
        END IF;
        at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        version := nextval('@schema@.versions'::regclass);
        INSERT INTO @schema@.records (key, value, version) VALUES
            (gate_key, head_value, enter_slot.version),
            (grants[1], convert_to(lpad(enter_slot.at::text, 16, '0'), 'UTF8') || stamped_value, enter_slot.version),
            (head_key, head_value, enter_slot.version)
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS made = ROW_COUNT;
        IF made < 3 THEN
            RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
        END IF;
        IF pg_sequence_last_value('@schema@.versions'::regclass) <> version THEN
            -- A key may have come and gone with a higher version between the drawing and the creating.
            version := nextval('@schema@.versions'::regclass);
            UPDATE @schema@.records AS r SET version = enter_slot.version WHERE r.key = gate_key;
            UPDATE @schema@.records AS r SET version = enter_slot.version WHERE r.key = grants[1];
            UPDATE @schema@.records AS r SET version = enter_slot.version WHERE r.key = head_key;
        END IF;
        chosen := begins;
    ELSE
        IF joins < takes THEN
            SELECT count(*) INTO counted FROM (
                SELECT FROM @schema@.records AS r
                WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT permits
            ) AS s;
            IF counted = permits THEN
                chosen := joins;
            END IF;
        END IF;
        IF chosen IS NULL THEN
            FOR place IN 1 .. cardinality(grants) LOOP
                SELECT r.expires_at INTO expires FROM @schema@.records AS r WHERE r.key = grants[place];
                IF NOT FOUND THEN
                    taken := grants[place];
                    chosen := takes + place - 1;
                    EXIT;
                ELSIF expires IS NOT NULL THEN
                    RETURN;
                END IF;
            END LOOP;
        END IF;
        IF chosen IS NULL AND joins > takes THEN
            SELECT count(*) INTO counted FROM (
                SELECT FROM @schema@.records AS r
                WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT permits
            ) AS s;
            IF counted = permits THEN
                chosen := joins;
            END IF;
        END IF;
        IF chosen = joins THEN
            SELECT count(*), count(s.expires_at) INTO counted, expires FROM (
                SELECT r.expires_at FROM @schema@.records AS r
                WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT permits
                FOR KEY SHARE
            ) AS s;
            IF counted < permits OR expires > 0 THEN
                chosen := NULL;
            END IF;
        END IF;
        IF chosen IS NULL THEN
            RETURN;
        END IF;
        at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
        version := nextval('@schema@.versions'::regclass);
        INSERT INTO @schema@.records (key, value, version) VALUES (
            coalesce(taken, queue || convert_to(lpad(enter_slot.version::text, 16, '0'), 'UTF8') || '\x0001'::bytea || suffix),
            convert_to(lpad(enter_slot.at::text, 16, '0'), 'UTF8') || stamped_value, enter_slot.version
        ) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            at := NULL;
            chosen := NULL;
            RETURN;
        END IF;
        IF taken IS NOT NULL AND pg_sequence_last_value('@schema@.versions'::regclass) <> version THEN
            version := nextval('@schema@.versions'::regclass);
            UPDATE @schema@.records AS r SET version = enter_slot.version WHERE r.key = taken;
        END IF;
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    UPDATE @schema@.attempts AS a
    SET number = enter_slot.number, at = enter_slot.at, versions = ARRAY[enter_slot.version, chosen], touched_at = now()
    WHERE a.handle = enter_slot.handle AND a.number < enter_slot.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (handle, number, enter_slot.at, ARRAY[enter_slot.version, chosen])
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- The alternatives, of which the first may be left out: "first" is 0 or -1. With no ticket, and no record but one below "prefix": delete gate, grant
-- and head. Move the first ticket into the grant, as the head is as old as the gate. With no ticket and another record below the prefix: delete the
-- grant, as the head is so. "found_key", "found_value" and "found_version" are of the ticket that was moved.
CREATE FUNCTION @schema@.leave_slot(
    handle text, number bigint, first int, gate_key bytea, gate_version bigint, grant_key bytea, grant_version bigint, head_key bytea,
    prefix bytea, queue bytea, inboxes bytea, origin bytea, longest int,
    OUT generation bigint, OUT at bigint, OUT version bigint, OUT chosen int,
    OUT found_key bytea, OUT found_value bytea, OUT found_version bigint
) LANGUAGE plpgsql AS $$
DECLARE
    counted bigint;
    expiring bigint;
    found_end bigint;
    moved bytea;
    inbox bytea;
    is_short boolean;
    is_awaited boolean;
    message text;
BEGIN
    PERFORM FROM @schema@.records AS r
    WHERE r.key >= queue || '\x00'::bytea AND r.key < queue || '\xff'::bytea ORDER BY r.key LIMIT 1;
    is_awaited := FOUND;
    IF NOT is_awaited AND first = 0 THEN
        SELECT count(*), count(s.expires_at) INTO counted, expiring FROM (
            SELECT r.expires_at FROM @schema@.records AS r
            WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT 2
        ) AS s;
        IF counted <> 1 OR expiring > 0 THEN
            IF expiring > 0 THEN
                RETURN;
            END IF;
        ELSE
            PERFORM FROM @schema@.records AS r
            WHERE r.key = gate_key AND r.version = gate_version AND r.expires_at IS NULL FOR UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            PERFORM FROM @schema@.records AS r
            WHERE r.key = grant_key AND r.version = grant_version AND r.expires_at IS NULL FOR UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            PERFORM FROM @schema@.records AS r
            WHERE r.key = head_key AND r.version = gate_version AND r.expires_at IS NULL FOR UPDATE;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            -- Who takes or joins under the gate is done by now, or waits. So it is looked once more.
            PERFORM FROM @schema@.records AS r
            WHERE r.key >= queue || '\x00'::bytea AND r.key < queue || '\xff'::bytea ORDER BY r.key LIMIT 1;
            IF FOUND THEN
                RETURN;
            END IF;
            PERFORM FROM @schema@.records AS r
            WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key OFFSET 1 LIMIT 1;
            IF FOUND THEN
                RETURN;
            END IF;
            DELETE FROM @schema@.records AS r WHERE r.key = ANY (ARRAY[gate_key, grant_key, head_key]);
            chosen := 0;
        END IF;
    END IF;
    IF chosen IS NULL THEN
        -- In the mode that it will need, and before the head: one that has the head locked waits for none that joins.
        IF is_awaited THEN
            PERFORM FROM @schema@.records AS r
            WHERE r.key = grant_key AND r.version = grant_version AND r.expires_at IS NULL FOR NO KEY UPDATE;
        ELSE
            PERFORM FROM @schema@.records AS r
            WHERE r.key = grant_key AND r.version = grant_version AND r.expires_at IS NULL FOR UPDATE;
        END IF;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        -- It waits for nothing while it has the grant locked: one that has the head, as it tried to be the last one, may wait for this grant.
        PERFORM FROM @schema@.records AS r
        WHERE r.key = head_key AND r.version = gate_version AND r.expires_at IS NULL FOR SHARE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        LOOP
            PERFORM FROM @schema@.records AS r
            WHERE r.key >= queue || '\x00'::bytea AND r.key < queue || '\xff'::bytea ORDER BY r.key LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT r.key, r.value, r.version, r.expires_at INTO found_key, found_value, found_version, found_end
            FROM @schema@.records AS r
            WHERE r.key >= queue || '\x00'::bytea AND r.key < queue || '\xff'::bytea ORDER BY r.key LIMIT 1 FOR UPDATE;
            EXIT WHEN FOUND;  -- if it was deleted while we waited for it, another one may be the first now
        END LOOP;
        IF FOUND AND (found_end IS NOT NULL OR octet_length(found_key) <= octet_length(queue) + 18) THEN
            found_key := NULL;
            found_value := NULL;
            found_version := NULL;
            RETURN;
        END IF;
        chosen := first + 1;
        IF NOT FOUND THEN
            IF is_awaited THEN
                chosen := NULL;
                RETURN;
            END IF;
            chosen := first + 2;
            PERFORM FROM @schema@.records AS r
            WHERE r.key > grant_key AND r.key < prefix || '\xff'::bytea AND r.expires_at IS NULL
            ORDER BY r.key LIMIT 1 FOR KEY SHARE SKIP LOCKED;
            IF NOT FOUND THEN
                PERFORM FROM @schema@.records AS r
                WHERE r.key >= prefix || '\x00'::bytea AND r.key < grant_key AND r.expires_at IS NULL
                ORDER BY r.key LIMIT 1 FOR KEY SHARE SKIP LOCKED;
                IF NOT FOUND THEN
                    chosen := NULL;
                    RETURN;
                END IF;
            END IF;
            -- Who joins has the grant locked, and is done by now.
            PERFORM FROM @schema@.records AS r
            WHERE r.key >= queue || '\x00'::bytea AND r.key < queue || '\xff'::bytea ORDER BY r.key LIMIT 1;
            IF FOUND THEN
                chosen := NULL;
                RETURN;
            END IF;
        END IF;
    END IF;
    at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    version := nextval('@schema@.versions'::regclass);
    IF chosen = first + 2 THEN
        DELETE FROM @schema@.records AS r WHERE r.key = grant_key;
    ELSIF chosen = first + 1 THEN
        moved := convert_to(lpad(at::text, 16, '0'), 'UTF8') || found_value;
        UPDATE @schema@.records AS r SET value = moved, version = leave_slot.version WHERE r.key = grant_key;
        DELETE FROM @schema@.records AS r WHERE r.key = found_key;
        inbox := inboxes || substring(found_key FROM octet_length(queue) + 19);
        is_short := octet_length(inbox) + octet_length(grant_key) + octet_length(moved) <= longest;
        message := translate(encode(
            '\x01'::bytea || origin || convert_to(
                CASE WHEN is_short THEN lpad(version::text, 16, '0') ELSE repeat('0', 16) END
                || lpad(octet_length(inbox)::text, 16, '0') || lpad(octet_length(grant_key)::text, 16, '0'), 'UTF8'
            ) || inbox || grant_key || CASE WHEN is_short THEN moved ELSE ''::bytea END,
            'base64'), E'\n', '');
        PERFORM pg_notify(@schema@.channel_of(inbox), message), pg_notify(@schema@.channel_of(inboxes), message);
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    UPDATE @schema@.attempts AS a
    SET number = leave_slot.number, at = leave_slot.at, versions = ARRAY[leave_slot.version, chosen], touched_at = now()
    WHERE a.handle = leave_slot.handle AND a.number < leave_slot.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (handle, number, leave_slot.at, ARRAY[leave_slot.version, chosen])
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;
