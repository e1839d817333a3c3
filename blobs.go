package sandbox

import (
	"context"
	"strings"
)

// MaxBlob bounds one blob, in bytes.
const MaxBlob = 64 << 20

// Blobs stores bytes under names, on a disk or in S3. The contents are opaque: callers
// seal them first.
//
// A name is 1 to 512 of a-z, A-Z, 0-9, '.', '_', '-' and '/', with parts between the '/'
// that are neither empty nor begin with a '.'; any other name is Invalid. Methods are
// safe for concurrent use and return soon after ctx ends. A storage that cannot be
// reached is Unavailable, one that refuses access Denied; both may be transient.
type Blobs interface {
	// Probe checks that blobs can be stored: NotFound when the directory or bucket is
	// missing. It leaves nothing behind.
	Probe(ctx context.Context) error
	// Put stores content under a name atomically and durably, and replaces an existing
	// blob. Empty content is Invalid, more than MaxBlob TooLarge.
	Put(ctx context.Context, name string, content []byte) error
	// Get returns a blob's content. A missing blob is NotFound.
	Get(ctx context.Context, name string) ([]byte, error)
	// Size returns a blob's size in bytes. A missing blob is NotFound.
	Size(ctx context.Context, name string) (int64, error)
	// Delete removes a blob; a missing one is a success.
	Delete(ctx context.Context, name string) error
}

const maxBlobName = 512

// CheckBlob returns the error that Put returns for a blob that cannot be stored.
func CheckBlob(name string, content []byte) error {
	switch {
	case len(content) == 0:
		return Errorf(Invalid, "a blob must not be empty")
	case len(content) > MaxBlob:
		return Errorf(TooLarge, "a blob has at most %d bytes", MaxBlob)
	}
	return CheckBlobName(name)
}

// CheckBlobName returns Invalid when name cannot name a blob.
func CheckBlobName(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.Trim(part, blobNameChars) != "" || len(name) > maxBlobName {
			return Errorf(Invalid, "%.80q is not the name of a blob", name)
		}
	}
	return nil
}

const blobNameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
