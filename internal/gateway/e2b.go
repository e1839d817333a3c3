package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/cloud-sandbox/cloud-sandbox/internal/catalogue"
	"github.com/cloud-sandbox/cloud-sandbox/internal/gateway/traffic"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// e2bRoutes are the routes of E2B's control API, at the paths that its clients know.
// Only errors have a form of their own.
func (s *Server) e2bRoutes() []route {
	a := s.e2b
	return e2bSurface.through([]binding{
		{"POST", "/v2/sandboxes", catalogue.CreateSession, a.CreateV2},
		{"POST", "/sandboxes", catalogue.CreateSession, a.CreateV1},
		{"GET", "/v2/sandboxes", catalogue.ListSessions, a.List},
		{"GET", "/sandboxes", catalogue.ListSessions, a.ListRunning},
		{"GET", "/sandboxes/metrics", catalogue.LatestSandboxMetrics, a.LatestMetrics},
		{"GET", "/sandboxes/{id}", catalogue.GetSession, a.Get},
		{"DELETE", "/sandboxes/{id}", catalogue.DeleteSession, a.Kill},
		{"POST", "/v2/sandboxes/{id}/connect", catalogue.ResumeSession, a.ConnectV2},
		{"POST", "/sandboxes/{id}/connect", catalogue.ResumeSession, a.ConnectV1},
		{"POST", "/sandboxes/{id}/timeout", catalogue.SetSessionTimeout, a.SetTimeout},
		{"POST", "/sandboxes/{id}/refreshes", catalogue.SetSessionTimeout, a.Refresh},
		{"GET", "/sandboxes/{id}/metrics", catalogue.SandboxMetrics, a.Metrics},
		{"GET", "/sandboxes/{id}/logs", catalogue.SandboxLogs, a.Logs},
		{"GET", "/v2/sandboxes/{id}/logs", catalogue.SandboxLogs, a.LogsV2},

		{"POST", "/sandboxes/{id}/pause", catalogue.PauseSession, a.Pause},
		{"POST", "/sandboxes/{id}/resume", catalogue.ResumeSession, a.Resume},
		{"POST", "/sandboxes/{id}/fork", catalogue.ForkSession, a.Fork},
		{"POST", "/sandboxes/{id}/snapshots", catalogue.TakeSnapshot, a.TakeSnapshot},
		{"PUT", "/sandboxes/{id}/network", catalogue.UpdateSession, a.SetNetwork},
		{"GET", "/templates", catalogue.ListTemplates, a.ListTemplates},
		{"GET", "/v2/templates", catalogue.ListTemplates, a.PageTemplates},
		{"GET", "/templates/{template}", catalogue.GetTemplate, a.GetTemplate},
		{"GET", "/templates/{template}/{part}", catalogue.GetTemplate, a.TemplatePart},
		{"POST", "/v3/templates", catalogue.RequestBuild, a.RequestBuild},
		{"POST", "/v2/templates", catalogue.RequestBuild, a.RequestBuild},
		{"POST", "/v2/templates/{template}/builds/{build}", catalogue.StartBuild, a.StartBuild},
		{"POST", "/templates", catalogue.BuildDockerfile, a.NoDockerfile},
		{"POST", "/templates/{template}", catalogue.BuildDockerfile, a.NoDockerfile},
		{"POST", "/templates/{template}/builds/{build}", catalogue.BuildDockerfile, a.NoDockerfile},
		{"GET", "/templates/{template}/files/{hash}", catalogue.AskUpload, a.AskUpload},
		{"PUT", "/templates/{template}/files/{hash}", catalogue.Upload, a.Upload},
		{"GET", "/templates/{template}/builds/{build}/status", catalogue.GetBuild, a.BuildStatus},
		{"GET", "/templates/{template}/builds/{build}/logs", catalogue.ReadBuildLog, a.BuildLogs},
		{"POST", "/templates/tags", catalogue.AssignTags, a.AssignTags},
		{"DELETE", "/templates/tags", catalogue.RemoveTags, a.RemoveTags},
		{"PATCH", "/templates/{template}", catalogue.ChangeTemplate, a.ChangeTemplate},
		{"PATCH", "/v2/templates/{template}", catalogue.ChangeTemplate, a.ChangeTemplateV2},
		{"GET", "/secrets", catalogue.ListSecrets, a.ListSecrets},
		{"POST", "/secrets", catalogue.CreateSecret, a.CreateSecret},
		{"GET", "/secrets/{secret}", catalogue.GetSecret, a.GetSecret},
		{"POST", "/secrets/{secret}", catalogue.ReplaceSecret, a.UpdateSecret},
		{"DELETE", "/secrets/{secret}", catalogue.DeleteSecret, a.DeleteSecret},
		{"GET", "/volumes", catalogue.ListVolumes, a.ListVolumes},
		{"POST", "/volumes", catalogue.CreateVolume, a.CreateVolume},
		{"GET", "/volumes/{id}", catalogue.GetVolume, a.GetVolume},
		{"DELETE", "/volumes/{id}", catalogue.DeleteVolume, a.DeleteVolume},
		{"GET", "/e2b/settings", catalogue.ReadSettings, a.Settings},
		{"GET", "/teams", catalogue.ListTeams, a.ListTeams},
		{"GET", "/teams/{team}/metrics", catalogue.TeamMetrics, a.TeamMetrics},
		{"GET", "/teams/{team}/metrics/max", catalogue.TeamMetrics, a.TeamMax},
		{"GET", "/api-keys", catalogue.ListKeys, a.ListKeys},
		{"POST", "/api-keys", catalogue.CreateKey, a.CreateKey},
		{"PATCH", "/api-keys/{id}", catalogue.RenameKey, a.RenameKey},
		{"DELETE", "/api-keys/{id}", catalogue.DeleteKey, a.DeleteKey},
		{"POST", "/access-tokens", catalogue.CreateAccessToken, a.NoAccessTokens},
		{"DELETE", "/access-tokens/{id}", catalogue.DeleteAccessToken, a.NoAccessToken},
		{"GET", "/snapshots", catalogue.ListSnapshots, a.ListSnapshots},
		{"DELETE", "/templates/{template}", catalogue.DeleteTemplateOrSnapshot, a.DeleteTemplate},
		{"DELETE", "/templates/{template}/{part}", catalogue.DeleteTemplateOrSnapshot, a.DeleteTemplate},
		{"GET", "/volumecontent/{id}/path", catalogue.StatVolumeFile, a.StatVolumeFile},
		{"PATCH", "/volumecontent/{id}/path", catalogue.ChangeVolumeFile, a.ChangeVolumeFile},
		{"DELETE", "/volumecontent/{id}/path", catalogue.RemoveVolumeFile, a.RemoveVolumeFile},
		{"GET", "/volumecontent/{id}/dir", catalogue.ListVolumeFolder, a.ListVolumeFolder},
		{"POST", "/volumecontent/{id}/dir", catalogue.MakeVolumeFolder, a.MakeVolumeFolder},
		{"GET", "/volumecontent/{id}/file", catalogue.ReadVolumeFile, a.ReadVolumeFile},
		{"PUT", "/volumecontent/{id}/file", catalogue.WriteVolumeFile, a.WriteVolumeFile},
	}...)
}

// e2bRoots are the first segments of that API's paths.
var e2bRoots = []string{
	"sandboxes", "v2", "v3", "snapshots", "templates", "volumes", "volumecontent", "secrets", "teams", "api-keys", "access-tokens",
	"nodes", "admin", // not implemented here
	"e2b", // not part of E2B's API
}

// isE2B reports whether a path belongs to E2B's API.
func isE2B(path string) bool {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains(e2bRoots, root)
}

// asksControl reports whether a request is for that API despite its headers: some of
// E2B's Python SDKs before 2.30 send envd's headers with connect, too. envd has no such
// paths and takes no key.
func asksControl(r *http.Request) bool {
	return isE2B(r.URL.Path) && r.Header.Get(keyHeader) != ""
}

// isVolumeContent reports whether a path is for files of Volumes, whose errors have
// another form again.
func isVolumeContent(path string) bool { return strings.HasPrefix(path, "/volumecontent/") }

// exposed are the headers of E2B's API that a page of another origin may read.
const exposed = "X-Next-Token, X-Total-Running, Retry-After, RateLimit, RateLimit-Policy, " + telemetry.RequestHeader

// openToPages lets pages of any origin use E2B's API, as its SDK in a browser does: the
// page itself sends the key, and the browser adds no credential. It reports whether r
// is a preflight, which it has answered. Our own API stays closed to pages of other
// origins.
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

// oneCredential returns r with one credential: E2B's clients that have a token beside
// the key send both, and the key is the one to use.
func oneCredential(r *http.Request) *http.Request {
	if !isE2B(r.URL.Path) || len(r.Header.Values(keyHeader)) != 1 || r.Header.Get("Authorization") == "" {
		return r
	}
	one := *r
	one.Header = r.Header.Clone()
	one.Header.Del("Authorization")
	return &one
}
