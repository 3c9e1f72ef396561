// Package testseed says where the random histories of a test begin. "make test" sets the variable
// POSTHASTE_SEED, and RAPID_SEED for the properties, so that one tree passes or fails always in the same
// way; without them each run has histories of its own, as the long runs do.
package testseed

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Variable is the environment variable that has the seed, a number other than 0.
const Variable = "POSTHASTE_SEED"

// First is the first seed of a test, which is logged with how to have it again. It may be called by any
// goroutine of the test.
func First(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv(Variable), 10, 64)
	if err != nil || seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%s=%d", Variable, seed)
	return seed
}
