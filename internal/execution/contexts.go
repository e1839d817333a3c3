package execution

import (
	"context"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// Interpreters manages the stateful interpreters of the agent inside one Boot. As for
// Guest, its answers are hostile input and its errors carry Codes: NotFound for an absent
// context, Exhausted for a busy context or one too many, Invalid, Conflict, Unavailable.
type Interpreters interface {
	// Execute runs code in a context to its end, as Guest.Run does. An error of handle or
	// the end of ctx interrupts the code, unless it is a Process of its own. The context
	// keeps its state.
	Execute(ctx context.Context, req CellRequest, handle func(RunEvent) error) (RunEnd, error)
	Contexts(ctx context.Context) ([]Context, error)
	CreateContext(ctx context.Context, spec ContextSpec) (Context, error)
	RestartContext(ctx context.Context, id string) (Context, error)
	// InterruptContext reports whether something ran.
	InterruptContext(ctx context.Context, id string) (bool, error)
	DeleteContext(ctx context.Context, id string) error
	// Programs returns the subset of names that is in the PATH.
	Programs(ctx context.Context, names []string) ([]string, error)
}

// CellRequest asks for one execution in a context.
type CellRequest struct {
	Context        string // ID; empty: the default context of Language and User
	Language, User string
	Code           string
	Stdin          []byte
	Env            map[string]string
	Cwd            string
	Timeout        time.Duration // from the start of the code, which may have to wait
	MaxOutput      int64         // as in RunRequest
	As             *RunAs        // as in RunRequest
}

// Cell identifies the context of an execution.
type Cell struct {
	ContextID string
	Count     int64 // executions of the context so far, this one included
	Restarted bool  // the interpreter differs from the previous execution's
	Lost      bool  // the interpreter ended: the next execution gets a fresh one
}

// Value is a result of code, in one or more representations.
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

// Context is a slot for one stateful interpreter.
type Context struct {
	SandboxID string
	ID        string
	Language  string
	Cwd       string
	User      string
	Default   bool
	Alive     bool  // it has an interpreter
	Busy      bool  // its interpreter is running code
	Count     int64 // executions so far
}

// maxContextID bounds the ID of a context.
const maxContextID = 64

// checkContextID returns NotFound for a string that cannot be the ID of a context.
func checkContextID(id string) error {
	if id == "" {
		return sandbox.Errorf(sandbox.Invalid, "context_id is empty")
	}
	ok := len(id) <= maxContextID
	for _, r := range id {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if !ok {
		return sandbox.Errorf(sandbox.NotFound, "no such context")
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

// CreateContext creates a context. Invalid for a language that keeps no state.
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

// RestartContext ends a context's interpreter and the code in it. The next execution gets
// a fresh one.
func (s *Service) RestartContext(ctx context.Context, tenant sandbox.TenantID, idOrName, id string) (Context, error) {
	var c Context
	err := s.withContext(ctx, tenant, idOrName, id, func(sb sandbox.Sandbox, guest Interpreters) (err error) {
		c, err = guest.RestartContext(ctx, id)
		c.SandboxID = sb.ID
		return err
	})
	return c, err
}

// InterruptContext interrupts the code in a context and leaves its state. ran reports
// whether any code ran.
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

// withContext calls f with the Sandbox of a context. An absent Sandbox is reported before
// an invalid context ID.
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
