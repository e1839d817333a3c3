package traffic

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
)

// A sieve removes credentials for this installation from a request that goes inside,
// wherever they are and however they are encoded: nothing inside may use them.
// Everything else stays unchanged.
type sieve struct {
	ours func(token string) bool
	// tokens are the Sandbox's own tokens that the request must not bring in, in lower
	// case.
	tokens []string
	// access is the Sandbox's access token, for the services that require it; empty for
	// other services.
	access string
}

// sieveOf is the sieve for requests on a route. The Sandbox's access token passes to
// the services that require it.
func (p *Proxy) sieveOf(rt route) sieve {
	own, access := p.Tokens.Of(rt.sandbox.ID), p.AccessToken(rt.sandbox.ID)
	s := sieve{ours: p.OwnToken, tokens: []string{strings.ToLower(own)}}
	if port := rt.target.Port; port == sandbox.EnvdPort || port == sandbox.InterpreterPort {
		s.access = access
	} else {
		s.tokens = append(s.tokens, strings.ToLower(access))
	}
	return s
}

// header removes from h, a head or trailers, each value that shows a credential. Of
// cookies and of WebSocket subprotocols, which are lists, the other elements stay.
func (s sieve) header(h http.Header) {
	h.Del(trafficHeader)
	for name, values := range h {
		var kept []string
		changed := s.shows(name)
		for _, value := range values {
			left, same := s.value(name, value)
			if changed = changed || !same; left != "" || same {
				kept = append(kept, left)
			}
		}
		switch {
		case !changed:
		case s.shows(name) || len(kept) == 0:
			delete(h, name)
		default:
			h[name] = kept
		}
	}
}

// value returns the part of a header's value that stays, and whether that is the whole
// value.
func (s sieve) value(name, value string) (left string, same bool) {
	switch name {
	case "Cookie":
		if !strings.Contains(value, signing.PortParam) && !s.shows(value) {
			return value, true
		}
		return s.list(value, ";", "; ", func(pair string) bool { return strings.HasPrefix(pair, signing.PortParam+"=") }), false
	case "Sec-Websocket-Protocol":
		if !s.shows(value) {
			return value, true
		}
		return s.list(value, ",", ", ", func(string) bool { return false }), false
	case accessHeader:
		if value != s.access && hasAccessToken(value) {
			return s.otherAccess(), false
		}
	}
	if s.shows(value) {
		return "", false
	}
	return value, true
}

// accessHeader carries the access token of a Sandbox.
const accessHeader = "X-Access-Token"

// unknownToken replaces another Sandbox's access token, so that the service inside
// refuses it as wrong.
const unknownToken = "unknown"

// otherAccess replaces an access token that is not the Sandbox's own.
func (s sieve) otherAccess() string {
	if s.access == "" {
		return ""
	}
	return unknownToken
}

// hasAccessToken reports whether text has the form of an access token of any Sandbox.
// The form does not show which Sandbox.
func hasAccessToken(text string) bool {
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return !isWord(c) }) {
		if _, err := hex.DecodeString(word); err == nil && len(word) == hex.EncodedLen(sha256.Size) {
			return true
		}
	}
	return false
}

// list is a list without dropped elements and without elements that show a credential.
func (s sieve) list(value, separator, joint string, drop func(string) bool) string {
	var kept []string
	for element := range strings.SplitSeq(value, separator) {
		if element = strings.TrimSpace(element); element != "" && !drop(element) && !s.shows(element) {
			kept = append(kept, element)
		}
	}
	return strings.Join(kept, joint)
}

// query is a query without our parameter and without parts that show a credential. The
// rest is unchanged, also if it does not parse.
func (s sieve) query(query string) string {
	return strings.Join(keptOf(query, func(part string) bool { return isLink(part) || s.shows(part) }), "&")
}

// path reports whether a path, escaped as sent, shows a credential in one of its
// segments or across them.
func (s sieve) path(path string) bool {
	if s.shows(path) {
		return true
	}
	for segment := range strings.SplitSeq(path, "/") { // base64 has slashes too
		if s.shows(segment) {
			return true
		}
	}
	return false
}

// keptOf are the parts of a query that are not dropped.
func keptOf(query string, drop func(part string) bool) []string {
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		if !drop(part) {
			kept = append(kept, part)
		}
	}
	return kept
}

// isLink reports whether a part of a query is our parameter, escaped or not.
func isLink(part string) bool {
	name, _, _ := strings.Cut(part, "=")
	if plain, err := url.QueryUnescape(name); err == nil {
		name = plain
	}
	return name == signing.PortParam
}

// maxEscapes is the number of layers of escaping that are searched.
const maxEscapes = 3

// shows reports whether text holds a credential: as it is, escaped as in URLs, or in
// base64 as in "Authorization: Basic".
func (s sieve) shows(text string) bool {
	for range maxEscapes {
		if s.holds(text) || s.holdsEncoded(text) {
			return true
		}
		plain := unescaped(text)
		if plain == text {
			return false
		}
		text = plain
	}
	return s.holds(text) || s.holdsEncoded(text)
}

// unescaped is text with each %XX replaced; invalid escapes stay.
func unescaped(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if c, err := url.PathUnescape(text[i : i+3]); err == nil {
				out.WriteString(c)
				i += 2
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// minEncoded is the length of our shortest credential in base64.
const minEncoded = 56

// holdsEncoded reports whether a word of text is base64, of either alphabet, of text
// that holds a credential.
func (s sieve) holdsEncoded(text string) bool {
	if len(text) < minEncoded {
		return false
	}
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return !isWord(c) && c != '+' && c != '/' }) {
		if len(word) < minEncoded {
			continue
		}
		word = strings.NewReplacer("+", "-", "/", "_").Replace(word)
		if len(word)%4 == 1 {
			word = word[:len(word)-1]
		}
		if raw, err := base64.RawURLEncoding.DecodeString(word); err == nil && s.holds(string(raw)) {
			return true
		}
	}
	return false
}

func isWord(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// minSecret is the length of our shortest credential.
const minSecret = 16

// holds reports whether text contains a credential, unencoded: an API key of any
// installation, a token of ours for the API, for a port or for a Volume, or one of the
// Sandbox's own.
func (s sieve) holds(text string) bool {
	if len(text) < minSecret {
		return false
	}
	small := strings.ToLower(text)
	for _, token := range s.tokens {
		if strings.Contains(small, token) {
			return true
		}
	}
	return holdsKey(small) || strings.Contains(text, ".") && s.holdsToken(text)
}

// keyStart is the prefix of every API key.
const keyStart = "e2b_"

func holdsKey(small string) bool {
	for {
		i := strings.Index(small, keyStart)
		if i < 0 {
			return false
		}
		small = small[i:]
		if n := len(keyStart) + 40; len(small) >= n && sandbox.ValidKeySecret(small[:n]) {
			return true
		}
		small = small[len(keyStart):]
	}
}

// holdsToken finds tokens whose parts are joined by dots.
func (s sieve) holdsToken(text string) bool {
	for word := range strings.FieldsFuncSeq(text, func(c rune) bool { return !isWord(c) && c != '.' }) {
		parts := strings.Split(word, ".")
		for i := range parts {
			rest := parts[i:]
			if signing.BeginsPortToken(rest) || signing.BeginsVolumeToken(rest) || len(rest) >= 3 && s.isJWT(rest[:3]) {
				return true
			}
		}
	}
	return false
}

// isJWT reports whether three parts are a token of ours. A JWT begins with a JSON
// object; other characters may precede it.
func (s sieve) isJWT(parts []string) bool {
	const (
		object = "ey"     // how an object begins in base64
		least  = 10       // characters of each part
		most   = 16 << 10 // characters in all; we accept no longer tokens
		places = 4        // starts to try, which bounds the search
	)
	if len(parts[1]) < least || len(parts[2]) < least || len(parts[0])+len(parts[1])+len(parts[2]) > most {
		return false
	}
	head := parts[0]
	for range places {
		i := strings.Index(head, object)
		if i < 0 || len(head) < i+least {
			return false
		}
		if s.ours(strings.Join([]string{head[i:], parts[1], parts[2]}, ".")) {
			return true
		}
		head = head[i+len(object):]
	}
	return false
}
