package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

const volumesPath = "/api/v1/volumes"

func volumePath(idOrName string) string { return volumesPath + "/" + url.PathEscape(idOrName) }

// CreateVolume makes an empty Volume. sizeMB is in MiB; zero: the server's default.
func (c *Client) CreateVolume(ctx context.Context, name string, sizeMB int64) (v v1.Volume, err error) {
	body := v1.VolumeRequest{Name: name}
	if sizeMB != 0 {
		body.SizeMB = &sizeMB
	}
	err = c.call(ctx, http.MethodPost, volumesPath, nil, body, &v)
	return v, err
}

// Volume returns a Volume, by name or ID.
func (c *Client) Volume(ctx context.Context, idOrName string) (v v1.Volume, err error) {
	err = c.call(ctx, http.MethodGet, volumePath(idOrName), nil, nil, &v)
	return v, err
}

// Volumes lists the caller's Volumes by name.
func (c *Client) Volumes(ctx context.Context) ([]v1.Volume, error) {
	var reply v1.Volumes
	err := c.call(ctx, http.MethodGet, volumesPath, nil, nil, &reply)
	return reply.Volumes, err
}

// DeleteVolume deletes a Volume with its files.
func (c *Client) DeleteVolume(ctx context.Context, idOrName string) error {
	return c.call(ctx, http.MethodDelete, volumePath(idOrName), nil, nil, nil)
}
