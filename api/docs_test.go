package api_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloud-sandbox/cloud-sandbox/api"
)

func load(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// The contract is valid, and so are its examples.
func TestContractIsValid(t *testing.T) {
	if err := load(t).Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// The page has every operation and schema of the contract, and nothing that a browser
// would run or fetch.
func TestDocsHTML(t *testing.T) {
	page, err := api.DocsHTML()
	if err != nil {
		t.Fatal(err)
	}
	doc := load(t)
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if !bytes.Contains(page, []byte(`id="`+op.OperationID+`"`)) {
				t.Errorf("the page has no %s %s", method, path)
			}
			if scope, ok := op.Extensions["x-scope"].(string); ok && !bytes.Contains(page, []byte("scope <code>"+scope+"</code>")) {
				t.Errorf("the page has no scope %s", scope)
			}
		}
	}
	for name := range doc.Components.Schemas {
		if !bytes.Contains(page, []byte(`id="schema-`+name+`"`)) {
			t.Errorf("the page has no schema %s", name)
		}
	}
	for _, bad := range []string{"<script", "javascript:", "src=", "@import", "url("} {
		if bytes.Contains(bytes.ToLower(page), []byte(bad)) {
			t.Errorf("the page has %q", bad)
		}
	}
}
