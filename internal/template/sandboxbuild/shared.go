package sandboxbuild

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// shareEvery is how often a running build is written for the other gateways, if its
	// log has grown, and how often they look at it.
	shareEvery = time.Second
	// lostAfter is how long a running build may be silent. Then its gateway has died.
	lostAfter = 30 * time.Second
	// shareLimit bounds one write.
	shareLimit = 10 * time.Second
)

// shared is the Body of a BuildRecord.
type shared struct {
	Build    Build  `json:"build"`
	Progress string `json:"progress,omitempty"` // the last line of the log
}

// A view is a build as any gateway sees it. lines may be missing in a list.
type view struct {
	record   Build
	progress string
	lines    []Line
	changes  int64 // of lines
}

// viewOf returns the view of a build of this process.
func viewOf(b *build) view {
	record, lines := b.view()
	v := view{record: record, lines: lines, changes: int64(len(lines))}
	if len(lines) > 0 {
		v.progress = lines[len(lines)-1].Text
	}
	return v
}

func recordState(s State) sandbox.BuildRecordState {
	switch s {
	case Waiting:
		return sandbox.RecordWaiting
	case Building:
		return sandbox.RecordTaken
	}
	return sandbox.RecordOver
}

// share writes a build for the other gateways. A failure does not fail the build.
func (s *Service) share(v view) {
	if s.cfg.Records == nil {
		return
	}
	err := s.tryShare(v)
	if err != nil {
		s.cfg.Log.Warn("telling the other gateways of a build failed", telemetry.KeyBuild, v.record.ID, telemetry.KeyError, err.Error())
	}
}

func (s *Service) tryShare(v view) error {
	body, err := json.Marshal(shared{v.record, v.progress})
	if err != nil {
		return err
	}
	log, err := json.Marshal(v.lines)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), shareLimit) // also of a build that was cancelled
	defer cancel()
	return s.cfg.Records.PutBuildRecord(ctx, sandbox.BuildRecord{
		ID: v.record.ID, Tenant: v.record.Tenant, State: recordState(v.record.State), Body: body, Log: log, Changes: v.changes,
	})
}

// keepSharing shares a running build at once and until stop is called, which waits for the
// last write. It cancels the build if another gateway asks for it.
func (s *Service) keepSharing(b *build) (stop func()) {
	if s.cfg.Records == nil {
		return func() {}
	}
	v := viewOf(b)
	s.share(v)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(shareEvery)
		defer tick.Stop()
		for written := v.changes; ; {
			select {
			case <-tick.C:
			case <-quit:
				return
			}
			if v := viewOf(b); v.changes != written {
				s.share(v)
				written = v.changes
			}
			ctx, cancel := context.WithTimeout(context.Background(), shareLimit)
			cancelled, err := s.cfg.Records.TouchBuildRecord(ctx, b.record.ID)
			cancel()
			if err == nil && cancelled {
				b.cancel()
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// unshare removes the record of a build that is forgotten here, unless another gateway has
// taken it.
func (s *Service) unshare(record Build) {
	if s.cfg.Records == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shareLimit)
	defer cancel()
	if err := s.cfg.Records.DeleteBuildRecord(ctx, record.ID, recordState(record.State)); err != nil {
		s.cfg.Log.Warn("removing the shared record of a build failed", telemetry.KeyBuild, record.ID, telemetry.KeyError, err.Error())
	}
}

// elsewhere returns a build from its record, with the lines of its log if there are more
// than after.
func (s *Service) elsewhere(ctx context.Context, tenant sandbox.TenantID, id string, after int64) (view, error) {
	if s.cfg.Records == nil || !idPattern.MatchString(id) {
		return view{}, errNoBuild(id)
	}
	r, err := s.cfg.Records.BuildRecord(ctx, tenant, id, after)
	if errors.Is(err, sandbox.NotFound) {
		return view{}, errNoBuild(id)
	}
	if err != nil {
		return view{}, err
	}
	return opened(r)
}

// opened returns the view that a record holds.
func opened(r sandbox.BuildRecord) (view, error) {
	var body shared
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return view{}, err
	}
	v := view{record: body.Build, progress: body.Progress, changes: r.Changes}
	if len(r.Log) > 0 {
		if err := json.Unmarshal(r.Log, &v.lines); err != nil {
			return view{}, err
		}
	}
	if r.State == sandbox.RecordTaken {
		v.record.State = Building // also before its gateway has written that
	}
	if r.State == sandbox.RecordTaken && r.Silence > lostAfter {
		v.record.State, v.record.EndedAt = Failed, time.Now().UTC().Add(-r.Silence)
		v.record.Failure = &Failure{Message: errLost.Detail, Step: AtEnd, Code: errLost.Code}
	}
	return v, nil
}

// view returns a build of this or another gateway. local is nil for another's.
func (s *Service) view(ctx context.Context, tenant sandbox.TenantID, id string) (v view, local *build, err error) {
	b, err := s.byID(tenant, id)
	if err == nil && (s.cfg.Records == nil || b.snapshot().State != Waiting) {
		return viewOf(b), b, nil
	}
	// A build that waits here may have been started elsewhere.
	v, elsewhere := s.elsewhere(ctx, tenant, id, -1)
	if err == nil && (elsewhere != nil || v.record.State == Waiting) {
		return viewOf(b), b, nil
	}
	return v, nil, elsewhere
}

// others returns the builds of a Tenant that other gateways have, without lines.
func (s *Service) others(ctx context.Context, tenant sandbox.TenantID) ([]view, error) {
	if s.cfg.Records == nil {
		return nil, nil
	}
	records, err := s.cfg.Records.ListBuildRecords(ctx, tenant)
	if err != nil {
		return nil, err
	}
	var all []view
	for _, r := range records {
		if b, err := s.byID(tenant, r.ID); err == nil && (b.snapshot().State != Waiting || r.State == sandbox.RecordWaiting) {
			continue
		}
		v, err := opened(r)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// take takes a waiting build, which another gateway may have announced, before it is
// started here. It does nothing without other gateways.
func (s *Service) take(ctx context.Context, tenant sandbox.TenantID, name, id string) error {
	if s.cfg.Records == nil || !idPattern.MatchString(id) {
		return nil
	}
	r, err := s.cfg.Records.TakeBuildRecord(ctx, tenant, id)
	switch {
	case errors.Is(err, sandbox.NotFound):
		return nil // it was announced while the database was away, or never
	case errors.Is(err, sandbox.Conflict):
		return errNotWaiting
	case err != nil:
		return err
	}
	v, err := opened(r)
	if err != nil {
		return err
	}
	if v.record.Name != name {
		v.record.State = Waiting
		s.share(v)
		return errNoBuild(id)
	}
	v.record.State = Waiting
	displaced, err := s.adopt(tenant, v.record)
	if err != nil {
		s.share(v)
		return err
	}
	if displaced.ID != "" {
		s.unshare(displaced)
	}
	return nil
}

// adopt adds a build that another gateway announced, unless this process has it
// already. It returns the old build that makeRoom removed for it, if any.
func (s *Service) adopt(tenant sandbox.TenantID, record Build) (displaced Build, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.builds[record.ID] != nil {
		return Build{}, nil
	}
	if displaced, err = s.makeRoom(tenant); err == nil {
		s.builds[record.ID] = newBuild(record)
	}
	return displaced, err
}

// cancelElsewhere cancels a build of another gateway and waits for its end.
func (s *Service) cancelElsewhere(ctx context.Context, tenant sandbox.TenantID, id string) (view, error) {
	err := s.cfg.Records.CancelBuildRecord(ctx, tenant, id)
	if errors.Is(err, sandbox.Conflict) {
		return view{}, errHasEnded
	}
	if err != nil {
		return view{}, err
	}
	for {
		v, err := s.elsewhere(ctx, tenant, id, -1)
		if err != nil || v.record.State != Building {
			return v, err
		}
		if err := awaitShare(ctx); err != nil {
			return view{}, err
		}
	}
}

// logElsewhere is BuildLog of a build that another gateway has.
func (s *Service) logElsewhere(ctx context.Context, v view, from int64, follow bool, each func(sandbox.BuildLine) error) error {
	if from < 0 || from > int64(len(v.lines)) {
		return errOffset
	}
	for {
		for ; from < int64(len(v.lines)); from++ {
			if err := each(lineOf(v.lines[from], from)); err != nil {
				return err
			}
		}
		if !follow || v.record.State != Building {
			return nil
		}
		if err := awaitShare(ctx); err != nil {
			return err
		}
		next, err := s.elsewhere(ctx, v.record.Tenant, v.record.ID, v.changes)
		if err != nil {
			return err
		}
		if next.changes <= v.changes { // lines stay as they were
			next.lines = v.lines
		}
		v = next
	}
}

// awaitShare waits until another gateway may have written something.
func awaitShare(ctx context.Context) error {
	select {
	case <-time.After(shareEvery):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	errNotWaiting = sandbox.Errorf(sandbox.Invalid, "the build is not waiting: ask for another one")
	errHasEnded   = sandbox.Errorf(sandbox.Conflict, "the build has ended")
	errOffset     = sandbox.Errorf(sandbox.Invalid, "from must be 0 or the next of a line before")
)

func lineOf(l Line, at int64) sandbox.BuildLine {
	return sandbox.BuildLine{At: l.At, Text: l.Text, Next: at + 1}
}
