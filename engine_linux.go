package sandbox

import "syscall"

// GuestMemorySignal is what an Engine that kills Processes to make room sends to
// the Guest first, so that it can say why they ended.
const GuestMemorySignal = syscall.SIGUSR1
