package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// leases is a NodeStore in memory.
type leases struct {
	sandbox.NodeStore
	nodes []sandbox.NodeRecord
	err   error
	reads atomic.Int64
	slow  time.Duration // how long a read takes
}

func (l *leases) Nodes(context.Context) ([]sandbox.NodeRecord, error) {
	l.reads.Add(1)
	time.Sleep(l.slow)
	return l.nodes, l.err
}

func lease(name string, d time.Duration) sandbox.NodeRecord {
	return sandbox.NodeRecord{Name: name, LeaseLeft: d}
}

func TestPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name  string
			nodes []sandbox.NodeRecord
			err   error
			want  []string
			code  error
		}{
			{"no node", nil, nil, nil, sandbox.Exhausted},
			{"only a silent one", []sandbox.NodeRecord{lease("a", -time.Second)}, nil, nil, sandbox.Exhausted},
			{"one", []sandbox.NodeRecord{lease("a", time.Second)}, nil, []string{"a"}, nil},
			{"one of two", []sandbox.NodeRecord{lease("a", -1), lease("b", time.Second)}, nil, []string{"b"}, nil},
			{"the store is away", nil, sandbox.Errorf(sandbox.Unavailable, "away"), nil, sandbox.Unavailable},
		} {
			got, err := New(&leases{nodes: tt.nodes, err: tt.err}, nil).Place(t.Context(), "", sandbox.Shape{})
			if !slices.Equal(got, tt.want) || !errors.Is(err, tt.code) {
				t.Errorf("%s: %v, %v, want %v, %v", tt.name, got, err, tt.want, tt.code)
			}
		}
	})
}

func TestNodesTakeTurns(t *testing.T) {
	s := New(&leases{nodes: []sandbox.NodeRecord{lease("a", time.Hour), lease("b", time.Hour)}}, nil)
	first := map[string]int{}
	for range 10 {
		names, err := s.Place(t.Context(), "", sandbox.Shape{})
		if err != nil || len(names) != 2 {
			t.Fatal(names, err)
		}
		first[names[0]]++
	}
	if first["a"] != 5 || first["b"] != 5 {
		t.Errorf("first were %v, want five of each", first)
	}
}

// A lease that ends between two reads ends here too, counted from before the read.
func TestLeaseEndsBetweenReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leases{nodes: []sandbox.NodeRecord{lease("a", time.Second), lease("b", time.Hour)}, slow: 600 * time.Millisecond}
		s := New(store, nil)
		for _, want := range [][]string{{"a", "b"}, {"b"}} {
			names, err := s.Place(t.Context(), "", sandbox.Shape{})
			slices.Sort(names)
			if err != nil || !slices.Equal(names, want) {
				t.Errorf("%v, %v, want %v", names, err, want)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n := store.reads.Load(); n != 1 {
			t.Errorf("the store was read %d times", n)
		}
	})
}

func TestRunSparesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leases{nodes: []sandbox.NodeRecord{lease("a", time.Hour)}}
		s := New(store, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		before := store.reads.Load()
		for range 100 {
			if _, err := s.Place(t.Context(), "", sandbox.Shape{}); err != nil {
				t.Fatal(err)
			}
		}
		if store.reads.Load() != before {
			t.Error("Place read the store although the view is fresh")
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		// Without Run the view ages, and Place looks for itself.
		time.Sleep(time.Minute)
		if _, err := s.Place(t.Context(), "", sandbox.Shape{}); err != nil || store.reads.Load() == before {
			t.Errorf("Place with an old view: %v, %d reads", err, store.reads.Load()-before)
		}
	})
}
