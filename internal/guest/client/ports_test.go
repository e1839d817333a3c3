package client

import (
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	guestv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1"
)

// A Guest's word about ports is taken within bounds, or not at all.
func TestListenersOfAreChecked(t *testing.T) {
	many := make([]*guestv1.ListeningPort, maxListeners+1)
	for i := range many {
		many[i] = &guestv1.ListeningPort{Port: uint32(i + 1), Address: "127.0.0.1"}
	}
	if _, err := listenersOf(&guestv1.ListPortsResponse{Ports: many}); err == nil {
		t.Error("too many are taken")
	}
	for name, p := range map[string]*guestv1.ListeningPort{
		"nothing":          nil,
		"no port":          {Address: "127.0.0.1"},
		"a large port":     {Port: 65536, Address: "127.0.0.1"},
		"no address":       {Port: 80},
		"a name":           {Port: 80, Address: "localhost"},
		"a zone":           {Port: 80, Address: "fe80::1%<script>"},
		"a wrong process":  {Port: 80, Address: "::1", Pid: -1},
		"a port in a text": {Port: 80, Address: "127.0.0.1:80"},
	} {
		if got, err := listenersOf(&guestv1.ListPortsResponse{Ports: []*guestv1.ListeningPort{p}}); err == nil {
			t.Errorf("%s is taken: %+v", name, got)
		}
	}
	got, err := listenersOf(&guestv1.ListPortsResponse{Ports: []*guestv1.ListeningPort{
		{Port: 9000, Address: "::", Process: "\xff" + strings.Repeat("x", 1<<20)},
		{Port: 80, Address: "::ffff:127.0.0.1", Pid: 7, Process: "web"},
		{Port: 80, Address: "127.0.0.1", Pid: 8, Process: "twin"},
	}})
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if p := got[0]; p.Port != 80 || p.Address != netip.MustParseAddr("127.0.0.1") || p.PID != 7 || p.Process != "web" {
		t.Errorf("the first is %+v", p)
	}
	if p := got[1].Process; !utf8.ValidString(p) || len(p) > 3*maxProcessName {
		t.Errorf("a name of %d bytes is passed on", len(p))
	}
}
