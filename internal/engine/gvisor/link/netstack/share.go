package netstack

import (
	"crypto/x509"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/link/policy"
	"github.com/cloud-sandbox/cloud-sandbox/internal/upstream"
)

// Memory bounds of a shard:
//
// Each connection has a receive and a send buffer and nothing else (see splice). With n
// connections of a link, n rounded up to a power of two that is at least 8, each buffer
// is 32 MiB / n, so that all buffers of a link are bounded by 64 MiB:
//
//	connections      up to 8   16    32    64     128    256    512   1024
//	each buffer        4 MiB  2 MiB 1 MiB 512 KiB 256 KiB 128 KiB 64 KiB 32 KiB
//
// In the same way the buffers of all links together are bounded by 2 GiB: with 256
// connections in the shard a buffer is at most 4 MiB, with 16,384 at most 64 KiB. The
// smaller of the two bounds applies.
//
// A single connection gets no faster beyond 4 MiB. Buffers follow the numbers while
// connections are open. The stack takes a segment while a buffer is not yet full, so each
// may hold one segment (64 KiB) more: a guest whose 1,024 connections are all stuck can
// reach twice its bound, and a shard with only stuck connections 3.5 GiB.
const (
	// maxConnections bounds the connections of one link, both ways, UDP flows included.
	maxConnections = 1024
	// maxShared bounds the connections of all links of a shard together. The first
	// sureConnections of each link are admitted beyond it.
	maxShared       = 16384
	sureConnections = 32

	linkBuffers  = 64 << 20
	shardBuffers = 2 << 30
	maxBuffer    = 4 << 20
	minBuffer    = linkBuffers / 2 / maxConnections

	// timeWaitTimeout is how long the stack remembers a connection that it closed first.
	// A link neither loses nor reorders frames.
	timeWaitTimeout = time.Second
)

// bufferShare is the size in bytes of each of the two buffers of n connections that may
// hold total bytes together.
func bufferShare(total int64, n int) int64 {
	up := int64(1) << bits.Len(uint(max(n, 1)-1))
	return min(max(total/2/up, minBuffer), maxBuffer)
}

// nextShare returns the share after now when there are n connections. It shrinks at once,
// and grows only when it would for a quarter more connections, so that a fluctuating
// number does not resize all buffers each time.
func nextShare(now, total int64, n int) int64 {
	if share := bufferShare(total, n); share < now {
		return share
	}
	return max(now, bufferShare(total, n+n/4+1))
}

// Shared is the state and the limits that the Links of one shard share. The zero value is
// ready; methods are safe for concurrent use.
type Shared struct {
	share            atomic.Int64 // zero: maxBuffer
	allowed, refused atomic.Int64 // decisions of all links, also of closed ones
	limited          atomic.Int64 // the refused DNS queries over a limit
	unlocked         atomic.Pointer[[]sandbox.NetworkRule]
	upstream         atomic.Pointer[upstream.Proxy]

	decrypting atomic.Int64 // connections with TLS terminated for secrets
	rootsPEM   atomic.Pointer[string]
	roots      atomic.Pointer[x509.CertPool] // nil: not read yet

	fence fence

	mu    sync.Mutex
	links map[*Link]struct{}
	open  int // connections
}

// Open sets the non-public addresses that may be reached: the addresses of rules with
// an address or a CIDR. Other rules open nothing. It applies to new connections.
func (s *Shared) Open(rules []sandbox.NetworkRule) { s.unlocked.Store(&rules) }

// opened reports whether Open lists a target.
func (s *Shared) opened(t policy.Target) bool {
	rules := s.unlocked.Load()
	return rules != nil && slices.ContainsFunc(*rules, func(n sandbox.NetworkRule) bool {
		return n.Domain == "" && !n.Any && n.From <= t.Port && t.Port <= n.To && n.Prefix.Contains(t.Addr)
	})
}

// Through sets the proxy for all connections except to addresses that Open lists; nil:
// none. It applies to new connections.
func (s *Shared) Through(proxy *upstream.Proxy) { s.upstream.Store(proxy) }

// proxyTo returns the proxy for a target; nil: it is dialled directly. Opened addresses
// are local, so the proxy may have no route to them.
func (s *Shared) proxyTo(t policy.Target) *upstream.Proxy {
	proxy := s.upstream.Load()
	if proxy == nil || s.opened(t) {
		return nil
	}
	return proxy
}

// takeOpened counts one more connection with terminated TLS; false when the bound is
// reached.
func (s *Shared) takeOpened() bool {
	if s.decrypting.Add(1) > maxSharedOpened {
		s.decrypting.Add(-1)
		return false
	}
	return true
}

func (s *Shared) giveOpened() { s.decrypting.Add(-1) }

// Trust sets the CAs, in PEM, that may certify hosts which get secrets, beside the host's
// trusted CAs.
func (s *Shared) Trust(pem string) {
	s.rootsPEM.Store(&pem)
	s.roots.Store(nil)
}

// rootPool is the host's trusted CAs and the CAs that Trust set.
func (s *Shared) rootPool() *x509.CertPool {
	if pool := s.roots.Load(); pool != nil {
		return pool
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // it trusts no CA
	}
	if pem := s.rootsPEM.Load(); pem != nil {
		pool.AppendCertsFromPEM([]byte(*pem))
	}
	s.roots.Store(pool)
	return pool
}

// Decisions returns the counts of decisions for all links so far.
func (s *Shared) Decisions() (allowed, refused int64) { return s.allowed.Load(), s.refused.Load() }

// Limited returns how many DNS queries, or their answers, were refused for a limit, for
// all links so far.
func (s *Shared) Limited() int64 { return s.limited.Load() }

func (s *Shared) count(allowed bool) {
	if allowed {
		s.allowed.Add(1)
	} else {
		s.refused.Add(1)
	}
}

// cap bounds the size of one buffer, in bytes.
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

// joined returns the present links.
func (s *Shared) joined() []*Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.links))
}

// take counts one more connection of a link that has n; false when the bound is reached.
// If resize is true, the links' buffers must be resized.
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

// resize makes every link fit its buffers. The caller holds no link's lock.
func (s *Shared) resize() {
	for _, l := range s.joined() {
		l.mu.Lock()
		l.fit()
		l.mu.Unlock()
	}
}
