package copies

import (
	"bytes"
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	usualEvery = 10 * time.Second
	usualGrace = 10 * time.Minute
	// retryAfter is the pause before an image is tried again.
	retryAfter = time.Minute
	// retryDamaged is that pause for an image without its hash: each attempt puts all of it.
	retryDamaged = time.Hour
	// requestLimit bounds one request to blobs.
	requestLimit = 5 * time.Minute
)

// Images are the images of the Node that keeps the Templates.
type Images interface {
	// OpenToCopy reads an image, which can be removed meanwhile, and returns its size in
	// bytes. NotFound for a missing image.
	OpenToCopy(ctx context.Context, version string) (image io.ReadCloser, bytes int64, err error)
	// ListImages returns the versions of all images.
	ListImages() ([]string, error)
}

// KeeperConfig configures a Keeper. Every and Grace may be zero.
type KeeperConfig struct {
	Copies *Copies
	Images Images
	// Needed reports whether a Sandbox or a Snapshot on any Node needs an image: one may have
	// started from it although its name has been removed.
	Needed func(ctx context.Context, version string) (bool, error)
	// Dir is a folder for the records of the copies. It is made if it is missing.
	Dir string
	Log *slog.Logger
	// Every is how often the images are listed; zero: 10 s. Grace is how long an image must
	// have been missing before its copy is deleted; zero: 10 min.
	Every, Grace time.Duration
}

// Keeper makes copies of all images, one image at a time, and deletes the copies of removed
// images. Only the Node that keeps the Templates runs one. Use NewKeeper.
type Keeper struct {
	cfg       KeeperConfig
	records   map[string]record    // by version
	unchecked map[string]bool      // versions with a record of an earlier process; see check
	gone      map[string]time.Time // since when a version with a record has no image
	retry     map[string]time.Time // when to try a version again
	waiting   atomic.Int64
	counts    Counts
}

// Counts count the work of a Keeper.
type Counts struct{ Copied, CopyFailed, Deleted, DeleteFailed atomic.Int64 }

// record tells which blobs may exist for an image. It is written before the first of them,
// and removed after the last.
type record struct {
	Copies []copied `json:"copies"`
}

type copied struct {
	ID    string `json:"id"`
	Parts int64  `json:"parts"`
	Ready bool   `json:"ready"`
	// Damaged: parts may be of an image that did not have its hash, and are not kept.
	Damaged bool `json:"damaged,omitempty"`
}

// NewKeeper reads the records. One that cannot be read counts as none: its image is copied
// again.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	cfg.Every, cfg.Grace = cmp.Or(cfg.Every, usualEvery), cmp.Or(cfg.Grace, usualGrace)
	k := &Keeper{
		cfg: cfg, records: map[string]record{}, unchecked: map[string]bool{},
		gone: map[string]time.Time{}, retry: map[string]time.Time{},
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for records of copied images: %w", err)
	}
	files, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("look for records of copied images: %w", err)
	}
	for _, f := range files {
		if f.Name()[0] == '.' { // it was being written
			continue
		}
		raw, err := os.ReadFile(filepath.Join(cfg.Dir, f.Name()))
		var r record
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil {
			cfg.Log.Warn("the record of a copied image cannot be read; an image that is still here is copied again, and the copy of another stays for good", "record", filepath.Join(cfg.Dir, f.Name()), telemetry.KeyError, err)
			continue
		}
		k.records[f.Name()], k.unchecked[f.Name()] = r, true
	}
	return k, nil
}

// Waiting returns how many images have no copy yet, or a copy that this process has not
// looked for.
func (k *Keeper) Waiting() int64 { return k.waiting.Load() }

// Counts returns the counts, which grow.
func (k *Keeper) Counts() *Counts { return &k.counts }

// Run copies and deletes until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.cfg.Every)
	defer tick.Stop()
	for {
		k.step(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step copies the images that have no copy, and deletes the copies without an image.
func (k *Keeper) step(ctx context.Context) {
	have, err := k.cfg.Images.ListImages()
	if err != nil {
		k.cfg.Log.Warn("listing the images for their copies failed; will retry", telemetry.KeyError, err)
		return
	}
	here := map[string]bool{}
	for _, version := range have {
		here[version] = true
	}
	wanted := slices.DeleteFunc(have, k.isCopied)
	k.waiting.Store(int64(len(wanted)))
	for _, version := range wanted {
		if ctx.Err() != nil {
			return
		}
		if time.Now().Before(k.retry[version]) {
			continue
		}
		if k.try(ctx, version, "copying the image of a template failed; will retry", &k.counts.CopyFailed, k.copy) {
			k.waiting.Add(-1)
		}
	}
	for version := range k.records {
		switch since, known := k.gone[version]; {
		case here[version]:
			delete(k.gone, version)
		case !known:
			k.gone[version] = time.Now()
		case time.Since(since) >= k.cfg.Grace && ctx.Err() == nil && !time.Now().Before(k.retry[version]):
			if k.try(ctx, version, "deleting the copy of a removed image failed; will retry", &k.counts.DeleteFailed, k.delete) {
				delete(k.gone, version)
			}
		}
	}
}

// try runs work on a version and reports whether it succeeded.
func (k *Keeper) try(ctx context.Context, version, failed string, failures *atomic.Int64, work func(context.Context, string) error) bool {
	err := work(ctx, version)
	if err == nil {
		delete(k.retry, version)
		return true
	}
	if ctx.Err() == nil {
		failures.Add(1)
		pause := retryAfter
		if errors.Is(err, sandbox.ErrDamaged) {
			pause = retryDamaged
		}
		k.retry[version] = time.Now().Add(pause)
		k.cfg.Log.WarnContext(ctx, failed, "version", version, telemetry.KeyError, err)
	}
	return false
}

// first is the ID of a copy that is sealed with the first key.
func (k *Keeper) first(version string) string { return k.cfg.Copies.masters[0].idOf(version) }

func (k *Keeper) isCopied(version string) bool {
	return !k.unchecked[version] && slices.ContainsFunc(k.records[version].Copies, func(c copied) bool { return c.Ready && c.ID == k.first(version) })
}

// keep writes the record of a version, or removes it if it names no copy.
func (k *Keeper) keep(version string, r record) error {
	file := filepath.Join(k.cfg.Dir, version)
	if len(r.Copies) == 0 {
		delete(k.records, version)
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the record of a copied image: %w", err)
		}
		return nil
	}
	raw, err := json.Marshal(r)
	if err == nil {
		err = durable.Write(file, raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the record of a copied image: %w", err)
	}
	k.records[version] = r
	return nil
}

// check looks once for the copies of an earlier process that were ready: blobs may be
// another store now, or may have lost them.
func (k *Keeper) check(ctx context.Context, version string) error {
	if !k.unchecked[version] {
		return nil
	}
	r := record{slices.Clone(k.records[version].Copies)}
	lost := false
	for i, c := range r.Copies {
		if !c.Ready {
			continue
		}
		there, err := k.hasBlob(ctx, listName(c.ID))
		if err != nil {
			return err
		}
		if !there {
			r.Copies[i].Ready, lost = false, true
		}
	}
	if lost {
		if err := k.keep(version, r); err != nil {
			return err
		}
	}
	delete(k.unchecked, version)
	return nil
}

// copy makes the copy of an image with the first key, if check does not find it, and then
// deletes the copies with other keys; if a crash leaves one, it goes with the image. Parts of
// an attempt that was interrupted are not put again.
func (k *Keeper) copy(ctx context.Context, version string) error {
	began := time.Now()
	if err := k.check(ctx, version); err != nil || k.isCopied(version) {
		return err
	}
	image, size, err := k.cfg.Images.OpenToCopy(ctx, version)
	if errors.Is(err, sandbox.NotFound) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	defer image.Close()
	id := k.first(version)
	others := slices.Clone(k.records[version].Copies)
	c, again := copied{ID: id}, false
	if i := slices.IndexFunc(others, func(c copied) bool { return c.ID == id }); i >= 0 {
		c = others[i]
		again, others = !c.Damaged, slices.Delete(others, i, i+1)
	}
	c.Parts = max(c.Parts, k.cfg.Copies.partsOf(size)) // a damaged image may have had more
	if err := k.keep(version, record{append(slices.Clone(others), c)}); err != nil {
		return err
	}
	err = k.put(ctx, version, id, size, image, again)
	if errors.Is(err, sandbox.ErrDamaged) {
		return errors.Join(err, k.discard(ctx, version, c, others))
	}
	if err != nil {
		return err
	}
	c.Ready, c.Damaged = true, false
	if err := k.keep(version, record{append(unready(others), c)}); err != nil {
		return err
	}
	k.counts.Copied.Add(1)
	k.cfg.Log.InfoContext(ctx, "the image of a template was copied", "version", version, "bytes", size, "took", time.Since(began))
	for _, other := range others {
		if err := k.erase(ctx, other); err != nil {
			return err
		}
	}
	return k.keep(version, record{[]copied{c}})
}

// discard deletes the copy of an image that does not have its hash. If that fails, the
// record says that no part of it may be kept.
func (k *Keeper) discard(ctx context.Context, version string, c copied, others []copied) error {
	c.Damaged = true
	if err := k.keep(version, record{append(slices.Clone(others), c)}); err != nil {
		return err
	}
	if err := k.erase(ctx, c); err != nil {
		return err
	}
	return k.keep(version, record{others})
}

// put puts the parts of an image and then its list. An image whose content does not have
// the hash gets no list; ErrDamaged.
func (k *Keeper) put(ctx context.Context, version, id string, size int64, image io.Reader, again bool) error {
	aead, err := k.cfg.Copies.masters[0].cipherOf(version)
	if err != nil {
		return err
	}
	sum := sha256.New()
	whole := k.cfg.Copies.part
	part := make([]byte, min(size, whole))
	for n := range k.cfg.Copies.partsOf(size) {
		part = part[:min(size-n*whole, whole)]
		if _, err := io.ReadFull(image, part); err != nil {
			return fmt.Errorf("read the image: %w", err)
		}
		sum.Write(part)
		if err := k.putPart(ctx, aead, partName(id, n), part, again); err != nil {
			return err
		}
	}
	if hex.EncodeToString(sum.Sum(nil)) != version {
		return fmt.Errorf("%w: the image does not have its hash", sandbox.ErrDamaged)
	}
	raw, err := json.Marshal(list{size, whole})
	if err != nil {
		return err
	}
	if err := k.putBlob(ctx, listName(id), seal.Seal(aead, listName(id), raw)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	there, err := k.cfg.Copies.get(ctx, aead, listName(id))
	if errors.Is(err, sandbox.ErrDamaged) || err == nil && !bytes.Equal(there, raw) {
		return sandbox.Errorf(sandbox.Unavailable, "the stored blob differs from the uploaded one")
	}
	return err
}

// putPart puts a part, unless an attempt before has put it. A blob is put as a whole or not
// at all.
func (k *Keeper) putPart(ctx context.Context, aead cipher.AEAD, name string, part []byte, again bool) error {
	if again {
		if there, err := k.hasBlob(ctx, name); err != nil || there {
			return err
		}
	}
	return k.putBlob(ctx, name, seal.Seal(aead, name, k.cfg.Copies.encode.EncodeAll(part, nil)))
}

func (k *Keeper) hasBlob(ctx context.Context, name string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	_, err := k.cfg.Copies.blobs.Size(ctx, name)
	if errors.Is(err, sandbox.NotFound) {
		return false, nil
	}
	return err == nil, err
}

func (k *Keeper) putBlob(ctx context.Context, name string, sealed []byte) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return k.cfg.Copies.blobs.Put(ctx, name, sealed)
}

// delete deletes all copies of an image. The copies of an image that is needed stay, and the
// next question about them comes after another Grace.
func (k *Keeper) delete(ctx context.Context, version string) error {
	if needed, err := k.cfg.Needed(ctx, version); err != nil || needed {
		return err
	}
	doomed := unready(k.records[version].Copies)
	if err := k.keep(version, record{doomed}); err != nil {
		return err
	}
	for _, c := range doomed {
		if err := k.erase(ctx, c); err != nil {
			return err
		}
	}
	if err := k.keep(version, record{}); err != nil {
		return err
	}
	k.counts.Deleted.Add(1)
	k.cfg.Log.InfoContext(ctx, "the copy of a removed image was deleted", "version", version)
	return nil
}

// unready returns copies that are about to be erased, as the record must name them before:
// if the image comes back after only some blobs are gone, it is copied again.
func unready(all []copied) []copied {
	all = slices.Clone(all)
	for i := range all {
		all[i].Ready = false
	}
	return all
}

// erase deletes the blobs of a copy, its list first: a copy without a list is not read.
func (k *Keeper) erase(ctx context.Context, c copied) error {
	err := k.deleteBlob(ctx, listName(c.ID))
	for n := int64(0); n < c.Parts && err == nil; n++ {
		err = k.deleteBlob(ctx, partName(c.ID, n))
	}
	return err
}

func (k *Keeper) deleteBlob(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return k.cfg.Copies.blobs.Delete(ctx, name)
}
