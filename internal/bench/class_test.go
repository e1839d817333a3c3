package bench

import "testing"

func TestEndlessNote(t *testing.T) {
	for _, tt := range []struct {
		n, cores int
		want     string
	}{
		{1000, 2, "83 of the 1000 programs are loops or floods that only their timeout of 5 s ends: with a core each, on 2 cores, these alone take 208 s"},
		{5, 2, "0 of the 5 programs are loops or floods that only their timeout of 5 s ends: with a core each, on 2 cores, these alone take 0 s"},
	} {
		if got := endlessNote(tt.n, tt.cores); got != tt.want {
			t.Errorf("%d on %d cores: %q", tt.n, tt.cores, got)
		}
	}
}
