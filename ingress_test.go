package sandbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func TestIngress(t *testing.T) {
	for _, tt := range []struct {
		rules sandbox.IngressRules
		want  string // empty: none
		err   bool
	}{
		{rules: sandbox.IngressRules{}},
		{rules: sandbox.IngressRules{Private: true}, want: `{"private":true}`},
		{rules: sandbox.IngressRules{Host: "localhost:${PORT}"}, want: `{"host":"localhost:${PORT}"}`},
		{rules: sandbox.IngressRules{Host: "p${PORT}.example.com"}, want: `{"host":"p${PORT}.example.com"}`},
		{rules: sandbox.IngressRules{Host: "127.0.0.1"}, want: `{"host":"127.0.0.1"}`},
		{rules: sandbox.IngressRules{Host: "[::1]:8080"}, want: `{"host":"[::1]:8080"}`},
		{rules: sandbox.IngressRules{Host: "[::1]"}, want: `{"host":"[::1]"}`},
		{rules: sandbox.IngressRules{TLSPorts: []uint16{8443, 443, 8443}}, want: `{"tls_ports":[443,8443]}`},
		{rules: sandbox.IngressRules{Private: true, Exceptions: []uint16{9, 8, 9}}, want: `{"private":true,"exceptions":[8,9]}`},
		{rules: sandbox.IngressRules{Exceptions: []uint16{8}}, want: `{"exceptions":[8]}`},
		{rules: sandbox.IngressRules{OpenServices: true}, want: `{"open_services":true}`},
		{rules: sandbox.IngressRules{OpenServices: true, Private: true}, err: true},
		{rules: sandbox.IngressRules{Exceptions: []uint16{0}}, err: true},
		{rules: sandbox.IngressRules{Exceptions: []uint16{sandbox.InterpreterPort}}, err: true},
		{rules: sandbox.IngressRules{TLSPorts: []uint16{0}}, err: true},
		{rules: sandbox.IngressRules{TLSPorts: []uint16{sandbox.EnvdPort}}, err: true},
		{rules: sandbox.IngressRules{TLSPorts: make([]uint16, 1)}, err: true},
		{rules: sandbox.IngressRules{Host: "http://localhost"}, err: true},
		{rules: sandbox.IngressRules{Host: "a b"}, err: true},
		{rules: sandbox.IngressRules{Host: "a\r\nX-Evil: 1"}, err: true},
		{rules: sandbox.IngressRules{Host: "user@host"}, err: true},
		{rules: sandbox.IngressRules{Host: "host/path"}, err: true},
		{rules: sandbox.IngressRules{Host: "münchen.example"}, err: true},
		{rules: sandbox.IngressRules{Host: "localhost:"}, err: true},
		{rules: sandbox.IngressRules{Host: "localhost:0"}, err: true},
		{rules: sandbox.IngressRules{Host: "localhost:65536"}, err: true},
		{rules: sandbox.IngressRules{Host: "localhost:${port}"}, err: true},
		{rules: sandbox.IngressRules{Host: ":80"}, err: true},
		{rules: sandbox.IngressRules{Host: "::1"}, err: true},
		{rules: sandbox.IngressRules{Host: "[localhost]"}, err: true},
		{rules: sandbox.IngressRules{Host: "[::1"}, err: true},
		{rules: sandbox.IngressRules{Host: strings.Repeat("${PORT}", 40)}, err: true},
		{rules: sandbox.IngressRules{Host: strings.Repeat("a.", 130) + "a"}, err: true},
	} {
		got, err := tt.rules.Ingress()
		if string(got) != tt.want || (err != nil) != tt.err || err != nil && !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%+v: %s, %v", tt.rules, got, err)
			continue
		}
		back, err := got.Rules()
		if again, _ := back.Ingress(); err != nil || again != got {
			t.Errorf("%s is read as %+v, %v", got, back, err)
		}
	}
	for _, text := range []string{`{}`, `{"private":false}`, `{"private":true} `, `{"tls_ports":[2,1]}`, `{"exceptions":[2,1]}`, `{"what":1}`, `x`, `{"host":"a b"}`} {
		if r, err := sandbox.Ingress(text).Rules(); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s is read as %+v, %v", text, r, err)
		}
	}
	r := sandbox.IngressRules{Host: "p${PORT}.test:${PORT}", TLSPorts: []uint16{443}}
	if r.HostAt(80) != "p80.test:80" || r.TLSAt(80) || !r.TLSAt(443) || (sandbox.IngressRules{}).HostAt(80) != "" {
		t.Errorf("at a port: %q", r.HostAt(80))
	}
}

// Whether the Guest's services are open is said once.
func TestOpenServicesStay(t *testing.T) {
	for _, tt := range []struct{ before, change, want sandbox.Ingress }{
		{`{"open_services":true}`, ``, `{"open_services":true}`},
		{`{"open_services":true}`, `{"host":"a"}`, `{"host":"a","open_services":true}`},
		{`{"host":"a"}`, `{"open_services":true}`, ``},
		{``, `{"private":true}`, `{"private":true}`},
		{`{"open_services":true}`, `{"private":true}`, `refused`},
	} {
		s := sandbox.Sandbox{Ingress: tt.before, Network: sandbox.NetworkPublic, Shape: sandbox.DefaultShape(), Limits: sandbox.DefaultShape().Limits()}
		got, err := sandbox.Change{Ingress: &tt.change}.Apply(s, time.Now())
		if refused := tt.want == "refused"; refused != errors.Is(err, sandbox.Invalid) || !refused && got.Ingress != tt.want {
			t.Errorf("%s and %s: %s, %v", tt.before, tt.change, got.Ingress, err)
		}
	}
}

func TestPortChange(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		before sandbox.Ingress
		change sandbox.PortChange
		want   sandbox.Ingress
	}{
		{"", sandbox.PortChange{Port: 80, Private: &yes}, `{"exceptions":[80]}`},
		{"", sandbox.PortChange{Port: 80, Private: &no}, ""},
		{`{"private":true}`, sandbox.PortChange{Port: 80, Private: &no}, `{"private":true,"exceptions":[80]}`},
		{`{"private":true,"exceptions":[80,81]}`, sandbox.PortChange{Port: 80, Private: &yes}, `{"private":true,"exceptions":[81]}`},
		{`{"exceptions":[80]}`, sandbox.PortChange{Port: 80, Private: &no, TLS: &yes}, `{"tls_ports":[80]}`},
		{`{"tls_ports":[80]}`, sandbox.PortChange{Port: 80, TLS: &no}, ""},
		{`{"host":"a"}`, sandbox.PortChange{Port: 80}, `{"host":"a"}`},
	} {
		s := sandbox.Sandbox{Ingress: tt.before, Network: sandbox.NetworkPublic, Shape: sandbox.DefaultShape(), Limits: sandbox.DefaultShape().Limits()}
		got, err := sandbox.Change{Port: &tt.change}.Apply(s, time.Now())
		if err != nil || got.Ingress != tt.want || got.Revision != s.Revision {
			t.Errorf("%s and %+v: %s, %v", tt.before, tt.change, got.Ingress, err)
		}
	}
	for _, port := range []uint16{0, sandbox.GuestPort, sandbox.InterpreterPort} {
		if _, err := (sandbox.Change{Port: &sandbox.PortChange{Port: port, Private: &yes}}).Apply(sandbox.Sandbox{}, time.Now()); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("port %d: %v", port, err)
		}
	}
	r := sandbox.IngressRules{Private: true, Exceptions: []uint16{80}}
	if r.PrivateAt(80) || !r.PrivateAt(81) || (sandbox.IngressRules{}).PrivateAt(80) {
		t.Error("a port is private that is not, or the other way about")
	}
}
