package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/sentryhost"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// passEvery is how often a changed key of builds is passed to the sentry host.
const passEvery = 5 * time.Second

// passBuildKeys passes the key of builds to our sentry host, which verifies and keeps it,
// until the engine is closed.
func (e *Engine) passBuildKeys() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-e.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	var passed []byte
	complained := "" // the last error
	for {
		if raw := e.cfg.BuildKey(); len(raw) > 0 && !bytes.Equal(raw, passed) {
			err := e.passBuildKey(ctx, raw)
			if err == nil {
				passed, complained = raw, ""
			} else if ctx.Err() == nil && err.Error() != complained {
				complained = err.Error()
				e.cfg.Log.Warn("passing the key of builds to the sentry host failed; will retry", telemetry.KeyError, err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (e *Engine) passBuildKey(ctx context.Context, raw []byte) error {
	var key installation.BuildKey
	if err := json.Unmarshal(raw, &key); err != nil {
		return fmt.Errorf("the key of builds: %w", err)
	}
	own, err := e.own.connected(ctx)
	if err != nil {
		return err
	}
	return own.SetBuildKey(ctx, key)
}

// bringBuild fetches the build whose programs a state needs before it is imported, if they
// are not here. m is not verified yet.
func (e *Engine) bringBuild(ctx context.Context, own *sentryhost.Client, r sentryhost.ImportRequest, m sentryhost.Manifest) error {
	if e.cfg.Builds == nil || !m.Memory || m.Build == own.Info.Build {
		return nil
	}
	admitted, err := own.Admit(ctx, r)
	if err != nil || admitted.Lacks == "" {
		return err
	}
	return e.fetchBuild(ctx, admitted.Lacks)
}

// fetchBuild passes the programs of an earlier build from the store to our sentry host,
// which verifies them before they can be started. One build is fetched at a time.
func (e *Engine) fetchBuild(ctx context.Context, build string) error {
	select {
	case e.fetching <- struct{}{}:
		defer func() { <-e.fetching }()
	case <-ctx.Done():
		return ctx.Err()
	}
	own, err := e.own.connected(ctx)
	if err != nil {
		return err
	}
	raw, err := e.cfg.Builds.Signature(ctx, build)
	if errors.Is(err, sandbox.NotFound) {
		return sandbox.Errorf(sandbox.Conflict, "build %.80s of Cloud Sandbox, which the saved state needs, is neither on this node nor in the blob store: upload it with `cloud-sandbox cluster sign-build`, or start from a state of files alone", build).WithCause(err)
	}
	var m builds.Manifest
	if err == nil {
		m, err = builds.Unverified(raw, build)
	}
	if err != nil {
		return err
	}
	out, pipe, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("fetch a build: %w", err)
	}
	answered := make(chan error, 1)
	go func() {
		err := own.BringBuild(ctx, sentryhost.BuildRequest{Build: build, Signed: raw}, out)
		out.Close()
		answered <- err
	}()
	refusable := refusing{pipe}
	sent := e.cfg.Builds.Copy(ctx, m, refusable)
	if sent == nil {
		_, sent = refusable.Write([]byte{sentryhost.ImportEnd})
	}
	pipe.Close()
	err = <-answered
	switch {
	case err == nil:
		return nil // it has the build, even if it needed no bytes
	case ctx.Err() != nil:
		return ctx.Err()
	case sent != nil && !errors.Is(sent, errRefused):
		return sent // the reason why the sentry host did not get all
	}
	return err
}
