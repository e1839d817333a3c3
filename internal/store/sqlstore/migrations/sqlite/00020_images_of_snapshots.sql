-- +goose Up
-- What stands on an image, which must not go before that.
CREATE INDEX snapshots_image ON snapshots (image, created_at DESC, id DESC) WHERE state <> 'deleting';

-- +goose Down
DROP INDEX snapshots_image;
