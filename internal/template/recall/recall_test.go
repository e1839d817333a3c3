package recall

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

// board is TemplateNames in memory, without bounds. Of two calls at the same time the later
// one counts.
type board struct {
	mu     sync.Mutex
	rows   map[question]row
	gone   map[question]time.Time // when a Template was forgotten
	writes int
	err    error         // of every call; nil: none
	slow   time.Duration // before each answer
}

// row is an answer to a question that was sent at at.
type row struct {
	meaning sandbox.TemplateMeaning
	at      time.Time
}

func newBoard() *board { return &board{rows: map[question]row{}, gone: map[question]time.Time{}} }

func (b *board) RememberTemplate(_ context.Context, tenant sandbox.TenantID, asked string, m sandbox.TemplateMeaning, age time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	q, at := question{tenant, asked}, time.Now().Add(-age)
	if b.err == nil && !at.Before(b.rows[q].at) && !at.Before(b.gone[q]) {
		b.rows[q] = row{m, at}
	}
	return b.err
}

func (b *board) RememberedTemplate(_ context.Context, tenant sandbox.TenantID, asked string) (sandbox.TemplateMeaning, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	time.Sleep(b.slow)
	told, ok := b.rows[question{tenant, asked}]
	if !ok && b.err == nil {
		return told.meaning, sandbox.Errorf(sandbox.NotFound, "not remembered")
	}
	return told.meaning, b.err
}

func (b *board) ForgetName(_ context.Context, tenant sandbox.TenantID, asked string, age time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	q := question{tenant, asked}
	if b.err == nil && !b.rows[q].at.After(time.Now().Add(-age)) {
		delete(b.rows, q)
	}
	return b.err
}

func (b *board) ForgetTemplate(_ context.Context, tenant sandbox.TenantID, template string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writes++
	q := question{tenant, template}
	delete(b.rows, q)
	b.gone[q] = time.Now()
	return b.err
}

func (b *board) fails(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

func (b *board) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writes
}

// keeper is a home with one Template of each Tenant, "web".
type keeper struct {
	sandbox.Templates
	mu     sync.Mutex
	t      sandbox.Template
	err    error
	silent time.Duration // before each answer
}

func (k *keeper) Find(ctx context.Context, _ sandbox.TenantID, asked string) (sandbox.Template, error) {
	k.mu.Lock()
	t, err, silent := k.t, k.err, k.silent
	k.mu.Unlock()
	select {
	case <-time.After(silent):
	case <-ctx.Done():
		return sandbox.Template{}, ctx.Err()
	}
	if asked != "web" && err == nil {
		return sandbox.Template{}, sandbox.Errorf(sandbox.NotFound, "no template")
	}
	return t, err
}

func (k *keeper) Remove(context.Context, sandbox.TenantID, string) (sandbox.RemovedTemplates, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sandbox.RemovedTemplates{}, k.err
}

func (k *keeper) Build(context.Context, sandbox.TenantID, sandbox.TemplateRequest, io.Reader) (sandbox.TemplateBuild, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sandbox.TemplateBuild{}, k.err
}

func (k *keeper) Tag(context.Context, sandbox.TenantID, string, []string) (sandbox.Template, error) {
	return sandbox.Template{}, nil
}

func (k *keeper) Reuse(context.Context, sandbox.TenantID, string, sandbox.Template) (sandbox.Template, error) {
	return sandbox.Template{}, nil
}

func (k *keeper) answers(version string, err error, silent time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.t = sandbox.Template{Version: version, Source: "oci:x", Defaults: sandbox.TemplateDefaults{User: "app"}}
	k.err, k.silent = err, silent
	if err != nil {
		k.t = sandbox.Template{}
	}
}

var errAway = &sandbox.Error{Code: sandbox.Unavailable, Detail: "the node does not answer", RetryAfter: time.Second}

func running(t *testing.T) (*Names, *keeper, *board) {
	t.Helper()
	home, rows := &keeper{}, newBoard()
	home.answers("1", nil, 0)
	n := New(home, rows, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := n.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return n, home, rows
}

func means(t *testing.T, n *Names, tenant sandbox.TenantID, version string) {
	t.Helper()
	got, err := n.Find(t.Context(), tenant, "web")
	if err != nil || got.Version != version || got.Defaults.User != "app" {
		t.Errorf("Find = %+v, %v, want version %s", got, err, version)
	}
	if id, err := n.Resolve(t.Context(), tenant, "web"); err != nil || id != version {
		t.Errorf("Resolve = %s, %v", id, err)
	}
}

func TestRemembersWhileHomeIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, home, _ := running(t)
		means(t, n, "t", "1")
		home.answers("2", nil, 0)
		means(t, n, "t", "2")
		synctest.Wait()
		home.answers("", errAway, 0)
		means(t, n, "t", "2")
		codetest.Want(t, "another tenant's", codetest.ErrOf(n.Find(t.Context(), "other", "web")), sandbox.Unavailable)
		codetest.Want(t, "the operator's", codetest.ErrOf(n.Find(t.Context(), "", "web")), sandbox.Unavailable)
		codetest.Want(t, "another name", codetest.ErrOf(n.Find(t.Context(), "t", "web:2")), sandbox.Unavailable)
	})
}

// A home that is silent counts as away after a while, and is waited for if nothing is
// remembered.
func TestHomeIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, home, _ := running(t)
		means(t, n, "t", "1")
		synctest.Wait()
		home.answers("2", nil, time.Minute)
		began := time.Now()
		if got, err := n.Find(t.Context(), "t", "web"); err != nil || got.Version != "1" || time.Since(began) != patience {
			t.Errorf("Find = %+v, %v after %v", got, err, time.Since(began))
		}
		began = time.Now()
		if got, err := n.Find(t.Context(), "other", "web"); err != nil || got.Version != "2" || time.Since(began) != time.Minute {
			t.Errorf("Find of what is not remembered = %+v, %v after %v", got, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n.Find(ctx, "t", "web"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Find of a caller that left: %v", err)
		}
	})
}

// An answer that comes while the remembered one is read counts.
func TestHomeAnswersLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, home, rows := running(t)
		means(t, n, "t", "1")
		synctest.Wait()
		rows.slow = 2 * time.Second
		for name, err := range map[string]error{"2": nil, "gone": sandbox.NotFound} {
			home.answers(name, err, patience+time.Second)
			if got, found := n.Find(t.Context(), "t", "web"); !errors.Is(found, err) || err == nil && got.Version != name {
				t.Errorf("%s: Find = %+v, %v", name, got, found)
			}
			rows.slow = 0
			home.answers("1", nil, 0)
			means(t, n, "t", "1")
			synctest.Wait()
			rows.slow = 2 * time.Second
		}
	})
}

// Only the lack of an answer makes a remembered one count.
func TestAnswersOfHomeCount(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		forget bool
	}{
		"not found":   {sandbox.Errorf(sandbox.NotFound, "gone"), true},
		"being built": {sandbox.Errorf(sandbox.Unavailable, "wait").WithCause(sandbox.ErrBeingBuilt), true},
		"denied":      {sandbox.Errorf(sandbox.Denied, "no"), false},
		"a bug":       {errors.New("a bug"), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, home, _ := running(t)
			means(t, n, "t", "1")
			home.answers("", tt.err, 0)
			if _, err := n.Find(t.Context(), "t", "web"); !errors.Is(err, tt.err) {
				t.Errorf("%s: Find: %v", name, err)
			}
			synctest.Wait()
			home.answers("", errAway, 0)
			if _, err := n.Find(t.Context(), "t", "web"); (err != nil) != tt.forget {
				t.Errorf("%s: Find afterwards: %v", name, err)
			}
		})
	}
}

// An answer is recorded when it changes, and otherwise only now and then.
func TestRecordsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, home, rows := running(t)
		find := func(want int) {
			t.Helper()
			_, _ = n.Find(t.Context(), "t", "web") // the record counts
			synctest.Wait()
			if got := rows.count(); got != want {
				t.Errorf("%d writes, want %d", got, want)
			}
		}
		find(1)
		find(1)
		home.answers("2", nil, 0)
		find(2)
		find(2)
		time.Sleep(again)
		find(3)
		home.answers("", sandbox.NotFound, 0)
		find(4)
		find(4)
		home.answers("3", nil, 0)
		rows.fails(errors.New("no database"))
		find(5)
		rows.fails(nil)
		find(6) // what failed is tried again
		find(6)
		home.answers("", errAway, 0)
		rows.fails(errors.New("no database"))
		codetest.Want(t, "without both", codetest.ErrOf(n.Find(t.Context(), "t", "web")), sandbox.Unavailable)
	})
}

// What is recorded late is as old as its question.
func TestLateRecords(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		home, rows := &keeper{}, newBoard()
		home.answers("1", nil, 0)
		n := New(home, rows, slog.New(slog.DiscardHandler))
		means(t, n, "t", "1")
		home.answers("", sandbox.NotFound, 0)
		codetest.Want(t, "another tenant's", codetest.ErrOf(n.Find(t.Context(), "other", "web")), sandbox.NotFound)
		time.Sleep(time.Second)
		home.answers("2", nil, 0)
		codetest.OK(t, "Tag", codetest.ErrOf(Forgetting{home, home, n}.Tag(t.Context(), "t", "web", nil)))
		codetest.OK(t, "a later answer", rows.RememberTemplate(t.Context(), "other", "web", sandbox.TemplateMeaning{Version: "2"}, 0))
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = n.Run(ctx) }() // until ctx ends
		synctest.Wait()
		codetest.Want(t, "an answer from before the new tag", codetest.ErrOf(rows.RememberedTemplate(t.Context(), "t", "web")), sandbox.NotFound)
		codetest.OK(t, "an answer after the lack of one", codetest.ErrOf(rows.RememberedTemplate(t.Context(), "other", "web")))
	})
}

// A full queue delays no create, and the answer is recorded later.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	home, rows := &keeper{}, newBoard()
	home.answers("1", nil, 0)
	n := New(home, rows, slog.New(slog.DiscardHandler))
	for i := range maxQueue + 1 {
		n.note(answer{question{"t", string(rune('a' + i))}, sandbox.TemplateMeaning{Version: "1"}, time.Now()})
	}
	if len(n.known) != maxQueue {
		t.Errorf("%d answers are known, want %d", len(n.known), maxQueue)
	}
	for i := range maxKnown {
		n.known[question{"other", string(rune(i))}] = known{}
	}
	<-n.queue
	if n.note(answer{question{"t", "one more"}, sandbox.TemplateMeaning{Version: "1"}, time.Now()}); len(n.known) != 1 {
		t.Errorf("%d answers are known after too many", len(n.known))
	}
}

// A change that may have happened makes a Template forgotten.
func TestChangesForget(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		forget bool
	}{
		"removed":       {nil, true},
		"no answer":     {sandbox.Errorf(sandbox.Unavailable, "broken"), true},
		"not reached":   {errAway, false},
		"in use":        {sandbox.Errorf(sandbox.Conflict, "in use"), false},
		"not there":     {sandbox.NotFound, false},
		"a bug of ours": {errors.New("a bug"), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, home, rows := running(t)
			means(t, n, "t", "1")
			synctest.Wait()
			home.answers("", tt.err, 0)
			_, err := Forgetting{home, home, n}.Remove(t.Context(), "t", "web")
			if !errors.Is(err, tt.err) {
				t.Errorf("%s: Remove: %v", name, err)
			}
			if _, err := rows.RememberedTemplate(t.Context(), "t", "web"); (err != nil) != tt.forget {
				t.Errorf("%s: remembered: %v", name, err)
			}
			home.answers("1", nil, 0)
			means(t, n, "t", "1")
			synctest.Wait()
			codetest.OK(t, "it is recorded again", codetest.ErrOf(rows.RememberedTemplate(t.Context(), "t", "web")))
			for call, change := range map[string]func() error{
				"Build": func() error {
					return codetest.ErrOf(Forgetting{home, home, n}.Build(t.Context(), "t", sandbox.TemplateRequest{Template: "web"}, nil))
				},
				"Tag": func() error { return codetest.ErrOf(Forgetting{home, home, n}.Tag(t.Context(), "t", "web", nil)) },
				"Reuse": func() error {
					return codetest.ErrOf(Forgetting{home, home, n}.Reuse(t.Context(), "t", "x", sandbox.Template{Name: "web"}))
				},
			} {
				means(t, n, "t", "1")
				synctest.Wait()
				codetest.OK(t, call, change())
				codetest.Want(t, call, codetest.ErrOf(rows.RememberedTemplate(t.Context(), "t", "web")), sandbox.NotFound)
			}
		})
	}
}
