package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/bench"
)

// loopback measures uploads of size bytes to a plain HTTP server on this machine that
// writes them to a file, and downloads from it.
func loopback(ctx context.Context, file string, size int64) (up, down *bench.Series, err error) {
	const rounds = 3
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.ServeFile(w, r, file)
			return
		}
		if err := keep(file, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	defer os.Remove(file)
	call := func(method string, body io.Reader) func(context.Context) (time.Duration, error) {
		return func(ctx context.Context) (time.Duration, error) {
			if body != nil {
				body = io.LimitReader(bench.Noise(), size)
			}
			req, err := http.NewRequestWithContext(ctx, method, server.URL, body)
			if err != nil {
				return 0, err
			}
			began := time.Now()
			resp, err := server.Client().Do(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, make([]byte, 1<<20))
			if resp.StatusCode != http.StatusOK || method == http.MethodGet && n != size {
				err = errors.Join(err, fmt.Errorf("%s over loopback: %s and %d bytes", method, resp.Status, n))
			}
			return time.Since(began), err
		}
	}
	const who = "plain HTTP server"
	up = &bench.Series{Operation: "plain HTTP over loopback to a file", Who: who}
	down = &bench.Series{Operation: "plain HTTP over loopback from a file", Who: who}
	if err := bench.Repeat(ctx, up, rounds, call(http.MethodPut, bench.Noise())); err != nil {
		return nil, nil, err
	}
	return up, down, bench.Repeat(ctx, down, rounds, call(http.MethodGet, nil))
}

// keep writes the content of r to a file.
func keep(file string, r io.Reader) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, r, make([]byte, 1<<20))
	return errors.Join(err, f.Close())
}
