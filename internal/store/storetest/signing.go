package storetest

import (
	"errors"
	"reflect"
	"sync"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

func signingKeys(t *testing.T, st sandbox.Store) {
	ctx := t.Context()
	if _, err := st.SigningKeyByID(ctx, "k00000000000000000000"); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("an absent key: %v", err)
	}
	// Of several keys offered concurrently, one becomes the key.
	kept := make([]sandbox.SigningKey, 8)
	var wg sync.WaitGroup
	for i := range kept {
		wg.Go(func() {
			var err error
			if kept[i], err = st.EnsureSigningKey(ctx, sandbox.NewSigningKey("a", epoch)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range kept {
		if !reflect.DeepEqual(k, kept[0]) || k.Tenant != "a" || len(k.Secret) != 32 || !k.CreatedAt.Equal(epoch) {
			t.Errorf("kept %v and %v", k, kept[0])
		}
	}
	other, err := st.EnsureSigningKey(ctx, sandbox.NewSigningKey("b", epoch))
	if err != nil || other.ID == kept[0].ID {
		t.Errorf("another tenant's key: %v, %v", other, err)
	}
	next := sandbox.NewSigningKey("a", epoch)
	if err := st.ReplaceSigningKey(ctx, next); err != nil {
		t.Fatal(err)
	}
	if _, err := st.SigningKeyByID(ctx, kept[0].ID); !errors.Is(err, sandbox.NotFound) {
		t.Errorf("a replaced key: %v", err)
	}
	for _, want := range []sandbox.SigningKey{next, other} {
		if got, err := st.SigningKeyByID(ctx, want.ID); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("SigningKeyByID = %v, %v, want %v", got, err, want)
		}
	}
	if got, err := st.EnsureSigningKey(ctx, sandbox.NewSigningKey("a", epoch)); err != nil || got.ID != next.ID {
		t.Errorf("the key is %v, %v, want %v", got, err, next)
	}
	first := sandbox.NewSigningKey("c", epoch)
	if err := st.ReplaceSigningKey(ctx, first); err != nil {
		t.Errorf("replace none: %v", err)
	}
}
