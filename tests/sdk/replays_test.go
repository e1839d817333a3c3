// Package sdk keeps the replays that every SDK passes true to the API's
// contract.
package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/cloud-sandbox/cloud-sandbox/api"
)

type replay struct {
	Name           string
	BeyondContract bool `json:"beyond_contract"`
	Exchanges      []struct {
		Request  request
		Response response
	}
}

type request struct {
	Method  string
	Path    string
	Query   map[string]string
	Headers map[string]*string
	JSON    json.RawMessage
	Text    *string
}

type response struct {
	Status  int
	Headers map[string]string
	JSON    json.RawMessage
	Text    *string
	Pieces  []string
}

func TestReplaysFollowTheContract(t *testing.T) {
	openapi3filter.RegisterBodyDecoder("text/event-stream", openapi3filter.FileBodyDecoder)
	router := contract(t)
	for _, file := range replayFiles(t) {
		for _, r := range read(t, file) {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".json")+"/"+r.Name, func(t *testing.T) {
				for _, e := range r.Exchanges {
					input := checkRequest(t, router, e.Request)
					if !r.BeyondContract {
						checkResponse(t, input, e.Response)
					}
				}
			})
		}
	}
}

func contract(t *testing.T) routers.Router {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc.Servers = openapi3.Servers{{URL: api.ExampleOrigin}} // the contract's is the one that it comes from
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return router
}

func replayFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("replays: %v, %v", files, err)
	}
	return files
}

func read(t *testing.T, file string) []replay {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var replays []replay
	if err := json.Unmarshal(data, &replays); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return replays
}

func checkRequest(t *testing.T, router routers.Router, want request) *openapi3filter.RequestValidationInput {
	t.Helper()
	query := url.Values{}
	for name, value := range want.Query {
		query.Set(name, value)
	}
	var body io.Reader
	kind := "application/json"
	switch {
	case want.JSON != nil:
		body = bytes.NewReader(want.JSON)
	case want.Text != nil:
		body, kind = strings.NewReader(*want.Text), "application/octet-stream"
	}
	r, err := http.NewRequest(want.Method, api.ExampleOrigin+want.Path+"?"+query.Encode(), body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("Content-Type", kind)
	}
	for name, value := range want.Headers {
		if value != nil {
			r.Header.Set(name, *value)
		}
	}
	route, params, err := router.FindRoute(r)
	if err != nil {
		t.Fatalf("%s %s: %v", want.Method, want.Path, err)
	}
	input := &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			AuthenticationFunc: hasToken,
			// The validator takes an empty file for a missing one.
			ExcludeRequestBody: want.Text != nil && *want.Text == "",
		},
	}
	if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
		t.Errorf("request: %v", err)
	}
	return input
}

func hasToken(_ context.Context, in *openapi3filter.AuthenticationInput) error {
	if !strings.HasPrefix(in.RequestValidationInput.Request.Header.Get("Authorization"), "Bearer ") {
		return in.NewError(http.ErrNoCookie)
	}
	return nil
}

func checkResponse(t *testing.T, input *openapi3filter.RequestValidationInput, got response) {
	t.Helper()
	header := http.Header{}
	for name, value := range got.Headers {
		header.Set(name, value)
	}
	body := strings.Join(got.Pieces, "")
	switch {
	case got.JSON != nil:
		header.Set("Content-Type", "application/json")
		body = string(got.JSON)
	case got.Text != nil:
		body = *got.Text
	}
	err := openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.Status, Header: header,
		Body: io.NopCloser(strings.NewReader(body)),
	})
	if err != nil {
		t.Errorf("response: %v", err)
	}
}
