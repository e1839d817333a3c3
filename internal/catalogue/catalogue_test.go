package catalogue_test

import (
	"slices"
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
			"has no name":                                o.Name == "",
			"has the name of another":                    names[o.Name],
			"has an unknown scope":                       !o.Anyone && !scopes[o.Scope],
			"checks keys and has no rate limit":          o.Authenticates() && o.Class == "",
			"checks keys and has no audit target":        o.Authenticates() && o.Target == "",
			"is public and has a rate limit":             !o.Authenticates() && o.Class != "",
			"is public and changes something":            !o.Authenticates() && o.Changes,
			"needs a scope and has an optional key":      !o.Anyone && o.OptionalKey,
			"changes something and is not audited":       o.Changes && !o.Audited,
			"only reads and is idempotent by a header":   o.Idempotent && !o.Changes,
			"shows a secret in the answer, outside keys": o.ShowsSecret && o.Scope != sandbox.ScopeKeys,
			"has a bound that is none":                   o.MaxBody < catalogue.Streamed,
			"reads, but its scope is for changes only":   !o.Changes && o.Scope == sandbox.ScopeWrite,
			"changes something with the scope read":      o.Changes && o.Scope == sandbox.ScopeRead,
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

// Whoever opens an operation to everybody changes this list too.
func TestOpenOperations(t *testing.T) {
	want := []string{
		"health", "ready", "metrics", "startPage", "docs", "openapi", "createToken", "listProviders", "describeResource", "useTool",
	}
	var got []string
	for _, o := range catalogue.All() {
		if o.Anyone {
			got = append(got, o.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("anyone may call %v, want %v", got, want)
	}
}

func TestARowSaysWhoMayCall(t *testing.T) {
	for _, o := range []catalogue.Operation{
		{Name: "neither"},
		{Name: "both", Scope: sandbox.ScopeRead, Anyone: true},
	} {
		t.Run(o.Name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is accepted", o)
				}
			}()
			catalogue.Row(o)
		})
	}
}
