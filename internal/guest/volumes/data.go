package volumes

import (
	"bytes"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-sandbox/cloud-sandbox/internal/volume"
)

const (
	// smallData is the maximum of a read or write that needs no large buffer, in
	// bytes.
	smallData = 32 << 10
	// maxAhead is the maximum length in bytes of a file that is sent with the
	// answer to its opening, and maxAheads the maximum number of files that are
	// kept so.
	maxAhead  = 64 << 10
	maxAheads = 16
)

// ahead is a whole file that was sent when it was opened. The Node promised that no
// other Boot changes it for volume.LeaseTime, counted from the request.
type ahead struct {
	promise   int64 // number of the promise
	attr      volume.Attr
	data      []byte
	asked     time.Time
	askedWall time.Time // the same by the wall clock
}

// holds reports whether the promise is still valid. Both clocks must say so: after
// a save and a restore the monotonic clock continues from the save, but the wall
// clock does not.
func (a *ahead) holds() bool {
	now := time.Now()
	byWall := now.Round(0).Sub(a.askedWall)
	return now.Sub(a.asked) < volume.LeaseTime && byWall >= 0 && byWall < volume.LeaseTime
}

// aheads are the prefetched files of one Volume. All its mounts share them.
type aheads struct {
	mu       sync.Mutex
	files    map[uint64]ahead // by node number
	began    uint64           // how many changes of files' bytes began in this Boot
	changing int              // how many of them are in progress
	expected map[uint64]int   // how many openings of a file may still prefetch it
}

func newAheads() *aheads { return &aheads{files: map[uint64]ahead{}, expected: map[uint64]int{}} }

// of returns the prefetched content of a file while its promise holds.
func (s *aheads) of(node uint64) (ahead, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.files[node]
	if ok && !a.holds() {
		delete(s.files, node)
		return ahead{}, false
	}
	return a, ok
}

// change records that this Boot may change the bytes of files from now on, until
// changed is called: prefetched files, and those in transit, may be outdated then.
func (s *aheads) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began++
	s.changing++
	clear(s.files)
}

func (s *aheads) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changing--
}

// expect registers an opening that may prefetch a file. The caller calls the returned
// function once: with the promise that came, or zero. The file is kept unless this Boot
// may have changed it after the Node read it.
func (s *aheads) expect(node uint64) (told func(promise int64, attr volume.Attr, data []byte)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, began, quiet := time.Now(), s.began, s.changing == 0
	s.expected[node]++
	return func(promise int64, attr volume.Attr, data []byte) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.expected[node]--; s.expected[node] == 0 {
			delete(s.expected, node)
		}
		if promise == 0 || !quiet || s.began != began {
			return
		}
		if len(s.files) >= maxAheads {
			clear(s.files)
		}
		s.files[node] = ahead{promise, attr, data, asked, asked.Round(0)}
	}
}

// drop removes a prefetched file, and returns the promise to give back. It returns
// zero for none, also while another opening may rely on the same promise.
func (s *aheads) drop(node uint64) (promise int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected[node] == 0 {
		promise = s.files[node].promise
	}
	delete(s.files, node)
	return promise
}

// change records that the query may change the bytes of files.
func (q *query) change() {
	q.changes = true
	q.m.aheads.change()
}

// open opens a file, with these flags.
func (q *query) open(flags uint32) {
	m, node := q.m, q.h.node
	q.out = appendOpen(q.out, node)
	switch {
	case flags&unix.O_TRUNC != 0:
		q.change()
		q.later(func() syscall.Errno {
			if _, err := m.ask(volume.Request{Op: volume.OpSetAttr, Node: node, Set: volume.SetSize}); err != 0 {
				return err
			}
			_, err := m.ask(volume.Request{Op: volume.OpHold, Node: node})
			return err
		})
	case flags&unix.O_ACCMODE != unix.O_RDONLY:
		q.ask(volume.Request{Op: volume.OpHold, Node: node}, nil)
	default:
		q.openAhead()
	}
}

// openAhead opens a file for reading, and prefetches it if it is short.
func (q *query) openAhead() {
	q.place(false)
	told := q.m.aheads.expect(q.h.node)
	r := volume.Request{Op: volume.OpOpen, Mount: q.m.number, Node: q.h.node, Size: maxAhead}
	q.m.link.start(&question{request: r, done: func(a volume.Answer) {
		told(a.Count, a.Attr, a.Data)
		q.end(a.Err)
	}})
}

// release ends the use of an open file; no caller waits for it.
func (q *query) release() {
	m := q.m
	promise := m.aheads.drop(q.h.node)
	m.link.queries <- struct{}{}
	m.link.start(&question{
		request: volume.Request{Op: volume.OpRelease, Mount: m.number, Node: q.h.node, Other: uint64(promise)},
		done:    func(volume.Answer) { <-m.link.queries },
	})
	q.end(0)
}

// pieces are the requests to the Node for one read or write of the kernel.
type pieces struct {
	mu      sync.Mutex
	left    int
	answers []volume.Answer
	done    func(answers []volume.Answer)
}

// askAll sends all requests at once. The Data of their answers is stored in into,
// if that is set. The answers come in the order of the requests.
func (q *query) askAll(requests []volume.Request, into [][]byte, done func([]volume.Answer)) {
	p := &pieces{left: len(requests), answers: make([]volume.Answer, len(requests)), done: done}
	questions := make([]*question, len(requests))
	for i, r := range requests {
		r.Mount = q.m.number
		questions[i] = &question{request: r, done: func(a volume.Answer) { p.add(i, a) }}
		if into != nil {
			questions[i].into = into[i]
		}
	}
	q.m.link.start(questions...)
}

func (p *pieces) add(i int, a volume.Answer) {
	p.mu.Lock()
	p.answers[i] = a
	p.left--
	last := p.left == 0
	p.mu.Unlock()
	if last {
		p.done(p.answers)
	}
}

// read reads size bytes of a file.
func (q *query) read(offset int64, size int) {
	if a, ok := q.m.aheads.of(q.h.node); ok && offset >= 0 {
		from := min(offset, int64(len(a.data)))
		q.out = append(q.out, a.data[from:min(from+int64(size), int64(len(a.data)))]...)
		q.end(0)
		return
	}
	q.place(size > smallData)
	var buf []byte
	if q.large {
		q.buffer = q.m.link.buffer()
		buf = q.buffer
	} else {
		buf = make([]byte, outHead+size)
	}
	var requests []volume.Request
	var into [][]byte
	for at := 0; at < size || at == 0; at += volume.MaxData {
		n := min(size-at, volume.MaxData)
		requests = append(requests, volume.Request{Op: volume.OpRead, Node: q.h.node, Offset: offset + int64(at), Size: uint32(n)})
		into = append(into, buf[outHead+at:][:n])
	}
	q.askAll(requests, into, func(answers []volume.Answer) {
		n, err := 0, answers[0].Err
		for i, a := range answers {
			n += len(a.Data)
			if a.Err != 0 || len(a.Data) < len(into[i]) {
				break // data after a gap is not read
			}
		}
		q.out = buf[:outHead+n]
		q.end(err)
	})
}

// buffer returns a buffer for the largest answer. The number of buffers is bounded
// by the number of queries that may have one.
func (l *link) buffer() []byte {
	select {
	case b := <-l.buffers:
		return b
	default:
		return make([]byte, outHead+maxData)
	}
}

// write writes into a file: fh, offset, size, flags, lock owner, flags of the file.
func (q *query) write(in []byte) {
	offset, size, data := int64(order.Uint64(in[8:])), order.Uint32(in[16:]), in[40:]
	if uint64(len(data)) < uint64(size) || len(data) > maxData {
		q.end(unix.EINVAL)
		return
	}
	data = data[:size]
	q.change()
	q.place(len(data) > smallData)
	r := volume.Request{Op: volume.OpWrite, Node: q.h.node}
	if order.Uint32(in[32:])&unix.O_APPEND != 0 {
		r.Flags = volume.FlagAppend // the kernel may have an outdated size
		if len(data) > volume.MaxData {
			go q.append(r, bytes.Clone(data)) // the kernel's next request reuses data's memory
			return
		}
	}
	var requests []volume.Request
	for at := 0; at < len(data) || at == 0; at += volume.MaxData {
		r.Offset, r.Data = offset+int64(at), data[at:min(at+volume.MaxData, len(data))]
		requests = append(requests, r)
	}
	q.askAll(requests, nil, func(answers []volume.Answer) {
		n, err := int64(0), answers[0].Err
		for i, a := range answers {
			n += a.Count
			if a.Err != 0 || a.Count < int64(len(requests[i].Data)) {
				break
			}
		}
		q.written(n, err)
	})
}

// append appends data to a file in pieces, one after the other: concurrently, a
// later piece could find space where an earlier one did not. An error of a later
// piece is returned by the next call.
func (q *query) append(r volume.Request, data []byte) {
	n, first := int64(0), syscall.Errno(0)
	for at := 0; at < len(data); at += volume.MaxData {
		r.Data = data[at:min(at+volume.MaxData, len(data))]
		a, err := q.m.ask(r)
		n += a.Count
		if err != 0 || a.Count < int64(len(r.Data)) {
			if at == 0 {
				first = err
			}
			break
		}
	}
	q.written(n, first)
}

// written answers how many bytes were written.
func (q *query) written(n int64, err syscall.Errno) {
	q.out = order.AppendUint32(q.out, uint32(n))
	q.out = append(q.out, make([]byte, 4)...)
	q.end(err)
}
