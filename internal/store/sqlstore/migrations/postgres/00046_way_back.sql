-- +goose Up
-- The state to which a resuming sandbox returns if it does not start, and the number of the
-- boot for which that holds. An earlier program does not set them.
ALTER TABLE sandboxes ADD COLUMN back_snapshot TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN back_timeline BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN back_boot BIGINT NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_back ON sandboxes (back_snapshot) WHERE back_snapshot <> '';

-- +goose Down
DROP INDEX sandboxes_back;
ALTER TABLE sandboxes DROP COLUMN back_boot;
ALTER TABLE sandboxes DROP COLUMN back_timeline;
ALTER TABLE sandboxes DROP COLUMN back_snapshot;
