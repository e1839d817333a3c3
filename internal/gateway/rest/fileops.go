package rest

import (
	"context"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// copyRequest converts b.
func copyRequest(b *v1.FileCopy) (execution.CopyRequest, error) {
	req := execution.CopyRequest{
		Source: b.Source, Destination: b.Destination, Recursive: b.Recursive, Overwrite: b.Overwrite, User: b.User,
	}
	return req, req.Complete()
}

// CopyFile copies a file or directory.
func (a *API) CopyFile(ctx context.Context, c Call, in *v1.CopyRequest) (v1.Copied, error) {
	req, err := copyRequest(&in.FileCopy)
	if err != nil {
		return v1.Copied{}, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	if err != nil {
		return v1.Copied{}, err
	}
	copied, err := guest.Copy(ctx, req)
	return v1.Copied{Entry: FileViewOf(copied.Entry), Files: copied.Files, Bytes: copied.Bytes, FilesSkipped: copied.FilesSkipped}, err
}

// chmodRequest converts b.
func chmodRequest(b *v1.FileChmod) (execution.ChmodRequest, error) {
	req := execution.ChmodRequest{Path: b.Path, Recursive: b.Recursive, User: b.User}
	return req, req.Complete(b.Mode)
}

// ChmodFile changes permissions.
func (a *API) ChmodFile(ctx context.Context, c Call, in *v1.ChmodRequest) (v1.ChangedFiles, error) {
	req, err := chmodRequest(&in.FileChmod)
	if err != nil {
		return v1.ChangedFiles{}, err
	}
	guest, err := a.guest(ctx, c.Who, in.Target)
	if err != nil {
		return v1.ChangedFiles{}, err
	}
	changed, err := guest.Chmod(ctx, req)
	return v1.ChangedFiles{Path: text(req.Path), Changed: changed}, err
}
