package rest_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestKeyLife(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made gatewaytest.KeyView
	f.Do("POST", "/api/v1/keys", `{"name":"ci","scopes":["read","keys"],"expires_in_seconds":3600}`).Into(t, 201, &made)
	if !sandbox.ValidKeySecret(made.Secret) || !strings.HasSuffix(made.Secret, made.Hint) || made.ExpiresAt == "" || made.Role != "user" {
		t.Errorf("made %+v", made)
	}
	for _, headers := range [][]string{{"X-API-Key", made.Secret}, {"Authorization", "Bearer " + made.Secret}, {"Authorization", "bearer " + made.Secret}} {
		if a := f.With("GET", "/api/v1/sessions", "", headers...); a.Status != 200 {
			t.Errorf("%s: %d %s", headers[0], a.Status, a.Body)
		}
	}
	list := f.Do("GET", "/api/v1/keys", "")
	var all struct{ Keys []gatewaytest.KeyView }
	list.Into(t, 200, &all)
	if len(all.Keys) != 1 || all.Keys[0].ID != made.ID || bytes.Contains(list.Body, []byte(made.Secret)) {
		t.Errorf("listed %s", list.Body)
	}
	other := f.Mint("other")
	if a := f.DoAs(other, "GET", "/api/v1/keys", ""); string(a.Body) != `{"keys":[]}`+"\n" {
		t.Errorf("another tenant lists %s", a.Body)
	}
	theirs, absent := f.DoAs(other, "DELETE", "/api/v1/keys/"+made.ID, ""), f.DoAs(other, "DELETE", "/api/v1/keys/knone", "")
	if theirs.Status != 404 || !bytes.Equal(theirs.Body, absent.Body) {
		t.Errorf("another tenant revokes: %d %s, of none: %s", theirs.Status, theirs.Body, absent.Body)
	}
	if a := f.Do("DELETE", "/api/v1/keys/"+made.ID, ""); a.Status != 204 {
		t.Errorf("revoke: %d %s", a.Status, a.Body)
	}
	if a := f.With("GET", "/api/v1/sessions", "", "X-API-Key", made.Secret); a.Status != 401 {
		t.Errorf("a revoked key: %d %s", a.Status, a.Body)
	}
	if strings.Contains(f.Logs.String(), made.Secret) {
		t.Error("a secret is in the log")
	}
}

func TestKeyRotation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made, rotated, plain gatewaytest.KeyView
	f.Do("POST", "/api/v1/keys", `{"name":"ci","scopes":["read"]}`).Into(t, 201, &made)
	path := "/api/v1/keys/" + made.ID + "/rotate"
	works := func(secret string) bool {
		return f.With("GET", "/api/v1/sessions", "", "X-API-Key", secret).Status == 200
	}
	for _, tt := range []struct{ body, says string }{
		{`{"overlap_seconds":-1}`, "seconds"},
		{`{"overlap_seconds":2592001}`, "overlap_seconds"},
		{`{"overlap_seconds":"1"}`, "seconds"},
		{`{"overlap":1}`, "overlap"},
		{`{`, "JSON"},
	} {
		if a := f.Do("POST", path, tt.body); a.Status != 400 || !bytes.Contains(a.Body, []byte(tt.says)) {
			t.Errorf("%s = %d %s", tt.body, a.Status, a.Body)
		}
	}
	theirs, absent := f.DoAs(f.Mint("other"), "POST", path, ""), f.DoAs(f.Mint("other"), "POST", "/api/v1/keys/knone/rotate", "")
	if theirs.Status != 404 || !bytes.Equal(theirs.Body, absent.Body) {
		t.Errorf("another tenant rotates: %d %s, none: %s", theirs.Status, theirs.Body, absent.Body)
	}
	f.Do("POST", path, `{"overlap_seconds":3600}`).Into(t, 200, &rotated)
	if rotated.ID != made.ID || rotated.Previous == nil || rotated.Previous.Hint != made.Hint || rotated.Previous.ValidUntil == "" {
		t.Errorf("rotated %+v", rotated)
	}
	if !works(made.Secret) || !works(rotated.Secret) {
		t.Error("both secrets are to be valid for the overlap")
	}
	if a := f.Do("POST", path, ""); a.Status != 409 || !bytes.Contains(a.Body, []byte("overlap_seconds")) {
		t.Errorf("a third secret: %d %s", a.Status, a.Body)
	}
	f.Do("POST", path, `{"overlap_seconds":0}`).Into(t, 200, &plain)
	if plain.Previous != nil || works(made.Secret) || works(rotated.Secret) || !works(plain.Secret) {
		t.Errorf("without overlap: %+v", plain)
	}
	if logs := f.Logs.String(); strings.Contains(logs, rotated.Secret) || strings.Contains(logs, plain.Secret) {
		t.Error("a secret is in the log")
	}
}
