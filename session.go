package sandbox

import (
	"context"
	"regexp"
	"time"
)

// Defaults and bounds of a Session.
const (
	DefaultSessionTimeout = 30 * time.Minute
	DefaultAcquireTimeout = 10 * time.Minute
	MaxTimeout            = 24 * time.Hour
)

// CreateRequest asks for a Sandbox. Zero fields mean the defaults.
type CreateRequest struct {
	Template string // empty: "base"
	Name     string
	Timeout  time.Duration // zero: DefaultSessionTimeout
	Shape    Shape         // zero: DefaultShape
	Network  NetworkPolicy // empty: the operator's default
	Metadata map[string]string
	Env      map[string]string
	User     string // default user of Processes; empty: "user"
	Cwd      string // empty: /workspace
}

// ListQuery selects Sandboxes of one Tenant, newest first.
type ListQuery struct {
	States   []State           // empty: all that have not ended
	Metadata map[string]string // every pair must match
	Limit    int               // 1 to 100; zero: 100
	Cursor   string            // from an earlier Page; empty: the beginning
}

// Page is one page of a list.
type Page struct {
	Sandboxes []Sandbox
	Next      string // empty: no more
}

// Sandboxes is the life of every Sandbox: the session manager. A Tenant's call
// for an ID or name that another Tenant owns answers exactly as for an absent
// one: NotFound.
//
// Methods are safe for concurrent use.
type Sandboxes interface {
	// Create records, starts and binds a Sandbox, and returns it running.
	// A name in use is a Conflict, no room Exhausted, a Template that is not
	// there NotFound.
	Create(ctx context.Context, tenant TenantID, req CreateRequest) (Sandbox, error)
	// Get returns a Sandbox by ID or name, also an ended one by ID as long as
	// its Certificate is kept.
	Get(ctx context.Context, tenant TenantID, idOrName string) (Sandbox, error)
	List(ctx context.Context, tenant TenantID, query ListQuery) (Page, error)
	// SetTimeout moves the deadline to timeout from now, nearer or farther.
	// timeout must be in (0, MaxTimeout]; an ended Sandbox is a Conflict.
	SetTimeout(ctx context.Context, tenant TenantID, idOrName string, timeout time.Duration) (Sandbox, error)
	// End ends a Sandbox and returns its last record once nothing of it runs.
	// Ending one that has ended is NotFound.
	End(ctx context.Context, tenant TenantID, idOrName string, cause Cause) (Sandbox, error)
	// Counts returns how many Sandboxes a Tenant has in each State that is not
	// Ended.
	Counts(ctx context.Context, tenant TenantID) (map[State]int, error)
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$`)

// Check returns Invalid, saying what to change, when the request breaks a rule
// that needs no other knowledge than the request.
func (r CreateRequest) Check() error {
	if r.Name != "" && (!namePattern.MatchString(r.Name) || ValidSandboxID(r.Name)) {
		return Errorf(Invalid, "name must be 1 to 63 of a-z, 0-9, '.', '_' and '-', begin and end with a letter or digit, and not look like a sandbox ID")
	}
	if r.Timeout < 0 || r.Timeout > MaxTimeout {
		return Errorf(Invalid, "timeout_seconds must be between 1 and %d", int(MaxTimeout.Seconds()))
	}
	if r.Network != "" && !r.Network.Valid() {
		return Errorf(Invalid, "network must be %q or %q", NetworkPublic, NetworkNone)
	}
	if r.Shape != (Shape{}) {
		if err := r.Shape.Check(); err != nil {
			return err
		}
	}
	if err := CheckEnv(r.Env); err != nil {
		return err
	}
	return checkMetadata(r.Metadata)
}

const (
	maxMetadataPairs = 64
	maxMetadataBytes = 16 << 10
	maxEnvPairs      = 512
	maxEnvBytes      = 96 << 10
)

func checkMetadata(m map[string]string) error {
	size := 0
	for k, v := range m {
		if k == "" {
			return Errorf(Invalid, "a metadata key is empty")
		}
		size += len(k) + len(v)
	}
	if len(m) > maxMetadataPairs || size > maxMetadataBytes {
		return Errorf(Invalid, "metadata may hold at most %d pairs and %d bytes in all", maxMetadataPairs, maxMetadataBytes)
	}
	return nil
}

var envNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckEnv returns Invalid when env cannot be the environment of a Process.
func CheckEnv(env map[string]string) error {
	size := 0
	for k, v := range env {
		if !envNamePattern.MatchString(k) {
			return Errorf(Invalid, "%q is not a name for an environment variable: use letters, digits and '_', not beginning with a digit", k)
		}
		for i := range len(v) {
			if v[i] == 0 {
				return Errorf(Invalid, "the environment variable %s holds a zero byte", k)
			}
		}
		size += len(k) + len(v)
	}
	if len(env) > maxEnvPairs || size > maxEnvBytes {
		return Errorf(Invalid, "env may hold at most %d variables and %d bytes in all", maxEnvPairs, maxEnvBytes)
	}
	return nil
}
