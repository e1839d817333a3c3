package gatewaytest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloud-sandbox/cloud-sandbox"
	rpcv1 "github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/rpc/v1"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/sandbox/v1/sandboxv1connect"
)

// Protocols has the client options of each protocol. gRPC needs HTTP/2; the others use
// HTTP/1.1 here.
var Protocols = map[string][]connect.ClientOption{
	"connect":      nil,
	"connect json": {connect.WithProtoJSON()},
	"grpc":         {connect.WithGRPC()},
	"grpc-web":     {connect.WithGRPCWeb()},
}

// caller adds a token to each request.
type caller struct {
	http.RoundTripper
	token string
}

func (c caller) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	return c.RoundTripper.RoundTrip(r)
}

// HTTPClient returns a client that speaks one of the Protocols to a running gateway.
func HTTPClient(t testing.TB, token, protocol string) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(protocol != "grpc")
	p.SetUnencryptedHTTP2(protocol == "grpc")
	transport := &http.Transport{Protocols: p}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: caller{transport, token}}
}

// SandboxClient returns a client of the SandboxService at url.
func SandboxClient(t testing.TB, url, token, protocol string) sandboxv1connect.SandboxServiceClient {
	return sandboxv1connect.NewSandboxServiceClient(HTTPClient(t, token, protocol), url, Protocols[protocol]...)
}

// CodeOf returns the code in the detail of an error, as REST would give it, and the
// detail.
func CodeOf(err error) (sandbox.Code, *rpcv1.Failure) {
	var e *connect.Error
	if !errors.As(err, &e) {
		return "", nil
	}
	for _, d := range e.Details() {
		if v, err := d.Value(); err == nil {
			if f, ok := v.(*rpcv1.Failure); ok {
				return sandbox.Code(f.Code), f
			}
		}
	}
	return "", nil
}

// Failure is the error of a failed call.
type Failure struct {
	Code    string // Connect's code
	Message string
}

// Say makes a Connect call with JSON messages, and returns the messages of the answer.
func (f *Fixture) Say(token, call string, messages ...string) (answers []string, failed Failure) {
	f.T.Helper()
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName("cloudsandbox." + strings.ReplaceAll(call, "/", ".")))
	if err != nil {
		f.T.Fatal(err)
	}
	method := d.(protoreflect.MethodDescriptor)
	streams := method.IsStreamingClient() || method.IsStreamingServer()
	var body bytes.Buffer
	kind := "application/json"
	for _, m := range messages {
		if streams {
			kind = "application/connect+json"
			body.WriteByte(0)
			_ = binary.Write(&body, binary.BigEndian, uint32(len(m)))
		}
		body.WriteString(m)
	}
	if streams {
		kind = "application/connect+json"
	}
	req, err := http.NewRequestWithContext(f.T.Context(), "POST", f.URL+"/cloudsandbox."+call, &body)
	if err != nil {
		f.T.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {kind}, "Authorization": {"Bearer " + token}, "Connect-Protocol-Version": {"1"}}
	resp, err := f.Client.Do(req)
	if err != nil {
		f.T.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		f.T.Fatal(err)
	}
	if resp.Header.Get("Content-Type") != "application/connect+json" {
		if resp.StatusCode != 200 {
			return nil, failureOf(f.T, raw)
		}
		return []string{string(raw)}, failed
	}
	for len(raw) >= 5 {
		last, n := raw[0] == 2, binary.BigEndian.Uint32(raw[1:])
		message := raw[5 : 5+n]
		raw = raw[5+n:]
		if !last {
			answers = append(answers, string(message))
			continue
		}
		var end struct{ Error json.RawMessage }
		if err := json.Unmarshal(message, &end); err != nil {
			f.T.Fatal(err)
		}
		if end.Error != nil {
			failed = failureOf(f.T, end.Error)
		}
	}
	return answers, failed
}

func failureOf(t testing.TB, raw []byte) (failed Failure) {
	t.Helper()
	if err := json.Unmarshal(raw, &failed); err != nil || failed.Code == "" {
		t.Fatalf("%v: %s", err, raw)
	}
	return failed
}

// Says is Say for a call that must succeed with one message. The message must contain
// every part of want.
func (f *Fixture) Says(call, message string, want ...string) string {
	f.T.Helper()
	answers, failed := f.Say(f.Token, call, message)
	if len(answers) != 1 || failed.Code != "" {
		f.T.Errorf("%s %s: %q, %+v", call, message, answers, failed)
		return ""
	}
	for _, part := range want {
		if !strings.Contains(strings.ReplaceAll(answers[0], " ", ""), part) {
			f.T.Errorf("%s %s: %s lacks %s", call, message, answers[0], part)
		}
	}
	return answers[0]
}
