package signing_test

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/signing"
	"github.com/cloud-sandbox/cloud-sandbox/internal/store/sqlitetest"
)

func TestVolumes(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	store := sqlitetest.Open(t)
	tokens := signing.NewVolumes(store, func() time.Time { return now })
	sign := func(g signing.VolumeGrant) string {
		t.Helper()
		token, err := tokens.Sign(t.Context(), g)
		if err != nil || !signing.IsVolumeToken(token) {
			t.Fatalf("signed %s, %v", token, err)
		}
		return token
	}
	a, b := sandbox.NewVolumeID(), sandbox.NewVolumeID()
	mine := signing.VolumeGrant{Tenant: "t", Volume: a, Until: now.Add(signing.VolumeLife)}
	for _, g := range []signing.VolumeGrant{
		mine,
		{Tenant: "t", Volume: b, Write: true, Until: now.Add(time.Minute)},
		{Tenant: "u", Volume: b, Write: true, Until: now.Add(signing.VolumeLife)},
	} {
		if got, err := tokens.Check(t.Context(), sign(g)); got != g || err != nil {
			t.Errorf("it grants %+v, %v, want %+v", got, err, g)
		}
	}
	for _, until := range []time.Time{{}, now.Add(signing.VolumeLife + time.Hour)} {
		if got, err := tokens.Check(t.Context(), sign(signing.VolumeGrant{Tenant: "t", Volume: a, Until: until})); got != mine || err != nil {
			t.Errorf("until %s it grants %+v, %v", until, got, err)
		}
	}
	token := sign(mine)
	other := strings.Split(sign(signing.VolumeGrant{Tenant: "u", Volume: a}), ".")
	parts := strings.Split(token, ".")
	with := func(i int, part string) string {
		changed := append([]string(nil), parts...)
		changed[i] = part
		return strings.Join(changed, ".")
	}
	refused := func(what, token string) {
		t.Helper()
		if g, err := tokens.Check(t.Context(), token); !errors.Is(err, sandbox.Anonymous) || g != (signing.VolumeGrant{}) {
			t.Errorf("%s grants %+v, %v", what, g, err)
		}
	}
	for what, bad := range map[string]string{
		"nothing": "", "the beginning": "vol1.", "another form": with(0, "vol2"), "another volume": with(2, b), "another tenant's key": with(1, other[1]),
		"an unknown key": with(1, sandbox.NewSigningKey("t", now).ID), "no key": with(1, "k"), "a later end": with(3, "99999999999"),
		"no end": with(3, ""), "to write": with(4, "rw"), "another signature": with(5, other[5]), "no signature": with(5, ""), "more": token + ".x", "a long one": token + strings.Repeat("x", 300),
		"a signature of other bits": with(5, parts[5][:len(parts[5])-1]+"B"), "none of base64": with(5, "!"),
		"an empty signature": with(5, base64.RawURLEncoding.EncodeToString(nil)),
	} {
		if bad == token {
			t.Fatalf("%s is as it was", what)
		}
		refused(what, bad)
	}
	now = now.Add(signing.VolumeLife - time.Second)
	if _, err := tokens.Check(t.Context(), token); err != nil {
		t.Errorf("at its end: %v", err)
	}
	now = now.Add(time.Second)
	refused("an expired one", token)
	mine.Until = now.Add(signing.VolumeLife)
	fresh := sign(mine)
	if err := store.ReplaceSigningKey(t.Context(), sandbox.NewSigningKey("t", now)); err != nil {
		t.Fatal(err)
	}
	refused("one whose key was replaced", fresh)
	if _, err := tokens.Check(t.Context(), sign(mine)); err != nil {
		t.Errorf("with the new key: %v", err)
	}
}
