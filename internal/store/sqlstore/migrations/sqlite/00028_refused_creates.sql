-- +goose Up
-- Each create counts its tenant's creates of the last minute. Refused ones do not
-- count, and there may be thousands of them. The cause is in the index so that it covers
-- the count.
CREATE INDEX sandboxes_counted ON sandboxes (tenant, created_at, ended_cause)
    WHERE ended_cause <> 'refused';
-- Refused ones are deleted long before the others.
CREATE INDEX sandboxes_refused ON sandboxes (ended_at) WHERE ended_cause = 'refused';

-- +goose Down
DROP INDEX sandboxes_refused;
DROP INDEX sandboxes_counted;
