package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestVolumeCommands(t *testing.T) {
	const data = `{"volume_id":"v1","name":"data","size_mb":5,"used_bytes":1048576,"files":3,"created_at":"2026-01-02T03:04:05Z"}`
	const away = `{"volume_id":"v2","name":"da\tta2","size_mb":1024,"created_at":"2026-01-02T03:04:05Z"}`
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.Path {
		case "GET /api/v1/volumes":
			_, _ = io.WriteString(w, `{"volumes":[`+data+`,`+away+`]}`)
		case "POST /api/v1/volumes", "GET /api/v1/volumes/data":
			_, _ = io.WriteString(w, data)
		case "DELETE /api/v1/volumes/data":
			w.WriteHeader(http.StatusNoContent)
		case "POST /api/v1/sessions":
			_, _ = io.WriteString(w, `{"sandbox_id":"i1"}`)
		default:
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":{"code":"conflict","message":"it is in use"}}`)
		}
	}))
	defer server.Close()
	for _, tt := range []struct{ args, asked, out, bad string }{
		{"volume create data", `POST /api/v1/volumes {"name":"data"}`, "data\n", ""},
		{"volume create data --size-mb 5", `POST /api/v1/volumes {"name":"data","size_mb":5}`, "data\n", ""},
		{"volume create data --json", `POST /api/v1/volumes {"name":"data"}`, `"size_mb": 5`, ""},
		{"volume create data --size-mb 0", "", "", "--size-mb must be 1 or more"},
		{"volume create", "", "", "takes one NAME"},
		{"volume ls", "GET /api/v1/volumes", "1.0 MiB   5 MiB      3", ""},
		{"volume ls", "GET /api/v1/volumes", "-         1024 MiB   -", ""},
		{"volume ls -q", "GET /api/v1/volumes", "data\nda ta2\n", ""},
		{"volume ls --json", "GET /api/v1/volumes", `"used_bytes": 1048576`, ""},
		{"volume info data", "GET /api/v1/volumes/data", "1.0 MiB", ""},
		{"volume info data --json", "GET /api/v1/volumes/data", `"files": 3`, ""},
		{"volume rm data --json", "DELETE /api/v1/volumes/data", `"data"`, ""},
		{"volume rm data busy", "DELETE /api/v1/volumes/busy", "data\n", "busy: it is in use"},
		{"volume rm", "", "", "takes one VOLUME or more"},
		{"create --volume data:/data --volume v2:/mnt/x", `POST /api/v1/sessions {"volumes":[{"volume":"data","path":"/data"},{"volume":"v2","path":"/mnt/x"}]}`, "i1\n", ""},
		{"create --volume data", "", "", "write VOLUME:PATH"},
		{"create --volume :/data", "", "", "write VOLUME:PATH"},
		{"run --volume data:/data --sandbox i1 -c 1", "", "", "--volume is for a new sandbox"},
		{"__complete create --volume da", "GET /api/v1/volumes", "data:", ""},
		{"__complete volume rm data da", "GET /api/v1/volumes", "da ta2", ""},
	} {
		asked = nil
		out, _, err := entered(t, server.URL, tt.args)
		last := ""
		if len(asked) > 0 {
			last = asked[len(asked)-1]
		}
		if last != tt.asked || !strings.Contains(out, tt.out) || (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(sentence(err), tt.bad) {
			t.Errorf("%s: %v\nasked %q\nprinted %q", tt.args, err, asked, out)
		}
	}
}
