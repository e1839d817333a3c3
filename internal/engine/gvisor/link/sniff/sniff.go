// Package sniff tells from the first bytes of a connection what it speaks and
// which name it is for. The bytes are a hostile guest's: what could be read in
// two ways shows no name.
package sniff

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

const (
	// MaxFirst is how many bytes are looked at, at most.
	MaxFirst = 24 << 10
	// maxMethod is the longest word that may be the method of an HTTP request.
	maxMethod = 32
	// maxRecord is the most that one record of TLS holds.
	maxRecord = 16 << 10
)

// First says what b, the beginning of a connection, is. more asks for further
// bytes, when there are any; what is returned beside it holds if there are none.
func First(b []byte) (shown policy.Shown, more bool) {
	full := len(b) >= MaxFirst
	switch {
	case len(b) == 0:
		return policy.Shown{Kind: policy.KindOther}, true
	case b[0] == recordHandshake:
		return firstTLS(b, full)
	}
	return firstHTTP(b, full)
}

// firstHTTP knows a request by its first line. Names are not looked for: each
// request of the connection has one of its own.
func firstHTTP(b []byte, full bool) (policy.Shown, bool) {
	other, web := policy.Shown{Kind: policy.KindOther}, policy.Shown{Kind: policy.KindHTTP}
	b = bytes.TrimLeft(b, "\r\n \t") // some servers pass over what comes before
	word := b[:min(len(b), maxMethod+1)]
	for i, c := range word {
		switch {
		case c == ' ' || c == '\t':
			line, _, whole := bytes.Cut(b, []byte("\n"))
			if whole && !bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) {
				return other, false
			}
			if whole || full {
				return web, false
			}
			return web, true
		case i == maxMethod || !isToken(c):
			return other, false
		}
	}
	return other, !full
}

// isToken reports whether c may stand in the method of a request (RFC 9110,
// section 5.6.2).
func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// HostName is the name in the Host of a request, without its port, in lower
// case; empty for an address and for what is no name.
func HostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	name, ok := sandbox.NormalDomain(host)
	if !ok {
		return ""
	}
	return name
}

// Parts of TLS (RFC 8446, sections 4 and 5; RFC 6066, section 3; RFC 9849).
const (
	recordHandshake   = 22
	handshakeHello    = 1
	extensionName     = 0
	extensionECH      = 0xfe0d
	nameTypeHost      = 0
	recordHeader      = 5
	handshakeHeader   = 4
	helloRandomAndVer = 2 + 32
)

// firstTLS reads a client's hello, which may stand in several records.
func firstTLS(b []byte, full bool) (policy.Shown, bool) {
	nameless := policy.Shown{Kind: policy.KindTLS}
	if len(b) > 1 && b[1] != 3 {
		return policy.Shown{Kind: policy.KindOther}, false
	}
	var message []byte
	for rest := b; len(rest) >= recordHeader; {
		size := int(binary.BigEndian.Uint16(rest[3:]))
		if rest[0] != recordHandshake || rest[1] != 3 || size == 0 || size > maxRecord {
			return nameless, false
		}
		piece := rest[recordHeader:]
		piece = piece[:min(size, len(piece))]
		message = append(message, piece...)
		rest = rest[recordHeader+len(piece):]
		if hello, ok := wholeHello(message); ok {
			return readHello(hello), false
		}
	}
	return nameless, !full
}

// wholeHello returns the body of the hello that message begins with.
func wholeHello(message []byte) ([]byte, bool) {
	if len(message) < handshakeHeader {
		return nil, false
	}
	if message[0] != handshakeHello {
		return nil, true
	}
	size := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
	if len(message) < handshakeHeader+size {
		return nil, false
	}
	return message[handshakeHeader : handshakeHeader+size], true
}

// readHello finds the name. A hello that does not parse to its last byte, or
// names two, shows none.
func readHello(hello []byte) policy.Shown {
	shown := policy.Shown{Kind: policy.KindTLS}
	r := reader{rest: hello}
	r.take(helloRandomAndVer)
	r.block(1) // session
	r.block(2) // ciphers
	r.block(1) // compression
	extensions := reader{rest: r.block(2)}
	if r.bad || len(r.rest) != 0 {
		return shown
	}
	names := 0
	for len(extensions.rest) > 0 && !extensions.bad {
		kind := extensions.number(2)
		body := extensions.block(2)
		switch kind {
		case extensionECH:
			shown.Hidden = true
		case extensionName:
			names++
			shown.Name = readServerName(body)
		}
	}
	if extensions.bad || names != 1 {
		shown.Name = ""
	}
	return shown
}

// readServerName reads the body of the extension: a list of one host name.
func readServerName(body []byte) string {
	r := reader{rest: body}
	list := reader{rest: r.block(2)}
	kind := list.number(1)
	name, ok := sandbox.NormalDomain(string(list.block(2)))
	if r.bad || list.bad || len(r.rest) != 0 || len(list.rest) != 0 || kind != nameTypeHost || !ok {
		return ""
	}
	return name
}

// reader takes fields off the front of rest; bad once one was not there.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return nil
	}
	out := r.rest[:n]
	r.rest = r.rest[n:]
	return out
}

// number takes n bytes, big end first.
func (r *reader) number(n int) int {
	v := 0
	for _, c := range r.take(n) {
		v = v<<8 | int(c)
	}
	return v
}

// block takes a length of n bytes and as many bytes as it says.
func (r *reader) block(n int) []byte { return r.take(r.number(n)) }
