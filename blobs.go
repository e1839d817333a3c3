package sandbox

import (
	"context"
	"strings"
)

// MaxBlob is how many bytes one blob may have.
const MaxBlob = 64 << 20

// Blobs keeps bytes under names, on a disk or in S3. It knows nothing of what
// they are: who puts them seals them first.
//
// A name is 1 to 512 of a-z, A-Z, 0-9, '.', '_', '-' and '/', with parts between
// the '/' that are neither empty nor begin with a '.'; another one is Invalid.
// Methods are safe for concurrent use and return soon after ctx ends. What cannot
// be reached is Unavailable, what refuses us Denied; both may pass.
type Blobs interface {
	// Probe reports whether blobs can be kept: NotFound when the place for them is
	// not there. It leaves nothing behind.
	Probe(ctx context.Context) error
	// Put keeps content under a name, all of it or nothing, safely once it returns.
	// What was there under that name is replaced. Nothing at all is Invalid, more
	// than MaxBlob TooLarge.
	Put(ctx context.Context, name string, content []byte) error
	// Get returns what was put; NotFound when there is none.
	Get(ctx context.Context, name string) ([]byte, error)
	// Size returns how many bytes were put; NotFound when there is none.
	Size(ctx context.Context, name string) (int64, error)
	// Delete removes a blob; one that is not there is a success.
	Delete(ctx context.Context, name string) error
}

const maxBlobName = 512

// CheckBlob returns what Put does for a blob that cannot be kept.
func CheckBlob(name string, content []byte) error {
	switch {
	case len(content) == 0:
		return Errorf(Invalid, "a blob holds something")
	case len(content) > MaxBlob:
		return Errorf(TooLarge, "a blob has at most %d bytes", MaxBlob)
	}
	return CheckBlobName(name)
}

// CheckBlobName returns Invalid when a blob cannot be called so.
func CheckBlobName(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.Trim(part, blobNameChars) != "" || len(name) > maxBlobName {
			return Errorf(Invalid, "%.80q is no name of a blob", name)
		}
	}
	return nil
}

const blobNameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
