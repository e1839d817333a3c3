package catalogue_test

import (
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
)

// What one property of a row demands of the others.
func TestRowsAreConsistent(t *testing.T) {
	scopes := map[sandbox.Scope]bool{}
	for _, s := range sandbox.Scopes() {
		scopes[s] = true
	}
	names := map[string]bool{}
	for _, o := range catalogue.All() {
		for problem, has := range map[string]bool{
			"has no name":                              o.Name == "",
			"has the name of another":                  names[o.Name],
			"has an unknown scope":                     !o.Public() && !scopes[o.Scope],
			"checks keys and has no rate limit":        o.Authenticates() && o.Class == "",
			"checks keys and has no audit target":      o.Authenticates() && o.Target == "",
			"is public and has a rate limit":           !o.Authenticates() && o.Class != "",
			"is public and changes something":          !o.Authenticates() && o.Changes,
			"needs a scope and has an optional key":    !o.Public() && o.OptionalKey,
			"changes something and is not audited":     o.Changes && !o.Audited,
			"only reads and is idempotent by a header": o.Once && !o.Changes,
			"has a secret in an answer that is no key": o.ShowsSecret && o.Scope != sandbox.ScopeKeys,
			"has a bound that is none":                 o.MaxBody < catalogue.Streamed,
			"reads, but its scope is for changes only": !o.Changes && o.Scope == sandbox.ScopeWrite,
			"changes something with the scope read":    o.Changes && o.Scope == sandbox.ScopeRead,
		} {
			if has {
				t.Errorf("%+v %s", o, problem)
			}
		}
		names[o.Name] = true
	}
	if len(names) < 130 {
		t.Errorf("only %d rows", len(names))
	}
}
