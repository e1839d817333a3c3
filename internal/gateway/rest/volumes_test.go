package rest_test

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestVolumeRoutes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const path = "/api/v1/volumes"
	var made, got gatewaytest.VolumeView
	f.Do("POST", path, `{"name":"data","size_mb":5}`).Into(t, 201, &made)
	if !sandbox.ValidVolumeID(made.VolumeID) || made.Name != "data" || made.SizeMB != 5 {
		t.Errorf("made %+v", made)
	}
	if a := f.Do("POST", path, `{"name":"data"}`); a.Status != 409 {
		t.Errorf("the same name: %d %s", a.Status, a.Body)
	}
	for _, key := range []string{made.VolumeID, "data"} {
		if f.Do("GET", path+"/"+key, "").Into(t, 200, &got); got.VolumeID != made.VolumeID {
			t.Errorf("by %s: %+v", key, got)
		}
	}
	var list struct{ Volumes []gatewaytest.VolumeView }
	if f.Do("GET", path, "").Into(t, 200, &list); len(list.Volumes) != 1 || list.Volumes[0].VolumeID != made.VolumeID {
		t.Errorf("listed %+v", list)
	}
	stranger := f.Key("other", sandbox.RoleAdmin)
	for _, method := range []string{"GET", "DELETE"} {
		for _, key := range []string{made.VolumeID, "data"} {
			if a := f.With(method, path+"/"+key, "", "X-API-Key", stranger); a.Status != 404 {
				t.Errorf("a stranger's %s: %d %s", method, a.Status, a.Body)
			}
		}
	}
	if a := f.With("GET", path, "", "X-API-Key", stranger); a.Status != 200 || strings.Contains(string(a.Body), "data") {
		t.Errorf("a stranger lists %d %s", a.Status, a.Body)
	}
	reader := f.Key("dev:test", sandbox.RoleViewer)
	if a := f.With("DELETE", path+"/data", "", "X-API-Key", reader); a.Status != 403 {
		t.Errorf("a viewer deletes: %d %s", a.Status, a.Body)
	}

	type mount struct {
		Volume   string
		VolumeID string `json:"volume_id"`
		Path     string
	}
	var session struct {
		SandboxID string `json:"sandbox_id"`
		Volumes   []mount
	}
	f.Do("POST", "/api/v1/sessions", `{"volumes":[{"volume":"data","path":"/mnt/data"}]}`).Into(t, 201, &session)
	want := mount{"data", made.VolumeID, "/mnt/data"}
	if len(session.Volumes) != 1 || session.Volumes[0] != want {
		t.Errorf("a session has %+v", session.Volumes)
	}
	if a := f.Do("DELETE", path+"/data", ""); a.Status != 409 {
		t.Errorf("a delete while it is mounted: %d %s", a.Status, a.Body)
	}
	f.Do("DELETE", "/api/v1/sessions/"+session.SandboxID, "").Into(t, 200, &session)
	if a := f.Do("DELETE", path+"/data", ""); a.Status != 204 {
		t.Errorf("delete: %d %s", a.Status, a.Body)
	}
	if a := f.Do("DELETE", path+"/data", ""); a.Status != 404 {
		t.Errorf("a second delete: %d %s", a.Status, a.Body)
	}
	var audited []string
	for _, e := range f.Audit() {
		if strings.HasSuffix(e.Operation, "Volume") && e.Tenant == "dev:test" && e.Status < 300 {
			audited = append(audited, e.Operation+" "+e.Target)
		}
	}
	if got, want := strings.Join(audited, ", "), "createVolume "+made.VolumeID+", deleteVolume data"; got != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
}

func TestVolumeMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made [2]gatewaytest.VolumeView
	for i, replayed := range []string{"", "true"} {
		a := f.With("POST", "/api/v1/volumes", `{"name":"A"}`, "Authorization", "Bearer "+f.Token, "Idempotency-Key", "one")
		if a.Into(t, 201, &made[i]); a.Header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %v", i, a.Header)
		}
	}
	if made[0].VolumeID != made[1].VolumeID || made[0].VolumeID == "" {
		t.Errorf("made %+v", made)
	}
}
