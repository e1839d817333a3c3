package sandboxbuild

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// board is BuildRecords in memory.
type board struct {
	mu      sync.Mutex
	records map[string]sandbox.BuildRecord
	at      map[string]time.Time
}

func newBoard() *board {
	return &board{records: map[string]sandbox.BuildRecord{}, at: map[string]time.Time{}}
}

func (b *board) PutBuildRecord(_ context.Context, r sandbox.BuildRecord) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.Cancel = b.records[r.ID].Cancel
	b.records[r.ID], b.at[r.ID] = r, time.Now()
	return nil
}

func (b *board) find(tenant sandbox.TenantID, id string) (sandbox.BuildRecord, error) {
	r, ok := b.records[id]
	if !ok || r.Tenant != tenant {
		return r, sandbox.Errorf(sandbox.NotFound, "no record")
	}
	r.Silence = time.Since(b.at[id])
	return r, nil
}

func (b *board) TouchBuildRecord(_ context.Context, id string) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at[id] = time.Now()
	return b.records[id].Cancel, nil
}

func (b *board) TakeBuildRecord(_ context.Context, tenant sandbox.TenantID, id string) (sandbox.BuildRecord, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.find(tenant, id)
	if err == nil && r.State != sandbox.RecordWaiting {
		err = sandbox.Errorf(sandbox.Conflict, "it does not wait")
	}
	if err == nil {
		r.State = sandbox.RecordTaken
		b.records[id], b.at[id] = r, time.Now()
	}
	return r, err
}

func (b *board) BuildRecord(_ context.Context, tenant sandbox.TenantID, id string, after int64) (sandbox.BuildRecord, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.find(tenant, id)
	if r.Changes <= after {
		r.Log = nil
	}
	return r, err
}

func (b *board) ListBuildRecords(_ context.Context, tenant sandbox.TenantID) (all []sandbox.BuildRecord, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.records {
		if r, err := b.find(tenant, id); err == nil {
			r.Log = nil
			all = append(all, r)
		}
	}
	return all, nil
}

func (b *board) CancelBuildRecord(_ context.Context, tenant sandbox.TenantID, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.find(tenant, id)
	if err == nil && r.State != sandbox.RecordTaken {
		err = sandbox.Errorf(sandbox.Conflict, "it does not run")
	}
	if err == nil {
		r.Cancel = true
		b.records[id] = r
	}
	return err
}

func (b *board) DeleteBuildRecord(_ context.Context, id string, state sandbox.BuildRecordState) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.records[id].State == state {
		delete(b.records, id)
	}
	return nil
}

// noBuilds is a builder without builds.
type noBuilds struct{ sandbox.TemplateBuilds }

func (noBuilds) Builds(context.Context, sandbox.TenantID) ([]sandbox.TemplateBuild, error) {
	return nil, nil
}

// gateway is one of several Services with the same records.
func gateway(t *testing.T, records sandbox.BuildRecords) (*Service, Builds) {
	t.Helper()
	s := New(Config{Records: records, Log: slog.New(slog.DiscardHandler), Kept: t.TempDir()})
	return s, Builds{TemplateBuilds: noBuilds{}, Service: s}
}

// announced is a waiting build of a Service.
func announced(t *testing.T, s *Service) *build {
	t.Helper()
	b := newBuild(Build{ID: newID(), Tenant: "t", Draft: Draft{Name: "web", Tags: []string{"latest"}}, State: Waiting, CreatedAt: time.Now().UTC()})
	if _, err := s.add(b); err != nil {
		t.Fatal(err)
	}
	s.share(viewOf(b))
	return b
}

// started runs a build as run does, until end is called.
func started(s *Service, b *build) (ctx context.Context, end func(*Failure)) {
	ctx, stop := context.WithCancelCause(context.Background())
	b.begin(stop, "base")
	stopSharing := s.keepSharing(b)
	return ctx, func(f *Failure) {
		stopSharing()
		stop(nil)
		s.finish(b, f)
	}
}

// A build of one gateway can be listed, followed and read at another one.
func TestBuildsOfAnotherGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newBoard()
		a, atA := gateway(t, records)
		_, atB := gateway(t, records)
		b := announced(t, a)
		id := b.record.ID
		ctx, end := started(a, b)
		_ = ctx
		b.print(Info, "1", "first")
		var lines []string
		followed := make(chan error)
		go func() {
			followed <- atB.BuildLog(t.Context(), "t", id, 0, true, func(l sandbox.BuildLine) error {
				lines = append(lines, l.Text)
				return nil
			})
		}()
		time.Sleep(3 * shareEvery)
		b.print(Info, "1", "second")
		time.Sleep(3 * shareEvery)
		for name, g := range map[string]Builds{"a": atA, "b": atB} {
			all, err := g.Builds(t.Context(), "t")
			if err != nil || len(all) != 1 || all[0].ID != id || all[0].State != sandbox.BuildRunning || all[0].Progress != "second" {
				t.Errorf("%s lists %+v, %v", name, all, err)
			}
		}
		end(nil)
		codetest.OK(t, "BuildLog", <-followed)
		if len(lines) != 2 || lines[0] != "first" || lines[1] != "second" {
			t.Errorf("the log at the other gateway is %q", lines)
		}
		done, err := atB.BuildByID(t.Context(), "t", id)
		if err != nil || done.State != sandbox.BuildReady || done.EndedAt.IsZero() {
			t.Errorf("it ends as %+v, %v", done, err)
		}
		codetest.Want(t, "another tenant", codetest.ErrOf(atB.BuildByID(t.Context(), "other", id)), sandbox.NotFound)
		codetest.Want(t, "an offset beyond the end", atB.BuildLog(t.Context(), "t", id, 3, false, nil), sandbox.Invalid)
		codetest.Want(t, "a cancel after the end", codetest.ErrOf(atB.CancelBuild(t.Context(), "t", id)), sandbox.Conflict)
	})
}

// A build is cancelled at another gateway than the one that runs it.
func TestCancelAtAnotherGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newBoard()
		a, _ := gateway(t, records)
		s, atB := gateway(t, records)
		for _, cancel := range map[string]func(id string) error{
			"one": func(id string) error { return codetest.ErrOf(atB.CancelBuild(t.Context(), "t", id)) },
			"a template's": func(string) error {
				n, err := s.Cancel(t.Context(), "t", "web")
				if n != 1 {
					t.Errorf("%d builds were cancelled", n)
				}
				return err
			},
		} {
			b := announced(t, a)
			ctx, end := started(a, b)
			go func() {
				<-ctx.Done()
				end(&Failure{Message: "cancelled", Step: AtEnd, Cancelled: errors.Is(context.Cause(ctx), errCancelled)})
			}()
			codetest.OK(t, "cancel", cancel(b.record.ID))
			if got, err := atB.BuildByID(t.Context(), "t", b.record.ID); err != nil || got.State != sandbox.BuildCancelled {
				t.Errorf("it ends as %+v, %v", got, err)
			}
		}
	})
}

// A build that one gateway announced is started by another one, and by one only.
func TestBuildTakenByAnotherGateway(t *testing.T) {
	records := newBoard()
	a, atA := gateway(t, records)
	s, _ := gateway(t, records)
	b := announced(t, a)
	id := b.record.ID
	codetest.Want(t, "another template's", s.take(t.Context(), "t", "other", id), sandbox.NotFound)
	codetest.OK(t, "take", s.take(t.Context(), "t", "web", id))
	codetest.Want(t, "a second take", a.take(t.Context(), "t", "web", id), sandbox.Invalid)
	mine, err := s.byID("t", id)
	codetest.OK(t, "byID", err)
	_, end := started(s, mine)
	if got, _, err := a.Build(t.Context(), "t", "web", id); err != nil || got.State != Building {
		t.Errorf("at the gateway that announced it: %+v, %v", got, err)
	}
	end(nil)
	if all, err := atA.Builds(t.Context(), "t"); err != nil || len(all) != 1 || all[0].State != sandbox.BuildReady {
		t.Errorf("the gateway that announced it lists %+v, %v", all, err)
	}
	if known, err := a.Known(t.Context(), "t", "web"); err != nil || !known {
		t.Errorf("known: %v, %v", known, err)
	}
	a.unshare(b.snapshot()) // which waits there for ever
	if _, err := records.BuildRecord(t.Context(), "t", id, 0); err != nil {
		t.Errorf("the record of the taken build: %v", err)
	}
}

// A build whose gateway has died has failed.
func TestBuildOfALostGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := newBoard()
		a, _ := gateway(t, records)
		_, atB := gateway(t, records)
		b := announced(t, a)
		codetest.OK(t, "take", a.take(t.Context(), "t", "web", b.record.ID))
		time.Sleep(lostAfter)
		if got, err := atB.BuildByID(t.Context(), "t", b.record.ID); err != nil || got.State != sandbox.BuildRunning {
			t.Errorf("before: %+v, %v", got, err)
		}
		time.Sleep(time.Second)
		got, err := atB.BuildByID(t.Context(), "t", b.record.ID)
		if err != nil || got.State != sandbox.BuildFailed || got.Failure.Code != sandbox.Unavailable {
			t.Errorf("after: %+v, %v", got, err)
		}
	})
}
