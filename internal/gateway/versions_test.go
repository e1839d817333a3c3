package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
)

// A client of another version is told both versions where the server does not know what
// it asks for, and only there.
func TestVersions(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Version = "v1.2.0" })
	const told = "; the client has version 1.3.0 and the server version 1.2.0: update the older one"
	for name, tt := range map[string]struct {
		agent, method, path, body string
		status                    int
		want                      string // the end of the message
	}{
		"a field":                {"cloud-sandbox/v1.3.0", "POST", "/api/v1/sessions", `{"later":1}`, 400, `unknown field "later"` + told},
		"a field below":          {"cloud-sandbox-python/1.3.0", "POST", "/api/v1/sessions", `{"ports":{"later":1}}`, 400, `unknown field "later"` + told},
		"a path":                 {"cloud-sandbox-typescript/1.3.0", "GET", "/api/v1/later", "", 404, "/docs lists the API" + told},
		"a method":               {"cloud-sandbox/1.3.0", "PUT", "/api/v1/sessions", "", 405, `"PUT"` + told},
		"a parameter":            {"cloud-sandbox/1.3.0", "GET", "/api/v1/sessions?later=1", "", 400, `unknown query parameter "later"` + told},
		"the same version":       {"cloud-sandbox/1.2.0", "POST", "/api/v1/sessions", `{"later":1}`, 400, `unknown field "later"`},
		"another client":         {"curl/8.0", "POST", "/api/v1/sessions", `{"later":1}`, 400, `unknown field "later"`},
		"no version of a client": {"cloud-sandbox/<b>", "POST", "/api/v1/sessions", `{"later":1}`, 400, `unknown field "later"`},
		"another error":          {"cloud-sandbox/1.3.0", "POST", "/api/v1/sessions", `{"timeout_seconds":-1}`, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(tt.method, f.URL+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+f.Token)
			req.Header.Set("User-Agent", tt.agent)
			a := f.Send(req)
			var failed v1.FailureBody
			a.Into(t, tt.status, &failed)
			message := failed.Error.Message
			if !strings.HasSuffix(message, tt.want) || !strings.Contains(tt.want, told) && strings.Contains(message, "version") {
				t.Errorf("%q, want the end %q", message, tt.want)
			}
		})
	}
}
