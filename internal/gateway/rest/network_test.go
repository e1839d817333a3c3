package rest_test

import (
	"testing"
)

func TestNetworkLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	type log struct {
		Decisions []struct {
			Seq, Count                int64
			Name, Address, Verdict    string
			Protocol, Reason, FirstAt string
		}
		Allowed, Refused int64
	}
	for query, want := range map[string]int{"": 2, "?verdict=allowed": 1, "?verdict=refused": 1} {
		var got log
		f.Do("GET", "/api/v1/sessions/"+id+"/network/log"+query, "").Into(t, 200, &got)
		if len(got.Decisions) != want || got.Allowed != 3 || got.Refused != 1 {
			t.Errorf("%q: %+v", query, got)
		}
	}
	var all log
	f.Do("GET", "/api/v1/sessions/"+id+"/network/log", "").Into(t, 200, &all)
	if d := all.Decisions; d[0].Address != "1.2.3.4" || d[0].Verdict != "allowed" || d[1].Name != "\ufffdevil.example" || d[1].Verdict != "refused" {
		t.Errorf("%+v", d)
	}
	f.Do("DELETE", "/api/v1/sessions/"+id, "").Into(t, 200, &struct{}{})
	f.Do("GET", "/api/v1/sessions/"+id+"/network/log", "").Into(t, 409, &struct{}{})
}
