package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cloud-sandbox/cloud-sandbox/api"
	"github.com/cloud-sandbox/cloud-sandbox/tests/rig"
)

// contract loads api/openapi.yaml. All its routes are attacked, so that a new route is
// covered automatically.
func contract(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// A call is one operation of the contract, with parameters and a body from its examples.
type call struct {
	method, path string
	query        url.Values
	body         map[string]any // nil: none, or no JSON object
	kind         string         // of the body; empty: none
	open         bool           // needs no credential
	about        bool           // names one Sandbox
	filters      bool           // filters a list by the Sandbox; the list is empty for an absent one
	socket       bool           // answers with a WebSocket
}

func (c call) String() string { return c.method + " " + c.path }

func calls(t *testing.T) []call {
	t.Helper()
	doc := contract(t)
	var all []call
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			all = append(all, callOf(doc, path, method, item, op))
		}
	}
	slices.SortFunc(all, func(a, b call) int { return strings.Compare(a.String(), b.String()) })
	if len(all) < 50 {
		t.Fatalf("the contract has %d calls", len(all))
	}
	return all
}

func callOf(doc *openapi3.T, path, method string, item *openapi3.PathItem, op *openapi3.Operation) call {
	c := call{method: method, path: path, query: url.Values{}}
	security := doc.Security
	if op.Security != nil {
		security = *op.Security
	}
	c.open = len(security) == 0
	c.about = strings.HasPrefix(path, "/api/v1/sessions/{id}")
	c.filters = path == "/api/v1/usage"
	c.socket = op.Responses.Value("101") != nil && op.Responses.Value("200") == nil
	for _, ref := range slices.Concat(item.Parameters, op.Parameters) {
		p := ref.Value
		if p.In != "query" {
			continue
		}
		if p.Name == "sandbox_id" {
			c.about = true
			c.query.Set(p.Name, "")
		} else if p.Required {
			c.query.Set(p.Name, exampleOf(p))
		}
	}
	if op.RequestBody == nil {
		return c
	}
	kinds := slices.Sorted(maps.Keys(op.RequestBody.Value.Content))
	c.kind = kinds[0]
	if media := op.RequestBody.Value.Content["application/json"]; media != nil {
		c.kind = "application/json"
		c.body = bodyOf(media)
		if _, ok := media.Schema.Value.Properties["sandbox_id"]; ok {
			c.about = true
			c.body["sandbox_id"] = ""
			delete(c.body, "session_id")
		}
	}
	return c
}

// exampleOf returns a valid value of a parameter.
func exampleOf(p *openapi3.Parameter) string {
	switch s := p.Schema.Value; {
	case p.Example != nil:
		return fmt.Sprint(p.Example)
	case s.Example != nil:
		return fmt.Sprint(s.Example)
	case len(s.Enum) > 0:
		return fmt.Sprint(s.Enum[0])
	case s.Type.Is("integer"):
		return "1"
	}
	return "a"
}

func bodyOf(media *openapi3.MediaType) map[string]any {
	example := media.Example
	for _, e := range media.Examples {
		if example == nil {
			example = e.Value.Value
		}
	}
	body, _ := example.(map[string]any)
	out := map[string]any{}
	maps.Copy(out, body)
	return out
}

// send makes the call about a Sandbox, with a credential or none.
func (c call) send(t *testing.T, s *rig.Server, id, token string) (status int, answer string) {
	t.Helper()
	path := c.path
	if strings.HasPrefix(path, "/api/v1/sessions/") {
		path = strings.ReplaceAll(path, "{id}", id)
	}
	if strings.HasPrefix(path, "/api/v1/users/") {
		path = strings.ReplaceAll(path, "{user}", id)
	}
	for _, name := range []string{"{id}", "{template}", "{port}", "{user}"} {
		path = strings.ReplaceAll(path, name, "1")
	}
	query := maps.Clone(c.query)
	if query.Has("sandbox_id") {
		query.Set("sandbox_id", id)
	}
	body, kind := c.content(t, id)
	r, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	if c.socket {
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
		} {
			r.Header.Set(name, value)
		}
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatalf("%s: %v", c, err)
	}
	return resp.StatusCode, strings.ReplaceAll(string(raw), id, "ID")
}

// content returns a valid body of the call, with the Sandbox's ID if it has that field.
func (c call) content(t *testing.T, id string) (body []byte, kind string) {
	t.Helper()
	switch {
	case c.kind == "":
		return nil, ""
	case c.kind == "multipart/form-data":
		var out bytes.Buffer
		form := multipart.NewWriter(&out)
		part, err := form.CreateFormFile("file", "a")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, "stolen")
		_ = form.Close()
		return out.Bytes(), form.FormDataContentType()
	case c.body == nil:
		return []byte("{}"), c.kind
	}
	filled := maps.Clone(c.body)
	if _, ok := filled["sandbox_id"]; ok {
		filled["sandbox_id"] = id
	}
	body, err := json.Marshal(filled)
	if err != nil {
		t.Fatal(err)
	}
	return body, c.kind
}

// Without a valid credential every route answers 401, except routes that need none.
func TestEveryRouteWantsCredentials(t *testing.T) {
	s := rig.Own(t, rig.Options{Pool: 1, Env: []string{"RATE_LIMITS=token=off"}}) // otherwise the limit would soon answer 429
	const nobody = "i00000000000000000000"
	forged := "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.eyJ0ZW5hbnQiOiJkZXY6dmljdGltIiwidXNlciI6InZpY3RpbSIsInJvbGUiOiJhZG1pbiJ9."
	for _, c := range calls(t) {
		if c.open {
			continue
		}
		for _, token := range []string{"", forged, "e2b_" + strings.Repeat("0", 40), "x"} {
			if status, answer := c.send(t, s, nobody, token); status != http.StatusUnauthorized {
				t.Errorf("%s with the token %q answers %d %.200s", c, token, status, answer)
			}
		}
	}
}

// On every route, the answer about another tenant's sandbox, by ID or name, equals the
// answer about one that does not exist. Nothing changes.
func TestOtherTenantsOnEveryRoute(t *testing.T) {
	s := shared.Server(t)
	owner, stranger := s.Client(t, "victim"), s.Client(t, "stranger")
	id := owner.Create(t, rig.Body{"name": "treasure"}).ID
	owner.Sh(t, id, "echo secret > /workspace/gold")
	about := 0
	for _, c := range calls(t) {
		if c.open || !c.about {
			continue
		}
		about++
		for target, none := range map[string]string{id: "i00000000000000000000", "treasure": "nothing"} {
			status, absent := c.send(t, s, none, stranger.Token)
			if status != http.StatusNotFound && !c.filters {
				t.Errorf("%s: one that does not exist is %d %.200s: give the call an example that reaches it", c, status, absent)
			}
			got, answer := c.send(t, s, target, stranger.Token)
			if got != status || answer != absent {
				t.Errorf("%s: another tenant's is %d %.200s, one that does not exist %d %.200s", c, got, answer, status, absent)
			}
		}
	}
	if about < 30 {
		t.Errorf("only %d calls are about a sandbox", about)
	}
	if got := owner.Sh(t, id, "cat /workspace/gold; ls /workspace"); got != "secret\ngold\n" {
		t.Errorf("afterwards the owner finds %q", got)
	}
}
