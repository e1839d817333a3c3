package sqlstore_test

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlstore"
)

// Several processes append to one chain.
func TestAuditOfSeveralProcesses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	const each = 50
	var stores [3]*sqlstore.Store
	for i := range stores {
		s, err := sqlstore.OpenSQLite(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		stores[i] = s
	}
	var all sync.WaitGroup
	for _, s := range stores {
		all.Go(func() {
			for range each {
				if _, err := s.AppendAudit(t.Context(), sandbox.AuditEntry{At: time.Now(), Operation: "execute"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var mark sandbox.AuditMark
	err := stores[0].ReadAudit(t.Context(), func(m sandbox.AuditMark) error {
		mark = m
		return nil
	}, func(e sandbox.AuditEntry) (err error) {
		mark, err = mark.Follow(e)
		return err
	})
	if err != nil || mark.Seq != each*int64(len(stores)) {
		t.Errorf("the chain ends with %d: %v", mark.Seq, err)
	}
}
