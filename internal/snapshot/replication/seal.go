package replication

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/blobs/seal"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/snapshot/chunks"
)

// groupKey seals and names the blobs of one group.
type groupKey struct {
	prefix string // of the names of all its blobs
	aead   cipher.AEAD
	naming []byte
}

// nameOf returns the name of content. Without the key the name reveals nothing, and it
// differs between groups.
func (k *groupKey) nameOf(content []byte) chunks.ID {
	mac := hmac.New(sha256.New, k.naming)
	mac.Write(content)
	return chunks.ID(mac.Sum(nil))
}

// packName returns the name of a pack. The scope is the installation's, which deletes
// packs by its own records. salt is empty, or makes another name of it.
func (k *groupKey) packName(scope, salt string, content []byte) string {
	mac := hmac.New(sha256.New, k.naming)
	mac.Write([]byte("pack in " + scope + " " + salt + ":"))
	mac.Write(content)
	return sandbox.PackName(k.prefix, chunks.ID(mac.Sum(nil)).String())
}

// listName returns the name of a state's list below a prefix.
func listName(prefix, name string) string {
	return sandbox.CopyRef{Snapshot: name, Prefix: prefix}.List()
}

// A keyring holds a random key for each group. Each is stored in Blobs and in dir, sealed
// with one of the operator's keys. With a new first operator key, all groups get new keys
// for later copies.
type keyring struct {
	dir     string
	blobs   sandbox.Blobs
	masters []master // the first seals
	records sandbox.CopyRecords

	making chan struct{} // a mutex for fetching and making keys

	mu   sync.Mutex
	keys map[string]*groupKey // by prefix
	old  map[string]bool      // prefixes of keys that the first master does not seal
}

// master is one of the operator's keys.
type master struct {
	wrap   cipher.AEAD
	naming []byte
}

func newMaster(key []byte) (m master, err error) {
	if len(key) != seal.KeyBytes {
		return m, sandbox.Errorf(sandbox.Invalid, "a key that saved states are sealed with has %d bytes, not %d", len(key), seal.KeyBytes)
	}
	if m.wrap, err = seal.AEAD(key, "keys of groups"); err != nil {
		return m, err
	}
	m.naming, err = seal.Derive(key, "names of groups")
	return m, err
}

// prefixOf returns the prefix of a group's blobs. It does not reveal the group's name.
func (m master) prefixOf(group string) string {
	mac := hmac.New(sha256.New, m.naming)
	mac.Write([]byte(group))
	const enough = 16
	return hex.EncodeToString(mac.Sum(nil)[:enough])
}

// openKeys opens the keyring in dir, and creates it if missing. If the masters cannot
// open its keys, the error is Invalid.
func openKeys(dir string, blobs sandbox.Blobs, masters [][]byte, records sandbox.CopyRecords) (*keyring, error) {
	r := &keyring{
		dir: dir, blobs: blobs, records: records, making: make(chan struct{}, 1),
		keys: map[string]*groupKey{}, old: map[string]bool{},
	}
	for _, key := range masters {
		m, err := newMaster(key)
		if err != nil {
			return nil, err
		}
		r.masters = append(r.masters, m)
	}
	if len(r.masters) == 0 {
		return nil, sandbox.Errorf(sandbox.Invalid, "no key for sealing saved states")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of keys: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for keys: %w", err)
	}
	for _, entry := range entries {
		if entry.Name()[0] == '.' { // incomplete
			continue
		}
		sealed, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		key, by, err := r.open(entry.Name(), sealed)
		if err != nil {
			return nil, sandbox.Errorf(sandbox.Invalid, "saved states were sealed with a key that is not in the list: add it after the first key").WithCause(err)
		}
		r.keep(key, by)
	}
	return r, nil
}

func wrappedName(prefix string) string { return prefix + "/key" }

// unwrap opens a stored key; by is the index of the master that sealed it.
func (r *keyring) unwrap(prefix string, sealed []byte) (data []byte, by int, err error) {
	for by, m := range r.masters {
		data, err = seal.Open(m.wrap, wrappedName(prefix), sealed)
		if err == nil && len(data) != seal.KeyBytes {
			err = seal.ErrOther
		}
		if err == nil {
			return data, by, nil
		}
	}
	return nil, 0, fmt.Errorf("the key of %s: %w", prefix, err)
}

// open decodes a stored key; by is the index of the master that sealed it.
func (r *keyring) open(prefix string, sealed []byte) (key *groupKey, by int, err error) {
	data, by, err := r.unwrap(prefix, sealed)
	if err != nil {
		return nil, 0, err
	}
	aead, err := seal.AEAD(data, "content")
	if err != nil {
		return nil, 0, err
	}
	naming, err := seal.Derive(data, "names")
	if err != nil {
		return nil, 0, err
	}
	return &groupKey{prefix: prefix, aead: aead, naming: naming}, by, nil
}

// keep adds a key to the keyring; by is the index of its master.
func (r *keyring) keep(key *groupKey, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys[key.prefix] = key
	if by > 0 {
		r.old[key.prefix] = true
	}
}

// of returns the current key of a group, and creates it if missing.
func (r *keyring) of(ctx context.Context, group string) (*groupKey, error) {
	return r.get(ctx, r.masters[0].prefixOf(group), true)
}

// prefixesOf returns the prefixes that blobs of a group may have: one for each of the
// operator's keys.
func (r *keyring) prefixesOf(group string) (all []string) {
	for _, m := range r.masters {
		all = append(all, m.prefixOf(group))
	}
	return all
}

// at returns the key of a prefix.
func (r *keyring) at(ctx context.Context, prefix string) (*groupKey, error) {
	return r.get(ctx, prefix, false)
}

func (r *keyring) get(ctx context.Context, prefix string, create bool) (*groupKey, error) {
	if key := r.known(prefix); key != nil {
		return key, nil
	}
	select {
	case r.making <- struct{}{}:
		defer func() { <-r.making }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if key := r.known(prefix); key != nil {
		return key, nil
	}
	sealed, err := r.blobs.Get(ctx, wrappedName(prefix))
	if errors.Is(err, sandbox.NotFound) {
		if !create {
			return nil, fmt.Errorf("%w: no key of %s", sandbox.ErrDamaged, prefix)
		}
		sealed, err = r.create(ctx, prefix)
	}
	if err != nil {
		return nil, err
	}
	key, by, err := r.open(prefix, sealed)
	if err != nil { // checked before it is stored: a key that does not open would keep the server from starting
		return nil, sandbox.Errorf(sandbox.Conflict, "the key that saved states were sealed with cannot be used").WithCause(err)
	}
	if err := durable.Write(filepath.Join(r.dir, prefix), sealed, 0o600); err != nil {
		return nil, fmt.Errorf("keep a key: %w", err)
	}
	r.keep(key, by)
	return key, nil
}

func (r *keyring) known(prefix string) *groupKey {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keys[prefix]
}

// create makes a key and puts it into Blobs. It returns the key of another process instead
// if the records had that before, or if it was put later.
func (r *keyring) create(ctx context.Context, prefix string) ([]byte, error) {
	data := make([]byte, seal.KeyBytes)
	_, _ = rand.Read(data) // never fails
	name := wrappedName(prefix)
	sealed, err := r.records.KeepCopyKey(ctx, prefix, seal.Seal(r.masters[0].wrap, name, data))
	if err != nil {
		return nil, fmt.Errorf("keep the key of a group: %w", err)
	}
	if err := r.blobs.Put(ctx, name, sealed); err != nil {
		return nil, err
	}
	return r.blobs.Get(ctx, name)
}

// reseal seals with the first master all keys that another master has sealed, in Blobs
// and then in dir.
func (r *keyring) reseal(ctx context.Context) error {
	for {
		prefix, ok := r.oneOld()
		if !ok {
			return nil
		}
		if err := r.resealOne(ctx, prefix); err != nil {
			return fmt.Errorf("seal the key of %s again: %w", prefix, err)
		}
	}
}

func (r *keyring) oneOld() (prefix string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix := range r.old {
		return prefix, true
	}
	return "", false
}

func (r *keyring) resealOne(ctx context.Context, prefix string) error {
	local, name := filepath.Join(r.dir, prefix), wrappedName(prefix)
	sealed, err := os.ReadFile(local)
	if err != nil {
		return err
	}
	data, _, err := r.unwrap(prefix, sealed)
	if err != nil {
		return err
	}
	sealed = seal.Seal(r.masters[0].wrap, name, data)
	if err := r.blobs.Put(ctx, name, sealed); err != nil {
		return err
	}
	if there, err := r.blobs.Get(ctx, name); err != nil || !bytes.Equal(there, sealed) {
		return sandbox.Errorf(sandbox.Unavailable, "the stored blob differs from the uploaded one").WithCause(err)
	}
	if err := durable.Write(local, sealed, 0o600); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.old, prefix)
	return nil
}

// oldKeys returns the number of keys that the first master does not seal.
func (r *keyring) oldKeys() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.old)
}
