// Package processes keeps the Processes that clients started: they go on
// whoever leaves, their output is kept and read from any byte, and those that
// have ended stay readable for a while.
//
// Output lies in files without names, in memory of the Sandbox and not on its
// disk; all of it together has a bound. What is dropped is always the oldest,
// and readers see by the offsets that it is gone.
package processes
