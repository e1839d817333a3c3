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
	// resourcePath is where clients of OAuth look for who gives them a token (RFC 9728),
	// followed by the path of what they want to reach.
	resourcePath = "/.well-known/oauth-protected-resource"
)

// challenge is what a request without a valid credential is told to send.
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

// inProcess carries requests of MCP's tools to the Server without a connection. They
// have the credential and the address of the client whose call they are made for, so
// they are checked, limited, recorded and answered as that client's own.
type inProcess struct{ server *Server }

// RoundTrip returns when the answer has begun. Its body is passed on as it comes.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	client := mcp.Caller(r.Context())
	if client == nil {
		return nil, errors.New("a request of MCP without its client") // a mistake of the program
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
			if recover() != nil { // which says that what was sent is not all
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
		// What the server does after the answer does not delay who reads it.
		body.Reader, length = io.LimitReader(from, n), n
	}
	return &http.Response{
		Status: strconv.Itoa(reply.status) + " " + http.StatusText(reply.status), StatusCode: reply.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: reply.sent, Body: body, ContentLength: length, Request: r,
	}, nil
}

// reply is an answer on its way to who asked.
type reply struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{} // closed when status and sent are there
	status int           // 0: it broke off before it began
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

// replyBody is the body of an answer. Who closes it has gone away, for the server.
type replyBody struct {
	io.Reader
	pipe   *io.PipeReader
	cancel context.CancelCauseFunc
}

func (b *replyBody) Close() error {
	b.cancel(nil)
	return b.pipe.Close()
}
