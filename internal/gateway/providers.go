package gateway

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// listProviders answers GET /api/v1/auth/providers with the identity providers that
// somebody can log in with on the command line.
func (s *Server) listProviders(w http.ResponseWriter, _ *http.Request, _ sandbox.Identity) error {
	type view struct {
		Name     string   `json:"name"`
		Issuer   string   `json:"issuer"`
		ClientID string   `json:"client_id"`
		Audience string   `json:"audience"`
		Scopes   []string `json:"scopes"`
	}
	reply := struct {
		Providers []view `json:"providers"`
	}{[]view{}}
	for _, is := range s.Issuers.Logins() {
		reply.Providers = append(reply.Providers, view{is.Name, is.URL, is.ClientID, is.Audience, is.Scopes})
	}
	return rest.Reply(w, http.StatusOK, reply)
}
