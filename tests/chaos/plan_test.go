package chaos

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// A seed makes the same plan each time, and every kind of fault comes once before one comes
// again.
func TestPlan(t *testing.T) {
	n := len(kinds)
	one := Plan(1, 3*n)
	if !reflect.DeepEqual(one, Plan(1, 3*n)) || !reflect.DeepEqual(one[:n], Plan(1, n)) {
		t.Error("a seed makes two plans")
	}
	if reflect.DeepEqual(one, Plan(2, 3*n)) {
		t.Error("two seeds make one plan")
	}
	var want, got []string
	for _, k := range kinds {
		want = append(want, k.name)
	}
	for _, f := range one[n : 2*n] {
		got = append(got, f.Name)
		if f.Lasts < 2*time.Second || f.Lasts > minute || f.Wait > 10*time.Second || f.Target == f.From && f.From != "" && f.From != nodes {
			t.Errorf("%+v", f)
		}
		if f.Jump != 0 && (f.Jump.Abs() < 30*time.Second || f.Jump.Abs() >= 4*time.Minute) {
			t.Errorf("a clock jumps by %v", f.Jump)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("a round has %q, want %q", got, want)
	}
	for name, want := range map[string][2]bool{"a sleeping node": {true, true}, "a jumping clock": {false, true}, "Redis is away": {}} {
		if f := (Fault{Name: name}); f.loses(false) != want[0] || f.loses(true) != want[1] {
			t.Errorf("%s loses boots: %v, and if a node was declared lost: %v", name, f.loses(false), f.loses(true))
		}
	}
}

// A client draws the same operations each time, and all kinds of them.
func TestSteps(t *testing.T) {
	a, b, seen := source(7, 1), source(7, 1), map[Kind]bool{}
	for range 1000 {
		kind, wait := nextStep(a)
		again, sameWait := nextStep(b)
		if kind != again || wait != sameWait || wait < 0 || wait > time.Second {
			t.Fatalf("%s after %v, and %s after %v", kind, wait, again, sameWait)
		}
		seen[kind] = true
	}
	if len(seen) != len(steps) {
		t.Errorf("only %v were drawn", seen)
	}
}
