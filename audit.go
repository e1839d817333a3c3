package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// AuditHash is the SHA-256 of an AuditEntry and the previous entry's hash. The zero value
// precedes the first entry.
type AuditHash [sha256.Size]byte

func (h AuditHash) String() string { return hex.EncodeToString(h[:]) }

// ParseAuditHash is the reverse of AuditHash.String; Invalid for other text.
func ParseAuditHash(text string) (h AuditHash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return h, Errorf(Invalid, "a hash is %d hexadecimal digits", 2*len(h))
	}
	return AuditHash(b), nil
}

// MaxAuditText bounds each text of an AuditEntry, in bytes.
const MaxAuditText = 256

// An AuditEntry records an operation: its actor, origin and outcome. It is immutable. Its
// hash covers all its fields and the previous hash, so that later changes, removals and
// insertions are detected.
type AuditEntry struct {
	Seq int64 // from 1, without gaps; set by the Store
	At  time.Time

	// The actor; empty if not authenticated.
	Tenant TenantID
	User   string
	Role   Role
	Key    string // ID of the API Key; empty: another credential

	Operation string // of the API contract, of a service, or one of the Audit constants below
	Target    string // ID or name of the object; may be empty
	Sandbox   string // ID of the Sandbox concerned; may be empty
	Detail    string // for the server's own Operations; never text from a client or Guest

	Remote  string // address of the client; empty: this host
	Request string // ID of the request

	Status int    // HTTP status; 0: no request
	Code   string // a Code or AuditClientLeft; empty: success

	Hash AuditHash // set by the Store
}

// Operations of the server itself.
const (
	// AuditRetention is the deletion of a Snapshot by its Tenant's Retention.
	AuditRetention = "snapshotExpired"
	// AuditEnded is the end of a Sandbox without a request; Detail is the Cause.
	AuditEnded = "sandboxEnded"
	// AuditResumed is the first entry after lost entries; Detail has their number.
	AuditResumed = "auditResumed"
	// AuditTenantSuspended and AuditTenantResumed appear in the log of the Tenant that an
	// operator suspended or resumed.
	AuditTenantSuspended = "tenantSuspended"
	AuditTenantResumed   = "tenantResumed"
	// AuditRefused is the use of an invalid credential.
	AuditRefused = "credentialRefused"
)

// AuditClientLeft is the AuditEntry.Code of a request whose client disconnected before
// the response.
const AuditClientLeft = "client_left"

// AuditText makes text valid for an AuditEntry: it cuts text to MaxAuditText bytes and
// removes invalid UTF-8 and NUL, which not every Store can keep.
func AuditText(text string) string {
	return StorableText(text[:min(len(text), MaxAuditText)])
}

// StorableText returns text without invalid UTF-8 and NUL.
func StorableText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

// auditForm is the prefix of the hashed bytes. It keeps them distinct from any other
// hashed data.
const auditForm = "cloud-sandbox audit 1\n"

// HashAfter returns the hash of e, where prev is the previous entry's hash. Each field is
// hashed with its length, so that different entries give different bytes. At is hashed in
// microseconds.
func (e AuditEntry) HashAfter(prev AuditHash) AuditHash {
	b := make([]byte, 0, 512)
	b = append(b, auditForm...)
	b = append(b, prev[:]...)
	for _, n := range []int64{e.Seq, e.At.UnixMicro(), int64(e.Status)} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	for _, text := range []string{
		string(e.Tenant), e.User, string(e.Role), e.Key, e.Operation, e.Target, e.Sandbox, e.Detail, e.Remote, e.Request, e.Code,
	} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	return sha256.Sum256(b)
}

// AuditOutcome classifies an AuditEntry for queries.
type AuditOutcome string

const (
	AuditOK     AuditOutcome = "ok"
	AuditDenied AuditOutcome = "denied" // not authenticated, or not allowed
	AuditFailed AuditOutcome = "failed" // anything else
)

// Outcome returns the AuditOutcome of Code.
func (e AuditEntry) Outcome() AuditOutcome {
	switch Code(e.Code) {
	case "":
		return AuditOK
	case Anonymous, Denied:
		return AuditDenied
	}
	return AuditFailed
}

// AuditMark is a position in the chain: the number and hash of an entry. The zero value
// precedes the first entry.
type AuditMark struct {
	Seq  int64
	Hash AuditHash
}

// Follow returns the mark of e, which must be the entry right after m. A Conflict says
// what is wrong with e.
func (m AuditMark) Follow(e AuditEntry) (AuditMark, error) {
	switch {
	case e.Seq <= m.Seq:
		return m, Errorf(Conflict, "entry %d stands after entry %d", e.Seq, m.Seq)
	case e.Seq != m.Seq+1:
		return m, Errorf(Conflict, "entry %d is missing: after %d comes %d", m.Seq+1, m.Seq, e.Seq)
	case e.Hash != e.HashAfter(m.Hash):
		return m, Errorf(Conflict, "entry %d does not match its hash: it, or an entry before it, was changed", e.Seq)
	}
	return AuditMark{e.Seq, e.Hash}, nil
}

// AuditQuery selects entries of a Tenant; its zero value selects all.
type AuditQuery struct {
	Since  time.Time // at or after
	Until  time.Time // before; zero: no bound
	Actor  string    // User or Key
	Target string    // Target or Sandbox

	Operation string
	Outcome   AuditOutcome
	Limit     int    // of a page; zero: MaxAuditPage
	Cursor    string // AuditPage.Next; empty: first page, the newest entries
}

// Matches reports whether e matches the query, except for Since and Until.
func (q AuditQuery) Matches(e AuditEntry) bool {
	return (q.Actor == "" || q.Actor == e.User || q.Actor == e.Key) &&
		(q.Target == "" || q.Target == e.Target || q.Target == e.Sandbox) &&
		(q.Operation == "" || q.Operation == e.Operation) &&
		(q.Outcome == "" || q.Outcome == e.Outcome())
}

// MaxAuditPage bounds AuditQuery.Limit.
const MaxAuditPage = 1000

// AuditPage is one page of the matching entries. It may have fewer than Limit, even none,
// and still a Next, because the number of entries scanned for one page is bounded.
type AuditPage struct {
	Entries []AuditEntry // newest first
	Next    string       // empty: last page
}

// AuditStore keeps the audit log. Every role that changes something writes here.
type AuditStore interface {
	// AppendAudit adds e as the last entry, sets its Seq and Hash, and returns them once
	// the entry is written. Concurrent appends, also from several processes, leave no gap
	// and no fork in the chain. started are the IDs of Sandboxes that the request started:
	// unless all are recorded, and not as Starting, it writes nothing and returns
	// LostRecord.
	AppendAudit(ctx context.Context, e AuditEntry, started ...string) (AuditMark, error)
	// ListAudit returns a page of one Tenant's entries. Nothing in it, not even the
	// Cursor, reveals other Tenants' entries. A malformed Cursor and a Limit out of
	// bounds are Invalid.
	ListAudit(ctx context.Context, tenant TenantID, query AuditQuery) (AuditPage, error)
	// ReadAudit calls begin with the mark that the first entry must follow, then each
	// with every entry of all Tenants, oldest first, from one consistent snapshot. It
	// does not verify the chain. It stops at the first error of begin or each.
	ReadAudit(ctx context.Context, begin func(AuditMark) error, each func(AuditEntry) error) error
	// TrimAudit removes the oldest entries up to the first that is not before the given
	// time, at most limit, and returns their number. The remaining entries still follow
	// the mark of ReadAudit.
	TrimAudit(ctx context.Context, before time.Time, limit int) (int, error)
}
