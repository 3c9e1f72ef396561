package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const (
	contentDirectory   = "spool_content_directory"
	severalDirectories = "spool_directories"
)

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

// maxDirectories bounds the directories of spool_directories.
const maxDirectories = 16

// checkDirectories accepts the full paths of several directories, of which none is in another, and "spool".
func checkDirectories(list []string) error {
	if len(list) > maxDirectories {
		return fmt.Errorf("expected %d directories at most", maxDirectories)
	}
	for i, dir := range list {
		if err := checkDirectory(dir); err != nil && dir != "spool" {
			return fmt.Errorf("%s: %w", dir, err)
		}
		for _, other := range list[:i] {
			if isBelow(filepath.Clean(dir), filepath.Clean(other)) || isBelow(filepath.Clean(other), filepath.Clean(dir)) {
				return fmt.Errorf("%s and %s are one, or one is in the other", other, dir)
			}
		}
	}
	return nil
}

// checkPlaces sees to it that spool_content_directory, and each of spool_directories, is a directory that nothing else uses.
func (c *Config) checkPlaces() error {
	const several = severalDirectories
	queue := filepath.Clean(c.String("queue_directory"))
	if queue == "/" { // that is what it is inside chroot
		return nil
	}
	content := ""
	if c.isSet(contentDirectory) {
		content = c.String(contentDirectory)
	}
	if err := c.checkPlace(contentDirectory, content, queue); err != nil || !c.isSet(several) {
		return err
	}
	list := c.List(several)
	if len(list) > 0 && c.String("spool_type") != "log" {
		return fmt.Errorf("%s: %s is for spool_type = log", c.settings[several].where(), several)
	}
	for _, dir := range list {
		if dir == "spool" {
			continue
		}
		if err := c.checkPlace(several, dir, queue); err != nil {
			return err
		}
		if dir = filepath.Clean(dir); content != "" && (isBelow(dir, filepath.Clean(content)) || isBelow(filepath.Clean(content), dir)) {
			return fmt.Errorf("%s: %s: %s is in use by %s", c.settings[several].where(), several, dir, contentDirectory)
		}
	}
	return nil
}

// checkPlace sees to it that nothing else uses a directory that a parameter names; "": none.
func (c *Config) checkPlace(name, dir, queue string) error {
	if dir == "" {
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
