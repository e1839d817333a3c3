package gateway_test

import (
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
)

type volumeView struct {
	VolumeID  string `json:"volume_id"`
	Name      string
	SizeMB    int64  `json:"size_mb"`
	UsedBytes *int64 `json:"used_bytes"`
	Files     *int64
	CreatedAt string `json:"created_at"`
}

func TestVolumeRoutes(t *testing.T) {
	f := newFixture(t)
	const path = "/api/v1/volumes"
	var made, got volumeView
	f.do("POST", path, `{"name":"data","size_mb":5}`).into(t, 201, &made)
	if !sandbox.ValidVolumeID(made.VolumeID) || made.Name != "data" || made.SizeMB != 5 {
		t.Errorf("made %+v", made)
	}
	if a := f.do("POST", path, `{"name":"data"}`); a.status != 409 {
		t.Errorf("the same name: %d %s", a.status, a.body)
	}
	for _, key := range []string{made.VolumeID, "data"} {
		if f.do("GET", path+"/"+key, "").into(t, 200, &got); got.VolumeID != made.VolumeID {
			t.Errorf("by %s: %+v", key, got)
		}
	}
	var list struct{ Volumes []volumeView }
	if f.do("GET", path, "").into(t, 200, &list); len(list.Volumes) != 1 || list.Volumes[0].VolumeID != made.VolumeID {
		t.Errorf("listed %+v", list)
	}
	stranger := f.key("other", sandbox.RoleAdmin)
	for _, method := range []string{"GET", "DELETE"} {
		for _, key := range []string{made.VolumeID, "data"} {
			if a := f.with(method, path+"/"+key, "", "X-API-Key", stranger); a.status != 404 {
				t.Errorf("a stranger's %s: %d %s", method, a.status, a.body)
			}
		}
	}
	if a := f.with("GET", path, "", "X-API-Key", stranger); a.status != 200 || strings.Contains(string(a.body), "data") {
		t.Errorf("a stranger lists %d %s", a.status, a.body)
	}
	reader := f.key("dev:test", sandbox.RoleViewer)
	if a := f.with("DELETE", path+"/data", "", "X-API-Key", reader); a.status != 403 {
		t.Errorf("a viewer deletes: %d %s", a.status, a.body)
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
	f.do("POST", "/api/v1/sessions", `{"volumes":[{"volume":"data","path":"/mnt/data"}]}`).into(t, 201, &session)
	want := mount{"data", made.VolumeID, "/mnt/data"}
	if len(session.Volumes) != 1 || session.Volumes[0] != want {
		t.Errorf("a session has %+v", session.Volumes)
	}
	if a := f.do("DELETE", path+"/data", ""); a.status != 409 {
		t.Errorf("a delete while it is mounted: %d %s", a.status, a.body)
	}
	f.do("DELETE", "/api/v1/sessions/"+session.SandboxID, "").into(t, 200, &session)
	if a := f.do("DELETE", path+"/data", ""); a.status != 204 {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	if a := f.do("DELETE", path+"/data", ""); a.status != 404 {
		t.Errorf("a second delete: %d %s", a.status, a.body)
	}
	var audited []string
	for _, e := range f.audit() {
		if strings.HasSuffix(e.Operation, "Volume") && e.Tenant == "dev:test" && e.Status < 300 {
			audited = append(audited, e.Operation+" "+e.Target)
		}
	}
	if got, want := strings.Join(audited, ", "), "createVolume "+made.VolumeID+", deleteVolume data"; got != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
}

func TestVolumeMadeOnce(t *testing.T) {
	f := newFixture(t)
	var made [2]volumeView
	for i, replayed := range []string{"", "true"} {
		a := f.with("POST", "/api/v1/volumes", `{"name":"A"}`, "Authorization", "Bearer "+f.token, "Idempotency-Key", "one")
		if a.into(t, 201, &made[i]); a.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("request %d: %v", i, a.header)
		}
	}
	if made[0].VolumeID != made[1].VolumeID || made[0].VolumeID == "" {
		t.Errorf("made %+v", made)
	}
}
