-- +goose Up
-- Another node that may have files of the volume: the one that it moves to, or has left.
ALTER TABLE volumes ADD COLUMN left_on TEXT COLLATE "C" NOT NULL DEFAULT '';
CREATE INDEX volumes_moved ON volumes (left_on) WHERE left_on <> '';
CREATE INDEX volumes_of_node ON volumes (node, id);
-- Volumes leave a draining node too.
ALTER TABLE nodes ADD COLUMN move_volumes BOOLEAN NOT NULL DEFAULT FALSE;

-- +goose Down
ALTER TABLE nodes DROP COLUMN move_volumes;
DROP INDEX volumes_of_node;
DROP INDEX volumes_moved;
ALTER TABLE volumes DROP COLUMN left_on;
