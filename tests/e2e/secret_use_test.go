package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

const secretValue = "value-that-no-sandbox-sees"

// newSecretSite returns a Site that reports whether a request has the secret value,
// without echoing it.
func newSecretSite(t *testing.T, addr netip.Addr) rig.Site {
	t.Helper()
	return rig.NewSite(t, addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		said := "without"
		switch r.Header.Get("Authorization") {
		case "Bearer " + secretValue:
			said = "with"
		case "Bearer second-" + secretValue:
			said = "with the second"
		}
		fmt.Fprintf(w, "%s %s %s", said, r.Host, r.Proto)
	}))
}

func secretServer(t *testing.T) (*rig.Server, rig.Site) {
	t.Helper()
	addr := rig.HostAddress(t)
	site := newSecretSite(t, addr)
	return rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, site.Port),
		"CLOUD_SANDBOX_SECRETS_ROOTS=" + site.Roots,
	}}), site
}

// Every sandbox trusts the operator's CA certificates, also one from the Pool and one
// that was paused and resumed.
func TestOperatorsAuthorities(t *testing.T) {
	t.Parallel()
	addr := rig.HostAddress(t)
	site := newSecretSite(t, addr)
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{
		"CLOUD_SANDBOX_NAMESERVERS=" + rig.NameServer(t, addr),
		fmt.Sprintf("CLOUD_SANDBOX_EGRESS_OPEN=%s:%d", addr, site.Port),
		"CLOUD_SANDBOX_CA_CERTS=" + site.Roots,
	}})
	c := s.Client(t, "authorities")
	id := c.Create(t, rig.Body{}).ID
	url := fmt.Sprintf("https://api.example:%d/", site.Port)
	for range 2 {
		for name, code := range map[string][2]string{
			"curl":     {"bash", "curl -sS " + url},
			"sudo":     {"bash", "sudo curl -sS " + url},
			"python":   {"python", fmt.Sprintf("import urllib.request; print(urllib.request.urlopen(%q, timeout=50).read().decode())", url)},
			"requests": {"bash", `curl -sS --cacert "$REQUESTS_CA_BUNDLE" ` + url}, // the variable that requests reads
			"node":     {"bash", fmt.Sprintf("node -e 'fetch(%q).then(r => r.text()).then(console.log)'", url)},
		} {
			if got := output(t, c, id, code[0], code[1]); !strings.HasPrefix(got, "without api.example") {
				t.Errorf("%s: %q", name, got)
			}
		}
		// The site's answer looks like a repository without branches.
		if got := output(t, c, id, "bash", "git ls-remote "+url+"x.git 2>&1; echo $?"); got != "0\n" {
			t.Errorf("git: %q", got)
		}
		c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", rig.Body{}, nil)
		c.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", rig.Body{}, nil)
	}
}

func TestSecretsAreSetIntoRequests(t *testing.T) {
	t.Parallel()
	s, site := secretServer(t)
	c := s.Client(t, "secrets")
	c.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "API_KEY", "value": secretValue}, nil)
	url := fmt.Sprintf("https://api.example:%d/", site.Port)
	use := []rig.Body{{"name": "API_KEY", "host": fmt.Sprintf("API.example:%d", site.Port), "header": "authorization", "format": "Bearer {value}"}}
	id := c.Create(t, rig.Body{"secrets": use}).ID

	// Programs find trusted certificates in different ways.
	want := fmt.Sprintf("with api.example:%d HTTP/", site.Port)
	for name, code := range map[string][2]string{
		"curl":     {"bash", "curl -sS " + url},
		"HTTP/1.1": {"bash", "curl -sS --http1.1 -H 'Authorization: Bearer mine' " + url},
		"python":   {"python", fmt.Sprintf("import urllib.request; print(urllib.request.urlopen(%q, timeout=50).read().decode())", url)},
		"node":     {"bash", fmt.Sprintf("node -e 'fetch(%q).then(r => r.text()).then(console.log)'", url)},
		"sudo":     {"bash", "sudo curl -sS " + url},
	} {
		if got := output(t, c, id, code[0], code[1]); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	other := fmt.Sprintf("curl -ksS https://other.example:%d/", site.Port)
	if got := output(t, c, id, "bash", other); !strings.HasPrefix(got, "without other.example") {
		t.Errorf("another host: %q", got)
	}

	// Changes apply to open connections.
	const keep = `
import http.client, ssl
c = http.client.HTTPSConnection('api.example', %d, timeout=50)
def ask():
    try:
        c.request('GET', '/')
        return c.getresponse().read().decode().split(' api')[0]
    except (OSError, http.client.HTTPException):
        c.close()
        c.request('GET', '/')
        return 'anew ' + c.getresponse().read().decode().split(' api')[0]
print(ask())`
	steps := []struct {
		do   func()
		want string
	}{
		{func() { c.Must(t, "PUT", "/api/v1/secrets/API_KEY", rig.Body{"value": "second-" + secretValue}, nil) }, "with the second"},
		{func() { c.Must(t, "PUT", "/api/v1/secrets/API_KEY", rig.Body{"value": secretValue}, nil) }, "with"},
		{func() {
			c.Must(t, "POST", "/api/v1/sessions/"+id+"/pause", nil, nil)
			c.Must(t, "POST", "/api/v1/sessions/"+id+"/resume", nil, nil)
		}, "anew with"},
	}
	if got := output(t, c, id, "python", fmt.Sprintf(keep, site.Port)); got != "with\n" {
		t.Errorf("python: %q", got)
	}
	for i, step := range steps {
		step.do()
		if got := output(t, c, id, "python", "print(ask())"); got != step.want+"\n" {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}

	checkForks(t, c, id, "curl -ksS "+url)

	// E2B's API sets secrets too, with its own syntax.
	rules := rig.Body{fmt.Sprintf("api.example:%d", site.Port): []rig.Body{{"transform": rig.Body{"headers": rig.Body{"Authorization": "Bearer ${e2b.secrets.API_KEY}"}}}}}
	var theirs struct {
		ID string `json:"sandboxID"`
	}
	askE2B(t, c, "POST", "/v2/sandboxes", rig.Body{"templateID": "base", "network": rig.Body{"rules": rules}}, &theirs)
	if got := output(t, c, theirs.ID, "bash", "curl -sS "+url); !strings.HasPrefix(got, "with ") {
		t.Errorf("by E2B's rules: %q", got)
	}
	// A wildcard applies to all names below it that have no rule of their own.
	transform := func(value string) []rig.Body {
		return []rig.Body{{"transform": rig.Body{"headers": rig.Body{"Authorization": value}}}}
	}
	all, own := fmt.Sprintf("*.example:%d", site.Port), fmt.Sprintf("api.example:%d", site.Port)
	for _, tt := range []struct {
		rules rig.Body
		want  string
	}{
		{rig.Body{all: transform("Bearer ${e2b.secrets.API_KEY}")}, "with "},
		{rig.Body{all: transform("Bearer ${e2b.secrets.API_KEY}"), own: transform("plain")}, "without "},
		{rig.Body{all: transform("plain"), own: transform("Bearer ${e2b.secrets.API_KEY}")}, "with "},
		{rig.Body{fmt.Sprintf("*.api.example:%d", site.Port): transform("Bearer ${e2b.secrets.API_KEY}")}, "without "},
	} {
		askE2B(t, c, "PUT", "/sandboxes/"+theirs.ID+"/network", rig.Body{"rules": tt.rules}, nil)
		if got := output(t, c, theirs.ID, "bash", "curl -ksS "+url); !strings.HasPrefix(got, tt.want) {
			t.Errorf("by the rules %v: %q, want %q", tt.rules, got, tt.want)
		}
	}
	askE2B(t, c, "PUT", "/sandboxes/"+theirs.ID+"/network", rig.Body{}, nil)
	if got := output(t, c, theirs.ID, "bash", "curl -ksS "+url); !strings.HasPrefix(got, "without") {
		t.Errorf("by E2B's rules that are cleared: %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/sessions/"+theirs.ID, nil, nil)

	c.Must(t, "PATCH", "/api/v1/sessions/"+id, rig.Body{"secrets": []rig.Body{}}, nil)
	if got := output(t, c, id, "bash", "curl -ksS "+url); !strings.HasPrefix(got, "without") {
		t.Errorf("after it was taken away: %q", got)
	}
	c.Must(t, "PATCH", "/api/v1/sessions/"+id, rig.Body{"secrets": use}, nil)
	if got := output(t, c, id, "bash", "curl -sS "+url); !strings.HasPrefix(got, "with ") {
		t.Errorf("after it was given again: %q", got)
	}
	c.Must(t, "DELETE", "/api/v1/secrets/API_KEY", nil, nil)
	if got := output(t, c, id, "bash", "curl -ksS "+url); !strings.HasPrefix(got, "without") {
		t.Errorf("after it was deleted: %q", got)
	}
}

// askE2B calls E2B's API, which is not in our contract. A nil body is none.
func askE2B(t *testing.T, c *rig.Client, method, path string, body, reply any) {
	t.Helper()
	var raw []byte
	var err error
	if body != nil {
		raw, err = json.Marshal(body)
	}
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, c.URL+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode > 299 || reply != nil && json.Unmarshal(raw, reply) != nil {
		t.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, raw, err)
	}
}

// checkForks checks that forks get the secrets only with keep_secrets.
func checkForks(t *testing.T, c *rig.Client, id, ask string) {
	t.Helper()
	for keep, want := range map[bool]string{false: "without", true: "with "} {
		var made struct{ Forks []rig.Sandbox }
		c.Must(t, "POST", "/api/v1/sessions/"+id+"/fork", rig.Body{"keep_secrets": keep}, &made)
		if got := output(t, c, made.Forks[0].ID, "bash", ask); !strings.HasPrefix(got, want) {
			t.Errorf("a fork, keep_secrets %v: %q", keep, got)
		}
		c.Must(t, "DELETE", "/api/v1/sessions/"+made.Forks[0].ID, nil, nil)
	}
}

// Requests still get their secrets after the link shard was killed and the server
// restarted.
func TestSecretsOutliveOurProcesses(t *testing.T) {
	t.Parallel()
	s, site := secretServer(t)
	c := s.Client(t, "secrets")
	c.Must(t, "POST", "/api/v1/secrets", rig.Body{"name": "API_KEY", "value": secretValue}, nil)
	id := c.Create(t, rig.Body{"secrets": []rig.Body{{"name": "API_KEY", "host": fmt.Sprintf("api.example:%d", site.Port), "header": "Authorization", "format": "Bearer {value}"}}}).ID
	ask := fmt.Sprintf("curl -ksS https://api.example:%d/", site.Port)
	eventually := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for {
			r, err := c.TryRun(id, "bash", ask, nil)
			if err == nil && strings.HasPrefix(r.Stdout, "with ") {
				return
			}
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: %v %v", what, r, err)
			}
		}
	}
	eventually("at first")
	rig.Kill(t, s.One(t, rig.LinkShard))
	eventually("after the link shard was killed")
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	eventually("after the server was started anew")
	rig.Kill(t, s.One(t, rig.LinkShard))
	eventually("after both were killed")
}
