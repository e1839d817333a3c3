package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// clientHeader names the client and its version, as User-Agent does. It is for clients
// that cannot set User-Agent, such as those in a page, and streams of connect-go.
const clientHeader = "Cloud-Sandbox-Client"

// ownClients matches the User-Agent of the command line, of our SDKs, and of clients of
// our Protocol Buffers that begin theirs so.
var ownClients = regexp.MustCompile(`^cloud-sandbox(?:-python|-typescript)?/v?([\w.+-]{1,64})(?: |$)`)

// clientVersion returns the version that a client states; empty: none.
func clientVersion(h http.Header) string {
	for _, header := range []string{clientHeader, "User-Agent"} {
		if client := ownClients.FindStringSubmatch(h.Get(header)); client != nil {
			return client[1]
		}
	}
	return ""
}

// withVersions adds versions to the error of a request. The error of a call that has
// been answered stays as it was sent.
func (s *Server) withVersions(rt route, r *http.Request, err error) error {
	var answered *rest.Answered
	if errors.As(err, &answered) {
		return err
	}
	return s.explain(r.Header, err, rt.surface == connectSurface || rt.path == mcpPath)
}

// explainCall adds versions to the error of a call of Connect or gRPC.
func (s *Server) explainCall(h http.Header, err error) error { return s.explain(h, err, true) }

// explain adds the versions of client and server to an error about something that this
// server does not know, if they differ. All of v1 stays compatible, so other errors are
// not about versions. A client may not state its version. If it is foreign, it is made
// from the API of some version, and the error states only the server's version.
func (s *Server) explain(h http.Header, err error, foreign bool) error {
	server := strings.TrimPrefix(s.Version, "v")
	client := clientVersion(h)
	if err == nil || server == "" || client == server || client == "" && !foreign {
		return err
	}
	versions := fmt.Sprintf("; the client has version %s and the server version %s: update the older one", client, server)
	if client == "" {
		versions = fmt.Sprintf("; the server has version %s: use a client made for it", server)
	}
	var coded *sandbox.Error
	var failure v1.Failure
	switch {
	case errors.Is(err, sandbox.ErrUnknown) && errors.As(err, &coded):
		c := *coded
		c.Detail += versions
		return &c
	case errors.As(err, &failure) && failure.Status == http.StatusMethodNotAllowed:
		failure.Message += versions
		return failure
	}
	return err
}
