package e2b

import (
	"fmt"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// The loads kept of a Sandbox are bounded and in order, and begin with its start.
func TestLoads(t *testing.T) {
	t.Parallel()
	var l loads
	start := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	at := start
	for range 10 * maxLoads {
		l.add("i", execution.Load{At: at})
		l.add("i", execution.Load{At: at.Add(-time.Second)}) // that came late
		at = at.Add(loadStep)
	}
	all := l.of("i")
	if len(all) > maxLoads || len(all) < maxLoads/2 || !all[0].At.Equal(start) || !all[len(all)-1].At.Equal(at.Add(-loadStep)) {
		t.Fatalf("%d points from %v to %v", len(all), all[0].At, all[len(all)-1].At)
	}
	for i := range all[1:] {
		if step := all[i+1].At.Sub(all[i].At); step < loadStep || i > len(all)-maxLoads/5 && step != loadStep {
			t.Fatalf("step %d is %v", i, step)
		}
	}
	// Two that are closer than a step are one.
	l.add("j", execution.Load{At: start})
	for i := range 4 {
		l.add("j", execution.Load{At: start.Add(time.Duration(i+1) * time.Second)})
	}
	if all := l.of("j"); len(all) != 2 || !all[1].At.Equal(start.Add(4*time.Second)) {
		t.Errorf("%v", all)
	}
}

func TestWatched(t *testing.T) {
	t.Parallel()
	var l loads
	for i := range maxKept + 5 {
		l.watch(fmt.Sprint(i))
	}
	l.watch("a")
	if len(l.watched) != maxKept || len(l.watchedOf(map[string]bool{"a": true, "b": true})) != 1 {
		t.Errorf("%d are watched", len(l.watched))
	}
	if l.unwatch("a"); len(l.watchedOf(map[string]bool{"a": true})) != 0 {
		t.Error("it is watched on")
	}
}
