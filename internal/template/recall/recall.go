// Package recall remembers the meaning of the names of Templates, for the time in which the
// Node that keeps the Templates is away.
package recall

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// patience is how long a home that is silent is asked before a remembered answer counts.
	// A home that is busy answers later than one that is well, and its answer is the newer
	// one. A host that is off makes a new connection fail sooner.
	patience = 5 * time.Second
	// again is how soon an answer that did not change is recorded again. It keeps the
	// record young, and repairs the record if another process has changed it.
	again = 5 * time.Minute
	// maxKnown bounds the answers whose record is known, and maxQueue the answers that wait
	// for their record.
	maxKnown = 10_000
	maxQueue = 1000
	// writeLimit bounds the record of one answer.
	writeLimit = 10 * time.Second
	// tellEvery is how often the log says that remembered answers are used.
	tellEvery = time.Minute
)

// Names finds Templates at their home, the Node that keeps them, and remembers its answers
// for the time in which it does not answer. Use New. Methods are safe for concurrent use.
type Names struct {
	home   sandbox.TemplateFinder
	record sandbox.TemplateNames
	log    *slog.Logger
	queue  chan answer

	mu    sync.Mutex
	known map[question]known
	told  time.Time // when the log said last that remembered answers are used
}

// question is a name as a Tenant asks for it.
type question struct {
	tenant sandbox.TenantID
	asked  string
}

// answer is the home's answer to a question; the zero meaning: no such Template.
type answer struct {
	question
	meaning sandbox.TemplateMeaning
	sent    time.Time // when the question was sent, or before
}

// known is an answer that is recorded, or waits for it.
type known struct {
	meaning sandbox.TemplateMeaning
	at      time.Time
}

var _ sandbox.Images = (*Names)(nil)

// New returns Names, which record answers while Run runs.
func New(home sandbox.TemplateFinder, record sandbox.TemplateNames, log *slog.Logger) *Names {
	return &Names{home: home, record: record, log: log, queue: make(chan answer, maxQueue), known: map[question]known{}}
}

// Find implements sandbox.TemplateFinder. While the home does not answer, it returns the
// Version and the Defaults of its last answer to this Tenant, if that was a Template.
func (n *Names) Find(ctx context.Context, tenant sandbox.TenantID, asked string) (sandbox.Template, error) {
	q := question{tenant, asked}
	sent := time.Now()
	t, err := n.ask(ctx, q)
	switch {
	case err == nil:
		n.note(answer{q, sandbox.TemplateMeaning{Version: t.Version, Defaults: t.Defaults}, sent})
	case sandbox.NoSuchTemplate(err):
		n.note(answer{q, sandbox.TemplateMeaning{}, sent})
	case errors.Is(err, errSilent):
		n.tell(ctx)
		return t, nil
	case errors.Is(err, sandbox.Unavailable):
		if t, ok := n.remembered(ctx, q); ok {
			n.tell(ctx)
			return t, nil
		}
	}
	return t, err
}

// Resolve implements sandbox.Images.
func (n *Names) Resolve(ctx context.Context, tenant sandbox.TenantID, template string) (string, error) {
	found, err := n.Find(ctx, tenant, template)
	return found.Version, err
}

// errSilent says that an answer is the remembered one of a home that takes too long.
var errSilent = errors.New("the node that keeps the templates takes too long to answer")

// ask asks the home. For a home that is silent it returns the remembered answer with
// errSilent. Without a remembered answer it waits for the home.
func (n *Names) ask(ctx context.Context, q question) (sandbox.Template, error) {
	type reply struct {
		t   sandbox.Template
		err error
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	replies := make(chan reply, 1)
	go func() {
		t, err := n.home.Find(asking, q.tenant, q.asked)
		replies <- reply{t, err}
	}()
	silent := time.NewTimer(patience)
	defer silent.Stop()
	select {
	case r := <-replies:
		return r.t, r.err
	case <-silent.C:
	}
	if old, ok := n.remembered(ctx, q); ok {
		select {
		case r := <-replies: // while the record was read
			return r.t, r.err
		default:
			return old, errSilent
		}
	}
	r := <-replies
	return r.t, r.err
}

// remembered returns the last answer of the home.
func (n *Names) remembered(ctx context.Context, q question) (sandbox.Template, bool) {
	m, err := n.record.RememberedTemplate(ctx, q.tenant, q.asked)
	if err != nil {
		if !errors.Is(err, sandbox.NotFound) {
			n.log.WarnContext(ctx, "reading the remembered version of a template failed", telemetry.KeyError, err)
		}
		return sandbox.Template{}, false
	}
	return sandbox.Template{Version: m.Version, Defaults: m.Defaults}, true
}

// tell logs now and then that remembered answers are used.
func (n *Names) tell(ctx context.Context) {
	n.mu.Lock()
	due := time.Since(n.told) > tellEvery
	if due {
		n.told = time.Now()
	}
	n.mu.Unlock()
	if due {
		n.log.WarnContext(ctx, "the node that keeps the templates does not answer; sandboxes start from the versions that it named last")
	}
}

// note queues an answer for its record, unless that is known. An answer that finds the
// queue full is recorded when it is given again.
func (n *Names) note(a answer) {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if k, ok := n.known[a.question]; ok && k.meaning == a.meaning && now.Sub(k.at) < again {
		return
	}
	select {
	case n.queue <- a:
	default:
		return
	}
	if len(n.known) >= maxKnown {
		clear(n.known)
	}
	n.known[a.question] = known{a.meaning, now}
}

// Run records the answers until ctx ends.
func (n *Names) Run(ctx context.Context) error {
	for {
		select {
		case a := <-n.queue:
			n.write(ctx, a)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Names) write(ctx context.Context, a answer) {
	limited, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	var err error
	if a.meaning.Version == "" {
		err = n.record.ForgetName(limited, a.tenant, a.asked, time.Since(a.sent))
	} else {
		err = n.record.RememberTemplate(limited, a.tenant, a.asked, a.meaning, time.Since(a.sent))
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	n.drop(func(q question) bool { return q == a.question })
	n.log.WarnContext(ctx, "recording the meaning of the name of a template failed; the next create tries it again", telemetry.KeyTenant, a.tenant, telemetry.KeyError, err)
}

// drop makes the next answers to some questions be recorded.
func (n *Names) drop(which func(question) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for q := range n.known {
		if which(q) {
			delete(n.known, q)
		}
	}
}
