package postmap

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// mapSyntax is the source of postmap: key, white space, value.
type mapSyntax struct{}

func (mapSyntax) parse(name, text string, warn func(string), fn func(table.Line) error) error {
	return table.ParseSource(name, text, warn, fn)
}
func (mapSyntax) separator() string                         { return "\t" }
func (mapSyntax) extra(func(key, value string) error) error { return nil }
func (mapSyntax) letters() string                           { return "bc:d:fFhijmnNopq:rsuUvw" }

// aliasSyntax is the source of postalias: name, colon, value.
type aliasSyntax struct{}

func (aliasSyntax) parse(name, text string, warn func(string), fn func(table.Line) error) error {
	return table.EachLine(text, func(n int, line string) error {
		key, value, err := splitAlias(line)
		if err != nil {
			warn(fmt.Sprintf("%s, line %d: %v", name, n, err))
			return nil
		}
		return fn(table.Line{Number: n, Key: key, Value: value})
	})
}

func (aliasSyntax) separator() string { return ":\t" }
func (aliasSyntax) letters() string   { return "c:d:fijnNopq:rsuUvw" }

// extra adds the entry by which Sendmail knows that an alias file is whole.
func (aliasSyntax) extra(add func(key, value string) error) error { return add("@", "@") }

var (
	errPair  = errors.New("need name:value pair")
	errLocal = errors.New("name must be local") // nothing with a domain is looked up
)

// splitAlias cuts a line at the first colon outside of quotes. The name is
// kept in internal form, as it will be looked up.
func splitAlias(line string) (name, value string, err error) {
	quoted, local := false, true
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '@' && !quoted:
			local = false
		case c == ':' && !quoted:
			name, value = strings.TrimSpace(line[:i]), strings.TrimSpace(line[i+1:])
			if addrs := rfc5322.AppendAddresses(nil, name, 0); len(addrs) != 1 || value == "" {
				return "", "", errPair
			}
			if !local {
				return "", "", errLocal
			}
			return rfc5322.Unquote(name), value, nil
		}
	}
	return "", "", errPair
}

// build makes a table anew, or with -i adds to it.
func (c *command) build(spec string) error {
	path, err := table.WriterPath(spec)
	if err != nil {
		return err
	}
	_, source, _ := strings.Cut(spec, ":")
	a, text, err := c.source(source)
	if err != nil {
		return err
	}
	restore, err := c.dropRights(a)
	if err != nil {
		return err
	}
	defer restore()
	if c.opt.incremental {
		return c.change(spec, path, a, func(e *entries) error { return c.load(path, source, text, e) })
	}
	e := newEntries()
	if err := c.load(path, source, text, e); err != nil {
		return err
	}
	if err := c.syntax.extra(func(k, v string) error { e.set(k, v); return nil }); err != nil {
		return err
	}
	return c.write(spec, e, a)
}

// attributes is the permissions and the owner that a table gets.
type attributes struct {
	mode     os.FileMode
	uid, gid int // of the source
}

// source reads the text to build from: the file, or with -i the standard input.
func (c *command) source(name string) (attributes, string, error) {
	a := attributes{mode: 0o644, uid: os.Geteuid(), gid: os.Getegid()}
	fi, err := os.Stat(name)
	switch {
	case err == nil:
		if !c.opt.noPerm {
			a.mode = 0o600 | fi.Mode().Perm()&0o044
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			a.uid, a.gid = int(st.Uid), int(st.Gid)
		}
	case !c.opt.incremental:
		return a, "", fmt.Errorf("open %s: %w", name, errors.Unwrap(err))
	}
	var b []byte
	if c.opt.incremental {
		b, err = io.ReadAll(c.stdin)
	} else {
		b, err = os.ReadFile(name)
	}
	return a, string(b), err
}

// dropRights takes the rights of the source's owner, if we have root's and
// were not told to keep them. restore gives them back.
func (c *command) dropRights(a attributes) (restore func(), err error) {
	if os.Geteuid() != 0 || a.uid == 0 || c.opt.keepRoot {
		return func() {}, nil
	}
	gid := os.Getegid()
	if err := syscall.Setresgid(-1, a.gid, -1); err != nil {
		return nil, fmt.Errorf("take the rights of group %d: %w", a.gid, err)
	}
	if err := syscall.Setresuid(-1, a.uid, -1); err != nil {
		return nil, fmt.Errorf("take the rights of user %d: %w", a.uid, err)
	}
	return func() {
		if err := errors.Join(syscall.Setresuid(-1, 0, -1), syscall.Setresgid(-1, gid, -1)); err != nil {
			c.warn(fmt.Sprintf("take root's rights again: %v", err))
			c.failures++
		}
	}, nil
}

// load puts the entries of a source into e.
func (c *command) load(path, source, text string, e *entries) error {
	return c.syntax.parse(source, text, c.warn, func(l table.Line) error {
		if c.utf8 && !(utf8.ValidString(l.Key) && utf8.ValidString(l.Value)) {
			c.warn(fmt.Sprintf("%s, line %d: non-UTF-8 input %q -- ignoring this line", source, l.Number, l.Key+" "+l.Value))
			return nil
		}
		key := l.Key
		if !c.opt.noFold {
			key = table.Fold(key)
		}
		value := l.Value
		if c.opt.files {
			b, err := filesValue(value)
			if err != nil {
				c.warn(fmt.Sprintf("%s, line %d: %v: skipping this entry", source, l.Number, err))
				return nil
			}
			value = b
		}
		if e.has(key) && !c.opt.replace {
			if !c.opt.ignore {
				c.warn(fmt.Sprintf("%s: duplicate entry: %q", path, key))
			}
			return nil
		}
		e.set(key, value)
		return nil
	})
}

// filesValue is the content of the files that value names, one after the other,
// as base64.
func filesValue(value string) (string, error) {
	var all []byte
	for _, name := range table.SplitList(value) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		all = append(all, b...)
	}
	if len(all) == 0 {
		return "", fmt.Errorf("%s: no content", value)
	}
	return base64.StdEncoding.EncodeToString(all), nil
}

// entries is a table's content in order.
type entries struct {
	keys   []string
	values map[string]string
}

func newEntries() *entries { return &entries{values: make(map[string]string)} }

func (e *entries) has(key string) bool { _, ok := e.values[key]; return ok }

func (e *entries) set(key, value string) {
	if !e.has(key) {
		e.keys = append(e.keys, key)
	}
	e.values[key] = value
}

// write makes a table of e.
func (c *command) write(spec string, e *entries, a attributes) error {
	w, err := table.Create(spec)
	if err != nil {
		return err
	}
	end := ""
	if c.opt.null && strings.HasPrefix(spec, "cdb:") {
		end = "\x00"
	}
	n := 0
	for _, key := range e.keys {
		value, ok := e.values[key]
		if !ok {
			continue // deleted
		}
		if _, err := w.Add(key+end, value+end); err != nil {
			return errors.Join(err, w.Abort())
		}
		n++
	}
	uid, gid := -1, -1
	if os.Geteuid() == 0 && !c.opt.keepRoot {
		uid, gid = a.uid, a.gid
	}
	if err := w.Commit(a.mode, uid, gid); err != nil {
		return err
	}
	c.verbosef("%s: %d entries", spec, n)
	return nil
}

// change writes the table at path anew with what edit does to its entries. A
// table that is not there yet is empty.
func (c *command) change(spec, path string, a attributes, edit func(*entries) error) error {
	unlock, fi, err := lockFile(path)
	if err != nil {
		return err
	}
	defer unlock()
	e := newEntries()
	if there := table.BuiltPath(spec); fi == nil && there != "" {
		if fi, err = os.Stat(there); err != nil { // Postfix's: what is in it stays in the table
			return err
		}
	}
	if fi != nil {
		if err := c.read(spec, e); err != nil {
			return err
		}
		a.mode = fi.Mode().Perm()
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			a.uid, a.gid = int(st.Uid), int(st.Gid)
		}
	}
	if err := edit(e); err != nil {
		return err
	}
	return c.write(spec, e, a)
}

// lockFile locks the file at path against other changes. Since a change puts
// another file in its place, the lock counts only if the file is still the
// one that was locked. fi is nil when there is no file.
func lockFile(path string) (unlock func(), fi os.FileInfo, err error) {
	for {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			return func() {}, nil, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		mine, err1 := f.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return func() { _ = f.Close() }, mine, nil // closing gives the lock up
		}
		if err := errors.Join(err1, f.Close()); err != nil {
			return nil, nil, err
		}
	}
}

// read gets the entries of a built table.
func (c *command) read(spec string, e *entries) error {
	t, err := table.Open(spec, c.tables())
	if err != nil {
		return err
	}
	s, ok := t.(table.Sequence)
	if !ok {
		return errors.Join(fmt.Errorf("%s: this table cannot be listed", spec), t.Close())
	}
	err = s.All(func(key, value string) bool {
		e.set(strings.TrimSuffix(key, "\x00"), strings.TrimSuffix(value, "\x00"))
		return true
	})
	return errors.Join(err, t.Close())
}

// remove deletes keys from tables: from each table in which they are.
func (c *command) remove(files []string, key string) error {
	keys, err := c.keys(key)
	if err != nil {
		return err
	}
	removed := 0
	for _, f := range files {
		spec := c.spec(f)
		path, err := table.WriterPath(spec)
		if err != nil {
			return err
		}
		there := table.BuiltPath(spec)
		if there == "" {
			_, err := os.Stat(path)
			return err
		}
		restore, err := c.dropRights(ownerOf(there))
		if err != nil {
			return err
		}
		n := 0
		err = c.change(spec, path, attributes{}, func(e *entries) error {
			for _, k := range keys {
				if !c.opt.noFold {
					k = table.Fold(k)
				}
				if e.has(k) {
					delete(e.values, k)
					n++
				}
			}
			return nil
		})
		restore()
		if err != nil {
			return err
		}
		removed += n
	}
	if removed == 0 {
		c.failures++
	}
	return nil
}

func ownerOf(path string) attributes {
	if fi, err := os.Stat(path); err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			return attributes{uid: int(st.Uid), gid: int(st.Gid)}
		}
	}
	return attributes{}
}

// keys is one key, or with "-" those on the standard input, one a line.
func (c *command) keys(key string) ([]string, error) {
	if key != "-" {
		return []string{key}, nil
	}
	var out []string
	s := bufio.NewScanner(c.stdin)
	s.Buffer(nil, table.MaxEntry)
	for s.Scan() {
		if s.Text() != "" {
			out = append(out, s.Text())
		}
	}
	return out, s.Err()
}

// lookup asks the tables in turn.
func lookup(tables []table.Table, key string) (string, bool, error) {
	for _, t := range tables {
		value, found, err := t.Lookup(context.Background(), key)
		if err != nil || found {
			return value, found, err
		}
	}
	return "", false, nil
}
