package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	sandbox "github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/internal/telemetry"
)

// Users of audit entries that no client made.
const (
	system   = "system"   // actions without a request
	operator = "operator" // actions on the server itself
)

// auditTime bounds how long the end of a Sandbox waits for its audit entry.
const auditTime = 5 * time.Second

// auditEnd records the end of a Sandbox without a request. The cause is in the Sandbox's
// record.
func auditEnd(ctx context.Context, store sandbox.AuditStore, log *slog.Logger, sb sandbox.Sandbox) {
	user, cause := system, sb.Ended.Cause
	switch cause {
	case sandbox.CauseReleased, sandbox.CauseRefused:
		return // the request has an entry
	case sandbox.CauseOperator:
		user = operator
	}
	auditOwn(ctx, store, log, sandbox.AuditEntry{
		Tenant: sb.Tenant, User: user, Operation: sandbox.AuditEnded, Target: sb.ID, Sandbox: sb.ID, Detail: string(cause),
	})
}

// auditPruned records that a Snapshot was removed without a request.
func auditPruned(ctx context.Context, store sandbox.AuditStore, log *slog.Logger, snap sandbox.Snapshot) {
	auditOwn(ctx, store, log, sandbox.AuditEntry{
		Tenant: snap.Tenant, User: system, Operation: sandbox.AuditRetention, Target: snap.ID, Sandbox: snap.SandboxID, Detail: "retention",
	})
}

// auditOwn records an action that is done already. An entry that cannot be written is
// logged.
func auditOwn(ctx context.Context, store sandbox.AuditStore, log *slog.Logger, e sandbox.AuditEntry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditTime)
	defer cancel()
	e.At, e.Request = time.Now().UTC().Truncate(time.Microsecond), telemetry.RequestOf(ctx)
	if _, err := store.AppendAudit(ctx, e); err != nil {
		log.ErrorContext(ctx, "writing an audit entry of the command line failed", telemetry.KeyError, err.Error(), "operation", e.Operation,
			"target", e.Target, telemetry.KeySandbox, e.Sandbox, telemetry.KeyTenant, e.Tenant, "detail", e.Detail)
	}
}

// AuditOperator records an action of the operator on the server itself. failure is the
// error of the action; nil: it succeeded. AuditOperator returns failure, joined with
// the error of the recording if that fails.
func AuditOperator(ctx context.Context, store sandbox.AuditStore, e sandbox.AuditEntry, failure error) error {
	e.At, e.User, e.Code = time.Now().UTC().Truncate(time.Microsecond), operator, string(sandbox.CodeOf(failure))
	e.Target = sandbox.AuditText(e.Target)
	if _, err := store.AppendAudit(context.WithoutCancel(ctx), e); err != nil {
		return errors.Join(failure, fmt.Errorf("it could not be recorded in the audit log: %w", err))
	}
	return failure
}
