package gatewaytest

import (
	"github.com/cloud-sandbox/cloud-sandbox"
)

// Audit returns the whole audit log after a check of its hash chain.
func (f *Fixture) Audit() (all []sandbox.AuditEntry) {
	f.T.Helper()
	var mark sandbox.AuditMark
	err := f.Store.ReadAudit(f.T.Context(), func(m sandbox.AuditMark) error {
		mark = m
		return nil
	}, func(e sandbox.AuditEntry) (err error) {
		mark, err = mark.Follow(e)
		all = append(all, e)
		return err
	})
	if err != nil {
		f.T.Fatal(err)
	}
	return all
}

// AuditOf returns the only entry that do adds.
func (f *Fixture) AuditOf(do func()) sandbox.AuditEntry {
	f.T.Helper()
	n := len(f.Audit())
	do()
	added := f.Audit()[n:]
	if len(added) != 1 {
		f.T.Fatalf("%d entries were added: %+v", len(added), added)
	}
	return added[0]
}
