package contexts

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox/internal/guest/server"
)

// maxContexts bounds the contexts of one Sandbox.
const maxContexts = 32

// Errors about contexts.
var (
	ErrUnknown = errors.New("no such context")
	ErrTooMany = fmt.Errorf("the sandbox has %d contexts already; delete one first", maxContexts)
)

// Contexts are the contexts of one Boot. Its methods are safe for concurrent use.
type Contexts struct {
	guest *server.Guest

	mu    sync.Mutex
	all   []*kept // in order of creation
	ahead *worker // started before Bind; nil: none, or it was taken
}

// New returns the contexts of a Guest; none has an interpreter yet.
func New(g *server.Guest) *Contexts { return &Contexts{guest: g} }

// Target names a context: by ID, or the default one of a language and user.
type Target struct {
	ID             string
	Language, User string // User empty: the default user
	// Cwd is the first folder of the default context; empty: the default folder.
	Cwd string
}

// Execute runs code in a context. It returns the result, or an error when the code
// did not begin: ErrUnknown, ErrBusy, ErrDeleted, a *server.InvalidError for a
// wrong language, user or folder, or the handler's own.
func (s *Contexts) Execute(ctx context.Context, t Target, req Request, h Handler) (Result, error) {
	c, err := s.find(t)
	if err != nil {
		return Result{}, err
	}
	return c.execute(ctx, req, h)
}

// find returns the context of t. It creates a default context that does not exist.
func (s *Contexts) find(t Target) (*kept, error) {
	if t.ID != "" {
		c := s.byID(t.ID)
		if c == nil {
			return nil, ErrUnknown
		}
		if t.Language != "" && t.Language != c.language.name {
			return nil, invalid("the context runs %s, not %s", c.language.name, t.Language)
		}
		return c, nil
	}
	l, ok := languageNamed(t.Language)
	if !ok {
		return nil, invalid("%q has no contexts", t.Language)
	}
	owner, bound := s.guest.Owner()
	if !bound {
		return nil, server.ErrNotBound
	}
	id := l.name
	if t.User != "" && t.User != owner.User {
		id += "." + t.User
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.index(id); i >= 0 {
		return s.all[i], nil
	}
	c := newContext(s.guest, id, l, cmp.Or(t.Cwd, owner.Cwd), cmp.Or(t.User, owner.User))
	c.isDefault = true
	return c, s.add(c)
}

// Default describes the default context of t, and creates it if it does not exist.
func (s *Contexts) Default(t Target) (Info, error) {
	c, err := s.find(t)
	if err != nil {
		return Info{}, err
	}
	return c.info(), nil
}

func (s *Contexts) byID(id string) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.index(id); i >= 0 {
		return s.all[i]
	}
	return nil
}

// index and add are called with s.mu held.
func (s *Contexts) index(id string) int {
	return slices.IndexFunc(s.all, func(c *kept) bool { return c.id == id })
}

func (s *Contexts) add(c *kept) error {
	if len(s.all) >= maxContexts {
		return ErrTooMany
	}
	c.start = s.start
	s.all = append(s.all, c)
	return nil
}

// Create makes a context. cwd and user may be empty: the defaults.
func (s *Contexts) Create(name, cwd, user string) (Info, error) {
	l, ok := languageNamed(name)
	if !ok {
		return Info{}, invalid("%q has no contexts", name)
	}
	command, err := s.guest.Command(l.args, nil, cwd, user)
	if err != nil {
		return Info{}, err
	}
	c := newContext(s.guest, "c"+strings.ToLower(rand.Text()[:20]), l, command.Cwd, command.User.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.add(c); err != nil {
		return Info{}, err
	}
	return c.info(), nil
}

// List describes all contexts. The default user's default contexts come first: Python,
// JavaScript and TypeScript, even if they were not used yet. The others follow in order
// of creation.
func (s *Contexts) List() []Info {
	owner, _ := s.guest.Owner()
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []Info
	for _, name := range []string{"python", "javascript", "typescript"} {
		if s.index(name) < 0 {
			infos = append(infos, Info{ID: name, Language: name, Cwd: owner.Cwd, User: owner.User, Default: true})
		}
	}
	for _, c := range s.all {
		infos = append(infos, c.info())
	}
	slices.SortStableFunc(infos, func(a, b Info) int { return cmp.Compare(rank(a), rank(b)) })
	return infos
}

// rank orders the default contexts of the default user before all others.
func rank(i Info) int {
	at := slices.IndexFunc(languages, func(l language) bool { return l.name == i.ID })
	if at < 0 {
		return len(languages)
	}
	return at
}

// Restart ends a context's interpreter; the next execution gets a fresh one.
func (s *Contexts) Restart(id string) (Info, error) {
	c, err := s.known(id)
	if err != nil {
		return Info{}, err
	}
	c.restart()
	return c.info(), nil
}

// Interrupt interrupts the current execution of a context and leaves the state. It
// reports whether there was one.
func (s *Contexts) Interrupt(id string) (bool, error) {
	c, err := s.known(id)
	if err != nil {
		return false, err
	}
	return c.interrupt(), nil
}

// known returns a context by ID, including a default one that was not used yet.
func (s *Contexts) known(id string) (*kept, error) {
	if c := s.byID(id); c != nil {
		return c, nil
	}
	if _, ok := languageNamed(id); ok {
		return s.find(Target{Language: id})
	}
	return nil, ErrUnknown
}

// Delete ends a context.
func (s *Contexts) Delete(id string) error {
	s.mu.Lock()
	i := s.index(id)
	if i < 0 {
		s.mu.Unlock()
		if _, isDefault := languageNamed(id); isDefault {
			return nil
		}
		return ErrUnknown
	}
	c := s.all[i]
	s.all = slices.Delete(s.all, i, i+1)
	s.mu.Unlock()
	c.delete()
	return nil
}

func invalid(format string, args ...any) error {
	return &server.InvalidError{Reason: fmt.Sprintf(format, args...)}
}
