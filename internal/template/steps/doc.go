// Package steps builds Templates step by step: it starts a Sandbox from another
// Template, runs commands in it as they are asked for, and has everything that is
// in it then made a version of a Template. What the steps do is done inside; what
// comes out is an archive like any that a Tenant sends.
package steps
