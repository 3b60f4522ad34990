-- How often an event or a delivery was running alone when its host died, and
-- which of them runs alone on the lane's host.
ALTER TABLE {p}outbox ADD COLUMN trials integer NOT NULL DEFAULT 0;
ALTER TABLE {p}delivery ADD COLUMN trials integer NOT NULL DEFAULT 0;
ALTER TABLE {p}lane ADD COLUMN alone_event bigint;
ALTER TABLE {p}lane ADD COLUMN alone_delivery bigint;
