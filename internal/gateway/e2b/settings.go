package e2b

import (
	"net/http"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// Settings answers GET /e2b/settings, which E2B does not have, with the values that
// `cloud-sandbox e2b env` needs to configure a client.
func (a *API) Settings(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	return rest.Reply(w, http.StatusOK, struct {
		Domain    string `json:"domain"`              // as in a.domain
		TLS       bool   `json:"tls"`                 // the server speaks TLS
		Authority string `json:"authority,omitempty"` // in PEM, that clients must trust for it
	}{a.domain(r), a.TLS, a.DevAuthority})
}
