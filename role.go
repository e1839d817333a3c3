package sandbox

import "slices"

// Role is the permission level of an Identity.
type Role string

const (
	RoleViewer    Role = "viewer"    // reads
	RoleDeveloper Role = "developer" // the usual Role: uses Sandboxes and their resources
	RoleAdmin     Role = "admin"     // also manages the Tenant's Users
	RoleOwner     Role = "owner"     // the same as admin, but no admin can demote or remove it
	RoleOperator  Role = "operator"  // also manages all Tenants: the operator of the installation
)

// Scope is a class of requests that can be permitted.
type Scope string

const (
	ScopeRead      Scope = "read"      // read Sandboxes and their contents
	ScopeWrite     Scope = "write"     // create, change, use and end them
	ScopeTemplates Scope = "templates" // build and remove Templates
	ScopeKeys      Scope = "keys"      // make and revoke Keys of the Tenant
	ScopeTokens    Scope = "tokens"    // mint tokens for users, each a Tenant of its own
	ScopeAudit     Scope = "audit"     // read the Tenant's audit log
	ScopeUsers     Scope = "users"     // manage the Tenant's Users
	ScopeTenants   Scope = "tenants"   // manage all Tenants
)

// permissions maps each Scope to the Roles that have it. Everything else is denied.
var permissions = []struct {
	scope Scope
	roles []Role
}{
	{ScopeRead, []Role{RoleViewer, RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeWrite, []Role{RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeTemplates, []Role{RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeKeys, []Role{RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeTokens, []Role{RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeAudit, []Role{RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeUsers, []Role{RoleAdmin, RoleOwner, RoleOperator}},
	{ScopeTenants, []Role{RoleOperator}},
}

// Roles lists every Role; each has all permissions of the Roles before it.
func Roles() []Role {
	return []Role{RoleViewer, RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}
}

// Valid reports whether r is a Role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// May reports whether the Role has the Scope s. An unknown Role has none.
func (r Role) May(s Scope) bool {
	for _, p := range permissions {
		if p.scope == s {
			return slices.Contains(p.roles, r)
		}
	}
	return false
}

// Above reports whether r is higher than other. An unknown Role is below all.
func (r Role) Above(other Role) bool {
	return slices.Index(Roles(), r) > slices.Index(Roles(), other)
}

// Gives reports whether a holder of r may assign the Role other. Every holder may
// assign their own Role. Admins and higher may also assign the Roles below their own. A
// Role above the holder's own can never be assigned.
func (r Role) Gives(other Role) bool {
	if !r.Valid() || !other.Valid() {
		return false
	}
	return r == other || !RoleAdmin.Above(r) && r.Above(other)
}

// Scopes lists every Scope.
func Scopes() []Scope {
	all := make([]Scope, len(permissions))
	for i, p := range permissions {
		all[i] = p.scope
	}
	return all
}

// Valid reports whether s is a Scope.
func (s Scope) Valid() bool { return slices.Contains(Scopes(), s) }

// Sees returns s as the Identity may see it. It masks the header values in Secrets unless
// the Identity has ScopeWrite.
func (i Identity) Sees(s Sandbox) Sandbox {
	if !i.May(ScopeWrite) {
		s.Secrets = s.Secrets.Masked()
	}
	return s
}

// May reports whether the Identity has the Scope s. A Key never has more Scopes than its
// Role.
func (i Identity) May(s Scope) bool {
	return i.Role.May(s) && (i.Scopes == nil || slices.Contains(i.Scopes, s))
}
