package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/fdrpc"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template/images"
)

// A sentry trusts the state that it restores: the writer of a saved state controls the
// sentry. So a state from outside is taken only when it is signed by a sentry host of this
// cluster, or of an installation that this one trusts. The server, which carries it, cannot
// forge one.

// export returns the Proof of a state, and its files open for reading.
func (h *Host) export(ctx context.Context, r sentryhost.ExportRequest) (any, []*os.File, error) {
	if err := h.awaitArrival(ctx, r.Name); err != nil {
		return nil, nil, err
	}
	p, files, err := h.exportState(r.Name)
	if err != nil || !r.Image {
		return p, files, err
	}
	image, size, err := h.exportImage(ctx, p)
	if err != nil {
		closeAll(files)
		return nil, nil, err
	}
	p.ImageBytes = size
	return p, append(files, image), nil
}

// exportImage opens the image that a state needs.
func (h *Host) exportImage(ctx context.Context, p sentryhost.Proof) (*os.File, int64, error) {
	m := new(sentryhost.Manifest)
	if err := json.Unmarshal(p.Manifest, m); err != nil {
		return nil, 0, err
	}
	image, err := h.openImage(ctx, m.Image)
	if errors.Is(err, sandbox.NotFound) {
		err = sandbox.Errorf(sandbox.Conflict, "the image of the snapshot's template was removed").WithCause(err)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := image.Stat()
	if err != nil {
		image.Close()
		return nil, 0, err
	}
	return image, info.Size(), nil
}

func (h *Host) exportState(name string) (p sentryhost.Proof, _ []*os.File, _ error) {
	m, raw, err := h.readManifest(name)
	if err != nil {
		return p, nil, err
	}
	files, done, err := h.openReady(m)
	if err != nil {
		return p, nil, err
	}
	defer done()
	p.Manifest = raw
	for i, f := range files {
		sum := sha256.New()
		n, err := io.Copy(sum, io.NewSectionReader(f, 0, m.Files[i].Bytes+1))
		if err == nil && n != m.Files[i].Bytes {
			err = fmt.Errorf("%s has not %d bytes", m.Files[i].Name, m.Files[i].Bytes)
		}
		if err != nil {
			closeAll(files)
			return p, nil, damaged(name, err)
		}
		p.Sums = append(p.Sums, sum.Sum(nil))
	}
	if err := verify(m, files); err != nil { // damage on this host must not be signed
		closeAll(files)
		return p, nil, err
	}
	if err := h.checkSummed(m, files); err != nil {
		closeAll(files)
		return p, nil, err
	}
	signature, by, err := h.keys.Sign(p.Statement())
	if err != nil {
		closeAll(files)
		return p, nil, err
	}
	p.Signature, p.Key = signature, by.String()
	if p.Certificate, err = h.keys.Certificate(); err != nil {
		closeAll(files)
		return p, nil, err
	}
	return p, files, nil
}

// checkSummed is checkSame for a caller that does not hold the name.
func (h *Host) checkSummed(m *sentryhost.Manifest, files []*os.File) error {
	defer h.lockName(m.Name)()
	return h.checkSame(m, files)
}

// take makes a state from the bytes of a pipe, until ctx ends.
func (h *Host) take(ctx context.Context, r sentryhost.ImportRequest, req *fdrpc.Request) (sandbox.Saved, error) {
	if !sandbox.ValidSnapshotID(r.Name) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Invalid, "%.80q is not a snapshot ID", r.Name)
	}
	pipe, err := req.TakeFile(0)
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer pipe.Close()
	defer context.AfterFunc(ctx, func() { pipe.Close() })()
	m, err := h.believe(r)
	if err != nil {
		return sandbox.Saved{}, err
	}
	if r.Proof.ImageBytes > 0 {
		if err := h.takeImage(pipe, m.Image, r.Proof.ImageBytes); err != nil {
			return sandbox.Saved{}, err
		}
	}
	if err := h.hasImage(m.Image); err != nil {
		return sandbox.Saved{}, err
	}
	unlock, a, err := h.lockArrival(ctx, r.Name)
	for err == nil && a != nil {
		unlock()
		if !h.stopUnused(a) {
			return sandbox.Saved{}, sandbox.Errorf(sandbox.Unavailable, "the saved state %s still arrives for sandboxes that started from it", r.Name)
		}
		unlock, a, err = h.lockArrival(ctx, r.Name)
	}
	if err != nil {
		return sandbox.Saved{}, err
	}
	defer unlock()
	if _, err := os.Lstat(h.savedDir(r.Name)); !errors.Is(err, fs.ErrNotExist) {
		return sandbox.Saved{}, sandbox.Errorf(sandbox.Conflict, "another state was saved as %s", r.Name).WithCause(err)
	}
	room := int64(0)
	for _, f := range m.Files {
		room += f.Bytes
	}
	d, err := h.newDraft(m, room, 0)
	if err != nil {
		return sandbox.Saved{}, err
	}
	d.layer = m.Files[len(m.Files)-1].Layer
	if err := d.fill(pipe, r.Proof.Sums); err != nil {
		d.discard()
		return sandbox.Saved{}, err
	}
	saved, err := d.finish()
	if err != nil {
		d.discard()
	}
	return saved, err
}

// believe returns the manifest of a state, under its new name. The state must be signed
// by a trusted installation and startable here.
func (h *Host) believe(r sentryhost.ImportRequest) (*sentryhost.Manifest, error) {
	m, err := h.signed(r)
	if err != nil {
		return nil, err
	}
	build, err := h.homeOf(m)
	if err == nil && build == "" {
		err = h.canStart(m)
	}
	return m, err // so that a later start does not fail
}

// signed is believe for a state that perhaps cannot be started here.
func (h *Host) signed(r sentryhost.ImportRequest) (*sentryhost.Manifest, error) {
	key, err := installation.ParseKey(r.Proof.Key)
	if err != nil || !key.Verify(r.Proof.Statement(), r.Proof.Signature) {
		return nil, notExported(errors.Join(err, errors.New("its signature is wrong")))
	}
	if err := h.trusts(key, r); err != nil {
		return nil, err
	}
	m := new(sentryhost.Manifest)
	if err := json.Unmarshal(r.Proof.Manifest, m); err != nil || len(r.Proof.Manifest) > maxManifest {
		return nil, notExported(errors.Join(err, errors.New("its manifest is wrong")))
	}
	if err := wellFormed(m, r.Proof.Sums); err != nil {
		return nil, notExported(err)
	}
	if r.Proof.ImageBytes < 0 || r.Proof.ImageBytes > maxImage {
		return nil, notExported(fmt.Errorf("its image has %d bytes", r.Proof.ImageBytes))
	}
	m.Name = r.Name
	if m.Memory && (m.Build != filepath.Base(m.Build) || m.Build == ".") {
		return nil, notExported(fmt.Errorf("it names the build %.80q", m.Build))
	}
	return m, nil
}

// trusts returns Denied unless the states that key signed are taken.
func (h *Host) trusts(key installation.Key, r sentryhost.ImportRequest) error {
	if len(r.Revoked) > 0 {
		if err := h.keys.UpdateRevocations(r.Revoked); err != nil {
			return sandbox.Errorf(sandbox.Denied, "this server cannot tell which nodes of its cluster are revoked").WithCause(err)
		}
	}
	revoked, err := h.keys.Revoked(key)
	if err != nil {
		return err
	}
	if revoked { // also if an operator added the key before
		return sandbox.Errorf(sandbox.Denied, "the snapshot comes from a node that is revoked in this cluster")
	}
	trusted, err := h.keys.Trusts(key)
	if err == nil && !trusted {
		trusted, err = h.keys.TrustsMember(key, r.Proof.Certificate)
	}
	if err != nil {
		return err
	}
	if !trusted {
		return sandbox.Errorf(sandbox.Denied, "the snapshot comes from the installation %s, which this server does not trust: its operator can add it with `cloud-sandbox trust add`", key)
	}
	return nil
}

func notExported(cause error) error {
	return sandbox.Errorf(sandbox.Invalid, "the content differs from the exported snapshot").WithCause(cause)
}

// wellFormed refuses states that a later version may sign and this one cannot take.
func wellFormed(m *sentryhost.Manifest, sums [][]byte) error {
	want := filesOf(m)
	if len(m.Files) != len(want) || len(sums) != len(want) {
		return fmt.Errorf("it lists %d files and %d sums", len(m.Files), len(sums))
	}
	most := m.Shape.MemoryBytes + m.Shape.DiskBytes + stateRoom
	for i, f := range m.Files {
		last := i == len(want)-1 // the pages, which are none where no file has content
		if f.Name != want[i] || f.Bytes < 0 || f.Bytes == 0 && !last || f.Layer < 0 || f.Layer > maxImage || f.Bytes-f.Layer > most || len(sums[i]) != sha256.Size {
			return fmt.Errorf("it lists %.80q of %d bytes", f.Name, f.Bytes)
		}
		if pages := m.Memory && last; f.Layer > f.Bytes || f.Layer%pageBytes != 0 || f.Layer > 0 && !pages {
			return fmt.Errorf("it lists a layer of %d bytes in %.80q", f.Layer, f.Name)
		}
		most -= f.Bytes - f.Layer // a layer has holes
	}
	if err := m.CPU.Check(); err != nil {
		return err
	}
	return m.Shape.Check()
}

func (h *Host) hasImage(digest string) error {
	name, err := imageName(digest)
	if err == nil && images.Folder(h.cfg.Images).Has(name) {
		return nil
	}
	return sandbox.Errorf(sandbox.Conflict, "the snapshot needs the template image %.80s, which is not here: export the snapshot with its template, or get the same image of that template first", digest).WithCause(err)
}

const (
	// maxImage bounds images and writable layers, in bytes; it is far more than they
	// have.
	maxImage = 256 << 30
	// incomingPrefix begins the names of incomplete images. The writer of one holds a
	// shared lock on it, as the sentry host of another build may start and clean up.
	incomingPrefix = ".arriving-"
)

// takeImage reads an image of n bytes and stores it with the images, unless it exists.
// Only its hash is checked, against its name: the signer of the state that names it
// started sentries from it.
func (h *Host) takeImage(from io.Reader, digest string, n int64) error {
	want := strings.TrimPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(want); err != nil || len(raw) != sha256.Size {
		return notExported(fmt.Errorf("it names the image %.80q", digest))
	}
	all := images.Folder(h.cfg.Images)
	if size, err := all.Size(want); err == nil && size == n {
		return copyImage(io.Discard, from, want, n)
	} else if err == nil {
		return notExported(fmt.Errorf("its image has %d bytes, not %d", n, size))
	}
	if err := roomFor(h.cfg.Images, "the image", n); err != nil {
		return err
	}
	f, err := h.newIncoming()
	if err != nil {
		return fmt.Errorf("make the file of an image: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := copyImage(f, from, want, n); err != nil {
		return err
	}
	const readable = 0o644
	if err := errors.Join(f.Chmod(readable), f.Sync()); err != nil {
		return noRoom(err)
	}
	// Never replace an existing image: its Boots hold it.
	if err := os.Link(f.Name(), all.Path(want)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("name an image: %w", err)
	}
	return syncDir(h.cfg.Images)
}

// newIncoming makes the file of an incomplete image.
func (h *Host) newIncoming() (*os.File, error) {
	for {
		f, err := os.CreateTemp(h.cfg.Images, incomingPrefix)
		if err != nil {
			return nil, err
		}
		if lockImage(f) == nil {
			if _, err := os.Lstat(f.Name()); err == nil {
				return f, nil
			}
		}
		f.Close() // it was mistaken for an abandoned one and removed
	}
}

// copyImage copies n bytes, whose SHA-256 must be want.
func copyImage(to io.Writer, from io.Reader, want string, n int64) error {
	sum := sha256.New()
	switch got, err := io.CopyN(io.MultiWriter(to, sum), from, n); {
	case err == io.EOF:
		return notExported(fmt.Errorf("its image ends after %d bytes", got))
	case err != nil:
		return noRoom(err)
	case hex.EncodeToString(sum.Sum(nil)) != want:
		return notExported(errors.New("its image does not match its hash"))
	}
	return nil
}

// removeIncoming removes incomplete images of an earlier sentry host.
func (h *Host) removeIncoming() {
	left, _ := filepath.Glob(filepath.Join(h.cfg.Images, incomingPrefix+"*"))
	for _, path := range left {
		if err := removeUnlocked(path); err != nil {
			h.log.Warn("removing an incomplete image failed", "file", path, telemetry.KeyError, err)
		}
	}
}

// removeUnlocked removes a file unless a lock on it is held.
func removeUnlocked(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil
	case err != nil:
		return os.NewSyscallError("flock", err)
	}
	return os.Remove(path)
}

// fillFile writes a file of a draft from a pipe, whose content must match a checksum.
func (d *draft) fillFile(i int, pipe io.Reader, want []byte) error {
	sum := sha256.New()
	n, err := io.CopyN(io.MultiWriter(d.files[i], sum), pipe, d.m.Files[i].Bytes)
	switch {
	case err == io.EOF:
		return notExported(fmt.Errorf("%s ends after %d bytes", d.m.Files[i].Name, n))
	case err != nil:
		return noRoom(err)
	case !bytes.Equal(sum.Sum(nil), want):
		return notExported(fmt.Errorf("%s does not match its hash", d.m.Files[i].Name))
	}
	return nil
}

// fill writes the files of a draft from a pipe, whose content must match sums and end
// with ImportEnd.
func (d *draft) fill(pipe io.Reader, sums [][]byte) error {
	defer d.flush()()
	for i, want := range sums {
		if err := d.fillFile(i, pipe, want); err != nil {
			return err
		}
	}
	var end [2]byte
	if n, err := io.ReadFull(pipe, end[:]); n != 1 || err != io.ErrUnexpectedEOF || end[0] != sentryhost.ImportEnd {
		return notExported(fmt.Errorf("its end is %q, %w", end[:n], err))
	}
	return nil
}
