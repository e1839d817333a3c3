package netstack

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
)

const (
	// serverTimeout bounds one query to one server.
	serverTimeout = 3 * time.Second
	// maxServers bounds the servers that are tried, as in resolv.conf(5).
	maxServers = 3
)

// Resolver forwards DNS queries to the host's name servers. Safe for concurrent use.
type Resolver struct {
	path string

	mu      sync.Mutex
	given   []string // override the file's servers; empty: no override
	servers []string
	changed time.Time // modification time of the file when servers was read
}

// NewResolver returns a Resolver with the servers of a file in the form of
// resolv.conf(5). The file is read again whenever it has changed.
func NewResolver(path string) *Resolver { return &Resolver{path: path} }

// Use overrides the servers of the file, each with an address and a port; none ends the
// override.
func (r *Resolver) Use(servers []string) error {
	for _, s := range servers {
		if _, err := netip.ParseAddrPort(s); err != nil {
			return sandbox.Errorf(sandbox.Invalid, "%q is not the address and port of a name server", s)
		}
	}
	if len(servers) > maxServers {
		return sandbox.Errorf(sandbox.Invalid, "there may be at most %d name servers", maxServers)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = servers
	return nil
}

func (r *Resolver) current() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.given) > 0 {
		return r.given, nil
	}
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, err
	}
	if r.servers == nil || !info.ModTime().Equal(r.changed) {
		servers, err := nameservers(r.path)
		if err != nil {
			return nil, err
		}
		r.servers, r.changed = servers, info.ModTime()
	}
	return r.servers, nil
}

// nameservers returns the servers of a resolv.conf, as host and port. The form
// [address]:port is accepted beside a plain address.
func nameservers(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	servers := []string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() && len(servers) < maxServers {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr, dnsPort).String())
		} else if both, err := netip.ParseAddrPort(fields[1]); err == nil {
			servers = append(servers, both.String())
		}
	}
	return servers, lines.Err()
}

// Ask returns the answer to one query in wire form, over "udp" or "tcp". It tries the
// servers in order until one answers.
func (r *Resolver) Ask(ctx context.Context, network string, query []byte) ([]byte, error) {
	servers, err := r.current()
	if err != nil {
		return nil, err
	}
	err = errors.New("the host has no name server")
	for _, s := range servers {
		var a []byte
		if a, err = ask(ctx, network, s, query); err == nil {
			return a, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func ask(ctx context.Context, network, server string, query []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if network == "tcp" {
		return askStream(conn, query)
	}
	return askDatagram(conn, query)
}

func askStream(conn net.Conn, query []byte) ([]byte, error) {
	if err := writePrefixed(conn, query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxAnswer)
	n, err := readPrefixed(conn, buf)
	if err != nil {
		return nil, err
	}
	return checkAnswer(query, buf[:n])
}

func askDatagram(conn net.Conn, query []byte) ([]byte, error) {
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, maxAnswer+1)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if n > maxAnswer {
			return nil, errTooLong
		}
		if a, err := checkAnswer(query, buf[:n]); err == nil {
			return a, nil // other datagrams are late or forged: the real answer may follow
		}
	}
}

func checkAnswer(query, a []byte) ([]byte, error) {
	if len(a) < headerLen || a[0] != query[0] || a[1] != query[1] || a[2]&flagResponse == 0 {
		return nil, errors.New("not the answer to the question")
	}
	return a, nil
}
