package sched

import "flag"

// long has the random tests run many more histories than a change needs:
// go test ./qmgr/sched -long
var long = flag.Bool("long", false, "run many more random histories")
