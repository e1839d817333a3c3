package rig

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/cloud-sandbox/cloud-sandbox/api"
)

// contract finds the operation of a request in api/openapi.yaml, for any host.
var contract = sync.OnceValues(func() (routers.Router, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil
	return legacy.NewRouter(doc)
})

// checked is a transport that fails its test when an answer violates the contract. Of
// answers that are not JSON only the status and headers are checked, since the body
// may be a stream.
type checked struct {
	*http.Transport
	t testing.TB
}

// RoundTrip implements http.RoundTripper.
func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.Transport.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols || r.Method == http.MethodHead {
		return resp, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	body, whole := []byte(nil), kind == "application/json"
	if whole {
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{err}))
		if err != nil {
			return resp, nil // the body's reader gets the error
		}
	}
	c.check(r, resp, body, !whole)
	return resp, nil
}

// failing is a reader that returns err, or io.EOF if err is nil.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

func (c checked) check(r *http.Request, resp *http.Response, body []byte, noBody bool) {
	c.t.Helper()
	router, err := contract()
	if err != nil {
		c.t.Errorf("the contract: %v", err)
		return
	}
	asked := r.Clone(r.Context())
	asked.URL.Host, asked.URL.Scheme, asked.Host = "", "", ""
	route, params, err := router.FindRoute(asked)
	if err != nil {
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			c.t.Errorf("%s %s answers %d and is not in the contract: %v", r.Method, r.URL.Path, resp.StatusCode, err)
		}
		return
	}
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route},
		Status:                 resp.StatusCode,
		Header:                 resp.Header,
		Body:                   io.NopCloser(bytes.NewReader(body)),
		Options:                &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: noBody},
	})
	if err != nil {
		c.t.Errorf("%s %s: the answer breaks the contract: %v", r.Method, r.URL.Path, err)
	}
}
