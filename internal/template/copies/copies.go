// Package copies keeps copies of the images of Templates in blobs, for the time in which
// the Node that keeps the Templates is away.
package copies

import (
	"context"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
)

// maxPart is how much of an image is in one blob. A reader and a writer hold one part in
// memory. Another size needs other names, because parts of an interrupted copy are kept.
const maxPart = 8 << 20

// Copies reads the copies of images. Use Open. Methods are safe for concurrent use.
type Copies struct {
	blobs   sandbox.Blobs
	masters []master // the first seals
	part    int64    // size of the parts of new copies
	encode  *zstd.Encoder
	decode  *zstd.Decoder
}

// master is one of the operator's keys.
type master struct{ key, naming []byte }

// Open returns the copies that are sealed with the operator's keys. New ones are sealed
// with the first.
func Open(blobs sandbox.Blobs, keys [][]byte) (*Copies, error) {
	c := &Copies{blobs: blobs, part: maxPart}
	for _, key := range keys {
		naming, err := seal.Derive(key, "names of images")
		if err != nil {
			return nil, err
		}
		c.masters = append(c.masters, master{key, naming})
	}
	if len(c.masters) == 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "no key for sealing images")
	}
	var err error
	if c.encode, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1)); err != nil {
		return nil, err
	}
	c.decode, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxPart))
	return c, err
}

// idOf names the copy of an image. Without the operator's key it does not reveal which
// image that is.
func (m master) idOf(version string) string {
	mac := hmac.New(sha256.New, m.naming)
	mac.Write([]byte(version))
	return hex.EncodeToString(mac.Sum(nil))
}

// cipherOf is the cipher of an image. Images that Tenants share have one copy, so the key
// depends on the image and not on a Tenant.
func (m master) cipherOf(version string) (cipher.AEAD, error) {
	return seal.AEAD(m.key, "image "+version)
}

func listName(id string) string { return "images/" + id + "/list" }

func partName(id string, n int64) string { return fmt.Sprintf("images/%s/%d", id, n) }

// partsOf is the number of parts of a new copy.
func (c *Copies) partsOf(bytes int64) int64 { return (bytes + c.part - 1) / c.part }

// list is the last blob of a copy, which makes it complete.
type list struct {
	Bytes     int64 `json:"bytes"`
	PartBytes int64 `json:"part_bytes"` // of each part but the last one
}

// OpenImage reads the copy of an image and returns its size in bytes. The caller closes the
// image. NotFound when it has no complete copy. The content is not compared with the
// version.
func (c *Copies) OpenImage(ctx context.Context, version string) (io.ReadCloser, int64, error) {
	for _, m := range c.masters {
		r, err := c.openWith(ctx, m, version)
		if errors.Is(err, sandbox.NotFound) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		return r, r.left, nil
	}
	return nil, 0, sandbox.Errorf(sandbox.NotFound, "the image %.64s has no copy", version)
}

func (c *Copies) openWith(ctx context.Context, m master, version string) (*reader, error) {
	aead, err := m.cipherOf(version)
	if err != nil {
		return nil, err
	}
	id := m.idOf(version)
	raw, err := c.get(ctx, aead, listName(id))
	if err != nil {
		return nil, err
	}
	var l list
	if err := json.Unmarshal(raw, &l); err != nil || l.Bytes <= 0 || l.PartBytes <= 0 || l.PartBytes > maxPart {
		return nil, fmt.Errorf("%w: the list of an image is of another version", sandbox.ErrDamaged)
	}
	return &reader{c: c, ctx: ctx, aead: aead, id: id, size: l.PartBytes, left: l.Bytes}, nil
}

// get returns the content of a blob.
func (c *Copies) get(ctx context.Context, aead cipher.AEAD, name string) ([]byte, error) {
	sealed, err := c.blobs.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	content, err := seal.Open(aead, name, sealed)
	if err != nil {
		return nil, fmt.Errorf("%w: the blob %s: %w", sandbox.ErrDamaged, name, err)
	}
	return content, nil
}

// reader reads the parts of a copy one after the other.
type reader struct {
	c    *Copies
	ctx  context.Context
	aead cipher.AEAD
	id   string
	size int64  // of each part but the last one
	next int64  // the part that follows
	part []byte // the unread rest of the part before
	left int64  // bytes of the image that are still to come
}

func (r *reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if len(r.part) == 0 {
		if err := r.fetch(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.part)
	r.part, r.left = r.part[n:], r.left-int64(n)
	return n, nil
}

func (r *reader) fetch() error {
	name := partName(r.id, r.next)
	compressed, err := r.c.get(r.ctx, r.aead, name)
	if errors.Is(err, sandbox.NotFound) {
		return fmt.Errorf("%w: no blob %s", sandbox.ErrDamaged, name)
	}
	if err != nil {
		return err
	}
	part, err := r.c.decode.DecodeAll(compressed, nil)
	if err == nil && int64(len(part)) != min(r.size, r.left) {
		err = fmt.Errorf("it has %d bytes", len(part))
	}
	if err != nil {
		return fmt.Errorf("%w: the blob %s: %w", sandbox.ErrDamaged, name, err)
	}
	r.part, r.next = part, r.next+1
	return nil
}

// Close ends the reading.
func (r *reader) Close() error {
	r.part, r.left = nil, 0
	return nil
}
