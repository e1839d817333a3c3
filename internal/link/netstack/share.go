package netstack

import (
	"math/bits"
	"time"
)

// What a guest can make the stack hold for it:
//
// Each connection has a receive and a send buffer of bufferShare bytes, and
// nothing else (see splice). With n connections, n rounded up to a power of two
// that is at least 8, the share is 32 MiB / n, so all buffers together are
// bounded by 64 MiB:
//
//	connections      up to 8   16    32    64     128    256    512   1024
//	each buffer        4 MiB  2 MiB 1 MiB 512 KiB 256 KiB 128 KiB 64 KiB 32 KiB
//
// 4 MiB is where one connection stops getting faster. Buffers follow the number
// both ways while connections are open. The stack takes a segment while a
// buffer is not yet full, so each may hold one segment (64 KiB) more: a guest
// whose 1,024 connections are all stuck can reach twice the bound, for what it
// has sent and nobody takes.
const (
	buffersTotal = 64 << 20
	maxBuffer    = 4 << 20
	minBuffer    = buffersTotal / 2 / maxConnections

	// timeWaitTimeout is how long the stack remembers a connection that it
	// closed first. Nothing is lost or reordered on a link.
	timeWaitTimeout = time.Second
)

// bufferShare is the size of each of the two buffers of every connection when
// there are n, in bytes.
func bufferShare(n int) int64 {
	if n <= buffersTotal/2/maxBuffer {
		return maxBuffer
	}
	up := 1 << bits.Len(uint(n-1))
	return max(buffersTotal/2/int64(up), minBuffer)
}
