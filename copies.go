package sandbox

import (
	"context"
	"strings"
	"time"
)

// CopyRecords is a Node's access to the records of the copies of saved states in Blobs. All
// Nodes of an installation share the packs of a copy, which are blobs with parts of
// states. A Node registers each pack before it puts or uses it. It never deletes one: the
// session manager that leads deletes the packs that no copy uses, by CopyGarbage.
//
// The argument node is as in NodeRecords.
type CopyRecords interface {
	// KeepCopyKey returns the sealed key of the copies whose Blobs begin with prefix.
	// If the Store has none yet, it stores sealed and returns it. Invalid unless
	// CheckCopyKey accepts both, Exhausted when the Store has MaxCopyKeys. Nodes that
	// make the first copies of a Tenant at the same time so use one key. The keys are
	// sealed with a key that the Store does not have.
	KeepCopyKey(ctx context.Context, prefix string, sealed []byte) ([]byte, error)
	// PackScope returns a random text that never changes. It is part of the names of
	// packs, so that installations that share Blobs do not share packs.
	PackScope(ctx context.Context) (string, error)
	// BeginCopy begins an attempt at the copy of a state. Calls of former attempts at it are
	// refused from then on. NotFound unless the state is of a Snapshot of the Node that is
	// not being deleted. Unavailable while a former copy with the same prefix is being
	// deleted.
	BeginCopy(ctx context.Context, node string, c CopyRef) (CopyAttempt, error)
	// UsePacks records that an attempt uses packs, and that the Node puts blobs of the copy
	// for use.Life from before the call. It returns the packs that it did not record and
	// that the Node must neither put nor use: they are being deleted, or they are not known
	// and use.Shared. Invalid unless use.Check accepts it, NotFound as BeginCopy, and
	// Conflict unless it is the latest attempt.
	UsePacks(ctx context.Context, node string, use PackUse) (refused []string, err error)
	// CompleteCopy records that the copy is complete in Blobs, with the packs of this
	// attempt, and that all puts of this attempt have ended. Copies of the state with another
	// prefix are released, and the packs of earlier attempts unless one of these may
	// still put its list, which needs them. Errors as of UsePacks.
	CompleteCopy(ctx context.Context, node string, c CopyAttempt) error
	// AbandonCopy records that a Node has stopped the latest attempt at the copy of a state
	// that is being deleted or is gone, and that it may have put these packs. If no other copy uses
	// them, they are deleted. Conflict for a state that is needed, or of another Node.
	AbandonCopy(ctx context.Context, node string, c AbandonedCopy) error
	// FindCopy returns the prefix of the complete copy of a state of a Tenant. NotFound if
	// no such copy is recorded: Nodes of earlier versions record none.
	FindCopy(ctx context.Context, tenant TenantID, snapshot string) (prefix string, err error)
}

// CopyGarbage finds and removes the records of blobs that are not needed. Each method is a
// write, so that a former leader's is refused. Blobs are deleted before their records.
type CopyGarbage interface {
	// CopiesLeft returns up to limit copies that nothing needs and that no Node puts.
	CopiesLeft(ctx context.Context, limit int) ([]CopyRef, error)
	// DropCopy removes the record of a copy that CopiesLeft returned, and releases its
	// packs. With more it has released some, and needs another call.
	DropCopy(ctx context.Context, c CopyRef) (more bool, err error)
	// PacksLeft returns up to limit packs that no copy uses. No Node puts them.
	PacksLeft(ctx context.Context, limit int) ([]string, error)
	// DropPacks removes the records of packs that PacksLeft returned. From then on Nodes
	// may put them again.
	DropPacks(ctx context.Context, names []string) error
}

// CopyStore keeps the records of copies.
type CopyStore interface {
	CopyRecords
	CopyGarbage
}

// CopyRef names a copy of a saved state: of the blobs with a prefix.
type CopyRef struct {
	Snapshot string
	Prefix   string // of the names of its blobs
}

// List is the name of the blob that lists the content of the copy.
func (c CopyRef) List() string { return c.Prefix + "/s/" + c.Snapshot }

// packPrefix begins the names of the packs of copies with a prefix.
func packPrefix(prefix string) string { return prefix + "/p/" }

// PackName is the name of the pack with this hash.
func PackName(prefix, hash string) string { return packPrefix(prefix) + hash }

// CopyAttempt is one attempt at a copy. A call of a process that has died may arrive after
// its successor's: the number tells them apart.
type CopyAttempt struct {
	CopyRef
	Number int64
}

// PackUse tells that an attempt at a copy uses packs.
type PackUse struct {
	CopyAttempt
	Packs  []string
	Shared bool          // the Node does not put them: another copy has
	Life   time.Duration // at most MaxPutLife
}

// AbandonedCopy is a copy that a Node has stopped. Without a Prefix the Node has put
// only recorded packs.
type AbandonedCopy struct {
	CopyRef
	Packs []string
}

const (
	// MaxPacks bounds the packs in one call.
	MaxPacks = 1000
	// MaxPutLife bounds the time in which a Node may put the blobs of a copy after it has
	// registered them: a Node that vanishes must not keep them from being deleted for long.
	MaxPutLife = time.Hour
	// MaxCopyKeys bounds the keys of a CopyStore: a Node makes one for each Tenant and
	// each key of the operator.
	MaxCopyKeys = 1_000_000
	// maxCopyKey bounds a sealed key, in bytes.
	maxCopyKey = 1024
)

var (
	copyPrefixPattern = lazily(`^[0-9a-f]{32}$`)
	packHashPattern   = lazily(`^[0-9a-f]{64}$`)
)

// CheckCopyKey returns Invalid unless a CopyStore can keep sealed for prefix.
func CheckCopyKey(prefix string, sealed []byte) error {
	if err := checkCopyPrefix(prefix); err != nil {
		return err
	}
	if len(sealed) == 0 || len(sealed) > maxCopyKey {
		return Errorf(Invalid, "the sealed key of copies of snapshots has 1 to %d bytes", maxCopyKey)
	}
	return nil
}

func checkCopyPrefix(prefix string) error {
	if !copyPrefixPattern.MatchString(prefix) {
		return Errorf(Invalid, "the prefix of copies of snapshots has 32 hex digits")
	}
	return nil
}

// Check returns Invalid unless c names a copy.
func (c CopyRef) Check() error {
	if !ValidSnapshotID(c.Snapshot) {
		return Errorf(Invalid, "the snapshot ID is invalid")
	}
	return checkCopyPrefix(c.Prefix)
}

// Check returns Invalid unless a CopyStore can record the use.
func (u PackUse) Check() error {
	if u.Life < 0 || u.Life > MaxPutLife {
		return Errorf(Invalid, "a copy is put within %v", MaxPutLife)
	}
	if err := u.CopyRef.Check(); err != nil {
		return err
	}
	return checkPacks(u.Prefix, u.Packs)
}

// Check returns Invalid unless a CopyStore can record that the copy was abandoned.
func (c AbandonedCopy) Check() error {
	if c.Prefix == "" && len(c.Packs) == 0 && ValidSnapshotID(c.Snapshot) {
		return nil
	}
	if err := c.CopyRef.Check(); err != nil {
		return err
	}
	return checkPacks(c.Prefix, c.Packs)
}

func checkPacks(prefix string, packs []string) error {
	if len(packs) > MaxPacks {
		return Errorf(Invalid, "a call is about at most %d packs", MaxPacks)
	}
	for _, pack := range packs {
		if hash, ok := strings.CutPrefix(pack, packPrefix(prefix)); !ok || !packHashPattern.MatchString(hash) {
			return Errorf(Invalid, "%.120q is not the name of a pack of the copy", pack)
		}
	}
	return nil
}
