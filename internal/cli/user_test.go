package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestUserCommands(t *testing.T) {
	const jane = `{"user_id":"corp:1/2","name":"Jane\tDoe","role":"admin","role_given":true,"state":"active","source":"oidc","issuer":"corp","created_at":"2026-01-02T03:04:05Z","last_seen_at":"2026-01-02T03:04:05Z"}`
	const bob = `{"user_id":"bob","role_given":false,"state":"suspended","source":"invited","created_at":"2026-01-02T03:04:05Z"}`
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		w.Header().Set("Content-Type", "application/json")
		switch where := r.Method + " " + r.URL.EscapedPath(); {
		case r.Method == "GET" && r.URL.Query().Get("cursor") == "":
			_, _ = io.WriteString(w, `{"users":[`+jane+`],"next_cursor":"more"}`)
		case r.Method == "GET":
			_, _ = io.WriteString(w, `{"users":[`+bob+`]}`)
		case r.Method == "DELETE" && strings.HasSuffix(where, "/bob"):
			w.WriteHeader(http.StatusNoContent)
		case r.Method == "DELETE":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":{"code":"conflict","message":"the last owner"}}`)
		default:
			_, _ = io.WriteString(w, jane)
		}
	}))
	defer server.Close()
	for _, tt := range []struct{ args, asked, out, bad string }{
		{"user ls", "GET /api/v1/users?cursor=more", "corp:1/2   Jane Doe   admin   yes     active", ""},
		{"user ls", "GET /api/v1/users?cursor=more", "bob        -          -       no      suspended   invited   never", ""},
		{"user ls --state suspended --tenant a/b --json", "GET /api/v1/tenants/a%2Fb/users?cursor=more&state=suspended", `"user_id": "bob"`, ""},
		{"user ls x", "", "", "takes no arguments"},
		{"user add corp:1/2 --role admin --email a@b", `POST /api/v1/users {"user_id":"corp:1/2","email":"a@b","role":"admin"}`, "corp:1/2\n", ""},
		{"user add bob --tenant acme --json", `POST /api/v1/tenants/acme/users {"user_id":"bob"}`, `"issuer": "corp"`, ""},
		{"user add", "", "", "takes one USER"},
		{"user set corp:1/2 --state suspended", `PATCH /api/v1/users/corp:1%2F2 {"state":"suspended"}`, "Jane Doe", ""},
		{"user set corp:1/2 --name= --role credential --json", `PATCH /api/v1/users/corp:1%2F2 {"name":"","role":"credential"}`, `"role_given": true`, ""},
		{"user set bob", "", "", "say what to change"},
		{"user rm bob corp:9", "DELETE /api/v1/users/corp:9", "bob\n", "corp:9: the last owner"},
		{"user rm", "", "", "takes one USER or more"},
		{"__complete user rm bob co", "GET /api/v1/users?cursor=more", "corp:1/2", ""},
	} {
		asked = nil
		out, _, err := entered(t, server.URL, tt.args)
		if tt.bad == "" && err != nil || tt.bad != "" && (err == nil || !strings.Contains(sentence(err), tt.bad)) {
			t.Errorf("%s: the error is %v, want %q", tt.args, err, tt.bad)
		}
		if last := strings.Join(asked[max(0, len(asked)-1):], ""); last != tt.asked {
			t.Errorf("%s: asked %q, want %q", tt.args, last, tt.asked)
		}
		if !strings.Contains(out, tt.out) {
			t.Errorf("%s: printed %q, want %q in it", tt.args, out, tt.out)
		}
	}
}
