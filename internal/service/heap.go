package service

import (
	"os"
	"runtime/debug"
)

// HeapGrowth is how much of its live memory the heap of a service may grow by, in
// per cent, before garbage is collected: half of what the runtime would let it. A
// message takes so little memory that collecting twice as often costs 2 % of the processor time
// at most, and a mail system is many processes, which hold a tenth less by it.
const HeapGrowth = 50

// LimitHeap has the heap grow by so many per cent, unless the environment says by how
// much (GOGC). It may be called at any time.
func LimitHeap(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
