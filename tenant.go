package sandbox

import "time"

// TenantID names who owns things: the boundary for what can be seen. It is
// opaque, at most 128 bytes, and never empty for an authenticated caller.
type TenantID string

// Identity is who a request speaks for.
type Identity struct {
	Tenant TenantID
	User   string // for logs and audit; never an authorization input
	Role   Role
	Key    string    // ID of the Key that it came with; empty: a token
	Scopes []Scope   // what the Key is for; nil: all that the Role may
	Until  time.Time // when the Key expires; zero: never, or a token
}
