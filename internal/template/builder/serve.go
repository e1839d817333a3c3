package builder

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/rpc/frames"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
	"github.com/cloud-sandbox/cloud-sandbox/internal/template"
)

// Listen opens the socket for processes of uid and of root.
func Listen(path string, uid int) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for builds: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for builds: %w", err)
	}
	if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, uid, uid)); err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen for builds: %w", err)
	}
	return ln, nil
}

// Serve listens and serves requests until ctx ends, then cancels every build and closes
// the listener. It holds the Store's build lock: a second Service waits for the end of
// the first.
func Serve(ctx context.Context, cfg Config, listen func() (net.Listener, error)) error {
	release, err := cfg.Store.LockBuilds(ctx, func() {
		cfg.Log.Warn("no template can be built yet: another builder holds the lock of the templates' folder, and this one waits for its end")
	})
	if err != nil {
		return err
	}
	defer release()
	service, err := Open(cfg)
	if err != nil {
		return err
	}
	defer service.Close()
	ln, err := listen()
	if err != nil {
		return err
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { (&template.Compactor{Store: cfg.Store, Log: cfg.Log}).Run(base) })
	srv := &http.Server{
		Handler: service.handler(), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return base },
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	cancel()
	err = srv.Close()
	<-failed
	return err
}

type handler func(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error

func (s *Service) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"POST " + pathBuilds:              s.serveBuild,
		"GET " + pathBuilds:               s.serveBuilds,
		"GET " + pathBuilds + "/{id}":     s.serveBuildByID,
		"DELETE " + pathBuilds + "/{id}":  s.serveCancel,
		"GET " + pathBuilds + "/{id}/log": s.serveLog,
		"DELETE " + pathTemplates:         s.serveRemove,
		"POST " + pathTags:                s.serveTag,
		"POST " + pathImages:              s.serveKeep,
		"DELETE " + pathImages:            s.serveDrop,
		"POST " + pathReuses:              s.serveReuse,
		"GET " + pathEnded:                s.serveEnded,
		"GET " + pathImage:                s.serveImage,
		"PUT " + pathImage:                s.storeImage,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r, sandbox.TenantID(r.URL.Query().Get("tenant"))); err != nil {
				s.fail(w, r, err)
			}
		})
	}
	return mux
}

func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := failureFrom(err)
	if f.Code == sandbox.Internal && r.Context().Err() == nil {
		s.cfg.Log.Error("handling a request about a template failed", telemetry.KeyError, err)
	}
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(f) // the client may be gone
}

func reply(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(w).Encode(v)
}

func (s *Service) serveBuild(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	body := bufio.NewReaderSize(r.Body, 64<<10)
	req, err := readRequest(body)
	if err != nil {
		return err
	}
	if r.URL.Query().Get("files") != "" {
		req.Upload = frames.Decode(body)
	}
	var archive io.Reader
	if r.URL.Query().Get("archive") != "" {
		archive = body
	}
	quota, err := quotaFrom(r.URL.Query())
	if err != nil {
		return err
	}
	b, err := s.Build(r.Context(), tenant, quota, req, archive)
	return reply(w, b, err)
}

func (s *Service) serveBuilds(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	all, err := s.Builds(r.Context(), tenant)
	return reply(w, all, err)
}

func (s *Service) serveEnded(w http.ResponseWriter, r *http.Request, _ sandbox.TenantID) error {
	since, err := time.Parse(time.RFC3339Nano, r.URL.Query().Get("since"))
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "since is no time")
	}
	return reply(w, s.Ended(since), nil)
}

func (s *Service) serveBuildByID(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	b, err := s.BuildByID(r.Context(), tenant, r.PathValue("id"))
	return reply(w, b, err)
}

func (s *Service) serveCancel(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	b, err := s.CancelBuild(r.Context(), tenant, r.PathValue("id"))
	return reply(w, b, err)
}

func (s *Service) serveRemove(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	gone, err := s.Remove(r.Context(), tenant, r.URL.Query().Get("template"))
	return reply(w, gone, err)
}

func (s *Service) serveTag(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	q := r.URL.Query()
	t, err := s.Tag(r.Context(), tenant, q.Get("template"), q["tag"])
	return reply(w, t, err)
}

func (s *Service) serveKeep(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	q := r.URL.Query()
	quota, err := quotaFrom(q)
	if err != nil {
		return err
	}
	return reply(w, struct{}{}, s.Keep(tenant, quota, q.Get("template"), q.Get("version")))
}

func (s *Service) serveDrop(w http.ResponseWriter, r *http.Request, _ sandbox.TenantID) error {
	return reply(w, struct{}{}, s.cfg.Store.Drop(r.URL.Query().Get("version")))
}

func (s *Service) serveReuse(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	var as sandbox.Template
	if json.NewDecoder(io.LimitReader(r.Body, maxRecord)).Decode(&as) != nil {
		return sandbox.Errorf(sandbox.Invalid, "the description of the template is not JSON")
	}
	t, err := s.Reuse(r.Context(), tenant, r.URL.Query().Get("template"), as)
	return reply(w, t, err)
}

// serveImage sends an image. A failure after the first byte breaks the connection, and
// the client misses bytes.
func (s *Service) serveImage(w http.ResponseWriter, r *http.Request, _ sandbox.TenantID) error {
	open := s.cfg.Store.OpenImage
	if r.URL.Query().Get(keyCopy) != "" {
		open = s.cfg.Store.OpenToCopy
	}
	image, err := open(r.Context(), r.URL.Query().Get(keyVersion))
	if err != nil {
		return err
	}
	defer image.Close()
	info, err := image.Stat()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	if _, err := io.Copy(w, image); err != nil {
		panic(http.ErrAbortHandler) // the client is gone, or has an incomplete image
	}
	return nil
}

func (s *Service) storeImage(w http.ResponseWriter, r *http.Request, _ sandbox.TenantID) error {
	q := r.URL.Query()
	bytes, err := strconv.ParseInt(q.Get(keyBytes), 10, 64)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "%s is missing", keyBytes)
	}
	return reply(w, struct{}{}, s.cfg.Store.ReceiveImage(r.Context(), q.Get(keyVersion), bytes, r.Body))
}

// serveLog writes lines as they come. After the first line, a failure is sent as the last
// line.
func (s *Service) serveLog(w http.ResponseWriter, r *http.Request, tenant sandbox.TenantID) error {
	from, err := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
	if err != nil {
		return sandbox.Errorf(sandbox.Invalid, "from must be a whole number")
	}
	if _, err := s.BuildByID(r.Context(), tenant, r.PathValue("id")); err != nil {
		return err
	}
	flow, out := http.NewResponseController(w), json.NewEncoder(w)
	if err := flow.Flush(); err != nil { // the client waits for the header
		return err
	}
	follow := r.URL.Query().Get("follow") == "true"
	err = s.BuildLog(r.Context(), tenant, r.PathValue("id"), from, follow, func(l sandbox.BuildLine) error {
		if err := out.Encode(logMessage{Line: &l}); err != nil {
			return err
		}
		return flow.Flush()
	})
	if err != nil {
		f := failureFrom(err)
		_ = out.Encode(logMessage{Failure: &f}) // the client may be gone
	}
	return nil
}
