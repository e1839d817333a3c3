package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/traffic"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// uploadPath is where files for a Template are sent, by a signed URL.
const uploadPath = "/templates/{template}/files/{hash}"

// volumeContent is before what is asked of the files of a Volume.
const volumeContent = "/volumecontent/{id}/"

// Where templates and snapshots are deleted: the second is of SDKs that do not
// encode the slash after a namespace.
const (
	deleteTemplatePath = "/templates/{template}"
	deleteSpacedPath   = "/templates/{template}/{part}"
)

// Where E2B has keys and tokens.
const (
	e2bKeysPath   = "/api-keys"
	e2bTokensPath = "/access-tokens"
)

// e2bRoutes are those of E2B's control API, at the paths that its clients know.
// Their rules are those of every route; only errors have a form of their own.
func (s *Server) e2bRoutes() []route {
	a := s.e2b
	return []route{
		{"POST", "/v2/sandboxes", tenant, jsonBody, false, a.CreateV2},
		{"POST", "/sandboxes", tenant, jsonBody, false, a.CreateV1},
		{"GET", "/v2/sandboxes", tenant, noBody, false, a.List},
		{"GET", "/sandboxes", tenant, noBody, false, a.ListRunning},
		{"GET", "/sandboxes/metrics", tenant, noBody, false, a.LatestMetrics},
		{"GET", "/sandboxes/{id}", tenant, noBody, false, a.Get},
		{"DELETE", "/sandboxes/{id}", tenant, noBody, false, a.Kill},
		{"POST", "/v2/sandboxes/{id}/connect", tenant, jsonBody, false, a.ConnectV2},
		{"POST", "/sandboxes/{id}/connect", tenant, jsonBody, false, a.ConnectV1},
		{"POST", "/sandboxes/{id}/timeout", tenant, jsonBody, false, a.SetTimeout},
		{"POST", "/sandboxes/{id}/refreshes", tenant, jsonBody, false, a.Refresh},
		{"GET", "/sandboxes/{id}/metrics", tenant, noBody, false, a.Metrics},
		{"GET", "/sandboxes/{id}/logs", tenant, noBody, false, a.Logs},
		{"GET", "/v2/sandboxes/{id}/logs", tenant, noBody, false, a.LogsV2},

		{"POST", "/sandboxes/{id}/pause", tenant, jsonBody, false, a.Pause},
		{"POST", "/sandboxes/{id}/resume", tenant, jsonBody, false, a.Resume},
		{"POST", "/sandboxes/{id}/fork", tenant, jsonBody, false, a.Fork},
		{"POST", "/sandboxes/{id}/snapshots", tenant, jsonBody, false, a.TakeSnapshot},
		{"PUT", "/sandboxes/{id}/network", tenant, jsonBody, false, a.SetNetwork},
		{"GET", "/templates", tenant, noBody, false, a.ListTemplates},
		{"GET", "/v2/templates", tenant, noBody, false, a.PageTemplates},
		{"GET", "/templates/{template}", tenant, noBody, false, a.GetTemplate},
		{"GET", "/templates/{template}/{part}", tenant, noBody, false, a.TemplatePart},
		{"POST", "/v3/templates", tenant, jsonBody, false, a.RequestBuild},
		{"POST", "/v2/templates", tenant, jsonBody, false, a.RequestBuild},
		{"POST", "/v2/templates/{template}/builds/{build}", tenant, recipeBody, false, a.StartBuild},
		{"POST", "/templates", tenant, recipeBody, false, a.NoDockerfile},
		{"POST", "/templates/{template}", tenant, recipeBody, false, a.NoDockerfile},
		{"POST", "/templates/{template}/builds/{build}", tenant, recipeBody, false, a.NoDockerfile},
		{"GET", "/templates/{template}/files/{hash}", tenant, noBody, false, a.AskUpload},
		{"PUT", uploadPath, tenant, endless, false, a.Upload},
		{"GET", "/templates/{template}/builds/{build}/status", tenant, noBody, false, a.BuildStatus},
		{"GET", "/templates/{template}/builds/{build}/logs", tenant, noBody, false, a.BuildLogs},
		{"POST", "/templates/tags", tenant, jsonBody, false, a.AssignTags},
		{"DELETE", "/templates/tags", tenant, jsonBody, false, a.RemoveTags},
		{"PATCH", "/templates/{template}", tenant, jsonBody, false, a.ChangeTemplate},
		{"PATCH", "/v2/templates/{template}", tenant, jsonBody, false, a.ChangeTemplateV2},
		{"GET", "/secrets", tenant, noBody, false, a.ListSecrets},
		{"POST", "/secrets", tenant, jsonBody, false, a.CreateSecret},
		{"GET", "/secrets/{secret}", tenant, noBody, false, a.GetSecret},
		{"POST", "/secrets/{secret}", tenant, jsonBody, false, a.UpdateSecret},
		{"DELETE", "/secrets/{secret}", tenant, noBody, false, a.DeleteSecret},
		{"GET", "/volumes", tenant, noBody, false, a.ListVolumes},
		{"POST", "/volumes", tenant, jsonBody, false, a.CreateVolume},
		{"GET", "/volumes/{id}", tenant, noBody, false, a.GetVolume},
		{"DELETE", "/volumes/{id}", tenant, noBody, false, a.DeleteVolume},
		{"GET", volumeContent + "path", tenant, noBody, false, a.StatVolumeFile},
		{"PATCH", volumeContent + "path", tenant, jsonBody, false, a.ChangeVolumeFile},
		{"DELETE", volumeContent + "path", tenant, noBody, false, a.RemoveVolumeFile},
		{"GET", volumeContent + "dir", tenant, noBody, false, a.ListVolumeFolder},
		{"POST", volumeContent + "dir", tenant, jsonBody, false, a.MakeVolumeFolder},
		{"GET", volumeContent + "file", tenant, noBody, false, a.ReadVolumeFile},
		{"PUT", volumeContent + "file", tenant, endless, false, a.WriteVolumeFile},
		{"GET", "/e2b/settings", tenant, noBody, false, a.Settings},
		{"GET", "/teams", tenant, noBody, false, a.ListTeams},
		{"GET", "/teams/{team}/metrics", tenant, noBody, false, a.TeamMetrics},
		{"GET", "/teams/{team}/metrics/max", tenant, noBody, false, a.TeamMax},
		{"GET", e2bKeysPath, tenant, noBody, false, a.ListKeys},
		{"POST", e2bKeysPath, tenant, jsonBody, false, a.CreateKey},
		{"PATCH", e2bKeysPath + "/{id}", tenant, jsonBody, false, a.RenameKey},
		{"DELETE", e2bKeysPath + "/{id}", tenant, noBody, false, a.DeleteKey},
		{"POST", e2bTokensPath, tenant, jsonBody, false, a.NoAccessTokens},
		{"DELETE", e2bTokensPath + "/{id}", tenant, noBody, false, a.NoAccessToken},
		{"GET", "/snapshots", tenant, noBody, false, a.ListSnapshots},
		{"DELETE", deleteTemplatePath, tenant, noBody, false, a.DeleteTemplate},
		{"DELETE", deleteSpacedPath, tenant, noBody, false, a.DeleteTemplate},
	}
}

// e2bRoots are the first parts of the paths of that API.
var e2bRoots = []string{
	"sandboxes", "v2", "v3", "snapshots", "templates", "volumes", "volumecontent", "secrets", "teams", "api-keys", "access-tokens",
	"nodes", "admin", // of which there is nothing here
	"e2b", // which E2B does not have
}

// isE2B reports whether a path is one that E2B's clients ask.
func isE2B(path string) bool {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains(e2bRoots, root)
}

// asksControl reports whether a request is for that API whatever its headers name:
// some of E2B's Python SDKs before 2.30 name envd when they connect too, which has no
// such paths and is asked with no key.
func asksControl(r *http.Request) bool {
	return isE2B(r.URL.Path) && r.Header.Get(keyHeader) != ""
}

// isVolumeContent reports whether a path is about files of Volumes, where errors
// have yet another form.
func isVolumeContent(path string) bool { return strings.HasPrefix(path, "/volumecontent/") }

// exposed are the headers of E2B's API that a page of another origin may read.
const exposed = "X-Next-Token, X-Total-Running, Retry-After, RateLimit, RateLimit-Policy, " + telemetry.RequestHeader

// openToPages lets pages of any origin use E2B's API, as its SDK in a browser
// does: what speaks for somebody there is a key that the page itself knows, and
// never something that the browser adds. It reports whether r is a preflight,
// which it has answered. Our own API stays closed to pages.
func openToPages(w http.ResponseWriter, r *http.Request) bool {
	if traffic.IsOurPreflight(r) {
		traffic.AllowOrigins(w, r)
		return true
	}
	if !isE2B(r.URL.Path) {
		return false
	}
	if traffic.IsPreflight(r) {
		traffic.AllowOrigins(w, r)
		return true
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", exposed)
	return false
}

// oneCredential is r as identify wants it: E2B's clients that know a token beside
// the key send both, and mean the key.
func oneCredential(r *http.Request) *http.Request {
	if !isE2B(r.URL.Path) || len(r.Header.Values(keyHeader)) != 1 || r.Header.Get("Authorization") == "" {
		return r
	}
	one := *r
	one.Header = r.Header.Clone()
	one.Header.Del("Authorization")
	return &one
}
