package rest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloud-sandbox/cloud-sandbox"
	"github.com/cloud-sandbox/cloud-sandbox/tests/gatewaytest"
)

func TestTenants(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var made, told gatewaytest.TenantView
	f.Operate("POST", "/api/v1/tenants", `{"tenant":"acme","name":"Acme"}`).Into(t, 201, &made)
	if made.Tenant != "acme" || made.Name != "Acme" || made.State != "active" || made.Suspended != nil || made.Quota != nil {
		t.Errorf("made %+v", made)
	}
	f.Do("GET", "/api/v1/sessions", "") // the first use of dev:test
	f.Operate("PUT", "/api/v1/tenants/acme/quota", `{"sandboxes":3}`)
	if f.Operate("GET", "/api/v1/tenants/acme", "").Into(t, 200, &told); told.Quota == nil || !told.Quota.Own || told.Quota.Limits["sandboxes"] != 3 || told.Quota.Used["sandboxes"] != 0 {
		t.Errorf("told %+v", told)
	}
	var all []string
	for next := ""; ; {
		var page struct {
			Tenants []gatewaytest.TenantView
			Next    string `json:"next_cursor"`
		}
		f.Operate("GET", "/api/v1/tenants?limit=1&cursor="+next, "").Into(t, 200, &page)
		for _, one := range page.Tenants {
			all = append(all, one.Tenant)
		}
		if next = page.Next; next == "" {
			break
		}
	}
	if !slices.Equal(all, []string{"acme", "dev:test", "ops"}) {
		t.Errorf("there are %q", all)
	}
	var changed gatewaytest.TenantView
	if f.Operate("PATCH", "/api/v1/tenants/acme", `{"name":"A","state":"suspended","reason":"why"}`).Into(t, 200, &changed); changed.Name != "A" || changed.State != "suspended" || changed.Suspended == nil || changed.Suspended.Reason != "why" {
		t.Errorf("changed to %+v", changed)
	}
	for state, want := range map[string]int{"suspended": 1, "active": 2} {
		var page struct{ Tenants []gatewaytest.TenantView }
		if f.Operate("GET", "/api/v1/tenants?state="+state, "").Into(t, 200, &page); len(page.Tenants) != want {
			t.Errorf("%d are %s, want %d", len(page.Tenants), state, want)
		}
	}
	for request, want := range map[string]int{
		"POST /api/v1/tenants {}":                                              400,
		`POST /api/v1/tenants {"tenant":"acme"}`:                               409,
		`POST /api/v1/tenants {"tenant":"a/b"}`:                                400,
		`POST /api/v1/tenants {"tenant":"x","quota":1}`:                        400,
		`POST /api/v1/tenants {"tenant":7}`:                                    400,
		"GET /api/v1/tenants?state=odd ":                                       400,
		"GET /api/v1/tenants?limit=0 ":                                         400,
		"GET /api/v1/tenants?cursor=%25 ":                                      400,
		"GET /api/v1/tenants?order=x ":                                         400,
		"GET /api/v1/tenants/none ":                                            404,
		"DELETE /api/v1/tenants/none ":                                         404,
		`PATCH /api/v1/tenants/none {"state":"active"}`:                        404,
		`PATCH /api/v1/tenants/acme {"state":"suspended"}`:                     400,
		`PATCH /api/v1/tenants/acme {"reason":"x"}`:                            400,
		`PATCH /api/v1/tenants/ops {"state":"suspended","reason":"myself"}`:    409,
		"DELETE /api/v1/tenants/ops ":                                          409,
		"GET /api/v1/tenants/" + strings.Repeat("a", 129) + " ":                400,
		`PATCH /api/v1/tenants/acme {"state":"suspended","reason":"a\u0000b"}`: 400,
	} {
		parts := strings.SplitN(request, " ", 3)
		if a := f.Operate(parts[0], parts[1], parts[2]); a.Status != want {
			t.Errorf("%s: %d %s, want %d", request, a.Status, a.Body, want)
		}
	}
	if a := f.Operate("DELETE", "/api/v1/tenants/acme", ""); a.Status != 204 {
		t.Errorf("deleted: %d %s", a.Status, a.Body)
	}
	for _, e := range f.Audit() {
		if e.Operation == sandbox.AuditTenantSuspended && (e.Tenant != "acme" || e.User != "operator") {
			t.Errorf("recorded for its own log %+v", e)
		}
	}
}
