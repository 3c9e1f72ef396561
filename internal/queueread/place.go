package queueread

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"posthaste/internal/config"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// OpenContent opens spool_content_directory, for a process that will not find the way there later. It
// is nil when there is none.
func OpenContent(cfg *config.Config) (*vfs.Dir, error) {
	dir := cfg.String("spool_content_directory")
	if dir == "" {
		return nil, nil
	}
	content, err := vfs.OpenDir(dir)
	if err != nil {
		return nil, fmt.Errorf("spool_content_directory: %w; its file system may not be mounted", err)
	}
	return content, nil
}

// OpenRoom opens the directories that new mail goes to, for a process that will not find the way there later. free says how many
// octets the one with most room has free; nil: mail goes to queue_directory alone. A directory that cannot be opened is
// left out: cleanup says what is wrong with it.
func OpenRoom(cfg *config.Config) (free func() (int64, error), done func()) {
	list := cfg.List("spool_directories")
	type room struct {
		fs  vfs.FS
		dir string
	}
	var rooms []room
	var opened []*vfs.Dir
	for _, dir := range list {
		if slices.ContainsFunc(cfg.List("spool_directories_absent"), func(a string) bool { return filepath.Clean(a) == filepath.Clean(dir) }) {
			continue
		}
		if dir == spools.Own {
			dir = "."
		}
		if d, err := vfs.OpenDir(dir); err == nil {
			rooms, opened = append(rooms, room{d, filepath.Clean(dir)}), append(opened, d)
		}
	}
	if len(rooms) == 0 {
		return nil, func() {}
	}
	free = func() (most int64, err error) {
		var failed error
		for _, r := range rooms {
			n, err := r.fs.Free(r.dir)
			if err != nil {
				failed = err
			} else {
				most = max(most, n)
			}
		}
		if most == 0 && failed != nil {
			return 0, failed
		}
		return most, nil
	}
	return free, func() {
		for _, d := range opened {
			d.Close()
		}
	}
}

// NewReader returns a reader of the queue for a service, which is in queue_directory and
// has not given up its rights yet. files has the queue; nil: the operating system's do. kind is the
// engine that the program has beside the log, for another spool_type; nil: none. An error is that the
// content of large messages is not where it was, or a mistake in the configuration.
//
// Together with cleanup's store it is the one place that chooses an engine.
func NewReader(files vfs.FS, cfg *config.Config, kind storage.Kind) (Reader, error) {
	if storage.Elsewhere(cfg) {
		st, err := storage.Make(kind, cfg)
		if err != nil {
			return nil, err
		}
		return st.Reader(), nil
	}
	plan, err := spools.Find(files, spool.Subdir, cfg)
	if err == nil && plan.Several() {
		err = plan.Reach() // before the paths are out of reach
	}
	if err != nil {
		return nil, err
	}
	own, err := newOwnReader(files, cfg)
	if err != nil {
		plan.Close()
		return nil, err
	}
	return &keeping{plan.Readers(own.Reader, Log), append(own.opened, plan)}, nil
}

// A keeping reader has opened directories for itself alone.
type keeping struct {
	Reader
	opened []interface{ Close() error }
}

// Close implements Reader.
func (k *keeping) Close() error {
	err := k.Reader.Close()
	for _, d := range k.opened {
		err = errors.Join(err, d.Close())
	}
	return err
}

// newOwnReader returns a reader of the spool in queue_directory.
func newOwnReader(files vfs.FS, cfg *config.Config) (*keeping, error) {
	content, err := OpenContent(cfg)
	if err != nil {
		return nil, err
	}
	r := spool.NewReader(files, spool.Subdir)
	if content == nil {
		r.UseContent(nil, "")
		return &keeping{Reader: Log(r)}, nil
	}
	r.UseContent(content, cfg.String("spool_content_directory"))
	if err := r.CheckContent(); err != nil {
		r.Close()
		content.Close()
		return nil, fmt.Errorf("spool_content_directory: %w", err)
	}
	return &keeping{Log(r), []interface{ Close() error }{content}}, nil
}
