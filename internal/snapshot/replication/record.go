package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A record is the persistent data of a state on its host. It is written before the change
// that it records: a state is Away before its files are removed. Which blobs a copy has is
// in sandbox.CopyRecords.
type record struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	Bytes int64  `json:"bytes"` // on the host
	// Packs are the blobs of the copy that an earlier version made, which recorded them
	// here only; see register. That version deletes the blobs that it finds here.
	Packs    []string `json:"packs,omitempty"`
	Copied   bool     `json:"copied,omitempty"`   // complete in Blobs, and verified there
	Prefix   string   `json:"prefix,omitempty"`   // of the copy; empty: the prefix of all Packs
	Away     bool     `json:"away,omitempty"`     // not on the host
	Arriving bool     `json:"arriving,omitempty"` // Away, but Boots may have started from it
	Deleting bool     `json:"deleting,omitempty"`
	Backlog  bool     `json:"backlog,omitempty"` // saved before copying was enabled
}

// prefix returns the prefix of a state's copy, once it is copied.
func (r record) prefix() string {
	if r.Prefix == "" && len(r.Packs) > 0 {
		return prefixOf(r.Packs[0])
	}
	return r.Prefix
}

func prefixOf(blob string) string {
	prefix, _, _ := strings.Cut(blob, "/")
	return prefix
}

// state is a record and the in-memory data of a state. Engine.mu guards it.
type state struct {
	record
	writing  sync.Mutex // held while the record is changed and written; locked before Engine.mu
	used     time.Time
	holds    int
	busy     chan struct{}      // not nil while a caller moves its files; closed then
	cancel   context.CancelFunc // of the copy in progress
	failures int                // consecutive
	retry    time.Time          // earliest next attempt
	alone    bool               // the next copy shares no packs of other states
	spoiled  bool               // damaged or missing on the host, contrary to the record
	times    int                // number of fetches
	arrives  *arriving          // nil: it does not arrive
	givenUp  bool               // it was deleted on the host, and only Boots need the rest
	coming   bool               // it has no copy yet: others do not see it
	whole    bool               // it cannot arrive while Boots start: it is fetched whole
	// begun says that this process has begun a copy and not completed it, and put has the
	// packs that its latest attempt may have put.
	begun bool
	put   []string
}

// setAway records whether a state is on the host, whole. The caller holds Engine.mu.
func (r *record) setAway(away bool) { r.Away, r.Arriving = away, false }

const (
	recordSuffix = ".json"
	// listSuffix is of the list of a copy, for later copies to share. An earlier version
	// does not look for it, and so shares no packs that it would delete.
	listSuffix = ".chunks"
	// earlierListSuffix is of the lists of an earlier version.
	earlierListSuffix = ".list"
)

func (e *Engine) file(name, suffix string) string { return filepath.Join(e.cfg.Dir, name+suffix) }

// write writes the record of a state. For lasting see change.
func (e *Engine) write(s *state, lasting bool) error {
	e.mu.Lock()
	raw, err := json.Marshal(s.record)
	used := s.used
	lasting = lasting || len(s.Packs) > 0 // it may be the only record of the packs
	e.mu.Unlock()
	if err != nil {
		return err
	}
	path, write := e.file(s.Name, recordSuffix), durable.WriteLoose
	if lasting {
		write = durable.Write
	}
	if err := write(path, raw, 0o600); err != nil {
		return fmt.Errorf("record a saved state: %w", err)
	}
	return os.Chtimes(path, used, used)
}

// touch records the last use of a state in its record's file time. It only affects the
// order of work.
func (e *Engine) touch(s *state) {
	e.mu.Lock()
	used := s.used
	e.mu.Unlock()
	if err := os.Chtimes(e.file(s.Name, recordSuffix), used, used); err != nil {
		e.cfg.Log.Warn("recording the use of a saved state failed", telemetry.KeySnapshot, s.Name, telemetry.KeyError, err)
	}
}

// forget removes the files of a deleted state.
func (e *Engine) forget(s *state) error {
	for _, suffix := range []string{listSuffix, earlierListSuffix, recordSuffix} { // the record goes last
		if err := os.Remove(e.file(s.Name, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.states[s.Name] == s {
		delete(e.states, s.Name)
	}
	return nil
}

// readRecords reads all records, and removes incomplete ones and lists of other states. An
// unreadable record is an error, because its state may be nowhere but in Blobs.
func readRecords(dir string, log *slog.Logger) (map[string]*state, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for copies of saved states: %w", err)
	}
	states := map[string]*state{}
	var lists []string
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if strings.HasPrefix(entry.Name(), ".") {
			if err := os.Remove(path); err != nil {
				log.Warn("removing an unfinished record failed", "file", entry.Name(), telemetry.KeyError, err)
			}
		}
		if name, ok := strings.CutSuffix(entry.Name(), listSuffix); ok {
			lists = append(lists, name)
		}
		name, ok := strings.CutSuffix(entry.Name(), recordSuffix)
		if !ok || !sandbox.ValidSnapshotID(name) {
			continue
		}
		s := &state{}
		raw, err := os.ReadFile(path)
		if err == nil && len(raw) == 0 || errors.Is(err, fs.ErrNotExist) {
			continue // the machine crashed before anything had to be durable
		}
		if err == nil {
			err = json.Unmarshal(raw, &s.record)
		}
		if err == nil && (s.Name != name || s.Group == "") {
			err = errors.New("it belongs to another state")
		}
		if err != nil {
			return nil, fmt.Errorf("read %s, the record of a saved state: %w", path, err)
		}
		if info, err := entry.Info(); err == nil {
			s.used = info.ModTime()
		}
		states[name] = s
	}
	for _, name := range lists {
		if states[name] != nil {
			continue
		}
		if err := os.Remove(filepath.Join(dir, name+listSuffix)); err != nil {
			log.Warn("removing a list without a record failed", telemetry.KeySnapshot, name, telemetry.KeyError, err)
		}
	}
	return states, nil
}
