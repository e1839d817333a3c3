package traffic

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// trafficHeader carries a token for private ports, as E2B's clients send it. A token
// may also be the parameter signing.PortParam of a link, or the cookie of that name
// that following the link sets.
const trafficHeader = "E2B-Traffic-Access-Token"

// opens reports whether a request may pass to a port that requires a token; if not, it
// has been answered.
func (p *Proxy) opens(w http.ResponseWriter, r *http.Request, t Target) bool {
	if IsPreflight(r) { // it cannot carry a token, and nothing inside needs it
		AllowOrigins(w, r)
		return false
	}
	if _, ok := p.Tokens.Check(r.Header.Get(trafficHeader), t.SandboxID, t.Port); ok {
		return true
	}
	for _, token := range linkTokens(r.URL.RawQuery) {
		if until, ok := p.Tokens.Check(token, t.SandboxID, t.Port); ok {
			if !followsLink(r) {
				return true
			}
			keepToken(w, r, token, until)
			return false
		}
	}
	for _, c := range r.CookiesNamed(signing.PortParam) {
		if _, ok := p.Tokens.Check(c.Value, t.SandboxID, t.Port); ok && ofOwnPage(r) {
			return true
		}
	}
	problem := "Token header '%s' is missing"
	if r.Header.Get(trafficHeader) != "" {
		problem = "Provided token in header '%s' is invalid"
	}
	refuse(w, r, answer{
		Code: http.StatusForbidden, SandboxID: t.SandboxID,
		// E2B's words, which its clients know, and its spelling of the header.
		Message: "Sandbox is secured with traffic access token. " + fmt.Sprintf(problem, strings.ToLower(trafficHeader)),
		hint:    "This port is private. Ask its owner for a link: a link that worked before may have expired.",
	})
	return false
}

// linkTokens are the tokens in a query. Our tokens have no character that is escaped.
func linkTokens(query string) []string {
	var tokens []string
	for part := range strings.SplitSeq(query, "&") {
		if token, ok := strings.CutPrefix(part, signing.PortParam+"="); ok {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// followsLink reports whether a browser requests a page, which more requests will
// follow.
func followsLink(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") && r.Header.Get("Upgrade") == ""
}

// keepToken stores the token of a link in a cookie of this port alone and redirects the
// browser, so that no address that the page sees or passes on has the token.
func keepToken(w http.ResponseWriter, r *http.Request, token string, until time.Time) {
	c := http.Cookie{Name: signing.PortParam, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Expires: until}
	c.Secure = r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
	http.SetCookie(w, &c)
	// One slash: two would begin another host.
	to := "/" + strings.TrimLeft(r.URL.EscapedPath(), "/")
	if query := strings.Join(keptOf(r.URL.RawQuery, isLink), "&"); query != "" {
		to += "?" + query
	}
	h := w.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// ofOwnPage reports whether a request with a browser's cookie comes from a page of the
// same port, or from a user's navigation: a page of another port or site must not act
// for its visitors.
func ofOwnPage(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// IsPreflight reports whether r is a CORS preflight.
func IsPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// IsOurPreflight reports whether r is a preflight for a request that will name a
// Sandbox in its headers.
func IsOurPreflight(r *http.Request) bool {
	if !IsPreflight(r) {
		return false
	}
	for name := range strings.SplitSeq(r.Header.Get("Access-Control-Request-Headers"), ",") {
		if strings.EqualFold(strings.TrimSpace(name), idHeader) {
			return true
		}
	}
	return false
}

// AllowOrigins answers a preflight: pages of any origin may send requests, without the
// browser's cookies. Such a request therefore has only the tokens that the page itself
// knows.
func AllowOrigins(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
	h.Set("Access-Control-Max-Age", "7200")
	h.Add("Vary", "Access-Control-Request-Headers")
	w.WriteHeader(http.StatusNoContent)
}
