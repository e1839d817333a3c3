package sniff

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
)

// helloOf returns the ClientHello of crypto/tls.
func helloOf(t testing.TB, name string) []byte {
	t.Helper()
	var said said
	_ = tls.Client(&said, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	return said.Bytes()
}

// said is a connection that records writes and answers nothing.
type said struct{ bytes.Buffer }

func (*said) Read([]byte) (int, error)         { return 0, io.EOF }
func (*said) Close() error                     { return nil }
func (*said) LocalAddr() net.Addr              { return nil }
func (*said) RemoteAddr() net.Addr             { return nil }
func (*said) SetDeadline(time.Time) error      { return nil }
func (*said) SetReadDeadline(time.Time) error  { return nil }
func (*said) SetWriteDeadline(time.Time) error { return nil }

// withExtension adds an extension to a hello in one record.
func withExtension(hello []byte, kind uint16, body []byte) []byte {
	out := bytes.Clone(hello)
	extra := binary.BigEndian.AppendUint16(nil, kind)
	extra = append(binary.BigEndian.AppendUint16(extra, uint16(len(body))), body...)
	at := recordHeader + handshakeHeader + helloRandomAndVer
	at += 1 + int(out[at])
	at += 2 + int(binary.BigEndian.Uint16(out[at:]))
	at += 1 + int(out[at])
	grow := func(i int) { binary.BigEndian.PutUint16(out[i:], binary.BigEndian.Uint16(out[i:])+uint16(len(extra))) }
	grow(3)
	grow(recordHeader + 2)
	grow(at)
	return append(out, extra...)
}

// inRecords cuts the handshake of a hello into records of n bytes.
func inRecords(hello []byte, n int) []byte {
	var out []byte
	for rest := hello[recordHeader:]; len(rest) > 0; {
		piece := rest[:min(n, len(rest))]
		rest = rest[len(piece):]
		out = append(out, hello[:3]...)
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(piece))), piece...)
	}
	return out
}

func TestFirst(t *testing.T) {
	hello := helloOf(t, "www.Example.com")
	plain := helloOf(t, "")
	sni := []byte("\x00\x0b\x00\x00\x08evil.com")
	named := policy.Shown{Kind: policy.KindTLS, Name: "www.example.com"}
	nameless := policy.Shown{Kind: policy.KindTLS}
	other, web := policy.Shown{Kind: policy.KindOther}, policy.Shown{Kind: policy.KindHTTP}
	cut := bytes.Clone(hello)
	cut[recordHeader+3]-- // the handshake says one byte less than its parts
	for name, tt := range map[string]struct {
		first []byte
		want  policy.Shown
		more  bool
	}{
		"nothing":                     {nil, other, true},
		"hello":                       {hello, named, false},
		"hello and more":              {append(bytes.Clone(hello), "early data"...), named, false},
		"half a hello":                {hello[:100], nameless, true},
		"the header of a hello":       {hello[:3], nameless, true},
		"hello in records of a byte":  {inRecords(hello, 1), named, false},
		"hello in records of 100":     {inRecords(hello, 100), named, false},
		"hello without a name":        {plain, nameless, false},
		"hello with two names":        {withExtension(hello, extensionName, sni), nameless, false},
		"hello with a name at last":   {withExtension(plain, extensionName, sni), policy.Shown{Kind: policy.KindTLS, Name: "evil.com"}, false},
		"hello with an empty name":    {withExtension(plain, extensionName, []byte("\x00\x03\x00\x00\x00")), nameless, false},
		"hello with an address":       {withExtension(plain, extensionName, []byte("\x00\x0a\x00\x00\x071.2.3.4")), nameless, false},
		"hello with a name and more":  {withExtension(plain, extensionName, append(bytes.Clone(sni), 0)), nameless, false},
		"hello with a list of two":    {withExtension(plain, extensionName, []byte("\x00\x0a\x00\x00\x02a.\x00\x00\x02b.")), nameless, false},
		"hello with ECH":              {withExtension(hello, extensionECH, []byte{0}), policy.Shown{Kind: policy.KindTLS, Name: "www.example.com", Hidden: true}, false},
		"hello that lies of its size": {cut, nameless, false},
		"hello that never ends":       {append([]byte{22, 3, 1, 64, 0, 1, 255, 255, 255}, make([]byte, MaxFirst)...), nameless, false},
		"records of nothing":          {[]byte{22, 3, 1, 0, 0, 22, 3, 1, 0, 0}, nameless, false},
		"another handshake":           {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, nameless, false},
		"an alert after the first":    {append(inRecords(hello, 100)[:105], 21, 3, 1, 0, 2, 0, 0), nameless, false},
		"old hello":                   {[]byte{0x80, 0x2e, 1, 0, 2}, other, false},
		"not TLS":                     {[]byte{22, 9, 1, 0, 4}, other, false},

		"request":                      {[]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), web, false},
		"request in lower case":        {[]byte("get / http/1.1\n"), web, false},
		"request after an empty line":  {[]byte("\r\n\r\n GET / HTTP/1.1\r\n"), web, false},
		"request after a tab":          {[]byte("GET\t/\tHTTP/1.1\r\n"), web, false},
		"request with a long path":     {[]byte("GET /" + strings.Repeat("a", MaxFirst)), web, false},
		"half a request":               {[]byte("GET /path"), web, true},
		"HTTP/2":                       {[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), web, false},
		"a word":                       {[]byte("GET"), other, true},
		"another protocol of lines":    {[]byte("get key\r\n"), other, false},
		"SSH":                          {[]byte("SSH-2.0-OpenSSH_9.2\r\n"), other, false},
		"PostgreSQL":                   {[]byte{0, 0, 0, 8, 4, 210, 22, 47}, other, false},
		"Redis":                        {[]byte("*1\r\n$4\r\nPING\r\n"), other, false},
		"too long a word for a method": {[]byte(strings.Repeat("a", 40) + " / HTTP/1.1\r\n"), other, false},
		"empty lines for ever":         {bytes.Repeat([]byte("\r\n"), MaxFirst), other, false},
	} {
		if got, more := First(tt.first); got != tt.want || more != tt.more {
			t.Errorf("%s: %+v, more %v; want %+v, more %v", name, got, more, tt.want, tt.more)
		}
	}
}

func TestHostName(t *testing.T) {
	for host, want := range map[string]string{
		"example.com": "example.com", "Example.com.:8080": "example.com", "localhost": "localhost",
		"": "", "1.2.3.4": "", "1.2.3.4:80": "", "[2606::1]:80": "", "2606::1": "", "a b": "", "evil.com@example.com": "",
		"example.com:80:80": "", "example.com/": "", "0x7f000001": "", "127.1": "",
	} {
		if got := HostName(host); got != want {
			t.Errorf("%q names %q, want %q", host, got, want)
		}
	}
}

// A prefix that is enough for a decision gives the same result as the whole.
func FuzzFirst(f *testing.F) {
	f.Add(helloOf(f, "example.com"), 10)
	f.Add(inRecords(helloOf(f, "example.com"), 50), 70)
	f.Add(withExtension(helloOf(f, "a.example"), extensionECH, []byte{0}), 5)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"), 3)
	f.Add([]byte("\r\nPOST"), 2)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		whole, _ := First(b)
		if at < 0 || at > len(b) {
			return
		}
		if part, more := First(b[:at]); !more && part != whole {
			t.Errorf("%q is %+v, its first %d bytes %+v", b, whole, at, part)
		}
	})
}
