package tenants_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/identity/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

var (
	operator  = sandbox.Identity{Tenant: "ops", User: "key:k1", Role: sandbox.RoleOperator}
	suspended = sandbox.TenantSuspended
	active    = sandbox.TenantActive
)

func suspend(t *testing.T, s *tenants.Service, id sandbox.TenantID) {
	t.Helper()
	if _, err := s.Change(t.Context(), operator, id, sandbox.TenantChange{State: &suspended, Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, s *tenants.Service, id sandbox.TenantID) {
	t.Helper()
	if _, err := s.Change(t.Context(), operator, id, sandbox.TenantChange{State: &active}); err != nil {
		t.Fatal(err)
	}
}

// run runs s until the test ends.
func run(t *testing.T, s *tenants.Service) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
}

// counting counts how often it is asked who is suspended, and may not say.
type counting struct {
	*sqlstore.Store
	mu    sync.Mutex
	asked int
	fail  error
}

func (c *counting) Suspensions(ctx context.Context) (sandbox.Suspensions, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.fail != nil {
		return nil, c.fail
	}
	return c.Store.Suspensions(ctx)
}

func TestSuspensionEndsWhatIsUnderWay(t *testing.T) {
	store := sqlitetest.Open(t)
	var events []sandbox.Event
	s := tenants.New(tenants.Config{Store: store, Audit: store, Event: func(e sandbox.Event) { events = append(events, e) }})
	enter := func(id sandbox.TenantID) context.Context {
		t.Helper()
		ctx, leave, err := s.Enter(t.Context(), id)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		t.Cleanup(leave)
		return ctx
	}
	held, below, other := enter("acme"), enter("acme/joe"), enter("acmes")
	suspend(t, s, "acme")
	for _, ctx := range []context.Context{held, below} {
		if !errors.Is(context.Cause(ctx), sandbox.ErrSuspended) {
			t.Errorf("what is under way ends with %v", context.Cause(ctx))
		}
	}
	if other.Err() != nil {
		t.Error("another tenant's request ended")
	}
	for _, id := range []sandbox.TenantID{"acme", "acme/joe", "acme/ann/x"} {
		if _, _, err := s.Enter(t.Context(), id); !errors.Is(err, sandbox.ErrSuspended) || !errors.Is(err, sandbox.Denied) {
			t.Errorf("%s: %v", id, err)
		}
		if err := s.Check(t.Context(), id); !errors.Is(err, sandbox.ErrSuspended) {
			t.Errorf("%s is checked: %v", id, err)
		}
	}
	resume(t, s, "acme")
	enter("acme")
	enter("acme/joe")
	resume(t, s, "acme") // which it has
	if len(events) != 2 || events[0].Kind != sandbox.EventTenantSuspended || events[1].Kind != sandbox.EventTenantResumed || events[0].Tenant != "acme" {
		t.Errorf("told of %+v", events)
	}
	page, err := store.ListAudit(t.Context(), "acme", sandbox.AuditQuery{})
	if err != nil || len(page.Entries) != 2 || page.Entries[1].Operation != sandbox.AuditTenantSuspended || page.Entries[1].User != "operator" {
		t.Errorf("recorded %+v, %v", page.Entries, err)
	}
}

// A process that did not make the change learns of it, and asks no more often
// for more requests.
func TestAnotherProcessSuspends(t *testing.T) {
	store := &counting{Store: sqlitetest.Open(t)}
	there, here := tenants.New(tenants.Config{Store: store.Store}), tenants.New(tenants.Config{Store: store})
	ctx, leave, err := here.Enter(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for range 1000 {
		if _, leave, err := here.Enter(t.Context(), "t"); err == nil {
			leave()
		} else {
			t.Fatal(err)
		}
	}
	if store.asked != 1 {
		t.Errorf("a thousand requests asked %d times", store.asked)
	}
	run(t, here)
	if _, err := there.Get(t.Context(), "t"); err != nil && !errors.Is(err, sandbox.NotFound) {
		t.Fatal(err)
	}
	if err := store.NoteTenants(t.Context(), []sandbox.Tenant{{ID: "t", CreatedAt: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	suspend(t, there, "t")
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), sandbox.ErrSuspended) {
		t.Errorf("it ended with %v", context.Cause(ctx))
	}
	if err := here.Check(t.Context(), "t"); !errors.Is(err, sandbox.ErrSuspended) {
		t.Errorf("afterwards: %v", err)
	}
}

// Who cannot learn who is suspended lets nobody in.
func TestStoreThatDoesNotSay(t *testing.T) {
	store := &counting{Store: sqlitetest.Open(t), fail: sandbox.Errorf(sandbox.Unavailable, "away")}
	s := tenants.New(tenants.Config{Store: store})
	if _, _, err := s.Enter(t.Context(), "t"); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("Enter = %v", err)
	}
	store.fail = nil
	if err := s.Check(t.Context(), "t"); err != nil {
		t.Errorf("Check = %v", err)
	}
}

// A Tenant has a record after its first request, and one whose ID does not say
// who vouches for it is held with who does.
func TestFirstUse(t *testing.T) {
	s := tenants.New(tenants.Config{Store: sqlitetest.Open(t)})
	const hidden = "sha256:0000"
	for _, id := range []sandbox.TenantID{"acme", "acme/joe", hidden} {
		if _, leave, err := s.Enter(t.Context(), id); err != nil {
			t.Fatal(err)
		} else {
			leave()
		}
	}
	if one, err := s.Get(t.Context(), "acme/joe"); err != nil || one.Parent != "acme" || one.State() != active {
		t.Errorf("the record is %+v, %v", one, err)
	}
	suspend(t, s, "acme")
	if err := s.Check(t.Context(), hidden); err != nil {
		t.Errorf("nobody knows whose it is: %v", err)
	}
	resume(t, s, "acme")
	if err := s.Vouch(t.Context(), "acme/joe", hidden); err != nil {
		t.Fatal(err)
	}
	suspend(t, s, "acme")
	if err := s.Check(t.Context(), hidden); !errors.Is(err, sandbox.ErrSuspended) {
		t.Errorf("one that is vouched for: %v", err)
	}
}

func TestCreateAndRemove(t *testing.T) {
	built := templates{"built": {{Name: "x"}, {Name: "base", Shared: true}}}
	s := tenants.New(tenants.Config{Store: sqlitetest.Open(t), Templates: built})
	for _, id := range []sandbox.TenantID{"", "a/b", "sha256:1", "\xff", sandbox.TenantID(strings.Repeat("a", 129))} {
		if _, err := s.Create(t.Context(), id, ""); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("Create(%q) = %v", id, err)
		}
	}
	if _, err := s.Create(t.Context(), "built", "Built"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "built", ""); !errors.Is(err, sandbox.Conflict) {
		t.Errorf("a second time: %v", err)
	}
	if err := s.Remove(t.Context(), operator, "built"); !errors.Is(err, sandbox.Conflict) || !strings.Contains(err.Error(), "1 templates") {
		t.Errorf("with a template: %v", err)
	}
	suspend(t, s, "built")
	delete(built, "built")
	if err := s.Remove(t.Context(), operator, "built"); err != nil {
		t.Errorf("without: %v", err)
	}
	if err := s.Check(t.Context(), "built"); err != nil {
		t.Errorf("who was removed is still suspended: %v", err)
	}
	for err, who := range map[error]sandbox.TenantID{sandbox.NotFound: "built", sandbox.Conflict: operator.Tenant, sandbox.Invalid: ""} {
		if got := s.Remove(t.Context(), operator, who); !errors.Is(got, err) {
			t.Errorf("Remove(%q) = %v, want %v", who, got, err)
		}
	}
	// Nobody locks themselves out.
	if _, err := s.Create(t.Context(), "ops", ""); err != nil {
		t.Fatal(err)
	}
	for _, who := range []sandbox.TenantID{"ops", "ops/ann"} {
		_, err := s.Change(t.Context(), sandbox.Identity{Tenant: who, Role: sandbox.RoleOperator}, "ops", sandbox.TenantChange{State: &suspended, Reason: "x"})
		if !errors.Is(err, sandbox.Conflict) {
			t.Errorf("%s suspends ops: %v", who, err)
		}
	}
}

type templates map[sandbox.TenantID][]sandbox.Template

func (m templates) List(_ context.Context, tenant sandbox.TenantID) ([]sandbox.Template, error) {
	return m[tenant], nil
}

// However requests, suspensions and resumes mix, none is inside afterwards that
// should not be.
func TestEnterWhileSuspended(t *testing.T) {
	s := tenants.New(tenants.Config{Store: sqlitetest.Open(t)})
	if _, err := s.Create(t.Context(), "t", ""); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, leave, err := s.Enter(context.Background(), "t")
				if err != nil {
					continue
				}
				select {
				case <-ctx.Done():
				case <-stop:
					if ctx.Err() == nil {
						t.Error("a request outlives the suspension")
					}
				}
				leave()
			}
		})
	}
	for range 50 {
		suspend(t, s, "t")
		resume(t, s, "t")
	}
	suspend(t, s, "t")
	close(stop)
	all.Wait()
}
