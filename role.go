package sandbox

import "slices"

// Role says what an Identity may do.
type Role string

const (
	RoleViewer    Role = "viewer"    // looks
	RoleDeveloper Role = "developer" // the usual one: uses Sandboxes and what belongs to them
	RoleAdmin     Role = "admin"     // the same, and looks after the Tenant's people
	RoleOwner     Role = "owner"     // the same; no admin can take it away
	RoleOperator  Role = "operator"  // the same, and looks after all Tenants: whose installation it is
)

// Scope is a kind of thing that can be done: a class of requests.
type Scope string

const (
	ScopeRead      Scope = "read"      // look at Sandboxes and what is in them
	ScopeWrite     Scope = "write"     // create, change, use and end them
	ScopeTemplates Scope = "templates" // build and remove Templates
	ScopeKeys      Scope = "keys"      // make and revoke Keys of the Tenant
	ScopeTokens    Scope = "tokens"    // mint tokens for users, each a Tenant of its own
	ScopeAudit     Scope = "audit"     // read the Tenant's audit log
	ScopeUsers     Scope = "users"     // look after the Tenant's Users
	ScopeTenants   Scope = "tenants"   // look after all Tenants
)

// permissions is who may do what: the whole of it. Whatever is not here nobody
// may.
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

// Roles lists every Role; each may do all that those before it may.
func Roles() []Role {
	return []Role{RoleViewer, RoleDeveloper, RoleAdmin, RoleOwner, RoleOperator}
}

// Valid reports whether r is a Role.
func (r Role) Valid() bool { return slices.Contains(Roles(), r) }

// May reports whether the Role may do what s stands for. What is no Role may
// nothing.
func (r Role) May(s Scope) bool {
	for _, p := range permissions {
		if p.scope == s {
			return slices.Contains(p.roles, r)
		}
	}
	return false
}

// Above reports whether r may do more than other. What is no Role is below all.
func (r Role) Above(other Role) bool {
	return slices.Index(Roles(), r) > slices.Index(Roles(), other)
}

// Gives reports whether who has the Role may make somebody of the Role other:
// nobody can of one above their own, and only admins and those above them of
// another than their own.
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

// Sees returns what the Identity may know of a Sandbox that it may look at: values
// of headers that its requests get are for those who may change them.
func (i Identity) Sees(s Sandbox) Sandbox {
	if !i.May(ScopeWrite) {
		s.Secrets = s.Secrets.Masked()
	}
	return s
}

// May reports whether the Identity may do what s stands for. A Key may never do
// more than its Role.
func (i Identity) May(s Scope) bool {
	return i.Role.May(s) && (i.Scopes == nil || slices.Contains(i.Scopes, s))
}
