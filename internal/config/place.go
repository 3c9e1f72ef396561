package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const contentDirectory = "spool_content_directory"

// queueParts are the directories in queue_directory that have a use already.
var queueParts = []string{"etc", "maildrop", "pid", "private", "public", "spool", "tmp"}

// maxDirectory bounds the name of a directory, in octets: as much as a system takes.
const maxDirectory = 4000

// checkDirectory accepts the full path of a directory, or none.
func checkDirectory(path string) error {
	switch {
	case path == "":
		return nil
	case !strings.HasPrefix(path, "/"):
		return errors.New("expected the full path of a directory")
	case path == "/" || filepath.Clean(path) != strings.TrimSuffix(path, "/"):
		return errors.New(`expected the full path of a directory, without "." and ".." and slashes in a row`)
	case len(path) > maxDirectory || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("expected the path of a directory of at most %d octets, without control characters", maxDirectory)
	}
	return nil
}

// checkPlaces sees to it that spool_content_directory is a directory that nothing else uses.
func (c *Config) checkPlaces() error {
	const name = contentDirectory
	if set := c.isSet(name); !set {
		return nil
	}
	dir, queue := c.String(name), filepath.Clean(c.String("queue_directory"))
	if dir == "" || queue == "/" { // that is what it is inside chroot
		return nil
	}
	dir = filepath.Clean(dir)
	s := c.settings[name]
	refuse := func(why string, args ...any) error {
		return fmt.Errorf("%s: %s = %s: %s: name a directory for this alone", s.where(), name, abbreviate(s.raw), fmt.Sprintf(why, args...))
	}
	if isBelow(queue, dir) {
		return refuse("queue_directory is it, or is in it (%s)", queue)
	}
	if part, _, _ := strings.Cut(strings.TrimPrefix(dir, queue+"/"), "/"); isBelow(dir, queue) && slices.Contains(queueParts, part) {
		return refuse("%s in queue_directory has another use", part)
	}
	if data := filepath.Clean(c.String("data_directory")); isBelow(dir, data) || isBelow(data, dir) {
		return refuse("data_directory (%s) has another use", data)
	}
	return nil
}

// isBelow says whether path is dir, or is in it.
func isBelow(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
