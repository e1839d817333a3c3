package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// createToken answers POST /api/v1/auth/token. In dev mode anyone on this
// machine gets a token, each user_id for a Tenant of its own.
func (s *Server) createToken(w http.ResponseWriter, r *http.Request, _ sandbox.Identity) error {
	var body struct {
		UserID string `json:"user_id"`
		Role   string `json:"role"`
	}
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	if !s.Dev {
		return sandbox.Errorf(sandbox.Denied, "this server is not in dev mode: its operator makes tokens with `cloud-sandbox token create`")
	}
	if !fromHere(r) {
		return sandbox.Errorf(sandbox.Denied, "in dev mode tokens are only for programs on this machine that ask for localhost")
	}
	who, err := DevIdentity(body.UserID, body.Role)
	if err != nil {
		return err
	}
	token, _, err := s.Tokens.Mint(who, TokenLife)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int    `json:"expires_in"` // seconds
	}{token, "bearer", int(TokenLife.Seconds())})
}

// fromHere reports whether a request names this machine as its host, and comes
// from no web page of another. Listening on loopback alone does not keep out a
// page in a browser of this machine: it can have its own name point here.
func fromHere(r *http.Request) bool {
	if !localHost(r.Host) {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && localHost(u.Host)
}

func localHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
