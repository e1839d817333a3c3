-- +goose Up
-- When a lease was renewed. Until then its node vouches for its boots, which are charged so
-- long if it is lost. An earlier program does not set it.
ALTER TABLE nodes ADD COLUMN renewed_at BIGINT NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE nodes DROP COLUMN renewed_at;
