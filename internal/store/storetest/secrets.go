package storetest

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/codetest"
)

func sampleSecret(tenant sandbox.TenantID, name string) sandbox.Secret {
	return sandbox.Secret{
		ID: sandbox.NewSecretID(), Tenant: tenant, Name: name, Description: "for tests", Metadata: map[string]string{"a": "b"}, ValueVersion: 1,
		Hosts:     sandbox.SecretHosts{"a.example", "b.example:8443"},
		Sealed:    sandbox.SealedValue{KeyID: "k1", Key: []byte{1, 0, 2}, Value: []byte{0xff, 0}},
		CreatedAt: epoch, UpdatedAt: epoch.Add(time.Minute),
	}
}

func insertSecret(t *testing.T, st sandbox.Store, s sandbox.Secret) sandbox.Secret {
	t.Helper()
	made, err := st.InsertSecret(t.Context(), s)
	must(t, err)
	return made
}

func secretRoundTrip(t *testing.T, st sandbox.Store) {
	made := insertSecret(t, st, sampleSecret("t", "b"))
	if got, err := st.SecretByName(t.Context(), "t", "b"); err != nil || !reflect.DeepEqual(got, made) || got.Version != 1 {
		t.Errorf("SecretByName = %+v, %v, want %+v", got, err, made)
	}
	_, err := st.InsertSecret(t.Context(), sampleSecret("t", "b"))
	codetest.Want(t, "the same name", err, sandbox.Conflict)
	insertSecret(t, st, sampleSecret("t", "a"))
	if all, err := st.Secrets(t.Context(), "t"); err != nil || len(all) != 2 || all[0].Name != "a" {
		t.Errorf("Secrets = %+v, %v, want them by name", all, err)
	}
	changed := made
	changed.Description, changed.UpdatedAt, changed.Metadata, changed.ValueVersion = "other", epoch.Add(time.Hour), nil, 2
	changed.Hosts = nil
	changed.Sealed = sandbox.SealedValue{KeyID: "k2", Key: []byte{3}, Value: []byte{4}}
	updated, err := st.UpdateSecret(t.Context(), changed)
	must(t, err)
	if got, err := st.SecretByName(t.Context(), "t", "b"); err != nil || !reflect.DeepEqual(got, updated) || got.Version != 2 || got.Description != "other" {
		t.Errorf("after an update SecretByName = %+v, %v, want %+v", got, err, updated)
	}
	_, err = st.UpdateSecret(t.Context(), changed)
	codetest.Want(t, "an update of an old version", err, sandbox.Conflict)
	must(t, st.DeleteSecret(t.Context(), "t", "b"))
	codetest.Want(t, "a second time", st.DeleteSecret(t.Context(), "t", "b"), sandbox.NotFound)
	_, err = st.UpdateSecret(t.Context(), updated)
	codetest.Want(t, "an update of what is deleted", err, sandbox.NotFound)
	insertSecret(t, st, sampleSecret("t", "b"))
}

func secretTenants(t *testing.T, st sandbox.Store) {
	made := insertSecret(t, st, sampleSecret("t", "a"))
	if all, err := st.Secrets(t.Context(), "other"); err != nil || len(all) > 0 {
		t.Errorf("another tenant sees %+v, %v", all, err)
	}
	_, err := st.SecretByName(t.Context(), "other", "a")
	codetest.Want(t, "another tenant reads it", err, sandbox.NotFound)
	codetest.Want(t, "another tenant deletes it", st.DeleteSecret(t.Context(), "other", "a"), sandbox.NotFound)
	stolen := made
	stolen.Tenant = "other"
	_, err = st.UpdateSecret(t.Context(), stolen)
	codetest.Want(t, "another tenant replaces it", err, sandbox.NotFound)
	insertSecret(t, st, sampleSecret("other", "a")) // a name of its own
}

func secretLimit(t *testing.T, st sandbox.Store) {
	for i := range sandbox.MaxSecrets {
		insertSecret(t, st, sampleSecret("t", fmt.Sprint("n", i)))
	}
	_, err := st.InsertSecret(t.Context(), sampleSecret("t", "more"))
	codetest.Want(t, "one secret too many", err, sandbox.Exhausted)
	_, err = st.InsertSecret(t.Context(), sampleSecret("t", "n1"))
	codetest.Want(t, "a name in use when there is no room", err, sandbox.Conflict)
	insertSecret(t, st, sampleSecret("other", "more"))
}

func secretKeys(t *testing.T, st sandbox.Store) {
	for i, tenant := range []sandbox.TenantID{"t", "t", "other"} {
		insertSecret(t, st, sampleSecret(tenant, fmt.Sprint("n", i)))
	}
	moved := sampleSecret("t", "moved")
	moved.Sealed.KeyID = "k2"
	insertSecret(t, st, moved)
	for _, tt := range []struct {
		key         string
		limit, want int
	}{{"k2", 10, 3}, {"k2", 2, 2}, {"k1", 10, 1}, {"k3", 10, 4}} {
		if all, err := st.SecretsNotUnder(t.Context(), tt.key, tt.limit); err != nil || len(all) != tt.want {
			t.Errorf("%d secrets not under %s, at most %d: %v, want %d", len(all), tt.key, tt.limit, err, tt.want)
		}
	}
}
