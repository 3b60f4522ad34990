-- Which messages a consumer has processed. {inbox} is the table's name: this
-- one may live, alone, in a consumer's own database.
CREATE TABLE IF NOT EXISTS {inbox} (
    consumer     TEXT NOT NULL,
    message_id   TEXT NOT NULL,
    processed_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)),
    PRIMARY KEY (consumer, message_id)
);
