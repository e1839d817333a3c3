package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestRoles(t *testing.T) {
	var table []string
	for _, s := range Scopes() {
		line := fmt.Sprintf("%-9s", s)
		for _, r := range Roles() {
			mark := "-"
			if r.May(s) {
				mark = "x"
			}
			line += " " + mark
		}
		table = append(table, line)
	}
	const want = `
read      x x x x x
write     - x x x x
templates - x x x x
keys      - x x x x
tokens    - - x x x
audit     - - x x x
users     - - x x x
tenants   - - - - x`
	if got := "\n" + strings.Join(table, "\n"); got != want {
		t.Errorf("%v:%s", Roles(), got)
	}
	for _, r := range []Role{"", "user", "root", "Admin"} {
		for _, s := range append(Scopes(), "") {
			if r.May(s) || (Identity{Role: r}).May(s) {
				t.Errorf("%q may %q", r, s)
			}
		}
	}
	if (Identity{Role: RoleOperator}).May("") {
		t.Error("there is a scope without a name")
	}
	if who := (Identity{Role: RoleOwner, Scopes: []Scope{ScopeRead, ScopeTenants}}); who.May(ScopeWrite) || who.May(ScopeTenants) || !who.May(ScopeRead) {
		t.Error("a key's scopes and its role do not both bind")
	}
}

func TestRoleGives(t *testing.T) {
	gives := map[Role][]Role{
		RoleViewer:    {RoleViewer},
		RoleDeveloper: {RoleDeveloper},
		RoleAdmin:     {RoleViewer, RoleDeveloper, RoleAdmin},
		RoleOwner:     {RoleViewer, RoleDeveloper, RoleAdmin, RoleOwner},
		RoleOperator:  Roles(),
		"root":        nil,
	}
	for r, others := range gives {
		for _, other := range append(Roles(), "root", "") {
			if got := r.Gives(other); got != slices.Contains(others, other) {
				t.Errorf("%q gives %q: %v", r, other, got)
			}
		}
	}
}
