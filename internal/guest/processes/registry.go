package processes

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/contexts"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// maxRunning bounds the running Processes; a Sandbox's limit on processes is
	// usually lower.
	maxRunning = 4096
	// maxEnded is how many ended Processes are kept: so many owned ones (Spec.Run) and so
	// many others. The Processes that ended first are removed first.
	maxEnded = 200
	// maxKeys is how many idempotency keys are remembered.
	maxKeys = 4096
	// maxBudget is how much output all Processes together keep, in bytes. It is an
	// eighth of the Sandbox's memory if that is less.
	maxBudget = 64 << 20
	// maxText bounds the text of a command that is kept, in bytes.
	maxText = 1 << 10
)

// Registry is the Processes of a Sandbox. Its methods are safe for concurrent
// use.
type Registry struct {
	guest    *server.Guest
	contexts *contexts.Contexts
	budget   budget
	shells   shells

	mu     sync.Mutex
	all    []*Process // in the order in which they were started
	byID   map[string]*Process
	names  map[string]bool   // names of Processes that are starting
	starts map[string]*keyed // by idempotency key
	keys   []string          // of starts, oldest first
}

// keyed is the outcome of an idempotency key.
type keyed struct {
	fingerprint []byte
	done        chan struct{} // closed once the others are set
	process     *Process
	err         error
}

// New returns a Registry without Processes. c runs code for a context.
func New(g *server.Guest, c *contexts.Contexts) *Registry {
	r := &Registry{
		guest: g, contexts: c, shells: shells{busy: map[string]*Process{}},
		byID: map[string]*Process{}, names: map[string]bool{}, starts: map[string]*keyed{},
	}
	r.budget.limit, r.budget.shrink = budgetOf(), r.shrink
	return r
}

// budgetOf returns how much of this Sandbox's memory may hold output, in bytes.
func budgetOf() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return maxBudget
	}
	const share = 8
	return min(maxBudget, int64(info.Totalram)*int64(info.Unit)/share)
}

// Spec describes a Process to start.
type Spec struct {
	ID      string   // empty: generated
	Args    []string // or else Line
	Line    string   // for bash
	Shell   string   // session of Line; empty: none
	Name    string
	User    string
	Cwd     string
	Env     map[string]string
	PTY     *Size // nil: no terminal
	Stdin   []byte
	Keep    bool // its input stays open after Stdin
	Timeout time.Duration
	// Run is for a short Process on behalf of its followers, which own it: its
	// output waits for them, and output of processes that it leaves behind is
	// dropped.
	Run    bool
	Cell   *Cell   // runs instead of a program; nil: none
	Source *Source // code of which the program is made; nil: the program exists

	Key         string // idempotency key; empty: none
	Fingerprint []byte // of the request, with Key
}

// Errors of a start, in addition to the errors of server.Guest.
var (
	errKeyReused = errors.New("this Idempotency-Key was used for another request")
	errKeyOld    = errors.New("this Idempotency-Key started a process that is no longer kept: use a new one")
	errNameTaken = errors.New("a process of this name runs already")
	errTooMany   = errors.New("too many processes run")
)

// Start starts a Process, or returns the Process that was started before with the
// same key; repeated is true then.
func (r *Registry) Start(ctx context.Context, spec Spec) (p *Process, repeated bool, err error) {
	if spec.Key == "" {
		if p, err = r.start(spec); err == nil {
			close(p.placed)
		}
		return p, false, err
	}
	r.mu.Lock()
	s := r.starts[spec.Key]
	if s == nil {
		s = &keyed{fingerprint: spec.Fingerprint, done: make(chan struct{})}
		r.remember(spec.Key, s)
		r.mu.Unlock()
		s.process, s.err = r.start(spec)
		if s.err != nil {
			r.forget(spec.Key, s)
		}
		close(s.done)
		if s.err == nil {
			close(s.process.placed)
		}
		return s.process, false, s.err
	}
	r.mu.Unlock()
	if !bytes.Equal(s.fingerprint, spec.Fingerprint) {
		return nil, false, errKeyReused
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	if s.err == nil && r.Find(s.process.ID) != s.process {
		return nil, false, errKeyOld
	}
	return s.process, true, s.err
}

// remember stores the outcome of a key. The lock is held.
func (r *Registry) remember(key string, s *keyed) {
	r.starts[key] = s
	r.keys = append(r.keys, key)
	if len(r.keys) > maxKeys {
		delete(r.starts, r.keys[0])
		r.keys = r.keys[1:]
	}
}

// forget frees a key for reuse: nothing was started with it.
func (r *Registry) forget(key string, s *keyed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starts[key] == s {
		delete(r.starts, key)
		r.keys = slices.DeleteFunc(r.keys, func(k string) bool { return k == key })
	}
}

func (r *Registry) start(spec Spec) (*Process, error) {
	p := &Process{
		ID: spec.ID, Name: spec.Name, Shell: spec.Shell, Text: textOf(spec), Timeout: spec.Timeout,
		output: &spool{budget: &r.budget, owned: spec.Run, left: time.Now()}, source: spec.Source, stop: make(chan struct{}, 1), ended: make(chan struct{}), writing: make(chan struct{}, 1),
		placed: make(chan struct{}),
	}
	if p.ID == "" {
		p.ID = "#" + strings.ToLower(rand.Text())
	}
	if err := r.reserve(p); err != nil {
		return nil, err
	}
	defer r.unreserve(p)
	if spec.Cell != nil {
		p.Started = time.Now()
		if err := r.startCell(p, spec); err != nil {
			return nil, err
		}
		r.adopt(p)
		return p, nil
	}
	if err := r.resolve(p, spec); err != nil {
		return nil, err
	}
	if spec.PTY != nil {
		p.tty, p.size = true, *spec.PTY
	}
	if err := r.launch(p, spec); err != nil {
		return nil, err
	}
	r.adopt(p)
	return p, nil
}

// launch starts the program, in its shell session if it has one.
func (r *Registry) launch(p *Process, spec Spec) error {
	if spec.Shell == "" {
		return p.launch(r.guest, spec.Stdin, spec.Keep)
	}
	release, err := r.shells.take(p)
	if err != nil {
		return err
	}
	p.atEnd = func() { release(true) }
	if err := p.launch(r.guest, spec.Stdin, spec.Keep); err != nil {
		release(false)
		return err
	}
	return nil
}

// reserve reserves a name for a Process that is about to start.
func (r *Registry) reserve(p *Process) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.Name != "" {
		if found := r.named(p.Name); r.names[p.Name] || found != nil && !found.over() {
			return errNameTaken
		}
		r.names[p.Name] = true
	}
	running := 0
	for _, other := range r.all {
		if !other.over() {
			running++
		}
	}
	if running >= maxRunning {
		return errTooMany
	}
	return nil
}

func (r *Registry) unreserve(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, p.Name)
}

// resolve finds the program and its environment.
func (r *Registry) resolve(p *Process, spec Spec) (err error) {
	args, env := spec.Args, spec.Env
	if spec.Source != nil && len(spec.Source.Compile) > 0 {
		spec.Source.program, args = args, spec.Source.Compile
	}
	if spec.PTY != nil {
		env = withTerminal(env)
	}
	if len(args) == 0 {
		args = []string{"bash", "-c", "--", spec.Line}
	}
	p.Command, err = r.guest.Command(args, env, spec.Cwd, spec.User)
	if err != nil || spec.Shell == "" {
		return err
	}
	p.Command.Args, err = r.shells.args(p.Command.User, spec)
	return err
}

// withTerminal sets TERM, unless env does.
func withTerminal(env map[string]string) map[string]string {
	if env["TERM"] != "" {
		return env
	}
	out := map[string]string{"TERM": "xterm-256color"}
	for k, v := range env {
		out[k] = v
	}
	return out
}

// textOf returns the request's command or code, as it is shown.
func textOf(spec Spec) string {
	text := spec.Line
	switch {
	case spec.Cell != nil:
		text = spec.Cell.Request.Code
	case len(spec.Args) > 0:
		text = strings.Join(spec.Args, " ")
	}
	if len(text) > maxText {
		text = text[:maxText]
		for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) {
			text = text[:len(text)-1]
		}
		text += "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// adopt adds a started Process, and removes the oldest ended ones.
func (r *Registry) adopt(p *Process) {
	r.mu.Lock()
	r.all = append(r.all, p)
	r.byID[p.ID] = p
	gone := r.surplus()
	r.mu.Unlock()
	for _, old := range gone {
		old.output.close()
		if old.cell != nil {
			old.cell.drop()
		}
	}
}

// withdraw removes a Process that did not begin after all, and its key.
func (r *Registry) withdraw(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, p.ID)
	r.all = slices.DeleteFunc(r.all, func(other *Process) bool { return other == p })
	for key, s := range r.starts {
		if s.process == p {
			delete(r.starts, key)
			r.keys = slices.DeleteFunc(r.keys, func(k string) bool { return k == key })
		}
	}
}

// surplus removes the ended Processes beyond maxEnded. The lock is held.
func (r *Registry) surplus() (gone []*Process) {
	for _, owned := range []bool{false, true} {
		var ended []*Process
		for _, p := range r.all {
			if p.output.owned == owned && p.over() {
				ended = append(ended, p)
			}
		}
		for ; len(ended) > maxEnded; ended = slices.DeleteFunc(ended, func(p *Process) bool { return p == gone[len(gone)-1] }) {
			oldest := slices.MinFunc(ended, func(a, b *Process) int { return a.endOrder().Compare(b.endOrder()) })
			delete(r.byID, oldest.ID)
			gone = append(gone, oldest)
		}
	}
	if len(gone) > 0 {
		r.all = slices.DeleteFunc(r.all, func(p *Process) bool { return slices.Contains(gone, p) })
	}
	return gone
}

// endOrder returns when a Process ended, or a time in the far future while it runs.
func (p *Process) endOrder() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() {
		const never = 1 << 60
		return time.Unix(never, 0)
	}
	return p.at
}

func (p *Process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// All lists the Processes in the order in which they were started.
func (r *Registry) All() []*Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// FindKey returns the Process that was started with an idempotency key; nil when no
// such Process is known.
func (r *Registry) FindKey(key string) *Process {
	r.mu.Lock()
	s := r.starts[key]
	r.mu.Unlock()
	if s == nil {
		return nil
	}
	<-s.done
	return s.process
}

// Find returns the Process with an ID, or else with a name: the latest running one,
// or else the latest. It is nil when none exists.
func (r *Registry) Find(id string) *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.byID[id]; p != nil {
		return p
	}
	return r.named(id)
}

// named returns the Process with a name. The lock is held.
func (r *Registry) named(name string) *Process {
	var found *Process
	for _, p := range slices.Backward(r.all) {
		if p.Name != name || name == "" {
			continue
		}
		if !p.over() {
			return p
		}
		if found == nil {
			found = p
		}
	}
	return found
}

// shrink drops output until the total is within the budget: first of the Processes
// that ended longest ago, then the oldest output of the Process that has most.
func (r *Registry) shrink() {
	all := r.All()
	slices.SortStableFunc(all, func(a, b *Process) int { return a.endOrder().Compare(b.endOrder()) })
	for _, p := range all {
		if !r.budget.exceeded() {
			return
		}
		if p.over() {
			p.output.drop(true)
			if now, _ := p.output.followers(); p.cell != nil && now == 0 {
				p.cell.drop()
			}
		}
	}
	for r.budget.exceeded() && len(all) > 0 {
		biggest := slices.MaxFunc(all, func(a, b *Process) int { return int(a.output.kept() - b.output.kept()) })
		if biggest.output.drop(false) == 0 { // all of it is owed to an owner
			all = slices.DeleteFunc(all, func(p *Process) bool { return p == biggest })
		}
	}
}
