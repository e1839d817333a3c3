package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Volume is what the API tells of one.
type Volume struct {
	ID        string    `json:"volume_id"`
	Name      string    `json:"name"`
	SizeMB    int64     `json:"size_mb"`
	UsedBytes *int64    `json:"used_bytes"` // nil while nobody knows, as Files
	Files     *int64    `json:"files"`
	CreatedAt time.Time `json:"created_at"`

	Raw json.RawMessage `json:"-"` // all of it, as the server said it
}

// UnmarshalJSON keeps the text beside the fields.
func (v *Volume) UnmarshalJSON(raw []byte) error {
	type fields Volume
	v.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, (*fields)(v))
}

// MarshalJSON gives the text as the server said it.
func (v Volume) MarshalJSON() ([]byte, error) { return v.Raw, nil }

// VolumeMount asks for a Volume, by name or ID, at a path of a new Sandbox.
type VolumeMount struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

const volumesPath = "/api/v1/volumes"

func volumePath(idOrName string) string { return volumesPath + "/" + url.PathEscape(idOrName) }

// CreateVolume makes an empty Volume. sizeMB is in MiB; zero: what the server
// gives.
func (c *Client) CreateVolume(ctx context.Context, name string, sizeMB int64) (v Volume, err error) {
	body := map[string]any{"name": name}
	if sizeMB != 0 {
		body["size_mb"] = sizeMB
	}
	err = c.call(ctx, http.MethodPost, volumesPath, nil, body, &v)
	return v, err
}

// Volume returns one, by name or ID.
func (c *Client) Volume(ctx context.Context, idOrName string) (v Volume, err error) {
	err = c.call(ctx, http.MethodGet, volumePath(idOrName), nil, nil, &v)
	return v, err
}

// Volumes lists the caller's by name.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	var reply struct {
		Volumes []Volume `json:"volumes"`
	}
	err := c.call(ctx, http.MethodGet, volumesPath, nil, nil, &reply)
	return reply.Volumes, err
}

// DeleteVolume deletes one with all that is in it.
func (c *Client) DeleteVolume(ctx context.Context, idOrName string) error {
	return c.call(ctx, http.MethodDelete, volumePath(idOrName), nil, nil, nil)
}
