package volumetoken_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlite/sqlitetest"
	"github.com/cloud-sandbox/cloud-sandbox/internal/volumetoken"
)

func TestTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	store := sqlitetest.Open(t)
	tokens := volumetoken.New(store, func() time.Time { return now })
	sign := func(tenant sandbox.TenantID, volume string) string {
		t.Helper()
		token, err := tokens.Sign(t.Context(), tenant, volume)
		if err != nil || !volumetoken.Is(token) {
			t.Fatalf("signed %s, %v", token, err)
		}
		return token
	}
	a, b := sandbox.NewVolumeID(), sandbox.NewVolumeID()
	token := sign("t", a)
	if tenant, volume, err := tokens.Check(t.Context(), token); tenant != "t" || volume != a || err != nil {
		t.Errorf("it opens %s of %s, %v", volume, tenant, err)
	}
	other := strings.Split(sign("u", a), ".")
	parts := strings.Split(token, ".")
	with := func(i int, part string) string {
		changed := append([]string(nil), parts...)
		changed[i] = part
		return strings.Join(changed, ".")
	}
	refused := func(what, token string) {
		t.Helper()
		if tenant, volume, err := tokens.Check(t.Context(), token); !errors.Is(err, sandbox.Anonymous) || tenant != "" || volume != "" {
			t.Errorf("%s opens %s of %s, %v", what, volume, tenant, err)
		}
	}
	for what, bad := range map[string]string{
		"nothing": "", "the beginning": "vol1.", "another form": with(0, "vol2"), "another volume": with(2, b), "another tenant's key": with(1, other[1]),
		"an unknown key": with(1, sandbox.NewSigningKey("t", now).ID), "no key": with(1, "k"), "a later end": with(3, "99999999999"),
		"no end": with(3, ""), "another signature": with(4, other[4]), "no signature": with(4, ""), "more": token + ".x", "a long one": token + strings.Repeat("x", 300),
		"a signature of other bits": with(4, parts[4][:len(parts[4])-1]+"B"), "none of base64": with(4, "!"),
		"an empty signature": with(4, base64.RawURLEncoding.EncodeToString(nil)),
	} {
		if bad == token {
			t.Fatalf("%s is as it was", what)
		}
		refused(what, bad)
	}
	now = now.Add(volumetoken.Life - time.Second)
	if _, _, err := tokens.Check(t.Context(), token); err != nil {
		t.Errorf("at its end: %v", err)
	}
	now = now.Add(time.Second)
	refused("an expired one", token)
	fresh := sign("t", a)
	if err := store.ReplaceSigningKey(t.Context(), sandbox.NewSigningKey("t", now)); err != nil {
		t.Fatal(err)
	}
	refused("one whose key was replaced", fresh)
	if _, _, err := tokens.Check(t.Context(), sign("t", a)); err != nil {
		t.Errorf("with the new key: %v", err)
	}
}
