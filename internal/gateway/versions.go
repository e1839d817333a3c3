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

// ownClients matches the User-Agent of the command line and of our SDKs.
var ownClients = regexp.MustCompile(`^cloud-sandbox(?:-python|-typescript)?/v?([\w.+-]{1,64})$`)

// withVersions adds the versions of client and server to an error about something that
// this server does not know, if they differ. All of v1 stays compatible, so other errors
// are not about versions.
func (s *Server) withVersions(r *http.Request, err error) error {
	client := ownClients.FindStringSubmatch(r.UserAgent())
	server := strings.TrimPrefix(s.Version, "v")
	if err == nil || client == nil || server == "" || client[1] == server {
		return err
	}
	versions := fmt.Sprintf("; the client has version %s and the server version %s: update the older one", client[1], server)
	var coded *sandbox.Error
	var failure v1.Failure
	switch {
	case errors.Is(err, rest.ErrUnknown) && errors.As(err, &coded):
		c := *coded
		c.Detail += versions
		return &c
	case errors.As(err, &failure) && failure.Status == http.StatusMethodNotAllowed:
		failure.Message += versions
		return failure
	}
	return err
}
