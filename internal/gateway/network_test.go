package gateway_test

import "testing"

func TestNetworkLog(t *testing.T) {
	f := newFixture(t)
	id := f.acquire()
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
		f.do("GET", "/api/v1/sessions/"+id+"/network/log"+query, "").into(t, 200, &got)
		if len(got.Decisions) != want || got.Allowed != 3 || got.Refused != 1 {
			t.Errorf("%q: %+v", query, got)
		}
	}
	var all log
	f.do("GET", "/api/v1/sessions/"+id+"/network/log", "").into(t, 200, &all)
	if d := all.Decisions; d[0].Address != "1.2.3.4" || d[0].Verdict != "allowed" || d[1].Name != "\ufffdevil.example" || d[1].Verdict != "refused" {
		t.Errorf("%+v", d)
	}
	f.do("DELETE", "/api/v1/sessions/"+id, "").into(t, 200, &struct{}{})
	f.do("GET", "/api/v1/sessions/"+id+"/network/log", "").into(t, 409, &struct{}{})
}
