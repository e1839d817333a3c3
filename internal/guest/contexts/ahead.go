package contexts

import (
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// aheadLanguage is the language whose interpreter is started ahead.
	aheadLanguage = "python"
	// aheadStart bounds that start.
	aheadStart = 5 * time.Second
)

// Prepare starts an interpreter before the Boot has an owner, and returns when it
// can run code. The first context that it fits takes it. Nothing happens if the
// Template has no such interpreter.
func (s *Contexts) Prepare() {
	l, _ := languageNamed(aheadLanguage)
	command, err := s.guest.CommandAhead(l.args)
	if err != nil {
		return
	}
	w, err := startWorker(s.guest, l, command)
	if err != nil {
		return
	}
	// This also loads the modules that an execution loads.
	first := newCell(Request{Code: "None"}, 0, lifetime{}, nil, ignored{})
	late := time.NewTimer(aheadStart)
	defer late.Stop()
	if w.begin(first) != nil {
		w.kill(0)
		return
	}
	select {
	case <-first.done:
	case <-w.ended:
		return
	case <-late.C:
		w.kill(0)
		return
	}
	w.finish()
	first.detach()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = w
}

// Bound ends an interpreter that was started ahead and is not used within
// AheadLife.
func (s *Contexts) Bound() {
	time.AfterFunc(server.AheadLife, func() {
		if w := s.takeAhead(); w != nil {
			w.kill(0)
		}
	})
}

// takeAhead removes and returns the interpreter that was started ahead.
func (s *Contexts) takeAhead() *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.ahead
	s.ahead = nil
	return w
}

// start returns an interpreter for a context: the interpreter that was started ahead if
// it fits, or else a new one.
func (s *Contexts) start(l language, command server.Command) (*worker, error) {
	if l.name == aheadLanguage {
		if w := s.takeAhead(); w != nil && w.become(command) {
			return w, nil
		}
	}
	return startWorker(s.guest, l, command)
}

// become turns an interpreter that was started ahead into one that command would
// have started, or ends it.
func (w *worker) become(command server.Command) bool {
	changes, ok := changesTo(w.command, command)
	if ok && !w.gone() && w.ask(append([]string{"become", command.Cwd}, changes...)) == nil {
		w.command = command
		return true
	}
	w.kill(0)
	return false
}

// readAtStart are prefixes of variables that an interpreter, or its libraries, read
// only at the start.
var readAtStart = []string{"PYTHON", "LD_", "LC_", "LANG", "TZ", "HOME", "GLIBC_", "MALLOC_", "OPENSSL_"}

// changesTo returns the variables, names and values in turn, that make a program
// started by one command equal to one started by another; ok is false when more
// would have to change.
func changesTo(before, after server.Command) (changes []string, ok bool) {
	if before.Path != after.Path || before.User.UID != after.User.UID || before.User.GID != after.User.GID ||
		!slices.Equal(before.User.Groups, after.User.Groups) || !slices.Equal(before.Args, after.Args) {
		return nil, false
	}
	changes, gone := server.EnvChanges(before.Env, after.Env)
	for i := 0; i < len(changes); i += 2 {
		if slices.ContainsFunc(readAtStart, func(begin string) bool { return strings.HasPrefix(changes[i], begin) }) {
			return nil, false
		}
	}
	return changes, len(gone) == 0
}

// ignored is a Handler that ignores all events.
type ignored struct{}

func (ignored) Started(Started) error                { return nil }
func (ignored) Output(bool, []byte) error            { return nil }
func (ignored) Result(bool, map[string]string) error { return nil }
func (ignored) Error(string, string, string) error   { return nil }
