package domain

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

// A tableFile is a lookup table whose text an administrator edits: texthash, or a type that
// postmap builds.
type tableFile struct {
	spec  string // type:path
	path  string // of the text
	built bool   // postmap builds it
}

// editable is the first table of a list whose text can be edited.
func editable(specs []string) (tableFile, bool) {
	for _, spec := range specs {
		spec = strings.TrimPrefix(spec, "proxy:")
		kind, path, _ := strings.Cut(spec, ":")
		_, err := table.WriterPath(spec)
		if strings.HasPrefix(path, "/") && (kind == "texthash" || err == nil) {
			return tableFile{spec, path, err == nil}, true
		}
	}
	return tableFile{}, false
}

// get is what the text says of a key.
func (t tableFile) get(key string) (value string, found bool, err error) {
	text, err := os.ReadFile(t.path)
	if err != nil {
		return "", false, err
	}
	for _, l := range config.LogicalLines(string(text)) {
		if k, v, err := table.SplitEntry(l.Text); err == nil && table.Fold(k) == table.Fold(key) {
			return v, true, nil
		}
	}
	return "", false, nil
}

// set gives a key its value in the text. The other lines stay as they are.
func (t tableFile) set(key, value string) error {
	return postconf.EditFile(t.path, func(text string) (string, error) { return setEntry(text, key, value), nil })
}

// setEntry is a table's text with an entry changed, or with a new one at the end.
func setEntry(text, key, value string) string {
	entry := key + "\t" + value + "\n"
	for _, l := range config.LogicalLines(text) {
		if k, _, err := table.SplitEntry(l.Text); err != nil || table.Fold(k) != table.Fold(key) {
			continue
		}
		for line := range strings.Lines(text[l.Start:l.End]) { // comments between the lines of an entry
			if body := strings.TrimSpace(line); body == "" || body[0] == '#' {
				entry += line
			}
		}
		return text[:l.Start] + entry + text[l.End:]
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + entry
}

// stale says whether postmap must build the table: there is none, or its text is newer.
func (t tableFile) stale() bool {
	if !t.built {
		return false
	}
	text, err := os.Stat(t.path)
	if err != nil {
		return false
	}
	table, err := os.Stat(table.BuiltPath(t.spec))
	return err != nil || text.ModTime().After(table.ModTime())
}

// build has postmap build the table.
func (t tableFile) build(dir string) error {
	var complaint bytes.Buffer
	if postmap.Run("postmap", nil, []string{"-c", dir, t.spec}, strings.NewReader(""), io.Discard, &complaint) != 0 {
		return fmt.Errorf("%s: %s", t.spec, strings.TrimSpace(complaint.String()))
	}
	return nil
}

// exists says whether the text is there.
func (t tableFile) exists() bool {
	_, err := os.Lstat(t.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// ours refuses a table in a directory that somebody else controls, who could lead elsewhere what
// root writes there.
func (t tableFile) ours() error {
	dir, who, err := rights.OpenDirectory(filepath.Dir(t.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if !who.IsOwn() {
		return fmt.Errorf("%s is not changed: its directory is not root's", t.path)
	}
	return nil
}

// create makes the text, with a comment. What is there stays.
func (t tableFile) create(comment string) (err error) {
	f, err := os.OpenFile(t.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString("# " + comment + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(t.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
