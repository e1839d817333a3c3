package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cloud-sandbox/cloud-sandbox/internal/execution"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestPanicIsLoggedAndHidden(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	f.Guest.Scripts["panic"] = func(context.Context, execution.RunRequest, func(execution.RunEvent) error) (execution.RunEnd, error) {
		panic("secret boom")
	}
	a := f.Do("POST", "/api/v1/execute", `{"sandbox_id":"`+id+`","code":"panic","language":"bash"}`)
	if a.Status != 500 || a.Code(t) != "internal" || bytes.Contains(a.Body, []byte("boom")) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if log := f.Logs.String(); !strings.Contains(log, "secret boom") || !strings.Contains(log, `"level":"ERROR"`) {
		t.Error("the log does not tell")
	}
}

// A client that is refused while it still sends gets the reason: from a Guest that answers
// an upload early and keeps reading, for a form whose first part is refused, and without
// the right to send, also when the client asked before it sent. The connection stays open
// a moment, so that the client has time to read the answer.
func TestEarlyAnswerToUpload(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	id := f.Acquire()
	const form = "--x\r\nContent-Disposition: form-data; name=\"template\"\r\n\r\n{\"nonsense\":1}\r\n--x\r\nContent-Disposition: form-data; name=\"archive\"; filename=\"a\"\r\n\r\n"
	for _, tt := range []struct {
		method, path, token, begin string
		want                       int
	}{
		{"PUT", "/api/v1/files?path=/early&sandbox_id=" + id, f.Token, "", 413},
		{"POST", "/api/v1/templates", f.Token, form, 400},
		{"POST", "/api/v1/templates", "of nobody", form, 401},
	} {
		for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
			head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000000000\r\n%s\r\n", tt.method, tt.path, tt.token, expect)
			// Once it stays, it always does: this process may have been kept from running.
			var code int
			stays := false
			for range 5 {
				if code, stays = f.sendsOn(head + tt.begin); stays {
					break
				}
			}
			if code != tt.want || !stays {
				t.Errorf("%s, %q: %d, and the connection stays: %v", tt.path, expect, code, stays)
			}
			if a := f.Do("GET", "/api/v1/sessions/"+id, ""); a.Status != 200 {
				t.Errorf("the next request: %d %s", a.Status, a.Body)
			}
		}
	}
}

// sendsOn begins a request and goes on sending until there is an answer, whose status
// it returns, and for a moment after. It reports whether the connection took that.
func (f *fixture) sendsOn(begin string) (code int, stays bool) {
	f.T.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
	if err != nil {
		f.T.Fatal(err)
	}
	defer conn.Close()
	answered, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := conn.Write([]byte(begin))
		for chunk := make([]byte, 1000); err == nil; _, err = conn.Write(chunk) {
		}
		ended <- err
	}()
	go func() {
		defer close(answered)
		in := bufio.NewReader(conn)
		for code < 200 { // 100: go on
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				return
			}
			code = resp.StatusCode
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	}()
	err = <-ended
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	<-answered
	return code, errors.Is(err, os.ErrDeadlineExceeded)
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for id, same := range map[string]bool{"abc-1.2_3": true, "a b": false, strings.Repeat("x", 65): false, "": false, "a\tb": false} {
		req, _ := http.NewRequest("GET", f.URL+"/health", nil)
		req.Header.Set("X-Request-Id", id)
		if a := f.Send(req); (a.Header.Get("X-Request-Id") == id) != same || a.Header.Get("X-Request-Id") == "" {
			t.Errorf("%q became %q", id, a.Header.Get("X-Request-Id"))
		}
	}
	f.Do("GET", "/api/v1/sessions/hello", "")
	if log := f.Logs.String(); !strings.Contains(log, `"route":"/api/v1/sessions/{id}"`) || !strings.Contains(log, `"tenant":"dev:test"`) || !strings.Contains(log, `"status":404`) {
		t.Errorf("log: %s", log)
	}
}

func TestRunEndsWithAListener(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	two, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	one.Close()
	if err := f.Server.Run(t.Context(), one, two); err == nil {
		t.Error("half a server went on")
	}
	if _, err := two.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the other listener: %v", err)
	}
}

// Requests under way end in peace, and nothing is left running.
func TestDrain(t *testing.T) {
	f := newFixture(t)
	ignore := goleak.IgnoreCurrent()
	addr, stop := f.Serve()
	started, finish := make(chan struct{}), make(chan struct{})
	f.Guest.Scripts["slow"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		close(started)
		<-finish
		return execution.RunEnd{Status: execution.StatusOK}, ctx.Err()
	}
	client := &http.Client{Transport: &http.Transport{}}
	status := make(chan int, 1)
	go func() {
		req, _ := http.NewRequest("POST", "http://"+addr.String()+"/api/v1/execute", strings.NewReader(`{"code":"slow","language":"bash"}`))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			status <- 0
			return
		}
		resp.Body.Close()
		status <- resp.StatusCode
	}()
	<-started
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	gatewaytest.WaitFor(t, "no more connections are taken", func() bool {
		conn, err := net.Dial("tcp", addr.String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(finish)
	if s := <-status; s != 200 {
		t.Errorf("status %d", s)
	}
	<-stopped
	client.CloseIdleConnections()
	if f.Sandboxes.Live() != 0 || f.Guest.Closed == 0 {
		t.Errorf("%d sandboxes left, %d guests closed", f.Sandboxes.Live(), f.Guest.Closed)
	}
	gatewaytest.LeavesNothing(t, ignore)
}

// A request that is still running after the drain ends with the reason, and its borrowed
// Sandbox is released.
func TestDrainEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *gateway.Config) { c.Drain = 100 * time.Millisecond })
	addr, stop := f.Serve()
	started := make(chan struct{})
	f.Guest.Scripts["stuck"] = func(ctx context.Context, _ execution.RunRequest, _ func(execution.RunEvent) error) (execution.RunEnd, error) {
		close(started)
		<-ctx.Done()
		return execution.RunEnd{}, ctx.Err()
	}
	body := make(chan string, 1)
	go func() {
		req, _ := http.NewRequest("POST", "http://"+addr.String()+"/api/v1/execute", strings.NewReader(`{"code":"stuck","language":"bash","stream":true}`))
		req.Header.Set("Authorization", "Bearer "+f.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			body <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		body <- string(b)
	}()
	<-started
	start := time.Now()
	stop()
	if took := time.Since(start); took < 100*time.Millisecond || took > time.Minute {
		t.Errorf("the drain took %s", took)
	}
	if b := <-body; !strings.Contains(b, "the server is shutting down") {
		t.Errorf("answer %q", b)
	}
	if f.Sandboxes.Live() != 0 {
		t.Error("a borrowed sandbox is left")
	}
}

// A shutdown breaks no request of a client that sends one after the other, on one
// connection or on new ones: it is answered, or no connection can be made.
func TestShutdownBreaksNoRequest(t *testing.T) {
	t.Parallel()
	cert, key, made := selfSigned(t)
	for i := range 8 {
		overTLS, stays := i&1 == 0, i&2 == 0
		t.Run(fmt.Sprintf("TLS %t, connections that stay %t, %d", overTLS, stays, i), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, func(c *gateway.Config) {
				certificate, err := gateway.NewCertificate(cert, key, c.Log)
				if err != nil {
					t.Fatal(err)
				}
				if overTLS {
					c.TLS = certificate.TLS()
				}
			})
			addr, stop := f.Serve()
			scheme := "http://"
			if overTLS {
				scheme = "https://"
			}
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: !stays, TLSClientConfig: &tls.Config{RootCAs: made.Pool(), ServerName: "3000-i0.box.example"},
			}}
			some, last := make(chan struct{}), make(chan error, 1)
			go func() {
				for n := 0; ; n++ {
					if n == 100 {
						close(some)
					}
					resp, err := client.Get(scheme + addr.String() + "/health")
					if err != nil {
						last <- err
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			select {
			case <-some:
			case err := <-last:
				t.Fatal(err)
			case <-time.After(time.Minute):
				t.Fatal("a hundred requests take a minute")
			}
			stop()
			var op *net.OpError
			if err := <-last; !errors.As(err, &op) || op.Op != "dial" {
				t.Error(err)
			}
		})
	}
}

func TestHugeHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	addr, stop := f.Serve()
	defer stop()
	req, _ := http.NewRequest("GET", "http://"+addr.String()+"/health", nil)
	req.Header.Set("X-Huge", strings.Repeat("x", 128<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}
