package sandbox_test

import (
	"errors"
	"strings"
	"testing"

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
	for _, text := range []string{`{}`, `{"private":false}`, `{"private":true} `, `{"tls_ports":[2,1]}`, `{"what":1}`, `x`, `{"host":"a b"}`} {
		if r, err := sandbox.Ingress(text).Rules(); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%s is read as %+v, %v", text, r, err)
		}
	}
	r := sandbox.IngressRules{Host: "p${PORT}.test:${PORT}", TLSPorts: []uint16{443}}
	if r.HostAt(80) != "p80.test:80" || r.TLSAt(80) || !r.TLSAt(443) || (sandbox.IngressRules{}).HostAt(80) != "" {
		t.Errorf("at a port: %q", r.HostAt(80))
	}
}
