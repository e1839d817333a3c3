package client

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/cloudsandbox/guest/v1/guestv1connect"
	"github.com/cloud-sandbox/cloud-sandbox/api/gen/filesystem/filesystemconnect"
	"github.com/cloud-sandbox/cloud-sandbox/internal/guest"
)

// fileCalls is the transport of calls to one Guest. A Guest of an earlier version, in a
// Boot that outlived an upgrade or in saved memory, knows the calls about single files
// by E2B's protocol alone. fileCalls finds out which protocol the Guest knows, and
// sends an earlier Guest the same requests at envd's port: their messages have E2B's
// field numbers.
type fileCalls struct {
	*http.Transport
	token    string // for envd
	protocol atomic.Int32
}

// Protocols of a Guest for single files.
const (
	unknownProtocol int32 = iota
	ownProtocol
	e2bProtocol
)

// earlierPaths maps the path of each call about single files to its path at envd's port.
var earlierPaths = map[string]string{
	guest.FilesPath:                             "/files",
	guestv1connect.FilesServiceStatProcedure:    filesystemconnect.FilesystemStatProcedure,
	guestv1connect.FilesServiceListDirProcedure: filesystemconnect.FilesystemListDirProcedure,
	guestv1connect.FilesServiceMakeDirProcedure: filesystemconnect.FilesystemMakeDirProcedure,
	guestv1connect.FilesServiceMoveProcedure:    filesystemconnect.FilesystemMoveProcedure,
	guestv1connect.FilesServiceRemoveProcedure:  filesystemconnect.FilesystemRemoveProcedure,
}

// Headers of a listing of an earlier Guest, whose messages have no such fields.
const (
	limitHeader     = "Cloud-Sandbox-Limit"
	truncatedHeader = "Cloud-Sandbox-Truncated"
)

// RoundTrip implements http.RoundTripper.
func (c *fileCalls) RoundTrip(r *http.Request) (*http.Response, error) {
	path, ok := earlierPaths[r.URL.Path]
	if !ok {
		return c.Transport.RoundTrip(r)
	}
	if c.protocol.Load() == unknownProtocol {
		resp, err := c.first(r)
		if err != nil && r.Body != nil {
			r.Body.Close() // also when r itself was not sent
		}
		if resp != nil || err != nil {
			return resp, err
		}
	}
	if c.protocol.Load() == ownProtocol {
		return c.Transport.RoundTrip(r)
	}
	return c.earlier(r, path)
}

// first finds out the Guest's protocol: by r itself if r can be sent again, or else by
// a request of its own. It returns the response to r, or nil if r has not been answered.
func (c *fileCalls) first(r *http.Request) (*http.Response, error) {
	sent := r.Body == nil || r.Body == http.NoBody || r.GetBody != nil
	probe := r
	if !sent {
		var err error
		if probe, err = http.NewRequestWithContext(r.Context(), http.MethodGet, url(sandbox.GuestPort)+guest.FilesPath, nil); err != nil {
			return nil, err
		}
	}
	resp, err := c.Transport.RoundTrip(probe)
	if err != nil {
		return nil, err
	}
	// Errors about files are JSON.
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		c.protocol.Store(e2bProtocol)
	} else if c.protocol.Store(ownProtocol); sent {
		return resp, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // so that the connection can be reused
	resp.Body.Close()
	return nil, nil
}

// earlier sends r to an earlier Guest.
func (c *fileCalls) earlier(r *http.Request, path string) (*http.Response, error) {
	again := r.Clone(r.Context())
	if r.GetBody != nil {
		var err error
		if again.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	again.URL.Host = net.JoinHostPort(again.URL.Hostname(), strconv.Itoa(int(sandbox.EnvdPort)))
	again.URL.Path, again.Host = path, again.URL.Host
	if again.Method == http.MethodPut {
		again.Method = http.MethodPost
	}
	again.Header.Set(limitHeader, strconv.Itoa(maxEntries))
	if c.token != "" {
		again.Header.Set("X-Access-Token", c.token)
	}
	return c.Transport.RoundTrip(again)
}
