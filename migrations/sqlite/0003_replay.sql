-- How often an event was replayed: the generation of its latest replay. It
-- only rises, whatever is purged, so that no idempotency key comes twice.
ALTER TABLE {p}outbox ADD COLUMN replays INTEGER NOT NULL DEFAULT 0;

-- Of a replay: deliveries that were made, pairs that were still open, events
-- that were not dispatched yet. A requeue counts open pairs too.
ALTER TABLE {p}operation ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}operation ADD COLUMN open INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}operation ADD COLUMN pending INTEGER NOT NULL DEFAULT 0;
