package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/mcp"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	mcpPath = "/mcp"
	// resourcePath is where OAuth clients look up the authorization server of a
	// resource (RFC 9728); the resource's path follows.
	resourcePath = "/.well-known/oauth-protected-resource"
)

// challenge is the WWW-Authenticate header for a request without a valid credential.
func challenge(r *http.Request) string {
	const realm = `Bearer realm="cloud-sandbox"`
	if r.URL.Path != mcpPath {
		return realm
	}
	return realm + `, resource_metadata="` + origin(r) + resourcePath + mcpPath + `"`
}

// describeResource answers GET /.well-known/oauth-protected-resource/mcp with the
// identity providers whose tokens /mcp takes.
func (s *Server) describeResource(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	reply := v1.ProtectedResource{
		Resource: origin(r) + mcpPath, Name: "Cloud Sandbox", BearerMethods: []string{"header"}, Documentation: origin(r) + "/docs",
	}
	for i, is := range s.Issuers.Logins() {
		reply.Servers = append(reply.Servers, is.URL)
		if i == 0 {
			reply.Scopes = is.Scopes
		}
	}
	return rest.Reply(w, http.StatusOK, reply)
}

// inProcess sends requests of MCP's tools to the Server without a connection. They
// carry the credential and the address of the MCP client, so they are checked, limited,
// recorded and answered as that client's own.
type inProcess struct{ server *Server }

// RoundTrip returns when the answer has begun. The answer's body is streamed.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	client := mcp.Caller(r.Context())
	if client == nil {
		return nil, errors.New("a request of MCP without its client") // a bug
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	asked := r.Clone(ctx)
	asked.Host, asked.RemoteAddr, asked.TLS = client.Host, client.RemoteAddr, client.TLS
	asked.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	asked.RequestURI = asked.URL.RequestURI()
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	asked.Header.Del("Expect")
	for _, name := range mcp.CallerHeaders() {
		asked.Header.Del(name)
		for _, value := range client.Header.Values(name) {
			asked.Header.Add(name, value)
		}
	}
	asked.Header.Set(telemetry.RequestHeader, telemetry.RequestOf(client.Context()))
	from, to := io.Pipe()
	reply := &reply{header: http.Header{}, body: to, begun: make(chan struct{})}
	go func() {
		defer asked.Body.Close()
		defer func() {
			if recover() != nil { // which signals an incomplete answer
				reply.begin(0)
				to.CloseWithError(io.ErrUnexpectedEOF)
				return
			}
			reply.begin(http.StatusOK)
			to.Close()
		}()
		p.server.ServeHTTP(reply, asked)
	}()
	<-reply.begun
	if reply.status == 0 {
		cancel(nil)
		return nil, io.ErrUnexpectedEOF
	}
	body := &replyBody{from, from, cancel}
	length := int64(-1)
	if n, err := strconv.ParseInt(reply.sent.Get("Content-Length"), 10, 64); err == nil {
		// The server's work after the answer does not delay the reader.
		body.Reader, length = io.LimitReader(from, n), n
	}
	return &http.Response{
		Status: strconv.Itoa(reply.status) + " " + http.StatusText(reply.status), StatusCode: reply.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: reply.sent, Body: body, ContentLength: length, Request: r,
	}, nil
}

// reply is the answer to a request in progress.
type reply struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int           // 0: it was cut short before it began
	sent   http.Header
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) WriteHeader(code int) {
	if code >= http.StatusOK {
		r.begin(code)
	}
}

// begin begins the answer, unless it has begun.
func (r *reply) begin(code int) {
	r.once.Do(func() {
		r.status, r.sent = code, r.header.Clone()
		close(r.begun)
	})
}

func (r *reply) Write(p []byte) (int, error) {
	r.begin(http.StatusOK)
	return r.body.Write(p)
}

// replyBody is the body of an answer. To the server, closing it means that the client
// is gone.
type replyBody struct {
	io.Reader
	pipe   *io.PipeReader
	cancel context.CancelCauseFunc
}

func (b *replyBody) Close() error {
	b.cancel(nil)
	return b.pipe.Close()
}
