// Package sniff identifies the protocol and the host name of a connection from its first
// bytes. The bytes are a hostile guest's: ambiguous ones show no name.
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
	// MaxFirst bounds the inspected bytes.
	MaxFirst = 24 << 10
	// maxMethod is the longest HTTP method that is recognized, in bytes.
	maxMethod = 32
	// maxRecord is the longest TLS record, in bytes.
	maxRecord = 16 << 10
)

// First identifies a connection by its first bytes b. more asks for further bytes; shown
// holds if the connection ends without them.
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

// firstHTTP recognizes a request by its first line. It does not look for a name: each
// request of the connection has its own.
func firstHTTP(b []byte, full bool) (policy.Shown, bool) {
	other, web := policy.Shown{Kind: policy.KindOther}, policy.Shown{Kind: policy.KindHTTP}
	b = bytes.TrimLeft(b, "\r\n \t") // some servers skip these
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

// isToken reports whether c may be in the method of a request (RFC 9110, section 5.6.2).
func isToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// HostName is the name in a Host header, without its port, in lower case; empty for an
// address or an invalid name.
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

// firstTLS reads a ClientHello, which may span several records.
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

// wholeHello returns the body of the ClientHello at the beginning of message; false when
// it is incomplete.
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

// readHello finds the name. A hello that does not parse to its last byte, or has two
// names, shows none.
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

// reader takes fields off the front of rest; bad is set when one was missing.
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

// number reads n bytes, big-endian.
func (r *reader) number(n int) int {
	v := 0
	for _, c := range r.take(n) {
		v = v<<8 | int(c)
	}
	return v
}

// block reads a length of n bytes and then as many bytes.
func (r *reader) block(n int) []byte { return r.take(r.number(n)) }
