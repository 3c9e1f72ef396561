// Package tabletext edits the texts of lookup tables, as an administrator does with an editor:
// the entry of one key changes, and all other lines stay as they are, with their comments. Edits
// are atomic and wait for each other; readers see the file before or after, whole
// (postconf.EditFile).
//
// # Security
//
// A text is not changed in a directory that belongs to somebody else than the caller, who could
// lead elsewhere what root writes there: ask [File.Ours] first.
package tabletext

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/postconf"
	"posthaste/internal/rights"
	"posthaste/internal/table"
	"posthaste/internal/table/postmap"
)

// A File is a lookup table whose text an administrator edits: texthash, or a type that
// postmap builds.
type File struct {
	Spec  string // type:path
	Path  string // of the text
	Built bool   // postmap builds it
}

// Editable is the first table of a list whose text can be edited.
func Editable(specs []string) (File, bool) {
	for _, spec := range specs {
		spec = strings.TrimPrefix(spec, "proxy:")
		kind, path, _ := strings.Cut(spec, ":")
		_, err := table.WriterPath(spec)
		if strings.HasPrefix(path, "/") && (kind == "texthash" || err == nil) {
			return File{spec, path, err == nil}, true
		}
	}
	return File{}, false
}

// Get is what the text says of a key.
func (t File) Get(key string) (value string, found bool, err error) {
	text, err := os.ReadFile(t.Path)
	if err != nil {
		return "", false, err
	}
	value, found = entryOf(string(text), key)
	return value, found, nil
}

// entryOf is the value of a key in a table's text.
func entryOf(text, key string) (value string, found bool) {
	for _, l := range config.LogicalLines(text) {
		if k, v, err := table.SplitEntry(l.Text); err == nil && table.Fold(k) == table.Fold(key) {
			return v, true
		}
	}
	return "", false
}

// Set gives a key its value in the text. The other lines stay as they are.
func (t File) Set(key, value string) error {
	return t.Change(key, func(string, bool) (string, error) { return value, nil })
}

// Change gives a key the value that change makes of the one that it has. Other edits wait
// meanwhile. When change returns an error, the text stays as it is, and Change returns it.
func (t File) Change(key string, change func(old string, found bool) (value string, err error)) error {
	return postconf.EditFile(t.Path, func(text string) (string, error) {
		old, found := entryOf(text, key)
		value, err := change(old, found)
		if err != nil {
			return "", err
		}
		return setEntry(text, key, value), nil
	})
}

// setEntry is a table's text with an entry changed, or with a new one at the end.
func setEntry(text, key, value string) string {
	entry := key + "\t" + value + "\n"
	for _, l := range config.LogicalLines(text) {
		if k, _, err := table.SplitEntry(l.Text); err != nil || table.Fold(k) != table.Fold(key) {
			continue
		}
		return text[:l.Start] + entry + comments(text[l.Start:l.End]) + text[l.End:]
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + entry
}

// An Entry is one of the text.
type Entry struct{ Key, Value string }

// Entries are all of the text, in its order. A malformed line is left out: postmap warns of it.
func (t File) Entries() (list []Entry, err error) {
	text, err := os.ReadFile(t.Path)
	if err != nil {
		return nil, err
	}
	for _, l := range config.LogicalLines(string(text)) {
		if k, v, err := table.SplitEntry(l.Text); err == nil {
			list = append(list, Entry{k, v})
		}
	}
	return list, nil
}

// Remove takes a key out of the text, and says whether it was there.
func (t File) Remove(key string) (found bool, err error) {
	err = postconf.EditFile(t.Path, func(text string) (string, error) {
		text, found = removeEntry(text, key)
		return text, nil
	})
	return found, err
}

// removeEntry is a table's text without the entries of a key. Comments between their lines stay.
func removeEntry(text, key string) (rest string, found bool) {
	at := 0
	for _, l := range config.LogicalLines(text) {
		if k, _, err := table.SplitEntry(l.Text); err != nil || table.Fold(k) != table.Fold(key) {
			continue
		}
		found = true
		rest += text[at:l.Start] + comments(text[l.Start:l.End])
		at = l.End
	}
	return rest + text[at:], found
}

// comments are the comment and blank lines between those of an entry.
func comments(text string) (list string) {
	for line := range strings.Lines(text) {
		if body := strings.TrimSpace(line); body == "" || body[0] == '#' {
			list += line
		}
	}
	return list
}

// Stale says whether postmap must build the table: there is none, or its text is newer.
func (t File) Stale() bool {
	if !t.Built {
		return false
	}
	text, err := os.Stat(t.Path)
	if err != nil {
		return false
	}
	table, err := os.Stat(table.BuiltPath(t.Spec))
	return err != nil || text.ModTime().After(table.ModTime())
}

// Build has postmap build the table.
func (t File) Build(dir string) error {
	var complaint bytes.Buffer
	if postmap.Run("postmap", nil, []string{"-c", dir, t.Spec}, strings.NewReader(""), io.Discard, &complaint) != 0 {
		return fmt.Errorf("%s: %s", t.Spec, strings.TrimSpace(complaint.String()))
	}
	return nil
}

// Exists says whether the text is there.
func (t File) Exists() bool {
	_, err := os.Lstat(t.Path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Ours refuses a table in a directory that somebody else controls, who could lead elsewhere what
// root writes there, or read it. Where the text is a symbolic link, that holds for what it leads to as well.
func (t File) Ours() error {
	paths := []string{t.Path}
	if target, err := filepath.EvalSymlinks(t.Path); err == nil && target != t.Path {
		paths = append(paths, target)
	}
	for _, path := range paths {
		dir, who, err := rights.OpenDirectory(filepath.Dir(path))
		if err != nil {
			return err
		}
		dir.Close()
		if !who.IsOwn() {
			return fmt.Errorf("%s is not changed: the directory of %s is not root's", t.Path, path)
		}
	}
	return nil
}

// Create makes the text, with a comment, a mode, and a group unless gid is negative. A text that is
// there stays as it is. The new one is on stable storage on return.
func (t File) Create(comment string, mode os.FileMode, gid int) (err error) {
	f, err := os.OpenFile(t.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("# " + comment + "\n")
	if gid >= 0 {
		err = errors.Join(err, f.Chown(-1, gid))
	}
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(t.Path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
