package nodeshare

import "time"

const (
	// NoteTime is how long a note counts that a node has published for the others, by the table's clock, and NotePeriod
	// how often it is renewed.
	NoteTime   = 5 * time.Second
	NotePeriod = time.Second
	// NoteLimit bounds a note, in octets, and NoteNodes the nodes of which one hears.
	NoteLimit = 64 << 10
	NoteNodes = 64
)
