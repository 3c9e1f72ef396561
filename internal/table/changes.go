package table

import "sync"

// Changes tells whether the tables that were opened with it ([Options.Changes]) may answer otherwise than
// before. Whoever keeps answers asks it, rather than all of the questions again. The zero value has no tables.
// All methods may be called concurrently; a nil Changes may be given to [Open].
type Changes struct {
	mu sync.Mutex
	// Those of the tables that are made of files. It grows while tables are opened that could not be opened before.
	files []revised
	blind bool
}

// A revised is a file that is read again when it has changed.
type revised interface {
	revision() uint64 // grows with each reading
	look()            // reads it again if it has changed, without regard to when it was last looked at
}

// Revision is a number that differs from an earlier one when a file has been read again, or a table could be
// opened, since. It looks at no file: it is the number of what lookups answer from now.
func (c *Changes) Revision() (sum uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.files {
		sum += f.revision()
	}
	return sum
}

// Look looks at all files, reads those again that have changed, and returns the Revision.
func (c *Changes) Look() uint64 {
	c.mu.Lock()
	files := c.files // elements are never changed, and others are only added behind them
	c.mu.Unlock()
	for _, f := range files {
		f.look()
	}
	return c.Revision()
}

// Blind says that a table is among them whose changes nobody sees: a server, a database, the system's users, chance.
func (c *Changes) Blind() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blind
}

// watch adds a file.
func (c *Changes) watch(f revised) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.files = append(c.files, f)
	c.mu.Unlock()
}

// adopt adds the tables of another, which are one that was opened just now.
func (c *Changes) adopt(of *Changes) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.files = append(c.files, of.files...)
	c.blind = c.blind || of.blind
	c.mu.Unlock()
}

// sees says whether changes of a built-in type's tables are seen, because they are in files, or there are none.
func sees(kind string) bool {
	switch kind {
	case "hash", "btree", "lmdb", "dbm", "sdbm", "cdb", "texthash", "regexp", "pcre", "cidr", // files
		"inline", "static", "environ", "fail", // the configuration, and the process's own
		"unionmap", "pipemap", "proxy": // their parts tell
		return true
	}
	return false
}
