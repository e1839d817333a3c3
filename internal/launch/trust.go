package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/builds"
	"github.com/cloud-sandbox/cloud-sandbox/internal/engine/gvisor/installation"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// trust returns an error if the programs of a build may not be started. In the data folder
// of a node whose cluster has a key of builds, that key must have signed them. Elsewhere
// they were unpacked from a program that root has started.
//
// Only root can change the programs, which is verified too: so they are still the same when
// they are started.
func (l Layout) trust(ctx context.Context, build string) error {
	key, err := installation.Open(l.Saved()).BuildKey()
	if err != nil || key == nil {
		return err
	}
	dir := filepath.Join(l.Binaries(), build)
	unsigned := builds.HasSignature(dir, *key)
	if unsigned == nil {
		return builds.Verify(dir, *key)
	}
	if l.signature == nil {
		return unsigned
	}
	raw, err := l.signature(ctx, build)
	if err != nil {
		return fmt.Errorf("%w (the cluster's CA was asked: %w)", unsigned, err)
	}
	return builds.Keep(dir, raw, *key) // which verifies
}

// askAgain is the pause after a build was not trusted.
const askAgain = time.Minute

// keepSigned gets the signatures of all builds here by the present key of the cluster, until
// ctx ends. So a replaced key makes no build unusable until the next start, and a later
// start needs no authority.
func (l Layout) keepSigned(ctx context.Context, log *slog.Logger) {
	signed, said := map[string]installation.Key{}, map[string]string{}
	for {
		pause := lookEvery
		key, err := installation.Open(l.Saved()).BuildKey()
		if err != nil {
			pause = askAgain
			log.Warn("reading the key of builds failed: no build is started", telemetry.KeyError, err)
		}
		for _, build := range l.builds() {
			if by, known := signed[build]; key == nil || known && by == *key || !l.unpacked(build) {
				continue
			}
			err := l.trust(ctx, build)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				signed[build] = *key
			}
			if err == nil || !l.unpacked(build) { // or it was removed meanwhile
				continue
			}
			pause = askAgain
			if said[build] != err.Error() {
				said[build] = err.Error()
				log.Warn("a build on this node is not trusted: from now on it is not started, nor are saved states that need it", telemetry.KeyBuild, build, telemetry.KeyError, err)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// unpacked reports whether the programs of a build are here.
func (l Layout) unpacked(build string) bool {
	_, err := os.Stat(l.program(build))
	return err == nil
}
