package contexts

import (
	"slices"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

const (
	// aheadLanguage has its interpreter started ahead.
	aheadLanguage = "python"
	// aheadStart bounds that start.
	aheadStart = 5 * time.Second
)

// Prepare starts an interpreter while the Boot belongs to nobody yet, and
// returns when it can run code. The first context that it fits takes it. Where
// the Template has none, nothing happens.
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
	// What an execution loads is loaded too.
	first := newCell(Request{Code: "None"}, 0, lifetime{}, nil, nobody{})
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

// Bound ends what was started ahead when nobody uses it soon.
func (s *Contexts) Bound() {
	time.AfterFunc(server.AheadLife, func() {
		if w := s.takeAhead(); w != nil {
			w.kill(0)
		}
	})
}

// takeAhead returns the interpreter that was started ahead, once.
func (s *Contexts) takeAhead() *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.ahead
	s.ahead = nil
	return w
}

// start returns an interpreter for a context, the one that was started ahead if
// it fits.
func (s *Contexts) start(l language, command server.Command) (*worker, error) {
	if l.name == aheadLanguage {
		if w := s.takeAhead(); w != nil && w.become(command) {
			return w, nil
		}
	}
	return startWorker(s.guest, l, command)
}

// become makes an interpreter that was started ahead one that was started by
// command, or ends it.
func (w *worker) become(command server.Command) bool {
	changes, ok := changesTo(w.command, command)
	if ok && !w.gone() && w.ask(append([]string{"become", command.Cwd}, changes...)) == nil {
		w.command = command
		return true
	}
	w.kill(0)
	return false
}

// readAtStart begins the names of variables that an interpreter, or what it is
// made of, reads only when it starts.
var readAtStart = []string{"PYTHON", "LD_", "LC_", "LANG", "TZ", "HOME", "GLIBC_", "MALLOC_", "OPENSSL_"}

// changesTo returns the variables, names and values in turn, that make a program
// started by one command the same as if it had been started by another; ok is
// false when that takes more.
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

// nobody listens to an execution.
type nobody struct{}

func (nobody) Started(Started) error                { return nil }
func (nobody) Output(bool, []byte) error            { return nil }
func (nobody) Result(bool, map[string]string) error { return nil }
func (nobody) Error(string, string, string) error   { return nil }
