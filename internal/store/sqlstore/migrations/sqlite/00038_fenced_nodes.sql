-- +goose Up
-- After what time without a renewal the node cuts its boots off by itself, and the end of
-- the lease that was renewed with it. An earlier program renews a lease without the two.
ALTER TABLE nodes ADD COLUMN fence_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN fence_until INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN fence_until;
ALTER TABLE nodes DROP COLUMN fence_after;
