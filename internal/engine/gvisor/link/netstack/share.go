package netstack

import (
	"crypto/x509"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// What guests can make a shard hold:
//
// Each connection has a receive and a send buffer and nothing else (see
// splice). With n connections of a link, n rounded up to a power of two that is
// at least 8, each buffer is 32 MiB / n, so that all of a link's are bounded by
// 64 MiB:
//
//	connections      up to 8   16    32    64     128    256    512   1024
//	each buffer        4 MiB  2 MiB 1 MiB 512 KiB 256 KiB 128 KiB 64 KiB 32 KiB
//
// In the same way those of all links together are bounded by 2 GiB: with 256
// connections in the shard a buffer is at most 4 MiB, with 16,384 at most
// 64 KiB. Of a link with few connections beside links with many, the smaller of
// both holds.
//
// 4 MiB is where one connection stops getting faster. Buffers follow the
// numbers while connections are open. The stack takes a segment while a buffer
// is not yet full, so each may hold one segment (64 KiB) more: a guest whose
// 1,024 connections are all stuck can reach twice its bound, and a shard with
// nothing but stuck connections 3.5 GiB.
const (
	// maxConnections of one link at a time, both ways, UDP flows included.
	maxConnections = 1024
	// maxShared is how many connections all links of a shard have together,
	// beside sureConnections of each link that nobody takes from it.
	maxShared       = 16384
	sureConnections = 32

	linkBuffers  = 64 << 20
	shardBuffers = 2 << 30
	maxBuffer    = 4 << 20
	minBuffer    = linkBuffers / 2 / maxConnections

	// timeWaitTimeout is how long the stack remembers a connection that it
	// closed first. Nothing is lost or reordered on a link.
	timeWaitTimeout = time.Second
)

// bufferShare is the size of each of the two buffers of n connections that may
// hold total bytes, in bytes.
func bufferShare(total int64, n int) int64 {
	up := int64(1) << bits.Len(uint(max(n, 1)-1))
	return min(max(total/2/up, minBuffer), maxBuffer)
}

// nextShare is what follows the share now when there are n connections. It
// shrinks at once, and grows only when it would for a quarter more, so that a
// number that goes up and down does not resize everything each time.
func nextShare(now, total int64, n int) int64 {
	if share := bufferShare(total, n); share < now {
		return share
	}
	return max(now, bufferShare(total, n+n/4+1))
}

// Shared is what the Links of one shard share out among them. The zero value is
// ready; methods are safe for concurrent use.
type Shared struct {
	share            atomic.Int64 // zero: maxBuffer
	allowed, refused atomic.Int64 // decisions of all links, also of those that left
	limited          atomic.Int64 // of those refused, questions for names held back by a limit
	unlocked         atomic.Pointer[[]sandbox.NetworkRule]
	upstream         atomic.Pointer[upstream.Proxy]

	decrypting atomic.Int64 // connections that are opened for secrets
	rootsPEM   atomic.Pointer[string]
	roots      atomic.Pointer[x509.CertPool] // nil: to be read

	mu    sync.Mutex
	links map[*Link]struct{}
	open  int // connections
}

// Open says which of the addresses that are not public may be reached: those of
// rules with an address or a CIDR; others open nothing. It is for connections
// that begin from now on.
func (s *Shared) Open(rules []sandbox.NetworkRule) { s.unlocked.Store(&rules) }

// opened reports whether an address that is not public may be reached.
func (s *Shared) opened(t policy.Target) bool {
	rules := s.unlocked.Load()
	return rules != nil && slices.ContainsFunc(*rules, func(n sandbox.NetworkRule) bool {
		return n.Domain == "" && !n.Any && n.From <= t.Port && t.Port <= n.To && n.Prefix.Contains(t.Addr)
	})
}

// Through has connections go through a proxy, but for those to what Open lists;
// nil: none. It is for connections that begin from now on.
func (s *Shared) Through(proxy *upstream.Proxy) { s.upstream.Store(proxy) }

// proxyTo returns the proxy that leads to a target; nil: it is dialled directly. The
// proxy may not know the way to what the operator opened, which is near.
func (s *Shared) proxyTo(t policy.Target) *upstream.Proxy {
	proxy := s.upstream.Load()
	if proxy == nil || s.opened(t) {
		return nil
	}
	return proxy
}

// takeOpened counts one more connection that is opened for secrets; false when
// there is no room.
func (s *Shared) takeOpened() bool {
	if s.decrypting.Add(1) > maxSharedOpened {
		s.decrypting.Add(-1)
		return false
	}
	return true
}

func (s *Shared) giveOpened() { s.decrypting.Add(-1) }

// Trust says which authorities, in PEM, are trusted beside the host's when the
// certificate of a host is checked that gets secrets.
func (s *Shared) Trust(pem string) {
	s.rootsPEM.Store(&pem)
	s.roots.Store(nil)
}

// rootPool is whom the host trusts, and whom Trust names.
func (s *Shared) rootPool() *x509.CertPool {
	if pool := s.roots.Load(); pool != nil {
		return pool
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // it trusts nobody
	}
	if pem := s.rootsPEM.Load(); pem != nil {
		pool.AppendCertsFromPEM([]byte(*pem))
	}
	s.roots.Store(pool)
	return pool
}

// Decisions returns how many were taken for all links so far.
func (s *Shared) Decisions() (allowed, refused int64) { return s.allowed.Load(), s.refused.Load() }

// Limited returns how many questions for names, or their answers, a limit held
// back for all links so far.
func (s *Shared) Limited() int64 { return s.limited.Load() }

func (s *Shared) count(allowed bool) {
	if allowed {
		s.allowed.Add(1)
	} else {
		s.refused.Add(1)
	}
}

// cap is the most that one buffer may hold.
func (s *Shared) cap() int64 {
	if n := s.share.Load(); n != 0 {
		return n
	}
	return maxBuffer
}

func (s *Shared) join(l *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links == nil {
		s.links = map[*Link]struct{}{}
	}
	s.links[l] = struct{}{}
}

func (s *Shared) leave(l *Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
}

// take counts one more connection of a link that has n; false when there is no
// room. resize then says that the links' buffers must follow.
func (s *Shared) take(n int) (ok, resize bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n >= sureConnections && s.open >= maxShared {
		return false, false
	}
	s.open++
	return true, s.adjust()
}

func (s *Shared) give() (resize bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	return s.adjust()
}

func (s *Shared) adjust() (changed bool) {
	now := s.cap()
	next := nextShare(now, shardBuffers, s.open)
	s.share.Store(next)
	return next != now
}

// resize has every link fit its buffers. No link's lock is held by the caller.
func (s *Shared) resize() {
	s.mu.Lock()
	links := make([]*Link, 0, len(s.links))
	for l := range s.links {
		links = append(links, l)
	}
	s.mu.Unlock()
	for _, l := range links {
		l.mu.Lock()
		l.fit()
		l.mu.Unlock()
	}
}
