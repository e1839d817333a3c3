package gateway

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// listProviders answers GET /api/v1/auth/providers with the identity providers for
// logging in on the command line.
func (s *Server) listProviders(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	reply := v1.Providers{Providers: []v1.Provider{}}
	for _, is := range s.Issuers.Logins() {
		reply.Providers = append(reply.Providers, v1.Provider{Name: is.Name, Issuer: is.URL, ClientID: is.ClientID, Audience: is.Audience, Scopes: is.Scopes})
	}
	return rest.Reply(w, http.StatusOK, reply)
}
