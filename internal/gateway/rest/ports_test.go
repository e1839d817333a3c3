package rest_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

type portsOf struct {
	SandboxID string `json:"sandbox_id"`
	Ports     struct {
		Private    bool
		Exceptions []uint16
		Host       string
		TLS        []uint16
	}
}

func TestPortsOfSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v portsOf
	if f.Do("POST", "/api/v1/sessions", `{}`).Into(t, 201, &v); v.Ports.Private {
		t.Errorf("by default: %+v", v)
	}
	for body, want := range map[string]sandbox.Ingress{
		`{}`: "", `{"private":true}`: `{"private":true}`, `{"private":false}`: "",
		`{"private":true,"exceptions":[81,80]}`:         `{"private":true,"exceptions":[80,81]}`,
		`{"host":"localhost:${PORT}","tls":[8443,443]}`: `{"host":"localhost:${PORT}","tls_ports":[443,8443]}`,
	} {
		var made, changed portsOf
		f.Do("POST", "/api/v1/sessions", `{"ports":`+body+`}`).Into(t, 201, &made)
		f.Do("PATCH", "/api/v1/sessions/"+v.SandboxID, `{"ports":`+body+`}`).Into(t, 200, &changed)
		for _, got := range []portsOf{made, changed} {
			row := f.Sandboxes.Record(got.SandboxID).Ingress
			if back, err := (sandbox.IngressRules{Private: got.Ports.Private, Exceptions: got.Ports.Exceptions, Host: got.Ports.Host, TLSPorts: got.Ports.TLS}).Ingress(); err != nil || row != want || back != want {
				t.Errorf("%s: %s, shown as %+v", body, row, got.Ports)
			}
		}
	}
	for _, body := range []string{
		`true`, `[]`, `{"private":1}`, `{"host":"a b"}`, `{"host":"http://a"}`, `{"tls":[0]}`, `{"tls":[65536]}`, `{"tls":[49983]}`, `{"tls":"all"}`, `{"exceptions":[0]}`, `{"exceptions":[49983]}`, `{"secret":1}`,
	} {
		for method, path := range map[string]string{"POST": "/api/v1/sessions", "PATCH": "/api/v1/sessions/" + v.SandboxID} {
			req, err := http.NewRequest(method, f.URL+path, strings.NewReader(`{"ports":`+body+`}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+f.Token)
			if a := f.Raw(req); a.Status != 400 {
				t.Errorf("%s %s: %d %s", method, body, a.Status, a.Body)
			}
		}
	}
}

// One port becomes public or private, and the others stay.
func TestSetPort(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made portsOf
	f.Do("POST", "/api/v1/sessions", `{"ports":{"private":true}}`).Into(t, 201, &made)
	path := "/api/v1/sessions/" + made.SandboxID + "/ports/"
	type view struct {
		Port         uint16
		Private, TLS bool
		URL          string
	}
	see := func(method, port, body string) (v view) {
		t.Helper()
		f.Do(method, path+port, body).Into(t, 200, &v)
		return v
	}
	if v := see("GET", "8000", ""); v.Port != 8000 || !v.Private || v.TLS || !strings.Contains(v.URL, "8000-"+made.SandboxID+".") {
		t.Errorf("at first: %+v", v)
	}
	if v := see("PUT", "8000", `{"private":false,"tls":true}`); v.Private || !v.TLS {
		t.Errorf("changed: %+v", v)
	}
	if v := see("GET", "8001", ""); !v.Private || v.TLS {
		t.Errorf("another: %+v", v)
	}
	if row := f.Sandboxes.Record(made.SandboxID).Ingress; row != `{"private":true,"exceptions":[8000],"tls_ports":[8000]}` {
		t.Errorf("the record has %s", row)
	}
	if v := see("PUT", "8000", `{"tls":false}`); v.Private || v.TLS {
		t.Errorf("changed in one thing: %+v", v)
	}
	for port, body := range map[string]string{
		"8000": `{}`, "0": `{"private":true}`, "65536": `{"private":true}`, "x": `{"private":true}`, "49983": `{"private":false}`, "49999": `{"tls":true}`,
	} {
		if a := f.Do("PUT", path+port, body); a.Status != 400 {
			t.Errorf("%s %s: %d %s", port, body, a.Status, a.Body)
		}
	}
	for _, body := range []string{`{"private":1}`, `{"private":true,"more":1}`, `[]`} {
		if a := f.Do("PUT", path+"8000", body); a.Status != 400 {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	f.Do("DELETE", "/api/v1/sessions/"+made.SandboxID, "")
	for _, method := range []string{"GET", "PUT"} {
		if a := f.Do(method, path+"8000", map[string]string{"PUT": `{"private":true}`}[method]); a.Status != 409 {
			t.Errorf("%s after the end: %d %s", method, a.Status, a.Body)
		}
	}
}

func TestSignPort(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Domain = "box.example:8443" })
	var v gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{"name":"mine"}`).Into(t, 201, &v)
	tokens := signing.NewPorts(func(id string) string { return "traffic token of " + id }, nil)
	for body, life := range map[string]time.Duration{`{}`: time.Hour, `{"expires_in_seconds":0.5}`: time.Second, `{"expires_in_seconds":604800}`: 7 * 24 * time.Hour} {
		var link struct {
			URL, Token string
			ExpiresAt  time.Time `json:"expires_at"`
		}
		f.Do("POST", "/api/v1/sessions/mine/ports/8000/sign", body).Into(t, 200, &link)
		if until, ok := tokens.Check(link.Token, v.SandboxID, 8000); !ok && life > time.Second || life > time.Second && !until.Equal(link.ExpiresAt) ||
			link.ExpiresAt.Sub(time.Now().Add(life)).Abs() > 10*time.Second || link.URL != "http://8000-"+v.SandboxID+".box.example:8443/?cloud_sandbox_port="+link.Token {
			t.Errorf("%s: %+v", body, link)
		}
	}
	for path, body := range map[string]string{
		"0/sign": `{}`, "65536/sign": `{}`, "x/sign": `{}`, "80/sign": `{"expires_in_seconds":604801}`, "81/sign": `{"expires_in_seconds":0}`, "82/sign": `{"port":1}`,
	} {
		req, err := http.NewRequest("POST", f.URL+"/api/v1/sessions/mine/ports/"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.Token)
		if a := f.Raw(req); a.Status != 400 {
			t.Errorf("%s %s: %d %s", path, body, a.Status, a.Body)
		}
	}
	f.Do("DELETE", "/api/v1/sessions/mine", "").Into(t, 200, &v)
	if a := f.Do("POST", "/api/v1/sessions/"+v.SandboxID+"/ports/80/sign", `{}`); a.Status != 409 {
		t.Errorf("of one that ended: %d %s", a.Status, a.Body)
	}
}

// A link has the name that the client reaches the server by.
func TestPortNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var v gatewaytest.View
	f.Do("POST", "/api/v1/sessions", `{}`).Into(t, 201, &v)
	for host, want := range map[string]string{
		"box.test": "http://80-ID.box.test/", "box.test:8080": "http://80-ID.box.test:8080/", "127.0.0.1:8080": "http://80-ID.localhost:8080/",
		"[::1]:8080": "http://80-ID.localhost:8080/", "[::1]": "http://80-ID.localhost/", "192.0.2.1:8080": "",
	} {
		req, err := http.NewRequest("POST", f.URL+"/api/v1/sessions/"+v.SandboxID+"/ports/80/sign", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Authorization", "Bearer "+f.Token)
		var link struct{ URL, Token string }
		f.Raw(req).Into(t, 200, &link)
		url, _, _ := strings.Cut(link.URL, "?")
		if strings.ReplaceAll(url, v.SandboxID, "ID") != want || link.Token == "" {
			t.Errorf("%s: %+v", host, link)
		}
	}
}

// Ports are told with where they are reached; the agent's only when asked for.
func TestListPorts(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Domain = "box.example:8443" })
	f.Guest.PortsTruncated = true
	var v struct {
		SandboxID string `json:"sandbox_id"`
	}
	f.Do("POST", "/api/v1/sessions", `{"ports":{"private":true,"tls":[8443]}}`).Into(t, 201, &v)
	type port struct {
		Port                          uint16
		Address, Process, URL         string
		PID                           int64
		Loopback, Agent, Private, TLS bool
	}
	want := []port{
		{Port: 8000, Address: "127.0.0.1", Process: "web", PID: 7, Loopback: true, Private: true, URL: "http://8000-" + v.SandboxID + ".box.example:8443/"},
		{Port: 8443, Address: "::", Private: true, TLS: true, URL: "http://8443-" + v.SandboxID + ".box.example:8443/"},
		{Port: sandbox.EnvdPort, Address: "::", Process: "guest", PID: 1, Agent: true, Private: true},
	}
	for query, want := range map[string][]port{"": want[:2], "?all=false": want[:2], "?all=true": want} {
		var got struct {
			Ports     []port
			Truncated bool
		}
		f.Do("GET", "/api/v1/sessions/"+v.SandboxID+"/ports"+query, "").Into(t, 200, &got)
		if !slices.Equal(got.Ports, want) || !got.Truncated {
			t.Errorf("%q: %+v", query, got)
		}
	}
	if a := f.Do("GET", "/api/v1/sessions/none/ports", ""); a.Status != 404 {
		t.Errorf("of none: %d", a.Status)
	}
}
