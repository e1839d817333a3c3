package sandbox

import "syscall"

// GuestMemorySignal is the signal that an Engine sends to the Guest before it kills
// Processes to free memory, so that the Guest can report why they ended.
const GuestMemorySignal = syscall.SIGUSR1
