package execution

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Interpreters is what this package asks of the agent inside one Boot about
// interpreters that keep their state. As for Guest, what it answers is hostile
// input, and its errors carry Codes: NotFound for a context that is not there,
// Exhausted for one that is busy or one too many, Invalid, Conflict,
// Unavailable.
type Interpreters interface {
	// Execute runs code in a context to its end, as Guest.Run does. An error of
	// handle, and the end of ctx, interrupt it, unless it is a Process of its own;
	// what it left stays.
	Execute(ctx context.Context, req CellRequest, handle func(RunEvent) error) (RunEnd, error)
	Contexts(ctx context.Context) ([]Context, error)
	CreateContext(ctx context.Context, spec ContextSpec) (Context, error)
	RestartContext(ctx context.Context, id string) (Context, error)
	// InterruptContext reports whether something ran.
	InterruptContext(ctx context.Context, id string) (bool, error)
	DeleteContext(ctx context.Context, id string) error
	// Programs returns those of names that are in the PATH.
	Programs(ctx context.Context, names []string) ([]string, error)
}

// CellRequest asks for one execution in a context.
type CellRequest struct {
	Context        string // ID; empty: the default one of Language and User
	Language, User string
	Code           string
	Stdin          []byte
	Env            map[string]string
	Cwd            string
	Timeout        time.Duration // from its start, which may have to wait
	MaxOutput      int64         // as of a RunRequest
	As             *RunAs        // as of a RunRequest
}

// Cell says which context an execution ran in.
type Cell struct {
	ContextID string
	Count     int64 // executions of the context so far, this one included
	Restarted bool  // the interpreter is not that of the execution before
	Lost      bool  // the interpreter ended: the next execution gets a fresh one
}

// Value is what code gave, in one or more representations.
type Value struct {
	Main bool              // the value of the last expression
	Data map[string]string // by MIME type: bytes in base64, JSON as text
}

// Failure is an exception that ended code.
type Failure struct {
	Name, Message, Traceback string
}

// ContextSpec asks for a new context. Empty Cwd and User are the defaults.
type ContextSpec struct {
	Language, Cwd, User string
}

// Context is one interpreter that keeps its state, or the place for one.
type Context struct {
	SandboxID string
	ID        string
	Language  string
	Cwd       string
	User      string
	Default   bool
	Alive     bool  // it has an interpreter
	Busy      bool  // which is at work
	Count     int64 // executions so far
}

// maxContextID bounds the ID of a context.
const maxContextID = 64

// checkContextID returns NotFound for what can be no context's ID.
func checkContextID(id string) error {
	if id == "" {
		return sandbox.Errorf(sandbox.Invalid, "context_id is empty")
	}
	ok := len(id) <= maxContextID
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if !ok {
		return sandbox.Errorf(sandbox.NotFound, "there is no such context")
	}
	return nil
}

// Contexts lists the contexts of a Sandbox.
func (s *Service) Contexts(ctx context.Context, tenant sandbox.TenantID, idOrName string) ([]Context, error) {
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err != nil {
		return nil, err
	}
	all, err := guest.Contexts(ctx)
	for i := range all {
		all[i].SandboxID = sb.ID
	}
	return all, err
}

// CreateContext makes a context. Invalid for a language that keeps no state.
func (s *Service) CreateContext(ctx context.Context, tenant sandbox.TenantID, idOrName string, spec ContextSpec) (Context, error) {
	if spec.Language == "" {
		return Context{}, sandbox.Errorf(sandbox.Invalid, "language is missing; a context runs %s", keptNames())
	}
	lang, err := languageNamed(spec.Language)
	if err != nil {
		return Context{}, err
	}
	if !lang.kept && !lang.asked {
		return Context{}, sandbox.Errorf(sandbox.Invalid, "%s keeps no state between executions; a context runs %s", lang.name, keptNames())
	}
	if len(spec.Cwd) > maxCwd || len(spec.User) > maxUser {
		return Context{}, sandbox.Errorf(sandbox.TooLarge, "cwd may have at most %d bytes and user %d", maxCwd, maxUser)
	}
	spec.Language = lang.name
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err != nil {
		return Context{}, err
	}
	c, err := guest.CreateContext(ctx, spec)
	if sandbox.CodeOf(err) == sandbox.Invalid {
		if _, absent := programOf(ctx, guest, lang); absent != nil {
			err = absent
		}
	}
	c.SandboxID = sb.ID
	return c, err
}

// RestartContext ends a context's interpreter, and what runs in it. The next
// execution gets a fresh one.
func (s *Service) RestartContext(ctx context.Context, tenant sandbox.TenantID, idOrName, id string) (Context, error) {
	var c Context
	err := s.withContext(ctx, tenant, idOrName, id, func(sb sandbox.Sandbox, guest Interpreters) (err error) {
		c, err = guest.RestartContext(ctx, id)
		c.SandboxID = sb.ID
		return err
	})
	return c, err
}

// InterruptContext interrupts what runs in a context and leaves its state. It
// reports whether something ran.
func (s *Service) InterruptContext(ctx context.Context, tenant sandbox.TenantID, idOrName, id string) (ran bool, err error) {
	err = s.withContext(ctx, tenant, idOrName, id, func(_ sandbox.Sandbox, guest Interpreters) (err error) {
		ran, err = guest.InterruptContext(ctx, id)
		return err
	})
	return ran, err
}

// DeleteContext ends a context.
func (s *Service) DeleteContext(ctx context.Context, tenant sandbox.TenantID, idOrName, id string) error {
	return s.withContext(ctx, tenant, idOrName, id, func(_ sandbox.Sandbox, guest Interpreters) error {
		return guest.DeleteContext(ctx, id)
	})
}

// withContext calls f with the Sandbox that is to have a context. That there is
// no such Sandbox comes before what is wrong with the context.
func (s *Service) withContext(ctx context.Context, tenant sandbox.TenantID, idOrName, id string, f func(sandbox.Sandbox, Interpreters) error) error {
	sb, guest, err := s.Guests.Open(ctx, tenant, idOrName)
	if err == nil {
		err = checkContextID(id)
	}
	if err != nil {
		return err
	}
	return f(sb, guest)
}
