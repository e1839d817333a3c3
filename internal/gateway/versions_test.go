package gateway_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/cli/client"
	"github.com/cloud-sandbox/cloud-sandbox/internal/config"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp/mcptest"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
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
		"with another product":   {"cloud-sandbox/1.3.0 grpc-go/1.70", "GET", "/api/v1/later", "", 404, "/docs lists the API" + told},
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

// door asks for something that the server does not know, as a client of a version,
// empty: it states none. It returns the error that the client shows.
type door struct {
	// foreign: a client without a version is told that of the server.
	foreign bool
	ask     func(t *testing.T, version string) string
}

// Every API surface tells a client of an older or newer version so, with one sentence.
func TestEveryDoorTellsVersions(t *testing.T) {
	f := newFixture(t, func(c *gateway.Config) { c.Version = "v1.2.0" })
	addr, stop := f.Serve()
	defer stop()
	doors := map[string]door{
		"REST":                   {false, f.restDoor("User-Agent", "cloud-sandbox-python/", "curl/8.0")},
		"REST, from a page":      {false, f.restDoor("Cloud-Sandbox-Client", "cloud-sandbox-typescript/", "")},
		"the command line":       {false, f.commandLineDoor()},
		"cloud-sandbox mcp":      {false, f.stdioDoor()},
		"MCP, by a parameter":    {true, f.mcpDoor("/mcp?later=1")},
		"Connect JSON, by field": {true, f.jsonDoor("Create", `{"resources":{"later":1}}`)},
	}
	for protocol := range gatewaytest.Protocols {
		call := callDoor{"http://" + addr.String(), f.Token, protocol}
		doors[protocol+", by procedure"] = door{true, call.procedure}
		if protocol != "connect json" { // its clients cannot write an unknown field
			doors[protocol+", by field"] = door{true, call.field}
			doors[protocol+", by field of a stream"] = door{true, call.streamField}
		}
	}
	for name, d := range doors {
		for version, want := range map[string]string{
			"1.3.0": "; the client has version 1.3.0 and the server version 1.2.0: update the older one",
			"1.1.9": "; the client has version 1.1.9 and the server version 1.2.0: update the older one",
			"1.2.0": "",
			"":      "; the server has version 1.2.0: use a client made for it",
		} {
			if version == "" && !d.foreign {
				want = ""
			}
			t.Run(name+" "+version, func(t *testing.T) {
				got := d.ask(t, version)
				if got == "" || !strings.HasSuffix(got, want) || want == "" && strings.Contains(got, "version") {
					t.Errorf("%q, want the end %q", got, want)
				}
			})
		}
	}
}

func (f *fixture) restDoor(header, product, other string) func(*testing.T, string) string {
	return func(t *testing.T, version string) string {
		said := other
		if version != "" {
			said = product + version
		}
		var failed v1.FailureBody
		f.With("POST", "/api/v1/sessions", `{"later":1}`, "Authorization", "Bearer "+f.Token, header, said).Into(t, 400, &failed)
		return failed.Error.Message
	}
}

// earlier is a server that does not have the list of Sandboxes.
func (f *fixture) earlier(t *testing.T) string {
	t.Helper()
	target, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		if r.Out.URL.Path == "/api/v1/sessions" {
			r.Out.URL.Path = "/api/v1/later"
		}
	}})
	t.Cleanup(s.Close)
	return s.URL
}

func (f *fixture) commandLineDoor() func(*testing.T, string) string {
	return func(t *testing.T, version string) string {
		c := client.New(config.Client{URL: f.earlier(t), Key: f.Token, Version: version})
		defer c.Close()
		_, err := c.Create(t.Context(), v1.CreateRequest{})
		if err == nil {
			t.Fatal("there is no error")
		}
		return err.Error()
	}
}

// stdioDoor is `cloud-sandbox mcp`, whose version is that of the tools.
func (f *fixture) stdioDoor() func(*testing.T, string) string {
	return func(t *testing.T, version string) string {
		c := client.New(config.Client{URL: f.earlier(t), Key: f.Token, Version: version})
		defer c.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		fromClient, toServer := io.Pipe()
		fromServer, toClient := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- mcp.ServeStdio(ctx, c, version, mcp.Full, mcp.Options{}, fromClient, toClient) }()
		session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{true: "unknown", false: version}[version == ""]; session.InitializeResult().ServerInfo.Version != want {
			t.Errorf("it begins with %+v", session.InitializeResult().ServerInfo)
		}
		text, failed := mcptest.Call(t, session, "run_command", map[string]any{"command": "true"})
		if !failed {
			t.Errorf("the tool succeeded: %s", text)
		}
		toServer.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		return text
	}
}

func (f *fixture) mcpDoor(path string) func(*testing.T, string) string {
	return func(t *testing.T, version string) string {
		headers := mcpHeaders(f.Token, "")
		if version != "" {
			headers = append(headers, "User-Agent", "cloud-sandbox/"+version)
		}
		var failed v1.FailureBody
		f.With("POST", path, "{}", headers...).Into(t, 400, &failed)
		return failed.Error.Message
	}
}

// jsonDoor makes a call of Connect as a text.
func (f *fixture) jsonDoor(procedure, body string) func(*testing.T, string) string {
	return func(t *testing.T, version string) string {
		headers := []string{"Authorization", "Bearer " + f.Token, "Content-Type", "application/json"}
		if version != "" {
			headers = append(headers, "Cloud-Sandbox-Client", "cloud-sandbox/"+version)
		}
		var failed struct{ Code, Message string }
		f.Plain("POST", "/cloudsandbox.sandbox.v1.SandboxService/"+procedure, body, headers...).Into(t, 400, &failed)
		if failed.Code != "invalid_argument" || !strings.Contains(failed.Message, `CreateRequest has a field that this server does not know: "resources.later"`) {
			t.Errorf("%+v", failed)
		}
		return failed.Message
	}
}

// callDoor makes calls by a protocol.
type callDoor struct{ url, token, protocol string }

// strange gives a message a field of a later version.
func strange[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	return m
}

// said returns the message of the error of a call.
func said(t *testing.T, err error, want connect.Code) string {
	t.Helper()
	var e *connect.Error
	if !errors.As(err, &e) || e.Code() != want {
		t.Fatalf("%v, want the code %v", err, want)
	}
	return e.Message()
}

func stating[T any](m *T, version string) *connect.Request[T] {
	r := connect.NewRequest(m)
	if version != "" {
		r.Header().Set("User-Agent", "cloud-sandbox/"+version+" connect-go/1")
	}
	return r
}

func (c callDoor) procedure(t *testing.T, version string) string {
	call := connect.NewClient[sandboxv1.GetRequest, sandboxv1.GetResponse](gatewaytest.HTTPClient(t, c.token, c.protocol),
		c.url+"/cloudsandbox.sandbox.v1.SandboxService/Later", gatewaytest.Protocols[c.protocol]...)
	_, err := call.CallUnary(t.Context(), stating(&sandboxv1.GetRequest{}, version))
	return said(t, err, connect.CodeUnimplemented)
}

func (c callDoor) client(t *testing.T) sandboxv1connect.SandboxServiceClient {
	return gatewaytest.SandboxClient(t, c.url, c.token, c.protocol)
}

func (c callDoor) field(t *testing.T, version string) string {
	m := strange(&sandboxv1.GetRequest{SandboxId: "x"})
	_, err := c.client(t).Get(t.Context(), stating(m, version))
	return said(t, err, connect.CodeInvalidArgument)
}

func (c callDoor) streamField(t *testing.T, version string) string {
	m := strange(&sandboxv1.ExecuteRequest{Code: "x"})
	r := connect.NewRequest(m)
	if version != "" { // connect-go sends its own User-Agent in a stream
		r.Header().Set("Cloud-Sandbox-Client", "cloud-sandbox/"+version)
	}
	stream, err := c.client(t).Execute(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return said(t, stream.Err(), connect.CodeInvalidArgument)
}

// A session of MCP begins with the server's version, and a tool of another version is
// refused with the tools that there are.
func TestMCPTellsItsVersion(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Version = "v1.2.0" })
	session := f.mcp(f.Token, "?tools=claude")
	if got := session.InitializeResult().ServerInfo; got.Version != "1.2.0" {
		t.Errorf("it begins with %+v", got)
	}
	_, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "later"})
	if err == nil || !strings.Contains(err.Error(), `unknown tool "later"; the server has version 1.2.0, whose tools are bash, task_output,`) {
		t.Errorf("an unknown tool: %v", err)
	}
}
