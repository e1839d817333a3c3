package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/api/v1"
	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/rest"
)

// createToken answers POST /api/v1/auth/token. In dev mode anyone on this
// machine gets a token, each user_id for a Tenant of its own. Otherwise, and with
// an API key, that key must have the scope "tokens", and each user_id is a Tenant
// of its own below the key's.
func (s *Server) createToken(w http.ResponseWriter, r *http.Request, minter sandbox.Identity) error {
	var body v1.TokenRequest
	if err := rest.Decode(r, &body); err != nil {
		return err
	}
	who, life, err := s.tokenFor(r, minter, body.UserID, body.Role)
	if err != nil {
		return err
	}
	if err := s.mints(r, who); err != nil {
		return err
	}
	rest.Made(r.Context(), string(who.Tenant))
	token, _, err := s.Tokens.Mint(who, life)
	if err != nil {
		return err
	}
	return rest.Reply(w, http.StatusOK, v1.Token{AccessToken: token, TokenType: "bearer", ExpiresIn: int(life.Seconds())})
}

// tokenFor returns the Identity and the lifetime of the token that r asks for. minter
// is the Identity of r's Key; zero: r has none.
func (s *Server) tokenFor(r *http.Request, minter sandbox.Identity, user, role string) (sandbox.Identity, time.Duration, error) {
	if minter.Tenant != "" {
		who, err := mintedBy(minter, user, role)
		if err == nil {
			err = s.Tenants.Vouch(r.Context(), minter.Tenant, who.Tenant)
		}
		return who, lifeUnder(minter.Until), err
	}
	if !s.Dev {
		return sandbox.Identity{}, 0, sandbox.Errorf(sandbox.Denied, "this server is not in dev mode: send an API key with the scope %q, which its operator makes with `cloud-sandbox key create --admin`", sandbox.ScopeTokens)
	}
	if !fromHere(r) {
		return sandbox.Identity{}, 0, sandbox.Errorf(sandbox.Denied, "in dev mode tokens are only for programs on this machine that ask for localhost")
	}
	who, err := DevIdentity(user, role)
	auditingOf(r.Context()).is(who)
	return who, TokenLife, err
}

// mints returns an error for a suspended Tenant or User.
func (s *Server) mints(r *http.Request, who sandbox.Identity) error {
	err := s.Tenants.Check(r.Context(), who.Tenant)
	if err == nil {
		_, err = s.Users.Admit(r.Context(), who)
	}
	if err != nil {
		auditingOf(r.Context()).pass() // as for other requests of a suspended caller
		s.refuseSuspended(route{binding: binding{op: catalogue.CreateToken}}, r, who, err)
	}
	return err
}

// sendsKey reports whether a request carries an API key. A token does not count: it
// cannot mint.
func sendsKey(r *http.Request) bool {
	_, bearer, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return len(r.Header.Values(keyHeader)) > 0 || sandbox.ValidKeySecret(bearer)
}

// lifeUnder is the lifetime of a token that a Key mints which expires at until: never
// longer than the Key's.
func lifeUnder(until time.Time) time.Duration {
	if until.IsZero() {
		return TokenLife
	}
	return min(TokenLife, max(time.Until(until).Truncate(time.Second), time.Second))
}

// mintedBy is the Identity of a user that the owner of a Key vouches for.
func mintedBy(minter sandbox.Identity, user, role string) (sandbox.Identity, error) {
	if minter.Key == "" || !minter.May(sandbox.ScopeTokens) {
		return sandbox.Identity{}, sandbox.Errorf(sandbox.Denied, "minting tokens needs an API key with the scope %q", sandbox.ScopeTokens)
	}
	if err := checkUser(user); err != nil {
		return sandbox.Identity{}, err
	}
	r, err := rest.ParseRole(role)
	if err == nil && !minter.Role.Gives(r) {
		err = sandbox.Errorf(sandbox.Denied, "a key of the role %q mints no tokens of the role %q", v1.RoleName(minter.Role), role)
	}
	return sandbox.Identity{Tenant: userTenant(string(minter.Tenant)+"/", user), User: user, Person: user, Role: r}, err
}

// fromHere reports whether a request names this machine as its host, and does not come
// from a web page of another host. Listening on loopback alone does not keep out a page
// in a browser on this machine: its own host name can resolve to loopback.
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
