package sandbox

// TenantID names who owns things: the boundary for what can be seen. It is
// opaque, at most 128 bytes, and never empty for an authenticated caller.
type TenantID string

// Role says what an Identity may do within its Tenant.
type Role string

const (
	RoleDeveloper Role = "developer" // the usual role: Sandboxes and what is in them
	RoleAdmin     Role = "admin"     // the same, and the Tenant's own settings
)

// Identity is who a request speaks for.
type Identity struct {
	Tenant TenantID
	User   string // for logs and audit; never an authorization input
	Role   Role
}
