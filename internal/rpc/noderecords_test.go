package rpc

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/session/v1/sessionv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session"
	"github.com/cloud-sandbox/cloud-sandbox/internal/session/sessiontest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

// recordsOf are the records at a server for a Node with a certificate.
func (p pki) recordsOf(t *testing.T, s *server, node string, addresses ...string) *NodeRecords {
	t.Helper()
	r := NewNodeRecords(append(addresses, s.tcp), s.by(p.identity(t, Node, node)))
	t.Cleanup(r.Close)
	return r
}

// The client of the records passes the suite of its port, also for a Node that claims
// another name than its certificate has.
func TestNodeRecords(t *testing.T) {
	p := newPKI(t)
	sessiontest.NodeRecords(t, func(t *testing.T) sessiontest.NodeRecordsWorld {
		store := sqlitetest.Open(t)
		s := p.secured(t, SessionManager, "m", NodeRecordsService(session.NodeRecords{Store: store, Home: "home"}))
		return sessiontest.NodeRecordsWorld{
			Store: store, Home: p.recordsOf(t, s, "home"), Other: liar{p.recordsOf(t, s, "other")},
		}
	})
}

// liar asks as the Node that keeps the Templates, whatever its certificate says.
type liar struct{ sandbox.NodeRecords }

func (l liar) RenewLease(ctx context.Context, n sandbox.NodeRecord, life time.Duration) (sandbox.NodeRecord, error) {
	name := n.Name
	n.Name = "home"
	got, err := l.NodeRecords.RenewLease(ctx, n, life)
	if err == nil {
		got.Name = name
	}
	return got, err
}

func (l liar) OwnerOf(ctx context.Context, _, snapshot string) (sandbox.SavedOwner, error) {
	return l.NodeRecords.OwnerOf(ctx, "home", snapshot)
}

func (l liar) BeginCopy(ctx context.Context, _ string, c sandbox.CopyRef) (sandbox.CopyAttempt, error) {
	return l.NodeRecords.BeginCopy(ctx, "home", c)
}

func (l liar) UsePacks(ctx context.Context, _ string, use sandbox.PackUse) ([]string, error) {
	return l.NodeRecords.UsePacks(ctx, "home", use)
}

func (l liar) CompleteCopy(ctx context.Context, _ string, c sandbox.CopyAttempt) error {
	return l.NodeRecords.CompleteCopy(ctx, "home", c)
}

func (l liar) AbandonCopy(ctx context.Context, _ string, c sandbox.AbandonedCopy) error {
	return l.NodeRecords.AbandonCopy(ctx, "home", c)
}

func (l liar) NeedsImage(ctx context.Context, _, image string) (sandbox.Snapshot, error) {
	return l.NodeRecords.NeedsImage(ctx, "home", image)
}

func (l liar) TemplateBytes(ctx context.Context, _ string, tenant sandbox.TenantID) (int64, error) {
	return l.NodeRecords.TemplateBytes(ctx, "home", tenant)
}

// A Node is answered while any of the session managers answers, and asks that one first
// from then on. It does not ask another one after a refusal of what it asked for.
func TestAnySessionManagerAnswers(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	store := sqlitetest.Open(t)
	away := p.secured(t, SessionManager, "a", NodeRecordsService(recordsAway{}))
	silent := p.secured(t, SessionManager, "c", NodeRecordsService(recordsSilent{}))
	s := p.secured(t, SessionManager, "b", NodeRecordsService(session.NodeRecords{Store: store, Home: "home"}))
	refusing := p.secured(t, SessionManager, "d", NodeRecordsService(recordsRefusing{}))
	r := p.recordsOf(t, s, "n", "https://127.0.0.1:1", away.tcp, refusing.tcp)
	r.limit = time.Minute // a busy machine may take longer than askLimit for an answer
	for range 2 {
		if n, err := r.SnapshotsOfBuild(t.Context(), "b"); n != 0 || err != nil {
			t.Errorf("SnapshotsOfBuild = %d, %v", n, err)
		}
		if last := r.last.Load(); last != 3 {
			t.Errorf("the session manager that answered is %d", last)
		}
	}
	if _, err := r.TemplateBytes(t.Context(), "n", "t"); !errors.Is(err, sandbox.Denied) {
		t.Errorf("TemplateBytes: %v", err)
	}
	r = p.recordsOf(t, s, "n", silent.tcp)
	for _, tt := range []struct {
		first int64
		limit time.Duration
	}{
		{1, time.Minute}, // connects: the next answer takes no long time
		{0, 4 * askLimit},
	} {
		r.limit = tt.limit
		r.last.Store(tt.first)
		if n, err := r.SnapshotsOfBuild(t.Context(), "b"); n != 0 || err != nil || r.last.Load() != 1 {
			t.Errorf("SnapshotsOfBuild, with the session manager %d asked first, = %d, %v, of %d", tt.first, n, err, r.last.Load())
		}
	}
	earlier := p.secured(t, SessionManager, "e") // a program from before this service
	r = p.recordsOf(t, s, "n", earlier.tcp)
	r.limit = time.Minute
	if n, err := r.SnapshotsOfBuild(t.Context(), "b"); n != 0 || err != nil {
		t.Errorf("SnapshotsOfBuild beside a session manager of an earlier program = %d, %v", n, err)
	}
	if _, err := p.recordsOf(t, refusing, "n").SnapshotsOfBuild(t.Context(), "b"); !errors.Is(err, sandbox.Unavailable) || !errors.Is(err, ErrRefused) {
		t.Errorf("SnapshotsOfBuild where the node is refused: %v", err)
	}
	// Each knows the service, and an earlier one not all of its calls.
	unknown := p.secured(t, SessionManager, "d", earlierRecords())
	r = p.recordsOf(t, s, "n", unknown.tcp)
	r.limit = time.Minute
	if scope, err := r.PackScope(t.Context()); scope == "" || err != nil {
		t.Errorf("PackScope beside a session manager of an earlier program = %q, %v", scope, err)
	}
	if _, err := p.recordsOf(t, unknown, "n").PackScope(t.Context()); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("PackScope of a session manager of an earlier program: %v", err)
	}
	none := p.recordsOf(t, away, "n")
	if _, err := none.SnapshotsOfBuild(t.Context(), "b"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("SnapshotsOfBuild of a session manager without its database: %v", err)
	}
}

// recordsSilent are those of a session manager that does not answer.
type recordsSilent struct{ sandbox.NodeRecords }

func (recordsSilent) SnapshotsOfBuild(ctx context.Context, _ string) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// recordsRefusing are those of a session manager whose clock is ahead of that of the Node: the
// token of a call has expired.
type recordsRefusing struct{ sandbox.NodeRecords }

func (recordsRefusing) SnapshotsOfBuild(context.Context, string) (int, error) {
	return 0, anonymous(errors.New("token is expired"))
}

// earlierRecords is the service of a program that knows none of its calls.
func earlierRecords() Service {
	return Service{Name: sessionv1connect.NodeRecordsServiceName, handler: func(o ...connect.HandlerOption) (string, http.Handler) {
		return sessionv1connect.NewNodeRecordsServiceHandler(sessionv1connect.UnimplementedNodeRecordsServiceHandler{}, o...)
	}}
}

// recordsAway are those of a session manager whose database is away.
type recordsAway struct{ sandbox.NodeRecords }

func (recordsAway) SnapshotsOfBuild(context.Context, string) (int, error) {
	return 0, sandbox.Errorf(sandbox.Unavailable, "the database server does not answer")
}

// Other roles call a Node at the address that it gives. A Node on another machine must not
// send them to a socket of theirs, or past its certificate.
func TestAddressesOfNodes(t *testing.T) {
	p := newPKI(t)
	s := p.secured(t, SessionManager, "m", NodeRecordsService(session.NodeRecords{Store: sqlitetest.Open(t)}))
	far := p.recordsOf(t, s, "n")
	near := NewNodeRecords([]string{s.unix}, s.self(Node, "n"))
	t.Cleanup(near.Close)
	version := sandbox.NodeRecord{Name: "n", Holder: "h", Engine: "fake", Address: "https://10.0.0.1:9092", Version: string(make([]byte, maxHolder+1))}
	if _, err := far.RenewLease(t.Context(), version, time.Minute); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("RenewLease with a version of %d bytes: %v", len(version.Version), err)
	}
	for _, tt := range []struct {
		records *NodeRecords
		address string
		life    time.Duration
		holder  string
		ok      bool
	}{
		{far, "https://10.0.0.1:9092", time.Minute, "h", true},
		{far, "", time.Minute, "h", false},
		{far, "unix:/run/docker.sock", time.Minute, "h", false},
		{far, "http://10.0.0.1:9092", time.Minute, "h", false},
		{far, "https://10.0.0.1", time.Minute, "h", false},
		{far, "https://10.0.0.1:9092", time.Hour, "h", false},
		{far, "https://10.0.0.1:9092", 0, "h", false},
		{far, "https://10.0.0.1:9092", time.Minute, string(make([]byte, maxHolder+1)), false},
		{near, "", time.Minute, "h", true},
		{near, "unix:/run/node.sock", time.Minute, "h", true},
		{near, "file:/run/node.sock", time.Minute, "h", false},
	} {
		_, err := tt.records.RenewLease(t.Context(), sandbox.NodeRecord{Name: "n", Holder: tt.holder, Engine: "fake", Address: tt.address}, tt.life)
		if tt.ok && err != nil || !tt.ok && !errors.Is(err, sandbox.Invalid) {
			t.Errorf("RenewLease at %q for %v: %v", tt.address, tt.life, err)
		}
	}
}
