package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

func TestCheckPlan(t *testing.T) {
	for _, tt := range []struct {
		name string
		plan bench.Plan
		ok   bool
	}{
		{"nothing", bench.Plan{}, true},
		{"all", bench.Plan{Rounds: 1, Calls: 1, Bursts: []int{1, 100}, Live: 1000, Size: 1 << 30, Saves: 20, Storm: 200}, true},
		{"negative", bench.Plan{Rounds: -1}, false},
		{"a burst of none", bench.Plan{Bursts: []int{10, 0}}, false},
		{"too large", bench.Plan{Size: 1 << 50}, false},
		{"too many", bench.Plan{Live: 1_000_000}, false},
		{"too many at once", bench.Plan{Storm: 1_000_000}, false},
		{"volumes", bench.Plan{Volumes: 10}, true},
		{"too many rounds of volumes", bench.Plan{Volumes: 101}, false},
		{"negative saves", bench.Plan{Saves: -1}, false},
	} {
		if err := checkPlan(tt.plan); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestOnThisMachine(t *testing.T) {
	for server, want := range map[string]bool{
		"http://localhost:8080": true, "http://127.0.0.1:1": true, "http://[::1]:8080": true,
		"https://sandbox.example.org": false, "http://10.0.0.1:8080": false,
	} {
		if got := onThisMachine(server); got != want {
			t.Errorf("%s: %v", server, got)
		}
	}
}

// Only flags that were given replace the numbers of a base.
func TestPlanOver(t *testing.T) {
	base := bench.Plan{Rounds: 1, Calls: 2, Bursts: []int{3}, Live: 4, Size: 5, Saves: 6, Storm: 7, Volumes: 8}
	given := bench.Plan{Rounds: 11, Calls: 12, Bursts: []int{13}, Live: 14, Size: 15, Saves: 16, Storm: 17, Volumes: 18}
	all := func(string) bool { return true }
	if diff := cmp.Diff(given, over(base, given, all)); diff != "" {
		t.Errorf("all: %s", diff)
	}
	if diff := cmp.Diff(base, over(base, given, func(string) bool { return false })); diff != "" {
		t.Errorf("none: %s", diff)
	}
	want := base
	want.Live = 14
	if diff := cmp.Diff(want, over(base, given, func(flag string) bool { return flag == "live" })); diff != "" {
		t.Errorf("one: %s", diff)
	}
}
