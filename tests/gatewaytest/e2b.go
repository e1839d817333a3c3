package gatewaytest

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// E2B sends a request as E2B's clients do. Its paths are not in the contract.
func (f *Fixture) E2B(key, method, path, body string) Answer {
	f.T.Helper()
	req, err := http.NewRequest(method, f.URL+path, strings.NewReader(body))
	if err != nil {
		f.T.Fatal(err)
	}
	if body == "" {
		req.Body, req.ContentLength = nil, 0
	}
	req.Header.Set("X-API-KEY", key)
	return f.Raw(req)
}

// Raw is Send without the check against the contract.
func (f *Fixture) Raw(req *http.Request) Answer {
	f.T.Helper()
	resp, err := f.Client.Do(req)
	if err != nil {
		f.T.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.T.Fatal(err)
	}
	return Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}
}

// E2BSandbox is a Sandbox in an answer of E2B's API.
type E2BSandbox struct {
	TemplateID, Alias, SandboxID, ClientID, EnvdVersion, EnvdAccessToken string

	State               string
	StartedAt, EndAt    time.Time
	Metadata            map[string]string
	AllowInternetAccess *bool
	Domain              *string
}

// E2BSandbox creates a Sandbox by E2B's API.
func (f *Fixture) E2BSandbox(key, body string) E2BSandbox {
	f.T.Helper()
	var sb E2BSandbox
	f.E2B(key, "POST", "/v2/sandboxes", body).Into(f.T, 201, &sb)
	return sb
}
