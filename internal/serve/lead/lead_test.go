package lead

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// leases is the lease of one role in memory. Its clock is the test's.
type leases struct {
	mu    sync.Mutex
	row   sandbox.Leader
	until time.Time
	// away is the error of every call; slow is how long a call takes to be answered,
	// although its context has ended; held delays a call before it takes effect.
	away error
	slow time.Duration
	held time.Duration
	// unheard is how many resignations fail.
	unheard int
}

func (l *leases) call() error {
	l.mu.Lock()
	held, away := l.held, l.away
	l.mu.Unlock()
	time.Sleep(held)
	return away
}

func (l *leases) Lead(_ context.Context, c sandbox.LeaderClaim, life time.Duration) (sandbox.Leader, error) {
	if err := l.call(); err != nil {
		return sandbox.Leader{}, err
	}
	l.mu.Lock()
	expired := !time.Now().Before(l.until)
	if !expired && l.row.Holder != c.Holder {
		l.mu.Unlock()
		return sandbox.Leader{}, sandbox.Errorf(sandbox.Conflict, "another leads")
	}
	if expired {
		l.row.Epoch++
	}
	l.row.LeaderClaim, l.row.Left, l.until = c, life, time.Now().Add(life)
	row, slow := l.row, l.slow
	l.mu.Unlock()
	time.Sleep(slow)
	return row, nil
}

func (l *leases) Resign(_ context.Context, _, holder string) error {
	if err := l.call(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unheard > 0 {
		l.unheard--
		return errors.New("the resignation failed")
	}
	if l.row.Holder == holder {
		l.until = time.Now()
	}
	return nil
}

func (l *leases) LeaderOf(context.Context, string) (sandbox.Leader, error) {
	if err := l.call(); err != nil {
		return sandbox.Leader{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.row.Epoch == 0 {
		return sandbox.Leader{}, sandbox.Errorf(sandbox.NotFound, "nobody led")
	}
	row := l.row
	row.Left = time.Until(l.until)
	return row, nil
}

func (l *leases) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

// process is one process of the role.
type process struct {
	t    *testing.T
	stop func() error // waits for Run

	mu    sync.Mutex
	terms []*Term
	works bool
	began time.Time     // of the present term
	ended time.Time     // of the last one
	slow  time.Duration // how long Serve takes to end
	fails error         // Serve returns it at once
}

// start runs a process until the test ends, or stop. Its work takes slow to end.
func start(t *testing.T, l *leases, holder string, slow time.Duration) *process {
	t.Helper()
	p := &process{t: t, slow: slow}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, Config{
			Store: l, Claim: sandbox.LeaderClaim{Role: "r", Holder: holder, Address: "unix:/" + holder},
			Serve: p.serve, Log: slog.New(slog.DiscardHandler),
		})
	}()
	p.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = p.stop() })
	return p
}

func (p *process) serve(ctx context.Context, term *Term) error {
	p.mu.Lock()
	if p.works {
		p.t.Error("a term begins while the one before is served")
	}
	p.terms, p.works, p.began = append(p.terms, term), true, time.Now()
	slow, fails := p.slow, p.fails
	p.mu.Unlock()
	if fails == nil {
		<-ctx.Done()
		time.Sleep(slow)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.works, p.ended = false, time.Now()
	if fails != nil {
		return fails
	}
	return ctx.Err()
}

// term is the present or last Term, and whether it is served.
func (p *process) term() (term *Term, works bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.terms) == 0 {
		return nil, false
	}
	return p.terms[len(p.terms)-1], p.works
}

func (p *process) leads() bool {
	term, works := p.term()
	return works && term.Lasts()
}

func (p *process) times() (began, ended time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.began, p.ended
}

func TestOneLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		a := start(t, l, "a", 0)
		time.Sleep(time.Second)
		b := start(t, l, "b", 0)
		time.Sleep(time.Minute)
		if !a.leads() || b.leads() {
			t.Fatalf("after a minute a leads: %t, b: %t", a.leads(), b.leads())
		}
		stopped := time.Now()
		if err := a.stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		time.Sleep(pollEvery)
		synctest.Wait()
		began, _ := b.times()
		if term, _ := b.term(); !b.leads() || term.Epoch != 2 || began.Sub(stopped) > pollEvery {
			t.Errorf("%v after a resigned b leads: %t", began.Sub(stopped), b.leads())
		}
	})
}

// A leader that cannot renew stops before the Store gives the lead to another one, however
// long the Store takes to answer.
func TestSilentStore(t *testing.T) {
	for name, fail := range map[string]func(*leases){
		"away":                         func(l *leases) { l.away = sandbox.Errorf(sandbox.Unavailable, "away") },
		"silent":                       func(l *leases) { l.held = 30 * time.Second; l.away = sandbox.Errorf(sandbox.Unavailable, "silent") },
		"takes renewals, says it late": func(l *leases) { l.slow = life },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				a := start(t, l, "a", 0)
				time.Sleep(time.Second)
				first, _ := a.term()
				l.set(func() { fail(l) })
				broke := time.Now()
				time.Sleep(life)
				synctest.Wait()
				_, ended := a.times()
				if first.Lasts() || a.leads() || ended.Sub(broke) > life-margin {
					t.Fatalf("it leads %v after its store broke", ended.Sub(broke))
				}
				l.set(func() { l.away, l.held, l.slow = nil, 0, 0 })
				time.Sleep(2 * time.Minute)
				if term, _ := a.term(); !a.leads() || term == first {
					t.Error("it does not lead again")
				}
			})
		})
	}
}

// A leader that was stopped and continues learns at once that its term is over: by its
// clock, before any answer of the Store.
func TestTermsEndByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := time.Now()
		time.Sleep(time.Second) // the answer was on its way
		term := newTerm(sandbox.Leader{Epoch: 1}, asked)
		time.Sleep(life - margin - time.Second - 1)
		if !term.Lasts() {
			t.Error("the term is over early")
		}
		time.Sleep(time.Nanosecond)
		if term.Lasts() {
			t.Error("the term lasts too long")
		}
		term.renewed(asked.Add(3 * time.Second))
		if !term.Lasts() {
			t.Error("a renewal does not count")
		}
		term.Lose()
		term.renewed(time.Now())
		if term.Lasts() {
			t.Error("a lost term lasts")
		}
	})
}

// A refused write, or another Epoch, ends a term at once; the next one begins once its work
// has ended.
func TestLostTerms(t *testing.T) {
	for name, lose := range map[string]func(*leases, *Term){
		"a write was refused": func(_ *leases, term *Term) { term.Lose() },
		"a write was refused, and the resignation fails": func(l *leases, term *Term) {
			l.set(func() { l.unheard = 1 })
			term.Lose()
		},
		"another leads": func(l *leases, _ *Term) {
			l.set(func() { l.row.Holder, l.row.Epoch, l.until = "b", l.row.Epoch+1, time.Now().Add(life) })
		},
		"its lease had expired": func(l *leases, _ *Term) { l.set(func() { l.until = time.Now() }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &leases{}
				a := start(t, l, "a", 2*time.Second)
				time.Sleep(time.Second)
				first, _ := a.term()
				lose(l, first)
				time.Sleep(renewEvery)
				synctest.Wait()
				if first.Lasts() {
					t.Error("it goes on")
				}
				time.Sleep(time.Minute)
				if term, _ := a.term(); !a.leads() || term.Epoch <= first.Epoch {
					t.Errorf("its next term is %+v", term)
				}
			})
		})
	}
}

// While a process ends it finishes its work as leader, and resigns only then.
func TestOrderlyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		a := start(t, l, "a", 12*time.Second)
		time.Sleep(time.Second)
		b := start(t, l, "b", 0)
		ended := make(chan error, 1)
		go func() { ended <- a.stop() }()
		time.Sleep(11 * time.Second)
		if term, works := a.term(); !works || !term.Lasts() || b.leads() {
			t.Error("it does not lead to the end")
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		time.Sleep(pollEvery)
		synctest.Wait()
		if !b.leads() {
			t.Error("nobody leads")
		}
	})
}

func TestFailedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		broken := errors.New("broken")
		p := &process{t: t, fails: broken}
		err := Run(t.Context(), Config{Store: l, Claim: sandbox.LeaderClaim{Role: "r", Holder: "a"}, Serve: p.serve, Log: slog.New(slog.DiscardHandler)})
		if !errors.Is(err, broken) || time.Now().Before(l.until) {
			t.Errorf("Run = %v, the lease lasts %v", err, time.Until(l.until))
		}
		err = Run(t.Context(), Config{
			Store: l, Claim: sandbox.LeaderClaim{Role: "r", Holder: "a"}, Log: slog.New(slog.DiscardHandler),
			Serve: func(context.Context, *Term) error { return nil },
		})
		if err == nil {
			t.Error("work that ends by itself is no error")
		}
		stuck := make(chan struct{})
		err = Run(t.Context(), Config{
			Store: l, Claim: sandbox.LeaderClaim{Role: "r", Holder: "a"}, Log: slog.New(slog.DiscardHandler),
			Serve: func(_ context.Context, term *Term) error { term.Lose(); <-stuck; return nil },
		})
		close(stuck)
		if err == nil {
			t.Error("work that does not stop is no error: a second session manager would begin beside it")
		}
	})
}

// A process without terms keeps the lead while the Store answers, tries again while it
// does not, and fails when another one leads.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		log := slog.New(slog.DiscardHandler)
		claim := sandbox.LeaderClaim{Role: "r", Holder: "server"}
		keep, err := Hold(t.Context(), l, claim, log)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Hold(t.Context(), l, sandbox.LeaderClaim{Role: "r", Holder: "other"}, log); !errors.Is(err, sandbox.Conflict) {
			t.Errorf("a second one: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- keep(ctx) }()
		standby := start(t, l, "b", 0)
		time.Sleep(time.Minute)
		if standby.leads() {
			t.Error("another process leads beside it")
		}
		l.set(func() { l.away = errors.New("away") })
		time.Sleep(life + renewEvery)
		l.set(func() { l.away = nil })
		time.Sleep(2 * life)
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, sandbox.Conflict) || !standby.leads() {
				t.Errorf("keep = %v", err)
			}
		default:
			if standby.leads() {
				t.Error("both lead")
			}
		}
		stop()
	})
}

// A process without terms resigns when it ends.
func TestHoldResigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		keep, err := Hold(t.Context(), l, sandbox.LeaderClaim{Role: "r", Holder: "server"}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		stop()
		if err := keep(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("keep = %v", err)
		}
		if _, err := Hold(t.Context(), l, sandbox.LeaderClaim{Role: "r", Holder: "other"}, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("the next one: %v", err)
		}
	})
}
