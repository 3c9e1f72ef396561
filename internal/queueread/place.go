package queueread

import (
	"fmt"

	"posthaste/internal/config"
	"posthaste/internal/spool"
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
	content, err := OpenContent(cfg)
	if err != nil {
		return nil, err
	}
	r := spool.NewReader(files, spool.Subdir)
	if content == nil {
		r.UseContent(nil, "")
		return Log(r), nil
	}
	r.UseContent(content, cfg.String("spool_content_directory"))
	if err := r.CheckContent(); err != nil {
		r.Close()
		return nil, fmt.Errorf("spool_content_directory: %w", err)
	}
	return Log(r), nil
}
