package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"
)

// AuditHash is the SHA-256 of an AuditEntry and of the hash before it. The zero
// one is before the first entry.
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

// An AuditEntry says who did what, from where, and what came of it. It is never
// changed; its hash covers everything in it and the entry before, so whatever
// is changed, taken out or put in later shows.
type AuditEntry struct {
	Seq int64 // from 1, without gaps; the Store's
	At  time.Time

	// Who: empty when nobody was recognized.
	Tenant TenantID
	User   string
	Role   Role
	Key    string // ID of the API Key; empty: another credential

	Operation string // of the contract, of a service, or AuditEnded and the like
	Target    string // ID or name of what it was about; may be empty
	Sandbox   string // ID of the Sandbox that it was about; may be empty
	Detail    string // for Operations of ours; never what a client or Guest wrote

	Remote  string // address of the client; empty: this host
	Request string // ID of the request

	Status int    // HTTP; 0: there was no request
	Code   string // what went wrong: a Code or AuditClientLeft; empty: nothing

	Hash AuditHash // the Store's
}

// Operations that no client asks for.
const (
	// AuditLetGo is a Snapshot that went because its Tenant's Retention says so.
	AuditLetGo = "snapshotExpired"
	// AuditEnded is the end of a Sandbox that nobody asked for; Detail is the Cause.
	AuditEnded = "sandboxEnded"
	// AuditResumed is the first entry after some could not be written; Detail says
	// how many.
	AuditResumed = "auditResumed"
	// AuditTenantSuspended and AuditTenantResumed are in the log of the Tenant that an
	// operator suspended, or had go on.
	AuditTenantSuspended = "tenantSuspended"
	AuditTenantResumed   = "tenantResumed"
	// AuditRefused is a credential that was not valid.
	AuditRefused = "credentialRefused"
)

// AuditClientLeft is the AuditEntry.Code of a request whose client left before
// the answer.
const AuditClientLeft = "client_left"

// AuditText is text as an AuditEntry may have it: valid UTF-8 of at most
// MaxAuditText bytes. What is too long is cut.
func AuditText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MaxAuditText)], "")
}

// auditForm begins what is hashed, so that nothing else that is ever hashed looks
// like it.
const auditForm = "cloud-sandbox audit 1\n"

// HashAfter returns the hash of e when prev is that of the entry before. Each
// field goes in with its length, so that no two entries are hashed alike; At
// counts in microseconds.
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

// AuditOutcome is how an AuditEntry came out, for who searches.
type AuditOutcome string

const (
	AuditOK     AuditOutcome = "ok"
	AuditDenied AuditOutcome = "denied" // not recognized, or not allowed
	AuditFailed AuditOutcome = "failed" // anything else
)

// Outcome sums up Code.
func (e AuditEntry) Outcome() AuditOutcome {
	switch Code(e.Code) {
	case "":
		return AuditOK
	case Anonymous, Denied:
		return AuditDenied
	}
	return AuditFailed
}

// AuditMark is a place in the chain: the entry with this number had this hash.
// The zero one is before the first entry.
type AuditMark struct {
	Seq  int64
	Hash AuditHash
}

// Follow returns the mark of e, which must be the entry right after m: Conflict
// says what is wrong with it.
func (m AuditMark) Follow(e AuditEntry) (AuditMark, error) {
	switch {
	case e.Seq <= m.Seq:
		return m, Errorf(Conflict, "entry %d stands after entry %d", e.Seq, m.Seq)
	case e.Seq != m.Seq+1:
		return m, Errorf(Conflict, "entry %d is missing: after %d comes %d", m.Seq+1, m.Seq, e.Seq)
	case e.Hash != e.HashAfter(m.Hash):
		return m, Errorf(Conflict, "entry %d does not have its hash: it was changed, or what was before it", e.Seq)
	}
	return AuditMark{e.Seq, e.Hash}, nil
}

// AuditQuery chooses entries of a Tenant; its zero value all of them.
type AuditQuery struct {
	Since  time.Time // at or after
	Until  time.Time // before; zero: no bound
	Actor  string    // User or Key
	Target string    // Target or Sandbox

	Operation string
	Outcome   AuditOutcome
	Limit     int    // of a page; zero: MaxAuditPage
	Cursor    string // AuditPage.Next of the page before; empty: the newest
}

// Matches reports whether the query wants e, whatever its time.
func (q AuditQuery) Matches(e AuditEntry) bool {
	return (q.Actor == "" || q.Actor == e.User || q.Actor == e.Key) &&
		(q.Target == "" || q.Target == e.Target || q.Target == e.Sandbox) &&
		(q.Operation == "" || q.Operation == e.Operation) &&
		(q.Outcome == "" || q.Outcome == e.Outcome())
}

// MaxAuditPage bounds AuditQuery.Limit.
const MaxAuditPage = 1000

// AuditPage is some of the entries that were asked for. It may have fewer than
// Limit, even none, and still a Next: how many are looked at for one page is
// bounded.
type AuditPage struct {
	Entries []AuditEntry // newest first
	Next    string       // empty: there are no more
}

// AuditStore keeps the audit log. Whoever changes something writes here.
type AuditStore interface {
	// AppendAudit adds e as the last entry, gives it its Seq and Hash, and returns
	// them. It returns once the entry is written. Several processes may append at
	// once: the chain has no gap and no fork.
	AppendAudit(ctx context.Context, e AuditEntry) (AuditMark, error)
	// ListAudit returns a page of one Tenant's entries. Nothing in it, the Cursor
	// included, tells of other Tenants'. A Cursor that is none of ours and a Limit
	// out of bounds are Invalid.
	ListAudit(ctx context.Context, tenant TenantID, query AuditQuery) (AuditPage, error)
	// ReadAudit calls each with every entry, of all Tenants, oldest first, as they
	// are stored at one moment, after begin with the mark that the first must
	// follow. Nothing is checked here. It ends with their first error.
	ReadAudit(ctx context.Context, begin func(AuditMark) error, each func(AuditEntry) error) error
	// TrimAudit removes entries from the beginning until one is not before the
	// given time, but at most limit, and returns how many. What is left still
	// follows the mark that ReadAudit tells.
	TrimAudit(ctx context.Context, before time.Time, limit int) (int, error)
}
