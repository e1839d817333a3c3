package processes

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// A spool keeps output that its owner has not read: without limit while the owner
// follows, and for returnTime after it left. It does not wait for other readers.
func TestSpoolWaitsForOwners(t *testing.T) {
	const total = spoolLimit + 4*segmentSize
	for _, tt := range []struct {
		name   string
		limit  int64 // of all spools together
		owner  bool  // one follows
		blocks time.Duration
	}{
		{"slow", maxBudget, true, time.Hour},
		{"little room for all", 8 * segmentSize, true, time.Hour},
		{"gone", maxBudget, false, returnTime},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpool(tt.limit)
				defer s.close()
				s.owned, s.left = true, time.Now()
				var f *follower
				if tt.owner {
					f = s.followAs(0, true)
				}
				began := time.Now()
				written := make(chan time.Duration)
				go func() {
					for at := 0; at < total; at += segmentSize {
						s.append(false, pattern(int64(at), segmentSize))
					}
					written <- time.Since(began)
				}()
				time.Sleep(tt.blocks - time.Second)
				if start, end := s.bounds(); start != 0 || end == total {
					t.Fatalf("after %s it keeps %d to %d", time.Since(began), start, end)
				}
				if !tt.owner {
					if took := <-written; took < returnTime {
						t.Errorf("it was written after %s", took)
					}
					return
				}
				var got []byte
				for len(got) < total {
					pieces, _, more, err := f.take(messageSize)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, joined(t, pieces, int64(len(got)))...)
					if more != nil && len(got) < total {
						<-more
					}
				}
				<-written
				f.leave()
				if !bytes.Equal(got, pattern(0, total)) {
					t.Error("the owner has read other bytes")
				}
			})
		})
	}
}

// A Process ends when its client has left and no client returns in time.
func TestEndUnlessFollowed(t *testing.T) {
	for _, comes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &Process{output: &spool{budget: &budget{limit: maxBudget}, owned: true}, stop: make(chan struct{}, 1), ended: make(chan struct{})}
			go p.endUnlessFollowed(time.Minute)
			time.Sleep(time.Second)
			if comes { // and its server dies, which says nothing
				p.output.followAs(0, true).leave()
			}
			time.Sleep(time.Hour)
			if ends := len(p.stop) == 1; ends == comes {
				t.Errorf("a client returned: %v, the Process ends: %v", comes, ends)
			}
		})
	}
}
