// Where a list goes on.

package qmgr

import "posthaste/internal/queue"

const (
	// heldShift is where in a cursor the list is, above the numbers that one spool gives. These are counted from 1, and
	// no queue has had four million million messages.
	heldShift = 42
	// partShift is where the number of the spool is in a cursor. Where nodes share a queue there are no spools, and the console
	// has the number of a part there.
	partShift = heldShift + 2
)

// cursorOf is the cursor for tools of what begins with a message number; 0: the end. A number may have its highest bit
// set, and a cursor is neither negative nor without room for the list that it is in: so the number of the spool is next to the
// rest of the number here. Of one list the order of cursors is that of numbers.
func cursorOf(number uint64, list held) int {
	return int(number>>queue.SpoolShift)<<partShift | int(list)<<heldShift | int(number&(1<<heldShift-1))
}

// fromCursor is the message number that a list goes on with, and the list. The cursor comes back from the tool, which may have made it
// up: any will do.
func fromCursor(cursor int) (number uint64, list held) {
	c := uint64(max(cursor, 0))
	return c>>partShift<<queue.SpoolShift | c&(1<<heldShift-1), held(c >> heldShift % 4)
}
