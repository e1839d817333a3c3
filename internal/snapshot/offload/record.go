package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/durable"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// A record is what lasts of a state. What it speaks of is done after it was
// written: a pack is listed before it is put, and a state is Away before its files
// go. So no blob can be there that no record knows, and a pack that no other
// record lists can go with the last one that does; nothing is counted.
type record struct {
	Name  string `json:"name"`
	Group string `json:"group"`
	Bytes int64  `json:"bytes"` // on the host
	// Packs are the blobs that it consists of, and those that an attempt may have
	// left.
	Packs    []string `json:"packs,omitempty"`
	Copied   bool     `json:"copied,omitempty"` // all of it is in Blobs, and was seen there
	Prefix   string   `json:"prefix,omitempty"` // of what was Copied; empty: that of all Packs
	Away     bool     `json:"away,omitempty"`   // not on the host
	Deleting bool     `json:"deleting,omitempty"`
	Backlog  bool     `json:"backlog,omitempty"` // saved before there were copies
}

// prefix is where the copy of a state is, once it was copied.
func (r record) prefix() string {
	if r.Prefix == "" && len(r.Packs) > 0 {
		return prefixOf(r.Packs[0])
	}
	return r.Prefix
}

// lists are the names that the list of a state may have been put under.
func (r record) lists() (names []string) {
	for _, pack := range r.Packs {
		names = append(names, listName(prefixOf(pack), r.Name))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func prefixOf(blob string) string {
	prefix, _, _ := strings.Cut(blob, "/")
	return prefix
}

// state is a record, and what lasts as long as the process. Engine.mu guards it.
type state struct {
	record
	writing  sync.Mutex // held while the record is changed and written; before Engine.mu
	used     time.Time
	holds    int
	busy     chan struct{}      // not nil while somebody moves its files; closed then
	cancel   context.CancelFunc // of the copy under way
	failures int                // in a row
	retry    time.Time          // not before
	alone    bool               // the next copy shares nothing with those that are there
	spoiled  bool               // what is on the host is damaged or gone, contrary to the record
	times    int                // it was brought back
}

const (
	recordSuffix = ".json"
	listSuffix   = ".list" // what the copy consists of, for later ones to share
)

func (e *Engine) file(name, suffix string) string { return filepath.Join(e.cfg.Dir, name+suffix) }

// write writes the record of a state, as change does.
func (e *Engine) write(s *state, lasting bool) error {
	e.mu.Lock()
	raw, err := json.Marshal(s.record)
	used := s.used
	lasting = lasting || len(s.Packs) > 0 // nothing else knows of them
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

// touch has the record say when the state was used. It only decides which goes
// first.
func (e *Engine) touch(s *state) {
	e.mu.Lock()
	used := s.used
	e.mu.Unlock()
	if err := os.Chtimes(e.file(s.Name, recordSuffix), used, used); err != nil {
		e.cfg.Log.Warn("recording the use of a saved state failed", telemetry.KeySnapshot, s.Name, telemetry.KeyError, err)
	}
}

// forget removes what is kept of a state that is gone.
func (e *Engine) forget(s *state) error {
	for _, suffix := range []string{listSuffix, recordSuffix} { // which goes last
		if err := os.Remove(e.file(s.Name, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.states, s.Name)
	return nil
}

// readRecords reads all records, and removes what was written half. One that
// cannot be read is an error: what it speaks of must not be taken for nobody's.
func readRecords(dir string, log *slog.Logger) (map[string]*state, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for copies of saved states: %w", err)
	}
	states := map[string]*state{}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if strings.HasPrefix(entry.Name(), ".") {
			if err := os.Remove(path); err != nil {
				log.Warn("removing an unfinished record failed", "file", entry.Name(), telemetry.KeyError, err)
			}
		}
		name, ok := strings.CutSuffix(entry.Name(), recordSuffix)
		if !ok || !sandbox.ValidSnapshotID(name) {
			continue
		}
		s := &state{}
		raw, err := os.ReadFile(path)
		if err == nil && len(raw) == 0 || errors.Is(err, fs.ErrNotExist) {
			continue // the machine went down before there was anything that had to last
		}
		if err == nil {
			err = json.Unmarshal(raw, &s.record)
		}
		if err == nil && (s.Name != name || s.Group == "") {
			err = errors.New("it is of something else")
		}
		if err != nil {
			return nil, fmt.Errorf("read %s, which says where a saved state is: %w", path, err)
		}
		if info, err := entry.Info(); err == nil {
			s.used = info.ModTime()
		}
		states[name] = s
	}
	return states, nil
}
