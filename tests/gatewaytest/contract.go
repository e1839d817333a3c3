package gatewaytest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/cloud-sandbox/cloud-sandbox/api"
)

var contract = sync.OnceValue(func() routers.Router {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		panic(err)
	}
	doc.Servers = nil // any host
	for _, kind := range []string{"text/html", "text/event-stream", "application/x-ndjson"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
	r, err := legacy.NewRouter(doc)
	if err != nil {
		panic(err)
	}
	return r
})

// checkContract fails the test if an answer violates openapi.yaml, or if a request that
// is not in it succeeds.
func checkContract(t testing.TB, req *http.Request, a Answer) {
	t.Helper()
	asked := req.Clone(context.Background())
	asked.URL.Host, asked.URL.Scheme, asked.Host = "", "", ""
	route, params, err := contract().FindRoute(asked)
	if err != nil {
		if a.Status != 404 && a.Status != 405 && req.Method != http.MethodHead {
			t.Errorf("%s %s answers %d and is not in the contract: %v", req.Method, req.URL.Path, a.Status, err)
		}
		return
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route},
		Status:                 a.Status,
		Header:                 a.Header,
		Body:                   io.NopCloser(bytes.NewReader(a.Body)),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s %s: the answer breaks the contract: %v", req.Method, req.URL.Path, err)
	}
}
