package gateway

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/keys"
	"github.com/cloud-sandbox/cloud-sandbox/internal/secrets"
	"github.com/cloud-sandbox/cloud-sandbox/internal/tenants"
	"github.com/cloud-sandbox/cloud-sandbox/internal/users"
)

// These are never called.
type (
	noSandboxes struct{ sandbox.Sandboxes }
	noNodes     struct{ sandbox.Nodes }
	noTemplates struct{ sandbox.Templates }
	noStore     struct{ sandbox.Store }
)

// What is served is in the contract, with the same need of a token, and the
// other way around.
func TestRoutesAreTheContract(t *testing.T) {
	tokens, err := NewTokens(make([]byte, minSecret), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{
		Sandboxes: noSandboxes{}, Nodes: noNodes{}, Templates: noTemplates{}, SigningKeys: noStore{}, Quotas: noStore{}, Usage: noStore{}, Audit: noStore{}, Store: noStore{}, Secrets: secrets.New(noStore{}, nil), Tenants: tenants.New(tenants.Config{Store: noStore{}}), Users: users.New(users.Config{Store: noStore{}}), Keys: keys.New(noStore{}, slog.New(slog.DiscardHandler)),
		Tokens: tokens, Log: slog.New(slog.DiscardHandler),
		NodeNames: func(context.Context) ([]string, error) { return nil, nil },
		Records:   noStore{}, Forward: func(context.Context, net.Conn, uint16) (net.Conn, error) { return nil, nil }, AccessToken: func(string) string { return "" }, TrafficToken: func(string) string { return "" },
		NewGuest: func(string, execution.Dial) execution.Guest { return nil },
	})
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, rt := range s.routes() {
		served[rt.method+" "+rt.path] = true
		item := doc.Paths.Value(rt.path)
		if item == nil || item.GetOperation(rt.method) == nil {
			t.Errorf("%s %s is not in the contract", rt.method, rt.path)
			continue
		}
		op := item.GetOperation(rt.method)
		open := op.Security != nil && len(*op.Security) == 0
		if open != (rt.access == anyone) {
			t.Errorf("%s %s: the contract says that anyone may: %v", rt.method, rt.path, open)
		}
		if (op.RequestBody != nil) != (rt.maxBody != noBody) {
			t.Errorf("%s %s: a body is allowed in one of the two only", rt.method, rt.path)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if !served[method+" "+path] {
				t.Errorf("%s %s is in the contract only", method, path)
			}
		}
	}
}

// The lists in the contract are those of the code.
func TestContractNamesEverything(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	schemas := doc.Components.Schemas
	for name, pair := range map[string]struct{ contract, code []string }{
		"scopes":    {enum(schemas["Scope"]), words(sandbox.Scopes())},
		"codes":     {enum(schemas["Error"].Value.Properties["error"].Value.Properties["code"]), words(sandbox.Codes())},
		"statuses":  {enum(schemas["ExecuteResult"].Value.Properties["status"]), words(execution.Statuses())},
		"languages": {enum(schemas["ExecuteRequest"].Value.Properties["language"])[:len(execution.LanguageNames())], execution.LanguageNames()},
	} {
		slices.Sort(pair.contract)
		slices.Sort(pair.code)
		if !slices.Equal(pair.contract, pair.code) {
			t.Errorf("%s: the contract has %q, the code %q", name, pair.contract, pair.code)
		}
	}
}

func enum(ref *openapi3.SchemaRef) []string {
	var all []string
	for _, v := range ref.Value.Enum {
		all = append(all, v.(string))
	}
	return all
}

func words[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

func TestLocalHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8080": true, "LOCALHOST:1": true, "127.0.0.1:8080": true, "[::1]:8080": true, "::1": true,
		"evil.example": false, "evil.example:8080": false, "localhost.evil.example": false, "10.0.0.2:8080": false, "": false, "0.0.0.0:80": false,
	} {
		if localHost(host) != want {
			t.Errorf("%q: %v", host, !want)
		}
	}
	for origin, want := range map[string]bool{
		"": true, "http://localhost:3000": true, "https://evil.example": false, "null": false,
	} {
		r := &http.Request{Host: "localhost:8080", Header: http.Header{}}
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		if fromHere(r) != want {
			t.Errorf("origin %q: %v", origin, !want)
		}
	}
}
