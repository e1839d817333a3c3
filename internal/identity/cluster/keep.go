package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

const (
	// lookEvery is the interval of checking the files for changes.
	lookEvery = 5 * time.Second
	// crlEvery is the interval of reading the list of revoked certificates from the
	// authority: a revocation applies everywhere after it.
	crlEvery = 30 * time.Second
	// renewEvery is the pause after a renewal that failed, and warnEvery the pause between
	// two warnings.
	renewEvery = 5 * time.Minute
	warnEvery  = time.Hour
)

// Run keeps the identity current until ctx ends. It reads replaced files, renews the
// certificate when half of its life is over, reads the list of revoked certificates, and
// warns before the certificate expires.
func (i *Identity) Run(ctx context.Context) error {
	k := keeper{Identity: i}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		k.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// keeper remembers when each step was last tried.
type keeper struct {
	*Identity
	crlAt, renewedAt, warnedAt time.Time
	complained                 string // the last error of reading the files
	away                       bool   // the authority did not answer
}

func (k *keeper) look(ctx context.Context, now time.Time) {
	changed, err := k.Reload()
	switch {
	case err != nil && err.Error() != k.complained:
		k.complained = err.Error()
		k.log.Warn("reading the replaced identity failed; the previous one stays in use", telemetry.KeyError, err.Error())
	case err == nil:
		k.complained = ""
	}
	if changed {
		k.log.Info("the identity of this role was replaced", "identity", k.ID().Short(), "expires", k.Current().NotAfter())
	}
	if err := k.finishRenewal(); err != nil {
		k.log.Warn("renaming the key of a renewed identity failed", telemetry.KeyError, err.Error())
	}
	k.readCRL(ctx, now)
	k.renew(ctx, now)
	k.warn(now)
}

func (k *keeper) readCRL(ctx context.Context, now time.Time) {
	if now.Sub(k.crlAt) < crlEvery {
		return
	}
	k.crlAt = now
	changed, err := k.fetchCRL(ctx)
	if err == nil {
		err = k.follow(ctx, revokedHostsNotice)
	}
	if err == nil {
		err = k.follow(ctx, buildKeyNotice)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil && !k.away {
		k.log.Warn("reading the lists of revoked keys and the key of builds failed; the last ones stay in use", telemetry.KeyError, err.Error())
	}
	k.away = err != nil
	if changed {
		k.log.Info("the list of revoked certificates has changed")
	}
}

func (k *keeper) renew(ctx context.Context, now time.Time) {
	p := k.Current()
	life := p.leaf().NotAfter.Sub(p.leaf().NotBefore)
	if p.leaf().NotAfter.Sub(now) > life/2 || now.Sub(k.renewedAt) < min(renewEvery, life/20) {
		return
	}
	k.renewedAt = now
	switch err := k.Renew(ctx); {
	case err == nil:
		k.log.Info("renewed the identity of this role", "identity", p.ID.Short(), "expires", k.Current().NotAfter())
	case ctx.Err() != nil, errors.Is(err, errNowhere): // the operator replaces the files
	default:
		k.log.Warn("renewing the identity of this role failed; will retry", "expires", p.NotAfter(), telemetry.KeyError, err.Error())
	}
}

// warn warns when a quarter of the certificate's life is left: then a renewal failed for
// long.
func (k *keeper) warn(now time.Time) {
	p := k.Current()
	left := p.leaf().NotAfter.Sub(now)
	if left > p.leaf().NotAfter.Sub(p.leaf().NotBefore)/4 || now.Sub(k.warnedAt) < warnEvery {
		return
	}
	k.warnedAt = now
	if left <= 0 {
		k.log.Error("the certificate of this role has expired: other roles refuse its calls", "identity", p.ID.Short(), "expired", p.NotAfter())
		return
	}
	k.log.Warn("the certificate of this role expires soon", "identity", p.ID.Short(), "expires", p.NotAfter())
}
