// Package processes keeps the Processes that clients started. They continue when
// clients disconnect, their output is kept and read from any byte, and ended
// Processes stay readable for a while.
//
// Output is in unnamed files, in the memory of the Sandbox and not on its disk; its
// total size is bounded. The oldest output is dropped first, and readers see by the
// offsets that it is gone.
package processes
