package gateway

import (
	"net/http"
	"slices"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
)

// The lists in the contract are those of the code.
func TestContractNamesEverything(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
