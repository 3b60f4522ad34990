-- What a project's triggers may grant; NULL is everything. A host of an earlier
-- version doesn't look at it.
ALTER TABLE {p}project ADD COLUMN allow_json TEXT;
