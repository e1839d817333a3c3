// Package catalogue lists every operation of the gateway, one row each. A row defines
// the scope that the operation requires, its rate limit and size bound, and its audit
// record. REST, Connect and E2B's API bind their own URLs to these rows.
package catalogue

import (
	"fmt"
	"slices"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue/ratelimit"
)

// Operation is one row. Rows are never changed.
type Operation struct {
	// Name is the operationId in api/openapi.yaml, or a name of our own for an operation
	// that REST does not have.
	Name string
	// Takes and Gives are values of the types of the request's and the response's JSON;
	// nil: none. API surfaces with JSON of their own ignore them.
	Takes, Gives any
	// Scope is required of the caller. A row has either Scope or Anyone.
	Scope sandbox.Scope
	// Anyone marks an operation that needs no credential.
	Anyone bool
	// OptionalKey marks an operation for Anyone that checks an API key if the request has
	// one.
	OptionalKey bool
	// SignedURL marks an operation that a signed URL allows without a credential.
	SignedURL bool
	// VolumeToken marks an operation that accepts the token of a Volume.
	VolumeToken bool
	// Class is the rate limit that a call counts against; empty: none.
	Class ratelimit.Class
	// Changes marks an operation that may change something. It is refused while the audit
	// log cannot be written.
	Changes bool
	// Audited marks an operation of which the audit log keeps every call. Of the others
	// it keeps the calls that were denied.
	Audited bool
	// Target selects the target of an audit entry.
	Target Target
	// MaxBody bounds the body of a request in bytes. 0: a body is refused. Streamed: no
	// bound.
	MaxBody int64
	// Idempotent makes the operation idempotent for requests with an Idempotency-Key.
	Idempotent bool
	// ShowsSecret marks an operation whose answer contains a secret that is never stored.
	ShowsSecret bool
	// Quiet has requests logged at level debug.
	Quiet bool
}

// Authenticates reports whether a credential in a request is checked.
func (o *Operation) Authenticates() bool { return !o.Anyone || o.OptionalKey }

// Target selects the target of an audit entry. If a request created one object, that
// object takes precedence. If the request names no object, the Sandbox that it used
// is the target.
type Target string

const (
	// Named is the ID or name in the path ({id}, or {template} of a build of E2B's API)
	// or in the message.
	Named Target = "named"
	// Sandbox is the ID of a Sandbox, also where the request has its name.
	Sandbox Target = "sandbox"
	// User is the User in the path: {user}.
	User Target = "user"
	// TenantUser is a User of the Tenant in the path, as "TENANT/users/USER".
	TenantUser Target = "tenant user"
	// Template is the Template in the path: {template}, and {part} after a slash.
	Template Target = "template"
)

// Bounds of request bodies in bytes. The gateway's tests compare the bounds for code,
// stdin and patterns with the bounds of internal/execution.
const (
	// Streamed is the bound of a body of any length. A disk or a quota bounds it.
	Streamed int64 = -1
	JSON     int64 = 1 << 20
	// MCPMessage is the bound of a message of MCP, which may hold a file.
	MCPMessage int64 = 8 << 20

	tokenBody int64 = 4 << 10
	toolBody  int64 = 64 << 10 // one stream of reflection or health
	// 8 KiB of value, 2,000 bytes of description or 8 KiB of metadata, each character
	// escaped to six bytes, and the rest.
	secretBody int64 = 128 << 10
	// 1 MiB of code and 1 MiB of stdin, each escaped to twice its bytes, and the rest.
	executeBody int64 = 8 << 20
	// 96 KiB of arguments and 1 MiB of stdin, escaped, and the rest.
	processBody int64 = 4288 << 10
	// 64 KiB of pattern and 1 MiB of replacement, escaped, and the rest.
	replaceBody int64 = 3200 << 10
	recipeBody  int64 = 4 << 20 // the steps of a Template, escaped, and the rest
	batchBody   int64 = 16 << 20
)

const (
	read      = sandbox.ScopeRead
	write     = sandbox.ScopeWrite
	templates = sandbox.ScopeTemplates
	keys      = sandbox.ScopeKeys
	tenants   = sandbox.ScopeTenants
	users     = sandbox.ScopeUsers
	audit     = sandbox.ScopeAudit
)

// rows are all Operations in the order of their declaration.
var rows []*Operation

// row adds an Operation to the catalogue. It panics unless exactly one of Scope and
// Anyone is set: that is a bug.
func row(o Operation) *Operation {
	if (o.Scope == "") != o.Anyone {
		panic(fmt.Sprintf("catalogue: the operation %q must have either Scope or Anyone", o.Name))
	}
	rows = append(rows, &o)
	return &o
}

// All returns every Operation.
func All() []*Operation { return slices.Clone(rows) }
