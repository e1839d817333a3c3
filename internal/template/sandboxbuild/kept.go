package sandboxbuild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// maxKeptFile bounds the file of a build, in bytes: its log, with each character escaped,
// and the times of its lines.
const maxKeptFile = 8*maxLog + maxLines*256

// keptSuffix is the suffix of build files.
const keptSuffix = ".json"

var idPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// kept is the file format of a build.
type kept struct {
	Build Build  `json:"build"`
	Lines []Line `json:"lines,omitempty"`
}

// errLost is the failure of a build whose process ended.
var errLost = sandbox.Errorf(sandbox.Unavailable, "the server stopped during the build: build it again")

// load loads the builds that an earlier process kept. Builds that were running have
// failed.
func (s *Service) load() error {
	if s.cfg.Kept == "" {
		return nil
	}
	if err := os.MkdirAll(s.cfg.Kept, 0o700); err != nil {
		return fmt.Errorf("keep builds: %w", err)
	}
	files, err := os.ReadDir(s.cfg.Kept)
	if err != nil {
		return fmt.Errorf("keep builds: %w", err)
	}
	for _, f := range files {
		if err := s.loadOne(f.Name()); err != nil {
			s.cfg.Log.Warn("reading the kept record of a build failed", "file", f.Name(), telemetry.KeyError, err.Error())
			_ = os.Remove(filepath.Join(s.cfg.Kept, f.Name()))
		}
	}
	return nil
}

func (s *Service) loadOne(name string) error {
	id, ok := strings.CutSuffix(name, keptSuffix)
	if !ok || !idPattern.MatchString(id) {
		return errors.New("it is no build's")
	}
	f, err := os.Open(filepath.Join(s.cfg.Kept, name))
	if err != nil {
		return err
	}
	defer f.Close()
	var k kept
	if err := json.NewDecoder(io.LimitReader(f, maxKeptFile)).Decode(&k); err != nil {
		return err
	}
	if k.Build.ID != id || k.Build.Tenant == "" {
		return errors.New("it is another build's")
	}
	b := newBuild(k.Build)
	b.lines = k.Lines
	s.builds[id] = b
	switch k.Build.State {
	case Building:
		b.print(Error, AtEnd, errLost.Detail)
		s.finish(b, &Failure{Message: errLost.Detail, Step: AtEnd, Code: errLost.Code})
	case Ready, Failed:
		close(b.done)
	}
	return nil
}

// keep stores a build for the next process. A failure does not fail the build.
func (s *Service) keep(b *build) {
	record, lines := b.view()
	s.keepAs(record, lines)
}

func (s *Service) keepAs(record Build, lines []Line) {
	if s.cfg.Kept == "" {
		return
	}
	if err := s.write(kept{Build: record, Lines: lines}); err != nil {
		s.cfg.Log.Warn("writing the kept record of a build failed", telemetry.KeyBuild, record.ID, telemetry.KeyError, err.Error())
	}
}

// finish ends a build: first in its file for the next process and in its record for the
// other gateways, then for clients.
func (s *Service) finish(b *build, f *Failure) {
	over, lines := b.over(f)
	s.keepAs(over, lines)
	v := viewOf(b)
	v.record, v.lines = over, lines
	s.share(v)
	b.end(over)
}

func (s *Service) write(k kept) error {
	text, err := json.Marshal(k)
	if err != nil {
		return err
	}
	path := filepath.Join(s.cfg.Kept, k.Build.ID+keptSuffix)
	f, err := os.CreateTemp(s.cfg.Kept, "*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// forget removes the file of a build.
func (s *Service) forget(id string) {
	if s.cfg.Kept == "" {
		return
	}
	if err := os.Remove(filepath.Join(s.cfg.Kept, id+keptSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("removing the kept record of a build failed", telemetry.KeyBuild, id, telemetry.KeyError, err.Error())
	}
}
