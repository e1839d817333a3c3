-- +goose Up
-- The epoch of a lease for which an operator declared the node lost. An earlier program
-- renews a lease without this column, in an epoch of its own.
ALTER TABLE nodes ADD COLUMN lost_epoch INTEGER NOT NULL DEFAULT 0;
-- A boot of a paused sandbox may still run on a node that did not answer.
ALTER TABLE sandboxes ADD COLUMN may_run INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE sandboxes DROP COLUMN may_run;
ALTER TABLE nodes DROP COLUMN lost_epoch;
