// Package sandbox defines the terms and rules of Cloud Sandbox, and the ports
// (interfaces) between its parts.
//
// Each term has one meaning everywhere: a [Tenant] owns [Sandbox]es; a Sandbox is one
// isolated machine whose ID lasts for life; a [Boot] is one unbroken run of it on one
// [Node]; an engine (see [Engine]) carries Boots and knows nothing of Tenants. A Boot's
// life under an owner opens with one call, Bind (see [Binding]).
//
// The package imports only the standard library. Each technology (gVisor,
// SQLite, REST) is a leaf package that imports this one, and only
// internal/serve joins them.
package sandbox
