package v1_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
)

// A client of this version reads what a newer server says of a sandbox.
func TestSandboxOfANewerServer(t *testing.T) {
	for _, network := range []string{`{"mode":"none","via":"proxy"}`, `"restricted"`, `""`, `null`} {
		var s v1.Sandbox
		raw := `{"sandbox_id":"i1","state":"asleep","network":` + network + `,"novel":{"a":1}}`
		if err := json.Unmarshal([]byte(raw), &s); err != nil || s.ID != "i1" || string(s.Network) != network {
			t.Errorf("%s: %+v, %v", raw, s, err)
		}
	}
}

// The server decodes a request to the values that the client encoded.
func TestRequestsReturn(t *testing.T) {
	asked := v1.CreateRequest{
		Name: "a", TimeoutSeconds: v1.SecondsOf(90 * time.Second), IdleTimeoutSeconds: v1.SecondsOrNone(1500 * time.Millisecond),
		Network: `{"mode":"none","allow":["a.example"]}`, Ports: new(v1.PortRules(`{"private":true}`)),
		Volumes: &v1.VolumeMounts{{Volume: "data", Path: "/data"}},
	}
	raw, err := json.Marshal(asked)
	if err != nil {
		t.Fatal(err)
	}
	var got v1.CreateRequest
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	if again, err := json.Marshal(got); err != nil || string(again) != string(raw) {
		t.Errorf("%s became %s, %v", raw, again, err)
	}
	for want, change := range map[string]v1.UpdateRequest{
		`{}`:                                    {},
		`{"name":""}`:                           {Name: v1.Given("")},
		`{"idle_timeout_seconds":0}`:            {IdleTimeoutSeconds: v1.Given(v1.SecondsOrNone(0))},
		`{"network":null}`:                      {Network: new(v1.Network(""))},
		`{"timeout_seconds":0.25}`:              {TimeoutSeconds: v1.SecondsOf(250 * time.Millisecond)},
		`{"network":"public","env":{"A":null}}`: {Network: new(v1.Network("public")), Env: map[string]*string{"A": nil}},
	} {
		raw, err := json.Marshal(change)
		if err != nil {
			t.Fatal(err)
		}
		var wanted, told map[string]any
		if json.Unmarshal([]byte(want), &wanted) != nil || json.Unmarshal(raw, &told) != nil || len(wanted) != len(told) {
			t.Errorf("%s, want %s", raw, want)
		}
		var back v1.UpdateRequest
		if err := json.Unmarshal(raw, &back); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
