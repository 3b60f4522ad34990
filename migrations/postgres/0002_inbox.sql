-- Which messages a consumer has processed. {inbox} is the table's name: this
-- one may live, alone, in a consumer's own database.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer     text COLLATE "C" NOT NULL,
    message_id   text COLLATE "C" NOT NULL,
    processed_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    PRIMARY KEY (consumer, message_id)
);
