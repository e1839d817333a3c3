-- +goose Up
-- After what time without a renewal the node cuts its boots off by itself, and the end of
-- the lease that was renewed with it. An earlier program renews a lease without the two.
ALTER TABLE nodes ADD COLUMN fence_after INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN fence_until INTEGER NOT NULL DEFAULT 0;
-- The latest epoch in which the node was lost. Unlike lost_epoch it is never reset.
ALTER TABLE nodes ADD COLUMN given_up_epoch INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN given_up_epoch;
ALTER TABLE nodes DROP COLUMN fence_until;
ALTER TABLE nodes DROP COLUMN fence_after;
