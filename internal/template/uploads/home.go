package uploads

import (
	"context"
	"errors"
	"io"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// AtHome returns the uploads of an installation for one of its gateways. The home, the
// Node that keeps the Templates, keeps them. A home of the version before refuses uploads
// with Unsupported; own keeps them then. An upload that came to own before home was
// upgraded can still be read.
func AtHome(home, own sandbox.TemplateUploads) sandbox.TemplateUploads {
	return atHome{home, own}
}

type atHome struct{ home, own sandbox.TemplateUploads }

func (a atHome) HasUpload(ctx context.Context, tenant sandbox.TenantID, hash string) (bool, error) {
	present, err := a.home.HasUpload(ctx, tenant, hash)
	if errors.Is(err, sandbox.Unsupported) {
		return a.own.HasUpload(ctx, tenant, hash)
	}
	return present, err
}

func (a atHome) OpenUpload(ctx context.Context, tenant sandbox.TenantID, hash string) (io.ReadCloser, int64, error) {
	archive, n, err := a.home.OpenUpload(ctx, tenant, hash)
	if errors.Is(err, sandbox.Unsupported) || errors.Is(err, sandbox.NotFound) {
		return a.own.OpenUpload(ctx, tenant, hash)
	}
	return archive, n, err
}

// StoreUpload asks home first whether it takes uploads: an archive can be sent only once.
func (a atHome) StoreUpload(ctx context.Context, tenant sandbox.TenantID, hash string, archive io.Reader) error {
	_, err := a.home.HasUpload(ctx, tenant, hash)
	if errors.Is(err, sandbox.Unsupported) {
		return a.own.StoreUpload(ctx, tenant, hash, archive)
	}
	if err != nil {
		return err
	}
	return a.home.StoreUpload(ctx, tenant, hash, archive)
}
