// Package sandboxbuild builds Templates step by step: it starts a Sandbox from another Template,
// runs the requested commands in it, and makes its content a version of a Template. The
// steps run only inside the Sandbox. The result is an archive like a Tenant's upload.
package sandboxbuild
