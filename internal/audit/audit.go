// Package audit exports the audit log as JSON Lines and checks it, in the Store or in
// an exported file.
package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
)

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// line is an exported entry: all fields that its hash covers, and the hash of the
// previous entry, so that a file that begins anywhere can be checked.
type line struct {
	Seq       int64  `json:"seq"`
	At        string `json:"at"`
	Tenant    string `json:"tenant"`
	User      string `json:"user"`
	Role      string `json:"role"`
	KeyID     string `json:"key_id"`
	Operation string `json:"operation"`
	Target    string `json:"target"`
	SandboxID string `json:"sandbox_id"`
	Detail    string `json:"detail"`
	Remote    string `json:"remote"`
	RequestID string `json:"request_id"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Outcome   string `json:"outcome"` // follows from Code
	Prev      string `json:"prev_hash"`
	Hash      string `json:"hash"`
}

func lineOf(e sandbox.AuditEntry, prev sandbox.AuditHash) line {
	return line{
		Seq: e.Seq, At: e.At.UTC().Format(time.RFC3339Nano), Tenant: string(e.Tenant), User: e.User, Role: string(e.Role), KeyID: e.Key,
		Operation: e.Operation, Target: e.Target, SandboxID: e.Sandbox, Detail: e.Detail, Remote: e.Remote, RequestID: e.Request,
		Status: e.Status, Code: e.Code, Outcome: string(e.Outcome()), Prev: prev.String(), Hash: e.Hash.String(),
	}
}

// entry is the reverse of lineOf.
func (l line) entry() (e sandbox.AuditEntry, prev sandbox.AuditHash, err error) {
	e = sandbox.AuditEntry{
		Seq: l.Seq, Tenant: sandbox.TenantID(l.Tenant), User: l.User, Role: sandbox.Role(l.Role), Key: l.KeyID,
		Operation: l.Operation, Target: l.Target, Sandbox: l.SandboxID, Detail: l.Detail, Remote: l.Remote, Request: l.RequestID,
		Status: l.Status, Code: l.Code,
	}
	if e.At, err = time.Parse(time.RFC3339Nano, l.At); err != nil || e.At.Nanosecond()%1000 != 0 {
		return e, prev, errors.New("at is not a time in microseconds")
	}
	if l.Outcome != string(e.Outcome()) {
		return e, prev, errors.New("outcome does not follow from code")
	}
	if e.Hash, err = sandbox.ParseAuditHash(l.Hash); err != nil {
		return e, prev, err
	}
	prev, err = sandbox.ParseAuditHash(l.Prev)
	return e, prev, err
}

// Export writes the wanted entries of the log, all or a Tenant's, as JSON Lines,
// oldest first. It checks nothing. Only an export of the whole log can be checked.
func Export(ctx context.Context, from sandbox.AuditStore, to io.Writer, wanted func(sandbox.AuditEntry) bool) error {
	out := bufio.NewWriter(to)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	var prev sandbox.AuditHash
	err := from.ReadAudit(ctx, func(m sandbox.AuditMark) error {
		prev = m.Hash
		return nil
	}, func(e sandbox.AuditEntry) error {
		before := prev
		prev = e.Hash
		if !wanted(e) {
			return nil
		}
		return lines.Encode(lineOf(e, before))
	})
	return errors.Join(err, out.Flush())
}

// A Checker checks a log, entry by entry.
type Checker struct {
	// Expect is a mark that the log must contain; nil: none. It reveals a truncated log.
	Expect *sandbox.AuditMark
	// Entries is the number of checked entries.
	Entries int
	// First is the mark before the first entry, Last the newest entry's.
	First, Last sandbox.AuditMark
	seen        bool // Expect was found
}

func (c *Checker) begin(m sandbox.AuditMark) error {
	c.First, c.Last = m, m
	return c.expect()
}

// expect compares Last with Expect at the same position.
func (c *Checker) expect() error {
	if c.Expect == nil || c.Expect.Seq != c.Last.Seq {
		return nil
	}
	c.seen = true
	if c.Expect.Hash != c.Last.Hash {
		return fmt.Errorf("entry %d has another hash than expected: the log was rewritten from this entry or an earlier one", c.Last.Seq)
	}
	return nil
}

func (c *Checker) next(e sandbox.AuditEntry) error {
	next, err := c.Last.Follow(e)
	if err != nil {
		return err
	}
	c.Last = next
	c.Entries++
	return c.expect()
}

func (c *Checker) end() error {
	switch {
	case c.Expect == nil || c.seen:
		return nil
	case c.Expect.Seq < c.First.Seq:
		return fmt.Errorf("the expected entry %d was removed for its age: the log begins after entry %d", c.Expect.Seq, c.First.Seq)
	}
	return fmt.Errorf("the log ends with entry %d, before the expected entry %d: its end was cut off", c.Last.Seq, c.Expect.Seq)
}

// Store checks the whole log of a Store. The error names the first entry that is
// wrong.
func (c *Checker) Store(ctx context.Context, from sandbox.AuditStore) error {
	if err := from.ReadAudit(ctx, c.begin, c.next); err != nil {
		return err
	}
	return c.end()
}

// Lines checks a whole export. The error names the first entry that is wrong.
func (c *Checker) Lines(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		if err := c.line(lines.Bytes(), n); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("after entry %d: %w", c.Last.Seq, err)
	}
	return c.end()
}

func (c *Checker) line(text []byte, n int) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var l line
	if err := d.Decode(&l); err != nil {
		return fmt.Errorf("line %d, after entry %d, is not an entry: %w", n, c.Last.Seq, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d has more than one entry", n)
	}
	e, prev, err := l.entry()
	if err != nil {
		return fmt.Errorf("line %d, entry %d: %w", n, l.Seq, err)
	}
	if n == 1 {
		if err := c.begin(sandbox.AuditMark{Seq: e.Seq - 1, Hash: prev}); err != nil {
			return err
		}
		if e.Seq == 1 && prev != (sandbox.AuditHash{}) {
			return errors.New("entry 1 names an entry before it")
		}
	}
	if prev != c.Last.Hash && e.Seq == c.Last.Seq+1 {
		return fmt.Errorf("entry %d does not continue from entry %d: the hashes differ", e.Seq, c.Last.Seq)
	}
	return c.next(e)
}

// ParseMark reads SEQ:HASH, as Mark writes it.
func ParseMark(text string) (sandbox.AuditMark, error) {
	seq, hash, ok := strings.Cut(text, ":")
	n, err := strconv.ParseInt(seq, 10, 64)
	if !ok || err != nil || n < 0 {
		return sandbox.AuditMark{}, fmt.Errorf("%.100q is not SEQ:HASH, as verify prints it", text)
	}
	h, err := sandbox.ParseAuditHash(hash)
	if err != nil {
		return sandbox.AuditMark{}, fmt.Errorf("%.100q is not SEQ:HASH: %w", text, err)
	}
	return sandbox.AuditMark{Seq: n, Hash: h}, nil
}

// Mark writes a mark so that ParseMark reads it.
func Mark(m sandbox.AuditMark) string { return fmt.Sprintf("%d:%s", m.Seq, m.Hash) }
